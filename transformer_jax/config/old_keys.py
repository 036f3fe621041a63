"""Keys that earlier versions had, and what replaces them.

The `config.json` of an old run may hold them. Config files and the command line may not: there an
old key is an error that names its replacement (`config/schema.py`).
"""

from collections.abc import Callable, Mapping
from typing import Any

from transformer_jax.errors import ConfigError


def _score_of(scale_attention: Any) -> tuple[str]:
    if not isinstance(scale_attention, bool):
        raise ConfigError(f"model.scale_attention={scale_attention!r} is neither true nor false.")
    return ("scaled_dot" if scale_attention else "dot",)


# A key that a config.json lacks gets its default, so the default of a new key must do what runs did
# before the key existed. Only a key that is renamed, split or removed needs a line here: the dotted
# names that replace it (none: it has gone), and from its value to one value for each of them.
OLD_KEYS: dict[str, tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]] = {
    "model.kind": (("model.encoder", "model.decoder"), lambda kind: (kind, kind)),
    "model.scale_attention": (("model.score",), _score_of),
    "train.data_workers": ((), lambda _: ()),
}
# Numbers that had no upper limit once. Searches that large never fitted into memory.
UPPER_LIMITS = {
    "decode.tokens_per_batch": 1_000_000,
    "decode.max_extra_length": 1_000_000,
    "decode.beam_size": 1_000,
    "data.pairs": 10_000_000,
}


def upgraded(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A config as nested dicts, with old keys and values replaced; `tree` itself is not changed.

    An old key remains if the tree has one of its replacements too, since the two could disagree.

    Raises:
      ConfigError: an old key has a value that it never could have.
    """
    new = {name: dict(part) if isinstance(part, Mapping) else part for name, part in tree.items()}
    for name, (replaced_by, convert) in OLD_KEYS.items():
        section, _, last = name.partition(".")
        keys = new.get(section)
        lasts = [replacement.partition(".")[2] for replacement in replaced_by]
        if not isinstance(keys, dict) or last not in keys or not keys.keys().isdisjoint(lasts):
            continue
        keys |= dict(zip(lasts, convert(keys.pop(last)), strict=True))
    if isinstance(data := new.get("data"), dict):
        data.setdefault("seed", new.get("seed", 0))  # once it was the run's
    for name, limit in UPPER_LIMITS.items():
        section, _, last = name.partition(".")
        keys = new.get(section)
        if isinstance(keys, dict) and isinstance(keys.get(last), int) and keys[last] > limit:
            keys[last] = limit
    return new
