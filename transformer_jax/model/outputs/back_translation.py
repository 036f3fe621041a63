"""Learning without parallel text: denoising, and translations that the model makes as it learns.

Only target sides are read. Two languages have a code each, with which a source begins: that of the
language to write. The model learns a text from the text with noise, and from its own translation
into the other language, which the training step makes from the parameters that it is about to
update (Lample et al. 2018b, algorithm 1; 2018a, equations 1 and 2, with an adversary and with noise
on translations too).

Dimension key
  B rows, one sentence each   L positions of the target   M of a source, L + 1
"""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from jax import Array

from transformer_jax.errors import ConfigError
from transformer_jax.model.interfaces import LossSums
from transformer_jax.model.layers.dropout import NoiseSource, noise_of, position_bits, uniform
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.model.outputs.passes import first_pass, sentences_of, with_losses
from transformer_jax.text.batches import Batch, Packed
from transformer_jax.text.vocabulary import EOS, UNK

BACK_TRANSLATION = "back_translation"
CODES = UNK + 1, UNK + 2  # ids of the two languages' codes
DROPPED, MOVED = 0.1, 3  # noise: share of subwords, and how far one moves (Lample et al. 2018a)


def back_translation(
    model: Any, batch: Batch, rows_B: Array | None, settings: LossSettings, _: Array | None
) -> tuple[LossSums, Array | None]:
    """The cross entropy of the target given itself with noise, and given its own translation."""
    code_B, noisy = batch.src.ids[:, 0], batch.tgt
    if rows_B is not None:
        noisy = noised(noisy, noise_of(model, rows_B))
    one = first_pass(model, batch._replace(src=coded(code_B, noisy)), rows_B, settings)
    of_text = model.out().loss(one.x_BLD, one.given, batch, settings)
    drawn = batch.drawn
    assert drawn is not None
    translated = sentences_of(drawn.ids[:, 0], drawn.lengths[:, 0])
    two = first_pass(model, batch._replace(src=coded(code_B, translated)), rows_B, settings)
    of_translation = model.out().loss(two.x_BLD, two.given, batch, settings)
    weighted = dict(settings.auxiliary)[BACK_TRANSLATION] * of_translation.smoothed_nats
    return with_losses(of_text._replace(auxiliary={BACK_TRANSLATION: weighted}), one)


def check_two_codes(codes: Mapping[str, int]) -> None:
    """Raises ConfigError if a vocabulary has other codes than those of the two languages."""
    if sorted(codes.values()) != [*CODES]:
        raise ConfigError(
            "train.objective='back_translation' needs a vocabulary with the codes of two "
            f"languages, and this one has {', '.join(codes) or 'none'}. Train one for this text."
        )


def to_other_language(batch: Batch) -> Packed:
    """What the model translates: the targets, each after the code of the other language."""
    return coded(sum(CODES) - batch.src.ids[:, 0], batch.tgt)


def coded(code_B: Array, text: Packed) -> Packed:
    """A code, then the text: sources of one more position; an empty row stays empty."""
    length_B = (text.segments != 0).sum(-1)
    ids_BM = jnp.concatenate([code_B[:, None], text.ids], axis=1)
    return sentences_of(ids_BM, jnp.where(length_B > 0, length_B + 1, 0))


def noised(text: Packed, noise_source: NoiseSource) -> Packed:
    """The text without some of its subwords, and with the others not far from their places.

    Each is left out with the probability DROPPED, and the order is that of i + u, with u ~ U(0,
    MOVED + 1) for the i-th one. EOS stays at the end.

    Args:
      text: one sentence in each row.
      noise_source: random bits, and the rows' numbers.

    Source: Lample, Conneau, Denoyer and Ranzato 2018, section 2.3, there of words.
    """
    length = text.ids.shape[1]
    shift = NoiseSource(noise_source.bits[::-1], noise_source.rows_B)
    stays_BL, moved_BL = (uniform(position_bits(0, length, s)) for s in (noise_source, shift))
    is_end_BL = text.ids == EOS
    kept_BL = (text.segments != 0) & (is_end_BL | (stays_BL >= DROPPED))
    place_BL = jnp.arange(length) + (MOVED + 1) * moved_BL
    place_BL = jnp.where(is_end_BL, length + MOVED + 1, place_BL)
    order_BL = jnp.argsort(jnp.where(kept_BL, place_BL, jnp.inf), axis=1)
    return sentences_of(jnp.take_along_axis(text.ids, order_BL, axis=1), kept_BL.sum(-1))
