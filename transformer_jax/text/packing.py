"""Which pairs share a training row: computed once, from their lengths and the seed.

A row has src_row_length source and tgt_row_length target places, and whole pairs in it. Filling it
is a bin packing problem in two dimensions. Most of a row is drawn at random; its last two or three
pairs are those, of all that are left, which fit best. Pairs wait in cells (src length, tgt length),
and one integer a source length has a bit for each target length that is still to be had, so the
longest target that fits is a mask and a bit_length. P pairs in R rows cost O(P) draws and
O(R src_row_length) steps of search at worst, of which a few a row are needed in practice.
"""

from array import array
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from transformer_jax.errors import DataError

SOURCE_MULTIPLE = 8  # of the source row length: matrix units want multiples of 8
# Draw at random until fewer mean pairs than this still fit, then fit. Measured: 1 leaves 0.6 to
# 0.8 % more padding where pairs are short beside the row, 3.5 leaves 1.3 to 2.2 % more where long.
FITTED_PAIRS = 2.0
PLAN_STREAM = 1  # keeps the plan's random numbers apart from those of the epochs


class Selection(NamedTuple):
    """The pairs that may be trained on, and how many may not."""

    pairs: np.ndarray  # int64 [kept], ascending
    too_long: int  # pairs with a side that is over its limit
    empty: int  # pairs with a side of nothing but EOS


@dataclass(frozen=True, eq=False)
class RowPlan:
    """Row r holds the pairs pair_order[row_starts[r] : row_starts[r + 1]], in this order."""

    pair_order: np.ndarray  # int64 [kept], every kept pair once
    row_starts: np.ndarray  # int64 [rows + 1]
    src_row_length: int
    tgt_row_length: int
    src_tokens: int  # real ones, in all rows
    tgt_tokens: int
    too_long: int  # pairs left out
    empty: int  # pairs left out

    def __len__(self) -> int:
        return len(self.row_starts) - 1

    @property
    def src_fill(self) -> float:
        """Real tokens over places, source side."""
        return self.src_tokens / (len(self) * self.src_row_length)

    @property
    def tgt_fill(self) -> float:
        """Real tokens over places, target side."""
        return self.tgt_tokens / (len(self) * self.tgt_row_length)


def random_order(count: int, *entropy: int) -> np.ndarray:
    """A permutation of range(count), int64 [count], that is a pure function of its arguments.

    NumPy promises to keep the streams of its bit generators, but not `Generator.permutation`.
    """
    words = np.random.Philox(np.random.SeedSequence([e % (1 << 64) for e in entropy]))
    return np.argsort(words.random_raw(count), kind="stable")


def select_pairs(
    src_lengths: np.ndarray, tgt_lengths: np.ndarray, max_src: int, max_tgt: int
) -> Selection:
    """Leaves out pairs that have an empty or a too long side; lengths [pairs] count the EOS."""
    empty = (src_lengths <= 1) | (tgt_lengths <= 1)
    too_long = ~empty & ((src_lengths > max_src) | (tgt_lengths > max_tgt))
    kept = np.flatnonzero(~(empty | too_long))
    return Selection(kept, int(too_long.sum()), int(empty.sum()))


