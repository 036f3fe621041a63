"""The `augment` command: a text and a run's translations of it, as further training text."""

import fcntl
import hashlib
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

from transformer_jax.config.texts import Text, slice_of
from transformer_jax.decoding.lines import GROUP_LINES, LineTranslator
from transformer_jax.errors import ConfigError, DataError, RunError
from transformer_jax.files import is_there, read_json, write_atomically
from transformer_jax.text.documents import InContext
from transformer_jax.text.lines import TextLines
from transformer_jax.text.vocabulary import split_codes
from transformer_jax.use.loading import NO_OVERRIDES, LoadedModel, load_model

log = logging.getLogger(__name__)
PLAIN: dict[str, Any] = {"decode.method": "sample", "decode.temperature": 1.0, "decode.top_p": None}
HOW: dict[str, dict[str, Any]] = {
    "beam": {"decode.method": "beam"},
    "sample": {**PLAIN, "decode.top_k": None},
    "top_k": {**PLAIN, "decode.top_k": 10},
}
LOG_SECONDS = 30.0  # between lines of the log


def augment(
    reverse: str,
    *,
    text: str,
    output: str,
    how: str | None = None,
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
      how: "beam"; "sample" from the whole distribution (Edunov et al. 2018); "top_k", from the 10
        likeliest subwords; None: as the run searches.
      checkpoint, overrides: see `load_model`.

    Raises:
      UserError: there is no such run, checkpoint or text; or a file is there that this command has
        not begun.
    """
    stem = "" if output.endswith("/") else Path(output).name
    is_plain = Text.of(stem) == Text(stem) and slice_of(stem)[0] == stem and "," not in stem
    if not is_plain or not stem.strip("."):
        raise ConfigError(f"--output={output}: data.train cannot name this stem. Take a plain one.")
    lines = TextLines(Path(text))
    loaded = load_model(reverse, checkpoint, overrides=_searching(how, overrides))
    translator = loaded.translating().reading_text("augment").line_translator()
    sides = _languages(loaded, Path(text))
    source, target = (Path(f"{output}.{side}") for side in sides)
    part, about = Path(f"{target}.part"), Path(f"{output}.json")
    _check_begun(part, about, origin := _origin(loaded, lines))
    _check_codes(lines, loaded.vocabulary.codes)
    for one in (target, _compressed(target)):
        if is_there(one):
            raise ConfigError(f"--output={output}: {one} exists. Name another stem.")
    _write_source(source, lines, Path(text))
    if not about.exists():
        write_atomically(about, (json.dumps(origin, indent=1) + "\n").encode())
    with open(part, "a+b") as file:
        _lock(file)
        _translate(translator, loaded.config.data.context, lines, file)
        part.rename(target)
    log.info("%s and %s: %d lines", source, target, len(lines))
    name = f"{stem}:{sides[1]}-{sides[0]}" if loaded.config.data.directions else stem
    log.info("train with --config.data.train=train,%s (or %s@bt, to tell)", name, name)


def _searching(how: str | None, overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keys of the search."""
    if how is None:
        return overrides
    if how not in HOW:
        raise ConfigError(f"--how={how} is not one of {', '.join(HOW)}.")
    if "decode.method" in overrides:
        raise ConfigError("decode.method and --how: leave one of them out.")
    return {**HOW[how], **overrides}


def _languages(loaded: LoadedModel, text: Path) -> tuple[str, str]:
    """The suffixes of the text's file and of that of its translations."""
    data, to = loaded.config.data, loaded.config.decode.to
    if loaded.translator.model.sources > 1:
        what = "the sentences before as another source" if data.context else data.src
        raise ConfigError(f"augment is for runs with one source, and this one reads {what}.")
    own = (text.with_suffix("") if text.suffix == ".gz" else text).suffix.removeprefix(".")
    if not data.directions:
        if own == data.tgt != data.src:
            raise ConfigError(
                f"--text={text}: the run translates {data.src} into {own}. Name a run of the other "
                "direction with --reverse, or another text."
            )
        return data.between(to=to)
    if to is None or f"{own}-{to}" not in data.directions:
        raise ConfigError(
            f"augment: the run translates {', '.join(data.directions)}: name the target language "
            f"with --to, and the text's by its suffix (--text={text})."
        )
    return own, to


def _check_codes(lines: TextLines, codes: Mapping[str, int]) -> None:
    """Raises DataError if a line begins with a code: of the text, training makes codes itself."""
    for number, line in enumerate(lines if codes else (), start=1):
        if found := split_codes(line, codes)[0]:
            raise DataError(
                f"{lines.path}, line {number} begins with the code {found[0]}. Remove the codes: "
                "--to names the target language, and training begins lines with codes itself."
            )


def _compressed(file: Path) -> Path:
    return file.with_name(f"{file.name}.gz")


def _write_source(source: Path, lines: TextLines, text: Path) -> None:
    """Writes the text, unless it is there. Raises ConfigError if another one is."""
    content = "".join(f"{line}\n" for line in lines).encode()
    for one in (source, _compressed(source)):
        if is_there(one):
            if one.samefile(text) or (one == source and one.read_bytes() == content):
                return
            raise ConfigError(f"--output: {one} exists, and is another text. Name another stem.")
    write_atomically(source, content)


def _origin(loaded: LoadedModel, lines: TextLines) -> dict[str, Any]:
    """What the translations follow from."""
    return {
        "run": loaded.folders[0],
        "checkpoint": loaded.checkpoint,
        "weights": loaded.digest(),
        "text": hashlib.sha256(lines.buffer).hexdigest(),  # a pipe is read once
        "decode": json.loads(json.dumps(vars(loaded.config.decode))),
    }


def _lock(file: IO[bytes]) -> None:
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        raise RunError(f"Another command writes {file.name}. Wait for it.") from None
    except OSError as error:  # a file system without locks
        log.warning("%s cannot be locked: %s", file.name, error)


def _check_begun(part: Path, about: Path, origin: Mapping[str, Any]) -> None:
    """Raises RunError if lines are written that do not follow from the same, or may not."""
    known = read_json(about) if about.exists() else {}
    compared = origin.keys() - {"run"}  # which may have moved
    other = sorted(name for name in compared if known.get(name) != origin[name])
    if other and (known or part.exists()):
        raise RunError(
            f"{about} is lost, or of another {' and '.join(other)}. Give the command again that "
            f"began it, name another stem, or remove it and {part.name}."
        )


def _translate(translator: LineTranslator, context: int, lines: TextLines, file: IO[bytes]) -> None:
    """Appends the translations of the lines that the file does not have, group by group."""
    file.seek(0)
    written = file.read()
    file.truncate(written.rfind(b"\n") + 1)
    done = written.count(b"\n")
    if done > len(lines):
        raise DataError(f"{done} lines are written, and the text has {len(lines)}. Remove them.")
    add_context = InContext(context, translator.vocabulary.codes)
    for line in lines[max(0, done - context) : done]:
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
