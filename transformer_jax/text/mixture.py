"""Several texts as one corpus: directions of translation, tags, and how often each is seen.

A text of the config is read by an ordinary corpus of its own. Its source lines get the codes of
its target language and of its tag, such as ">>de<< ": text, which the vocabulary reads as one
subword each, so that whatever reads lines needs to know nothing about it.
"""

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.config.data import DIRECTION, DataConfig
from transformer_jax.config.texts import Text, code, directed, overlap
from transformer_jax.errors import DataError
from transformer_jax.text.by_position import ByPosition, Joined, Selected, items_of
from transformer_jax.text.documents import InDocuments
from transformer_jax.text.folder_corpus import AlignedWords, Pair, parts_of

SPLITS = ("train", "valid", "test")


class Coded(ByPosition[Pair]):
    """Pairs whose source lines begin with some codes; blank ones stay blank."""

    def __init__(self, pairs: Sequence[Pair], codes: str):
        self.pairs, self.codes = pairs, codes

    def __len__(self) -> int:
        return len(self.pairs)

    def items(self, indices: Sequence[int]) -> list[Pair]:
        """The pairs at these indices."""
        pairs = items_of(self.pairs, indices)
        return [Pair(self.codes + src if src.strip() else src, tgt) for src, tgt in pairs]


class Mixed(Joined[Pair]):
    """Texts end to end, with the number of times that an epoch has each pair of a text."""

    def __init__(self, parts: Sequence[Sequence[Pair]], weights: Sequence[float]):
        super().__init__(parts)
        self.weights = tuple(weights)

    def pair_weights(self) -> np.ndarray | None:
        """The weight of each pair, float64 [pairs]; None: every pair counts once."""
        if set(self.weights) == {1.0}:
            return None
        return np.repeat(self.weights, [len(part) for part in self.parts])


class _Part(NamedTuple):
    """A text, and where it is: a split of a corpus."""

    text: Text
    corpus: Any  # a Corpus, of the text's direction
    split: str


