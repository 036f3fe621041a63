"""Beam search against obvious ones, and what must never change its result."""

import functools

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
    Found,
    HashModel,
    RecurrentModel,
    assert_equals_reference,
    assert_same_hypotheses,
    assert_same_result,
    compiled,
    find,
    never_stop_early,
    rows,
    run,
)
from transformer_jax.decoding import search
from transformer_jax.decoding.penalties import PENALTIES, gnmt_penalty
from transformer_jax.decoding.search import advance, beam_search, make_rules
from transformer_jax.decoding.state import empty_search, is_live, start_sentences
from transformer_jax.model.interfaces import Cache, Stepped
from transformer_jax.text.vocabulary import BOS, EOS, PAD

NO_CACHE = Cache((), ())


@pytest.mark.parametrize(("beam", "n_best"), [(1, 1), (4, 3), (7, 7)])
@pytest.mark.parametrize("model_class", [HashModel, RecurrentModel])
def test_equals_a_plain_search_without_cache_over_many_models(model_class, beam, n_best):
    alphas = [0.6, 0.0, -0.7, 1.3, 5.0, -4.0]
    for seed, alpha in enumerate(alphas * 2):
        model = model_class(seed)
        limits = np.random.default_rng(100 + seed).integers(0, SIZE + 1, BATCH)
        result = run(model_class, model.table, limits, alpha, beam=beam, n_best=n_best)
        assert_equals_reference(model, limits, alpha, result, beam=beam, n_best=n_best)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_vocabulary_wide_enough_for_chunks_changes_nothing(beam):
    limits = np.array([5, 3])
    for seed in range(4):
        model = HashModel(seed, batch=2, vocabulary=600, padded=640, eos_logit=3.0)
        result = run(HashModel, model.table, limits, 0.6, beam=beam, n_best=min(beam, 3))
        assert_equals_reference(model, limits, 0.6, result, beam=beam, n_best=min(beam, 3))


@pytest.mark.parametrize("alpha", [0.6, 0.0, -1.0])
def test_a_beam_wide_enough_finds_every_hypothesis_in_order(alpha):
    # 4 subwords, at most 4 long: 1 + 3 + 9 + 27 = 40 hypotheses, never more than 4^3 candidates.
    model = HashModel(7, batch=1, vocabulary=4)
    result = run(HashModel, model.table, np.array([4]), alpha, beam=64, n_best=41, size=4)
    every = reference.every_hypothesis(model.next_logits, 0, limit=4)
    want = [
        reference.Hypothesis(list(ids), log_prob, log_prob / reference.gnmt(len(ids), alpha))
        for ids, log_prob in every.items()
    ]
    assert len(want) == 40
    assert_same_hypotheses(result, 0, sorted(want, key=lambda hypothesis: -hypothesis.score))
    assert result.lengths[0, 40] == 0 and result.scores[0, 40] == -np.inf


@pytest.mark.parametrize("model_class", [HashModel, RecurrentModel])
def test_beam_1_is_greedy_search(model_class):
    limits = np.array([9, 1, 4, 0, 8])
    for seed in range(20, 30):
        model = model_class(seed)
        result = run(model_class, model.table, limits, 0.6, beam=1, n_best=1)
        for sentence, limit in enumerate(limits):
            want = reference.greedy(model.next_logits, sentence, limit)
            assert [ids for ids, _, _ in rows(result, sentence)] == ([want] if want else [])


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("banned", [(0, 2), (0, 2, 3)])
def test_banned_subwords_are_never_found_and_keep_their_probability(beam, banned):
    settings = {"beam": beam, "n_best": min(beam, 3), "banned": banned}
    limits = np.array([9, 7, 9, 0, 5])
    changed = 0
    for seed in range(6):
        model = HashModel(seed)
        if seed == 5:  # almost certain: nothing overflows
            model.table[..., banned[0]] += 200
        result = run(HashModel, model.table, limits, 0.6, **settings)
        assert_equals_reference(model, limits, 0.6, result, **settings)
        found = [ids for sentence in range(BATCH) for ids, _, _ in rows(result, sentence)]
        assert not set(banned) & {i for ids in found for i in ids}
        free = run(HashModel, model.table, limits, 0.6, **settings | {"banned": ()})
        changed += not np.array_equal(free.ids, result.ids)
    assert changed > 2, "the free search finds them"


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize(
    "excluded",
    [{"min_length": 3}, {"no_repeat": 1}, {"no_repeat": 2}, {"no_repeat": 3, "min_length": 6}],
)
def test_early_ends_and_repeated_sequences_are_excluded(beam, excluded):
    settings = {"beam": beam, "n_best": min(beam, 3)}
    limits = np.array([9, 7, 9, 0, 2])
    changed = 0
    for seed in range(6):
        model = HashModel(seed, eos_logit=0.5)
        model.table = model.table.copy()
        model.table[..., 4] += 1.5  # which likes to repeat itself
        result = run(HashModel, model.table, limits, 0.6, **settings, **excluded)
        assert_equals_reference(model, limits, 0.6, result, **settings, **excluded)
        free = run(HashModel, model.table, limits, 0.6, **settings)
        changed += not np.array_equal(free.ids, result.ids)
    assert changed > 2, "the free search finds them"


