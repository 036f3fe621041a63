"""Batches of fixed shapes: packed rows for training, one sentence a row for translation.

Dimension key
  R rows of a batch   M source positions   L target positions   W numbers of 32 link bits (links.py)

The training stream never ends: row i of it is in slot perm_e[i % P] of epoch e = i // P, where P is
the number of an epoch's rows and perm_e follows from (seed, e). Without weights slot s is row s of
the plan (RowPlan.rows_of_epoch). Batch n is the rows [n R, (n + 1) R), so it is a pure function of
(encoded, plan, R, seed, n).
"""

import contextlib
import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.text.encoded import EncodedPairs, Taught
from transformer_jax.text.links import link_bits
from transformer_jax.text.packing import RowPlan, random_order
from transformer_jax.text.sources import positions_of
from transformer_jax.text.vocabulary import EOS, UNK

EPOCH_STREAM = 2  # keeps the epochs' random numbers apart from the plan's
ENDLESS = 1 << 60  # number of batches that the endless stream reports as its length
PREFETCHED = 4  # batches made ahead
SHORTEST_BUCKET = 16  # subwords
_kept_order = functools.lru_cache(maxsize=4)(random_order)


# int32: a NumPy array on the host, a JAX array in a step, a ShapeDtypeStruct for compilation
Ints = Any


class Packed(NamedTuple):
    """One side of a batch: sentences packed into rows; int32 [R, M] or [R, L] each."""

    ids: Ints  # each sentence ending in EOS; padding: PAD
    segments: Ints  # number of the sentence pair in its row, from 1; padding: 0
    positions: Ints  # in the sentence, from 0; padding: any number
    # float32 [R, M, features]: what a recording or a picture has there in place of subwords
    # (features.py), and then all ids are UNK; None: text
    features: Any = None

    def map(self, function: Callable[[Any], Any]) -> "Packed":
        """The side with `function` applied to each array."""
        return Packed(*(None if x is None else function(x) for x in self))


class Drawn(NamedTuple):
    """Translations that a model has drawn of each row's source, S of each."""

    ids: Ints  # int32 [R, S, L], each ending in EOS; padding: PAD
    lengths: Ints  # int32 [R, S], EOS included; 0: there is none
    log_probs: Any  # float32 [R, S], nats, with which the model drew them


class Batch(NamedTuple):
    """R rows of whole sentence pairs."""

    src: Packed  # [R, M]
    tgt: Packed  # [R, L], the tokens to predict
    links: Ints | None = None  # uint32 [R, L, W], see `link_bits`; with data.alignments
    taught: Taught | None = None  # [R, L, K]; with train.teacher
    drawn: Drawn | None = None  # with train.objective: the training step draws them

    def map(self, function: Callable[[Any], Any]) -> "Batch":
        """The batch of the host with `function` applied to each array."""
        links = None if self.links is None else function(self.links)
        taught = None if self.taught is None else Taught(*map(function, self.taught))
        return Batch(self.src.map(function), self.tgt.map(function), links, taught)

    def swapped(self) -> "Batch":
        """The batch for the other direction of translation.

        Raises ValueError if it has links or what a teacher predicts.
        """
        if self.links is not None or self.taught is not None:
            raise ValueError("links and predictions of a teacher are those of one direction.")
        return Batch(self.tgt, self.src)


class Bucket(NamedTuple):
    """Source sentences of similar length; all are padded to one length for the search."""

    length: int  # M, positions in a row
    rows: int  # R, rows searched together
    indices: np.ndarray  # int64, indices of the sentences, longest first


def rows_per_batch(tokens_per_batch: int, row_length: int, fill: float, rows_multiple: int) -> int:
    """The number of rows that hold about `tokens_per_batch` real target tokens.

    Args:
      tokens_per_batch: nominal number of real target tokens.
      row_length: target positions in a row.
      fill: share of these positions that hold real tokens.
      rows_multiple: the result is a multiple of this number, and at least this number.
    """
    multiples = tokens_per_batch / (row_length * fill * rows_multiple)
    return max(1, round(multiples)) * rows_multiple


def train_batches(source: "TrainSource", start_batch: int = 0) -> Generator[Batch, None, None]:
    """Yields batches start_batch, start_batch + 1, ... without end, and a thread makes them ahead.

    Close the result, for example with contextlib.closing: `close()` stops the thread at once.

    Args:
      source: the batches by number.
      start_batch: the first batch; the batches before it are not computed.
    """
    import grain  # the import takes 0.1 s, and translation does not need it

    dataset = grain.MapDataset.source(source)[start_batch:]
    thread = grain.ReadOptions(num_threads=1, prefetch_buffer_size=PREFETCHED)
    with contextlib.closing(iter(dataset.to_iter_dataset(thread))) as batches:
        yield from batches