def source_row_length(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    row_length: int,
    max_length: int | None = None,
) -> int:
    """The multiple of 8 that leaves the least padding beside target rows of `row_length`.

    Args:
      src_lengths, tgt_lengths: [pairs], EOS included.
      row_length: target places of a row.
      max_length: longer pairs are not trained on, and so do not count.
    """
    limit = max_length or np.iinfo(np.int64).max
    kept = select_pairs(src_lengths, tgt_lengths, limit, min(limit, row_length)).pairs
    if not len(kept):
        return -(-row_length // SOURCE_MULTIPLE) * SOURCE_MULTIPLE
    src_tokens, tgt_tokens = int(src_lengths[kept].sum()), int(tgt_lengths[kept].sum())

    def places(src_row: int) -> float:
        """Places of all rows where the side that is short of room is full."""
        return max(src_tokens / src_row, tgt_tokens / row_length) * (src_row + row_length)

    lower = src_tokens * row_length // tgt_tokens // SOURCE_MULTIPLE * SOURCE_MULTIPLE
    # Of two equals the longer: target tokens, whose rows it fills, are what is learned from.
    return min((lower + SOURCE_MULTIPLE, max(lower, SOURCE_MULTIPLE)), key=places)


def plan_rows(
    src_lengths: np.ndarray,
    tgt_lengths: np.ndarray,
    src_row_length: int,
    tgt_row_length: int,
    seed: int,
    max_length: int | None = None,
) -> RowPlan:
    """Packs every pair that may be trained on into exactly one row.

    Args:
      src_lengths, tgt_lengths: [pairs], EOS included.
      src_row_length, tgt_row_length: places of a row.
      seed: of the draws; another seed packs other pairs together.
      max_length: longer pairs, on either side, are left out; None: those longer than a row.

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
    src, tgt = src_lengths[drawn], tgt_lengths[drawn]
    order, row_starts = _pack(src, tgt, src_row_length, tgt_row_length)
    return RowPlan(
        pair_order=drawn[order],
        row_starts=row_starts,
        src_row_length=src_row_length,
        tgt_row_length=tgt_row_length,
        src_tokens=int(src.sum()),
        tgt_tokens=int(tgt.sum()),
        too_long=too_long,
        empty=empty,
    )


def _pack(
    src: np.ndarray, tgt: np.ndarray, src_room: int, tgt_room: int
) -> tuple[np.ndarray, np.ndarray]:
    """Packs pairs of the given lengths [pairs], which come in random order, until none is left.

    Returns:
      order: int64 [pairs], places in the given order; row_starts: int64 [rows + 1].
    """
    src_mean, tgt_mean = float(src.mean()), float(tgt.mean())
    src_stop, tgt_stop = FITTED_PAIRS * src_mean, FITTED_PAIRS * tgt_mean
    src_of, tgt_of = array("i", src.astype(np.int32)), array("i", tgt.astype(np.int32))
    waiting = _Waiting(src, tgt, tgt_room)
    taken = waiting.taken
    order, row_starts = array("q"), array("q", [0])
    head, count = 0, len(src)
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
            # Aim at equal shares of what is left, so that the last pair finds a usual shape.
            shares = max(1, round(min(src_left / src_mean, tgt_left / tgt_mean)))
            place = waiting.take(src_left // shares, tgt_left // shares)
            if place is None and shares > 1:
                place = waiting.take(src_left, tgt_left)
            if place is None:
                break
            order.append(place)
            src_left -= src_of[place]
            tgt_left -= tgt_of[place]
        row_starts.append(len(order))
        while head < count and taken[head]:
            head += 1
    return np.array(order, np.int64), np.array(row_starts, np.int64)


class _Waiting:
    """The pairs that no row has yet, in cells: src length * width + tgt length."""

    def __init__(self, src: np.ndarray, tgt: np.ndarray, tgt_room: int):
        self.taken = bytearray(len(src))  # one taken by a draw leaves its cell when its turn comes
        self._width = tgt_room + 1
        cells = src * self._width + tgt
        self._places = array("i", np.argsort(cells, kind="stable").astype(np.int32))
        present, counts = np.unique(cells, return_counts=True)
        ends = np.cumsum(counts)
        self._start = dict(zip(present.tolist(), (ends - counts).tolist(), strict=True))
        self._end = dict(zip(present.tolist(), ends.tolist(), strict=True))
        self._tgt_bits = [0] * (int(src.max()) + 1)  # bit t of entry s: cell (s, t) has pairs
        for cell in present.tolist():
            self._tgt_bits[cell // self._width] |= 1 << cell % self._width

    def take(self, src_left: int, tgt_left: int) -> int | None:
        """Takes a pair that leaves the fewest of these places empty, or None where none fits."""
        while (cell := self._best_cell(src_left, tgt_left)) is not None:
            # The next to be drawn goes first: so what is left keeps the mixture of lengths that the
            # draws are meant to have. From the other end, rows have 0.5 % more padding.
            start, end = self._start[cell], self._end[cell]
            place = None
            while start < end and place is None:
                if not self.taken[self._places[start]]:
                    place = self._places[start]
                start += 1
            self._start[cell] = start
            if start == end:
                self._tgt_bits[cell // self._width] ^= 1 << cell % self._width
            if place is not None:
                self.taken[place] = True
                return place
        return None

    def _best_cell(self, src_left: int, tgt_left: int) -> int | None:
        fitting = (1 << (tgt_left + 1)) - 1
        best, best_waste = None, src_left + tgt_left
        longest = min(src_left, len(self._tgt_bits) - 1)
        for src in range(longest, 0, -1):
            if src_left - src >= best_waste:
                break
            if bits := self._tgt_bits[src] & fitting:
                tgt = bits.bit_length() - 1
                waste = src_left - src + tgt_left - tgt
                if waste < best_waste:
                    best, best_waste = src * self._width + tgt, waste
        return best
