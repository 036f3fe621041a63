"""Batches: their layout, each pair once per epoch, batch n the same on every way to it."""

import itertools
import threading
from collections import Counter
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.encoded import in_memory, pairs_in, pairs_of
from transformer_jax.text.batches import (
    Batch,
    TrainSource,
    bucket_lengths,
    bucket_rows,
    packed_batch,
    padded_sentences,
    row_length,
    rows_per_batch,
    train_batches,
    translation_buckets,
)
from transformer_jax.text.encoded import EncodedPairs
from transformer_jax.text.packing import plan_rows

ROOT = Path(__file__).parents[2]
EOS = 1
SRC_ROW, TGT_ROW = 24, 32


def corpus(lengths: list[tuple[int, int]]) -> EncodedPairs:
    """Pairs of the given lengths, EOS included, whose ids are all different."""
    next_id = itertools.count(2)
    sides = [
        [[next(next_id) for _ in range(pair[side] - 1)] + [EOS] for pair in lengths]
        for side in (0, 1)
    ]
    return in_memory(*sides)


RANDOM = np.random.default_rng(0)
ENCODED = corpus(RANDOM.integers(1, 20, (200, 2)).tolist())
PLAN = plan_rows(ENCODED.src_lengths(), ENCODED.tgt_lengths(), SRC_ROW, TGT_ROW, seed=0)
KEPT = pairs_of(ENCODED, PLAN.pair_order)


def same(one: Batch, two: Batch) -> bool:
    """Whether two batches are equal in every array, type included."""
    return all(
        a.dtype == b.dtype == np.int32 and np.array_equal(a, b)
        for a, b in zip(*map(jax.tree.leaves, (one, two)), strict=True)
    )


def stack(batches: list[Batch]) -> Batch:
    """Batches as one, row after row."""
    return jax.tree.map(lambda *parts: np.concatenate(parts), *batches)


# Training -------------------------------------------------------------------------------------


def test_a_packed_batch_by_hand():
    encoded = corpus([(3, 2), (2, 4), (5, 2)])  # source 2 3 E, 4 E, 5 6 7 8 E; target 9 E, ...
    plan = plan_rows(encoded.src_lengths(), encoded.tgt_lengths(), 5, 7, seed=0)
    object.__setattr__(plan, "pair_order", np.array([1, 0, 2]))
    object.__setattr__(plan, "row_starts", np.array([0, 2, 3]))
    got = packed_batch(encoded, plan, np.array([1, 0]))
    assert got.src.ids.tolist() == [[5, 6, 7, 8, EOS], [4, EOS, 2, 3, EOS]]
    assert got.src.segments.tolist() == [[1, 1, 1, 1, 1], [1, 1, 2, 2, 2]]
    assert got.src.positions.tolist() == [[0, 1, 2, 3, 4], [0, 1, 0, 1, 2]]
    assert got.tgt.ids.tolist() == [[13, EOS, 0, 0, 0, 0, 0], [10, 11, 12, EOS, 9, EOS, 0]]
    assert got.tgt.segments.tolist() == [[1, 1, 0, 0, 0, 0, 0], [1, 1, 1, 1, 2, 2, 0]]
    assert got.tgt.positions.tolist() == [[0, 1, 0, 0, 0, 0, 0], [0, 1, 2, 3, 0, 1, 0]]
    assert {x.dtype for x in jax.tree.leaves(got)} == {np.dtype(np.int32)}


