"""The `augment` command: a text and a run's translations of it, as further training text."""

import fcntl
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from transformer_jax.decoding.lines import GROUP_LINES
from transformer_jax.errors import ConfigError, DataError, RunError
from transformer_jax.files import read_json, write_atomically
from transformer_jax.text.documents import InContext
from transformer_jax.text.lines import TextLines, file_digest
from transformer_jax.use.loading import NO_OVERRIDES, LoadedModel, load_model

log = logging.getLogger(__name__)
HOW: dict[str, dict[str, Any]] = {
    "beam": {"decode.method": "beam"},
    "sample": {"decode.method": "sample"},
    "top_k": {"decode.method": "sample", "decode.top_k": 10},
}
LOG_SECONDS = 30.0  # between lines of the log


def augment(
    reverse: str,
    *,
    text: str,
    output: str,
    how: str = "beam",
    checkpoint: str = "latest",
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> None:
    """Writes a text, OUTPUT.SRC, its translations, OUTPUT.TGT, and their origin, OUTPUT.json.

    With a run of the other direction, the translations are sources (back-translation, Sennrich et
    al. 2016); with a larger run of the same direction, targets (distillation, Kim and Rush 2016).
    Killed, the same command goes on, and writes the same files: samples follow from decode.seed and
    the line.

    Args:
      reverse: the folder of the run that translates the text.
      text: a file, one sentence a line; .gz is decompressed.
      output: the stem of the files; FOLDER/STEM. OUTPUT.SRC may be the text itself.
      how: "beam"; "sample" from the whole distribution (Edunov et al. 2018); or "top_k", from the
        10 likeliest subwords.
      checkpoint: "latest", "best", "average", a step, or an average's name.
      overrides: keys of `decode` and their values.

    Raises:
      UserError: there is no such run, checkpoint or text; or a file is there that this command has
        not begun.
    """
    lines = TextLines(Path(text))
    loaded = load_model(reverse, checkpoint, overrides=_searching(how, overrides))
    loaded.translating().reading_text("augment")
    source, target = (Path(f"{output}.{side}") for side in _languages(loaded, Path(text)))
    if target.exists():
        raise ConfigError(f"--output={output}: {target} exists. Name another stem.")
    own = "".join(f"{line}\n" for line in lines).encode()
    if not source.exists():
        write_atomically(source, own)
    elif not source.samefile(text) and source.read_bytes() != own:
        raise ConfigError(f"--output={output}: {source} exists. Name another stem.")
    part = target.with_name(f"{target.name}.part")
    with open(part, "a+b") as file:
        _lock(file)
        done = _begun(file, Path(f"{output}.json"), _origin(loaded, Path(text)))
        _translate(loaded, lines, done, file)
        part.rename(target)
    log.info("%s and %s: %d lines", source, target, len(lines))
    log.info("train with --config.data.train=train,%s (or %s@bt, to tell)", *[source.stem] * 2)


def _searching(how: str, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the search."""
    if how not in HOW:
        raise ConfigError(f"--how={how} is not one of {', '.join(HOW)}.")
    if "decode.method" in overrides:
        raise ConfigError("decode.method and --how: leave decode.method out.")
    return {**HOW[how], **overrides}


def _languages(loaded: LoadedModel, text: Path) -> tuple[str, str]:
    """The suffixes of the text's file and of that of its translations."""
    data, to = loaded.config.data, loaded.config.decode.to
    if loaded.translator.model.sources > 1:
        raise ConfigError(f"augment is for runs with one source, and this one reads {data.src}.")
    if not data.directions:
        return data.src, to or data.tgt
    source = text.with_suffix("").suffix if text.suffix == ".gz" else text.suffix
    if to is None or f"{source[1:]}-{to}" not in data.directions:
        raise ConfigError(
            f"augment: the run translates {', '.join(data.directions)}: name the target language "
            f"with --to, and the text's by its suffix (--text={text})."
        )
    return source[1:], to


def _origin(loaded: LoadedModel, text: Path) -> dict[str, Any]:
    """What the translations follow from."""
    return {
        "run": loaded.folders[0],
        "checkpoint": loaded.checkpoint,
        "weights": loaded.digest(),
        "text": file_digest(text).hex(),
        "decode": json.loads(json.dumps(vars(loaded.config.decode))),
    }


def _lock(file: IO[bytes]) -> None:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise RunError(f"Another command writes {file.name}. Wait for it.") from None
    except OSError as error:  # a file system without locks
        log.warning("%s cannot be locked: %s", file.name, error)


def _begun(file: IO[bytes], about: Path, origin: dict[str, Any]) -> int:
    """The number of lines that are written already; writes how they are made, if there are none.

    Raises:
      RunError: they follow from something else.
    """
    file.seek(0)
    written = file.read()
    if not written:
        write_atomically(about, (json.dumps(origin, indent=1) + "\n").encode())
        return 0
    known = read_json(about) if about.exists() else {}
    compared = origin.keys() - {"run"}  # which may have moved
    if other := sorted(name for name in compared if known.get(name) != origin[name]):
        raise RunError(
            f"{file.name} was begun with another {' and '.join(other)} (see {about}). Give that "
            "command again, or remove the file."
        )
    file.truncate(written.rfind(b"\n") + 1)
    return written.count(b"\n")


def _translate(loaded: LoadedModel, lines: TextLines, done: int, file: IO[bytes]) -> None:
    """Appends the translations of the lines from `done` on, group by group."""
    if done > len(lines):
        raise DataError(f"{done} lines are written, and the text has {len(lines)}. Remove them.")
    translator = loaded.line_translator()
    add_context = InContext(loaded.config.data.context, translator.vocabulary.codes)
    for line in lines[max(0, done - loaded.config.data.context) : done]:
        add_context(line)
    if done:
        log.info("%d lines are written: going on", done)
    told = time.monotonic()
    for first in range(done, len(lines), GROUP_LINES):
        group = lines[first : first + GROUP_LINES]
        found = translator([add_context(line) for line in group])
        file.write("".join(f"{best.text}\n" for best, *_ in found).encode())
        file.flush()
        if time.monotonic() - told > LOG_SECONDS:
            told = time.monotonic()
            log.info("%d of %d lines", first + len(group), len(lines))
    translator.warn_of_cut()
