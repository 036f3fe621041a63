"""What replaces a decoder's self-attention, so that each step of search takes the same time.

Each position is mixed with what came before it through a state of constant size, which a hypothesis
carries from one step of search to the next. A new one is a subclass of `Sublayer` (sublayer.py) and
its line in `RUNNING_MIXERS`, which makes it a value of model.decoder.

Dimension key
  B batch   L length   M length of what is averaged   D d_model   F outputs of a product   K beams
  In linear attention: M key length   H heads   K d_k per head   V d_v per head   J beams
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.attention.affine_scan import affine_scan
from transformer_jax.model.attention.attention_sublayer import for_every_head
from transformer_jax.model.attention.multi_head import MultiHeadAttention, attend
from transformer_jax.model.attention.patterns import causal, mask_of, same_sentence
from transformer_jax.model.attention.scores import dot
from transformer_jax.model.axes import BATCH, FEATURES, HEADS, HIDDEN, constrain, named, zeros
from transformer_jax.model.interfaces import Cache, Context, Place, SearchSizes, StepContext
from transformer_jax.model.layers.feed_forward import FeedForward
from transformer_jax.model.layers.matrix_products import product, sum_type
from transformer_jax.model.layers.sublayer import Sublayer

_matrix = named(nn.initializers.xavier_uniform(), FEATURES, HIDDEN, summed=1)
_vector = named(nn.initializers.zeros, HIDDEN)
LEAST_SUM = 1e-6  # what a query's scores sum to at least: phi is nearly 0 far below 0


def mean_so_far(x_BLD: Array, context: Context) -> Array:
    """The mean of each sentence's positions up to this one, `[batch, length, d_model]`, float32.

    Source: Zhang et al. 2018, equation 1; its form for training, a product with a mask.
    """
    mask_BLL = mask_of((same_sentence, causal), context.place, context.place)[:, 0]
    weights_BLL = mask_BLL / (context.place.positions + 1.0)[..., None]
    wide = sum_type(x_BLD.dtype)
    return jnp.einsum("BLM,BMD->BLD", weights_BLL.astype(wide), x_BLD.astype(wide))


class AverageAttention(Sublayer):
    """The mean of all positions so far, a feed-forward network, and a gate (Zhang et al. 2018).

    The output is i x + f g with g = FFN(mean) and [i; f] = sigmoid(W [x; g]). The residual and the
    norm around it are those of every sub-layer.
    """

    def setup(self) -> None:
        d_model = self.config.d_model
        if self.config.d_ff:
            self.feed_forward = FeedForward(self.config)
        self.gates = self.param("gates", _matrix, (2 * d_model, 2 * d_model))
        self.gates_bias = self.param("gates_bias", _vector, (2 * d_model,))

    def __call__(self, x_BLD: Array, context: Context) -> tuple[Array, None]:
        """`[batch, length, d_model]`; there are no weights."""
        return self._gated(x_BLD, mean_so_far(x_BLD, context), context), None

    @nn.nowrap
    def empty(self, sizes: SearchSizes) -> Cache:
        """The sum of the positions so far."""
        shape = (sizes.batch, sizes.beams, self.config.d_model)
        return Cache((), zeros(shape, (BATCH, None, None)))

    def step(
        self, x_BKD: Array, context: StepContext, memory: Any, cache: Cache
    ) -> tuple[Array, Cache, None]:
        """One new position of every hypothesis."""
        sum_BKD = cache.carried + x_BKD
        mean_BKD = sum_BKD / (context.position_B + 1.0)[:, None, None]
        return self._gated(x_BKD, mean_BKD), Cache((), sum_BKD), None

    def _gated(self, x_BLD: Array, mean_BLD: Array, context: Context | None = None) -> Array:
        dtype = self.config.dtype
        g_BLD = self.feed_forward(mean_BLD, context)[0] if self.config.d_ff else mean_BLD
        both = jnp.concatenate([x_BLD.astype(dtype), g_BLD.astype(dtype)], axis=-1)
        # Without this, XLA's partitioner divides the joined axis on a mesh with data, fsdp and
        # tensor above 1, and gradients are wrong by 4 % with micro-batches (JAX 0.10).
        both = constrain(both, BATCH, None, None)
        gates = product("BLD,DF->BLF", both, self.gates, dtype) + self.gates_bias
        input_BLD, forget_BLD = jnp.split(jax.nn.sigmoid(gates), 2, axis=-1)
        return input_BLD * x_BLD + forget_BLD * g_BLD


class SimplerUnit(Sublayer):
    """The simpler simple recurrent unit (Kim et al. 2019, section 3.1).

    f = sigmoid(W_f x + b_f), c_t = f c_{t-1} + (1 - f) W x, and the output is relu(c_t).
    """

    def setup(self) -> None:
        d_model = self.config.d_model
        self.input = self.param("input", _matrix, (d_model, d_model))
        self.forget = self.param("forget", _matrix, (d_model, d_model))
        self.forget_bias = self.param("forget_bias", _vector, (d_model,))

    def __call__(self, x_BLD: Array, context: Context) -> tuple[Array, None]:
        """`[batch, length, d_model]`; there are no weights."""
        forget_BLD, added_BLD = self._products(x_BLD)
        begins_BL1 = (context.place.positions == 0)[..., None]
        kept_BLD = jnp.where(begins_BL1, 0.0, forget_BLD)  # a sentence begins with c = 0
        return jax.nn.relu(affine_scan(kept_BLD, added_BLD, axis=1)), None

    @nn.nowrap
    def empty(self, sizes: SearchSizes) -> Cache:
        """c, zero at first."""
        shape = (sizes.batch, sizes.beams, self.config.d_model)
        return Cache((), zeros(shape, (BATCH, None, HIDDEN)))

    def step(
        self, x_BKD: Array, context: StepContext, memory: Any, cache: Cache
    ) -> tuple[Array, Cache, None]:
        """One new position of every hypothesis."""
        forget_BKD, added_BKD = self._products(x_BKD)
        c_BKD = forget_BKD * cache.carried + added_BKD
        return jax.nn.relu(c_BKD), Cache((), c_BKD), None

    def _products(self, x_BLD: Array) -> tuple[Array, Array]:
        """f and (1 - f) W x, float32."""
        dtype = self.config.dtype
        wide = sum_type(x_BLD.dtype)

        def times(matrix_DD: Array) -> Array:
            y_BLD = product("BLD,DF->BLF", x_BLD, matrix_DD, dtype)
            return constrain(y_BLD.astype(wide), BATCH, None, HIDDEN)

        forget_BLD = jax.nn.sigmoid(times(self.forget) + self.forget_bias)
        return forget_BLD, (1 - forget_BLD) * times(self.input)


def phi(x: Array) -> Array:
    """elu(x) + 1, positive features of queries and keys, float32.

    Source: Katharopoulos et al. 2020, equation 7.
    """
    x = x.astype(sum_type(x.dtype))
    # elu(x) + 1 would subtract 1 from exp(x) and add it again, which rounds small values to 0.
    return jnp.where(x > 0, x + 1, jnp.exp(jnp.where(x > 0, 0, x)))


def linear_attention(query_BLHK: Array, key_BLHK: Array, value_BLHV: Array, place: Place) -> Array:
    """sum_m phi(q_l) . phi(k_m) v_m / sum_m phi(q_l) . phi(k_m) over each sentence up to l.

    It is equation 1 with another score and another normalizer, and takes a matrix of scores: rows
    are short. `LinearAttention.step` computes the same from a running state.

    Args:
      query_BLHK: queries `[batch, length, heads, d_k]`.
      key_BLHK: keys `[batch, length, heads, d_k]`.
      value_BLHV: values `[batch, length, heads, d_v]`.
      place: of the positions; the sums restart at each sentence of a packed row.

    Returns:
      `[batch, length, heads, d_v]` in the values' type.

    Source: Katharopoulos et al. 2020, equations 8 and 9.
    """

    def score(query_BLHK: Array, key_BMHK: Array) -> Array:
        return dot(None, phi(query_BLHK), phi(key_BMHK))

    def normalize(scores_BHLM: Array, mask: Array) -> Array:
        scores_BHLM = jnp.where(mask, scores_BHLM, 0.0)
        return scores_BHLM / jnp.maximum(scores_BHLM.sum(-1, keepdims=True), LEAST_SUM)

    mask_B1LL = mask_of((same_sentence, causal), place, place)
    return attend(query_BLHK, key_BLHK, value_BLHV, mask_B1LL, score=score, normalize=normalize)[0]


class LinearAttention(Sublayer):
    """Self-attention with phi(q) . phi(k) instead of a softmax (Katharopoulos et al. 2020).

    Search keeps the sums of phi(k) v^T and of phi(k), so no step reads earlier positions.
    """

    def setup(self) -> None:
        self.attention = MultiHeadAttention(self.config)
        nn.share_scope(self, self.attention)

    def __call__(self, x_BLD: Array, context: Context) -> tuple[Array, None]:
        """`[batch, length, d_model]`; it gives no weights."""
        query_BLHK, key_BLHK, value_BLHV = self._projected(x_BLD)
        heads_BLHV = linear_attention(query_BLHK, key_BLHK, value_BLHV, context.place)
        return self.attention.joined(heads_BLHV, x_BLD), None

    @nn.nowrap
    def empty(self, sizes: SearchSizes) -> Cache:
        """The sums of phi(k) v^T and of phi(k), zero at first."""
        shape = (sizes.batch, sizes.beams, self.config.num_heads)
        d_k, d_v = self.config.head_sizes
        names = (BATCH, None, HEADS, None)
        return Cache((), (zeros((*shape, d_k, d_v), (*names, None)), zeros((*shape, d_k), names)))

    def step(
        self, x_BJD: Array, context: StepContext, memory: Any, cache: Cache
    ) -> tuple[Array, Cache, None]:
        """One new position of every hypothesis.

        Source: Katharopoulos et al. 2020, equations 18 to 20.
        """
        query_BJHK, key_BJHK, value_BJHV = self._projected(x_BJD)
        query_BJHK, key_BJHK = phi(query_BJHK), phi(key_BJHK)
        products_BJHKV, keys_BJHK = cache.carried
        products_BJHKV += key_BJHK[..., None] * value_BJHV[..., None, :]
        keys_BJHK += key_BJHK
        sum_BJHV = jnp.einsum("BJHK,BJHKV->BJHV", query_BJHK, products_BJHKV)
        total_BJH = jnp.einsum("BJHK,BJHK->BJH", query_BJHK, keys_BJHK)
        heads_BJHV = sum_BJHV / jnp.maximum(total_BJH, LEAST_SUM)[..., None]
        y_BJD = self.attention.joined(heads_BJHV.astype(value_BJHV.dtype), x_BJD)
        return y_BJD, Cache((), (products_BJHKV, keys_BJHK)), None

    def _projected(self, x_BLD: Array) -> tuple[Array, Array, Array]:
        """Queries, keys and values, each for every head."""
        key_BLHK, value_BLHV = (
            for_every_head(self.config, x) for x in self.attention.keys_values(x_BLD)
        )
        return self.attention.queries(x_BLD), key_BLHK, value_BLHV


# By the value of model.decoder: the name of the sub-layer that takes the place of self-attention,
# which is in the paths of parameters, and its class.
RUNNING_MIXERS: dict[str, tuple[str, type[Sublayer]]] = {
    "average": ("average_attention", AverageAttention),
    "ssru": ("ssru", SimplerUnit),
    "linear": ("linear_attention", LinearAttention),
}
