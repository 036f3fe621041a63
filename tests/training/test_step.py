"""One update: against a hand-written one, when it is skipped, split into parts; validation."""

import dataclasses
import functools
import threading
import types
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.tiny import (
    SIZES,
    VOCABULARY,
    equations,
    lay_out,
    model_inputs,
    of_each_pair,
    random_pairs,
    random_params,
    relative_error,
    tiny_and_params,
    tiny_model,
)
from tests.training.test_optimizer import AdamByHand
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import Config, MeshConfig
from transformer_jax.config.train import TrainConfig
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.layers.dropout import hashed
from transformer_jax.model.outputs.loss_blocks import Parts
from transformer_jax.model.outputs.softmax_output import projected_loss
from transformer_jax.model.parameters import abstract_params, init_params
from transformer_jax.model.sides.embeddings import shift_right
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.text.vocabulary import BOS, Sizes
from transformer_jax.training.optimizer import make_optimizer
from transformer_jax.training.program import BatchShape, compile_program
from transformer_jax.training.state import TrainState, Window, init_state
from transformer_jax.training.step import (
    accumulated_gradients,
    loss_block,
    make_loss_fn,
    make_train_step,
)
from transformer_jax.training.validation import make_validate

# Source subwords that make the toy model misbehave.
INFINITE_LOSS, NAN_GRADIENT, NOISE = 38, 39, 40
ROWS = 8


class Bigrams:
    """A toy model with an update worked by hand: logits = table[previous subword]."""

    sizes = Sizes(2 * VOCABULARY, VOCABULARY)  # of source and target
    config = types.SimpleNamespace(dtype="float32")

    def apply(self, variables, batch, rows_B, settings, rngs, method, baseline=None):
        assert method == "loss"
        table = variables["params"]["table"]
        src_ids = batch.src.ids
        target = batch.tgt
        nan_gradient = (src_ids == NAN_GRADIENT).any()
        # sqrt(0) has a value but no derivative; sqrt(1) = 1 adds the same to every logit.
        bump = jnp.sqrt(jnp.where(nan_gradient, 0.0 * table.sum(), 1.0))
        noise_BV = noise(rngs["dropout"], rows_B) * (src_ids == NOISE).any()
        infinite = (src_ids == INFINITE_LOSS).any()
        previous_BL = shift_right(target.ids, target.positions, BOS)
        logits = table[previous_BL] + bump + noise_BV[:, None]
        # Equal and finite, but their mean is not: the loss is infinite, its gradient is not.
        logits = jnp.where(infinite, -3e38, logits)
        real_BL = target.segments != 0
        parts = Parts(logits, jnp.eye(VOCABULARY))
        return projected_loss(parts, target.ids, real_BL, settings), None


def noise(key, rows_B):
    """Noise in place of dropout: it depends on the key and on the row of the global batch."""
    return (1.0 + rows_B[:, None]) * jax.random.normal(key, (VOCABULARY,))


class Update(NamedTuple):
    smoothed_nats: float
    nats: float
    correct: float
    tokens: int
    grad: np.ndarray  # of the smoothed nats a token


def by_hand(table, batch, smoothing, noise_BV=None) -> Update:
    """The sums and the gradient of the bigram model, one subword at a time, in float64."""
    smoothed = nats = correct = tokens = 0
    grad = np.zeros_like(table)
    for row, position in zip(*np.nonzero(batch.tgt.segments), strict=True):
        target = batch.tgt.ids[row, position]
        start = batch.tgt.positions[row, position] == 0
        previous = BOS if start else batch.tgt.ids[row, position - 1]
        logits = table[previous] + (0.0 if noise_BV is None else noise_BV[row])
        p = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
        q = np.full(VOCABULARY, smoothing / VOCABULARY)
        q[target] += 1 - smoothing
        smoothed -= q @ np.log(p)
        nats -= np.log(p[target])
        correct += p.argmax() == target
        tokens += 1
        grad[previous] += p - q
    return Update(smoothed, nats, correct, tokens, grad / tokens)


