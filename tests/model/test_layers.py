"""The parts of a layer against float64 references: feed-forward network, residuals and norms."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests.fixtures.cases import first_quick
from tests.fixtures.references import norm_by_hand
from tests.fixtures.tiny import relative_error, tiny_model
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import unboxed
from transformer_jax.model.interfaces import Side
from transformer_jax.model.layers.feed_forward import ACTIVATIONS, FeedForward
from transformer_jax.model.layers.layer import Layer, Residual
from transformer_jax.model.layers.norms import LayerNorm, RMSNorm, ScaleNorm, layer_norm, unit
from transformer_jax.model.parameters import init_params

B, L, D, F = 2, 3, 4, 5
DRAW = np.random.default_rng(2)
X = DRAW.normal(size=(B, L, D)) * 3 + 2
GAIN, BIAS = DRAW.normal(size=(2, D))


ACTIVATIONS_BY_HAND = {
    "relu": lambda h: max(0.0, h),
    "swish": lambda h: h / (1 + math.exp(-h)),
    "gelu": lambda h: h * (1 + math.erf(h / math.sqrt(2))) / 2,
}


# Shazeer 2020, equations 4 and 5: the factor that is not linear.
GATES_BY_HAND = {
    "glu": lambda h: 1 / (1 + math.exp(-h)),
    "reglu": ACTIVATIONS_BY_HAND["relu"],
    "geglu": ACTIVATIONS_BY_HAND["gelu"],
    "swiglu": ACTIVATIONS_BY_HAND["swish"],
}


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_feed_forward_equals_equation_2(activation):
    """f(x W1 + b1) W2 + b2, where a gated network multiplies f by x V + c; one unit at a time."""
    shapes = {"inner": (D, F), "outer": (F, D)}
    is_gated = activation in GATES_BY_HAND
    assert ACTIVATIONS[activation].gated == is_gated
    shapes |= {"linear": (D, F)} if is_gated else {}
    shapes |= {f"{name}_bias": shape[1:] for name, shape in shapes.items()}
    params = {name: DRAW.normal(size=shape) for name, shape in shapes.items()}
    by_hand = (ACTIVATIONS_BY_HAND | GATES_BY_HAND)[activation]
    want = np.zeros((B, L, D))
    for b, i, f in np.ndindex(B, L, F):
        hidden = by_hand(X[b, i] @ params["inner"][:, f] + params["inner_bias"][f])
        if is_gated:
            hidden *= X[b, i] @ params["linear"][:, f] + params["linear_bias"][f]
        want[b, i] += hidden * params["outer"][f] + params["outer_bias"] / F
    module = FeedForward(ModelConfig(d_model=D, d_ff=F, activation=activation))
    got, _ = module.apply({"params": jax.tree.map(jnp.float32, params)}, jnp.float32(X))
    assert relative_error(got, want) < 1e-6


EPSILON = 0.5
NORM = {"norm": {"scale": GAIN, "bias": BIAS}}
DEPTHS = {"num_encoder_layers": 5, "num_decoder_layers": 3}  # N and M
OUTPUT = X**2 + 1


def residual(norm, params=NORM, is_decoder=False, sublayer=lambda x: x**2 + 1.0, **changes):
    keys = {"norm_epsilon": EPSILON, "dropout": 0.0, **DEPTHS, **changes}
    config = ModelConfig(d_model=D, norm=norm, **keys)
    got, beside = Residual(config, is_decoder=is_decoder).apply(
        {"params": jax.tree.map(jnp.float32, params)},
        jnp.asarray(X, config.residual_dtype),
        lambda x: (sublayer(x), "weights"),
        jnp.arange(B) if config.dropout else None,
        rngs={"dropout": jax.random.key(3)},
    )
    assert beside == "weights"  # what the sub-layer gives beside its output passes through
    return np.asarray(got, np.float64)


def normed(x):
    return norm_by_hand(x, GAIN, BIAS, EPSILON)


@pytest.mark.parametrize(
    ("norm", "params", "is_decoder", "want"),
    [
        ("post", NORM, False, normed(X + OUTPUT)),
        ("pre", NORM, False, X + normed(X) ** 2 + 1),
        ("deep", NORM, False, normed(0.81 * (5**4 * 3) ** 0.0625 * X + OUTPUT)),
        ("deep", NORM, True, normed((3 * 3) ** 0.25 * X + OUTPUT)),
        ("rezero", {"weight": -0.7}, False, X - 0.7 * OUTPUT),
    ],
    ids=["post", "pre", "deep, encoder", "deep, decoder", "rezero"],
)
def test_a_residual_equals_its_equation(norm, params, is_decoder, want):
    assert relative_error(residual(norm, params, is_decoder), want) < 1e-5


@pytest.mark.parametrize(
    ("norm", "params", "output"),
    [("pre", NORM, normed(X) ** 2 + 1), ("rezero", {"weight": 0.5}, 0.5 * OUTPUT)],
)
def test_dropout_falls_on_the_sublayers_output_not_on_the_residual(norm, params, output):
    added = residual(norm, params, dropout=0.5) - np.float32(X)
    dropped = added == 0
    assert 0 < dropped.sum() < dropped.size
    np.testing.assert_allclose(added[~dropped], 2 * output[~dropped], rtol=1e-4)


def test_dropout_never_falls_on_the_residual_of_post_norm_either():
    kept = residual("post", dropout=0.5, sublayer=jnp.zeros_like)
    assert relative_error(kept, normed(X)) < 1e-5


def test_narrow_residuals_are_multiplied_in_float32():
    """Rounding alpha x to bfloat16 once more would be seen in the sum."""
    got = residual("deep", residual_dtype="bfloat16", sublayer=lambda x: -1.3 * x)
    x = np.asarray(jnp.asarray(X, "bfloat16"), np.float64)
    y = np.asarray(-1.3 * jnp.asarray(x, "bfloat16"), np.float64)  # alpha is 1.297
    total = jnp.float32(0.81 * (5**4 * 3) ** 0.0625 * x + y).astype("bfloat16")
    want = normed(np.asarray(total, np.float64))
    want = np.asarray(jnp.asarray(want, "bfloat16"), np.float64)
    np.testing.assert_allclose(got, want, rtol=2**-7)


@pytest.mark.parametrize("activation", first_quick(["glu", "relu"], 1))  # glu: one of both inner
def test_deep_norm_multiplies_the_initial_values_of_four_matrices_by_beta(activation):
    key = jax.random.key(0)
    changes = {"activation": activation, **DEPTHS}
    models = (tiny_model(norm=norm, **changes) for norm in ("deep", "post"))
    deep, post = (jax.jit(functools.partial(init_params, model))(key) for model in models)
    seen = set()
    paths = jax.tree_util.tree_leaves_with_path(post)
    for (path, leaf), other in zip(paths, jax.tree.leaves(deep), strict=True):
        where = jax.tree_util.keystr(path, simple=True, separator=".")
        factor = 1.0
        if re.search(r"(feed_forward\.(inner|outer)|attention\.(value|out))$", where):
            is_decoder = where.startswith("decoder")
            factor = (12 * 3) ** -0.25 if is_decoder else 0.87 * (5**4 * 3) ** -0.0625
            seen.add((is_decoder, path[-1].key))
        np.testing.assert_allclose(other, factor * leaf, rtol=1e-6, err_msg=where)
    assert len(seen) == 8
    assert jax.tree.structure(deep) == jax.tree.structure(post), "no norm more at the end"


def test_a_layer_of_rezero_is_the_identity_at_first_and_learns_its_weights():
    model = tiny_model(norm="rezero")
    params = jax.jit(functools.partial(init_params, model))(jax.random.key(0))
    weights = [
        leaf for path, leaf in jax.tree_util.tree_leaves_with_path(params) if "weight" in str(path)
    ]
    assert len(weights) == 2 * 2 + 2 * 3 and not np.any(weights)
    assert "encoder_norm" not in params and "decoder_norm" not in params


@pytest.mark.parametrize("is_decoder", [False, True])
def test_a_layer_of_the_decoder_has_the_decoder_s_constants(is_decoder):
    config = ModelConfig(norm="deep", d_model=8, num_heads=2, d_ff=4)
    layer = Layer(config, ("feed_forward",), Side(is_decoder)).bind({})
    assert layer.feed_forward_residual.is_decoder == is_decoder


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="how XLA for a CPU fuses")
def test_no_operation_computes_the_residuals_of_all_layers_again():
    """Pre-norm residuals in a row, with a product as each sub-layer."""
    residual = Residual(ModelConfig(d_model=8, norm="pre", dropout=0.5))
    norms = {"scale": jnp.ones((6, 8)), "bias": jnp.ones((6, 8))}

    def largest_fusion(depth):
        def total(norms, weights, key):
            x = jnp.ones((2, 4, 8))
            for n in range(depth):
                params = {"params": {"norm": jax.tree.map(lambda x, n=n: x[n], norms)}}
                given = x, lambda y: (y @ weights, None), jnp.arange(2)
                rngs = {"dropout": jax.random.fold_in(key, n)}
                x, _ = residual.apply(params, *given, rngs=rngs)
            return x.sum()

        arguments = norms, jnp.ones((8, 8)), jax.random.key(0)
        compiled = jax.jit(jax.grad(total, (0, 1))).lower(*arguments).compile()
        parts = re.split(r"\n(?=\S)", compiled.as_text())
        return max(part.count(" = ") for part in parts if "fused_computation" in part[:40])

    assert largest_fusion(6) <= largest_fusion(3)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("epsilon", [1e-6, 1e-3, 0.5])
@pytest.mark.parametrize("size", [1.0, 1e-3])  # at 1e-3 the variance is near epsilon
def test_layer_norm_equals_its_equation(size, epsilon, dtype):
    """In float32, whatever the type of its input."""
    x = jnp.asarray(size * X, dtype)
    got = layer_norm(x, jnp.float32(GAIN), jnp.float32(BIAS), epsilon)
    assert got.dtype == jnp.float32
    want = norm_by_hand(np.asarray(x, np.float64), GAIN, BIAS, epsilon)
    assert relative_error(got, want) < 1e-5


def test_a_mean_that_is_large_beside_the_deviation_does_no_harm():
    params = {"scale": jnp.float32(GAIN), "bias": jnp.float32(BIAS)}
    x = jnp.float32(X + 1e3)
    want = norm_by_hand(np.asarray(x, np.float64), GAIN, BIAS)
    assert relative_error(LayerNorm().apply({"params": params}, x), want) < 1e-4


def test_the_norm_of_narrow_input_has_the_same_value_and_gradients():
    """Its gradient is written by hand; that of float32 input is derived by JAX."""
    draw = np.random.default_rng(4)
    x_BLD = jnp.asarray(3 * draw.normal(size=(2, 5, 24)) + 1, jnp.bfloat16)
    scale_D, bias_D = jnp.asarray(draw.normal(size=(2, 24)) + 1, jnp.float32)
    cotangent_BLD = jnp.asarray(draw.normal(size=x_BLD.shape), jnp.float32)
    found, pull = jax.vjp(layer_norm, x_BLD, scale_D, bias_D)
    wanted, exact_pull = jax.vjp(layer_norm, x_BLD.astype(jnp.float32), scale_D, bias_D)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
    gradients = pull(cotangent_BLD)
    exact = exact_pull(cotangent_BLD)
    assert gradients[0].dtype == jnp.bfloat16
    np.testing.assert_allclose(gradients[0].astype(jnp.float32), exact[0], rtol=2**-8)
    for one, other in zip(gradients[1:], exact[1:], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    ("norm", "scale", "root"),
    [
        (RMSNorm(1e-6), GAIN, lambda x: np.sqrt((x**2).sum() / 4 + 1e-6)),
        (RMSNorm(0.5), GAIN, lambda x: np.sqrt((x**2).sum() / 4 + 0.5)),
        (ScaleNorm(), 1.7, lambda x: np.sqrt((x**2).sum())),
    ],
    ids=["RMS", "RMS with a large epsilon", "scale"],
)
def test_norms_without_a_mean_equal_their_equations(norm, scale, root, dtype):
    x = jnp.asarray(X, dtype)
    want = np.asarray(x, np.float64)
    for place in np.ndindex(*X.shape[:-1]):
        want[place] *= scale / root(want[place])
    got = norm.apply({"params": {"scale": jnp.float32(scale)}}, x)
    assert got.dtype == jnp.float32
    assert relative_error(got, want) < 1e-6


@pytest.mark.parametrize(("norm", "scale"), [(RMSNorm(), [1.0] * 4), (ScaleNorm(), 2.0)])
def test_they_begin_with_the_length_of_layer_normalization(norm, scale):
    start = unboxed(norm.init(jax.random.key(0), jnp.ones((1, 1, 4))))["params"]
    assert start.keys() == {"scale"} and start["scale"].tolist() == scale


def test_scale_norm_of_a_zero_vector_is_zero_with_a_finite_gradient():
    def total(x):
        return ScaleNorm().apply({"params": {"scale": jnp.float32(3)}}, x).sum()

    value, gradient = jax.value_and_grad(total)(jnp.zeros((1, 1, 4)))
    assert value == 0 and np.all(np.isfinite(gradient))


def test_vectors_are_divided_by_their_length_or_by_a_longer_epsilon():
    params = {"params": {"scale": jnp.float32(3)}}
    vectors = jnp.array([[[3e-5, 4e-5]], [[3e-7, 4e-7]]], jnp.float32)  # of length 5e-5 and 5e-7
    np.testing.assert_allclose(unit(vectors)[:, 0], [[0.6, 0.8], [0.3, 0.4]], rtol=1e-5)
    scaled = ScaleNorm(1e-6).apply(params, vectors)[:, 0]
    np.testing.assert_allclose(scaled, [[1.8, 2.4], [0.9, 1.2]], rtol=1e-5)
    longer = ScaleNorm(1e-4).apply(params, vectors)[:, 0]
    np.testing.assert_allclose(longer, [[0.9, 1.2], [0.009, 0.012]], rtol=1e-5)
