"""Config files, and the overrides on the command line.

A config file is a Python file. Its function `get_config(argument=None)` returns a ConfigDict, which
it makes by changing `default_config_dict()`. `FILE.py:ARGUMENT` passes the argument. The presets
are installed with the package: if there is no such file, `configs/NAME.py` or `NAME` is a preset.
"""

import contextlib
import difflib
import inspect
import os
import re
import runpy
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from absl import flags
from ml_collections import ConfigDict, FieldReference, config_dict
from ml_collections.config_flags import tuple_parser

from transformer_jax.config.changes import with_values
from transformer_jax.config.checks import check
from transformer_jax.config.keys import Key
from transformer_jax.config.schema import KEYS, Config, known_key
from transformer_jax.config.serialization import from_config_dict
from transformer_jax.errors import ConfigError, UserError

# The parsers of ml_collections.config_flags, so that values look as in other JAX projects.
PARSERS: dict[type[Any], Any] = {
    int: flags.IntegerParser(),
    float: flags.FloatParser(),
    bool: flags.BooleanParser(),
    str: flags.ArgumentParser(),
    tuple: tuple_parser.TupleParser(),
}
PACKAGE = Path(__file__).parents[1]
LOADING = threading.RLock()  # a config file may load another one
OVERRIDE = re.compile(r"--?(?P<no>no)?config\.(?P<name>[^=]*)(?P<value>=.*)?", re.DOTALL)


def load_config(spec: str, overrides: Mapping[str, Any] | None = None) -> Config:
    """The config of a config file with some dotted keys replaced, after the checks.

    Args:
      spec: "FILE.py", or "FILE.py:ARGUMENT".
      overrides: such as {"model.num_heads": 16}.

    Raises:
      ConfigError: the file is missing or fails, a key is unknown, or a value is not allowed.
    """
    try:
        given = _followed(_call_get_config(spec), overrides or {})
        config = with_values(from_config_dict(given), overrides or {})
        # A key of search that another one of search reads may wait for a later command to set that.
        check(config, [name for name, key in KEYS.items() if not _may_wait(key)])
        return config
    except UserError:
        raise
    except Exception as error:  # for example on numbers of 5,000 digits
        raise ConfigError(f"--config={spec}: {_said(error)}") from error


def _may_wait(key: Key) -> bool:
    return key.name.startswith("decode.") and any(
        setting.startswith("decode.") for setting in key.read_with
    )


def _followed(raw: Any, overrides: Mapping[str, Any]) -> Any:
    """A config whose references (`get_ref`) follow the overrides, as ml_collections' flags do it.

    Raises:
      ConfigError: it demands a value (config_dict.required_placeholder) that is not among them.
    """
    fields = [
        (part, name, f"{names}{name}", field)
        for names, part in [("", raw), *_sections(raw)]
        if isinstance(part, ConfigDict)
        for name, field in part.items(preserve_field_references=True)
    ]
    for _, _, key, field in fields:
        if key in overrides and isinstance(field, FieldReference):
            field.set(overrides[key], type_safe=False)
    for part, name, key, _ in fields:
        try:
            part[name]
        except config_dict.RequiredValueError:
            raise ConfigError(f"this config asks for a value: add --config.{key}=VALUE.") from None
    return raw


def _sections(raw: Any) -> Iterator[tuple[str, Any]]:
    """The sections of a config with the beginnings of their keys' names."""
    for name in raw if isinstance(raw, ConfigDict) else ():
        with contextlib.suppress(config_dict.RequiredValueError):
            yield f"{name}.", raw[name]


def _said(error: BaseException) -> str:
    """The kind of an error and its text, which may itself raise."""
    try:
        text = " ".join(str(error).split())[:300]
    except Exception:
        text = "(its text cannot be printed)"
    return f"{type(error).__name__}: {text}"


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    """Takes --config.KEY=VALUE out of a command line.

    Other forms: `--config.KEY VALUE`; `--config.KEY` and `--noconfig.KEY` for a boolean; `none` for
    an optional key; commas, a repeated flag, or Python's syntax for a tuple.

    Returns:
      The other arguments, and the overrides for `load_config`.

    Raises:
      ConfigError: an unknown key, or a text that is not a value of the key's type.
    """
    others, texts = override_texts(arguments)
    return others, {name: parse_value(known_key(name), given) for name, given in texts.items()}


