"""The Transformer (Vaswani et al. 2017, figure 1), and one step of its decoder for search.

Dimension key
  B batch   L target length   M source length   D d_model   K beams   V vocabulary, padded
"""

import itertools
from typing import NamedTuple

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.schema import ModelConfig
from transformer_jax.model.attention import KeysValues, causal_mask, segment_mask
from transformer_jax.model.encoder_decoder import EncoderDecoder, output_logits
from transformer_jax.model.layers import DecoderLayer, EncoderLayer, LayerNorm, head_sizes
from transformer_jax.model.positions import sinusoids


class Memory(NamedTuple):
    """What a source sentence gives to every step of search; it never moves between beams."""

    keys_values: tuple[KeysValues, ...]  # a layer: [B, heads, M, d_k], [B, heads, M, d_v]
    mask_B1M1: Array  # True = a real source position


# A layer: blocks of positions, [B, heads, length, K, d_k] and [..., d_v].
Cache = tuple[tuple[KeysValues, ...], ...]
SHORTEST_READ = 16  # positions of a cache; reads are of so many, or twice, four times, ... as many


def _empty_keys_values(config: ModelConfig, batch: int, *places: int) -> KeysValues:
    d_k, d_v = head_sizes(config)
    shape = (batch, config.num_heads, *places)
    return jnp.zeros((*shape, d_k), config.dtype), jnp.zeros((*shape, d_v), config.dtype)


def own_past(position_B: Array, ancestors_BKT: Array) -> Array:
    """True where a key of the cache is of a hypothesis's own past `[batch, 1, T * beams, beams]`.

    Args:
      position_B: int32, the newest subwords' 0-based positions.
      ancestors_BKT: see `EncoderDecoder.decode_step`.
    """
    batch, beams, length = ancestors_BKT.shape
    own_BTJK = ancestors_BKT.transpose(0, 2, 1)[:, :, None] == jnp.arange(beams)[:, None]
    past_BT = jnp.arange(length) <= position_B[:, None]
    return (own_BTJK & past_BT[:, :, None, None]).reshape(batch, 1, length * beams, beams)


class Positions(nn.Module):
    """The chosen positional encoding: sinusoidal (no length limit), learned or none."""

    config: ModelConfig

    @nn.compact
    def __call__(self, positions: Array, length: int) -> Array | float:
        """Vectors `[*positions.shape, d_model]` of 0-based positions below `length`.

        Raises:
          ValueError: `length` exceeds what learned positions have.
        """
        config = self.config
        if config.positions == "none":
            return 0.0
        if config.positions == "sinusoidal":
            return jnp.asarray(sinusoids(length, config.d_model))[positions]
        # A table's last row would silently stand for all that is beyond it: refuse.
        if length > config.max_positions:
            raise ValueError(
                f"{length} positions are more than the model.max_positions={config.max_positions} "
                "learned ones. Sinusoidal positions have no limit."
            )
        init = nn.initializers.normal(config.d_model**-0.5)
        return self.param("table", init, (config.max_positions, config.d_model))[positions]


