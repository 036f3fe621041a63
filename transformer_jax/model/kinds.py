"""The kinds of model that a config can name."""

from transformer_jax.config.schema import ModelConfig
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.recurrent import Recurrent
from transformer_jax.model.transformer import Transformer

KINDS: dict[str, type[EncoderDecoder]] = {"transformer": Transformer, "recurrent": Recurrent}


def make_model(config: ModelConfig, vocabulary_size: int, remat: bool = False) -> EncoderDecoder:
    """The model of `config.kind`; `vocabulary_size` is the real one, not padded."""
    return KINDS[config.kind](config, vocabulary_size, remat)
