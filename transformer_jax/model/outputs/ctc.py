"""Connectionist temporal classification (Graves et al. 2006): subwords at once, of any number.

Each source position becomes 3 states, which a decoder without a causal mask reads together. At each
state the model names a subword or the blank. What it has written are the subwords after repeated
ones are merged and blanks are left out (Libovicky and Helcl 2018). The likelihood of a text is the
sum over all ways to write it.

Dimension key
  B batch   L target length   M source length   T states, 3 M   E features of the encoder's output
  S states of a position   D d_model   V vocabulary, padded
"""

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from jax import Array, lax

from transformer_jax.model.axes import Parameter
from transformer_jax.model.interfaces import LossSums, Place
from transformer_jax.model.layers.matrix_products import sum_type
from transformer_jax.model.outputs.cross_entropy import LossSettings
from transformer_jax.text.batches import Batch, Packed
from transformer_jax.text.vocabulary import BOS

BLANK = BOS  # no translation contains it
STATES = 3  # of a source position
IMPOSSIBLE = -1e30  # a log probability; -inf has no gradient
FROM_ENCODED = nn.initializers.lecun_normal(in_axis=0, out_axis=(1, 2))
PARAMETERS = {"states": Parameter(FROM_ENCODED, ("encoded", "states", "d_model"), summed=1)}


def ctc(
    model: Any, batch: Batch, rows_B: Array | None, settings: LossSettings, _: Array | None
) -> tuple[LossSums, None]:
    """-log of the probability of each target, EOS included, over all ways to write it.

    A sentence that has no way, since its target is longer than its states allow, does not count.
    Label smoothing: (1 - epsilon) times that, and epsilon times the mean of -log p over the
    vocabulary, summed over states and divided by 3.
    `correct` are target subwords that are the likeliest ones at a state of their sentence.
    """
    encoded_BME = model.encode(batch.src, rows_B)
    x_BTD, place = states(model, encoded_BME, batch.src, rows_B)
    given, out = model.given(None, encoded_BME, batch.src, batch.tgt), model.out()
    logits_BTV = out.logits(x_BTD, given)
    log_sum_BT = jax.nn.logsumexp(logits_BTV, axis=-1)
    labels, count_B = possible_labels(batch.tgt, place)

    def log_p(table: Array, axes: str) -> Array:  # without gathering from [B, T, V]
        logits = out.product(x_BTD, table, axes)
        return logits - log_sum_BT.reshape(*log_sum_BT.shape, *(1,) * (logits.ndim - 2))

    emit_BTL = log_p(given.table_VD[labels.ids], "BTD,BLD->BTL")
    blank_BT = log_p(given.table_VD[BLANK], "BTD,D->BT")
    with_BTL = place.segments[:, :, None] == labels.segments[:, None]
    with_BTL &= (labels.segments != 0)[:, None]
    counted_BT = with_BTL.any(-1)
    emit_BTL = jnp.where(with_BTL, emit_BTL, IMPOSSIBLE)
    nats = -log_likelihood(emit_BTL, blank_BT, counted_BT, labels, count_B).sum()
    even_BT = log_sum_BT - logits_BTV[..., : settings.vocabulary_size].mean(-1)
    even = jnp.where(counted_BT, even_BT, 0.0).sum() / STATES
    smoothed = (1 - settings.smoothing) * nats + settings.smoothing * even
    named_BL = (with_BTL & (logits_BTV.argmax(-1)[:, :, None] == labels.ids[:, None])).any(1)
    tokens, correct = (x.sum(dtype=jnp.float32) for x in (count_B, named_BL))
    return LossSums(smoothed, nats, correct, tokens), None


def states(
    model: Any, encoded_BME: Array, source: Packed, rows_B: Array | None
) -> tuple[Array, Place]:
    """The decoder's output at each state `[batch, states, d_model]`, and the states' places."""
    seen = model.source_place(source)
    dtype = model.config.dtype
    x_BMSD = jnp.einsum(
        "BME,ESD->BMSD",
        encoded_BME.astype(dtype),
        model.output_params["states"].astype(dtype),
        preferred_element_type=sum_type(dtype),
    )
    x_BTD = x_BMSD.reshape(x_BMSD.shape[0], -1, x_BMSD.shape[-1])
    segments_BT, positions_BT = (jnp.repeat(x, STATES, axis=1) for x in seen[:2])
    positions_BT = STATES * positions_BT + jnp.arange(x_BTD.shape[1]) % STATES
    place = Place(segments_BT, positions_BT)
    x_BTD += model.target_side.position_vectors(place, x_BTD.shape[1], seen)
    x_BTD, _ = model.target_side(x_BTD, place, encoded_BME, seen, rows_B, full_context=True)
    return x_BTD, place


