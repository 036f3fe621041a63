"""Subword embeddings and the decoder's input (Vaswani et al. 2017, section 3.4, figure 1).

Dimension key
  B batch   L length   D d_model   V vocabulary, padded   M source length   F model.features
"""

from collections.abc import Iterator

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import (
    BATCH,
    FEATURES,
    REPLICA,
    VOCABULARY,
    Parameter,
    constrain,
    declared,
    named,
)
from transformer_jax.model.layers.dropout import Dropout
from transformer_jax.model.layers.matrix_products import add_bias, product
from transformer_jax.model.layers.norms import unit
from transformer_jax.text.batches import Packed

VOCABULARY_MULTIPLE = 128  # for any mesh, so that shapes and initial values never depend on it


def padded_vocabulary(size: int, multiple: int = VOCABULARY_MULTIPLE) -> int:
    """The vocabulary's size rounded up to the next multiple of `multiple`."""
    return -(-size // multiple) * multiple


def shift_right(ids_BL: Array, positions_BL: Array, bos: int) -> Array:
    """The decoder's input: each sentence shifted right by one, after BOS; `[batch, tgt_len]`.

    A sentence of a packed row starts where its position is 0.
    """
    previous_BL = jnp.pad(ids_BL, ((0, 0), (1, 0)))[:, :-1]
    return jnp.where(positions_BL == 0, bos, previous_BL)


def with_codes(ids_BL: Array, target: Packed, source: Packed) -> Array:
    """The decoder's input, whose first subword is the first one of the source; `[batch, tgt_len]`.

    Args:
      ids_BL: the target, shifted right.
      target: where its sentences are.
      source: the source side of the same batch.
    """
    begins_BM = (source.positions == 0) & (source.segments != 0)

    def of_row(begins_M: Array, segments_M: Array, ids_M: Array) -> Array:
        codes_S = jnp.zeros(len(ids_M) + 1, ids_M.dtype)
        return codes_S.at[jnp.where(begins_M, segments_M, 0)].max(jnp.where(begins_M, ids_M, 0))

    codes_BS = jax.vmap(of_row)(begins_BM, source.segments, source.ids)
    own_BL = jnp.take_along_axis(codes_BS, target.segments, axis=1)
    return jnp.where(target.positions == 0, own_BL, ids_BL)


class Embedding(nn.Module):
    """Subword vectors times sqrt(d_model), plus positions, then dropout (3.4, 3.5 and 5.4).

    With model.fix_norm every subword vector has length 1 (Nguyen and Chiang 2018, section 3.2), in
    the output too; then only the decoder's last norm sets the range of the logits.
    """

    config: ModelConfig
    vocabulary_size: int
    multiple: int = VOCABULARY_MULTIPLE

    def setup(self) -> None:
        shape = (padded_vocabulary(self.vocabulary_size, self.multiple), self.config.d_model)
        init = named(nn.initializers.normal(shape[1] ** -0.5), VOCABULARY, FEATURES)
        self.table = self.param("table", init, shape)
        self.dropout = Dropout(self.config.dropout)

    def __call__(
        self, ids_BL: Array, position_vectors: Array | float, rows_B: Array | None
    ) -> Array:
        """float32 `[batch, length, d_model]`."""
        # Each device looks up its part of every vector, and then the devices exchange parts, which
        # are smaller than the table and its gradient.
        table_VD = constrain(self.table, VOCABULARY, FEATURES)
        parts_BLD = constrain(table_VD[constrain(ids_BL, REPLICA, None)], REPLICA, None, FEATURES)
        x_BLD = constrain(parts_BLD, BATCH, None, None)
        x_BLD = (unit(x_BLD) if self.config.fix_norm else x_BLD) * self.config.d_model**0.5
        return self.dropout(x_BLD + position_vectors, self.dropout.noise_source(rows_B))

    def for_output(self) -> Array:
        """The vectors that the decoder's output is multiplied by `[padded vocabulary, d_model]`."""
        return unit(self.table) if self.config.fix_norm else self.table


class Projection(nn.Module):
    """What recordings and pictures have in place of an embedding (Dosovitskiy et al. 2021, eq. 1).

    Numbers of mean 0 and variance 1 get vectors of variance 1, as subwords do.
    """

    config: ModelConfig

    def setup(self) -> None:
        sizes = {"features": self.config.features, "d_model": self.config.d_model}
        self.params = declared(self, PROJECTION, sizes)
        self.dropout = Dropout(self.config.dropout)

    def __call__(
        self, features_BMF: Array, position_vectors: Array | float, rows_B: Array | None
    ) -> Array:
        """float32 `[batch, length, d_model]`."""
        x_BMF = features_BMF.astype(self.config.dtype)
        x_BMD = add_bias(
            product("BMF,FD->BMD", x_BMF, self.params["kernel"], jnp.float32), self.params["bias"]
        )
        return self.dropout(x_BMD + position_vectors, self.dropout.noise_source(rows_B))


PROJECTION = {
    "kernel": Parameter(nn.initializers.lecun_normal(), ("features", "d_model"), 1),
    "bias": Parameter(nn.initializers.zeros, ("d_model",)),
}


def problems(config: ModelConfig) -> Iterator[str]:
    """Why the embeddings cannot be combined, with the fix; empty if they can."""
    if config.fix_norm and not (config.tie_embeddings or config.tie_output):
        yield (
            "model.fix_norm=True with model.tie_embeddings=False: vectors of length 1 are meant "
            "for one matrix of input and output. Set model.tie_embeddings=True or "
            "model.tie_output=True."
        )
