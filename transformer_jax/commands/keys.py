"""The `keys` command: every key of the config with its type, default, range and meaning."""

from collections.abc import Sequence

from transformer_jax.config.keys import Key
from transformer_jax.config.schema import KEYS, keys_in, nearest_key
from transformer_jax.errors import ConfigError

TITLE = """# Keys of the config

`transformer-jax keys --markdown` writes this page from the schema (`transformer_jax/config/`). Set
a key in a config file (`config.model.num_heads = 4`) or on the command line
(`--config.model.num_heads=4`; `none` for None; commas between the items of a list). A later `train`
on the same folder may change a *mutable* key; if it contradicts an immutable one, it is refused.
"""


def keys(prefix: str = "", markdown: bool = False) -> None:
    """Prints the keys whose names begin with `prefix`: type, default, range and meaning.

    Args:
      prefix: such as "decode" or "model.num"; "": every key.
      markdown: whether to print the page docs/keys.md.

    Raises:
      ConfigError: no key's name begins so; the message suggests the nearest key.
    """
    found = [key for name, key in KEYS.items() if name.startswith(prefix)]
    if not found:
        near = nearest_key(prefix)
        fix = f"Did you mean {near}?" if near else f"Sections: {keys_in('')}."
        raise ConfigError(f"no key of the config begins with {prefix!r}. {fix}")
    print(as_markdown(found) if markdown else as_text(found), end="" if markdown else "\n")


def as_text(keys: Sequence[Key]) -> str:
    """Two lines per key: name, type, default, range, whether it may change; the meaning."""
    lines = []
    for key in keys:
        rules = "; ".join(filter(None, (_values(key), _change(key))))
        lines.append(f"{key.name}: {_type(key)} = {_shown(key.default)}  {rules}")
        lines.append(f"    {key.meaning}")
    return "\n".join(lines)


def as_markdown(keys: Sequence[Key]) -> str:
    """The page docs/keys.md: one table per section."""
    parts = [TITLE]
    section = None
    for key in keys:
        own, _, last = key.name.rpartition(".")
        if own != section:
            section = own
            parts.append(f"## {own or 'The whole run'}\n")
            parts.append("| key | type | default | values | changes | meaning |")
            parts.append("|---|---|---|---|---|---|")
        name = f'<a id="{key.name}"></a>`{last}`'
        cells = [name, _type(key), f"`{_shown(key.default)}`", _values(key), _change(key)]
        cells.append(key.meaning)
        parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(parts).replace("|\n##", "|\n\n##") + "\n"


def _type(key: Key) -> str:
    kind = "list of str" if key.kind is tuple else key.kind.__name__
    return f"{kind} or none" if key.optional else kind


def _shown(value: object) -> str:
    """A default as the command line takes it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return ",".join(value) if isinstance(value, tuple) else str(value)


def _change(key: Key) -> str:
    return "mutable" if key.mutable else "immutable"


def _values(key: Key) -> str:
    """The range of a number, or the choices of a string; empty if there are none."""
    if choices := key.valid_choices():
        return ", ".join(choices)
    ends = (("at least", key.at_least), ("above", key.above), ("below", key.below))
    shown = [f"{word} {value:g}" for word, value in ends if value is not None]
    shown += [f"at most {key.at_most}"] if key.at_most is not None else []
    return ", ".join(shown)
