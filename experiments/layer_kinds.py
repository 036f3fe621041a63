"""The layers of Table 1 as pure functions, and their counted costs (section 4).

Each layer maps `[batch, n, d]` to `[batch, n, d]`. The table's letters are n length, d width, k
kernel, r neighborhood. A window is odd and has its position in the middle: the paper does not speak
of causal windows here.

Dimension key
  B batch   L length   D d_model   E d_model, of a product's result   H heads   K d_k per head
  V d_v per head   G the four gates of an LSTM, 4 d_model   W positions of a kernel
  X any further axes
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from experiments.layer_chains import longest_chain
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.multi_head import MultiHeadAttention, attend
from transformer_jax.model.attention.windows import Blocks
from transformer_jax.model.axes import unboxed


class Sizes(NamedTuple):
    """The sizes of a layer, in Table 1's letters."""

    n: int  # length
    d: int  # width
    heads: int = 1  # of self-attention; d_k = d / heads
    k: int = 3  # kernel of a convolution, odd
    r: int = 33  # neighborhood of restricted self-attention, odd
    dilation: int = 1  # of a convolution: positions from one tap to the next


# Self-attention --------------------------------------------------------------------------------


def attention_core(x_BLD: Array, heads: int) -> Array:
    """Attention of x to itself without projections, which is O(n^2 d) in Table 1."""
    x_BLHK = _split(x_BLD, heads)
    return attend(x_BLHK, x_BLHK, x_BLHK, _everywhere())[0].reshape(x_BLD.shape)


def restricted_core(x_BLD: Array, heads: int, r: int) -> Array:
    """`restricted_attention` of x to itself, without projections."""
    x_BLHK = _split(x_BLD, heads)
    return restricted_attention(x_BLHK, x_BLHK, x_BLHK, r).reshape(x_BLD.shape)


def restricted_attention(query_BLHK: Array, key_BLHK: Array, value_BLHV: Array, r: int) -> Array:
    """Each position attends to the r positions around it: `[batch, length, heads, d_v]`.

    Work and memory are O(r n d). A block of r queries sees the 2r - 1 keys around it, so that both
    products stay large; that is twice the work of r keys per query. Positions of a neighborhood
    outside the sequence are masked.

    Args:
      query_BLHK: queries `[batch, length, heads, d_k]`.
      key_BLHK: keys `[batch, length, heads, d_k]`.
      value_BLHV: values `[batch, length, heads, d_v]`.
      r: odd; (r - 1) / 2 positions are on each side.

    Raises:
      ValueError: r is even.

    Source: Vaswani et al. 2017, section 4.
    """
    blocks = _blocks(query_BLHK.shape[1], r)
    key, value = blocks.of_keys(key_BLHK), blocks.of_keys(value_BLHV)
    mask = _nearby(blocks, query_BLHK)
    return blocks.joined(attend(blocks.of_queries(query_BLHK), key, value, mask)[0])


def _everywhere() -> Array:
    return jnp.ones((1, 1, 1, 1), bool)


def _split(x_BLD: Array, heads: int) -> Array:
    return x_BLD.reshape(*x_BLD.shape[:2], heads, -1)


def _attend(module: MultiHeadAttention, x_BLD: Array) -> Array:
    return _joined_heads(module, x_BLD, *module.keys_values(x_BLD), _everywhere())


def _attend_nearby(module: MultiHeadAttention, x_BLD: Array, r: int) -> Array:
    """`restricted_attention` with the module's projections; keys are projected before the cut."""
    blocks = _blocks(x_BLD.shape[1], r)
    key, value = map(blocks.of_keys, module.keys_values(x_BLD))
    queries = blocks.of_queries(x_BLD)
    return blocks.joined(_joined_heads(module, queries, key, value, _nearby(blocks, x_BLD)))


def _joined_heads(module: MultiHeadAttention, x_BLD: Array, *keys_values_mask: Array) -> Array:
    heads_BLHV, _ = attend(module.queries(x_BLD), *keys_values_mask, score=module.scores)
    return module.joined(heads_BLHV, x_BLD)


def _blocks(length: int, r: int) -> Blocks:
    """Blocks of r queries, with the neighborhoods of the first and the last."""
    return Blocks(length, r, _side(r), _side(r))


def _nearby(blocks: Blocks, x_BLX: Array) -> Array:
    """Where a query of a block may attend: `[batch * N, 1, r, 2r - 1]`."""
    real = blocks.of_keys(jnp.ones(x_BLX.shape[:2], bool))[:, None, None]
    return real & (abs(blocks.distance()) <= blocks.behind)