class MixedCorpus:
    """The texts of a config, each in its direction or in every one; see `corpora.Corpus`.

    A split's name may also be "test:de-fr", a split in a direction, or a text, "STEM:de-fr@TAG".
    """

    def __init__(self, data: DataConfig, open_plain: Callable[[DataConfig], Any]):
        """Raises DataError if a text is not where the config says.

        Args:
          data: the config's section.
          open_plain: opens the corpus of a config without directions, tags and weights.
        """
        self.data, self._open = data, open_plain
        self._opened: dict[DataConfig, Any] = {}
        self._read: dict[str, Mixed] = {}  # splits: to open one reads its files
        self.parts("train")

    def parts(self, name: str) -> list[_Part]:
        """The texts of a split, each once in every direction that it is read in."""
        if name not in SPLITS:
            return self._named(name)
        texts = [self._part(text, name) for text in self._texts(parts_of(self.data, name))]
        if name != "valid" or self.data.valid:
            return texts
        # Without data.valid each corpus has its own: files of this name, or a cut of its text.
        found = dict[Any, _Part]()
        for text in self._texts(self.data.train):
            part = self._part(text, "train")._replace(split="valid")
            if getattr(part.corpus, "cuts_valid", False):
                found[text.name] = part
            else:
                found[text.direction] = part._replace(text=text._replace(tag=""))
        cut = sorted({part.text.stem for part in found.values() if part.text.name in found})
        for pair in itertools.combinations(cut, 2):
            if overlap(*pair):
                raise DataError(
                    f"There is no validation text, and {' and '.join(pair)} share pairs: what one "
                    "leaves out, the other may show. Name validation text: data.valid."
                )
        without_tag = [part for part in found.values() if not part.text.tag]
        return without_tag or list(found.values())

    def _named(self, name: str) -> list[_Part]:
        """The texts of "test:de-fr", which are those of data.test, or of one stem."""
        asked = Text.of(name)
        if self.data.directions and not asked.direction:
            raise DataError(
                f"{name}: in which direction? For example {name}:{self.data.directions[0]}."
            )
        if asked.stem not in SPLITS:
            return [_Part(asked, self._corpus(asked, "test"), "test")]
        return [
            self._part(text, asked.stem)
            for text in as_asked(asked, parts_of(self.data, asked.stem))
        ]

    def split(self, name: str) -> Mixed:
        """The pairs of the split's texts."""
        if name not in self._read:
            parts = self.parts(name)
            pairs = [Coded(part.corpus.split(part.split), _codes(part.text)) for part in parts]
            self._read[name] = Mixed(pairs, self._weights(parts, list(map(len, pairs))))
        return self._read[name]

    def alignments(self, name: str) -> Sequence[AlignedWords]:
        """Words and links of each pair of `split`. Raises DataError if there are none."""
        return Joined([part.corpus.alignments(part.split) for part in self.parts(name)])

    def fingerprint(self, name: str) -> str:
        """SHA-256 of the texts' fingerprints and codes, in order."""
        digest = hashlib.sha256()
        for text, corpus, split in self.parts(name):
            digest.update(f"{_codes(text)}{corpus.fingerprint(split)}\n".encode())
        return digest.hexdigest()

    def describe(self) -> str:
        """The first text's corpus, and each text of training with its pairs and weight."""
        parts, pairs = self.parts("train"), self.split("train")
        listed = ", ".join(
            f"{part.text.name} {len(own):,} pairs times {weight:.3g}"
            for part, own, weight in zip(parts, pairs.parts, pairs.weights, strict=True)
        )
        return f"{parts[0].corpus.describe()}; mixed: {listed}"

    def _weights(self, parts: Sequence[_Part], counts: Sequence[int]) -> list[float]:
        """How often an epoch has each pair: the config's weights, at its temperature T.

        p^(1/T), normalized, where p is a text's share of the pairs (Arivazhagan et al. 2019).
        """
        weights = [part.text.weight for part in parts]
        if self.data.temperature == 1:
            return weights
        given = np.array(weights) * counts
        mixed = (given / given.sum()) ** (1 / self.data.temperature)
        return list(given.sum() * mixed / mixed.sum() / np.maximum(counts, 1))

    def _texts(self, given: Sequence[str]) -> Iterator[Text]:
        return directed(map(Text.of, given), self.data.directions)

    def _part(self, text: Text, split: str) -> _Part:
        return _Part(text, self._corpus(text, split), split)

    def _corpus(self, text: Text, split: str) -> Any:
        """The corpus of a text's direction, whose `split` is this text alone."""
        own: dict[str, Any] = {
            name: tuple(Text.of(one).stem for one in getattr(self.data, name)) for name in SPLITS
        }
        own[split] = (text.stem,)
        if found := DIRECTION.fullmatch(text.direction):
            own |= {"src": found[1], "tgt": found[2]}
        data = dataclasses.replace(self.data, directions=(), temperature=1.0, **own)
        if data not in self._opened:
            self._opened[data] = self._open(data)
        return self._opened[data]


def as_asked(asked: Text, given: Iterable[str]) -> list[Text]:
    """The texts of a split that can be read as asked, in that direction and with that tag."""
    return [
        text._replace(direction=asked.direction, tag=asked.tag or text.tag)
        for text in map(Text.of, given)
        if text.direction in ("", asked.direction)
    ]


def plain_corpora(corpus: Any) -> list[Any]:
    """The corpora that read a corpus's texts, each once: itself, if nothing is mixed."""
    if not isinstance(corpus, MixedCorpus):
        return [corpus]
    splits = [name for name in SPLITS if name != "test" or corpus.data.test]
    parts = (part for name in splits for part in corpus.parts(name))
    return list({id(part.corpus): part.corpus for part in parts}.values())


def _codes(text: Text) -> str:
    """What the source lines of a text begin with."""
    target = text.direction.partition("-")[2]
    return "".join(f"{code(name)} " for name in (target, text.tag) if name)


def plain_parts(pairs: Sequence[Pair]) -> Iterator[Sequence[Pair]]:
    """The sequences that others were joined from, without codes and sentences before.

    A part of a text, such as a slice, is a `Selected` of it.
    """
    pairs = without_additions(pairs)
    if isinstance(pairs, Joined):
        for part in pairs.parts:
            yield from plain_parts(part)
    elif isinstance(pairs, Selected):
        yield Selected(without_additions(pairs.elements), pairs.indices)
    else:
        yield pairs


def without_additions(pairs: Sequence[Pair]) -> Sequence[Pair]:
    """The pairs without codes and sentences before, if all of them have these."""
    while isinstance(pairs, Coded | InDocuments):
        pairs = pairs.pairs
    return pairs
