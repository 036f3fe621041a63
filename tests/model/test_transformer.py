"""Whole models: watched weights, last norms, narrow types, a hidden EOS, the output's bias."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.cases import first_quick
from tests.fixtures.references import norm_by_hand
from tests.fixtures.tiny import (
    VOCABULARY,
    batch_of,
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
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import unboxed
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.interfaces import Now, SearchSizes
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.model.parameters import abstract_params
from transformer_jax.model.sides.transformer import watched_layer


@pytest.mark.parametrize(
    ("key", "layer"), [(0, 0), (1, 1), (2, 2), (9, 2), (-1, 2), (-2, 1), (-3, 0), (-9, 0)]
)
def test_the_watched_layer_is_counted_from_either_end_and_clipped_to_the_depth(key, layer):
    assert (
        watched_layer(ModelConfig(num_layers=7, num_decoder_layers=3, watched_layer=key)) == layer
    )


def test_the_watched_weights_are_the_mean_of_the_first_heads_of_one_layer():
    model, params = tiny_and_params(watched_layer=0, watched_heads=2)
    batch = batch_of((9, 7), (9, 7))
    encoded = np.random.default_rng(0).normal(size=(2, 9, 12)).astype(np.float32)
    decode = functools.partial(
        model.clone(watch=True).apply, method="decode", mutable=["intermediates"]
    )
    (_, watched), aside = jax.jit(decode)({"params": params}, encoded, *model_inputs(batch))
    (weights,) = aside["intermediates"]["decoder_0"]["cross_attention"]["attention_weights"]
    assert relative_error(watched, np.asarray(weights)[:, :2].mean(1)) < 1e-6


def test_the_last_norms_of_pre_norm_take_their_epsilon_from_the_config():
    """Sub-layers whose parameters are 0 add nothing, so a stack is its last norm."""
    keys = {"norm": "pre", "num_layers": 1, "positions": "none"}
    model = tiny_model(**keys, norm_epsilon=0.5)
    drawn = random_params(model)
    params = {name: jax.tree.map(jnp.zeros_like, part) for name, part in drawn.items()}
    kept = ("embedding", "encoder_norm", "decoder_norm")
    variables = {"params": params | {name: drawn[name] for name in kept}}
    source, target = model_inputs(batch_of((9, 7)))

    @jax.jit
    def outputs(variables):
        encoded = model.apply(variables, source, method="encode")
        return encoded, model.apply(variables, encoded, source, target, method="decode")[0]

    encoded, decoded = outputs(variables)
    for got, side, name in ((encoded, source, kept[1]), (decoded, target, kept[2])):
        x_BLD = np.asarray(drawn["embedding"]["table"], np.float64)[side.ids] * 12**0.5
        want = norm_by_hand(x_BLD, *(drawn[name][part] for part in ("scale", "bias")), epsilon=0.5)
        assert relative_error(got, want) < 1e-5


def test_a_model_is_made_of_a_config_and_sizes():
    with pytest.raises(TypeError, match="config is of type int, not ModelConfig"):
        make_model(600, ModelConfig())


def test_bfloat16_is_for_matrix_products_and_float32_for_all_that_adds_up():
    model = tiny_model(dtype="bfloat16")
    params = abstract_params(model)
    assert params == abstract_params(tiny_model()), "the same parameters are trained"
    traced = jax.make_jaxpr(model.apply)({"params": params}, *model_inputs(batch_of((9, 7))))
    kinds: dict[str, set[str]] = {}
    for equation in equations(traced.jaxpr):
        types = {str(v.aval.dtype) for v in equation.invars if hasattr(v, "aval")}
        kinds.setdefault(equation.primitive.name, set()).update(types)
    assert kinds["dot_general"] == {"bfloat16"}
    for name in ("exp", "reduce_sum", "rsqrt"):  # softmax and layer normalization
        assert kinds[name] == {"float32"}
    assert traced.out_avals[0].dtype == jnp.float32


@pytest.mark.parametrize("changes", first_quick([{}, {"norm": "pre"}, {"encoder": "recurrent"}], 1))
def test_narrow_residuals_change_the_logits_by_rounding_alone(changes):
    batch = batch_of((9, 7), (4, 5))
    model, params = tiny_and_params(**changes)
    narrow = tiny_model(**changes, residual_dtype="bfloat16")
    encoded = jax.eval_shape(lambda: narrow.apply({"params": params}, batch.src, method="encode"))
    narrow_result = changes == {}  # a last norm and a recurrent encoder give float32
    assert encoded.dtype == ("bfloat16" if narrow_result else "float32")
    sizes = SearchSizes(batch=2, beams=3, length=5, src_length=9)

    def step(module):
        now = Now(jnp.zeros(2, int), jnp.zeros((2, 3), int), jnp.zeros((2, 3, 5), int))
        kept = unboxed((module.boxed_memory(sizes), module.boxed_cache(sizes)))
        return module.target_side.step(jnp.ones((2, 3, 12)), now, *kept)[0]

    stepped = jax.eval_shape(lambda: narrow.apply({"params": params}, method=step))
    assert stepped.dtype == ("float32" if "norm" in changes else "bfloat16")
    wanted, found = (
        jax.jit(own.apply)({"params": params}, *model_inputs(batch))[..., :VOCABULARY]
        for own in (model, narrow)
    )
    assert 1e-4 < relative_error(found, wanted) < 0.03


def test_a_step_of_a_one_way_encoder_keeps_narrow_residuals():
    model = tiny_model(wait_k=2, residual_dtype="bfloat16", num_layers=1)
    cache = unboxed(model.boxed_source_cache(SearchSizes(1, 1, 4, 4)))

    def step(module):
        return module.source_side.step(jnp.ones((1, 1, 12)), jnp.zeros(1, int), 4, cache)[0]

    stepped = jax.eval_shape(
        lambda params: model.apply({"params": params}, method=step), abstract_params(model)
    )
    assert stepped.dtype == "bfloat16"


@pytest.mark.parametrize("encoder", first_quick(["transformer", "recurrent"], 1))
def test_a_hidden_end_of_the_source_is_as_if_it_were_not_there(encoder):
    """Also in a packed row, whose other sentence it separates."""
    pairs = random_pairs(1, [(5, 4), (3, 6)])
    cut = [(src[:-1], tgt) for src, tgt in pairs]
    same = {"encoder": encoder, "decoder": "transformer", "d_hidden": 9}
    hidden, seen = (tiny_model(**same, source_eos=eos) for eos in (False, True))
    params = {"params": random_params(seen)}
    rows = [[0, 1]]
    batches = [lay_out(own, rows, 9, 12) for own in (pairs, cut)]
    got, want = (
        of_each_pair(jax.jit(model.apply)(params, *model_inputs(batch)), batch, rows)
        for model, batch in zip((hidden, seen), batches, strict=True)
    )
    for number in got:
        assert relative_error(got[number][:, :VOCABULARY], want[number][:, :VOCABULARY]) < 1e-5
    shown = jax.jit(seen.apply)(params, *model_inputs(batches[0]))
    shown = of_each_pair(shown, batches[0], rows)
    assert relative_error(shown[0][:, :VOCABULARY], want[0][:, :VOCABULARY]) > 1e-3


def test_the_loss_and_its_gradients_are_those_of_the_biased_logits():
    batch = lay_out(random_pairs(3, [(9, 7), (4, 5), (2, 3)]), [[0], [1, 2]], 18, 16)
    model, params = tiny_and_params(output_bias=True, num_layers=1)
    smoothing = 0.1
    settings = LossSettings(smoothing, VOCABULARY, "float32", 16, 1)

    def blockwise(params):
        sums, _ = model.apply({"params": params}, batch, None, settings, method="loss")
        return sums.smoothed_nats

    def dense(params):
        logits = model.apply({"params": params}, *model_inputs(batch))[..., :VOCABULARY]
        log_probs = jax.nn.log_softmax(logits)
        own = jnp.take_along_axis(log_probs, batch.tgt.ids[..., None], -1)[..., 0]
        nats = -(1 - smoothing) * own - smoothing * log_probs.mean(-1)
        return jnp.where(batch.tgt.segments != 0, nats, 0.0).sum()

    (got, grads), (want, expected) = (
        jax.jit(jax.value_and_grad(function))(params) for function in (blockwise, dense)
    )
    assert float(got) == pytest.approx(float(want), rel=1e-6)
    assert np.abs(grads["output_bias"][:VOCABULARY]).min() > 0
    assert not grads["output_bias"][VOCABULARY:].any()
    logits = jax.jit(model.apply)({"params": params}, *model_inputs(batch))
    assert (logits[..., VOCABULARY:] <= -1e8).all()
    for name in ("output_bias", "embedding", "decoder_0"):
        pairs = zip(jax.tree.leaves(grads[name]), jax.tree.leaves(expected[name]), strict=True)
        assert max(relative_error(*pair) for pair in pairs) < 1e-5, name
