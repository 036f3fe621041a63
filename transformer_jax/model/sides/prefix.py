"""Language models: the decoder alone, of a text or of a source and how it goes on, a translation.

The layers are the decoder's, without encoder-decoder attention (Liu et al. 2018, section 4.2.3),
and the loss is over target positions alone. With model.encoder=none there is no source. Otherwise
the source is the beginning of the decoder's text: with prefix its positions see one another (Raffel
et al. 2020, section 3.2.1); with causal_prefix each sees only what is before it, as in any language
model (Wang et al. 2021).

Dimension key
  B batch   L target length   M source length   D d_model   K beams
"""

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.patterns import mask_of, same_sentence
from transformer_jax.model.interfaces import Place
from transformer_jax.model.layers.running_mixers import RUNNING_MIXERS
from transformer_jax.model.positions.choices import POSITIONS, StackPositions
from transformer_jax.model.sides.bases import Encoder
from transformer_jax.model.sides.transformer import TransformerDecoder


class NoEncoder(Encoder):
    """An encoder whose output has no features; a row's source is one EOS for each text."""

    @staticmethod
    def features(config: ModelConfig) -> int:
        """The output has none."""
        return 0

    def __call__(self, x_BMD: Array, place: Place, rows_B: Array | None) -> Array:
        """`[batch, src_len, 0]`."""
        return jnp.zeros((*x_BMD.shape[:2], 0))


class PrefixEncoder(Encoder):
    """No layers: the decoder gets the embedded source."""

    uses_positions = True

    @staticmethod
    def problems(config: ModelConfig) -> Iterator[str]:
        """What else the decoder cannot be, if it reads the source."""
        name = f"model.encoder={config.encoder!r}"
        if config.decoder != "transformer":
            why = "replaces self-attention" if config.decoder in RUNNING_MIXERS else "has none"
            yield (
                f"{name} is read by self-attention, and model.decoder={config.decoder!r} {why}. "
                "Use model.decoder='transformer'."
            )
        kind = POSITIONS[config.positions]
        if kind.learned or kind.counted or kind.bias or kind.by_query:
            yield (
                f"{name} with model.positions={config.positions!r}: target positions count on from "
                "the source's, which this kind cannot in packed rows. Use sinusoidal, rotary or "
                "none."
            )
        for key in ("window", "pattern"):
            if (value := getattr(config, key)) != getattr(ModelConfig, key):
                yield (
                    f"{name} with model.{key}={value!r}: each position sees the whole source. "
                    "Leave one of them out."
                )

    def setup(self) -> None:
        """The positions, which have no parameters."""
        self.positions = StackPositions(self.config, biased=False, name="src_positions")

    def position_vectors(self, place: Place) -> Array | float:
        """What is added to the embedding."""
        return self.positions(place.positions, place.positions.shape[1])

    def __call__(self, x_BMD: Array, place: Place, rows_B: Array | None) -> Array:
        """The embedded source as it is."""
        return x_BMD


class PrefixDecoder(TransformerDecoder):
    """The layers of a `TransformerDecoder` on rows of all sources, then all targets."""

    def position_vectors(self, target: Place, length: int, source: Place) -> Array | float:
        """What is added to the embedding; positions count on from those of the source."""
        positions_BL = _after(source, target).positions
        return self.target_stack.positions(positions_BL, length + source.segments.shape[1])

    def __call__(
        self,
        x_BLD: Array,
        target: Place,
        encoded_BME: Array,
        source: Place,
        rows_B: Array | None,
        **options: bool,
    ) -> tuple[Array, None]:
        """`[batch, tgt_len, d_model]`, and no weights: nothing is watched."""
        if any(options.values()):
            raise ValueError(f"A decoder that reads the source itself has no {sorted(options)}.")
        after, length = _after(source, target), source.segments.shape[1]
        place = Place(
            jnp.concatenate([source.segments, after.segments], axis=1),
            jnp.concatenate([source.positions, after.positions], axis=1),
        )
        x_BLD = jnp.concatenate([encoded_BME, x_BLD], axis=1)
        x_BLD, _ = self.target_stack(x_BLD, place, rows_B, None, self._seen(place, length))
        return x_BLD[:, length:], None

    def remember(self, encoded_BME: Array, source: Place) -> tuple[Any, ...]:
        """The keys and values of each layer's source positions."""
        seen = self._seen(source, source.segments.shape[1])
        return self.target_stack.read(encoded_BME, source, seen)

    def _seen(self, place: Place, source_length: int) -> Place:
        """The place for self-attention's patterns, for which the order in the row is enough.

        Equal positions see one another: no position of a prefix is later than another.
        """
        order_L = jnp.arange(place.positions.shape[1])
        if self.config.encoder == "prefix":
            order_L = jnp.maximum(order_L - source_length + 1, 0)
        return place._replace(positions=jnp.broadcast_to(order_L, place.positions.shape))


def _after(source: Place, target: Place) -> Place:
    """The place of the target, its positions counted on from those of its pair's source."""
    behind_B1LM = mask_of((same_sentence,), target, source)
    behind_BL = behind_B1LM[:, 0].sum(axis=-1, dtype=jnp.int32)
    return target._replace(positions=target.positions + behind_BL)