TRAIN = TrainConfig(warmup_steps=2, peak_learning_rate=0.05, adam_epsilon=1e-6, clip_norm=0.1)


@functools.cache
def bigram_step(accumulate=1, **changes):
    train = TrainConfig(**{**vars(TRAIN), "accumulate_steps": accumulate, **changes})
    optimizer = make_optimizer(train, ModelConfig.d_model)
    step = jax.jit(make_train_step(Bigrams(), optimizer, train))
    table = np.random.default_rng(0).normal(size=(VOCABULARY, VOCABULARY)).astype(np.float32)
    zero = jnp.int32(0)
    params = {"table": jnp.asarray(table)}
    key = jax.random.key_data(jax.random.key(11))
    state = TrainState(zero, params, optimizer.init(params), key, zero, zero, Window.zero())
    return step, state


def bigram_batch(seed, trigger=None):
    lengths = [(5, 7), (6, 1), (3, 8), (8, 2), (4, 4), (2, 6), (7, 3), (1, 5), (4, 6), (2, 2)]
    rows = [[0, 1], [2], [3], [], [4, 8], [5], [6, 9], [7]]
    pairs = [([4] * len(src), tgt) for src, tgt in random_pairs(seed, lengths)]
    batch = lay_out(pairs, rows, 16, 12)
    if trigger == NOISE:
        batch.src.ids[:, 0] = trigger  # whatever the micro-batch
    elif trigger:
        batch.src.ids[2, 1] = trigger
    return batch


def test_three_updates_and_their_metrics_equal_a_hand_written_adam():
    step, state = bigram_step()
    table = np.asarray(state.params["table"], np.float64)
    adam = AdamByHand(0.9, 0.98, 1e-6)
    sums = np.zeros(5)
    for update in (1, 2, 3):
        batch = bigram_batch(update)
        state = step(state, batch)
        want = by_hand(table, batch, TRAIN.label_smoothing)
        norm = np.linalg.norm(want.grad)
        sums += *want[:4], norm
        assert norm > TRAIN.clip_norm
        grad = want.grad * TRAIN.clip_norm / norm
        lr = {1: 0.025, 2: 0.05, 3: 0.05 * (2 / 3) ** 0.5}[update]
        table -= lr * adam.direction(grad)
        np.testing.assert_allclose(state.params["table"], table, rtol=1e-4, atol=1e-5)
    got = state.window
    np.testing.assert_allclose([*got[:4], got.grad_norm], sums, rtol=1e-5)  # before clipping
    assert (got.tgt_tokens, got.src_tokens) == (3 * 44, 3 * 42)
    assert (got.slots, got.steps) == (3 * ROWS * (16 + 12), 3)
    assert (state.step, state.skipped, state.skipped_in_a_row) == (3, 0, 0)


def assert_same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.parametrize("trigger", [INFINITE_LOSS, NAN_GRADIENT])
def test_an_update_that_is_not_finite_is_skipped_and_training_recovers(trigger):
    step, start = bigram_step()
    good = step(start, bigram_batch(1))
    bad = step(good, bigram_batch(2, trigger))
    assert_same((bad.params, bad.opt_state), (good.params, good.opt_state))
    assert (bad.step, bad.skipped, bad.skipped_in_a_row) == (2, 1, 1)
    worse = step(bad, bigram_batch(3, trigger))
    assert (worse.step, worse.skipped, worse.skipped_in_a_row) == (3, 2, 2)
    assert_same(worse.window, good.window)
    # The next good batch gives the very update that it would have given without the bad ones.
    recovered, never_bad = step(worse, bigram_batch(4)), step(good, bigram_batch(4))
    assert_same((recovered.params, recovered.opt_state), (never_bad.params, never_bad.opt_state))
    assert (recovered.step, recovered.skipped, recovered.skipped_in_a_row) == (4, 2, 0)