def possible_labels(target: Packed, states: Place) -> tuple[Packed, Array]:
    """The subwords of sentences that their states can write, those of a row first, and how many.

    It takes a state for each subword, and one for the blank between two equal ones.
    """
    own_BLL = target.segments[:, :, None] == target.segments[:, None]
    needed_BL = jnp.where(own_BLL, 1 + _repeats(target)[:, None], 0).sum(-1)
    there_BL = (target.segments[:, :, None] == states.segments[:, None]).sum(-1)
    kept_BL = (target.segments != 0) & (needed_BL <= there_BL)
    order_BL = jnp.argsort(~kept_BL, axis=1, stable=True)
    kept = target._replace(segments=jnp.where(kept_BL, target.segments, 0))
    return kept.map(lambda x: jnp.take_along_axis(x, order_BL, axis=1)), kept_BL.sum(-1)


def _repeats(labels: Packed) -> Array:
    """Whether a subword is that before it in its sentence `[batch, tgt_len]`."""
    before_BL = jnp.pad(labels.ids, ((0, 0), (1, 0)))[:, :-1]
    return (labels.ids == before_BL) & (labels.positions > 0)


def log_likelihood(
    emit_BTL: Array, blank_BT: Array, counted_BT: Array, labels: Packed, count_B: Array
) -> Array:
    """The log probability of each row's subwords, over all ways to write them `[batch]`.

    Sentences of a packed row follow one another: the last subword of each, EOS, is written in its
    own states, so that those of the next begin after it. So the sum over the ways of a row is the
    product of the sums of its sentences.

    Args:
      emit_BTL: log probabilities of subword l at state t; IMPOSSIBLE in another sentence's states.
      blank_BT: log probabilities of the blank.
      counted_BT: booleans, which states belong to sentences that count.
      labels: the subwords, those that count first.
      count_B: how many count.

    Source: Graves et al. 2006, section 4.1.
    """
    direct_BL = jnp.where(_repeats(labels), IMPOSSIBLE, 0.0)  # from a subword to the next
    batch, _, length = emit_BTL.shape

    def step(carry: tuple[Array, Array], now: tuple[Array, Array, Array]) -> tuple[Any, None]:
        blanks_BL, named_BL = carry  # after l subwords, 0 ... L; after naming subword l
        emit_BL, blank_B, counted_B = now
        before_BL = jnp.pad(named_BL, ((0, 0), (1, 0)), constant_values=IMPOSSIBLE)
        ways = jnp.stack([named_BL, blanks_BL[:, :-1], before_BL[:, :-1] + direct_BL])
        new_named_BL = emit_BL + jax.nn.logsumexp(ways, axis=0)
        new_blanks_BL = blank_B[:, None] + jnp.logaddexp(blanks_BL, before_BL)
        new = new_blanks_BL, new_named_BL
        kept = [jnp.where(counted_B[:, None], x, y) for x, y in zip(new, carry, strict=True)]
        return tuple(jnp.maximum(x, IMPOSSIBLE) for x in kept), None

    start = jnp.where(jnp.arange(length + 1) == 0, 0.0, IMPOSSIBLE)
    carry = jnp.broadcast_to(start, (batch, length + 1)), jnp.full((batch, length), IMPOSSIBLE)
    arrays = emit_BTL.swapaxes(0, 1), blank_BT.T, counted_BT.T
    (blanks_BL, named_BL), _ = lax.scan(step, carry, arrays)
    named_BL = jnp.pad(named_BL, ((0, 0), (1, 0)), constant_values=IMPOSSIBLE)
    end_BL = jnp.logaddexp(blanks_BL, named_BL)
    return jnp.take_along_axis(end_BL, count_B[:, None], axis=1)[:, 0]
