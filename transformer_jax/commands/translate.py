"""The `translate` command: translates lines in order and as they arrive."""

import io
import logging
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from transformer_jax.decoding.lines import LineTranslator, line_groups, line_parts
from transformer_jax.errors import ConfigError
from transformer_jax.parallel import processes
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.documents import InContext
from transformer_jax.use.loading import NO_OVERRIDES, LoadedModel, load_model

log = logging.getLogger(__name__)
# Keys that choose between hypotheses or samples. A line that is still arriving has only one.
WHOLE_LINES = {
    f"decode.{name}"
    for name in "method groups diversity penalty length_penalty coverage_penalty samples utility "
    "temperature top_k top_p seed".split()
}
GREEDY = {"decode.method": "beam", "decode.groups": 1, "decode.coverage_penalty": 0.0}


def translate(
    workdir: str | Sequence[str],
    *,
    checkpoint: str,
    beam_size: int | None,
    length_penalty: float | None,
    coverage_penalty: float | None,
    n_best: int,
    scores: bool,
    stdin: io.BufferedIOBase,
    stdout: BinaryIO,
    sample: bool = False,
    engine: str | None = None,
    simultaneous: bool = False,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> None:
    """Translates each line of `stdin`; writes a group of lines as soon as it is translated.

    With `scores`, a line is "SCORE<tab>TEXT"; with n_best above 1, a line is Moses'
    "LINE ||| TEXT ||| SCORE", where LINE counts the lines of `stdin` from 0.

    Args:
      workdir, checkpoint, beam_size, length_penalty, coverage_penalty, overrides: see `load_model`.
      n_best: translations of each line.
      scores: whether to write scores.
      stdin, stdout: where UTF-8 is read, one sentence a line, and written.
      sample: whether to draw translations instead of searching for the best.
      engine: another engine that searches, such as "ctranslate2"; None: this package.
      simultaneous: whether to translate a line while it arrives; see `_interpret`.

    Raises:
      UserError: there is no run or no such checkpoint, a setting is out of range, or a line is not
        UTF-8.
    """
    if simultaneous:
        given = {
            "n_best": n_best != 1,
            "scores": scores,
            "sample": sample,
            "engine": engine,
            "length_penalty": length_penalty,
            "coverage_penalty": coverage_penalty,
        }
        _check_simultaneous(workdir, beam_size, given, overrides)
        loaded = load_model(workdir, checkpoint, beam_size=1, overrides={**overrides, **GREEDY})
        return _interpret(loaded, stdin, stdout)
    if sample:
        if (method := overrides.get("decode.method", "sample")) != "sample":
            raise ConfigError(f"--sample and decode.method={method!r}: leave one of them out.")
        overrides = {**overrides, "decode.method": "sample"}
    loaded = load_model(
        workdir, checkpoint, beam_size, length_penalty, n_best, coverage_penalty, overrides
    )
    translator = _lines(loaded, engine)
    if processes.is_first() and stdin.isatty():
        log.info("type a sentence and press Enter; Ctrl-D on an empty line ends the input")
    _answer(translator, loaded.config.data.context, stdin, stdout, n_best, scores)
    translator.warn_of_cut()


def _lines(loaded: LoadedModel, engine: str | None) -> LineTranslator:
    if engine is None:
        return loaded.line_translator()
    from transformer_jax.commands.engine import engine_lines

    return engine_lines(loaded, engine)


def _answer(
    translator: LineTranslator,
    context: int,
    stdin: io.BufferedIOBase,
    stdout: BinaryIO,
    n_best: int,
    scores: bool,
) -> None:
    """Writes the translations of each group of lines as soon as it is translated."""
    number = 0
    add_context = InContext(context, translator.vocabulary.codes)
    groups = line_groups(stdin)
    while group := processes.first_does(lambda: next(groups, None)):
        for translations in translator.shared(list(map(add_context, group))):
            if not processes.is_first():
                continue
            for text, score in translations:
                line = f"{score:.6f}\t{text}" if scores else text
                line = f"{number} ||| {text} ||| {score:.6f}" if n_best > 1 else line
                stdout.write(f"{line}\n".encode())
            number += 1
        stdout.flush()


def _check_simultaneous(
    workdir: str | Sequence[str],
    beam_size: int | None,
    given: Mapping[str, Any],
    overrides: Mapping[str, Any],
) -> None:
    """Raises ConfigError if the run or a flag cannot be combined with --simultaneous."""
    wrong = [f"--{name}" for name, value in given.items() if value]
    widest = overrides.get("decode.beam_size", 1) if beam_size is None else beam_size
    if widest != 1:  # what is written cannot be revised
        wrong.append(f"a beam of {widest}")
    wrong += [name for name in overrides if name in WHOLE_LINES]
    if not isinstance(workdir, str) and len(workdir) > 1:
        wrong.append("an ensemble")
    if processes.count() > 1:
        wrong.append("several processes")
    if wrong:
        raise ConfigError(
            f"--simultaneous writes the likeliest subword at each step, with one model, and cannot "
            f"take it back: it excludes {', '.join(wrong)}."
        )
    config = RunFolder(workdir if isinstance(workdir, str) else workdir[0]).read_config()
    if config.data.context:
        raise ConfigError("--simultaneous does not read the sentences before one (data.context).")
    if config.model.wait_k is None:
        raise ConfigError(
            "--simultaneous is for a model that was trained to translate while it reads; this run "
            "has model.wait_k=None. Train one with --config.model.wait_k=3, for example."
        )


def _interpret(loaded: LoadedModel, stdin: io.BufferedIOBase, stdout: BinaryIO) -> None:
    """Writes the translation of each line while the line arrives, piece by piece.

    A word is read once white space or the line's end follows it. The result is that of whole lines
    with a beam of 1.

    Raises:
      UserError: its vocabulary cannot be used word by word, or a line is
        not UTF-8.
    """
    from transformer_jax.decoding.simultaneous import LineInterpreter  # most runs do not need it

    translator = loaded.line_translator()
    interpreter = LineInterpreter(translator)
    log.info("ready to translate, with k=%d", interpreter.interpreter.k)
    for text, is_end in line_parts(stdin):
        for more in interpreter.feed(text, is_end):
            stdout.write(more.encode())
            stdout.flush()
        if is_end:
            stdout.write(b"\n")
            stdout.flush()
    translator.warn_of_cut()
