"""Batches of fixed shapes: packed rows for training, one sentence a row for translation.

The training stream never ends: row i of it is row perm_e[i % R] of the plan in epoch e = i // R,
where R is the number of planned rows and perm_e follows from (seed, e). Batch n is the rows
[n B, (n + 1) B), so it is a pure function of (encoded, plan, B, seed, n).
"""

import functools
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from absl import flags

from transformer_jax.errors import DataError
from transformer_jax.text.encoded import EncodedPairs
from transformer_jax.text.packing import RowPlan, random_order

if TYPE_CHECKING:
    import grain

EPOCH_STREAM = 2  # keeps the epochs' random numbers apart from the plan's
ENDLESS = 1 << 60  # batches
PREFETCHED = 4  # batches made ahead, by the thread or by each worker
SHORTEST_BUCKET = 16  # subwords
EMPTY = -1  # index of a row without a sentence


Ints = Any  # int32: NumPy's on the host, JAX's in a step, a shape alone before one is compiled


class Packed(NamedTuple):
    """One side of a batch: sentences packed into rows; int32. Padding has 0 everywhere."""

    ids: Ints  # [R, L], each sentence ending in EOS
    segments: Ints  # [R, L], 1, 2, ...: the sentence pair in the row
    positions: Ints  # [R, L], 0-based in the sentence


class Batch(NamedTuple):
    """R rows of whole sentence pairs."""

    src: Packed  # [R, M]
    tgt: Packed  # [R, L], what is to be predicted


class Bucket(NamedTuple):
    """Source sentences of like length, to be searched in rows of one length."""

    length: int  # M, positions a row
    rows: int  # R, searched together
    indices: np.ndarray  # int64, which sentences, longest first


def rows_per_batch(tokens_per_batch: int, row_length: int, fill: float, rows_multiple: int) -> int:
    """Rows that hold about `tokens_per_batch` real target tokens: at least one multiple.

    Args:
      tokens_per_batch: nominal real target tokens.
      row_length: target places of a row; `fill` of them are real.
      rows_multiple: what the number of rows is rounded to.
    """
    multiples = tokens_per_batch / (row_length * fill * rows_multiple)
    return max(1, round(multiples)) * rows_multiple


def train_batches(
    encoded: EncodedPairs,
    plan: RowPlan,
    rows: int,
    seed: int,
    start_batch: int = 0,
    num_workers: int = 0,
    own_rows: np.ndarray | None = None,
) -> Generator[Batch, None, None]:
    """Batches start_batch, start_batch + 1, ... without end, made ahead of their use.

    Close the result, as contextlib.closing does: `close()` stops the thread or the worker processes
    at once. Worker processes that are left open at Python's exit print tracebacks.

    Args:
      encoded: the training split.
      plan: its rows.
      rows: of a whole batch, over all processes.
      seed: of the epochs' order.
      start_batch: reached without making the ones before.
      num_workers: processes that make batches; 0: a thread of this one.
      own_rows: numbers of the batch's rows that this process needs, int [own]; None: all.
    """
    import grain  # takes 0.1 s, and translation needs none

    source = TrainSource(encoded, plan, rows, seed, own_rows)
    dataset = grain.MapDataset.source(source)[start_batch:]
    thread = grain.ReadOptions(num_threads=1, prefetch_buffer_size=PREFETCHED)
    batches = dataset.to_iter_dataset(thread)
    if num_workers:
        _parse_flags()
        batches = batches.mp_prefetch(
            grain.MultiprocessingOptions(num_workers, per_worker_buffer_size=PREFETCHED)
        )
    return _stream(iter(batches))


def _stream(batches: "grain.DatasetIterator") -> Generator[Batch, None, None]:
    try:
        for batch in batches:
            # Workers hand over shared memory, which is to be gone before a run may end: copy it.
            own = Batch(*(Packed(*map(np.array, side)) for side in batch))
            del batch
            yield own
    except RuntimeError as error:
        if "Worker process" not in str(error):
            raise
        reason = str(error).splitlines()[0]
        raise DataError(
            f"A process that prepares batches is gone ({reason}). Was there too little memory for "
            "train.data_workers? The same command goes on from the last checkpoint."
        ) from error
    finally:
        batches.close()


@dataclass(frozen=True, eq=False)
class TrainSource:
    """Training batches by number, as Grain's RandomAccessDataSource; pickles for its workers."""

    encoded: EncodedPairs
    plan: RowPlan
    rows: int
    seed: int
    own_rows: np.ndarray | None = None

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, number: int) -> Batch:
        own_rows = np.arange(self.rows) if self.own_rows is None else self.own_rows
        stream = int(number) * self.rows + own_rows
        return packed_batch(self.encoded, self.plan, self._planned_rows(stream))

    def _planned_rows(self, stream: np.ndarray) -> np.ndarray:
        """Row numbers of the endless stream [R] to row numbers of the plan [R]."""
        epochs, places = np.divmod(stream, len(self.plan))
        planned = np.empty_like(stream)
        for epoch in np.unique(epochs):
            of_epoch = epochs == epoch
            order = _epoch_order(len(self.plan), self.seed, int(epoch))
            planned[of_epoch] = order[places[of_epoch]]
        return planned


