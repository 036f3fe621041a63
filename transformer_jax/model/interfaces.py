"""The records that the model's files exchange with one another, and with search and training.

Dimension key
  B batch   L target length   M source length   K beams   T positions of the cache   H heads
  E features of the encoder's output   D d_model   S keys of the cache, T K   V vocabulary
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.layers.dropout import NoiseSource
from transformer_jax.text.batches import Packed
from transformer_jax.text.vocabulary import EOS

Params = Any  # a pytree of arrays: float32, or narrower in search with decode.weights


class Place(NamedTuple):
    """The place of each subword of a row; patterns and position biases depend only on it."""

    segments: Array  # int32 [B, L]; 0: padding; 1, 2, ...: the sentence of a packed row
    positions: Array  # int32 [B, L], 0-based in the sentence
    # float32 [B, L, D], embedded without positions; only for an attention memory that reads words
    words: Array | None = None
    # int32 [B, M], from 0: which of its pair's source sentences; None: attention does not ask
    sentences: Array | None = None


def place_of(side: Packed) -> Place:
    """The place of each subword of one side of a batch."""
    return Place(side.segments, side.positions)


def visible_place(config: ModelConfig, source: Packed) -> Place:
    """The place of each source subword; what the model does not see of it is like padding."""
    place = place_of(source)
    hidden = [source.ids == EOS] if not config.source_eos else []
    hidden += [source.positions == 0] if config.code_in_decoder else []
    for hidden_BM in hidden:
        place = place._replace(segments=jnp.where(hidden_BM, 0, place.segments))
    return place


def encoder_place(config: ModelConfig, source: Packed) -> Place:
    """The same for the encoder, in which each source sentence is a segment of its own."""
    place = visible_place(config, source)
    if config.sources == 1:
        return place
    return place._replace(segments=jnp.where(place.segments == 0, 0, _sentence(source)))


def source_number(source: Packed) -> Array:
    """Which of its pair's source sentences a position is in, int32 [B, M], from 0."""
    sentence_BM = _sentence(source)
    begins_BM = source.segments != jnp.pad(source.segments, ((0, 0), (1, 0)))[:, :-1]
    return sentence_BM - lax.cummax(jnp.where(begins_BM, sentence_BM, 0), axis=1)


def _sentence(source: Packed) -> Array:
    """The number of each position's source sentence in its row, int32 [B, M], from 1."""
    return jnp.cumsum((source.positions == 0) & (source.segments != 0), axis=1, dtype=jnp.int32)


class Side(NamedTuple):
    """Which side of a model a stack and its layers are of."""

    is_decoder: bool = False
    encoded: int | None = None  # features of the encoder's output that the layers attend to


class Sight(NamedTuple):
    """What the self-attention of a layer sees."""

    # Booleans, True = may attend: [B, 1, L, L], in a window block by block (windows.py); in search
    # [B, 1, K, S], the hypothesis's own past.
    mask: Array
    # float32, added to the scores: [H, L, L], one block of a window; in search [B, H, 1, S].
    bias: Array | None


class Attended(NamedTuple):
    """What the encoder-decoder attention of a decoder's layers reads."""

    encoded_BME: Array  # the encoder's output
    source: Place  # where its positions are
    # Target positions as the patterns see them: shifted by the row's k - model.wait_k if k is
    # drawn (model.wait_k_max).
    reader: Place
    mask: Array  # booleans [B, 1, L, M]
    # Random bits of hard attention, which draws a source position; None: attention reads all.
    noise_source: NoiseSource | None = None


class Context(NamedTuple):
    """The input of a layer beside x when all positions are computed together."""

    place: Place  # where the stack's own positions are
    rows_B: Array | None  # numbers of the rows in the global batch; None: not in training
    sight: Sight
    self_place: Place  # `place` as the patterns of self-attention see it
    inputs_BLD: Array  # the stack's embedded input
    attended: Attended | None = None  # None: in an encoder


class Now(NamedTuple):
    """One search step, as search describes it to a decoder."""

    position_B: Array  # int32, 0-based position of the newest subword; BOS is at 0
    ids_BK: Array  # int32, the newest subword of each hypothesis
    # int32: for hypothesis k and position t, the beam slot that held its subword t; undefined
    # after the current position.
    ancestors_BKT: Array


class StepContext(NamedTuple):
    """The input of a layer beside x in one step of search."""

    position_B: Array  # int32, of the newest subword
    distance_BS: Array  # int32, position of each key minus that of the newest subword
    sight: Sight
    inputs_BKD: Array  # the newest subword of each hypothesis, embedded
    source_mask: Array | None  # booleans [B, 1, 1, M], True = may attend; None: an encoder's step


class Cache(NamedTuple):
    """What a decoder keeps for the hypotheses between two search steps."""

    written: Any  # by position: never moves, a hypothesis finds its own past by its ancestors
    carried: Any  # leaves [B, K, ...], zero at first: search reorders it with its hypotheses


class Memory(NamedTuple):
    """What every search step needs of a source sentence."""

    decoder: Any  # what the decoder prepared, such as keys and values
    source_BM: Array  # booleans, True = a real source position
    output: Any = ()  # what the output prepared, such as the source's subwords
    first_B: Any = ()  # int32, the decoder's first input; (): BOS (model.code_in_decoder)

    @property
    def source_place(self) -> Place:
        """The places of the source, one sentence in each row."""
        return Place(self.source_BM.astype(jnp.int32), jnp.arange(self.source_BM.shape[1])[None])


class Given(NamedTuple):
    """What an output may read beside the decoder's output when all positions are computed."""

    table_VD: Array  # the output embedding; V is padded
    params: Params  # the output's own
    watched_BLM: Array | None  # the watched layer's weights; None: nothing watches
    encoded_BME: Array
    source: Packed
    target: Packed  # its ids shifted right: what the decoder has read at each position


class StepGiven(NamedTuple):
    """The same for one search step."""

    prepared_DV: Array  # the result of `prepare`; V is not padded
    params: Params
    watched_BKM: Array | None
    memory: Any  # the result of `remember`
    written: Any  # the output's part of the cache


class Stepped(NamedTuple):
    """The result of one search step."""

    logits_BKV: Array  # float32, of the next subword
    cache: Cache
    watched_BKM: Array | None  # the watched layer's weights; None: nothing watches


class SearchSizes(NamedTuple):
    """The sizes that a search's arrays depend on."""

    batch: int
    beams: int
    length: int  # positions of the longest hypothesis
    src_length: int


class LossSums(NamedTuple):
    """Sums over target subwords, float32 scalars."""

    smoothed_nats: Array  # negative log likelihood of the smoothed targets
    nats: Array  # negative log likelihood, without smoothing
    correct: Array  # target subwords that no other subword is likelier than
    tokens: Array  # real target subwords
    auxiliary: Mapping[str, Array] = {}  # each auxiliary loss times its weight

    @property
    def objective(self) -> Array:
        """The sum that training minimizes."""
        return sum(self.auxiliary.values(), self.smoothed_nats)


# Values of model.encoder with which the decoder itself reads the source, before it writes.
PREFIXES = ("prefix", "causal_prefix")


def reads_source(config: ModelConfig) -> bool:
    """Whether the model reads a source; without one it is a language model."""
    return config.encoder != "none"


def attends_to_encoder(config: ModelConfig) -> bool:
    """Whether the decoder has encoder-decoder attention."""
    return reads_source(config) and not is_prefix(config)


def is_prefix(config: ModelConfig) -> bool:
    """Whether source and target are one text, which the decoder reads (sides/prefix.py)."""
    return config.encoder in PREFIXES
