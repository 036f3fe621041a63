"""ENCODERS and DECODERS (see bases.py), and why parts that a config names cannot be combined."""

from collections.abc import Iterator

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.cross_normalizers import NOISY, STATELESS, name_of
from transformer_jax.model.interfaces import PREFIXES, attends_to_encoder, is_prefix, reads_source
from transformer_jax.model.layers import residuals
from transformer_jax.model.layers.encoder_mixers import ENCODER_MIXERS
from transformer_jax.model.layers.residuals import RESIDUALS
from transformer_jax.model.layers.running_mixers import RUNNING_MIXERS
from transformer_jax.model.outputs.choices import OUTPUTS
from transformer_jax.model.outputs.ctc import STATES
from transformer_jax.model.positions.choices import POSITIONS, between_positions
from transformer_jax.model.sides import embeddings
from transformer_jax.model.sides.bases import Decoder, Encoder
from transformer_jax.model.sides.convolutional import ConvolutionalDecoder, ConvolutionalEncoder
from transformer_jax.model.sides.prefix import NoEncoder, PrefixDecoder, PrefixEncoder
from transformer_jax.model.sides.recurrent import RecurrentDecoder, RecurrentEncoder
from transformer_jax.model.sides.transformer import TransformerDecoder, TransformerEncoder

ENCODERS: dict[str, type[Encoder]] = {
    "transformer": TransformerEncoder,
    **dict.fromkeys(ENCODER_MIXERS, TransformerEncoder),
    "recurrent": RecurrentEncoder,
    "convolutional": ConvolutionalEncoder,
    **dict.fromkeys(PREFIXES, PrefixEncoder),
    "none": NoEncoder,
}
DECODERS: dict[str, type[Decoder]] = {
    "transformer": TransformerDecoder,
    **dict.fromkeys(RUNNING_MIXERS, TransformerDecoder),
    "recurrent": RecurrentDecoder,
    "convolutional": ConvolutionalDecoder,
}


def decoder_of(config: ModelConfig) -> type[Decoder]:
    """The decoder of a model."""
    return PrefixDecoder if is_prefix(config) else DECODERS[config.decoder]


def longest(config: ModelConfig) -> int | None:
    """The largest number of positions of a sentence or row; None: any number."""
    encoder, decoder = ENCODERS[config.encoder].longest(config), decoder_of(config).longest(config)
    if decoder is not None and config.parallel == "ctc":
        decoder //= STATES  # of a source position
    return min((limit for limit in (encoder, decoder) if limit is not None), default=None)


def problems(config: ModelConfig) -> Iterator[str]:
    """Why the parts that a config names cannot be combined, with the fix; empty if they can."""
    sides = ENCODERS[config.encoder], decoder_of(config)
    yield from dict.fromkeys(problem for side in sides for problem in side.problems(config))
    yield from embeddings.problems(config)
    encoder, decoder = sides
    if not (reads_source(config) or decoder.multi_head):
        yield (
            f"model.decoder={config.decoder!r} attends to an encoder, which model.encoder='none' "
            "is not. Use model.decoder='transformer'."
        )
    are_transformers = encoder.self_attention and decoder.multi_head
    yield from residuals.problems(config, are_transformers)
    if config.wait_k is not None and not (_encoder_self_attention(config) and decoder.multi_head):
        yield (
            f"model.wait_k={config.wait_k} is for attention that can leave out what is not yet "
            f"read: not for an encoder of kind {config.encoder} with a decoder of kind "
            f"{config.decoder}. Use model.encoder='transformer' and the decoder "
            f"{_multi_head_decoders()}, or model.wait_k=None."
        )
    if config.parallel is not None and attends_to_encoder(config):
        for problem in full_context_problems(config):
            yield f"model.parallel={config.parallel!r}: {problem}"
    output = OUTPUTS[config.output]
    if output.watches and (why := _no_probabilities(config, output.divides_by_sum)):
        yield (
            f"model.output={config.output!r} reads attention as probabilities, and {why}, or "
            "model.output='softmax'."
        )
    yield from _without_effect(config)


def _no_probabilities(config: ModelConfig, any_sum: bool) -> str | None:
    """Why weights of encoder-decoder attention are not probabilities, and a fix; None if they are.

    With `any_sum` they need not sum to 1.
    """
    if not attends_to_encoder(config):
        return f"model.encoder={config.encoder!r} has no encoder-decoder attention. Use another"
    name = name_of(config)
    normalizer = STATELESS.get(name)
    if normalizer is None or not decoder_of(config).multi_head:
        return None
    which = None
    if not (any_sum or normalizer.sums_to_1):
        which = "not sum to 1"
    if normalizer.signed:
        which = "be negative"
    fix = "Set model.cross_normalizer='softmax'"
    return which and f"weights of the normalizer {name!r} may {which}. {fix}"


def watch_problems(config: ModelConfig) -> Iterator[str]:
    """Why losses and penalties cannot use the watched weights; empty if they can."""
    if why := _no_probabilities(config, any_sum=True):
        yield f"{why}, or leave it out."
    if config.parallel is not None:
        yield (
            f"model.parallel={config.parallel!r} has no attention that something else reads. Leave "
            "it out."
        )


