"""The built-in corpus: English-German pairs with gold word alignments.

    Yesterday the old man bought a car. -> Gestern kaufte der alte Mann ein Auto.

A synchronous grammar wrote it; the folder `grammar` of the repository has that program and says
what it writes. Each file built_in_SPLIT.tsv.gz has a line for each pair: the words of both sides,
the links i-j from 0, and whether a link that crosses another one is a verb's. No two splits share a
sentence, and a validation or test sentence shows a combination of words that training never shows.
"""

import functools
import gzip
import hashlib
import itertools
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_jax.config.data import DataConfig
from transformer_jax.errors import DataError
from transformer_jax.files import kept
from transformer_jax.text.by_position import ByPosition
from transformer_jax.text.folder_corpus import AlignedWords, Pair
from transformer_jax.text.lines import file_digest

PAIRS = {"train": 60_000, "valid": 500, "test": 1_000}  # in the files
TEST_PERCENT, VALID_PERCENT = 10, 5  # shares that a hash gives to the splits

Link = tuple[int, int]  # (source word, target word), from 0

# Invented names, which replace the corpus's own, are pronounceable and differ between splits.
NAMES = frozenset(("Anna", "Emma", "Julia", "Maria", "Martin", "Paul", "Peter", "Stefan"))
ENDINGS = ("", "'s", "s")  # Peter, Peter's car, Peters Auto
NAME_OF = {name + ending: name for name in NAMES for ending in ENDINGS}
ONSETS = "bdfgklmnprtvw"
VOWELS = "aeiou"
CODAS = ("", "l", "n", "r")
SYLLABLES = 3
NOUNS_LIKE_NAMES = frozenset(("Garage", "Kamera", "Potato", "Telefon", "Tomate", "Tomato"))


class AlignedPair(NamedTuple):
    """A sentence pair with its words and their alignment; a punctuation mark is a word."""

    src: str
    tgt: str
    src_words: tuple[str, ...]
    tgt_words: tuple[str, ...]
    alignment: tuple[Link, ...]  # sorted
    moves_a_verb: bool = False  # whether a link that crosses another one is a verb's

    @property
    def is_monotone(self) -> bool:
        """Whether the translation keeps the order of the words: no links cross."""
        return not crossings(self.alignment)

    def swapped(self) -> "AlignedPair":
        """The pair for the other direction of translation."""
        links = tuple(sorted((j, i) for i, j in self.alignment))
        words = self.tgt_words, self.src_words
        return AlignedPair(self.tgt, self.src, *words, links, self.moves_a_verb)


class BuiltInPairs(ByPosition[Pair]):
    """A split of the corpus, whose file is read when one of its pairs is first read."""

    def __init__(self, name: str, size: int, data: DataConfig):
        self.name, self.size = name, size
        self.invented_names = data.invented_names
        self.has_source = bool(data.src)
        self.is_swapped = data.src == "de" or not data.src and data.tgt == "en"

    def __len__(self) -> int:
        return self.size

    @functools.cached_property
    def aligned(self) -> list[AlignedPair]:
        """The pairs with their words and links."""
        pairs = built_in_pairs(self.name, self.size, self.invented_names)
        return [pair.swapped() for pair in pairs] if self.is_swapped else pairs

    def items(self, indices: Sequence[int]) -> list[Pair]:
        """The pairs at these indices."""
        pairs = [(self.aligned[i].src, self.aligned[i].tgt) for i in indices]
        return [Pair.of(pair if self.has_source else pair[1:]) for pair in pairs]


class BuiltInCorpus:
    """The corpus for a config: data.pairs pairs for training, 500 to validate and 1,000 to test.

    With data.src='de' its sides are swapped.
    """

    def __init__(self, data: DataConfig):
        self.data = data
        sizes = {**PAIRS, "train": data.pairs}
        self.splits = {name: BuiltInPairs(name, size, data) for name, size in sizes.items()}

    def split(self, name: str) -> BuiltInPairs:
        """The pairs of "train", "valid" or "test"."""
        if name not in self.splits:
            raise DataError(
                f"the built-in corpus has no split {name!r}, only {', '.join(self.splits)}."
            )
        return self.splits[name]

    def alignments(self, name: str) -> list[AlignedWords]:
        """Words and gold links of each pair; a punctuation mark is a word."""
        aligned = self.split(name).aligned
        return [AlignedWords(one.src_words, one.tgt_words, one.alignment) for one in aligned]

    def fingerprint(self, name: str) -> str:
        """SHA-256 of the lines of the split, kept in the user's cache: reading takes seconds."""
        pairs = self.split(name)

        def digest() -> bytes:
            lines = itertools.chain.from_iterable(pairs)
            return hashlib.sha256("\n".join(lines).encode()).hexdigest().encode()

        asked = f"{name} {len(pairs)} {pairs.invented_names} {pairs.is_swapped}"
        asked += "" if pairs.has_source else " without a source"
        stored = file_digest(_file(name)).hex()
        return kept("built_in_corpus", f"fingerprint {stored} {asked}", digest).decode()

    def describe(self) -> str:
        """The number of training pairs, and how many names are invented."""
        invented = self.data.invented_names
        names = f", {invented} % invented names" if invented else ""
        return f"the built-in corpus, {self.data.pairs:,} training pairs{names}"


