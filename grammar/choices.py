"""Random choices of words, but only in combinations that the split may show."""

import random
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar

from grammar import combinations, words
from grammar.combinations import Head
from grammar.entries import Adjective, Noun, Verb
from grammar.times import ASPECTS_AT

T = TypeVar("T")

# Lists of frames are separated by spaces, so "_" is the space within a frame's name.
SIMPLE_FRAMES = (
    "intransitive transitive dative ditransitive transfer prepositional reflexive "
    "reflexive_prepositional"
)


class Retry(Exception):
    """No sentence can be made from the words drawn so far; the caller draws a new one."""


@cache
def _pool(
    frames: str, time: str, separable: bool, among: frozenset[str] | None
) -> tuple[Verb, ...]:
    """The verbs of some frames that go with a time."""
    return tuple(
        v
        for frame in frames.split()
        for v in combinations.verbs_of(frame.replace("_", " "))
        if v.aspect in ASPECTS_AT[time]
        and not (time in ("habit", "condition") and v.en.ambiguous)
        and (v.de.prefix or not separable)
        and (among is None or v.en.whole in among)
    )


class Choices:
    """The random choices of one sentence, and the combinations of words that it shows."""

    def __init__(self, rng: random.Random, split: str) -> None:
        self.rng = rng
        self.split = split
        self.combinations: list[tuple[str, Head, Noun]] = []
        self._key = 0

    @property
    def held_out(self) -> bool:
        """Whether the sentence shows a combination that training does not."""
        return any(
            combinations.bucket(*combination) != "train" for combination in self.combinations
        )

    def key(self) -> int:
        """The first of 16 links that nothing else in the sentence uses."""
        self._key += 16
        return self._key

    def one(self, items: Sequence[T]) -> T:
        """One of the items.

        Raises:
          Retry: if there is none.
        """
        if not items:
            raise Retry
        return items[int(self.rng.random() * len(items))]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self.rng.random() < probability

    def weighted(self, items: Sequence[tuple[float, T]]) -> T:
        """One of the items, with probabilities that add up to 1."""
        point = self.rng.random()
        for weight, item in items:
            point -= weight
            if point < 0:
                return item
        return items[-1][1]

    def combine(self, relation: str, head: Head, noun: Noun) -> None:
        """Records that the sentence shows this combination.

        Raises:
          Retry: if the split may not show it.
        """
        if not combinations.allowed(relation, head, noun, self.split):
            raise Retry
        self.combinations.append((relation, head, noun))

    def noun(self, relation: str, head: Head, where: Callable[[Noun], bool] | None = None) -> Noun:
        """A noun for this relation; not recorded, because a pronoun may replace it."""
        nouns = combinations.partners(relation, head, self.split)
        for _ in range(20):
            noun = self.one(nouns)
            if where is None or where(noun):
                return noun
        raise Retry

    def pick(self, relation: str, head: Head, where: Callable[[Noun], bool] | None = None) -> Noun:
        """A noun for this relation to the head; the combination is recorded."""
        noun = self.noun(relation, head, where)
        self.combine(relation, head, noun)
        return noun

    def adjective(self, noun: Noun, comparable: bool = False) -> Adjective | None:
        """An adjective that goes with the noun, if there is one."""
        adjectives = combinations.adjectives_for(noun, self.split)
        if comparable:
            adjectives = tuple(a for a in adjectives if a.en in words.COMPARED)
        if not adjectives:
            return None
        adjective = self.one(adjectives)
        self.combine("adjective", adjective, noun)
        return adjective

    def verb(
        self,
        time: str,
        frames: str = SIMPLE_FRAMES,
        *,
        separable: bool = False,
        among: frozenset[str] | None = None,
    ) -> Verb:
        """A verb of one of the frames that goes with the time.

        Args:
          time: a key of ASPECTS_AT.
          frames: see SIMPLE_FRAMES.
          separable: only verbs with a separable prefix.
          among: only these English dictionary forms.
        """
        return self.one(_pool(frames, time, separable, among))