def test_a_power_of_the_length_as_penalty():
    limits = np.array([9, 7, 9, 0, 5])
    settings = {"beam": 4, "n_best": 3, "penalty": "power"}
    for seed, alpha in enumerate([0.6, 0.0, 1.0, 2.5]):
        model = HashModel(seed, eos_logit=1.5)
        result = run(HashModel, model.table, limits, alpha, **settings)
        assert_equals_reference(
            model, limits, alpha, result, beam=4, n_best=3, penalty=reference.power
        )


def humped(lengths, alpha):
    """Largest at 4 subwords: neither rises nor falls with the length."""
    return 3.0 + alpha - 0.3 * abs(lengths - 4.0)


@pytest.mark.parametrize("penalty", ["gnmt", "humped"])
def test_early_stopping_saves_steps_and_changes_nothing(penalty, monkeypatch):
    monkeypatch.setitem(PENALTIES, "humped", humped)
    limits = np.array([9, 7, 9, 0, 5])
    settings = {"beam": 4, "n_best": 3, "penalty": penalty}
    cases = [(seed, alpha) for seed in range(8) for alpha in [0.6, 0.0, -1.0, 3.0]]
    models = {seed: HashModel(seed, eos_logit=1.5) for seed in range(8)}
    early = [run(HashModel, models[seed].table, limits, alpha, **settings) for seed, alpha in cases]
    monkeypatch.setattr(search, "_may_still_enter", never_stop_early)
    patient = compiled(functools.partial(find))  # traced anew
    full = [
        patient(HashModel, models[seed].table, limits, alpha, **settings) for seed, alpha in cases
    ]
    for (seed, alpha), got, want in zip(cases, early, full, strict=True):
        assert_same_result(got, want)
        of_length = humped if penalty == "humped" else reference.gnmt
        assert_equals_reference(
            models[seed], limits, alpha, got, beam=4, n_best=3, penalty=of_length
        )
    assert all(want.steps == 9 for want in full)
    assert np.mean([got.steps < 9 for got in early]) > 0.5


