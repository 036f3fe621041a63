"""The `translate` command: lines in, lines out, in order and as a stream."""

import io
import logging
import math
import select
from collections.abc import Iterator, Sequence
from typing import BinaryIO, NamedTuple

import numpy as np

from transformer_jax.compilation import keep_compiled_programs
from transformer_jax.config.changes import with_values
from transformer_jax.config.checks import check
from transformer_jax.config.schema import Config
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.model.kinds import make_model
from transformer_jax.parallel import processes
from transformer_jax.parallel.mesh import decoding_mesh, with_shardings
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.runs.weights import abstract_params, load_params
from transformer_jax.text.vocabulary import EOS, Vocabulary, load_vocabulary

log = logging.getLogger(__name__)

WINDOW = 1_024  # lines sorted by length and searched together
GATHER_SECONDS = 0.02  # for the lines of a pipe to arrive together
BLOCK_BYTES = 1 << 20  # read at a time


class Translation(NamedTuple):
    """One hypothesis as text."""

    text: str
    score: float  # log probability over the length penalty


class LoadedModel(NamedTuple):
    """A run's model, ready to translate."""

    config: Config
    vocabulary: Vocabulary
    translator: Translator
    checkpoint: str


def load_model(
    workdir: str,
    checkpoint: str = "latest",
    beam_size: int | None = None,
    length_penalty: float | None = None,
    n_best: int = 1,
) -> LoadedModel:
    """The model of a run's folder.

    Args:
      workdir: the run's folder.
      checkpoint: "latest", "best", "average" or a step.
      beam_size: None: the run's.
      length_penalty: None: the run's.
      n_best: hypotheses a sentence, at most the beam size.

    Raises:
      UserError: no run or no checkpoint there, or settings that cannot be.
    """
    run = RunFolder(workdir)
    config = run.read_config()
    given = {"decode.beam_size": beam_size, "decode.length_penalty": length_penalty}
    config = with_values(config, {name: v for name, v in given.items() if v is not None})
    check(config)
    if n_best < 1:
        raise ConfigError(f"--n_best={n_best} is below 1: at least one translation a line.")
    if n_best > config.decode.beam_size:
        raise ConfigError(
            f"--n_best={n_best} is not in 1..{config.decode.beam_size}: a beam of "
            f"{config.decode.beam_size} finds no more. Raise --beam_size."
        )
    keep_compiled_programs()
    vocabulary, mesh = load_vocabulary(run.vocabulary_file), decoding_mesh(config.mesh)
    like = with_shardings(abstract_params(config.model, vocabulary.size), mesh)
    params, name = load_params(run, checkpoint, like)
    log.info("%s, checkpoint %s, beam %d", run.path, name, config.decode.beam_size)
    model = make_model(config.model, vocabulary.size)
    translator = Translator(model, params, config.decode, mesh, n_best)
    return LoadedModel(config, vocabulary, translator, name)


