"""The built-in corpus: a synchronous grammar of English-German pairs with gold word alignments.

    Yesterday the old man bought a car. -> Gestern kaufte der alte Mann ein Auto.

Every English sentence has exactly one German translation. One rule translates the tenses: simple
past to Präteritum, perfect to Perfekt, future to werden, present and progressive to Präsens.

The splits: a sentence consists of combinations such as (object, buy, car) or (adjective, old, man).
A hash assigns each combination to training (85 %), validation (5 %) or test (10 %). Training shows
only its own combinations. Each test sentence shows at least one that belongs to test, and all its
others belong to training, so no two splits share a sentence, whatever the seed. Neither words nor
their forms are held out: every word form of a validation or test sentence occurs at least three
times in the first 20,000 training pairs of the same seed.
"""

import operator
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from typing import NamedTuple

from grammar import (
    constructions_clauses,
    constructions_nouns,
    constructions_phrases,
    constructions_questions,
    constructions_relative,
    constructions_verbs,
    english,
)
from grammar.choices import Retry
from grammar.combinations import SPLITS
from grammar.constructions import REGISTRY, Sentence
from grammar.drawing import Draw
from grammar.lexicon import NOUNS, lexicon_size
from grammar.phrases import Word
from transformer_jax.errors import DataError
from transformer_jax.text.built_in_corpus import NAMES, detokenize

__all__ = ["CONSTRUCTIONS", "AlignedPair", "generate", "lexicon_size"]

# Importing these modules fills the registry.
_MODULES = (
    constructions_verbs,
    constructions_questions,
    constructions_phrases,
    constructions_nouns,
    constructions_clauses,
    constructions_relative,
)
CONSTRUCTIONS = {name: entry.description for name, entry in REGISTRY.items()}
NOUN_OF = {form: noun for noun in NOUNS for form in (noun.en, noun.en_plural)}
TRIES = 40  # draws of one construction before another one is chosen
# Held-out sentences use only words that the first training pairs show at least this often.
KNOWN_FROM = 20_000
KNOWN_TIMES = 3


class AlignedPair(NamedTuple):
    """A sentence pair with its words and their alignment; a punctuation mark is a word."""

    src: str
    tgt: str
    src_words: tuple[str, ...]
    tgt_words: tuple[str, ...]
    alignment: tuple[tuple[int, int], ...]  # (source word, target word), 0-based, sorted
    construction: str


def generate(split: str, pairs: int, seed: int = 0) -> list[AlignedPair]:
    """The first `pairs` pairs of a split, all different; the same arguments give the same pairs.

    Args:
      split: "train", "valid" or "test".
      pairs: how many.
      seed: of the draws.

    Raises:
      DataError: for a split that is not "train", "valid" or "test".
    """
    if split not in SPLITS:
        raise DataError(f'The built-in corpus has no split "{split}"; it has {", ".join(SPLITS)}.')
    stream = drafts(split, seed)
    return [next(stream)[0] for _ in range(pairs)]


def drafts(split: str, seed: int) -> Iterator[tuple[AlignedPair, Draw]]:
    """An endless stream of different pairs, each with the draw that made it."""
    rng = random.Random(f"transformer_jax grammar {split} {seed}")
    # Sorted, because the order of imports must not change the corpus.
    items = tuple(
        (name, entry.function)
        for name, entry in sorted(REGISTRY.items())
        for _ in range(entry.weight)
    )
    seen: set[str] = set()
    while True:
        name, function = items[int(rng.random() * len(items))]
        for _ in range(TRIES):
            draw = Draw(rng, split)
            try:
                sentence = function(draw)
            except Retry:
                continue
            if split != "train" and not draw.held_out:
                continue
            pair = _pair(sentence, name)
            if pair.src in seen or _stutters(pair):
                continue
            if split != "train" and not known(seed).issuperset(pair.src_words + pair.tgt_words):
                continue
            seen.add(pair.src)
            yield pair, draw
            break


@cache
def known(seed: int) -> frozenset[str]:
    """The word forms that training shows often enough for the other splits."""
    counts: Counter[str] = Counter()
    for pair in generate("train", KNOWN_FROM, seed):
        counts.update(pair.src_words)
        counts.update(pair.tgt_words)
    return frozenset(word for word, count in counts.items() if count >= KNOWN_TIMES)


def _pair(sentence: Sentence, construction: str) -> AlignedPair:
    mark = Word(sentence.mark, (0,))
    source = _with_articles([*sentence.en, mark])
    target = _without_spare_commas([*sentence.de, mark])
    src_words, tgt_words = _capitalized(source), _capitalized(target)
    return AlignedPair(
        detokenize(src_words),
        detokenize(tgt_words),
        src_words,
        tgt_words,
        align(source, target),
        construction,
    )


def _stutters(pair: AlignedPair) -> bool:
    """Whether a word follows itself (lent her her violin), a noun occurs twice, or names adjoin."""
    nouns = [NOUN_OF[word] for word in pair.src_words if word in NOUN_OF]
    names = [word in NAMES for word in pair.tgt_words]
    return (
        len(nouns) > len(set(nouns))
        or any(map(operator.eq, pair.src_words, pair.src_words[1:]))
        or any(map(operator.and_, names, names[1:]))
    )


def _with_articles(words: list[Word]) -> list[Word]:
    """The words with "a" changed to "an" where the next word needs it."""
    return [
        Word(english.article(words[i + 1].text), word.links) if word.text == "a" else word
        for i, word in enumerate(words)
    ]


def _without_spare_commas(words: list[Word]) -> list[Word]:
    """The words without a comma before another punctuation mark, such as the sentence's end."""
    return [
        word
        for i, word in enumerate(words)
        if word.text != "," or words[i + 1].text not in (",", ".", "?")
    ]


def _capitalized(words: Sequence[Word]) -> tuple[str, ...]:
    texts = [word.text for word in words]
    texts[0] = texts[0][0].upper() + texts[0][1:]
    return tuple(texts)


def align(source: Sequence[Word], target: Sequence[Word]) -> tuple[tuple[int, int], ...]:
    """The pairs of positions whose words share a link, sorted."""
    positions: dict[int, list[int]] = {}
    for j, word in enumerate(target):
        for link in word.links:
            positions.setdefault(link, []).append(j)
    found = {
        (i, j)
        for i, word in enumerate(source)
        for link in word.links
        for j in positions.get(link, ())
    }
    return tuple(sorted(found))
