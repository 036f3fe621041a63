"""Translates text lines, and reads groups of lines from a stream of bytes."""

import codecs
import io
import logging
import math
import select
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.config.decode import DecodeConfig
from transformer_jax.config.texts import code
from transformer_jax.decoding.generators import GENERATORS
from transformer_jax.decoding.scoring import Forced, forced_scores
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.parallel import processes
from transformer_jax.text.built_in_corpus import AlignedPair
from transformer_jax.text.features import FeatureReader, contents
from transformer_jax.text.folder_corpus import Pair
from transformer_jax.text.lines import is_text
from transformer_jax.text.sources import encode_sources
from transformer_jax.text.vocabulary import EOS, LANGUAGE, Vocabulary, reads_code, split_codes

log = logging.getLogger(__name__)

GROUP_LINES = 1_024  # lines that are sorted by length and searched together
GATHER_SECONDS = 0.02  # time to wait for further lines of a pipe
BLOCK_BYTES = 1 << 20  # bytes read at a time
END = np.array([EOS], np.int32)  # a blank translation


class Translation(NamedTuple):
    """One hypothesis as text."""

    text: str
    score: float  # see `Hypothesis.score`; with mbr the expected utility, 0 to 100


def banned_ids(decode: DecodeConfig, vocabulary: Vocabulary) -> tuple[int, ...]:
    """The ids of decode.banned_subwords.

    Raises:
      ConfigError: a subword is not in the vocabulary, or is EOS, without which no
        translation would end.
    """
    found = vocabulary.target.ids_of(decode.banned_subwords)
    for piece, i in found.items():
        if i is None or i == EOS:
            wrong = "EOS" if i == EOS else "no piece of the run's vocabulary"
            raise ConfigError(
                f"decode.banned_subwords={decode.banned_subwords}: {piece!r} is {wrong}. Leave it "
                "out, or name pieces as SentencePiece writes them, such as <unk>."
            )
    return tuple(i for i in found.values() if i is not None)


