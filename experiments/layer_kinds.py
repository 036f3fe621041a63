"""The layers of Table 1, their counted costs, and how far they carry information (section 4).

Each layer maps `[batch, n, d]` to `[batch, n, d]`. The table's letters are n length, d width, k
kernel, r neighborhood. A window is odd and has its position in the middle: the paper does not speak
of causal windows here.

Dimension key
  B batch   L length   D d_model   E d_model, of a product's result   H heads   K d_k per head
  V d_v per head   G the four gates of an LSTM, 4 d_model   W positions of a kernel
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import Jaxpr, Literal

from transformer_jax.model.attention.multi_head import attend
from transformer_jax.model.attention.windows import Blocks
from transformer_jax.model.layers.matrix_products import product


class Sizes(NamedTuple):
    """The sizes of a layer, in Table 1's letters."""

    n: int  # length
    d: int  # width
    k: int | None = None  # kernel of a convolution, odd
    r: int | None = None  # neighborhood of restricted self-attention, odd; None: all positions
    heads: int = 1  # of self-attention; d_k = d / heads
    dilation: int = 1  # of a convolution: positions from one tap to the next

    def blocks(self) -> Blocks:
        """How self-attention cuts a row: blocks of r queries with the r positions around each."""
        if self.r is None:
            return Blocks(self.n, self.n)
        return Blocks(self.n, self.r, side(self.r), side(self.r))


def side(window: int) -> int:
    """Positions on each side of a window's middle. Raises ValueError if it has none."""
    if window % 2 == 0:
        raise ValueError(f"a window of {window} has no middle; it must be odd.")
    return window // 2


def float32(*shape: int) -> jax.ShapeDtypeStruct:
    """The shape of a parameter."""
    return jax.ShapeDtypeStruct(shape, jnp.float32)


# The kinds: shapes of parameters, layer, and FLOPs of the forward products on one row (the backward
# pass has twice as many) ------------------------------------------------------------------------


class Attention(NamedTuple):
    """Self-attention, restricted if its sizes have an r."""

    projected: bool  # a layer with its four projections; False: "alone", as Table 1 counts it

    def shapes(self, sizes: Sizes) -> Any:
        d_k = sizes.d // sizes.heads
        names = ("query", "key", "value") if self.projected else ()
        shapes = dict.fromkeys(names, float32(sizes.d, sizes.heads, d_k))
        return shapes | ({"out": float32(sizes.heads, d_k, sizes.d)} if self.projected else {})

    def apply(self, params: Any, x_BLD: Array, sizes: Sizes) -> Array:
        """Attention of x to itself, or of each position to the r positions around it.

        Alone, work and memory are O(n^2 d), or O(r n d). A block of r queries sees the 2r - 1 keys
        around it, so that both products stay large; that is twice the work of r keys per query.
        Positions of a neighborhood outside the sequence are masked.

        Args:
          params: the projections; empty if it has none.
          x_BLD: `[batch, n, d]`.
          sizes: those of the layer.

        Returns:
          `[batch, n, d]`

        Raises:
          ValueError: r is even.

        Source: Vaswani et al. 2017, section 4.
        """

        def heads_of(x_BLD: Array, name: str) -> Array:
            if not self.projected:
                return x_BLD.reshape(*x_BLD.shape[:2], sizes.heads, -1)
            return product("BLD,DHK->BLHK", x_BLD, params[name], "float32")

        blocks = sizes.blocks()
        key, value = (blocks.of_keys(heads_of(x_BLD, name)) for name in ("key", "value"))
        queries_BLD = blocks.of_queries(x_BLD)
        mask = jnp.ones((1, 1, 1, 1), bool)
        if sizes.r is not None:
            real = blocks.of_keys(jnp.ones(x_BLD.shape[:2], bool))[:, None, None]
            mask = real & (abs(blocks.distance()) <= blocks.behind)
        heads_BLHV, _ = attend(heads_of(queries_BLD, "query"), key, value, mask)
        if self.projected:
            y_BLD = product("BLHV,HVD->BLD", heads_BLHV, params["out"], "float32")
        else:
            y_BLD = heads_BLHV.reshape(queries_BLD.shape)
        return blocks.joined(y_BLD)

    def flops(self, sizes: Sizes) -> int:
        blocks = sizes.blocks()
        queries = blocks.number * blocks.queries
        # Keys and values are projected before blocks are cut, queries and outputs after it.
        projections = 4 * (sizes.n + queries) * sizes.d**2 if self.projected else 0
        return projections + 4 * queries * blocks.keys * sizes.d


