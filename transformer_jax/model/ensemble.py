"""Several models that predict together: the mean of their probabilities.

Dimension key
  B batch   K beams   V vocabulary, padded   L target length   M source length
  D d_model   N models
"""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import Cache, Memory, Now, Params, SearchSizes, Stepped
from transformer_jax.text.batches import Packed


class Ensemble(nn.Module):
    """Models with one vocabulary, which search and scoring use like a single model.

    The parameters of model n are those of `members[n]`, under the name members_n.
    """

    members: tuple[EncoderDecoder, ...]

    def encode(self, source: Packed) -> tuple[Array, ...]:
        """The output of each model's encoder."""
        return tuple(member.encode(source) for member in self.members)

    def logits_and_watched(self, source: Packed, target: Packed) -> tuple[Array, Array | None]:
        """Log probabilities of each next subword, and the mean of the watched weights."""
        found = [member.logits_and_watched(source, target) for member in self.members]
        return mixed(tuple(logits for logits, _ in found), tuple(own for _, own in found))

    def prepare_output(self) -> tuple[Array, ...]:
        """What `decode_step` needs of each model's output; it is the same in every search step."""
        return tuple(member.prepare_output() for member in self.members)

    def remember(self, encoded: tuple[Array, ...], source: Packed) -> Memory:
        """What every search step needs of the source sentences, one per row."""
        own = zip(self.members, encoded, strict=True)
        memories = [member.remember(encoded_BME, source) for member, encoded_BME in own]
        return Memory._make(zip(*memories, strict=True))

    def decode_step(self, now: Now, memory: Memory, cache: Cache, prepared: Any) -> Stepped:
        """Log probabilities of the next subword of every hypothesis, and the new caches."""
        memories = [Memory._make(own) for own in zip(*memory, strict=True)]
        own = zip(self.members, memories, cache.written, cache.carried, prepared, strict=True)
        steps = [
            member.decode_step(now, remembered, Cache(written, carried), out)
            for member, remembered, written, carried, out in own
        ]
        log_probs_BKV, watched_BKM = mixed(
            tuple(step.logits_BKV for step in steps), tuple(step.watched_BKM for step in steps)
        )
        cache = Cache._make(zip(*(step.cache for step in steps), strict=True))
        return Stepped(log_probs_BKV, cache, watched_BKM)

    @staticmethod
    def joined(params: Sequence[Params]) -> Params:
        """The ensemble's parameters, from those of its members."""
        return {f"members_{n}": own for n, own in enumerate(params)}

    @nn.nowrap
    def for_search(self, dtype: str | None, watch: bool, wait_k: int | None = None) -> "Ensemble":
        """Each model as search uses it."""
        return Ensemble(tuple(member.for_search(dtype, watch, wait_k) for member in self.members))

    @nn.nowrap
    def boxed_memory(self, sizes: SearchSizes) -> Memory:
        """The memory of rows without a sentence, boxed with the names of its axes."""
        return Memory._make(zip(*(one.boxed_memory(sizes) for one in self.members), strict=True))

    @nn.nowrap
    def boxed_cache(self, sizes: SearchSizes) -> Cache:
        """The caches before the first position, boxed with the names of their axes."""
        return Cache._make(zip(*(one.boxed_cache(sizes) for one in self.members), strict=True))

    @nn.nowrap
    def longest(self) -> int | None:
        """The largest number of positions that every model has; None: any number."""
        limits = [member.longest() for member in self.members]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def sources(self) -> int:
        """Source sentences of each pair; the models read the same ones."""
        return self.members[0].sources

    @property
    def watch(self) -> bool:
        """Whether the models return the weights of a watched layer."""
        return self.members[0].watch


Predictor = EncoderDecoder | Ensemble  # what search and scoring take


def mixed(
    logits: tuple[Array, ...], watched: tuple[Array | None, ...]
) -> tuple[Array, Array | None]:
    """The log of the mean of the models' probabilities, and the mean of the watched weights.

    Args:
      logits: of each model, float32 `[..., vocabulary]`.
      watched: of each model, `[..., src_len]`, or None if nothing is watched.
    """
    log_probs = jnp.stack([jax.nn.log_softmax(own.astype(jnp.float32)) for own in logits])
    mean = jax.nn.logsumexp(log_probs, axis=0) - jnp.log(len(logits))
    weights = [own for own in watched if own is not None]
    return mean, jnp.stack(weights).mean(0) if weights else None
