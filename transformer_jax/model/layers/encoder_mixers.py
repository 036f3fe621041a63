"""Mixers without attention for the encoder, where a whole sentence is mixed at once.

A new one is a subclass of `Sublayer` (sublayer.py) without a `step`, since the encoder reads the
source at once, and its line in `ENCODER_MIXERS`, which makes it a value of model.encoder.

Dimension key
  B batch   L length of the positions that read   M of those that are read   D d_model   H heads
  K d_k per head   V d_v per head   P columns of the table of scores
"""

from collections.abc import Mapping

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.normalizers import softmax
from transformer_jax.model.attention.patterns import same_sentence
from transformer_jax.model.attention.projections import PROJECTIONS
from transformer_jax.model.axes import BATCH, HEADS, Parameter, constrain, declared
from transformer_jax.model.interfaces import Context
from transformer_jax.model.layers.dropout import weight_dropout
from transformer_jax.model.layers.matrix_products import (
    add_bias,
    einsum,
    product,
    settled,
    sum_type,
)
from transformer_jax.model.layers.sublayer import Sublayer

_zeros = nn.initializers.zeros
# A head's table is a matrix [d_k, columns]: its fans are not those of all heads.
_table = nn.initializers.variance_scaling(
    1.0, "fan_avg", "uniform", in_axis=1, out_axis=2, batch_axis=0
)
BY_HEAD = (BATCH, None, HEADS, None)

SYNTHESIZER: Mapping[str, Parameter] = {
    "query": PROJECTIONS["query"],
    "query_bias": Parameter(_zeros, ("heads", "d_k")),
    "table": Parameter(_table, ("heads", "d_k", "columns")),
    "table_bias": Parameter(_zeros, ("heads", "columns")),
    "value": PROJECTIONS["value"]._replace(sizes=("d_model", "heads", "d_v")),
    "out": PROJECTIONS["out"],
}


def synthesized_scores(
    hidden_BLHK: Array, table_HKP: Array, bias_HP: Array, positions_BM: Array
) -> Array:
    """The score of the key at position p of its sentence is column p of relu(h) W + b.

    A head sees no key: the score depends on what the query is and on where the key is.

    Args:
      hidden_BLHK: h of each query `[batch, length, heads, d_k]`, before the relu.
      table_HKP: W `[heads, d_k, columns]`.
      bias_HP: b `[heads, columns]`.
      positions_BM: 0-based position of each key in its sentence, below the number of columns.

    Returns:
      float32 `[batch, heads, length, length]`.

    Source: Tay et al. 2020 ("Synthesizer"), section 3.1, equation 2.
    """
    # XLA for a CPU has no product of bfloat16 with a result in float32 unless the batch axes come
    # first, and the barriers keep it from moving them.
    hidden_HBLK = settled(jax.nn.relu(hidden_BLHK).transpose(2, 0, 1, 3))
    scores_HBLP = jnp.einsum(
        "HBLK,HKP->HBLP",
        hidden_HBLK,
        table_HKP.astype(hidden_BLHK.dtype),
        preferred_element_type=sum_type(hidden_BLHK.dtype),
    )
    scores_BHLP = settled(scores_HBLP).swapaxes(0, 1) + bias_HP[:, None]
    return jnp.take_along_axis(scores_BHLP, positions_BM[:, None, None], axis=-1)


class DenseSynthesizer(Sublayer):
    """Attention whose scores come from the query alone, with a column for each position.

    The output is Concat(softmax(scores) x W^V) W^O. Sentences have at most model.max_positions
    subwords, one for each column.

    Source: Tay et al. 2020 ("Synthesizer"), section 3.1.
    """

    limited = True

    def setup(self) -> None:
        sizes = self.config.axis_sizes | {"columns": self.config.max_positions}
        self.params = declared(self, SYNTHESIZER, sizes)

    def __call__(self, x_BLD: Array, context: Context) -> tuple[Array, None]:
        """`[batch, length, d_model]`; plots do not get the weights."""
        dtype = self.config.dtype
        place = context.place
        length = x_BLD.shape[1]  # no position of a row is beyond it, so later columns are not read
        table_HKP, bias_HP = (self.params[name][..., :length] for name in ("table", "table_bias"))
        query_BLHK = product("BLD,DHK->BLHK", x_BLD, self.params["query"], dtype)
        hidden_BLHK = constrain(add_bias(query_BLHK, self.params["query_bias"]), *BY_HEAD)
        scores_BHLM = synthesized_scores(hidden_BLHK, table_HKP, bias_HP, place.positions)
        # Not `context.sight.mask`, which may be cut into the blocks of a window.
        weights_BHLM = softmax(scores_BHLM, same_sentence(place, place), kept=dtype)
        value_BMHV = product("BMD,DHV->BMHV", x_BLD, self.params["value"], dtype)
        value_BMHV = constrain(value_BMHV, *BY_HEAD)
        drop = weight_dropout(self, self.config.attention_dropout, context.rows_B)
        heads_BLHV = einsum("BHLM,BMHV->BLHV", drop(weights_BHLM).astype(dtype), value_BMHV)
        heads_BLHV = constrain(heads_BLHV, *BY_HEAD)
        return product("BLHV,HVD->BLD", heads_BLHV, self.params["out"], dtype), None


# By the value of model.encoder: the name of the sub-layer that takes the place of self-attention,
# which is in the paths of parameters, and its class.
ENCODER_MIXERS: dict[str, tuple[str, type[Sublayer]]] = {
    "synthesizer": ("synthesizer", DenseSynthesizer),
}


def longest(config: ModelConfig) -> int | None:
    """The largest number of positions of a source sentence or row; None: any number."""
    mixer = ENCODER_MIXERS.get(config.encoder)
    return config.max_positions if mixer is not None and mixer[1].limited else None