def test_an_update_that_is_not_finite_leaves_the_baseline_of_the_draws():
    step, start = bigram_step()
    start = start._replace(baseline=jnp.float32(3.0))
    bad = step(start, bigram_batch(2, INFINITE_LOSS))
    assert bad.baseline == 3.0
    good = step(bad, bigram_batch(1))
    mean = good.window.smoothed_nats / good.window.tgt_tokens
    np.testing.assert_allclose(good.baseline, 0.9 * 3.0 + 0.1 * mean, rtol=1e-6)


def test_too_many_bad_updates_in_a_row_are_seen_however_late_one_looks():
    step, state = bigram_step(max_skipped=2)
    counts = []
    for number, trigger in enumerate([NAN_GRADIENT, 0, NAN_GRADIENT, NAN_GRADIENT, 0, 0]):
        batch = bigram_batch(number, trigger) if trigger else bigram_batch(number)
        state = step(state, batch)
        counts.append(int(state.skipped_in_a_row))
    assert counts == [1, 0, 1, 2, 2, 2]


def test_a_batch_of_padding_alone_does_no_harm():
    step, start = bigram_step()
    state = step(start, lay_out([], [[]] * ROWS, 16, 12))
    assert_same(state.params, start.params)
    assert (state.skipped, state.window.tgt_tokens) == (0, 0)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_dropout_s_key_follows_the_step_and_its_rows_the_global_batch(accumulate):
    step, state = bigram_step(accumulate)
    batch = bigram_batch(1, NOISE)
    for number in (0, 1):
        key = hashed(jax.random.fold_in(jax.random.wrap_key_data(state.key), number))
        noise_BV = np.asarray(noise(key, jnp.arange(ROWS)), np.float64)
        table = np.asarray(state.params["table"], np.float64)
        want = by_hand(table, batch, TRAIN.label_smoothing, noise_BV)
        before = state
        state = step(state, batch)
        nats = float(state.window.nats) - float(before.window.nats)
        assert nats == pytest.approx(want.nats, rel=1e-4)
        assert_same(state.key, before.key)


# The Transformer itself, with dropout ----------------------------------------------------------

LENGTHS = [(9, 7), (3, 16), (18, 2), (5, 5), (11, 9), (1, 1), (7, 12), (6, 8), (8, 4)]
PACKED = [[0, 3], [1], [2], [], [4], [5, 7], [6], [8]]


@functools.cache
def gradients(remat=False):
    model = tiny_model(dropout=0.3, num_layers=1).clone(remat=remat)
    loss_fn = make_loss_fn(model, 0.1)
    batch = lay_out(random_pairs(0, LENGTHS), PACKED, 18, 16)
    compute = jax.jit(lambda params, key: accumulated_gradients(loss_fn, params, batch, key, 1))
    return compute(random_params(model), jax.random.key(0))


@pytest.mark.slow("compiles two large steps")
def test_recomputing_activations_gives_the_same_gradients_and_masks():
    got, want = gradients(remat=True), gradients()
    np.testing.assert_allclose(got[1][:4], want[1][:4], rtol=1e-6)  # the sums
    errors = jax.tree.map(relative_error, got[0], want[0])
    assert max(jax.tree.leaves(errors)) < 1e-6, errors


def products_of(differentiate, remat=False, **changes) -> int:
    """Matrix products of the loss of a tiny model, or of its gradient."""
    model = make_model(tiny_model(dropout=0.3, **changes).config, VOCABULARY, remat)
    loss_fn = make_loss_fn(model, 0.1)
    rows = jnp.arange(ROWS)
    params = abstract_params(model)
    batch = lay_out(random_pairs(0, LENGTHS), PACKED, 18, 16)

    def nats(params):
        return loss_fn(params, batch, rows, jax.random.key(0)).smoothed_nats

    traced = jax.make_jaxpr(jax.grad(nats) if differentiate else nats)(params)
    return sum(one.primitive.name == "dot_general" for one in equations(traced.jaxpr))


