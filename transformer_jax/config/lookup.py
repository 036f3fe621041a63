"""The key that a dotted name means; an error about an unknown name suggests the nearest key."""

import difflib

from transformer_jax.config.keys import Key
from transformer_jax.config.old_keys import OLD_KEYS
from transformer_jax.config.schema import KEYS, SECTIONS
from transformer_jax.errors import ConfigError


def known_key(name: str) -> Key:
    """The key of that dotted name.

    Raises:
      ConfigError: there is no such key. The message names the nearest one, or those that replace an
        old key.
    """
    if name in KEYS:
        return KEYS[name]
    if name in SECTIONS:
        raise ConfigError(f"{name} is a section of the config. Name a key in it: {keys_in(name)}.")
    if name in OLD_KEYS:
        replaced = " and ".join(OLD_KEYS[name].replaced_by)
        raise ConfigError(f"{name} is now {replaced}." if replaced else f"{name} has gone.")
    is_key = "." in name or any(f".{key}".endswith(f".{name}") for key in KEYS)
    sections = [] if is_key else difflib.get_close_matches(name, SECTIONS, n=1, cutoff=0.75)
    near = sections[0] if sections else nearest_key(name)
    section = name.split(".")[0] if name.split(".")[0] in SECTIONS else ""
    suggestion = f"Did you mean {near}?" if near else f"Known keys: {keys_in(section)}."
    raise ConfigError(f"{name} is not a key of the config. {suggestion}")


def nearest_key(name: str) -> str | None:
    """The key most like `name`, or None if no key is like it.

    It first looks for close names within the section that `name` gives, then for close names in any
    section, then for less close ones within the section.
    """
    section, _, last = name.rpartition(".")
    lasts = {key.rpartition(".")[2]: key for key in KEYS}
    own = {key.rpartition(".")[2]: key for key in KEYS if key.startswith(section + ".")}
    for words, cutoff in ((own, 0.8), (lasts, 0.75), (own, 0.6)):
        if near := difflib.get_close_matches(last, words, n=1, cutoff=cutoff):
            return words[near[0]]
    return None


def keys_in(section: str) -> str:
    """The names of the keys in a section, for a message; the sections themselves for ""."""
    if not section:
        return ", ".join(sorted(SECTIONS)) + ", seed"
    return ", ".join(name for name in KEYS if name.startswith(section + "."))
