"""The position-wise feed-forward network (Vaswani et al. 2017, section 3.3), gated or not.

Dimension key
  B batch   L length   D d_model   F d_ff   K beams
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import flax.linen as nn
import jax
from jax import Array

from transformer_jax.model.axes import BATCH, HIDDEN, Parameter, constrain, declared
from transformer_jax.model.interfaces import Cache, Context, StepContext
from transformer_jax.model.layers.dropout import Drop, Dropout, kept
from transformer_jax.model.layers.matrix_products import add_bias, product
from transformer_jax.model.layers.sublayer import Sublayer


class Activation(NamedTuple):
    """An entry of the registry."""

    compute: Callable[[Array], Array]  # f, of each hidden unit
    gated: bool = False  # whether f(x W1 + b1) is multiplied by another linear map of x


_gelu = functools.partial(jax.nn.gelu, approximate=False)
# swish: Ramachandran et al. 2017, section 3; gelu: Hendrycks and Gimpel 2016, equation 1, exactly.
# The gated ones: Shazeer 2020, equations 4 and 5.
ACTIVATIONS: dict[str, Activation] = {
    "relu": Activation(jax.nn.relu),
    "swish": Activation(jax.nn.swish),
    "gelu": Activation(_gelu),
    "glu": Activation(jax.nn.sigmoid, gated=True),
    "reglu": Activation(jax.nn.relu, gated=True),
    "geglu": Activation(_gelu, gated=True),
    "swiglu": Activation(jax.nn.swish, gated=True),
}


def feed_forward(
    x_BLD: Array,
    inner_DF: Array,
    inner_bias_F: Array,
    outer_FD: Array,
    outer_bias_D: Array,
    *,
    activation: str = "relu",
    linear: tuple[Array, Array] | None = None,
    drop: Drop = kept,
) -> Array:
    """f(x W1 + b1) W2 + b2 with the paper's f(h) = max(0, h), or another: `[B, L, d_model]`.

    With `linear`, it is (f(x W1 + b1) * (x V + c)) W2 + b2.

    Args:
      x_BLD: `[batch, length, d_model]`; the products are in its type (see `product`).
      inner_DF: W1 `[d_model, d_ff]`.
      inner_bias_F: b1 `[d_ff]`.
      outer_FD: W2 `[d_ff, d_model]`.
      outer_bias_D: b2 `[d_model]`.
      activation: a name in ACTIVATIONS, for f.
      linear: V `[d_model, d_ff]` and c `[d_ff]`, if the activation is gated.
      drop: dropout of the hidden units, which W2 multiplies; by default none.

    Source: Vaswani et al. 2017, section 3.3, equation 2; gated: Shazeer 2020, equations 4 to 6,
    with the biases of equation 4.
    """
    hidden_BLF = add_bias(product("BLD,DF->BLF", x_BLD, inner_DF, x_BLD.dtype), inner_bias_F)
    hidden_BLF = ACTIVATIONS[activation].compute(hidden_BLF)
    if linear is not None:
        linear_DF, linear_bias_F = linear
        hidden_BLF *= add_bias(product("BLD,DF->BLF", x_BLD, linear_DF, x_BLD.dtype), linear_bias_F)
    hidden_BLF = drop(constrain(hidden_BLF, BATCH, None, HIDDEN))
    return add_bias(product("BLF,FD->BLD", hidden_BLF, outer_FD, x_BLD.dtype), outer_bias_D)


_xavier, _zeros = nn.initializers.xavier_uniform(), nn.initializers.zeros
NETWORK = {
    "inner": Parameter(_xavier, ("d_model", "d_ff"), 1),
    "inner_bias": Parameter(_zeros, ("d_ff",)),
    "outer": Parameter(_xavier, ("d_ff", "d_model"), 1),
    "outer_bias": Parameter(_zeros, ("d_model",)),
}
# What a gated network has too.
LINEAR = {"linear": NETWORK["inner"], "linear_bias": NETWORK["inner_bias"]}


class FeedForward(Sublayer):
    """The position-wise feed-forward network of a layer."""

    @nn.compact
    def __call__(self, x_BLD: Array, context: Context | None = None) -> tuple[Array, None]:
        """From `[batch, length, d_model]` to the same shape."""
        config = self.config
        is_gated = ACTIVATIONS[config.activation].gated
        params = declared(self, NETWORK | (LINEAR if is_gated else {}), config.axis_sizes)
        drop: Drop = kept
        if context is not None and config.activation_dropout:
            dropout = Dropout(config.activation_dropout, name="dropout")
            drop = functools.partial(dropout, noise_source=dropout.noise_source(context.rows_B))
        y_BLD = feed_forward(
            x_BLD.astype(config.dtype),
            params["inner"],
            params["inner_bias"],
            params["outer"],
            params["outer_bias"],
            activation=config.activation,
            linear=(params["linear"], params["linear_bias"]) if is_gated else None,
            drop=drop,
        )
        return y_BLD, None

    def step(
        self, x_BKD: Array, context: StepContext, memory: tuple, cache: Cache
    ) -> tuple[Array, Cache, None]:
        """The same for the newest positions."""
        return self(x_BKD)[0], cache, None
