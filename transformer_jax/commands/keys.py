"""The `keys` command: lists the keys of the config."""

from transformer_jax.config.reference import as_markdown, as_text, keys_under


def keys(prefix: str = "", markdown: bool = False) -> None:
    """Prints the keys whose names begin with `prefix`: type, default, range and meaning.

    Args:
      prefix: such as "decode" or "model.num"; "": every key.
      markdown: whether to print the page docs/keys.md.

    Raises:
      ConfigError: no key's name begins so.
    """
    found = keys_under(prefix)
    print(as_markdown(found) if markdown else as_text(found), end="" if markdown else "\n")
