"""The list of models that the harness runs over: every entry of every registry is in it.

A new score, kind of positions, memory, encoder or decoder needs a line here (tests/test_layout.py).
All dimensions differ. Keys that a line leaves out are those of tests/fixtures/tiny.py, except that
each side has one layer. A line has more where layers differ or pass something on.
"""

from typing import Any

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.positions.choices import POSITIONS, between_positions

# Kinds of positions that only self-attention knows, as distances.
DISTANCES = [kind for kind in POSITIONS if between_positions(ModelConfig(positions=kind))]

CHANGES: dict[str, dict[str, Any]] = {
    "base": dict(num_layers=2),
    "pre-norm": dict(norm="pre", num_decoder_layers=3),
    "deep-norm-chunkwise": dict(
        norm="deep", num_decoder_layers=2, cross_normalizer="chunkwise", chunk_width=3
    ),
    "learned": dict(positions="learned", tie_embeddings=False, max_positions=32, source_eos=False),
    "none": dict(positions="none", d_k=None, d_v=None),
    "marian": dict(
        positions="sinusoidal_t2t",
        activation="swish",
        attention_bias=True,
        output_bias=True,
        norm_epsilon=1e-5,
    ),
    "gelu": dict(
        activation="gelu",
        tie_embeddings=False,
        tie_output=True,
        output_bias=True,
        output="copy",
        watched_heads=2,
        code_in_decoder=True,
    ),
    "rotary": dict(positions="rotary", d_k=6, cross_score="additive"),
    "alibi-monotonic": dict(positions="alibi", cross_normalizer="monotonic"),
    "t5-lookback": dict(
        num_decoder_layers=2, positions="t5", normalizer="sparsemax", cross_normalizer="lookback"
    ),
    "kerple-rezero-coverage-gru": dict(
        positions="kerple", norm="rezero", activation="glu", attention_memory="coverage_gru"
    ),
    "relative": dict(positions="relative", relative_distance=3, attention_dropout=0.2),
    "relative-keys": dict(
        positions="relative", relative_values=False, relative_distance=40, score="dot"
    ),
    "contextual": dict(
        positions="contextual",
        relative_distance=2,
        num_key_heads=1,
        window=7,
        attention_dropout=0.2,
    ),
    "dot": dict(score="dot"),
    "cosine": dict(score="cosine", normalizer="sparsemax", positions="index"),
    "top-k-fix-norm": dict(
        normalizer="top_k",
        cross_normalizer="top_k",
        attended_keys=2,
        fix_norm=True,
        norm="pre",
        norm_kind="scale",
        output="history",
    ),
    "no-feed-forward": dict(
        d_ff=0, cross_normalizer="sparsemax", output="marginal", marginal_positions=3
    ),
    "grouped-gumbel": dict(
        num_heads=4,
        num_key_heads=2,
        positions="rotary",
        d_k=6,
        cross_normalizer="gumbel",
        cross_score="dot",
    ),
    "multi-query": dict(
        num_key_heads=1, score="bilinear", cross_score="dot", attention_bias=True, positions="t5"
    ),
    "gate-coverage-embedding": dict(
        attention_gate=True,
        activation="swiglu",
        norm="pre",
        norm_kind="rms",
        attention_memory="coverage_embedding",
        features=6,
    ),
    "sink-talking-heads": dict(
        normalizer="sink", cross_normalizer="talking_heads", positions="kerple"
    ),
    "differential": dict(
        normalizer="differential", cross_normalizer="differential", activation="geglu", num_heads=4
    ),
    "additive": dict(
        score="additive", num_heads=4, num_key_heads=2, pattern="strided", stride=3, qk_norm=True
    ),
    "rotated-cosine-markov": dict(
        score="cosine", positions="rotary", d_k=6, attention_memory="markov"
    ),
    "window": dict(window=3, global_every=2, num_encoder_layers=2, num_decoder_layers=3),
    "wait-k": dict(wait_k=2, positions="t5"),
    "wait-k-fused": dict(
        wait_k=3, score="cosine", wait_k_max=5, attention_kernel="fused", window=5
    ),
    "fused": dict(
        num_encoder_layers=2,
        attention_kernel="fused",
        cross_score="bilinear",
        window=5,
        attention_gate=True,
    ),
    "coverage": dict(num_decoder_layers=2, attention_memory="coverage", norm="pre"),
    "together": dict(
        num_decoder_layers=2,
        normalizer="talking_heads",
        cross_normalizer="softmax",
        window=5,
        positions="alibi",
        attention_memory="coverage",
        cross_score="additive",
        attention_gate=True,
        attention_dropout=0.2,
        num_heads=4,
    ),
    "average": dict(
        num_decoder_layers=2,
        decoder="average",
        positions="t5",
        attention_memory="coverage",
        activation="reglu",
        activation_dropout=0.2,
    ),
    "average-mean": dict(
        decoder="average", encoder="recurrent", d_hidden=17, d_ff=0, cross_normalizer="sink"
    ),
    "ssru": dict(
        num_decoder_layers=2, decoder="ssru", norm="pre", positions="learned", max_positions=32
    ),
    "linear": dict(
        attention_gate=True, decoder="linear", num_heads=4, num_key_heads=2, attention_bias=True
    ),
    "synthesizer": dict(
        encoder="synthesizer", positions="t5", norm_kind="rms", attention_dropout=0.2
    ),
    "recurrent": dict(encoder="recurrent", decoder="recurrent", d_hidden=17),
    "convolutional": dict(
        num_encoder_layers=2,
        encoder="convolutional",
        decoder="convolutional",
        d_hidden=10,
        positions="learned",
        max_positions=32,
        num_decoder_layers=3,
    ),
    "convolutional-encoder": dict(encoder="convolutional", kernel_width=5, features=6),
    "recurrent-to-convolutional": dict(encoder="recurrent", decoder="convolutional", d_hidden=17),
    "recurrent-encoder": dict(
        encoder="recurrent", d_hidden=17, attention_memory="coverage", source_eos=False
    ),
    "recurrent-decoder": dict(decoder="recurrent", d_hidden=17, norm="pre", code_in_decoder=True),
    "two-sources": dict(sources=2, window=5, num_encoder_layers=2, output="copy"),
    "parallel-sources": dict(sources=2, combination="parallel", output="copy", window=5),
    "serial-sources": dict(sources=3, combination="serial", output="copy", norm="pre"),
    "hierarchical-sources": dict(sources=2, combination="hierarchical", num_key_heads=1),
    "gated-sources": dict(sources=3, combination="gated", attention_bias=True, output="copy"),
    "three-sources": dict(sources=3, encoder="convolutional", decoder="recurrent"),
    "prefix": dict(
        encoder="prefix", num_decoder_layers=2, positions="rotary", d_k=6, num_key_heads=1
    ),
    "causal-prefix": dict(
        encoder="causal_prefix", norm="pre", attention_kernel="fused", features=6, output="history"
    ),
    "language-model": dict(
        encoder="none", num_decoder_layers=2, positions="rotary", d_k=6, output="history"
    ),
}
CONFIGS = {name: {"num_layers": 1, **line} for name, line in CHANGES.items()}

# Where a second layer of a stack would only add time.
ONE_LAYER = {"num_layers": 1, "num_encoder_layers": None, "num_decoder_layers": None}

# For what is slow: together these have every part that a mesh or a run treats in its own way.
COVERING = (
    "learned",
    "together",
    "recurrent",
    "recurrent-encoder",
    "recurrent-decoder",
    "average",
    "ssru",
    "two-sources",
)
