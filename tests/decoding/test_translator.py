"""Translation of encoded sentences, against the whole model without a cache."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.cases import first_quick
from tests.fixtures.tiny import lay_out, model_inputs, random_params, tiny_model
from transformer_jax.config.decode import DecodeConfig
from transformer_jax.config.schema import MeshConfig
from transformer_jax.decoding import scoring
from transformer_jax.decoding.exclusions import Exclusions
from transformer_jax.decoding.scoring import forced_scores
from transformer_jax.decoding.translator import Hypothesis, Translator
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.text.batches import Packed
from transformer_jax.text.vocabulary import EOS

EXTRA = 5
ALPHA = 0.6
LONGEST = 24  # of a source; buckets of 16 and 24
DECODE = DecodeConfig(
    beam_size=3,
    length_penalty=ALPHA,
    max_extra_length=EXTRA,
    max_length=LONGEST,
    tokens_per_batch=48,
)
LEARNED = pytest.param("learned", marks=pytest.mark.slow("compiles searches of another model"))
POSITIONS = pytest.mark.parametrize("positions", ["sinusoidal", LEARNED])


def translator(positions: str = "sinusoidal", n_best: int = 1, **decode: Any) -> Translator:
    return translator_of({"positions": positions}, n_best, **decode)


def translator_of(changes: dict[str, Any], n_best: int = 2, **decode: Any) -> Translator:
    """A translator with a model whose source embedding no other part uses."""
    model = small_model(**changes)
    settings = DecodeConfig(**{**DECODE.__dict__, **decode})
    return Translator(model, params(**changes), settings, make_mesh(MeshConfig()), n_best)


@functools.cache
def params(**changes: Any) -> Any:
    """Parameters whose translations differ, and end at different lengths, some at their limit."""
    return random_params(small_model(**changes), seed=1)


def small_model(**changes: Any) -> EncoderDecoder:
    fixed = {"norm": "pre", "tie_embeddings": False, "max_positions": LONGEST + 2, "num_layers": 1}
    return tiny_model(**fixed, **changes)


def sentences() -> list[np.ndarray]:
    draw = np.random.default_rng(5)
    lengths = [2, 3, 16, 17, 5, 24, 9, 4, 12, 2, 21]
    return [np.append(draw.integers(4, 41, length - 1), EOS) for length in lengths]


@functools.partial(jax.jit, static_argnums=0)
def all_logits(model: Any, params: Any, source: Packed, target: Packed) -> Any:
    """Logits of every next subword, by the whole model: float32 [row, place, V]."""
    return model.apply({"params": params}, source, target)


def inputs(t: Translator, source: np.ndarray, target: np.ndarray) -> tuple[Packed, Packed]:
    """The model's inputs: one padded sentence pair."""
    size = max(LONGEST + EXTRA + 1, len(source), len(target))
    if t.model.config.positions == "learned":
        size = t.model.config.max_positions
    return model_inputs(lay_out([(source, target)], [[0]], size, size))