@pytest.mark.parametrize("rows", [1, 7, 64, 3 * len(PLAN) + 1])
def test_every_epoch_holds_every_pair_once_in_an_order_of_its_own(rows):
    source = TrainSource(ENCODED, PLAN, rows, seed=0)
    epochs = 3
    stream = stack([source[n] for n in range(-(-epochs * len(PLAN) // rows))])
    assert stream.src.ids.shape[1:] == (SRC_ROW,) and stream.tgt.ids.shape[1:] == (TGT_ROW,)
    of_epochs = [slice(n * len(PLAN), (n + 1) * len(PLAN)) for n in range(epochs)]
    parts = [stream.map(lambda x, own=own: x[own]) for own in of_epochs]
    for part in parts:
        assert pairs_in([part]) == KEPT
    assert not any(same(one, two) for one, two in itertools.combinations(parts, 2))


def test_the_order_of_an_epoch_is_the_same_on_every_machine():
    """Copied from one run, as in test_packing: a continued run must see the same batches."""
    plan = plan_rows(np.full(8, 5), np.full(8, 5), 5, 5, seed=3)  # each pair fills a row
    stream = TrainSource(ENCODED, plan, 8, seed=3)._planned_rows(np.arange(8, 24))
    assert stream.tolist() == [4, 3, 1, 2, 7, 5, 6, 0, 7, 0, 3, 1, 2, 6, 5, 4]


@pytest.mark.parametrize("start", [0, 5, 1_000_003])
def test_an_iterator_started_at_n_goes_on_where_another_stopped(start):
    source = TrainSource(ENCODED, PLAN, 16, seed=0)
    for begin in (max(start - 3, 0), start):
        batches = train_batches(source, start_batch=begin)
        for number in range(begin, start + 4):
            assert same(next(batches), source[number])
        batches.close()


def test_processes_share_the_rows_of_every_batch():
    whole = train_batches(TrainSource(ENCODED, PLAN, 12, seed=0), start_batch=3)
    rows = [np.arange(5), np.array([5, 7, 9]), np.array([6, 8, 10, 11])]
    sources = [TrainSource(ENCODED, PLAN, 12, seed=0, own_rows=own) for own in rows]
    shares = [train_batches(source, start_batch=3) for source in sources]
    for _ in range(5):
        batch = next(whole)
        for own, share in zip(rows, shares, strict=True):
            assert same(next(share), batch.map(lambda x, own=own: x[own]))
    for batches in (whole, *shares):
        batches.close()


def test_close_ends_the_thread_and_a_batch_may_be_changed_by_its_owner():
    def alive(seconds: float = 0) -> set[threading.Thread]:
        found = [one for one in threading.enumerate() if "grain-prefetch" in one.name]
        for one in found:
            one.join(seconds)
        return {one for one in found if one.is_alive()}

    others = alive(1)  # of other tests
    batches = train_batches(TrainSource(ENCODED, PLAN, 8, seed=0))
    next(batches).src.ids[:] = 0
    assert alive() - others
    batches.close()
    assert not alive(5) - others
    assert TrainSource(ENCODED, PLAN, 8, seed=0)[0].src.ids.any()


@pytest.mark.parametrize(
    ("tokens", "row_length", "fill", "multiple", "rows"),
    [
        (25_000, 256, 1.0, 8, 96),  # 97.7 rows
        (25_000, 256, 0.9, 8, 112),  # 108.5 rows, 13.6 multiples
        (25_000, 128, 0.99, 1, 197),
        (10, 256, 1.0, 8, 8),
        (4_096, 64, 0.5, 32, 128),
    ],
)
def test_rows_of_a_batch_are_the_nearest_multiple(tokens, row_length, fill, multiple, rows):
    assert rows_per_batch(tokens, row_length, fill, multiple) == rows


# Translation -----------------------------------------------------------------------------------


def test_a_row_ends_at_the_model_s_longest_unless_its_sentence_is_longer():
    """With learned positions, rounding up must not ask for a position that does not exist."""
    assert row_length(64, 50, longest=60) == 60
    assert row_length(64, 62, longest=60) == 62  # the model reports it
    assert row_length(64, 50, longest=70) == row_length(64, 50, longest=None) == 64


def test_buckets_are_few_and_end_at_the_longest():
    assert bucket_lengths(512) == (16, 32, 64, 128, 256, 512)
    assert bucket_lengths(100) == bucket_lengths(100, longest=100) == (16, 32, 64, 100)
    assert (bucket_lengths(16), bucket_lengths(10)) == ((16,), (10,))
    assert bucket_lengths(100, longest=401) == (16, 32, 64, 100, 200, 400, 800)


@pytest.mark.parametrize(
    ("length", "multiple", "rows"),
    [
        (16, 1, (256, 32, 4)),
        (64, 1, (64, 8, 1)),
        (100, 1, (40, 5, 1)),
        (512, 1, (8, 1)),
        (8_192, 1, (1,)),
        (16, 8, (256, 32, 8)),
        (500, 8, (8,)),
        (8_192, 4, (4,)),
    ],
)
def test_rows_of_a_bucket_fill_4096_tokens_or_an_eighth(length, multiple, rows):
    assert bucket_rows(length, 4_096, multiple) == rows


@pytest.mark.parametrize(
    ("sentences", "rows"), [(1, 1), (2, 8), (8, 8), (9, 64), (64, 64), (65, 64), (1_000, 64)]
)
def test_a_bucket_takes_the_fewest_rows_that_hold_it_at_once(sentences, rows):
    (bucket,) = translation_buckets(np.full(sentences, 40), 4_096, 512)
    assert (bucket.rows, bucket.length, len(bucket.indices)) == (rows, 64, sentences)


@given(st.lists(st.integers(0, 50), max_size=60), st.sampled_from([1, 4]))
def test_every_sentence_is_in_one_bucket_that_holds_it(lengths, multiple):
    found: Counter = Counter()
    buckets = list(translation_buckets(np.array(lengths, np.int64), 64, 20, multiple))
    for length, rows, indices in buckets:
        assert rows in bucket_rows(length, 64, multiple) and rows % multiple == 0
        assert len(indices) and max(lengths[i] for i in indices) <= length
        found.update(indices.tolist())
    assert found == Counter(range(len(lengths)))
    order = [lengths[index] for *_, indices in buckets for index in indices]
    assert order == sorted(order, reverse=True)
    used = [length for length, _, _ in buckets]
    assert set(used) <= {16, 20, 40, 80} and used == sorted(set(used), reverse=True)


def test_sentences_are_padded_on_the_right_and_rows_below():
    ids, real = padded_sentences([[5, 6, 1], np.array([7, 1])], 4, 3)
    assert ids.tolist() == [[5, 6, 1], [7, 1, 0], [0, 0, 0], [0, 0, 0]]
    assert real.tolist() == [3, 2, 0, 0]
    assert ids.dtype == real.dtype == np.int32
