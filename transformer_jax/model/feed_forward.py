"""The position-wise feed-forward network (Vaswani et al. 2017, section 3.3).

Dimension key
  B batch   L length   D d_model   F d_ff   K beams
"""

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
from jax import Array

from transformer_jax.model.axes import BATCH, FEATURES, HIDDEN, constrain, named
from transformer_jax.model.products import add_bias, product
from transformer_jax.model.records import Cache, Context, StepContext
from transformer_jax.model.sublayer import Sublayer

# swish: Ramachandran et al. 2017, section 3; gelu: Hendrycks and Gimpel 2016, equation 1, exactly.
ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": jax.nn.relu,
    "swish": jax.nn.swish,
    "gelu": functools.partial(jax.nn.gelu, approximate=False),
}


def feed_forward(
    x_BLD: Array,
    inner_DF: Array,
    inner_bias_F: Array,
    outer_FD: Array,
    outer_bias_D: Array,
    *,
    activation: str = "relu",
) -> Array:
    """f(x W1 + b1) W2 + b2 with the paper's f(h) = max(0, h), or another: `[B, L, d_model]`.

    The products are in the type of x (see `product`).

    Source: Vaswani et al. 2017, section 3.3, equation 2.
    """
    hidden_BLF = add_bias(product("BLD,DF->BLF", x_BLD, inner_DF, x_BLD.dtype), inner_bias_F)
    hidden_BLF = constrain(ACTIVATIONS[activation](hidden_BLF), BATCH, None, HIDDEN)
    return add_bias(product("BLF,FD->BLD", hidden_BLF, outer_FD, x_BLD.dtype), outer_bias_D)


class FeedForward(Sublayer):
    """The position-wise feed-forward network of a layer."""

    @nn.compact
    def __call__(self, x_BLD: Array, context: Context | None = None) -> tuple[Array, None]:
        """From `[batch, length, d_model]` to the same shape."""
        d_model, d_ff, dtype = self.config.d_model, self.config.d_ff, self.config.dtype
        xavier = nn.initializers.xavier_uniform()
        zeros = nn.initializers.zeros
        inner_DF = self.param("inner", named(xavier, FEATURES, HIDDEN), (d_model, d_ff))
        inner_bias_F = self.param("inner_bias", named(zeros, HIDDEN), (d_ff,))
        outer_FD = self.param("outer", named(xavier, HIDDEN, FEATURES), (d_ff, d_model))
        outer_bias_D = self.param("outer_bias", named(zeros, None), (d_model,))
        y_BLD = feed_forward(
            x_BLD.astype(dtype),
            inner_DF,
            inner_bias_F,
            outer_FD,
            outer_bias_D,
            activation=self.config.activation,
        )
        return y_BLD, None

    def step(
        self, x_BKD: Array, context: StepContext, memory: tuple, cache: Cache
    ) -> tuple[Array, Cache, None]:
        """The same for the newest positions."""
        return self(x_BKD)[0], cache, None