@dataclass(frozen=True, eq=False)
class TrainSource:
    """Training batches by number: a RandomAccessDataSource of Grain."""

    encoded: EncodedPairs  # the training split
    plan: RowPlan  # its rows
    rows: int  # rows in a whole batch, over all processes
    seed: int  # of the order of rows in each epoch
    own_rows: np.ndarray | None = None  # rows that this process needs, int [own]; None: all
    masks: Callable[[Packed, np.ndarray], Packed] | None = None  # `speech.Masks`

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, number: int) -> Batch:
        own_rows = np.arange(self.rows) if self.own_rows is None else self.own_rows
        stream = int(number) * self.rows + own_rows
        batch = packed_batch(self.encoded, self.plan, self._planned_rows(stream))
        if self.masks is None:
            return batch
        return batch._replace(src=self.masks(batch.src, stream))

    def _planned_rows(self, stream: np.ndarray) -> np.ndarray:
        """Converts row numbers of the endless stream [own] to row numbers of the plan [own]."""
        rows = self.plan.epoch_rows
        epochs, in_epoch = np.divmod(stream, rows)
        planned = np.empty_like(stream)
        for epoch in map(int, np.unique(epochs)):
            of_epoch = epochs == epoch
            order = _kept_order(rows, self.seed, EPOCH_STREAM, epoch)  # in which slots are read
            slots = order[in_epoch[of_epoch]]
            planned[of_epoch] = self.plan.rows_of_epoch(epoch, slots)
        return planned


def packed_batch(encoded: EncodedPairs, plan: RowPlan, planned_rows: np.ndarray) -> Batch:
    """The batch that consists of these rows [R] of the plan."""
    starts = plan.row_starts[planned_rows]
    counts = plan.row_starts[planned_rows + 1] - starts
    # pairs[i] is number slots[i], from 0, of row rows[i]; the three arrays are ordered by row.
    rows = np.repeat(np.arange(len(planned_rows)), counts)
    slots = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    pairs = plan.pair_order[np.repeat(starts, counts) + slots]
    src_shape, tgt_shape = (
        (len(planned_rows), length) for length in (plan.src_row_length, plan.tgt_row_length)
    )
    src, src_begins = _lay_out(encoded.src_ids, encoded.src_offsets, pairs, rows, slots, src_shape)
    tgt, tgt_begins = _lay_out(encoded.tgt_ids, encoded.tgt_offsets, pairs, rows, slots, tgt_shape)
    links = taught = None
    if encoded.links is not None:
        begins = src_begins, tgt_begins
        links = link_bits(encoded.links, pairs, rows, begins, (*tgt_shape, plan.src_row_length))
    if encoded.taught is not None:
        taught = _taught_in(tgt.segments != 0, encoded, pairs)
    return Batch(src, tgt, links, taught)


def _taught_in(real: np.ndarray, encoded: EncodedPairs, pairs: np.ndarray) -> Taught:
    """What the teacher predicts at the real positions, which are those of the pairs in order."""
    assert encoded.taught is not None
    begins = encoded.tgt_offsets[pairs]
    lengths = encoded.tgt_offsets[pairs + 1] - begins
    tokens = np.repeat(begins - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())

    def laid_out(values: np.ndarray, dtype: type) -> np.ndarray:
        found = np.zeros((*real.shape, values.shape[1]), dtype)
        found[real] = values[tokens]
        return found

    ids, probabilities = encoded.taught
    return Taught(laid_out(ids, np.int32), laid_out(probabilities, np.float32))


def row_length(rounded: int, length: int, longest: int | None) -> int:
    """`rounded`, but at most `longest` (None: no limit), and never below a sentence's `length`."""
    return max(length, min(rounded, longest or rounded))


def bucket_lengths(max_length: int, longest: int = 0) -> tuple[int, ...]:
    """The few lengths that sentences are padded to: 16, 32, ... below max_length, and max_length.

    If the `longest` sentence does not fit, further lengths follow, each twice the one before.
    """
    lengths = []
    length = SHORTEST_BUCKET
    while length < max_length:
        lengths.append(length)
        length *= 2
    lengths.append(max_length)
    while lengths[-1] < longest:
        lengths.append(2 * lengths[-1])
    return tuple(lengths)