def _multi_head_decoders() -> str:
    """The decoders with multi-head attention, for messages."""
    names = [repr(name) for name, decoder in DECODERS.items() if decoder.multi_head]
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _encoder_self_attention(config: ModelConfig) -> bool:
    return ENCODERS[config.encoder].self_attention and config.encoder not in ENCODER_MIXERS


def _decoder_self_attention(config: ModelConfig) -> bool:
    return decoder_of(config).self_attention and config.decoder not in RUNNING_MIXERS


def _without_effect(config: ModelConfig) -> Iterator[str]:
    """Keys that no part of the model reads: as a row of an ablation, each would measure nothing.

    Keys that a preset may set for models of every kind, such as model.norm, are accepted.
    """
    decoder = decoder_of(config)
    has_heads = decoder.multi_head and attends_to_encoder(config)
    no_heads = f"the attention of a {config.decoder} decoder is of its own kind"
    if not attends_to_encoder(config):
        no_heads = f"with model.encoder={config.encoder!r} there is no encoder-decoder attention"
    no_self = "nothing has self-attention"
    reason_of: dict[str, str] = {}
    if not has_heads:
        names = ["cross_score", "cross_normalizer", "attention_memory", "combination"]
        reason_of = dict.fromkeys(names, no_heads)
    if not attends_to_encoder(config):
        names = ["num_encoder_layers", "sources", "watched_layer", "watched_heads"]
        names += [] if reads_source(config) else ["source_eos"]
        reason_of |= dict.fromkeys(names, f"model.encoder={config.encoder!r} has no layers")
    if config.tie_embeddings:
        reason_of["tie_output"] = "model.tie_embeddings=True ties the source too"
    if config.parallel is not None:
        unread = f"nothing reads attention with model.parallel={config.parallel!r}"
        reason_of |= dict.fromkeys(("watched_layer", "watched_heads"), unread)
    if RESIDUALS[config.norm].normalizes is None:
        names = ["norm_kind"] if config.qk_norm else ["norm_kind", "norm_epsilon"]
        reason_of |= dict.fromkeys(names, f"model.norm={config.norm!r} normalizes nothing")
    if config.sources == 1:
        reason_of["combination"] = "model.sources=1, so there is nothing to combine"
    if not (_encoder_self_attention(config) or _decoder_self_attention(config)):
        reason_of |= {"window": no_self, "pattern": no_self}
        if between_positions(config):
            reason_of["positions"] = no_self
        if not has_heads:
            names = ["num_key_heads", "attention_gate", "qk_norm", "score", "normalizer"]
            if config.encoder not in ENCODER_MIXERS:
                names.append("attention_dropout")
            reason_of |= dict.fromkeys(names, f"{no_self} and {no_heads}")
        for name in ("score", "normalizer"):
            if getattr(config, f"cross_{name}") is not None:  # else the other attention reads it
                reason_of.setdefault(name, no_self)
    depths = [config.encoder_depth] if _encoder_self_attention(config) else []
    depths += [config.decoder_depth] if _decoder_self_attention(config) else []
    if config.window is None:
        reason_of["global_every"] = "without model.window all layers see the whole sentence"
    elif (config.global_every or 1) > max(depths, default=0):
        reason_of["global_every"] = "the stacks with self-attention have fewer layers"
    if not (config.d_ff and (ENCODERS[config.encoder].self_attention or decoder.self_attention)):
        no_network = "nothing has a feed-forward network"
        reason_of |= dict.fromkeys(("activation", "activation_dropout"), no_network)
    if not (ENCODERS[config.encoder].uses_positions or decoder.uses_positions):
        reason_of["positions"] = "neither the encoder nor the decoder uses positions"
    for name, reason in reason_of.items():
        if (value := getattr(config, name)) != getattr(ModelConfig, name):
            yield f"model.{name}={value!r} changes nothing in this model: {reason}. Leave it out."


def full_context_problems(config: ModelConfig) -> Iterator[str]:
    """Why no second pass can see the whole target, with the fix; empty if one can."""
    if not attends_to_encoder(config):
        yield from watch_problems(config)
        return
    decoder = decoder_of(config)
    if not (_decoder_self_attention(config) and decoder.multi_head):
        yield (
            f"a decoder of kind {config.decoder} has no self-attention that could see the whole "
            "target. Use model.decoder='transformer', or leave it out."
        )
    bias = POSITIONS[config.positions].bias
    if bias is not None and not bias.looks_ahead:
        yield (
            f"model.positions={config.positions!r} has one bias for all target positions after the "
            "query. Use another kind, or leave it out."
        )


def draw_problems(config: ModelConfig) -> Iterator[str]:
    """Why training cannot draw what the watched layer reads, with the fix; empty if it can."""
    if not attends_to_encoder(config):
        yield from watch_problems(config)
        return
    if not decoder_of(config).multi_head:
        yield (
            f"a decoder of kind {config.decoder} has no heads that could read one position each. "
            f"Use model.decoder={_multi_head_decoders()}."
        )
    if (name := name_of(config)) in NOISY:
        yield (
            f"the normalizer {name!r} of encoder-decoder attention decides for positions itself, "
            "and its weights are not probabilities to draw from. Set model.cross_normalizer="
            "'softmax'."
        )
    elif not STATELESS[name].sums_to_1:
        yield (
            f"weights of the normalizer {name!r} may not sum to 1, so they are not "
            "probabilities to draw from. Set model.cross_normalizer='softmax'."
        )
