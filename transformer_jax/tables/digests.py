"""The digest of a config, which shows whether a line of results.csv belongs to a row's config.

It is a hash of the keys that count, immutable ones and COUNTED, and that do not have their default.
So a new key, whose default does what was done before, leaves recorded digests as they are.
"""

import hashlib
import json

from transformer_jax.config.schema import KEYS, Config, value_at

DIGITS = 12
# Two keys of search. decode.tokens_per_batch changes no result. Recorded digests do not have
# decode.max_length, so no row may differ in it.
NOT_COUNTED = {"decode.max_length", "decode.tokens_per_batch"}
SEARCH = {name for name in KEYS if name.startswith("decode.")} - NOT_COUNTED
COUNTED = {"train.steps", "train.init_from"} | SEARCH  # the mutable keys that count


def digest_of(config: Config) -> str:
    """The digest of the immutable keys and of COUNTED."""
    counting = (name for name, key in KEYS.items() if not key.mutable or name in COUNTED)
    values = {name: value_at(config, name) for name in counting}
    changed = {name: value for name, value in values.items() if value != KEYS[name].default}
    text = json.dumps(changed, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