def bucket_rows(length: int, tokens_per_batch: int, rows_multiple: int = 1) -> tuple[int, ...]:
    """The few numbers of rows that a bucket's batches may have, largest first.

    The first is tokens_per_batch // length, rounded down to a multiple of `rows_multiple` and at
    least one multiple. Each of the others is an eighth of the one before; a bucket with few
    sentences uses them, so that a single line is not padded to a whole batch.
    """
    most = max(1, tokens_per_batch // (length * rows_multiple))
    multiples = dict.fromkeys((most, max(1, most // 8), max(1, most // 64)))
    return tuple(multiple * rows_multiple for multiple in multiples)


def translation_buckets(
    lengths: np.ndarray, tokens_per_batch: int, max_length: int, rows_multiple: int = 1
) -> Iterator[Bucket]:
    """Yields buckets that hold every source sentence once.

    The longest sentences come first: if memory is too small, the first batch fails.

    Args:
      lengths: number of subwords of each sentence, EOS included.
      tokens_per_batch: positions in a bucket's rows together, padding included.
      max_length: the longest usual bucket; longer sentences get longer buckets.
      rows_multiple: the number of rows of every bucket is a multiple of this number.
    """
    if not len(lengths):
        return
    bounds = np.array(bucket_lengths(max_length, int(lengths.max())))
    bucket_of = np.searchsorted(bounds, lengths)
    longest_first = np.argsort(-lengths, kind="stable")
    for bucket in reversed(range(len(bounds))):
        members = longest_first[bucket_of[longest_first] == bucket]
        if len(members):
            choices = bucket_rows(int(bounds[bucket]), tokens_per_batch, rows_multiple)
            rows = min((rows for rows in choices if rows >= len(members)), default=choices[0])
            yield Bucket(int(bounds[bucket]), rows, members)


def padded_sentences(
    sentences: Sequence[Sequence[int] | np.ndarray], rows: int, length: int, features: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """One sentence per row: ids, int32 [rows, length], and lengths [rows], 0 for an empty row.

    With `features` it is a row of numbers at each position: float32 [rows, length, features].
    """
    shape = (rows, length, features) if features else (rows, length)
    values = np.zeros(shape, np.float32 if features else np.int32)
    real = np.zeros(rows, np.int32)
    for row, sentence in enumerate(sentences):
        real[row] = len(sentence)
        values[row, : real[row]] = sentence
    return values, real


def packed_sentences(
    sentences: Sequence[Sequence[int] | np.ndarray], rows: int, length: int
) -> Packed:
    """One pair's side per row, with segments and positions: int32 [rows, length] each."""
    shape = np.shape(sentences[0]) if sentences else ()
    features = shape[1] if len(shape) > 1 else 0
    values, real = padded_sentences(sentences, rows, length, features)
    return one_a_row(values, (np.arange(length) < real[:, None]).astype(np.int32))


def one_a_row(
    values: Any, segments: Any, array: Any = np, cummax: Any = np.maximum.accumulate
) -> Packed:
    """One pair's side per row, with its positions.

    Args:
      values: ids, int32 [rows, length], or numbers, float32 [rows, length, features].
      segments: int32 [rows, length]: 1, and 0 in the padding.
      array: numpy, or jax.numpy in a compiled program.
      cummax: the cumulative maximum along axis 1, there jax.lax.cummax.
    """
    if values.ndim == 2:
        return Packed(values, segments, positions_of(values, array, cummax))
    positions = array.broadcast_to(array.arange(values.shape[1], dtype=np.int32), segments.shape)
    return Packed(array.full_like(segments, UNK), segments, positions, values)


def _lay_out(
    ids: np.ndarray,
    offsets: np.ndarray,
    pairs: np.ndarray,
    rows: np.ndarray,
    slots: np.ndarray,
    shape: tuple[int, int],
) -> tuple[Packed, np.ndarray]:
    """One side of a batch, of this shape, and the position in its row of each sentence's start."""
    begins = offsets[pairs]
    lengths = offsets[pairs + 1] - begins
    before = np.cumsum(lengths) - lengths  # tokens before each pair's side, in the batch
    in_row = before - before[np.arange(len(pairs)) - slots]
    in_side = np.arange(lengths.sum()) - np.repeat(before, lengths)
    flat_positions = np.repeat(rows * shape[1] + in_row, lengths) + in_side
    tokens = ids[np.repeat(begins, lengths) + in_side]
    segments = np.repeat(slots + 1, lengths)

    def laid_out(values: np.ndarray, dtype: type = np.int32) -> np.ndarray:
        flat = np.zeros((shape[0] * shape[1], *values.shape[1:]), dtype)
        flat[flat_positions] = values
        return flat.reshape(*shape, *values.shape[1:])

    if tokens.ndim > 1:
        unknown = np.full_like(segments, UNK)
        sides = laid_out(unknown), laid_out(segments), laid_out(in_side)
        return Packed(*sides, laid_out(tokens, np.float32)), in_row
    # Each sentence ends in EOS. A side is one sentence; a source may be several (sources.py).
    ends = np.flatnonzero(tokens == EOS) + 1
    of_sentences = np.diff(ends, prepend=0)
    positions = np.arange(len(tokens)) - np.repeat(ends - of_sentences, of_sentences)
    return Packed(*map(laid_out, (tokens, segments, positions))), in_row