class LineTranslator:
    """Translates text lines and counts those that were cut."""

    def __init__(self, vocabulary: Vocabulary, translator: Translator) -> None:
        self.vocabulary, self.translator = vocabulary, translator
        config, self.longest = translator.model.config, translator.decode.max_length
        if config.positions == "learned":
            self.longest = min(self.longest, config.max_positions)
        self.cut = 0

    def __call__(self, lines: Sequence[str]) -> list[list[Translation]]:
        """The translations of each line, best first; a blank line has an empty one of score 0."""
        sentences = self.encode(lines)
        filled = [i for i, ids in enumerate(sentences) if len(ids)]
        results = [[Translation("", 0.0)] for _ in lines]
        found = self.translator.translate([sentences[i] for i in filled])
        for i, hypotheses in zip(filled, found, strict=True):
            # Search drops hypotheses whose logits are NaN; a line is answered all the same.
            translations = [Translation(self.text(h.ids), h.score) for h in hypotheses]
            results[i] = translations or [Translation("", -math.inf)]
        return results

    def shared(self, lines: Sequence[str]) -> list[list[Translation]]:
        """As a call, each process translating its share; every process must call it."""
        others = processes.count()
        results: list[list[Translation]] = [[] for _ in lines]
        parts = processes.gather(self(lines[processes.index() :: others]))
        for first, part in enumerate(parts):
            results[first::others] = [[Translation(*found) for found in line] for line in part]
        return results

    def encode(self, lines: Sequence[str]) -> list[np.ndarray]:
        """Subwords of each line, EOS included, cut to the longest; none for a blank line."""
        encoded = self.vocabulary.encode_lines(lines)
        self.cut += sum(len(ids) >= self.longest for ids in encoded)
        return [np.append(ids[: self.longest - 1], EOS) if len(ids) else ids for ids in encoded]

    def text(self, ids: np.ndarray) -> str:
        """A hypothesis as one line: byte pieces can spell any character, line ends too."""
        return self.vocabulary.decode(ids).replace("\n", " ").replace("\r", " ")

    def warn_of_cut(self) -> None:
        """One warning for all lines, of all processes, that were longer than the largest bucket."""
        if cut := sum(processes.gather(self.cut)):
            log.warning(
                "%d lines have more than decode.max_length=%d subwords (end sign included) "
                "and were cut there",
                cut,
                self.longest,
            )


def translate(
    workdir: str,
    *,
    checkpoint: str,
    beam_size: int | None,
    length_penalty: float | None,
    n_best: int,
    scores: bool,
    stdin: io.BufferedIOBase,
    stdout: BinaryIO,
) -> None:
    """Translates each line of `stdin`; writes a line a translation, as soon as there are some.

    With `scores`, "SCORE<tab>TEXT"; with n_best above 1, Moses' "LINE ||| TEXT ||| SCORE" with
    lines counted from 0.
    """
    loaded = load_model(workdir, checkpoint, beam_size, length_penalty, n_best)
    translator = LineTranslator(loaded.vocabulary, loaded.translator)
    number = 0
    groups = windows(stdin)
    while window := processes.first_does(lambda: next(groups, None)):
        for translations in translator.shared(window):
            if not processes.is_first():
                continue
            for text, score in translations:
                line = f"{score:.6f}\t{text}" if scores else text
                line = f"{number} ||| {text} ||| {score:.6f}" if n_best > 1 else line
                stdout.write(f"{line}\n".encode())
            number += 1
        stdout.flush()
    translator.warn_of_cut()


def windows(stream: io.BufferedIOBase, size: int = WINDOW) -> Iterator[list[str]]:
    """The lines of a stream in groups: what has arrived, at least one line, at most `size`.

    Raises:
      DataError: a line that is not UTF-8, once all lines before it are answered.
    """
    number, waiting, begun, more = 0, list[bytes](), b"", True
    while more or waiting:
        while more and len(waiting) < size and not (waiting and _is_quiet(stream)):
            block = stream.read1(BLOCK_BYTES)
            more = bool(block)
            *whole, begun = (begun + block).split(b"\n")
            waiting += whole if more or not begun else [*whole, begun]
        group, waiting = waiting[:size], waiting[size:]
        lines, wrong = _decode(group, number)
        if lines:
            yield lines
        if wrong is not None:
            raise wrong
        number += len(group)


def _is_quiet(stream: io.BufferedIOBase) -> bool:
    """Whether nothing more arrives within a moment."""
    try:
        return not select.select([stream.fileno()], [], [], GATHER_SECONDS)[0]
    except io.UnsupportedOperation:  # bytes in memory are all there
        return False


def _decode(lines: Sequence[bytes], number: int) -> tuple[list[str], DataError | None]:
    """The lines as text, `number` lines having come before; up to one that is no UTF-8."""
    texts: list[str] = []
    for line in lines:
        number += 1
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            return texts, DataError(
                f"standard input, line {number}: not UTF-8 ({error.reason}). "
                "Convert it, for example with iconv -t UTF-8."
            )
        texts.append(text.removesuffix("\r"))
    return texts, None