def test_recomputing_activations_computes_every_product_of_every_layer_again():
    layers = products_of(False, num_layers=2) - products_of(False, num_layers=1)
    more = products_of(True, num_layers=1, remat=True) - products_of(True, num_layers=1)
    assert more == layers > 0


RECURRENT = {"encoder": "recurrent", "decoder": "recurrent"}


def test_recomputing_activations_computes_a_recurrent_decoder_s_products_again():
    plain, again = (products_of(True, **RECURRENT, remat=on) for on in (False, True))
    assert again > plain


def compiled(remat, meanwhile=None):
    config = Config(model=tiny_model(num_layers=1).config, train=TrainConfig(remat=remat))
    parts = config.model, config.train, make_mesh(config.mesh), VOCABULARY
    return compile_program(*parts, BatchShape(1, 8, 8), meanwhile)


@pytest.mark.slow("compiles two large steps")
@pytest.mark.parametrize("remat", [False, True])
def test_the_run_s_program_recomputes_where_the_config_says_so(remat):
    program = compiled(remat)
    assert program.model.remat == remat
    given = jax.tree.leaves((program.state, BatchShape(1, 8, 8).abstract()))
    arguments = sum(x.size * x.dtype.itemsize for x in given)
    assert program.memory_bytes > 1.1 * arguments, "and what the step holds beside them"


def test_work_beside_the_compilation_is_in_a_thread_and_its_error_is_raised():
    threads = []

    def fails():
        threads.append(threading.current_thread())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        compiled(False, fails)
    assert len(threads) == 1 and threads[0] is not threading.main_thread()


def test_a_block_of_logits_is_the_config_s_or_the_platform_s():
    asked = [loss_block(TrainConfig(loss_block=64), platform) for platform in ("cpu", "gpu")]
    assert asked == [64, 64]
    default = [loss_block(TrainConfig(), platform) for platform in ("cpu", "tpu", "gpu", "cuda")]
    assert default == [2_048, 2_048, 8_192, 8_192]


def test_the_loss_has_dropout_with_a_key_and_none_without():
    model, params = tiny_and_params(dropout=0.3, num_layers=1)
    loss_fn = jax.jit(make_loss_fn(model, 0.1))
    batch = lay_out(random_pairs(0, LENGTHS), PACKED, 18, 16)
    plain = loss_fn(params, batch)
    still = make_loss_fn(tiny_model(dropout=0.0, num_layers=1), 0.1)
    np.testing.assert_allclose(plain[:4], jax.jit(still)(params, batch)[:4], rtol=1e-6)
    dropped = [
        float(loss_fn(params, batch, jnp.arange(ROWS), jax.random.key(seed)).nats)
        for seed in (0, 0, 1)
    ]
    assert dropped[0] == dropped[1] != dropped[2]
    assert float(plain.nats) not in dropped
    assert dropped[0] == pytest.approx(float(gradients()[1].nats), rel=1e-6)


def test_bfloat16_keeps_a_float32_state_and_nearly_the_loss():
    losses = {}
    batch = lay_out(random_pairs(0, LENGTHS), PACKED, 18, 16)
    params = jax.jit(functools.partial(init_params, tiny_model()))(jax.random.key(1))
    for dtype in ("float32", "bfloat16"):
        config = Config(model=ModelConfig(**SIZES, dtype=dtype), train=TRAIN)
        model = make_model(config.model, VOCABULARY)
        optimizer = make_optimizer(config.train, config.model.d_model)
        start = jax.eval_shape(lambda m=model, o=optimizer: init_state(0, m, o))
        after = jax.eval_shape(make_train_step(model, optimizer, config.train), start, batch)
        assert jax.tree.map(lambda x: x.dtype, after) == jax.tree.map(lambda x: x.dtype, start)
        assert {x.dtype for x in jax.tree.leaves(after.params)} == {np.dtype("float32")}
        losses[dtype] = float(jax.jit(make_loss_fn(model, 0.1))(params, batch).smoothed_nats)
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.01)
    assert losses["bfloat16"] != losses["float32"]