def logits_of(t: Translator, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Logits at each position of the target, float64 [length, real vocabulary]."""
    logits = all_logits(t.model, t.params, *inputs(t, source, target))[0, : len(target)]
    return np.asarray(logits, np.float64)[:, : t.model.sizes.target]


def forced(t: Translator, source: np.ndarray, target: np.ndarray) -> tuple[float, float]:
    """(score, log probability) that the model gives a target."""
    logits = logits_of(t, source, target)
    log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    total = log_probs[np.arange(len(target)), target].sum()
    return total / ((5 + len(target)) / 6) ** ALPHA, total


def assert_same(got: list[Hypothesis], want: list[Hypothesis]) -> None:
    assert [h.ids.tolist() for h in got] == [h.ids.tolist() for h in want]
    assert [h.score for h in got] == pytest.approx([h.score for h in want], abs=1e-5)


@POSITIONS
def test_a_reported_score_is_what_the_model_gives_when_forced(positions):
    t = translator(positions, n_best=3)
    for source, hypotheses in zip(sentences(), t.translate(sentences()), strict=True):
        assert 1 <= len(hypotheses) <= 3
        scores = [h.score for h in hypotheses]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(h.ids) for h in hypotheses}) == len(hypotheses)
        for ids, score, log_prob in hypotheses:
            assert ids[-1] == EOS and EOS not in ids[:-1]
            assert (score, log_prob) == pytest.approx(forced(t, source, ids), abs=1e-4)


@POSITIONS
def test_a_sentence_alone_or_in_any_batch_and_order_is_translated_the_same(positions):
    t = translator(positions, n_best=2)
    all_sentences = sentences()
    together = t.translate(all_sentences)
    assert len({tuple(best.ids) for best, *_ in together}) > 5, "the test is worth nothing"
    order = np.random.default_rng(1).permutation(len(all_sentences))
    for got, i in zip(t.translate([all_sentences[i] for i in order]), order, strict=True):
        assert_same(got, together[i])
    for sentence, want in zip(all_sentences, together, strict=True):
        assert_same(t.translate([sentence])[0], want)
    assert t.translate([]) == []
    # Another shape of batch, and so another compiled program.
    roomy = translator(positions, n_best=2, max_length=25, tokens_per_batch=100)
    for got, want in zip(roomy.translate(all_sentences), together, strict=True):
        assert_same(got, want)


def test_sentences_that_enter_rows_under_way_are_translated_the_same():
    """Two lanes of 4 rows and of queues of 8: each is called again and again, rows under way."""
    draw = np.random.default_rng(7)
    many = [np.append(draw.integers(4, 41, n), EOS) for n in draw.integers(1, 15, 40)]
    t = translator(tokens_per_batch=2 * 4 * 16)
    translations = t.translate(many)
    assert len({len(best.ids) for (best,) in translations}) > 5, "the test is worth nothing"
    for sentence, want in zip(many[::7], translations[::7], strict=True):
        assert_same(t.translate([sentence])[0], want)


@POSITIONS
def test_beam_1_is_greedy_search_with_the_whole_model(positions):
    t = translator(positions, beam_size=1)
    most = t.model.config.max_positions if positions == "learned" else 1000
    reached = set()
    for source, (best,) in zip(sentences(), t.translate(sentences()), strict=True):
        limit = min(len(source) + EXTRA, most)
        ids: list[int] = []
        while EOS not in ids:
            logits = logits_of(t, source, np.array([*ids, EOS]))[-1]
            ids.append(EOS if len(ids) == limit - 1 else int(logits.argmax()))
        assert best.ids.tolist() == ids
        reached |= {limit} if len(ids) == limit else set()
    assert len(reached) > 1, "some end only at their own limit"


def test_a_long_translation_shows_its_progress(monkeypatch, caplog):
    monkeypatch.setattr("transformer_jax.decoding.translator.SHOWN_EVERY", -1.0)
    many = sentences() * 3
    with caplog.at_level("INFO"):
        translator().translate(many)
    shown = [one for one in caplog.messages if one.startswith("translated ")]
    counts = [int(one.split()[1]) for one in shown]
    assert shown[-1].endswith(f" of {len(many)} lines") and counts == sorted(counts)


def test_the_penalty_and_what_is_excluded_reach_the_search():
    assert translator(min_length=5, no_repeat=1).exclusions == Exclusions((), 5, 1)
    t = translator(penalty="power")
    sources = sentences()
    for source, (best,) in zip(sources, t.translate(sources), strict=True):
        want = forced(t, source, best.ids)[1] / len(best.ids) ** ALPHA
        assert best.score == pytest.approx(want, abs=1e-4)
    found = {i for (best,) in t.translate(sources) for i in best.ids.tolist()} - {EOS}
    banned = tuple(sorted(found)[::2])
    t.exclusions = Exclusions(banned)
    again = t.translate(sources)
    assert not {i for (best,) in again for i in best.ids.tolist()} & set(banned)
    for source, (best,) in zip(sources, again, strict=True):
        assert best.log_prob == pytest.approx(forced(t, source, best.ids)[1], abs=1e-4)


@pytest.mark.slow("compiles searches")
def test_groups_and_their_diversity_reach_the_search():
    """Four groups of one beam: without diversity all are the same greedy search."""

    def found(diversity: float, n_best: int = 4) -> list[list[Hypothesis]]:
        asked = {"beam_size": 4, "groups": 4, "diversity": diversity}
        return translator(n_best=n_best, **asked).translate(sentences())

    for hypotheses in found(0.0):
        assert len({tuple(one.ids) for one in hypotheses}) == 1
    diverse = found(100.0)
    for hypotheses in diverse:
        assert len({one.ids[0] for one in hypotheses}) > 1
        scores = [one.score for one in hypotheses]
        assert scores == sorted(scores, reverse=True), "the best of all groups comes first"
    for hypotheses, (best, *_) in zip(found(100.0, n_best=1), diverse, strict=True):
        assert_same(hypotheses, [best])


# Samples -----------------------------------------------------------------------------------------


@pytest.mark.slow("compiles searches and forced scores")
def test_search_and_forced_decoding_count_the_same_coverage():
    """Sources that fill a row, have one position more or less, or need more than there are."""
    draw = np.random.default_rng(6)
    sources = [np.append(draw.integers(4, 41, n - 1), EOS) for n in (15, 16, 17, 24)]
    t = translator("learned", coverage_penalty=0.5)
    t.params = jax.tree_util.tree_map_with_path(  # few source positions get all the weight
        lambda path, x: 20 * x if path[-1].key == "query" else x, t.params
    )
    found = [best for [best] in t.translate(sources)]
    forced = forced_scores(t, sources, [best.ids for best in found])
    for ours, theirs in zip(forced, found, strict=True):
        assert ours.score == pytest.approx(theirs.score, rel=1e-4)
        assert abs(ours.score - ours.log_prob / ((5 + ours.length) / 6) ** ALPHA) > 0.1


@pytest.mark.slow("compiles searches and forced scores")
def test_a_sentence_alone_or_in_any_batch_has_the_same_samples_and_their_forced_scores(monkeypatch):
    sources = sentences()
    t = translator("sinusoidal", 3, method="sample", temperature=0.5)
    together = t.translate(sources)
    for found, source in zip(together, sources, strict=True):
        assert len(found) == 3
        for one, again in zip(found, t.translate([source])[0], strict=True):
            np.testing.assert_array_equal(one.ids, again.ids)
    forced = forced_scores(t, sources, [found[2].ids for found in together])
    np.testing.assert_allclose(
        [one.score for one in forced], [found[2].score for found in together], rtol=1e-5
    )
    monkeypatch.setattr(scoring, "POSITIONS", 32)  # one or two rows, and more pairs than rows
    again = forced_scores(t, sources, [found[2].ids for found in together])
    np.testing.assert_allclose(again, forced, rtol=1e-5)


@pytest.mark.slow("compiles a search for each setting")
def test_the_settings_of_sampling_reach_it():
    sources = sentences()[:3]

    def ids(n: int = 3, **decode: Any) -> list[list[list[int]]]:
        t = translator("sinusoidal", n, **{"method": "sample", **decode})
        return [[h.ids.tolist() for h in found] for found in t.translate(sources)]

    plain = ids()
    assert ids() == plain
    for changes in ({"seed": 1}, {"temperature": 0.2}, {"top_k": 2}, {"top_p": 0.3}):
        assert ids(**changes) != plain, changes
    assert ids(1, temperature=0.0) == ids(1, method="beam", beam_size=1)
    assert [found[:2] for found in plain] == ids(2)
    mbr = ids(1, method="mbr", samples=5)
    assert [found[:3] for found in mbr] == plain
    assert all(len(found) == 5 for found in mbr)


# Other models ------------------------------------------------------------------------------------

RECURRENT = {"encoder": "recurrent", "decoder": "recurrent"}


@functools.partial(jax.jit, static_argnums=0)
def watched(model: Any, params: Any, source: Packed, target: Packed) -> Any:
    """Weights over the source when each target subword is chosen: [row, place, source place]."""
    variables = {"params": params}
    encoded = model.apply(variables, source, method="encode")
    return model.apply(variables, encoded, source, target, method="decode")[1]


@pytest.mark.slow("compiles searches and forced scores")
@pytest.mark.parametrize("changes", [{"watched_heads": 2}, RECURRENT], ids=str)
def test_a_score_with_coverage_is_what_the_weights_give_when_forced(changes):
    """Rows are reused, and the source's EOS and padding do not count."""
    beta = 0.4
    t = translator_of(changes, coverage_penalty=beta)
    sources = sentences()
    penalties = []
    for source, hypotheses in zip(sources, t.translate(sources), strict=True):
        for ids, score, log_prob in hypotheses:
            weights = np.asarray(watched(t.model, t.params, *inputs(t, source, ids)))
            attention = weights[0, : len(ids), : len(source) - 1].sum(0)
            coverage = np.log(np.clip(attention, 1e-6, 1.0)).sum()
            want, total = forced(t, source, ids)
            assert (score, log_prob) == pytest.approx((want + beta * coverage, total), abs=1e-3)
            penalties.append(coverage)
    assert np.std(penalties) > 0.1, "the test is worth nothing"


@pytest.mark.parametrize(
    "changes", first_quick([{"attention_memory": "coverage"}, RECURRENT], 1), ids=str
)
def test_nan_of_a_row_s_last_sentence_does_not_reach_the_next(changes):
    """A source word whose vector is NaN leaves its row's cache and carried states NaN."""
    t = translator_of(changes, tokens_per_batch=2 * 2 * 16)
    poison = 40
    draw = np.random.default_rng(7)
    clean = [np.append(draw.integers(4, poison, 5), EOS) for _ in range(12)]
    want = t.translate(clean)
    table = t.params["embedding"]["table"].at[poison].set(jnp.nan)
    t.params = {**t.params, "embedding": {"table": table}}
    poisoned = np.array([5, poison, 6, EOS])
    mixed = [sentence for one in clean for sentence in (poisoned, poisoned, one)]
    found = t.translate(mixed)
    assert all(hypotheses == [] for n, hypotheses in enumerate(found) if n % 3 < 2)
    for got, hypotheses in zip(found[2::3], want, strict=True):
        assert_same(got, hypotheses)


@pytest.mark.parametrize("key", first_quick(["weights", "dtype"], 1))
def test_scores_of_a_bfloat16_search_are_near_those_of_float32(key):
    exact = translator()
    rounded = translator(**{key: "bfloat16"})
    assert rounded.prepared.dtype == "bfloat16"
    assert rounded.model.config.dtype == {"dtype": "bfloat16", "weights": "float32"}[key]
    types = {str(leaf.dtype) for leaf in jax.tree.leaves(rounded.params)}
    assert types == {"float32"} | ({"bfloat16"} if key == "weights" else set())
    found = rounded.translate(sentences())
    errors = [
        abs(best.log_prob - forced(exact, source, best.ids)[1]) / len(best.ids)
        for source, (best, *_) in zip(sentences(), found, strict=True)
    ]
    assert 1e-6 < max(errors) < 0.03  # nats a subword: bfloat16 keeps 8 bits