def test_a_sentence_does_not_depend_on_its_batch():
    model = RecurrentModel(3)
    limits = np.array([9, 6, 2, 8, 5])
    search_rows = functools.partial(run, RecurrentModel, beam=4, n_best=3)
    together = search_rows(model.table, limits, 0.6)

    def take(result, order):
        return Found(*(x[np.array(order)] for x in result[:4]), result.steps)

    def batch_of(order):
        return {**model.table, "sentence": model.table["sentence"][np.array(order)]}

    for order in [[0], [1], [2], [3], [4], [3, 1, 4, 0, 2]]:
        alone = search_rows(batch_of(order), limits[order], 0.6)
        assert_same_result(alone, take(together, order))
    # Empty rows between, and larger arrays.
    order = [2, 0, 0, 4, 1, 3]
    gaps = np.array([1, 0, 1, 1, 1, 1])
    padded = search_rows(batch_of(order), limits[order] * gaps, 0.6, size=SIZE + 4)
    want = take(together, order)
    real = np.flatnonzero(gaps)
    np.testing.assert_array_equal(padded.ids[real, :, :SIZE], want.ids[real])
    assert not padded.ids[..., SIZE:].any()
    np.testing.assert_array_equal(padded.lengths[real], want.lengths[real])
    np.testing.assert_allclose(padded.scores[real], want.scores[real], rtol=1e-6)
    assert padded.steps == together.steps
    assert rows(padded, 1) == []


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("model_class", [HashModel, RecurrentModel])
def test_a_sentence_may_enter_any_row_while_others_go_on(model_class, beam):
    """Five sentences through two rows; what was written for the one before stays in the cache."""
    model = model_class(3)
    limits = np.array([9, 6, 2, 8, 5])
    n_best = min(beam, 3)
    together = run(model_class, model.table, limits, 0.6, beam=beam, n_best=n_best)
    rules = make_rules(SIZE, 0.6)
    rows_of = np.array([0, 1])

    def of_sentences(rows):  # the memory of the sentences that are in the rows now
        return jax.tree.map(lambda x: jnp.asarray(x[rows]), model_class.memory(model.table))

    def cleared(carried, row):
        return jax.tree.map(lambda x: x.at[row].set(0), carried)

    step = jax.jit(
        lambda table, state: advance(functools.partial(model_class.step, table), rules, state)
    )
    settings = {"beam_size": beam, "size": SIZE, "n_best": n_best}
    state = empty_search(of_sentences(rows_of), model_class.cache(2, beam, SIZE), 2, **settings)
    state = start_sentences(state, jnp.array([0, 1, 2, -1]), jnp.array([*limits[:2], 7, 7]))
    waiting = [2, 3, 4]
    found = {}
    while (live := np.asarray(is_live(state))).any():
        for row in np.flatnonzero(~live):
            found[rows_of[row]] = jax.tree.map(lambda x, row=row: np.asarray(x[row]), state.pool)
            if waiting:
                rows_of[row] = waiting.pop(0)
                cache = state.cache._replace(carried=cleared(state.cache.carried, row))
                state = state._replace(cache=cache, memory=of_sentences(rows_of))
                state = start_sentences(state, jnp.array([row]), limits[rows_of[[row]]])
        state = step(model.table, state)
    for row in range(2):
        found[rows_of[row]] = jax.tree.map(lambda x, row=row: np.asarray(x[row]), state.pool)
    assert sorted(found) == [0, 1, 2, 3, 4]
    for sentence, pool in found.items():
        want = jax.tree.map(lambda x, sentence=sentence: x[sentence], together[:4])
        assert_same_result(Found(*pool, 0), Found(*want, 0))


@pytest.mark.parametrize("beam", [1, 4])
def test_limits_are_each_sentences_own_and_end_with_the_models_own_eos(beam):
    # EOS is unlikely, so every hypothesis runs into its limit. A limit above SIZE counts as SIZE.
    model = HashModel(1, eos_logit=-40.0)
    limits = np.array([0, 1, 3, 9, 50])
    n_best = min(beam, 3)
    result = run(HashModel, model.table, limits, 0.6, beam=beam, n_best=n_best)
    for sentence, limit in enumerate([0, 1, 3, 9, 9]):
        found = rows(result, sentence)
        assert len(found) == (0 if limit == 0 else 1 if limit == 1 else n_best)
        for ids, log_prob, score in found:
            assert len(ids) == limit and ids.index(EOS) == limit - 1
            forced = reference.forced_log_prob(model.next_logits, sentence, ids)
            np.testing.assert_allclose(log_prob, forced, rtol=2e-6)
            np.testing.assert_allclose(score, forced / reference.gnmt(limit, 0.6), rtol=2e-6)
    assert result.steps == 9


def test_n_best_are_distinct_descending_and_scored_as_forced():
    model = RecurrentModel(12)
    limits = np.array([9, 8, 7, 6, 5])
    result = run(RecurrentModel, model.table, limits, 1.0, beam=7, n_best=7)
    assert (np.diff(result.scores) <= 0).all()
    for sentence in range(BATCH):
        found = rows(result, sentence)
        assert len({tuple(ids) for ids, _, _ in found}) == 7
        for ids, log_prob, score in found:
            forced = reference.forced_log_prob(model.next_logits, sentence, ids)
            np.testing.assert_allclose(log_prob, forced, rtol=2e-6)
            np.testing.assert_allclose(score, forced / ((5 + len(ids)) / 6), rtol=2e-6)