class Transformer(EncoderDecoder):
    """Encoder and decoder; every method is a pure function through `Transformer.apply`."""

    def setup(self) -> None:
        """The embeddings, positions and layers."""
        super().setup()
        config, layers = self.config, range(self.config.num_layers)
        encoder_layer = nn.remat(EncoderLayer) if self.remat else EncoderLayer
        decoder_layer = nn.remat(DecoderLayer) if self.remat else DecoderLayer
        self.src_positions, self.tgt_positions = Positions(config), Positions(config)
        self.encoder = [encoder_layer(config) for _ in layers]
        self.decoder = [decoder_layer(config) for _ in layers]
        if config.norm == "pre":  # the sum of all residuals is normalised once, at the end
            self.encoder_norm, self.decoder_norm = LayerNorm(), LayerNorm()

    def encode(
        self,
        src_ids_BM: Array,
        src_segments_BM: Array,
        src_positions_BM: Array,
        rows_B: Array | None = None,
    ) -> Array:
        """The encoder's output, float32 `[batch, src_len, d_model]`; see `EncoderDecoder`."""
        vectors = self.src_positions(src_positions_BM, src_ids_BM.shape[1])
        x_BMD = self.embedding(src_ids_BM, vectors, rows_B)
        mask_B1MM = segment_mask(src_segments_BM, src_segments_BM)
        for layer in self.encoder:
            x_BMD = layer(x_BMD, mask_B1MM, rows_B)
        return self.encoder_norm(x_BMD) if self.config.norm == "pre" else x_BMD

    def decode(
        self,
        encoded_BMD: Array,
        src_segments_BM: Array,
        input_ids_BL: Array,
        tgt_segments_BL: Array,
        tgt_positions_BL: Array,
        rows_B: Array | None = None,
    ) -> Array:
        """The decoder's output, float32 `[batch, tgt_len, d_model]`; see `EncoderDecoder`."""
        vectors = self.tgt_positions(tgt_positions_BL, input_ids_BL.shape[1])
        x_BLD = self._embed_target(input_ids_BL, vectors, rows_B)
        causal_11LL = causal_mask(input_ids_BL.shape[1])
        self_mask_B1LL = segment_mask(tgt_segments_BL, tgt_segments_BL) & causal_11LL
        cross_mask_B1LM = segment_mask(tgt_segments_BL, src_segments_BM)
        for layer in self.decoder:
            x_BLD = layer(x_BLD, encoded_BMD, self_mask_B1LL, cross_mask_B1LM, rows_B)
        return self.decoder_norm(x_BLD) if self.config.norm == "pre" else x_BLD

    def start_decoding(self, encoded_BMD: Array, src_segments_BM: Array) -> Memory:
        """Keys and values of every layer; see `EncoderDecoder`."""
        keys_values = tuple(layer.memory(encoded_BMD) for layer in self.decoder)
        return Memory(keys_values, (src_segments_BM != 0)[:, None, :, None])

    def decode_step(
        self,
        ids_BK: Array,
        position_B: Array,
        parents_BK: Array,
        ancestors_BKT: Array,
        memory: Memory,
        cache: Cache,
        output_VD: Array,
    ) -> tuple[Array, Cache]:
        """Logits `[batch, beams, vocabulary]`, and the new cache; see `EncoderDecoder`.

        What is cached never moves with its hypothesis: masks find its ancestors.
        """
        vectors_BD = self.tgt_positions(position_B, ancestors_BKT.shape[2])
        vectors = vectors_BD if isinstance(vectors_BD, float) else vectors_BD[:, None]
        x_BKD = self._embed_target(ids_BK, vectors, None)
        past = (position_B, own_past(position_B, ancestors_BKT))
        written = []
        for layer, keys_values, old in zip(self.decoder, memory.keys_values, cache, strict=True):
            x_BKD, new = layer.step(x_BKD, keys_values, old, memory.mask_B1M1, *past)
            written.append(new)
        x_BKD = self.decoder_norm(x_BKD) if self.config.norm == "pre" else x_BKD
        return output_logits(x_BKD, output_VD, self.config.dtype), tuple(written)

    @nn.nowrap
    def empty_memory(self, batch: int, src_length: int) -> Memory:
        """What rows without a sentence give to search."""
        one = _empty_keys_values(self.config, batch, src_length)
        return Memory((one,) * self.config.num_layers, jnp.zeros((batch, 1, src_length, 1), bool))

    @nn.nowrap
    def empty_cache(self, batch: int, beams: int, max_length: int) -> Cache:
        """Keys and values of no position yet, for `beams` hypotheses a sentence."""
        ends = [0]
        while ends[-1] < max_length:
            ends.append(min(max_length, max(2 * ends[-1], SHORTEST_READ)))
        blocks = tuple(
            _empty_keys_values(self.config, batch, end - begin, beams)
            for begin, end in itertools.pairwise(ends)
        )
        return (blocks,) * self.config.num_layers
