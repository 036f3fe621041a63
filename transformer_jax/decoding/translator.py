"""Translation of encoded sentences: batches of like length, one compiled search a shape.

Dimension key
  R rows, one sentence each   M source length
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import Mesh

from transformer_jax.config import DecodeConfig
from transformer_jax.decoding.search import SearchResult, beam_search
from transformer_jax.model.transformer import Transformer
from transformer_jax.text.batches import TranslationBatch, translation_batches
from transformer_jax.training.sharding import batch_sharding, placed
from transformer_jax.training.state import Params


class Hypothesis(NamedTuple):
    """One translation of a sentence."""

    ids: np.ndarray  # int32 [length], EOS included
    score: float  # log probability over the length penalty
    log_prob: float  # nats, summed over the subwords


SETTINGS = ("beam_size", "n_best", "max_extra_length")


@functools.partial(jax.jit, static_argnames=("model", "mesh", *SETTINGS))
def search_batch(
    model: Transformer,
    mesh: Mesh,
    params: Params,
    ids_RM: Array,
    lengths_R: Array,
    alpha: Array,
    *,
    beam_size: int,
    n_best: int,
    max_extra_length: int,
) -> SearchResult:
    """Beam search over a batch of sources; a row's limit is its own length + max_extra_length.

    Args:
      model: gives `encode`, `start_decoding` and `decode_step`.
      mesh: where all of it lies; call within `placed(mesh, model.config)`.
      params: its parameters.
      ids_RM: sources `[rows, src_len]`, each ending in EOS.
      lengths_R: subwords of each, EOS included `[rows]`; 0 = an empty row.
      alpha: strength of the length penalty, float32 scalar.
      beam_size: hypotheses a sentence.
      n_best: hypotheses to return.
      max_extra_length: subwords.
    """
    size = ids_RM.shape[1] + max_extra_length
    if model.config.positions == "learned":
        size = min(size, model.config.max_positions)
    place_M = jnp.arange(ids_RM.shape[1])
    segments_RM = (place_M < lengths_R[:, None]).astype(jnp.int32)
    positions_RM = jnp.broadcast_to(place_M, ids_RM.shape)
    variables = {"params": params}
    encoded = model.apply(variables, ids_RM, segments_RM, positions_RM, method="encode")
    memory, cache = model.apply(
        variables, encoded, segments_RM, beam_size, size, method="start_decoding"
    )
    limits_R = jnp.where(lengths_R > 0, jnp.minimum(lengths_R + max_extra_length, size), 0)

    def step(ids_RK: Array, position: Array, cache: object) -> tuple[Array, object]:
        return model.apply(variables, ids_RK, position, memory, cache, method="decode_step")

    return beam_search(
        step, cache, limits_R, beam_size=beam_size, size=size, alpha=alpha, n_best=n_best
    )


class Translator:
    """A model, its parameters, settings of search and the mesh that it runs on."""

    def __init__(
        self,
        model: Transformer,
        params: Params,
        decode: DecodeConfig,
        mesh: Mesh,
        n_best: int = 1,
    ):
        self.model, self.params, self.decode = model, params, decode
        self.mesh, self.n_best = mesh, n_best

    def translate(self, sentences: Sequence[np.ndarray]) -> list[list[Hypothesis]]:
        """The n_best translations of each sentence, best first.

        Args:
          sentences: subwords of each, EOS included, at most decode.max_length of them.
        """
        results: list[list[Hypothesis]] = [[] for _ in sentences]
        pending: list[tuple[TranslationBatch, SearchResult]] = []
        ways = self.mesh.shape["data"] * self.mesh.shape["fsdp"]
        for batch in translation_batches(
            sentences, self.decode.tokens_per_batch, self.decode.max_length, ways
        ):
            pending.append((batch, self._search(batch)))
            if len(pending) > 1:  # the device works on one batch while the host reads the other
                self._read(*pending.pop(0), results)
        for batch, result in pending:
            self._read(batch, result, results)
        return results

    def _search(self, batch: TranslationBatch) -> SearchResult:
        sources = jax.device_put((batch.ids, batch.lengths), batch_sharding(self.mesh))
        with placed(self.mesh, self.model.config):
            return search_batch(
                self.model,
                self.mesh,
                self.params,
                *sources,
                jnp.float32(self.decode.length_penalty),
                beam_size=self.decode.beam_size,
                n_best=self.n_best,
                max_extra_length=self.decode.max_extra_length,
            )

    @staticmethod
    def _read(
        batch: TranslationBatch, result: SearchResult, results: list[list[Hypothesis]]
    ) -> None:
        ids, lengths, log_probs, scores, _ = jax.device_get(result)
        for row, index in enumerate(batch.indices[batch.indices >= 0]):
            results[index] = [
                Hypothesis(ids[row, n, :length], float(scores[row, n]), float(log_probs[row, n]))
                for n, length in enumerate(lengths[row])
                if length
            ]