class Recurrent:
    """A left-to-right layer of long short-term memory that starts from zeros.

    The columns of its gates are those of input, forget, candidate, output.

    Source: Hochreiter and Schmidhuber 1997, with the forget gates of Gers et al. 2000.
    """

    def shapes(self, sizes: Sizes) -> Any:
        gates = 4 * sizes.d
        return float32(sizes.d, gates), float32(sizes.d, gates), float32(gates)

    def apply(self, params: Any, x_BLD: Array, sizes: Sizes) -> Array:
        input_DG, recurrent_DG, bias_G = params
        # The products of inputs do not depend on states, so one large product computes them all.
        gates_LBG = jnp.einsum("BLD,DG->LBG", x_BLD, input_DG) + bias_G

        def step(carry: tuple[Array, Array], gates_BG: Array) -> tuple[tuple[Array, Array], Array]:
            hidden_BD, cell_BD = carry
            gates_BG = gates_BG + hidden_BD @ recurrent_DG
            enter, forget, candidate, leave = jnp.split(gates_BG, 4, axis=-1)
            cell_BD = jax.nn.sigmoid(forget) * cell_BD + jax.nn.sigmoid(enter) * jnp.tanh(candidate)
            hidden_BD = jax.nn.sigmoid(leave) * jnp.tanh(cell_BD)
            return (hidden_BD, cell_BD), hidden_BD

        zeros_BD = jnp.zeros_like(x_BLD[:, 0])
        _, hidden_LBD = jax.lax.scan(step, (zeros_BD, zeros_BD), gates_LBG)
        return hidden_LBD.swapaxes(0, 1)

    def flops(self, sizes: Sizes) -> int:
        return 16 * sizes.n * sizes.d**2


class Convolution:
    """y_i = sum_w x_{i + (w - (k-1)/2) dilation} kernel_w, with zeros beyond the ends."""

    def shapes(self, sizes: Sizes) -> Any:
        return float32(sizes.k, sizes.d, sizes.d)

    def apply(self, kernel_WDE: Array, x_BLD: Array, sizes: Sizes) -> Array:
        padding = side(sizes.k) * sizes.dilation
        return jax.lax.conv_general_dilated(
            x_BLD,
            kernel_WDE,
            window_strides=(1,),
            padding=[(padding, padding)],
            rhs_dilation=(sizes.dilation,),
            dimension_numbers=("NWC", "WIO", "NWC"),
        )

    def flops(self, sizes: Sizes) -> int:
        return 2 * sizes.k * sizes.n * sizes.d**2


Kind = Attention | Recurrent | Convolution
KINDS: dict[str, Kind] = {
    "self-attention alone": Attention(projected=False),
    "self-attention": Attention(projected=True),
    "recurrent": Recurrent(),
    "convolution": Convolution(),
    "restricted alone": Attention(projected=False),
    "restricted": Attention(projected=True),
}


def init(kind: Kind, sizes: Sizes, seed: int = 0) -> Any:
    """Random parameters of variance 1 / d, drawn on the host to avoid a compilation."""
    draw = np.random.default_rng(seed)

    def value(leaf: jax.ShapeDtypeStruct) -> Array:
        return jnp.asarray(draw.normal(scale=sizes.d**-0.5, size=leaf.shape), leaf.dtype)

    return jax.tree.map(value, kind.shapes(sizes))


