"""benchmarks/growth.py: exponents, counts, tables and plots; runs a small axis of each kind."""

import jax
import jax.numpy as jnp
import pytest

from benchmarks.growth import FULL, Plan, Result, exponent, report
from benchmarks.growth_points import SENTENCE, Point, Setting, random_batch, step_bytes
from benchmarks.search_cost import decode_step_flops, memory_flops, search_bytes, search_flops
from transformer_jax.config.model import ModelConfig
from transformer_jax.errors import UserError
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.interfaces import Now, SearchSizes
from transformer_jax.model.parameters import abstract_params
from transformer_jax.text.batches import Packed
from transformer_jax.training.program import BatchShape

pytestmark = pytest.mark.slow("compiles and times steps")

SMALL = ModelConfig(num_layers=2, d_model=48, num_heads=3, d_k=8, d_v=16, d_ff=80)


def test_the_fit_of_a_power_law_is_its_exponent():
    sizes = (4, 8, 32, 128)
    assert exponent(sizes, [3.0 * s**1.7 for s in sizes]) == pytest.approx(1.7)
    assert exponent(sizes, [5.0 for _ in sizes]) == pytest.approx(0.0, abs=1e-12)


def test_exponents_are_those_of_each_round_and_a_knee_shows_in_the_last_two():
    """The machine drifts between rounds; FLOPs grow as the size, bytes do not."""
    points = [Point(7.0 * size, 1.0, None, 1.0, run=lambda: None) for size in (1, 2, 4)]
    seconds = [[speed * own for speed in (1.0, 2.0, 0.7)] for own in (1.0, 2.0**1.5, 8.0)]
    measured = Result("step.rows", (1, 2, 4), points, seconds, [1.0])
    assert measured.time_exponents() == pytest.approx([1.5] * 3)
    assert measured.over_counted() == pytest.approx(0.5)
    assert measured.over_counted(last=2) == pytest.approx(0.5)
    seconds[1] = [speed * 2.0 for speed in (1.0, 2.0, 0.7)]
    assert measured.over_counted(last=2) == pytest.approx(1.0)


def test_the_report_holds_every_axis_and_point_and_the_plots(tmp_path):
    made = []

    def make(setting):
        made.append(setting)
        return Point(setting.rows, setting.length**2, None, setting.d_model, run=lambda: None)

    text = report(FULL, rounds=2, out=tmp_path, make=make)
    assert len(made) == len(set(made)), "the axes share the base point"
    for kind, plan in FULL.items():
        assert (tmp_path / f"{kind}.png").read_bytes().startswith(b"\x89PNG")
        for key, sizes in plan.axes.items():
            section = text.split(f"### {kind}.{key} around")[1].split("###")[0]
            assert all(f"\n| {size:,} |" in section for size in sizes)
            assert f"\n| {kind}.{key} |" in text.split("### Exponents")[1]
    [rows] = [line for line in text.split("### step.length")[0].splitlines() if "**exp" in line]
    assert rows.split("|")[3] == " 1.00 "


def test_an_unknown_axis_is_refused_by_name():
    with pytest.raises(UserError, match="step.depth.*step.layers"):
        report(FULL, 1, None, ["step.depth"])


def test_a_step_and_a_search_are_compiled_and_timed():
    plans = {
        "step": Plan(Setting(2, 16, 64, 1, 256), {"rows": (2, 4)}),
        "search": Plan(Setting(2, 8, 64, 1, 256, beam=2), {"beam": (2, 4)}),
    }
    text = report(plans, rounds=1, out=None)  # raises if a hypothesis ends before its limit
    assert "XLA's bytes" in text.split("### search")[0]


def test_batches_are_packed_with_short_sentences():
    batch = random_batch(BatchShape(8, 128, 128), 1_000)
    assert batch.tgt.ids.shape == (8, 128) and batch.tgt.ids.max() < 1_000
    assert (batch.tgt.segments != 0).mean() > 0.9
    assert batch.tgt.segments.max(axis=1).mean() == pytest.approx(128 / SENTENCE, rel=0.2)


# Counts ----------------------------------------------------------------------------------------


def xla_flops(model, method, *arguments):
    """FLOPs of one call, as XLA counts them; nothing is computed."""
    params = abstract_params(model)

    def call(params, *arguments):
        return model.apply({"params": params}, *arguments, method=method)

    return jax.jit(call).lower(params, *arguments).compile().cost_analysis()["flops"]


def shapes(*sizes, dtype=jnp.int32):
    return jax.ShapeDtypeStruct(sizes, dtype)


def test_flops_of_a_decode_step_are_those_of_xla():
    batch, source, past, vocabulary = 3, 5, 7, 200
    model = make_model(SMALL, vocabulary)
    encoded = shapes(batch, source, SMALL.d_model, dtype=jnp.float32)
    memory = jax.eval_shape(
        lambda p, e, s: model.apply({"params": p}, e, s, method="remember"),
        abstract_params(model),
        encoded,
        Packed(*(shapes(batch, source),) * 3),
    )
    # One hypothesis per sentence, and a cache as long as its past: no masked work is computed.
    cache = jax.eval_shape(lambda: model.empty_cache(SearchSizes(batch, 1, past, source)))
    output = shapes(SMALL.d_model, vocabulary, dtype=jnp.float32)
    now = Now(shapes(batch), shapes(batch, 1), shapes(batch, 1, past))
    arguments = (now, memory, cache, output)
    counted = batch * decode_step_flops(SMALL, vocabulary, source, past)
    # XLA counts norms and softmax too.
    assert counted <= xla_flops(model, "decode_step", *arguments) < 1.1 * counted


def test_flops_of_a_sentence_s_memory_by_hand():
    # A layer and position: four projections of 48 x 24 or 48 x 48, 2 x 48 x 80 of feed-forward,
    # scores with 5 positions, and one more projection each for keys and values.
    projections = 2 * 48 * 24 + 2 * 48 * 48
    inner = 2 * 48 * 80
    scores = 5 * 3 * (8 + 16)
    a_position = projections + inner + scores + 48 * 24 + 48 * 48
    assert memory_flops(SMALL, 5) == 2 * 2 * 5 * a_position


def test_search_counts_its_parts():
    steps = sum(decode_step_flops(SMALL, 200, 5, past) for past in (1, 2, 3))
    assert search_flops(SMALL, 200, 3, 2, 5, 3) == 3 * (memory_flops(SMALL, 5) + 2 * steps)
    # One more hypothesis reads 1, 2 and 3 positions, writes 3, and has logits three times.
    position = 2 * 3 * (8 + 16) * 4
    more = search_bytes(SMALL, 200, 1, 3, 5, 3) - search_bytes(SMALL, 200, 1, 2, 5, 3)
    assert more == (6 + 3) * position + 3 * 2 * 200 * 4


def test_bytes_of_a_step_by_hand():
    one, two = (step_bytes(SMALL, 200, BatchShape(rows, 5, 7)) for rows in (1, 2))
    weights = 2 * 3 * (25 + 49 + 35)
    features = 48 * (12 + 2 * (4 * 5 + 6 * 7)) + 7 * 256
    heads = 2 * (5 * 144 + 7 * 144 + (5 + 7) * 72)
    hidden = 2 * 12 * 80
    assert two - one == 2 * 4 * (weights + features + heads + hidden)