@pytest.mark.parametrize(
    ("objective", "want"), [("risk", (3, 1.0)), ("back_translation", (1, 0.0)), (None, None)]
)
def test_an_objective_says_how_many_translations_are_drawn_and_whether_greedily(
    objective, want, monkeypatch
):
    asked = []
    drawing = "transformer_jax.training.step.draw_translations"
    monkeypatch.setattr(drawing, lambda *given: asked.append(given[-2:]))
    state = bigram_step()[1]
    train = dataclasses.replace(TRAIN, objective=objective, objective_weight=1.0, candidates=3)
    make_train_step(Bigrams(), make_optimizer(TRAIN, 8), train)(state, bigram_batch(0))
    assert asked == [want] * (want is not None)


def test_the_first_state_follows_from_the_seed_alone():
    config = Config(model=ModelConfig(**{**SIZES, "num_layers": 1}))
    model = make_model(config.model, VOCABULARY)
    optimizer = make_optimizer(config.train, config.model.d_model)
    start = jax.jit(lambda seed: init_state(seed, model, optimizer))
    one, again, other = start(3), start(3), start(4)
    assert_same(one, again)
    assert (one.key != other.key).any()
    for where in (["embedding", "table"], ["encoder_layers", "self_attention", "query"]):
        first, second = (functools.reduce(dict.get, where, x.params) for x in (one, other))
        assert not np.allclose(first, second)
    # Dropout does not run on the numbers that made the weights.
    of_key = jax.jit(functools.partial(init_params, model))(jax.random.wrap_key_data(one.key))
    assert not np.allclose(one.params["embedding"]["table"], of_key["embedding"]["table"])
    assert (one.step, one.skipped, one.skipped_in_a_row) == (0, 0, 0)
    assert not any(x.any() for x in jax.tree.leaves((one.window, one.opt_state)))


# Validation's numbers, from each pair's own log probabilities -----------------------------------

VALID_PAIRS = random_pairs(1, [(3, 4), (5, 2), (6, 7), (2, 5), (7, 3)])
VALID_ROWS = [[[0, 1], [2]], [[3, 4], []]]  # of two batches; the last row is empty


def test_loss_accuracy_and_score_are_of_every_pair_once():
    model = tiny_model(dropout=0.5)  # validation has none
    params = random_params(model)
    batches = [lay_out(VALID_PAIRS, rows, 10, 10) for rows in VALID_ROWS]
    shape = BatchShape(2, 10, 10)
    data = types.SimpleNamespace(
        valid_shape=shape,
        valid_batches=lambda own: (jax.tree.map(lambda x: x[own], batch) for batch in batches),
    )
    mesh = make_mesh(MeshConfig())
    loss = make_loss_fn(model, 0.0)
    evaluate = jax.jit(lambda params, batch: loss(params, batch, None, None))
    program = types.SimpleNamespace(mesh=mesh, evaluate=evaluate)

    nats = right = count = 0
    for number, (_, target) in enumerate(VALID_PAIRS):
        alone = lay_out(VALID_PAIRS, [[number]], 8, 8)
        logits = model.apply({"params": params}, *model_inputs(alone))
        own = of_each_pair(np.asarray(logits, np.float64), alone, [[number]])[number]
        own = own[:, :VOCABULARY]
        chosen = own[np.arange(len(target)), target]
        nats += (np.log(np.exp(own).sum(-1)) - chosen).sum()
        right += int((own.argmax(-1) == target).sum())
        count += len(target)

    values, score = make_validate(data, program, None)(params)
    assert values == pytest.approx(
        {
            "nats_per_token": nats / count,
            "perplexity": np.exp(nats / count),
            "token_accuracy": right / count,
        },
        rel=1e-5,
    )
    assert score == -values["nats_per_token"], "higher is better"

    given = []
    with_bleu = make_validate(data, program, lambda params: given.append(params) or 12.5)
    values, score = with_bleu(params)
    assert values["bleu"] == score == 12.5 and given == [params]
    assert make_validate(data, program, lambda params: None)(params) is None, "a stop was requested"
