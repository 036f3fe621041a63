"""The digest of a config, which shows whether a line of results.jsonl belongs to a row's config.

It is a hash of the keys that count, immutable ones and COUNTED, and that do not have their default.
So a new key, whose default does what was done before, leaves recorded digests as they are.
"""

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from transformer_jax.config.schema import KEYS, Config, value_at

DIGITS = 12
# Two keys of search are not counted. decode.tokens_per_batch changes no result. Recorded digests do
# not have decode.max_length; it counts if a row, a scale or a flag gives it.
LONGEST = "decode.max_length"
SEARCH = {name for name in KEYS if name.startswith("decode.")}
SEARCH -= {LONGEST, "decode.tokens_per_batch"}
COUNTED = {"train.steps", "train.init_from", "train.teacher"} | SEARCH  # mutable, and they count


def digest_of(config: Config, overrides: Mapping[str, Any] = MappingProxyType({})) -> str:
    """The digest of the immutable keys and of COUNTED; `overrides` made the config of a preset."""
    counting = (name for name, key in KEYS.items() if not key.mutable or name in COUNTED)
    values = {name: value_at(config, name) for name in counting}
    changed = {name: value for name, value in values.items() if value != KEYS[name].default}
    if LONGEST in overrides:
        changed[LONGEST] = value_at(config, LONGEST)
    text = json.dumps(changed, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]
