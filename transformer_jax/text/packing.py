"""Packing: decides once, from lengths and the seed, which pairs share a packed row.

A packed row has src_row_length source and tgt_row_length target positions and holds whole pairs.
Filling rows is a bin packing problem in two dimensions. Most pairs of a row are drawn at random;
its last two or three pairs are the ones that fit best among all pairs that are left. Pairs that
wait for a row are sorted into cells (src length, tgt length). For each source length, one integer
has a bit for each target length that still has a pair, so a mask and `bit_length` find the longest
target that fits. Packing P pairs into R rows costs O(P) draws and at worst O(R src_row_length)
lookups; in practice each row needs only a few.
"""

import math
from array import array
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from transformer_jax.errors import DataError

SOURCE_MULTIPLE = 8  # the source row length is a multiple of 8, which matrix units need
# Draw at random until fewer pairs of mean length than this still fit; then search for the best fit.
# Measured: with 1, padding grows by 0.6 to 0.8 % when pairs are short compared with the row; with
# 3.5, it grows by 1.3 to 2.2 % when pairs are long.
FITTED_PAIRS = 2.0
ROUNDED = 0.05  # share of a group's rows by which an epoch may have more or fewer
EPOCHS = 10_000  # largest denominator of a group's number of rows in an epoch
PLAN_STREAM = 1  # keeps the plan's random numbers apart from those of the epochs


class Selection(NamedTuple):
    """The pairs to train on, and how many pairs are left out."""

    pairs: np.ndarray  # int64 [kept], ascending
    too_long: int  # number of pairs with a side that exceeds its limit
    empty: int  # number of pairs with a side that consists only of EOS


class Group(NamedTuple):
    """Rows of pairs of equal weight."""

    rows: int
    in_epoch: Fraction  # how many of them an epoch has: weight times rows

    @property
    def slots(self) -> int:
        """Its slots in an epoch: those that it does not need belong to the largest group."""
        return math.ceil(self.in_epoch)


@dataclass(frozen=True, eq=False)
class RowPlan:
    """The plan: row r holds the pairs pair_order[row_starts[r] : row_starts[r + 1]], in order."""

    pair_order: np.ndarray  # int64 [kept], every kept pair once
    row_starts: np.ndarray  # int64 [rows + 1]
    src_row_length: int
    tgt_row_length: int
    src_tokens: int  # real source tokens in all rows
    tgt_tokens: int
    too_long: int  # pairs left out
    empty: int  # pairs left out
    groups: tuple["Group", ...]  # pairs of equal weight fill rows together, one group after another

    def __len__(self) -> int:
        return len(self.row_starts) - 1

    @property
    def epoch_rows(self) -> int:
        """The rows of an epoch: all of them, if every pair has the weight 1."""
        return sum(group.slots for group in self.groups)

    def rows_of_epoch(self, epoch: int, slots: np.ndarray) -> np.ndarray:
        """The rows [n] in some of an epoch's slots, 0 <= slot < epoch_rows: int64 [n].

        A group's rows take turns: an epoch goes on where the one before it ended, so that after
        any number of epochs each row of a group was seen equally often, or once more. A group
        that has half a row in an epoch has a row in every second one.
        """
        found = np.empty(len(slots), np.int64)
        before = [int(epoch * group.in_epoch) for group in self.groups]  # rows in earlier epochs
        after = [int((epoch + 1) * group.in_epoch) for group in self.groups]
        sizes = [group.slots for group in self.groups]
        largest = int(np.argmax(sizes))
        before[largest] += epoch * self.epoch_rows - sum(before)
        after[largest] = before[largest] + sizes[largest]
        starts = np.cumsum([0, *(group.rows for group in self.groups)])
        more = after[largest]
        slot = 0
        for number, size in enumerate(sizes):
            turn = before[number] + slots - slot
            own = (slots >= slot) & (turn < after[number])
            found[own] = starts[number] + turn[own] % self.groups[number].rows
            spare = (turn >= after[number]) & (slots < slot + size)
            turn += more - after[number]
            found[spare] = starts[largest] + turn[spare] % self.groups[largest].rows
            more += size - (after[number] - before[number])
            slot += size
        return found

    @property
    def src_fill(self) -> float:
        """The share of source positions that hold real tokens."""
        return self.src_tokens / (len(self) * self.src_row_length)

    @property
    def tgt_fill(self) -> float:
        """The share of target positions that hold real tokens."""
        return self.tgt_tokens / (len(self) * self.tgt_row_length)

    def swapped(self) -> "RowPlan":
        """The same rows for the other direction of translation."""
        return replace(
            self,
            src_row_length=self.tgt_row_length,
            tgt_row_length=self.src_row_length,
            src_tokens=self.tgt_tokens,
            tgt_tokens=self.src_tokens,
        )


