"""Samples against exact probabilities, what must never change them, and the choice among them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from tests.decoding import reference_search as reference
from tests.decoding.reference_search import repeats
from tests.decoding.toy_decoders import BATCH, PADDED, SIZE, Found, HashModel, rows, run
from transformer_jax.decoding.exclusions import Exclusions
from transformer_jax.decoding.generators import UTILITIES, expected_utilities
from transformer_jax.decoding.penalties import empty_coverage
from transformer_jax.decoding.sampling import (
    Sampling,
    draw,
    kept_logits,
    nucleus_threshold,
    sentence_seed,
)
from transformer_jax.decoding.search import make_rules
from transformer_jax.decoding.state import empty_search, is_live, start_sentences
from transformer_jax.text.vocabulary import EOS

KEYS = np.arange(10, 10 + BATCH, dtype=np.uint32)


@functools.partial(jax.jit, static_argnames=("samples", "size", "top_k", "exclusions"))
def _sampled(table, limits, keys, temperature, top_p, counted, *, samples, size, top_k, exclusions):
    batch = len(limits)
    rules = make_rules(size, 0.6, beta=0.3)._replace(exclusions=exclusions)
    sampling = Sampling(temperature, top_k, top_p, rules)
    cache = HashModel.cache(batch, samples, size)
    sizes = {"beam_size": samples, "n_best": samples, "size": size}
    state = empty_search(table, cache, batch, **sizes)
    state = state._replace(sample_seed_B=jnp.zeros(batch, jnp.uint32))
    if counted is not None:
        state = state._replace(coverage=empty_coverage(samples, counted))
    state = start_sentences(state, jnp.arange(batch), limits, counted, keys)
    state = jax.lax.while_loop(
        lambda state: is_live(state).any(), functools.partial(draw, HashModel.step, sampling), state
    )
    return Found(*state.pool, state.steps)


def sampled(model, limits, keys=KEYS, temperature=1.0, top_p=None, counted=None, **asked):
    asked = {"size": SIZE, "top_k": None, "exclusions": Exclusions(), **asked}
    arrays = np.asarray(limits), np.asarray(keys, np.uint32), temperature, top_p, counted
    return jax.device_get(_sampled(model.table, *arrays, **asked))


def test_samples_have_the_probabilities_of_every_hypothesis():
    model = HashModel(3, batch=1, vocabulary=4)
    found = rows(sampled(model, [3], [7], samples=20_000, size=3), 0)
    every = reference.every_hypothesis(model.next_logits, 0, limit=3)
    # At the limit only EOS may follow, so the sequences that reach it share its probability.
    exact: dict[tuple[int, ...], float] = {}
    for ids, log_prob in every.items():
        last = reference.log_softmax(model.next_logits(0, list(ids[:-1])))[EOS]
        exact[ids] = np.exp(log_prob - (last if len(ids) == 3 else 0.0))
    assert sum(exact.values()) == pytest.approx(1.0)
    counts = dict.fromkeys(exact, 0)
    for ids, log_prob, _ in found:
        counts[tuple(ids)] += 1
        assert log_prob == pytest.approx(every[tuple(ids)], rel=1e-5)
    often = [ids for ids, p in exact.items() if p * len(found) >= 5]
    expected = np.array([exact[ids] * len(found) for ids in often])
    squares = (np.array([counts[ids] for ids in often]) - expected) ** 2 / expected
    assert len(often) >= 10
    assert squares.sum() < 2.2 * len(often)  # chi-square; far above its 99.9th percentile


@pytest.mark.parametrize("temperature", [0.5, 2.0])
def test_a_temperature_divides_the_logits(temperature):
    model = HashModel(5, batch=1, vocabulary=6)
    found = sampled(model, [2], [1], temperature, samples=20_000, size=2)
    probs = np.exp(reference.log_softmax(model.next_logits(0, []) / temperature))
    shares = np.bincount(found.ids[0, :, 0], minlength=6) / 20_000
    np.testing.assert_allclose(shares, probs, atol=4 * 0.5 / np.sqrt(20_000))


def test_temperature_0_is_greedy_search():
    model = HashModel(1)
    limits = np.array([SIZE, 4, 1, 0, 6])
    greedy = run(model, limits, beam=1, n_best=1)
    found = sampled(model, limits, temperature=0.0, samples=3)
    for n in range(3):
        np.testing.assert_array_equal(found.ids[:, n], greedy.ids[:, 0])
        np.testing.assert_allclose(found.scores[:, n], greedy.scores[:, 0], rtol=2e-6)
    assert found.steps == greedy.steps


def test_one_subword_to_draw_from_is_greedy_search_at_any_temperature():
    model = HashModel(2)
    limits = np.full(BATCH, SIZE)
    for banned in ((), (0, 4)):  # the likeliest of the others
        greedy = run(model, limits, beam=1, n_best=1, banned=banned)
        for settings in ({"top_k": 1}, {"top_p": 1e-6}):
            settings |= {"samples": 1, "exclusions": Exclusions(banned)}
            found = sampled(model, limits, temperature=0.7, **settings)
            np.testing.assert_array_equal(found.ids, greedy.ids)


def test_log_probabilities_and_scores_are_those_of_forced_decoding():
    model = HashModel(4)
    limits = np.array([SIZE, 4, 1, 0, 6])
    asked = {"temperature": 1.5, "top_p": 0.8, "top_k": 5, "samples": 6}
    for counted in (None, model.counted):
        found = sampled(model, limits, **asked, counted=counted)
        for sentence, limit in enumerate(limits):
            hypotheses = rows(found, sentence)
            assert len(hypotheses) == (6 if limit else 0)
            for ids, log_prob, score in hypotheses:
                assert ids[-1] == EOS and EOS not in ids[:-1] and len(ids) <= limit
                want = reference.forced_log_prob(model.next_logits, sentence, ids)
                assert log_prob == pytest.approx(want, rel=2e-6)
                penalty = 0.0 if counted is None else 0.3 * model.penalty(sentence, ids)
                assert score == pytest.approx(
                    want / reference.gnmt(len(ids), 0.6) + penalty, rel=2e-6
                )


def test_a_sentence_s_samples_depend_on_its_key_alone():
    model = HashModel(8)
    limits = np.array([SIZE, 5, 7, 3, 8])
    found = sampled(model, limits, samples=5)
    fewer = sampled(model, limits, samples=3)
    np.testing.assert_array_equal(found.ids[:, :3], fewer.ids)
    order = np.array([3, 1, 4, 0, 2])
    moved = HashModel(8)
    moved.logits = moved.logits[order]
    again = sampled(moved, limits[order], KEYS[order], samples=5)
    np.testing.assert_array_equal(again.ids, found.ids[order])
    other = sampled(model, limits, KEYS + 1, samples=5)
    assert (other.ids != found.ids).any(axis=(1, 2)).sum() >= 4
    assert len({tuple(ids) for ids in found.ids[0].tolist()}) > 1  # samples differ


def test_excluded_ends_and_repeats_are_never_drawn_and_samples_end_if_nothing_is_left():
    model = HashModel(9, eos_logit=2.0)
    limits = np.full(BATCH, SIZE)
    free = sampled(model, limits, samples=50)
    assert (free.lengths == 1).any()
    found = sampled(model, limits, samples=50, exclusions=Exclusions(min_length=3, no_repeat=2))
    several = [ids for sentence in range(BATCH) for ids, _, _ in rows(found, sentence)]
    assert len(several) == 50 * BATCH and min(map(len, several)) == 4
    assert not any(repeats(ids[:n], 2) for ids in several for n in range(3, len(ids) + 1))
    assert any(repeats(ids[:n], 1) for ids in several for n in range(2, len(ids)))
    left = [i for i in range(PADDED) if i != EOS][:3]
    banned = tuple(i for i in range(PADDED) if i not in (*left, EOS))
    ids = sampled(model, limits, samples=3, exclusions=Exclusions(banned, SIZE, 1)).ids
    assert (np.sort(ids[..., :3]) == left).all() and (ids[..., 3] == EOS).all()


def test_a_nan_drops_the_samples_and_banned_subwords_are_never_drawn():
    model = HashModel(9)
    assert all((sampled(model, [SIZE] * BATCH, samples=50).ids == i).any() for i in (3, 4))
    ids = sampled(model, [SIZE] * BATCH, samples=50, exclusions=Exclusions((3, 4))).ids
    assert not np.isin(ids, (3, 4)).any()
    model.logits[2] = np.nan
    found = sampled(model, [SIZE] * BATCH, samples=2)
    assert [len(rows(found, sentence)) for sentence in range(BATCH)] == [2, 2, 0, 2, 2]


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.75, 0.99])
def test_the_nucleus_is_the_smallest_set_with_that_mass(top_p):
    probs = np.random.default_rng(0).dirichlet(np.full(40, 0.3), 50).astype(np.float32)
    kept = probs >= np.asarray(nucleus_threshold(jnp.asarray(probs), top_p))
    for own, inside in zip(probs, kept, strict=True):
        order = np.argsort(-own)
        count = int(np.searchsorted(np.cumsum(own[order].astype(np.float64)), top_p)) + 1
        np.testing.assert_array_equal(np.sort(order[:count]), np.flatnonzero(inside))


@pytest.mark.parametrize(
    ("probs", "top_p", "least"),
    [([0.5, 0.25, 0.25], 0.5, 0.5), ([0.5, 0.25, 0.25], 1.0, 0.25), ([0.4, *[0.2] * 3], 0.5, 0.2)],
    ids=["a mass of exactly top_p suffices", "all", "equally likely ones stay or go together"],
)
def test_the_least_likely_subword_of_the_nucleus(probs, top_p, least):
    assert nucleus_threshold(jnp.array(probs), top_p)[0] == np.float32(least)


def test_top_k_is_applied_before_the_nucleus_and_after_the_temperature():
    logits = jnp.log(jnp.array([[[0.4, 0.3, 0.2, 0.1, 0.0]]]))

    def kept(temperature, top_k, top_p):
        sampling = Sampling(temperature, top_k, top_p, make_rules(2, 0.0))
        return np.flatnonzero(kept_logits(logits, sampling)[0, 0] > -np.inf).tolist()

    assert kept(1.0, None, 0.6) == [0, 1]
    assert kept(1.0, 2, 0.56) == [0]  # 0.4 / 0.7 of the two that are left
    assert kept(1.0, 2, 0.58) == [0, 1]
    assert kept(0.5, None, 0.52) == [0]  # 0.16 / 0.30
    assert kept(1.0, None, 0.62) == [0, 1] and kept(2.0, None, 0.62) == [0, 1, 2]
    assert kept(0.0, None, 0.9) == [0]
    logits = jnp.array([[[1.0, 2.0, 2.0, 0.0]]])
    assert kept(1.0, 1, None) == [1, 2], "equally likely ones stay together"


def test_seeds_of_sentences_depend_on_subwords_and_seed():
    ids = np.array([5, 6, EOS], np.int32)
    seed = sentence_seed(ids, 0)
    assert 0 <= seed < 2**32
    assert seed == sentence_seed(ids.astype(np.int64), 0)
    others = sentence_seed(ids, 1), sentence_seed(ids[1:], 0), sentence_seed(ids[::-1], 0)
    assert len({seed, *others}) == 4


# Minimum Bayes risk against a double loop --------------------------------------------------------

SAMPLES = [
    "ein Hund läuft .",
    "ein Hund rennt durch den Park .",
    "der Hund läuft .",
    "ein Hund läuft .",
    "",
    "eine Katze schläft .",
]


@pytest.mark.parametrize(
    ("name", "metric"), [("chrf", CHRF()), ("bleu", BLEU(effective_order=True))]
)
def test_expected_utilities_are_those_of_a_double_loop(name, metric):
    found = expected_utilities(SAMPLES, UTILITIES[name]("13a"))
    assert set(found) == set(SAMPLES) and len(found) == 5
    for text in set(SAMPLES):
        scores = [metric.sentence_score(text, [other]).score for other in SAMPLES]
        assert found[text] == pytest.approx(sum(scores) / len(scores))
    assert list(found.values()) == sorted(found.values(), reverse=True)
    assert next(iter(found)) == "ein Hund läuft ."


def test_a_utility_takes_the_translation_first_and_equal_samples_keep_their_order():
    found = expected_utilities(["a", "a", "bb"], lambda text, reference: len(text) - len(reference))
    assert found == {"bb": pytest.approx(2 / 3), "a": pytest.approx(-1 / 3)}
    assert list(found) == ["bb", "a"]
    assert list(expected_utilities(["b", "a", "c"], lambda *_: 1.0)) == ["b", "a", "c"]
