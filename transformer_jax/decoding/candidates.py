"""Translations that a training step draws of its sources, for objectives on whole translations.

Dimension key
  B rows, one pair each   K draws
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.decoding.sampling import Sampling, draw
from transformer_jax.decoding.search import make_rules
from transformer_jax.decoding.state import empty_search, is_live, start_sentences
from transformer_jax.model.axes import unboxed
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import Cache, Memory, Now, Params, SearchSizes, Stepped
from transformer_jax.text.batches import Batch, Drawn


def draw_translations(
    model: EncoderDecoder,
    params: Params,
    batch: Batch,
    key: Array,
    draws: int,
    temperature: float = 1.0,
) -> Drawn:
    """Draws translations of each source from the model's distribution, without dropout.

    Args:
      model: the model.
      params: its parameters, each layer's separately.
      batch: rows of one pair each; a translation ends at the latest where the target rows end.
      key: of the step; a row's draws depend on it and on the row's number.
      draws: translations of each source.
      temperature: 1: from the distribution itself; 0: the likeliest subword each time.
    """
    model = model.for_search(None, watch=False)
    rows, size = batch.tgt.ids.shape

    def applied(method: str, *arguments: Any) -> Any:
        return model.apply({"params": params}, *arguments, method=method)

    encoded = applied("encode", batch.src)
    memory = applied("remember", encoded, batch.src)
    prepared = applied("prepare_output")
    sizes = SearchSizes(rows, draws, size, batch.src.ids.shape[1])
    cache = unboxed(model.boxed_cache(sizes))

    def step(now: Now, memory: Memory, cache: Cache) -> Stepped:
        found: Stepped = applied("decode_step", now, memory, cache, prepared)
        return found

    sampling = Sampling(temperature, None, None, make_rules(size, 0.0))
    seed_B = jax.random.bits(key, (rows,))
    limit_B = jnp.where((batch.src.segments != 0).any(-1), size, 0)
    state = empty_search(memory, cache, rows, beam_size=draws, size=size, n_best=draws)
    state = state._replace(sample_seed_B=seed_B)
    state = start_sentences(state, jnp.arange(rows), limit_B, None, seed_B)
    state = jax.lax.while_loop(
        lambda state: is_live(state).any(), lambda state: draw(step, sampling, state), state
    )
    ids, lengths, log_probs, _ = state.pool
    return Drawn(ids, lengths, log_probs)