def random_order(count: int, *entropy: int) -> np.ndarray:
    """A permutation of range(count), int64 [count], that is a pure function of its arguments.

    It sorts random numbers, since NumPy guarantees the streams of its bit generators over versions
    but not the result of `Generator.permutation`.
    """
    words = np.random.Philox(np.random.SeedSequence([e % (1 << 64) for e in entropy]))
    return np.argsort(words.random_raw(count), kind="stable")


def select_pairs(
    src_lengths: np.ndarray, tgt_lengths: np.ndarray, max_src: int, max_tgt: int
) -> Selection:
    """Leaves out pairs with an empty side or a side that is too long; lengths [pairs] count EOS.

    If no pair has a source, as for a language model, an empty one is no reason.
    """
    any_source = src_lengths.max(initial=0) > 1
    empty = (tgt_lengths <= 1) | (src_lengths <= 1) & any_source
    too_long = ~empty & ((src_lengths > max_src) | (tgt_lengths > max_tgt))
    kept = np.flatnonzero(~(empty | too_long))
    return Selection(kept, int(too_long.sum()), int(empty.sum()))


def source_row_length(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    row_length: int,
    max_length: int | None = None,
) -> int:
    """The source row length, a multiple of 8, that gives the least padding and takes every pair.

    Args:
      src_lengths, tgt_lengths: [pairs], EOS included.
      row_length: target positions in a row.
      max_length: longer pairs are left out of training, so they do not count here.
    """
    limit = max_length or np.iinfo(np.int64).max
    kept = select_pairs(src_lengths, tgt_lengths, limit, min(limit, row_length)).pairs
    if not len(kept):
        return -(-row_length // SOURCE_MULTIPLE) * SOURCE_MULTIPLE
    src_tokens, tgt_tokens = int(src_lengths[kept].sum()), int(tgt_lengths[kept].sum())

    def positions(src_row: int) -> float:
        """Positions in all rows, if the side that needs more rows is filled completely."""
        return max(src_tokens / src_row, tgt_tokens / row_length) * (src_row + row_length)

    lower = src_tokens * row_length // tgt_tokens // SOURCE_MULTIPLE * SOURCE_MULTIPLE
    # If both lengths need the same number of positions, take the longer one: it fills the target
    # side, and training learns from target tokens.
    best = min((lower + SOURCE_MULTIPLE, max(lower, SOURCE_MULTIPLE)), key=positions)
    return max(best, -(-int(src_lengths[kept].max()) // SOURCE_MULTIPLE) * SOURCE_MULTIPLE)


def lengths_alone(
    src_lengths: np.ndarray, tgt_lengths: np.ndarray, row_length: int, max_length: int
) -> tuple[int, int]:
    """Positions of a source and a target row that have one pair: those of the longest sentences."""
    pairs = select_pairs(src_lengths, tgt_lengths, max_length, min(max_length, row_length)).pairs
    src, tgt = (
        -(-int(own[pairs].max(initial=1)) // SOURCE_MULTIPLE) * SOURCE_MULTIPLE
        for own in (src_lengths, tgt_lengths)
    )
    return src, min(tgt, row_length)


def plan_rows(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    src_row_length: int,
    tgt_row_length: int,
    seed: int,
    max_length: int | None = None,
    weights: np.ndarray | None = None,
    alone: bool = False,
) -> RowPlan:
    """Packs every pair to train on into exactly one row.

    Args:
      src_lengths, tgt_lengths: [pairs], EOS included.
      src_row_length, tgt_row_length: positions in a row.
      seed: seed of the random draws; another seed packs other pairs together.
      max_length: pairs with a longer side are left out; None: the limits are the row lengths.
      weights: how often an epoch has each pair, [pairs], few different numbers; None: once.
      alone: a row has one pair.

    Raises:
      DataError: no pair is left to train on.
    """
    limit = max_length or max(src_row_length, tgt_row_length)
    max_src, max_tgt = min(limit, src_row_length), min(limit, tgt_row_length)
    pairs, too_long, empty = select_pairs(src_lengths, tgt_lengths, max_src, max_tgt)
    if not len(pairs):
        raise DataError(
            f"No pair can be trained on: {too_long} are over {max_src} source or {max_tgt} target "
            f"subwords and {empty} have an empty side; see data.max_length and train.row_length."
        )
    drawn = pairs[random_order(len(pairs), seed, PLAN_STREAM)]
    of_drawn = np.ones(len(drawn)) if weights is None else weights[drawn]
    orders, starts, groups = [], [np.zeros(1, np.int64)], []
    for weight in np.unique(of_drawn):
        own = drawn[of_drawn == weight]
        if alone:
            order, row_starts = np.arange(len(own)), np.arange(len(own) + 1)
        else:
            order, row_starts = _pack(
                src_lengths[own], tgt_lengths[own], src_row_length, tgt_row_length
            )
        orders.append(own[order])
        starts.append(starts[-1][-1] + row_starts[1:])
        rows = len(row_starts) - 1
        groups.append(Group(rows, _in_epoch(float(weight) * rows)))
    return RowPlan(
        pair_order=np.concatenate(orders),
        row_starts=np.concatenate(starts),
        src_row_length=src_row_length,
        tgt_row_length=tgt_row_length,
        src_tokens=int(src_lengths[drawn].sum()),
        tgt_tokens=int(tgt_lengths[drawn].sum()),
        too_long=too_long,
        empty=empty,
        groups=tuple(groups),
    )


def _in_epoch(rows: float) -> Fraction:
    """A number of rows, which is a whole one if that is near."""
    whole = Fraction(round(rows))
    near = abs(whole - rows) <= ROUNDED * rows
    return whole if near else Fraction(rows).limit_denominator(EPOCHS)


def _pack(
    src: np.ndarray, tgt: np.ndarray, src_room: int, tgt_room: int
) -> tuple[np.ndarray, np.ndarray]:
    """Packs all pairs, given by their lengths [pairs] in random order.

    Returns:
      order: int64 [pairs], indices into the given order.
      row_starts: int64 [rows + 1].
    """
    src_mean, tgt_mean = float(src.mean()), float(tgt.mean())
    src_stop, tgt_stop = FITTED_PAIRS * src_mean, FITTED_PAIRS * tgt_mean
    src_of, tgt_of = array("i", src.astype(np.int32)), array("i", tgt.astype(np.int32))
    waiting = _Waiting(src, tgt, tgt_room)
    taken = waiting.taken
    order = array("q")
    row_starts = array("q", [0])
    head = 0
    count = len(src)
    while head < count:
        src_left, tgt_left = src_room, tgt_room
        while head < count and src_of[head] <= src_left and tgt_of[head] <= tgt_left:
            if not taken[head]:
                taken[head] = True
                order.append(head)
                src_left -= src_of[head]
                tgt_left -= tgt_of[head]
            head += 1
            if src_left < src_stop or tgt_left < tgt_stop:
                break
        while src_left and tgt_left:
            # Give each pair an equal share of the space left, so that the last pair that is needed
            # has a common shape.
            shares = max(1, round(min(src_left / src_mean, tgt_left / tgt_mean)))
            pair = waiting.take(src_left // shares, tgt_left // shares)
            if pair is None and shares > 1:
                pair = waiting.take(src_left, tgt_left)
            if pair is None:
                break
            order.append(pair)
            src_left -= src_of[pair]
            tgt_left -= tgt_of[pair]
        row_starts.append(len(order))
        while head < count and taken[head]:
            head += 1
    return np.array(order, np.int64), np.array(row_starts, np.int64)


class _Waiting:
    """The pairs that are in no row yet, in cells numbered src length * width + tgt length."""

    def __init__(self, src: np.ndarray, tgt: np.ndarray, tgt_room: int):
        self.taken = bytearray(len(src))  # a drawn pair stays in its cell until it comes up there
        self._width = tgt_room + 1
        cells = src * self._width + tgt
        self._pairs = array("i", np.argsort(cells, kind="stable").astype(np.int32))
        present, counts = np.unique(cells, return_counts=True)
        ends = np.cumsum(counts)
        self._start = dict(zip(present.tolist(), (ends - counts).tolist(), strict=True))
        self._end = dict(zip(present.tolist(), ends.tolist(), strict=True))
        self._tgt_bits = [0] * (int(src.max()) + 1)  # bit t of entry s: cell (s, t) has pairs
        for cell in present.tolist():
            self._tgt_bits[cell // self._width] |= 1 << cell % self._width

    def take(self, src_left: int, tgt_left: int) -> int | None:
        """Takes a pair that leaves the fewest of these positions empty; None if no pair fits."""
        while (cell := self._best_cell(src_left, tgt_left)) is not None:
            # Take the cell's next pair in the random order, so that the pairs left keep the mixture
            # of lengths that the draws need. Taking its last pair gives 0.5 % more padding.
            start, end = self._start[cell], self._end[cell]
            pair = None
            while start < end and pair is None:
                if not self.taken[self._pairs[start]]:
                    pair = self._pairs[start]
                start += 1
            self._start[cell] = start
            if start == end:
                self._tgt_bits[cell // self._width] ^= 1 << cell % self._width
            if pair is not None:
                self.taken[pair] = True
                return pair
        return None

    def _best_cell(self, src_left: int, tgt_left: int) -> int | None:
        fitting = (1 << (tgt_left + 1)) - 1
        best = None
        best_waste = src_left + tgt_left
        longest = min(src_left, len(self._tgt_bits) - 1)
        for src in range(longest, 0, -1):
            if src_left - src >= best_waste:
                break
            if bits := self._tgt_bits[src] & fitting:
                tgt = bits.bit_length() - 1
                waste = src_left - src + tgt_left - tgt
                if waste < best_waste:
                    best = src * self._width + tgt
                    best_waste = waste
        return best
