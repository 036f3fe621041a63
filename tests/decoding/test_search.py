"""Beam search against obvious ones, and what must never change its result."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.decoding import reference_search as reference
from tests.decoding.toy_decoders import (
    AFTER_BOS,
    BATCH,
    BUCKETS,
    SIZE,
    VOCABULARY,
    HashModel,
    assert_same_hypotheses,
    beam_search,
    checked,
    coverage,
    rows,
    run,
)
from tests.fixtures.cases import first_quick
from transformer_jax.decoding.penalties import PENALTIES
from transformer_jax.decoding.state import top_k
from transformer_jax.model.interfaces import Cache, Stepped
from transformer_jax.text.vocabulary import BOS, EOS

LIMITS = np.array([9, 7, 9, 0, 2])
BEAMS = pytest.mark.parametrize("beam", [1, 4])


@pytest.mark.parametrize(
    ("beam", "n_best", "penalty", "size"),
    [(1, 1, "gnmt", SIZE), (4, 3, "gnmt", SIZE), (4, 3, "power", SIZE + 4), (7, 7, "gnmt", SIZE)],
)
def test_equals_a_plain_search_without_cache_over_many_models(beam, n_best, penalty, size):
    settings = {"beam": beam, "n_best": n_best, "penalty": penalty, "size": size}
    for seed, alpha in enumerate([0.6, 0.0, -0.7, 1.3, 5.0, -4.0] * 2):
        limits = np.random.default_rng(100 + seed).integers(0, SIZE + 1, BATCH)
        checked(HashModel(seed), limits, alpha, **settings)


@pytest.mark.parametrize(
    ("groups", "beam", "n_best", "banned"),
    [(2, 4, 4, ()), (3, 3, 3, ()), (2, 6, 2, ()), (2, 4, 4, (0, 2))],
)
def test_groups_equal_a_plain_diverse_search(groups, beam, n_best, banned):
    """Vijayakumar et al. 2018; without diversity every group is the same search."""
    settings = {"groups": groups, "beam": beam, "n_best": n_best, "banned": banned}
    for seed, diversity in enumerate([0.0, 0.3, 1.0, 5.0] * 2):
        checked(HashModel(seed), LIMITS, diversity=diversity, **settings)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_vocabulary_wide_enough_for_chunks_changes_nothing(beam):
    for seed in range(4):
        model = HashModel(seed, batch=2, vocabulary=600, padded=640, eos_logit=3.0)
        checked(model, [5, 3], beam=beam, n_best=beam)


@pytest.mark.parametrize("beta", [None, 0.8])
@pytest.mark.parametrize("alpha", [0.6, 0.0, -1.0])
def test_a_beam_wide_enough_finds_every_hypothesis_in_order(alpha, beta):
    """4 subwords, at most 4 long: 1 + 3 + 9 + 27 hypotheses, never more than 4^3 candidates."""
    model = HashModel(7, batch=2, vocabulary=4)
    settings = {"beam": 64, "n_best": 41, "size": 4, **coverage(model, beta)}
    result = run(model, np.array([4, 4]), alpha, **settings)
    for sentence in (0, 1):
        want = []
        every = reference.every_hypothesis(model.next_logits, sentence, limit=4)
        for ids, log_prob in every.items():
            score = log_prob / reference.gnmt(len(ids), alpha)
            score += (beta or 0.0) * model.penalty(sentence, list(ids))
            want.append(reference.Hypothesis(list(ids), log_prob, score))
        assert len(want) == 40
        assert_same_hypotheses(result, sentence, sorted(want, key=lambda one: -one.score))


@BEAMS
@pytest.mark.parametrize(
    "excluded",
    first_quick(
        [
            {"banned": (0, 2, 3)},
            {"no_repeat": 3, "min_length": 6},
            {"no_repeat": 1},
            {"no_repeat": 2},
            {"banned": (0, 2)},
            {"min_length": 3},
        ],
        3,
    ),
    ids=str,
)
def test_what_is_excluded_is_never_found_and_keeps_its_probability(beam, excluded):
    settings = {"beam": beam, "n_best": min(beam, 3)}
    changed = 0
    for seed in range(6):
        model = HashModel(seed, eos_logit=0.5)
        model.logits[..., 4] += 1.5  # which likes to repeat itself
        if seed == 5:  # almost certain: nothing overflows
            model.logits[..., 0] += 200
        result = checked(model, LIMITS, **settings, **excluded)
        free = run(model, LIMITS, **settings)
        changed += not np.array_equal(free.ids, result.ids)
    assert changed > 1, "the free search finds them"


def humped(lengths, alpha):
    """Largest at 4 subwords: neither rises nor falls with the length."""
    return 3.0 + alpha - 0.3 * abs(lengths - 4.0)


@pytest.mark.parametrize(
    ("penalty", "betas"),
    [("gnmt", [None]), ("humped", [None]), ("gnmt", [0.0, 0.2, 2.0])],
    ids=["gnmt", "humped", "coverage"],
)
def test_early_stopping_saves_as_many_steps_as_the_plain_search_s(penalty, betas, monkeypatch):
    monkeypatch.setitem(PENALTIES, "humped", humped)
    monkeypatch.setitem(reference.PENALTIES, "humped", humped)
    settings = {"beam": 4, "n_best": 3, "penalty": penalty}
    models = [HashModel(seed, eos_logit=1.5) for seed in range(8)]
    cases = list(itertools.product(models, [0.6, 0.0, -1.0, 3.0], betas))
    early = [checked(model, LIMITS, alpha, beta, **settings) for model, alpha, beta in cases]
    assert np.mean([got.steps < 9 for got in early]) > 0.5


@BEAMS
@pytest.mark.parametrize("limits", [[0, 1, 3, 9, 50], [0] * BATCH], ids=["any", "none"])
def test_limits_are_each_sentences_own_and_end_with_the_models_own_eos(beam, limits):
    """EOS is unlikely, so every hypothesis runs into its limit; SIZE is the largest there is."""
    model = HashModel(1, eos_logit=-40.0)
    result = checked(model, limits, beam=beam, n_best=min(beam, 3))
    np.testing.assert_array_equal(result.lengths[:, 0], np.minimum(limits, SIZE))


@pytest.mark.parametrize("alpha", [1000.0, -1000.0])
def test_an_absurd_alpha_still_finds_hypotheses(alpha):
    model = HashModel(5)
    limits = np.full(BATCH, SIZE)
    # The first sentence is certain: "4 EOS", log probability 0 over a penalty of 0 or infinity.
    model.logits[0, ..., EOS] += 200
    model.logits[0, 0, AFTER_BOS, 4] += 1000
    result = run(model, limits, alpha, beam=4, n_best=3)
    assert (result.lengths > 0).all()
    assert np.isfinite(result.scores).all() and np.isfinite(result.log_probs).all()
    assert rows(result, 0)[0] == ([4, EOS], 0.0, 0.0)


@BEAMS
def test_equal_candidates_go_to_the_better_place_then_to_the_lower_id(beam):
    model = HashModel(0)
    model.logits[..., :VOCABULARY] = 0.0
    # Zeros of either sign are equal, and EOS is a little less likely than those below it.
    model.logits[..., 3:VOCABULARY:2] = -0.0
    model.logits[..., EOS] = -0.25
    result = checked(model, [1, 2, 3, 4, 5], beam=beam, n_best=min(beam, 3))
    assert result.ids[4, 0].tolist() == [0, 0, 0, 0, EOS, 0, 0, 0, 0]


def test_what_could_only_equal_the_last_of_the_pool_is_not_pursued():
    model = HashModel(0)
    model.logits[..., :VOCABULARY] = 0.0
    result = checked(model, [9] * BATCH, 0.0, beam=4, n_best=1)
    assert result.steps == 1 and (result.lengths == 1).all()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@BEAMS
def test_bad_logits_end_their_hypotheses_and_harm_no_other_sentence(beam, bad):
    limits = np.full(BATCH, SIZE)
    clean = HashModel(6)
    want = run(clean, limits, beam=beam, n_best=min(beam, 3))
    broken = HashModel(6)
    broken.logits[2, :, :, 4] = bad  # always
    got = run(broken, limits, beam=beam, n_best=min(beam, 3))
    assert rows(got, 2) == []
    for sentence in [0, 1, 3, 4]:
        assert rows(got, sentence) == rows(want, sentence)


def test_only_the_hypothesis_with_nan_is_dropped():
    model = HashModel(8, batch=1)
    ids = rows(run(model, np.array([9]), beam=4, n_best=3), 0)[0][0]
    model.logits[0, 0, (AFTER_BOS * 31 + ids[0] + 1) % BUCKETS] = np.nan
    left = rows(run(model, np.array([9]), beam=4, n_best=3), 0)
    assert left and all(ids[0] != found[0] for found, _, _ in left)


@pytest.mark.parametrize("beam", [1, 3])
def test_log_probs_of_bfloat16_logits_are_summed_in_float32(beam):
    """Against the softmax, in float64, of the very logits that the decoder gave."""
    wide, limit = 1_000, 4
    table = np.random.default_rng(2).normal(0, 2.0, (wide, wide))
    table_VV = jnp.asarray(table, jnp.bfloat16)  # logits by the newest subword

    def search_all(limits):
        return beam_search(
            lambda now, _, cache: Stepped(table_VV[now.ids_BK], cache, None),
            (),
            Cache((), ()),
            limits,
            beam_size=beam,
            size=limit,
            alpha=0.0,
            n_best=beam,
        )[0]

    found = jax.device_get(jax.jit(search_all)(jnp.array([limit, 1])))
    assert found.log_probs.dtype == found.scores.dtype == np.float32
    exact = np.asarray(table_VV, np.float64)
    log_probs = exact - np.log(np.exp(exact).sum(-1, keepdims=True))
    for sentence in (0, 1):
        hypotheses = rows(found, sentence)
        assert len(hypotheses) == (1 if sentence else beam)
        for ids, log_prob, score in hypotheses:
            forced = log_probs[[BOS, *ids[:-1]], ids].sum()
            assert log_prob == score == pytest.approx(forced, abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_best": 5}, r"n_best=5 is not in 1 \.\. beam_size=4"),
        ({"n_best": 0}, r"n_best=0 is not in 1"),
        ({"size": 0}, r"size=0 leaves no room"),
        ({"penalty": "gmnt"}, r"penalty='gmnt' is unknown; there are gnmt"),
        (
            {"cache_rows": 3},
            r"cache\.carried\['code'\] has shape \[3, 4\]; expected \[batch=5, \.\.\.\]",
        ),
        ({"memory_rows": 1}, r"memory\[0\] has shape \[1, 6\]; expected \[batch=5, \.\.\.\]"),
        ({"counted": jnp.ones((BATCH, 3), bool)}, "penalty needs the decoder's watched weights"),
    ],
)
def test_errors_name_the_argument_and_what_is_allowed(change, message):
    arguments = {"beam_size": 4, "size": SIZE, "alpha": 0.6} | change
    cache = HashModel.cache(arguments.pop("cache_rows", BATCH), 4, SIZE)
    cache = cache._replace(written=())
    unwatched = Stepped(jnp.zeros((BATCH, 4, VOCABULARY)), cache, None)
    memory = (np.zeros((arguments.pop("memory_rows", BATCH), 6)),)
    with pytest.raises(ValueError, match=message):
        beam_search(lambda *_: unwatched, memory, cache, np.full(BATCH, SIZE), **arguments)


# The coverage penalty ----------------------------------------------------------------------------


def test_search_stays_finite_where_source_words_are_never_attended():
    """Each costs the logarithm of a millionth."""
    model = HashModel(2)
    beta = 0.3
    model.weights[:] = [0.0, 1.0, 0.0, 0.0]
    counted = np.array([[True, True, False, False]] * 3 + [[True, True, True, False]] * 2)
    settings = {"beta": beta, "counted": counted, "beam": 4, "n_best": 3}
    found = run(model, np.full(BATCH, SIZE), **settings)
    missed = np.array([1, 1, 1, 2, 2])[:, None]
    plain = found.log_probs / ((5 + found.lengths) / 6) ** 0.6
    np.testing.assert_allclose(found.scores, plain + beta * missed * np.log(1e-6), rtol=1e-5)


# The best entries of a row, chunk by chunk, against a stable sort --------------------------------


@pytest.mark.parametrize("k", [1, 2, 4, 8])
@pytest.mark.parametrize("width", [8, 127, 256, 1000, 1024, 2113])
def test_top_k_is_exact_and_gives_equals_in_order(width, k):
    random = np.random.default_rng(width + k)
    x = random.normal(size=(40, 3, width)).astype(np.float32)
    x[10:20] = random.integers(-3, 3, (10, 3, width))  # mostly equals
    x[20:30] = random.choice([0.0, -0.0, -1.0], (10, 3, width), p=[0.01, 0.01, 0.98])
    x[30:40] = np.where(random.random((10, 3, width)) < 2 / width, -2.0, -np.inf)
    values, index = jax.jit(top_k, static_argnums=1)(x, k)
    want = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    np.testing.assert_array_equal(index, want)
    np.testing.assert_array_equal(values, np.take_along_axis(x, want, -1))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_no_row_is_sorted_even_if_the_caller_cuts_the_result(k):
    def cut(x):
        values, index = top_k(x, k)
        return values[..., :1], values, index

    compiled = jax.jit(cut).lower(jax.ShapeDtypeStruct((4, 3, 8000), jnp.float32)).compile()
    widths = re.findall(r"\[[\d,]*?(\d+)\]\S* sort\(", compiled.as_text())
    assert {*widths} == ({str(k)} if k > 1 else set())  # only the numbers of the chunks