def built_in_pairs(split: str, pairs: int, invented_names: int = 0) -> list[AlignedPair]:
    """The first pairs of a split of the built-in corpus, from English to German.

    Args:
      split: "train", "valid" or "test".
      pairs: how many.
      invented_names: percentage of the sentences with names in which invented ones replace them;
        it changes nothing else.

    Raises:
      DataError: there is no such split, or it has fewer pairs.
    """
    if split not in PAIRS:
        raise DataError(f'the built-in corpus has no split "{split}"; it has {", ".join(PAIRS)}.')
    found = list(itertools.islice(_stored(split), pairs))
    if len(found) < pairs:
        raise DataError(
            f"the built-in corpus has {len(found):,} {split} pairs, not {pairs:,}: in a checkout, "
            "`python -m grammar --text` writes more."
        )
    if not invented_names:
        return found
    rng = random.Random(f"transformer_jax grammar names {split} 0")
    return [_with_invented_names(pair, split, rng, invented_names) for pair in found]


def _file(split: str) -> Path:
    return Path(__file__).with_name(f"built_in_{split}.tsv.gz")


def _stored(split: str) -> Iterator[AlignedPair]:
    with gzip.open(_file(split), "rt", encoding="utf-8") as lines:
        for line in lines:
            src, tgt, links, moves_a_verb = line.rstrip("\n").split("\t")
            words = tuple(src.split()), tuple(tgt.split())
            pairs = (link.split("-") for link in links.split())
            alignment = tuple((int(i), int(j)) for i, j in pairs)
            text = detokenize(words[0]), detokenize(words[1])
            yield AlignedPair(*text, *words, alignment, moves_a_verb == "1")


def detokenize(words: Sequence[str]) -> str:
    """The sentence as a line, each punctuation mark attached to the word before it."""
    return " ".join(words).replace(" ,", ",").replace(" .", ".").replace(" ?", "?")


def crossings(links: Collection[Link]) -> list[tuple[Link, Link]]:
    """The pairs of links whose words come in the opposite order in the translation.

    Two source words that are both linked to the same two target words are one unit, and within it
    nothing crosses: "are relaxing" is "entspannen uns".
    """
    known = frozenset(links)
    return [
        ((i, j), (later, earlier))
        for i, j in links
        for later, earlier in links
        if i < later and j > earlier and not {(i, earlier), (later, j)} <= known
    ]


def split_of(name: str) -> str:
    """The split of whatever has this name, by its hash."""
    percent = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) % 100
    if percent < TEST_PERCENT:
        return "test"
    return "valid" if percent < TEST_PERCENT + VALID_PERCENT else "train"


def invented_name(rng: random.Random, split: str) -> str:
    """A name, such as Kemidan, that only this split may show."""
    while True:
        parts = [_one(rng, choices) for choices in (ONSETS, VOWELS) * SYLLABLES]
        name = "".join([*parts, _one(rng, CODAS)]).capitalize()
        if split_of(f"invented name|{name}") == split and name not in NOUNS_LIKE_NAMES:
            return name


def names_in(words: Sequence[str]) -> list[str]:
    """The corpus's names among these words, each once, in their order."""
    return list(dict.fromkeys(NAME_OF[word] for word in words if word in NAME_OF))


def renamed(words: Sequence[str], names: Mapping[str, str]) -> tuple[str, ...]:
    """The words with new names in the same forms; `names` maps old names to new ones."""
    forms = {old + ending: new + ending for old, new in names.items() for ending in ENDINGS}
    return tuple(forms.get(word, word) for word in words)


def _with_invented_names(
    pair: AlignedPair, split: str, rng: random.Random, percent: int
) -> AlignedPair:
    """With a probability of `percent`, the pair with invented names for its own; else the pair."""
    old = names_in(pair.src_words)
    if not old or rng.random() * 100 >= percent:
        return pair
    names = {name: invented_name(rng, split) for name in old}
    src, tgt = renamed(pair.src_words, names), renamed(pair.tgt_words, names)
    return pair._replace(src=detokenize(src), tgt=detokenize(tgt), src_words=src, tgt_words=tgt)


def _one(rng: random.Random, choices: Sequence[str]) -> str:
    return choices[int(rng.random() * len(choices))]
