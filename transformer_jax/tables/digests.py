"""The digest of a config, by which a recorded line of results.csv is known to be of a row's config.

Recorded digests never change: a digest is a hash of keys in the order and under the names that they
had when the first results were recorded. A later key enters it only with a value that is not the
key's default, after the older ones and in the order of the schema.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from transformer_jax.config.schema import KEYS, Config, value_at

DIGITS = 12
# Mutable keys on which the results depend; they do not depend on the other mutable keys.
COUNTED = {
    "train.steps",
    "decode.beam_size",
    "decode.length_penalty",
    "decode.coverage_penalty",
    "decode.max_extra_length",
    "decode.penalty",
    "decode.banned_subwords",
    "decode.wait_k",
}
# The keys of the first digests, in the order that is hashed.
NAMES = (
    "model.kind",
    "model.num_layers",
    "model.d_model",
    "model.num_heads",
    "model.d_k",
    "model.d_v",
    "model.d_ff",
    "model.d_hidden",
    "model.dropout",
    "model.norm",
    "model.scale_attention",
    "model.positions",
    "model.max_positions",
    "model.tie_embeddings",
    "model.dtype",
    "data.source",
    "data.name",
    "data.src",
    "data.tgt",
    "data.train",
    "data.pairs",
    "data.max_length",
    "vocabulary.size",
    "vocabulary.kind",
    "vocabulary.normalization",
    "vocabulary.max_lines",
    "train.steps",
    "train.tokens_per_batch",
    "train.row_length",
    "train.rows_multiple",
    "train.label_smoothing",
    "train.schedule",
    "train.peak_learning_rate",
    "train.warmup_steps",
    "train.decay_steps",
    "train.adam_b1",
    "train.adam_b2",
    "train.adam_epsilon",
    "train.clip_norm",
    "train.valid_bleu",
    "decode.beam_size",
    "decode.length_penalty",
    "decode.max_extra_length",
    "seed",
)


class Renamed(NamedTuple):
    """A name in NAMES that is no key any more."""

    keys: tuple[str, ...]  # that replace it
    # Its value, by theirs. Other values of theirs are hashed as those of later keys are.
    values: Mapping[tuple[str, ...], Any]


RENAMED = {
    "model.kind": Renamed(
        ("model.encoder", "model.decoder"),
        {("transformer", "transformer"): "transformer", ("recurrent", "recurrent"): "recurrent"},
    ),
    "model.scale_attention": Renamed(("model.score",), {("scaled_dot",): True, ("dot",): False}),
}
# Left out where they have these values, since the very first results were recorded without them.
LEFT_OUT = {"model.kind": "transformer", "model.d_hidden": None, "model.scale_attention": True}


def digest_of(config: Config) -> str:
    """The digest of the keys that a run's results depend on."""
    text = json.dumps(hashed(config))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def hashed(config: Config) -> dict[str, Any]:
    """Names and values in the order that is hashed."""
    found: dict[str, Any] = {}
    later = [
        name
        for name, key in KEYS.items()
        if name not in NAMES and (not key.mutable or name in COUNTED)
    ]
    for name in NAMES:
        if name not in RENAMED:
            found[name] = value_at(config, name)
            continue
        keys, values = RENAMED[name]
        own = tuple(value_at(config, key) for key in keys)
        if own in values:
            found[name] = values[own]
            later = [key for key in later if key not in keys]
    for name, value in LEFT_OUT.items():
        if name in found and found[name] == value:
            del found[name]
    changed = (name for name in later if value_at(config, name) != KEYS[name].default)
    return found | {name: value_at(config, name) for name in changed}