class LineTranslator:
    """Translates text lines and counts those that were cut."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        translator: Translator,
        targets: Sequence[str] = (),
        read: FeatureReader | None = None,
        tokens: str = "13a",
    ) -> None:
        """Makes a translator that cuts lines that are too long for the search or the model.

        Args:
          vocabulary: the run's.
          translator: translates subwords.
          targets: the run's target languages, if it has several: each source line names one.
          read: reads the files that source lines name (text/features.py); None: they are text.
          tokens: sacreBLEU's name of the target language's tokens (decode.utility=bleu).

        Raises:
          UserError: decode.to is a language that the model was not told of.
        """
        self.vocabulary, self.targets = vocabulary, tuple(map(code, targets))
        self.read, self.tokens = read, tokens
        self.to = translator.decode.to and code(translator.decode.to)
        if self.to is not None:
            if not (self.targets or vocabulary.codes):
                raise ConfigError(
                    f"decode.to={translator.decode.to}: the run has one direction. Leave it "
                    "(`--to`) out."
                )
            if self.targets and self.to not in self.targets:
                raise ConfigError(
                    f"decode.to={translator.decode.to}: the run translates into "
                    f"{', '.join(targets)}."
                )
            vocabulary.check_codes([self.to])
        self.translator = translator
        self.cut = self.empty = 0
        longest = translator.decode.max_length  # subwords, EOS included
        self.longest = min(longest, translator.model.longest() or longest)

    def __call__(self, lines: Sequence[str]) -> list[list[Translation]]:
        """The translations of each line, best first; a blank line has an empty one with score 0."""
        sentences = self.encode(lines)
        filled = [i for i, ids in enumerate(sentences) if len(ids)]
        results = [[Translation("", 0.0)] for _ in lines]
        found = self.translator.translate([sentences[i] for i in filled])
        for i, hypotheses in zip(filled, found, strict=True):
            # Search drops hypotheses whose logits are NaN; such a line still gets an answer.
            translations = [Translation(self.text(h.ids), h.score) for h in hypotheses]
            results[i] = self._ranked(translations) or [Translation("", -math.inf)]
            self.empty += bool(lines[i].strip()) and not results[i][0].text.strip()
        return results

    def best(self, ids: np.ndarray) -> np.ndarray | None:
        """The subwords of the translation of a sentence's subwords; None: search found none."""
        [hypotheses] = self.translator.translate([ids])
        ids_of = {self.text(one.ids): one.ids for one in reversed(hypotheses)}
        ranked = self._ranked([Translation(self.text(one.ids), one.score) for one in hypotheses])
        return ids_of[ranked[0].text] if ranked else None

    def _ranked(self, translations: list[Translation]) -> list[Translation]:
        """The translations in the generator's own order; mbr ranks its samples by utility."""
        decode = self.translator.decode
        ranked = GENERATORS[decode.method].ranked
        if ranked is None:
            return translations
        found = ranked(decode, [one.text for one in translations], self.tokens)
        return [Translation(*one) for one in found.items()][: self.translator.n_best]

    def shared(self, lines: Sequence[str]) -> list[list[Translation]]:
        """Like a call, but each process translates its share; every process must call it."""
        count = processes.count()
        results: list[list[Translation]] = [[] for _ in lines]
        parts = processes.gather(self(lines[processes.index() :: count]))
        for first, part in enumerate(parts):
            results[first::count] = [[Translation(*found) for found in line] for line in part]
        return results

    def score(
        self, sources: Sequence[str], targets: Sequence[str], is_again: bool = False
    ) -> list[Forced]:
        """The score of each given translation: what search would report for its subwords.

        A blank source has only a blank translation, with score 0; any other has the score -inf.
        With `is_again`, sources that are cut are not counted.
        """
        counted = self.cut
        src_ids = self.encode(sources)
        if is_again:
            self.cut = counted
        tgt_ids = self.encode(targets, is_target=True)
        filled = [i for i, ids in enumerate(src_ids) if len(ids)]
        given = [tgt_ids[i] if len(tgt_ids[i]) else END for i in filled]
        found = forced_scores(self.translator, [src_ids[i] for i in filled], given)
        scored = dict(zip(filled, found, strict=True))
        for i, ids in enumerate(tgt_ids):  # of blank sources
            nats = -math.inf if len(ids) else 0.0
            scored.setdefault(i, Forced(nats, nats, len(ids)))
        return [scored[i] for i in range(len(tgt_ids))]

    def encode_pairs(
        self, pairs: Sequence[Pair | AlignedPair]
    ) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Subwords of both sides of pairs, as `encode` gives them."""
        sources = self.encode([pair.src for pair in pairs])
        return sources, self.encode([pair.tgt for pair in pairs], is_target=True)

    def encode(self, lines: Sequence[str], is_target: bool = False) -> list[np.ndarray]:
        """Subwords of each line, int32 [length], EOS included, cut to the limit; [] if blank.

        The blank sources of a language model have EOS. Of a recording or a picture it is float32
        [length, features], without EOS.

        Raises:
          DataError: a line is not text: it has half of a surrogate pair; or a source line has
            not as many sentences as the model reads.
        """
        if not all(map(is_text, lines)):
            raise DataError(
                "A line has half of a surrogate pair, or bytes that are not UTF-8: it is not text."
            )
        if is_target:
            encoded = self.vocabulary.target.encode_lines(lines)
        elif self.read is not None:
            files = self.read(lines)
            self.cut += sum(len(numbers) > self.longest for numbers in files)
            return [numbers[: self.longest] for numbers in files]
        else:
            lines = [self.with_target(line) for line in lines]
            encoded = encode_sources(self.vocabulary, lines, self.translator.model.sources)
        self.cut += sum(len(ids) >= self.longest for ids in encoded)
        ends = not (is_target or self.translator.model.sources)
        return [
            np.append(ids[: self.longest - 1], EOS) if len(ids) or ends else ids for ids in encoded
        ]

    def content(self, lines: Sequence[str]) -> Iterator[str]:
        """What sources are known by; see `contents`."""
        return contents(lines, self.read)

    def with_target(self, line: str) -> str:
        """A source line with the code of its target language, which decode.to or itself names.

        Raises:
          DataError: neither does, and the model knows several; or it begins with a code that the
            run, which knows others, was not trained with.
        """
        codes, sentence = split_codes(line, self.vocabulary.codes)
        other = LANGUAGE.match(sentence)
        if other and not reads_code(self.vocabulary, other[1]):
            raise DataError(
                f"The line {line[:40]!r} has the code {other[1]}, and this run knows "
                f"{', '.join(self.vocabulary.codes)}."
            )
        if not (self.to or self.targets) or not line.strip():
            return line
        known = self.targets or self.vocabulary.codes
        if self.targets and len(into := [one for one in codes if one in self.targets]) > 1:
            raise DataError(f"The line {line[:40]!r} names several targets: {', '.join(into)}.")
        if any(one in known for one in codes):  # it comes first, as in training
            return " ".join([*sorted(codes, key=lambda one: one not in known), sentence])
        if self.to is None:
            raise DataError(
                f"Into which language? The line {line[:40]!r} does not say. Set decode.to (`--to`) "
                f"to one of {', '.join(one.strip('<>') for one in self.targets)}, or begin lines "
                f"with {self.targets[0]}."
            )
        return f"{self.to} {line}"

    def text(self, ids: np.ndarray) -> str:
        """A hypothesis as one line; byte pieces can spell any character, even line ends."""
        return self.vocabulary.target.decode(ids).replace("\n", " ").replace("\r", " ")

    def warn_of_cut(self) -> None:
        """Logs warnings with the numbers of cut lines and of empty translations of text."""
        if empty := sum(processes.gather(self.empty)):
            log.warning("%d translations are empty, though their lines are not", empty)
        if cut := sum(processes.gather(self.cut)):
            by_search = self.longest == self.translator.decode.max_length
            log.warning(
                "%d lines have more than %s=%d %s and were cut there",
                cut,
                "decode.max_length" if by_search else "model.max_positions",
                self.longest,
                "subwords (EOS included)" if self.read is None else "source positions",
            )


def line_groups(stream: io.BufferedIOBase, size: int = GROUP_LINES) -> Iterator[list[str]]:
    """Yields the lines that have arrived on a stream, in groups of at least 1 and at most `size`.

    Raises:
      DataError: a line is not UTF-8; raised after all lines before it were yielded.
    """
    number, is_told = 0, False
    waiting = list[bytes]()
    begun = list[bytes]()  # the parts of a line whose end has not arrived
    more = True
    while more or waiting:
        while more and len(waiting) < size and not (waiting and _is_quiet(stream)):
            block = stream.read1(BLOCK_BYTES)
            more = bool(block)
            part, *others = block.split(b"\n")
            begun.append(part)
            for part in others:
                waiting.append(b"".join(begun))
                begun = [part]
            if not more and any(begun):
                waiting.append(b"".join(begun))
        group = waiting[:size]
        waiting = waiting[size:]
        lines = list[str]()
        for line in group:
            number += 1
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                if lines:
                    yield lines
                raise _not_utf8(number, error) from None
            lines.append(text := text.removesuffix("\r"))
            if "\r" in text and not is_told:
                log.warning("line %d has a carriage return inside, which ends no line", number)
                is_told = True
        if lines:
            yield lines


def line_parts(stream: io.BufferedIOBase) -> Iterator[tuple[str, bool]]:
    """Yields text as soon as it arrives on a stream, and whether a line ends after it.

    Raises:
      DataError: a line is not UTF-8.
    """
    number = 1
    begun = False
    more = True
    decode = codecs.getincrementaldecoder("utf-8-sig")().decode
    while more:
        block = stream.read1(BLOCK_BYTES)
        more = bool(block)
        *ended, rest = block.split(b"\n")
        parts = [(part, True) for part in ended] + [(rest, not more)]
        for part, is_end in parts if more or begun else ():
            try:
                yield decode(part, is_end), is_end
            except UnicodeDecodeError as error:
                raise _not_utf8(number, error) from None
            begun = not is_end and bool(begun or part)
            if is_end:
                decode = codecs.getincrementaldecoder("utf-8")().decode
                number += 1


def _is_quiet(stream: io.BufferedIOBase) -> bool:
    """Whether nothing more arrives within GATHER_SECONDS."""
    try:
        return not select.select([stream.fileno()], [], [], GATHER_SECONDS)[0]
    except io.UnsupportedOperation:  # a stream in memory is complete
        return False


def _not_utf8(number: int, error: UnicodeDecodeError) -> DataError:
    return DataError(
        f"standard input, line {number}: not UTF-8 ({error.reason}). "
        "Convert it, for example with iconv -f LATIN1 -t UTF-8, or UTF-16 in place of LATIN1."
    )