def test_rows_without_a_limit_cost_no_step():
    model = HashModel(0)
    result = run(HashModel, model.table, np.zeros(BATCH, int), 0.6, beam=4, n_best=3)
    assert result.steps == 0
    assert not result.ids.any() and not result.lengths.any()
    assert (result.scores == -np.inf).all() and (result.log_probs == -np.inf).all()


@pytest.mark.parametrize("alpha", [1000.0, -1000.0])
def test_an_absurd_alpha_still_finds_hypotheses(alpha):
    model = HashModel(5)
    limits = np.full(BATCH, SIZE)
    # The first sentence is certain: "4 EOS", log probability 0 over a penalty of 0 or infinity.
    model.table[0, ..., EOS] += 200
    model.table[0, 0, AFTER_BOS, 4] += 1000
    result = run(HashModel, model.table, limits, alpha, beam=4, n_best=3)
    assert (result.lengths > 0).all()
    assert np.isfinite(result.scores).all() and np.isfinite(result.log_probs).all()
    assert rows(result, 0)[0] == ([4, EOS], 0.0, 0.0)


def test_gnmt_penalty_by_hand():
    # ((5 + 7) / 6)^0.6 = 2^0.6; one subword costs nothing, whatever alpha.
    got = gnmt_penalty(jnp.array([1, 7, 13]), 0.6)
    np.testing.assert_allclose(got, [1.0, 1.5157166, 3.0**0.6], rtol=1e-6)
    np.testing.assert_array_equal(gnmt_penalty(jnp.array([1, 7, 13]), 0.0), [1.0, 1.0, 1.0])


def search_by_hand(steps, *, beam_size, n_best, limit):
    """Search with alpha 0 over {previous subword: {next one: probability}}, one dict a step."""
    probabilities = np.full((limit, 6, 6), 1e-30, np.float32)
    for position, following in enumerate(steps):
        for previous, chances in following.items():
            for i, p in chances.items():
                probabilities[position, previous, i] = p
    table = jnp.log(probabilities)

    @jax.jit
    def find(limits):
        settings = {"beam_size": beam_size, "n_best": n_best, "size": limit, "alpha": 0.0}
        pool, steps = beam_search(
            lambda now, _, cache: Stepped(table[now.position_B[0]][now.ids_BK], cache, None),
            (),
            NO_CACHE,
            limits,
            **settings,
        )
        return Found(*pool, steps)

    return find(jnp.array([limit]))


def test_a_case_by_hand_that_greedy_search_misses():
    # a (0.5) is likelier than b (0.4), but EOS after b (0.9) makes b the better hypothesis (0.36).
    a, b = 4, 5
    second = {a: {EOS: 0.5, a: 0.3, b: 0.2}, b: {EOS: 0.9, a: 0.06, b: 0.04}}
    steps = [{BOS: {a: 0.5, b: 0.4, EOS: 0.1}}, second, second]
    greedy = search_by_hand(steps, beam_size=1, n_best=1, limit=3)
    assert greedy.ids.tolist() == [[[a, EOS, PAD]]]
    np.testing.assert_allclose(greedy.log_probs, [[np.log(0.25)]], rtol=1e-6)
    best = search_by_hand(steps, beam_size=2, n_best=2, limit=3)
    assert best.ids.tolist() == [[[b, EOS, PAD], [a, EOS, PAD]]]
    np.testing.assert_allclose(best.scores, np.log([[0.36, 0.25]]), rtol=1e-6)
    assert best.steps == 2  # 0.15 for "a a" can no longer beat 0.25


def test_what_could_only_equal_the_last_of_the_pool_is_not_pursued():
    steps = [{BOS: {EOS: 0.5, 4: 0.5}}, {4: {EOS: 1.0}}]
    result = search_by_hand(steps, beam_size=2, n_best=1, limit=2)
    assert result.ids.tolist() == [[[EOS, PAD]]]
    assert result.steps == 1