def packed_batch(encoded: EncodedPairs, plan: RowPlan, planned_rows: np.ndarray) -> Batch:
    """The batch whose rows are these rows [R] of the plan."""
    starts = plan.row_starts[planned_rows]
    counts = plan.row_starts[planned_rows + 1] - starts
    rows = np.repeat(np.arange(len(planned_rows)), counts)
    slots = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    pairs = plan.pair_order[np.repeat(starts, counts) + slots]
    return _lay_out_pairs(
        encoded, pairs, rows, slots, len(planned_rows), plan.src_row_length, plan.tgt_row_length
    )


def bucket_lengths(max_length: int, longest: int = 0) -> tuple[int, ...]:
    """The few lengths that sentences are padded to: 16, 32, ... below max_length, and max_length.

    Where the `longest` sentence is longer, max_length is doubled until it fits.
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
    """The few numbers of rows that a bucket's batches have, most first.

    The first is tokens // length, rounded down to a multiple and at least one; the others, each an
    eighth of the one before, are for a bucket with so few sentences: a line alone is not padded to
    a whole batch.
    """
    most = max(1, tokens_per_batch // (length * rows_multiple))
    multiples = dict.fromkeys((most, max(1, most // 8), max(1, most // 64)))
    return tuple(multiple * rows_multiple for multiple in multiples)


def translation_buckets(
    lengths: np.ndarray, tokens_per_batch: int, max_length: int, rows_multiple: int = 1
) -> Iterator[Bucket]:
    """Every source sentence once; longest first, so that memory runs out at once or never.

    Args:
      lengths: subwords of each sentence, EOS included.
      tokens_per_batch: places of a bucket's rows, padding included.
      max_length: of the buckets; longer sentences get longer ones.
      rows_multiple: what divides the rows of every bucket.
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
    sentences: Sequence[Sequence[int] | np.ndarray], rows: int, length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Ids, one sentence a row: int32 [rows, length], and real lengths [rows]; 0: an empty row."""
    ids, real = np.zeros((rows, length), np.int32), np.zeros(rows, np.int32)
    for row, sentence in enumerate(sentences):
        real[row] = len(sentence)
        ids[row, : real[row]] = sentence
    return ids, real


def _lay_out_pairs(
    encoded: EncodedPairs,
    pairs: np.ndarray,
    rows: np.ndarray,
    slots: np.ndarray,
    row_count: int,
    src_row_length: int,
    tgt_row_length: int,
) -> Batch:
    """A batch in which pairs[i] is number slots[i] of row rows[i]; all [sentences], row by row."""
    src = _lay_out(
        encoded.src_ids, encoded.src_offsets, pairs, rows, slots, (row_count, src_row_length)
    )
    tgt = _lay_out(
        encoded.tgt_ids, encoded.tgt_offsets, pairs, rows, slots, (row_count, tgt_row_length)
    )
    return Batch(Packed(*src), Packed(*tgt))


def _lay_out(
    ids: np.ndarray,
    offsets: np.ndarray,
    pairs: np.ndarray,
    rows: np.ndarray,
    slots: np.ndarray,
    shape: tuple[int, int],
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids, segments and positions of one side, each int32 of this shape, in one pass a batch."""
    begins = offsets[pairs]
    lengths = offsets[pairs + 1] - begins
    before = np.cumsum(lengths) - lengths  # tokens before each sentence, in the batch
    in_row = before - before[np.arange(len(pairs)) - slots]
    positions = np.arange(lengths.sum()) - np.repeat(before, lengths)
    places = np.repeat(rows * shape[1] + in_row, lengths) + positions
    tokens = ids[np.repeat(begins, lengths) + positions]
    laid_out = []
    for values in (tokens, np.repeat(slots + 1, lengths), positions):
        flat = np.zeros(shape[0] * shape[1], np.int32)
        flat[places] = values
        laid_out.append(flat.reshape(shape))
    return laid_out[0], laid_out[1], laid_out[2]


@functools.lru_cache(maxsize=4)
def _epoch_order(rows: int, seed: int, epoch: int) -> np.ndarray:
    """The plan's rows in the order of an epoch: int64 [rows]."""
    return random_order(rows, seed, EPOCH_STREAM, epoch)


def _parse_flags() -> None:
    """Grain's workers read flags of absl, which nobody has parsed outside an absl.app."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()
