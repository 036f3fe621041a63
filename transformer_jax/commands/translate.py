"""The `translate` command: translates lines in order and as they arrive."""

import io
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from transformer_jax.commands.loading import NO_OVERRIDES, LoadedModel, load_model
from transformer_jax.decoding.lines import LineTranslator, line_groups
from transformer_jax.errors import ConfigError
from transformer_jax.parallel import processes

if TYPE_CHECKING:
    from transformer_jax.commands.engine import EngineLines

log = logging.getLogger(__name__)


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
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> None:
    """Translates each line of `stdin`; writes a group of lines as soon as it is translated.

    With `scores`, a line is "SCORE<tab>TEXT"; with n_best above 1, a line is Moses'
    "LINE ||| TEXT ||| SCORE", where LINE counts the lines of `stdin` from 0.

    Args:
      workdir: the run's folder; several: an ensemble of their models.
      checkpoint: "latest", "best", "average" or a step.
      beam_size: None: the run's.
      length_penalty: None: the run's.
      coverage_penalty: None: the run's.
      n_best: translations of each line.
      scores: whether to write scores.
      stdin: UTF-8, one sentence a line.
      stdout: where translations are written as UTF-8.
      sample: whether to draw translations instead of searching for the best.
      engine: another engine that searches, such as "ctranslate2"; None: this package.
      overrides: keys of `decode` and their values; the arguments above win.

    Raises:
      UserError: there is no run or no such checkpoint, a setting is out of range, or a line is not
        UTF-8.
    """
    if sample:
        overrides = _sampling(overrides)
    loaded = load_model(
        workdir, checkpoint, beam_size, length_penalty, n_best, coverage_penalty, overrides
    )
    translator = _lines(loaded, engine)
    if processes.is_first() and stdin.isatty():
        log.info("type a sentence and press Enter; Ctrl-D on an empty line ends the input")
    number = 0
    groups = line_groups(stdin)
    while group := processes.first_does(lambda: next(groups, None)):
        for translations in translator.shared(group):
            if not processes.is_first():
                continue
            for text, score in translations:
                line = f"{score:.6f}\t{text}" if scores else text
                line = f"{number} ||| {text} ||| {score:.6f}" if n_best > 1 else line
                stdout.write(f"{line}\n".encode())
            number += 1
        stdout.flush()
    translator.warn_of_cut()


def _sampling(overrides: Mapping[str, Any]) -> Mapping[str, Any]:
    """The overrides, with which samples are drawn."""
    if (method := overrides.get("decode.method", "sample")) != "sample":
        raise ConfigError(f"--sample and decode.method={method!r}: leave one of them out.")
    return {**overrides, "decode.method": "sample"}


def _lines(loaded: LoadedModel, engine: str | None) -> "LineTranslator | EngineLines":
    if engine is None:
        return loaded.line_translator()
    from transformer_jax.commands.engine import engine_lines

    return engine_lines(loaded, engine)