# Sequential operations -------------------------------------------------------------------------


def products_in_sequence(kind: Kind, sizes: Sizes) -> int:
    """The longest chain of products in a layer's forward pass (`longest_chain`)."""
    shapes = kind.shapes(sizes), float32(1, sizes.n, sizes.d)
    return longest_chain(lambda params, x_BLD: kind.apply(params, x_BLD, sizes), *shapes)


def longest_chain(function: Callable[..., Any], *arguments: Any) -> int:
    """Number of products in the longest chain, in which each needs the one before it.

    Args:
      function: a function of arrays without `cond` and `while`, because a jaxpr does not show how
        often a `while` runs or which branch a `cond` takes.
      arguments: arrays or their shapes; nothing is computed.
    """
    with jax.disable_jit():  # the trace has every step of a scan
        jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return max(_depths(jaxpr, [0] * len(jaxpr.invars)))


def _depths(jaxpr: Jaxpr, depths: Sequence[int]) -> list[int]:
    """The longest chain up to each output, given those up to the inputs."""
    known = dict(zip(jaxpr.invars, depths, strict=True))

    def depths_of(atoms: Sequence[Any]) -> list[int]:
        return [0 if isinstance(atom, Literal) else known.get(atom, 0) for atom in atoms]

    for equation in jaxpr.eqns:
        results = depths_of(equation.invars)
        if inner := equation.params.get("jaxpr") or equation.params.get("call_jaxpr"):
            results = _depths(getattr(inner, "jaxpr", inner), results)
        else:
            own = equation.primitive.name in ("dot_general", "conv_general_dilated")
            results = [max(results, default=0) + own] * len(equation.outvars)
        known.update(zip(equation.outvars, results, strict=True))
    return depths_of(jaxpr.outvars)


# Paths -----------------------------------------------------------------------------------------


class Reach(NamedTuple):
    """How far gradients reach, by the entries of Jacobians that are not 0."""

    positions_reached: int  # number of outputs that depend on the middle input after one layer
    distance_reached: int  # largest distance that an input reaches in one layer
    layers_to_reach_all: int | None  # until every output depends on every input; None: never


def reach(kind: Kind, sizes: Sizes, dilated: bool = False) -> Reach:
    """Measures how far gradients reach in a layer and in a stack of layers with other weights.

    By the chain rule, an output depends on an input if a path of entries that are not 0 leads
    through the Jacobians of the layers.

    Args:
      kind: the kind of all layers.
      sizes: n up to about 100 and a small d: a Jacobian holds n^2 d^2 numbers.
      dilated: layer number i, from 0, has dilation ((k + 1) / 2)^i. Larger ones, such as k^i,
        leave gaps: some paths would pass through positions beyond the sequence's ends.
    """
    x_LD = np.random.default_rng(0).normal(size=(sizes.n, sizes.d)).astype(np.float32)

    @functools.partial(jax.jit, static_argnums=1)
    def jacobian(params: Any, sizes: Sizes) -> Array:
        return jax.jacrev(lambda x_LD: kind.apply(params, x_LD[None], sizes)[0])(x_LD)

    size = sizes.n * sizes.d
    path = np.eye(size, dtype=bool)
    reached = []  # after each layer: which outputs depend on which inputs, [n, n]
    for layer in range(sizes.n):
        at = sizes._replace(dilation=((sizes.k + 1) // 2) ** layer) if dilated else sizes
        step = np.asarray(jacobian(init(kind, at, seed=layer), at)).reshape(size, size)
        path = (step != 0) @ path
        reached.append(path.reshape(sizes.n, sizes.d, sizes.n, sizes.d).any((1, 3)))
        if reached[-1].all() or (layer and (reached[-1] == reached[-2]).all()):
            break
    outputs, inputs = np.nonzero(reached[0])
    layers = len(reached) if reached[-1].all() else None
    middle = int(reached[0][:, sizes.n // 2].sum())
    return Reach(middle, int(abs(outputs - inputs).max()), layers)
