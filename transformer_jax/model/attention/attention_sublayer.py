"""What self-attention and encoder-decoder attention share as sub-layers.

Dimension key
  B batch   L query length   M key length   D d_model   H heads   K d_k per head   V d_v per head
  G heads of keys and values
"""

from collections.abc import Callable, Mapping

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.cached_attention import cached_score
from transformer_jax.model.attention.multi_head import MultiHeadAttention
from transformer_jax.model.attention.normalizers import Normalize, Normalizer, unchanged
from transformer_jax.model.attention.patterns import Pattern
from transformer_jax.model.attention.scores import SCORES
from transformer_jax.model.attention.stateful_normalizers import Stateful
from transformer_jax.model.axes import declared
from transformer_jax.model.interfaces import Context
from transformer_jax.model.kernels.choices import Keys, Queries, Setting
from transformer_jax.model.layers.sublayer import Sublayer


class AttentionSublayer(Sublayer):
    """Multi-head attention within a layer; a subclass says what its queries attend to.

    Its parameters are those of the multi-head attention and those of the normalizer, side by side.
    """

    @nn.nowrap
    def declare(
        self,
        score: str,
        normalizer: Normalizer | Stateful,
        sizes: Mapping[str, int],
        memory_features: int | None = None,
    ) -> None:
        """Declares the parameters; for `setup`.

        Args:
          score: the name of the score function.
          normalizer: what turns scores to weights; it has parameters of its own.
          sizes: the size of each named axis of these parameters.
          memory_features: features of the positions that are attended to; None: d_model.
        """
        self.score = score
        self.attention = MultiHeadAttention(self.config, score, memory_features)
        nn.share_scope(self, self.attention)
        self.of_heads = normalizer.of_heads if isinstance(normalizer, Normalizer) else unchanged
        self.normalizer_params = declared(self, normalizer.parameters, sizes)

    def joined(self, heads_BLHV: Array, x_BLD: Array) -> Array:
        """The heads joined by W^O after the normalizer's `of_heads`: `[batch, query_len, d_model]`.

        Args:
          heads_BLHV: the heads' outputs.
          x_BLD: the input of the queries.
        """
        heads_BLHV = self.of_heads(self.normalizer_params, heads_BLHV)
        return self.attention.joined(heads_BLHV, x_BLD)

    @nn.nowrap
    def fuses(self, normalizer: str, context: Context) -> bool:
        """Whether the fused kernel can do this call; it cannot return weights or apply dropout.

        Args:
          normalizer: a name in NORMALIZERS.
          context: the input of this call.
        """
        config = self.config
        if config.attention_kernel != "fused" or gives_weights(self):
            return False
        drops = context.rows_B is not None and config.attention_dropout > 0
        return not drops and normalizer == "softmax" and SCORES[self.score].factor is not None

    def in_kernel(self, queries: Queries, keys: Keys, patterns: tuple[Pattern, ...]) -> Array:
        """`[batch, query_len, heads, d_v]`, without a matrix of weights."""
        from transformer_jax.model.kernels.fused_attention import fused_attend

        if (vectors := SCORES[self.score].vectors) is not None:
            query, key = vectors(self.attention.score_params, queries.query, keys.key)
            queries, keys = queries._replace(query=query), keys._replace(key=key)
        return fused_attend(queries, keys, Setting(patterns, self.factor()))

    @nn.nowrap
    def score_of_cache(self) -> Callable[[Array, Array], Array]:
        """The score function over keys of search: see `cached_score`."""
        return cached_score(SCORES[self.score], self.attention.score_params)

    @nn.nowrap
    def factor(self) -> float:
        """What q . k is multiplied by: 1 / sqrt(d_k) for scaled_dot."""
        factor = SCORES[self.score].factor
        assert factor is not None
        return factor(self.config.head_sizes[0])

    def probed(self, normalize: Normalize) -> Normalize:
        """The same, with zeros added to the weights by which explanations take gradients."""
        return lambda scores, mask: self.perturb("weights", normalize(scores, mask))

    @nn.nowrap
    def keep_for_plots(self, weights: Array) -> None:
        """Keeps the weights of every layer and head if plots ask for them."""
        if self.is_mutable_collection("intermediates"):
            self.sow("intermediates", "attention_weights", weights)


def gives_weights(module: nn.Module) -> bool:
    """Whether attention has to give its weights, for all pairs of positions."""
    return module.is_mutable_collection("intermediates") or module.is_initializing()


def for_every_head(config: ModelConfig, x_BMGK: Array) -> Array:
    """Keys or values, once for each head of queries: `[batch, key_len, heads, d_k or d_v]`.

    Query head h uses key head h // (num_heads / key_heads).

    Source: Ainslie et al. 2023, section 2.2.
    """
    sharing = config.num_heads // config.key_heads
    return x_BMGK if sharing == 1 else jnp.repeat(x_BMGK, sharing, axis=2)