@pytest.mark.parametrize("beam", [1, 4])
def test_equal_candidates_go_to_the_better_place_then_to_the_lower_id(beam):
    model = HashModel(0)
    model.table[..., :VOCABULARY] = 0.0
    # Zeros of either sign are equal, and EOS is a little less likely than those below it.
    model.table[..., 3:VOCABULARY:2] = -0.0
    model.table[..., EOS] = -0.25
    limits = np.array([1, 2, 3, 4, 5])
    result = run(HashModel, model.table, limits, 0.6, beam=beam, n_best=min(beam, 3))
    assert_equals_reference(model, limits, 0.6, result, beam=beam, n_best=min(beam, 3))
    assert result.ids[4, 0].tolist() == [0, 0, 0, 0, EOS, 0, 0, 0, 0]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("beam", [1, 4])
def test_bad_logits_end_their_hypotheses_and_harm_no_other_sentence(beam, bad):
    limits = np.full(BATCH, SIZE)
    clean = HashModel(6)
    want = run(HashModel, clean.table, limits, 0.6, beam=beam, n_best=min(beam, 3))
    broken = HashModel(6)
    broken.table[2, :, :, 4] = bad  # always
    got = run(HashModel, broken.table, limits, 0.6, beam=beam, n_best=min(beam, 3))
    assert rows(got, 2) == []
    for sentence in [0, 1, 3, 4]:
        assert rows(got, sentence) == rows(want, sentence)


def test_only_the_hypothesis_with_nan_is_dropped():
    model = HashModel(8, batch=1)
    ids = rows(run(HashModel, model.table, np.array([9]), 0.6, beam=4, n_best=3), 0)[0][0]
    model.table[0, 0, (AFTER_BOS * 31 + ids[0] + 1) % BUCKETS] = np.nan
    left = rows(run(HashModel, model.table, np.array([9]), 0.6, beam=4, n_best=3), 0)
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
            NO_CACHE,
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


# What hypotheses carry ---------------------------------------------------------------------------


def test_what_a_hypothesis_carries_follows_it_when_the_beam_is_reordered():
    """Logits depend on the whole history through a carried state alone; all hypotheses compared.

    11 subwords, at most 3 long: 1 + 10 + 100 = 111 hypotheses, never more than 11^2 candidates.
    """
    model = RecurrentModel(4)
    limits = np.full(BATCH, 3)
    result = run(RecurrentModel, model.table, limits, 0.6, beam=121, n_best=111, size=3)
    for sentence in range(BATCH):
        every = reference.every_hypothesis(model.next_logits, sentence, limit=3)
        want = [
            reference.Hypothesis(list(ids), log_prob, log_prob / reference.gnmt(len(ids), 0.6))
            for ids, log_prob in every.items()
        ]
        assert len(want) == 111
        best = sorted(want, key=lambda hypothesis: -hypothesis.score)
        assert_same_hypotheses(result, sentence, best)


def test_other_limits_and_alphas_compile_nothing_new():
    table = jnp.asarray(HashModel(0).table)
    traced = []

    def step(now, memory, cache):
        traced.append(now.ids_BK.shape)
        return HashModel.step(None, now, memory, cache)

    @jax.jit
    def find(limits, alpha):
        cache = HashModel.cache(BATCH, 4, SIZE)
        return beam_search(step, table, cache, limits, beam_size=4, size=SIZE, alpha=alpha)

    results = [
        find(np.array(limits), alpha)
        for limits, alpha in [([9, 1, 2, 3, 4], 0.6), ([5, 5, 0, 9, 2], 0.0), ([1] * 5, -1.0)]
    ]
    assert find._cache_size() == 1
    assert set(traced) == {(BATCH, 4)}
    assert results[0][1] > 1 and results[2][1] == 1


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
    ],
)
def test_errors_name_the_argument_and_what_is_allowed(change, message):
    arguments = {"beam_size": 4, "size": SIZE, "alpha": 0.6} | change
    cache = HashModel.cache(arguments.pop("cache_rows", BATCH), 4, SIZE)
    cache = cache._replace(written=())
    memory = (np.zeros((arguments.pop("memory_rows", BATCH), 6)),)
    with pytest.raises(ValueError, match=message):
        beam_search(lambda *_: None, memory, cache, np.full(BATCH, SIZE), **arguments)