def override_texts(arguments: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Like `split_overrides`, but it returns each key's texts, in order, instead of its value."""
    others: list[str] = []
    texts: dict[str, list[str]] = {}
    left = iter(arguments)
    for argument in left:
        match = OVERRIDE.fullmatch(argument)
        if not match:
            others.append(argument)
            continue
        key = known_key(match["name"])
        if match["no"] and (key.kind is not bool or match["value"]):
            raise ConfigError(f"{argument}: --noconfig.KEY works for true-or-false keys only.")
        text = match["value"][1:] if match["value"] else None
        if text is None:
            text = str(not match["no"]) if key.kind is bool else next(left, None)
        if text is None:
            raise ConfigError(f"{argument} needs a value: {argument}=VALUE.")
        texts.setdefault(key.name, []).append(text)
    return others, texts


def parse_value(key: Key, texts: Sequence[str]) -> Any:
    """The value that the command line gives a key: the last text, or all of them for a tuple."""
    if key.optional and texts[-1].lower() == "none":
        return None
    parser = PARSERS[key.kind]
    try:
        if key.kind is tuple:
            return tuple(str(item) for text in texts for item in _items(text))
        return parser.parse(texts[-1])
    except (TypeError, ValueError):
        expected = {bool: "true or false", tuple: "a list, such as a,b or ('a','b')"}
        kind = expected.get(key.kind, key.kind.__name__) + (" or none" if key.optional else "")
        several = ""
        if "," in texts[-1] and key.kind in (int, float):
            several = " A run for each of several values: python -m experiments.sweep --help."
        raise ConfigError(f"--config.{key.name}={texts[-1]}: expected {kind}.{several}") from None


def _items(text: str) -> Sequence[Any]:
    """The items of "a,b" or of "('a','b')", none of ""; an item may contain spaces."""
    if not text.strip():
        return []
    if text.startswith(("(", "[", "'", '"')):
        return PARSERS[tuple].parse(text)
    return [item.strip() for item in text.split(",")]


def _call_get_config(spec: str) -> ConfigDict | Mapping[str, Any]:
    is_whole = Path(spec).is_file()  # a folder's name may have a colon
    name, colon, argument = (spec, "", "") if is_whole else spec.partition(":")
    file = _find_file(name)
    # The file may print, but standard output is for results. It may change the working directory,
    # to which --workdir and other paths are relative. Both are those of all threads.
    with (
        LOADING,
        contextlib.redirect_stdout(sys.stderr),
        contextlib.chdir(os.curdir),
        _presets_on_path(),
    ):
        raw = _run_file(spec, file, [argument] if colon else [])
    if not isinstance(raw, ConfigDict | Mapping):
        if inspect.iscoroutine(raw):
            raw.close()  # otherwise Python warns of it
        raise ConfigError(f"{file}: get_config returned {type(raw).__name__}, not a ConfigDict.")
    return raw


@contextlib.contextmanager
def _presets_on_path() -> Iterator[None]:
    """Lets a config file import presets (`from configs.demo import get_config`) from anywhere.

    Like `python -m`, the command `transformer-jax` finds modules of the working directory first.
    """
    before = list(sys.path)
    sys.path += [os.getcwd(), str(shipped("configs").parent)]
    try:
        yield
    finally:
        sys.path[:] = before


def _run_file(spec: str, file: Path, arguments: list[str]) -> Any:
    """What get_config returns. Raises ConfigError if there is none, or the file fails."""
    path = str(file)
    if file.suffix != ".py":
        run = "; a run continues with train --workdir=RUN alone" if file.suffix == ".json" else ""
        raise ConfigError(f"--config={path} is not a Python file: its name must end in .py{run}.")
    try:  # runpy writes no __pycache__ beside the file
        get_config = runpy.run_path(path, run_name="transformer_jax_config").get("get_config")
        if not callable(get_config):
            raise ConfigError(f"{path} has no function get_config. Presets in configs/ show one.")
        signature = inspect.signature(get_config)
        try:
            signature.bind(*arguments)
        except TypeError:
            needs = (
                f"takes no argument: --config={path}"
                if arguments
                else f"needs one argument: --config={path}:ARGUMENT"
            )
            if any(one.kind is one.KEYWORD_ONLY for one in signature.parameters.values()):
                needs = f"is get_config{signature}, and can get only one argument, without a name"
            raise ConfigError(f"--config={spec}: its get_config {needs}.") from None
        return get_config(*arguments)
    except (UserError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise ConfigError(f"{path}{_line_of(error, path)}: {_said(error)}") from error


def _find_file(name: str) -> Path:
    """The file of that name; without one, the preset that `NAME` or `configs/NAME.py` means.

    Raises:
      ConfigError: there is neither; the message suggests the nearest, or lists the presets.
    """
    path = Path(name)
    if path.is_file():
        return path
    presets = {file.stem: file for file in sorted(shipped("configs").glob("*.py"))}
    if path.parent in (Path("."), Path("configs")) and path.suffix in ("", ".py"):
        if path.stem in presets:
            return presets[path.stem]
    if path.exists():
        raise ConfigError(f"--config={path} is not a file. Name a file in it, or a preset.")
    siblings = {file.name: str(file) for file in sorted(path.parent.glob("*.py"))}
    known = {f"{stem}.py": f"configs/{stem}.py" for stem in presets} | siblings
    near = difflib.get_close_matches(f"{path.stem}.py", known, n=1, cutoff=0.7)
    fix = f"Did you mean {known[near[0]]}?" if near else f"Presets: {', '.join(presets)}."
    raise ConfigError(f"--config={path}: there is no such file. {fix}")


def shipped(folder: str) -> Path:
    """The folder `configs` or `experiments`: that of the checkout, or of the installed package."""
    installed = PACKAGE / "shipped" / folder  # [tool.setuptools] in pyproject.toml puts it there
    return installed if installed.is_dir() else PACKAGE.parent / folder


def _line_of(error: BaseException, path: str) -> str:
    """`, line N`: the line of the config file that raised the error; empty if it is not there."""
    if isinstance(error, SyntaxError):
        return f", line {error.lineno}" if error.lineno else ""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == path
    ]
    return f", line {lines[-1]}" if lines else ""
