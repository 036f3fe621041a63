"""Sequences whose elements are read by position, and random samples of positions."""

import bisect
import itertools
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, overload

import numpy as np

TOGETHER = 4_096  # elements that iteration over a sequence reads at a time

T = TypeVar("T")


class ByPosition(Sequence[T]):
    """A sequence whose indexing, slices (as lists) and iteration use `__len__` and `items`."""

    @abstractmethod
    def items(self, indices: Sequence[int]) -> list[T]:
        """The elements at these indices; 0 <= index < len."""

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        indices = range(len(self))[index]  # raises IndexError past the end
        return self.items([indices])[0] if isinstance(indices, int) else self.items(indices)

    def __iter__(self) -> Iterator[T]:
        for first in range(0, len(self), TOGETHER):
            yield from self[first : first + TOGETHER]


def items_of(sequence: Sequence[T], indices: Sequence[int]) -> list[T]:
    """The elements of any sequence at these indices; of one that is read by position together."""
    if isinstance(sequence, ByPosition):
        return sequence.items(indices)
    return [sequence[index] for index in indices]


class Joined(ByPosition[T]):
    """Several sequences, end to end."""

    def __init__(self, parts: Sequence[Sequence[T]]):
        self.parts = parts
        self.ends = list(itertools.accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self.ends[-1]

    def items(self, indices: Sequence[int]) -> list[T]:
        """The elements at these indices of the joined sequence."""
        found = list[T]()
        for number, own in itertools.groupby(indices, lambda i: bisect.bisect_right(self.ends, i)):
            part = self.parts[number]
            begin = self.ends[number] - len(part)
            found += items_of(part, [index - begin for index in own])
        return found


class Selected(ByPosition[T]):
    """The elements of another sequence at some indices, in the order of the indices."""

    def __init__(self, elements: Any, indices: np.ndarray):
        """Takes a ByPosition, and indices in it: int64 [number of elements]."""
        self.elements, self.indices = elements, indices

    def __len__(self) -> int:
        return len(self.indices)

    def items(self, indices: Sequence[int]) -> list[T]:
        """The elements at these indices of the selection."""
        found: list[T] = self.elements.items([int(self.indices[i]) for i in indices])
        return found


def sample_indices(total: int, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """A random sample of the indices 0..total-1, and the other indices; both in ascending order.

    It uses the raw output of the bit generator, which does not change between versions of NumPy.

    Args:
      total: number of indices.
      count: size of the sample, below `total`.
      seed: the sample depends only on the seed and `total`.
    """
    drawn = np.random.PCG64(np.random.SeedSequence([seed, total])).random_raw(total)
    inside = np.zeros(total, bool)
    inside[np.argpartition(drawn, count)[:count]] = True
    return np.flatnonzero(inside), np.flatnonzero(~inside)


def evenly_spaced(total: int, count: int) -> list[int]:
    """`count` positions from the first of `total` to the last; all of them if there are no more."""
    return np.linspace(0, total - 1, min(count, total)).round().astype(int).tolist()