def _side(window: int) -> int:
    """Positions on each side of a window's middle."""
    if window % 2 == 0:
        raise ValueError(f"a window of {window} has no middle; it must be odd.")
    return window // 2


# Recurrence and convolution --------------------------------------------------------------------


class LSTMParams(NamedTuple):
    """Columns of the gates: input, forget, candidate, output."""

    input_DG: Array
    recurrent_DG: Array
    bias_G: Array


def lstm(params: LSTMParams, x_BLD: Array) -> Array:
    """A left-to-right layer of long short-term memory that starts from zeros: `[batch, n, d]`.

    Source: Hochreiter and Schmidhuber 1997, with the forget gates of Gers et al. 2000.
    """
    # The products of inputs do not depend on states, so one large product computes them all.
    gates_LBG = jnp.einsum("BLD,DG->LBG", x_BLD, params.input_DG) + params.bias_G

    def step(carry: tuple[Array, Array], gates_BG: Array) -> tuple[tuple[Array, Array], Array]:
        hidden_BD, cell_BD = carry
        gates_BG = gates_BG + hidden_BD @ params.recurrent_DG
        enter, forget, candidate, leave = jnp.split(gates_BG, 4, axis=-1)
        cell_BD = jax.nn.sigmoid(forget) * cell_BD + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
        hidden_BD = jax.nn.sigmoid(leave) * jnp.tanh(cell_BD)
        return (hidden_BD, cell_BD), hidden_BD

    zeros_BD = jnp.zeros_like(x_BLD[:, 0])
    _, hidden_LBD = jax.lax.scan(step, (zeros_BD, zeros_BD), gates_LBG)
    return hidden_LBD.swapaxes(0, 1)


def convolution(kernel_WDE: Array, x_BLD: Array, dilation: int = 1) -> Array:
    """y_i = sum_w x_{i + (w - (k-1)/2) dilation} kernel_w, zeros beyond the ends: `[batch, n, d]`.

    Args:
      kernel_WDE: `[k, d, d]`, k odd.
      x_BLD: `[batch, n, d]`.
      dilation: positions from one tap to the next; 1: a contiguous kernel.
    """
    side = _side(kernel_WDE.shape[0]) * dilation
    return jax.lax.conv_general_dilated(
        x_BLD,
        kernel_WDE,
        window_strides=(1,),
        padding=[(side, side)],
        rhs_dilation=(dilation,),
        dimension_numbers=("NWC", "WIO", "NWC"),
    )


# The kinds -------------------------------------------------------------------------------------


class Kind(NamedTuple):
    """A layer of Table 1."""

    shapes: Callable[[Sizes], Any]  # the shapes of its parameters
    apply: Callable[[Any, Array, Sizes], Any]  # parameters, [batch, n, d] -> [batch, n, d]
    flops: Callable[[Sizes], int]  # of the forward products on one row; backward has twice as many


def init(kind: Kind, sizes: Sizes, seed: int = 0) -> Any:
    """Random parameters of variance 1 / d, drawn on the host to avoid a compilation."""
    draw = np.random.default_rng(seed)

    def value(leaf: jax.ShapeDtypeStruct) -> Array:
        return jnp.asarray(draw.normal(scale=sizes.d**-0.5, size=leaf.shape), leaf.dtype)

    return jax.tree.map(value, kind.shapes(sizes))


def _module(sizes: Sizes) -> MultiHeadAttention:
    return MultiHeadAttention(ModelConfig(d_model=sizes.d, num_heads=sizes.heads))


def _attention_shapes(sizes: Sizes) -> Any:
    init = functools.partial(_module(sizes).init, method=_attend)
    return unboxed(jax.eval_shape(init, jax.random.key(0), _float32(1, 1, sizes.d)))


def _lstm_shapes(sizes: Sizes) -> Any:
    d = sizes.d
    gates = 4 * sizes.d
    return LSTMParams(_float32(d, gates), _float32(d, gates), _float32(gates))


def _nothing(sizes: Sizes) -> Any:
    return ()


