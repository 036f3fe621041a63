"""The digest of a config, which shows whether a line of results.csv belongs to a row's config.

It is a hash of the keys that count, immutable ones and COUNTED, and that do not have their default.
So a new key, whose default does what was done before, leaves recorded digests as they are.
"""

import hashlib
import json

from transformer_jax.config.schema import KEYS, Config, value_at

DIGITS = 12
# The mutable keys that count. Results depend on decode.max_length too, which is left out because
# recorded digests lack it: no row may differ in it.
COUNTED = {
    "train.steps",
    "train.init_from",
    "decode.method",
    "decode.groups",
    "decode.diversity",
    "decode.dtype",
    "decode.weights",
    "decode.temperature",
    "decode.top_k",
    "decode.top_p",
    "decode.seed",
    "decode.samples",
    "decode.utility",
    "decode.beam_size",
    "decode.length_penalty",
    "decode.coverage_penalty",
    "decode.max_extra_length",
    "decode.penalty",
    "decode.banned_subwords",
    "decode.wait_k",
}


def digest_of(config: Config) -> str:
    """The digest of the immutable keys and of COUNTED."""
    counting = (name for name, key in KEYS.items() if not key.mutable or name in COUNTED)
    values = {name: value_at(config, name) for name in counting}
    changed = {name: value for name, value in values.items() if value != KEYS[name].default}
    text = json.dumps(changed, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