def _float32(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


def _core_flops(sizes: Sizes) -> int:
    return 4 * sizes.n**2 * sizes.d


def _restricted_core_flops(sizes: Sizes) -> int:
    return 4 * _in_blocks(sizes) * (2 * sizes.r - 1) * sizes.d


def _restricted_flops(sizes: Sizes) -> int:
    # Keys and values are projected before blocks are cut, queries and outputs after it.
    projections = 4 * (sizes.n + _in_blocks(sizes)) * sizes.d**2
    return projections + _restricted_core_flops(sizes)


def _in_blocks(sizes: Sizes) -> int:
    """Number of positions, with those that fill up the last block."""
    return sizes.n + -sizes.n % sizes.r


KINDS = {
    "self-attention alone": Kind(
        _nothing, lambda _, x_BLD, sizes: attention_core(x_BLD, sizes.heads), _core_flops
    ),
    "self-attention": Kind(
        _attention_shapes,
        lambda params, x_BLD, sizes: _module(sizes).apply(params, x_BLD, method=_attend),
        lambda sizes: 8 * sizes.n * sizes.d**2 + _core_flops(sizes),
    ),
    "recurrent": Kind(
        _lstm_shapes,
        lambda params, x_BLD, sizes: lstm(params, x_BLD),
        lambda sizes: 16 * sizes.n * sizes.d**2,
    ),
    "convolution": Kind(
        lambda sizes: _float32(sizes.k, sizes.d, sizes.d),
        lambda params, x_BLD, sizes: convolution(params, x_BLD, sizes.dilation),
        lambda sizes: 2 * sizes.k * sizes.n * sizes.d**2,
    ),
    "restricted alone": Kind(
        _nothing,
        lambda _, x_BLD, sizes: restricted_core(x_BLD, sizes.heads, sizes.r),
        _restricted_core_flops,
    ),
    "restricted": Kind(
        _attention_shapes,
        lambda params, x_BLD, sizes: _module(sizes).apply(
            params, x_BLD, sizes.r, method=_attend_nearby
        ),
        _restricted_flops,
    ),
}


# Sequential operations -------------------------------------------------------------------------


def products_in_sequence(kind: Kind, sizes: Sizes) -> int:
    """The longest chain of products in a layer's forward pass (`longest_chain`)."""
    arguments = kind.shapes(sizes), _float32(1, sizes.n, sizes.d)
    return longest_chain(lambda params, x_BLD: kind.apply(params, x_BLD, sizes), *arguments)


# Paths -----------------------------------------------------------------------------------------


class Reach(NamedTuple):
    """How far gradients reach, by the entries of Jacobians that are not 0."""

    positions: int  # number of outputs that depend on the middle input after one layer
    distance: int  # largest distance that an input reaches in one layer
    layers: int | None  # number until every output depends on every input; None: never


def reach(kind: Kind, sizes: Sizes, dilated: bool = False) -> Reach:
    """Measures how far gradients reach in a layer and in a stack of layers with other weights.

    It multiplies Jacobians by the chain rule, and scales them because small ones would underflow.

    Args:
      kind: the kind of all layers.
      sizes: n up to about 100 and a small d: a Jacobian holds n^2 d^2 numbers.
      dilated: layer number i, from 0, has dilation ((k + 1) / 2)^i. Larger ones, such as k^i,
        leave gaps: some paths would pass through positions beyond the sequence's ends.
    """

    @functools.partial(jax.jit, static_argnums=2)
    @functools.partial(jax.jacrev, has_aux=True)
    def jacobian(x_LD: Array, params: Any, sizes: Sizes) -> tuple[Array, Array]:
        y_LD = kind.apply(params, x_LD[None], sizes)[0]
        return y_LD, y_LD

    size = sizes.n * sizes.d
    x_LD = np.random.default_rng(0).normal(size=(sizes.n, sizes.d)).astype(np.float32)
    whole = np.eye(size)
    reached_LL = np.eye(sizes.n, dtype=bool)
    for layer in range(sizes.n):
        at = sizes._replace(dilation=((sizes.k + 1) // 2) ** layer) if dilated else sizes
        step, y_LD = map(np.asarray, jacobian(x_LD, init(kind, at, seed=layer), at))
        x_LD = y_LD / y_LD.std()
        whole = step.astype(np.float64).reshape(size, size) @ whole
        whole /= np.abs(whole).max()
        before_LL = reached_LL
        reached_LL = (whole.reshape(sizes.n, sizes.d, sizes.n, sizes.d) != 0).any((1, 3))
        if layer == 0:
            one_LL = reached_LL
        if reached_LL.all() or (reached_LL == before_LL).all():
            break
    outputs, inputs = np.nonzero(one_LL)
    return Reach(
        int(one_LL[:, sizes.n // 2].sum()),
        int(np.abs(outputs - inputs).max()),
        layer + 1 if reached_LL.all() else None,
    )
