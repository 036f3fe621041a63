"""Keys that a model does not read, and parts that do not go together, are refused by name."""

import pytest

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.positions.choices import POSITIONS
from transformer_jax.model.sides.choices import problems

RECURRENT = {"encoder": "recurrent", "decoder": "recurrent"}
CONVOLUTIONAL = {"encoder": "convolutional", "decoder": "convolutional"}
SYNTHESIZER = {"encoder": "synthesizer", "decoder": "ssru"}
OF_A_PRESET = {"norm": "pre", "norm_kind": "rms", "attention_bias": True}
TIED_OUTPUT = {"fix_norm": True, "tie_embeddings": False, "tie_output": True}


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, []),
        ({"window": 3, "score": "cosine"}, ["score='cosine'", "window=3"]),
        ({"pattern": "strided"}, ["pattern='strided'"]),
        ({"decoder": "transformer", "pattern": "strided"}, []),
        ({"encoder": "transformer", "window": 3, "global_every": 2}, []),
        ({"decoder": "transformer", "window": 3, "global_every": 7}, ["global_every=7"]),
        ({"window": 3, "global_every": 2}, ["window=3", "global_every=2"]),
        ({"cross_normalizer": "top_k"}, ["cross_normalizer='top_k'"]),
        ({"attention_memory": "coverage"}, ["attention_memory='coverage'"]),
        ({"encoder": "transformer", "window": 3, "normalizer": "sparsemax"}, []),
        ({"encoder": "transformer", "cross_score": "dot"}, ["cross_score='dot'"]),
        ({"decoder": "transformer", "window": 3, "cross_score": "dot"}, []),
        ({"num_key_heads": 2}, ["num_key_heads=2"]),
        ({"encoder": "transformer", "num_key_heads": 2}, []),
        ({"attention_gate": True}, ["attention_gate=True"]),
        ({"qk_norm": True}, ["qk_norm=True"]),
        ({"encoder": "transformer", "attention_gate": True}, []),
        ({"decoder": "ssru", "num_key_heads": 2}, []),
        ({"attention_dropout": 0.1}, ["attention_dropout=0.1"]),
        ({"encoder": "transformer", "attention_dropout": 0.1}, []),
        ({"encoder": "synthesizer", "attention_dropout": 0.1}, []),
        ({"activation": "gelu"}, ["activation='gelu'"]),
        ({"encoder": "transformer", "activation": "gelu"}, []),
        ({"activation_dropout": 0.1}, ["activation_dropout=0.1"]),
        ({"decoder": "average", "activation_dropout": 0.1}, []),
        ({"decoder": "average", "d_ff": 0, "activation_dropout": 0.1}, ["activation_dropout=0.1"]),
        *(({"positions": p}, [f"positions={p!r}"]) for p in POSITIONS if p != "sinusoidal"),
        ({"encoder": "convolutional", "positions": "learned"}, []),
        ({"decoder": "convolutional", "positions": "none"}, []),
        (CONVOLUTIONAL | {"positions": "rotary"}, ["positions='rotary'"]),
        (CONVOLUTIONAL | {"attention_memory": "coverage"}, ["attention_memory='coverage'"]),
        ({"decoder": "ssru", "window": 3}, ["window=3"]),
        ({"decoder": "ssru", "positions": "rotary"}, ["positions='rotary'"]),
        ({"encoder": "transformer", "decoder": "ssru", "window": 3}, []),
        ({"decoder": "ssru", "score": "dot"}, []),
        ({"decoder": "ssru", "normalizer": "sparsemax"}, []),
        (SYNTHESIZER | {"window": 3}, ["window=3"]),
        (SYNTHESIZER | {"positions": "rotary"}, ["positions='rotary'"]),
        (SYNTHESIZER | {"score": "dot", "cross_score": "scaled_dot"}, ["score='dot'"]),
        (SYNTHESIZER | {"normalizer": "top_k", "cross_normalizer": "sink"}, ["normalizer='top_k'"]),
        ({"encoder": "synthesizer", "decoder": "transformer", "positions": "rotary"}, []),
        ({"encoder": "transformer", "norm": "rezero", "qk_norm": True, "norm_epsilon": 0.1}, []),
        (OF_A_PRESET, []),
        (TIED_OUTPUT, []),
        ({"encoder": "none", "decoder": "transformer", "watched_layer": 0}, ["watched_layer=0"]),
        ({"encoder": "prefix", "decoder": "transformer", "watched_heads": 2}, ["watched_heads=2"]),
    ],
)
def test_a_key_that_changes_nothing_is_refused(changes, names):
    found = list(problems(ModelConfig(**{**RECURRENT, **changes})))
    assert len(found) == len(names)
    assert all(any(f"model.{name} " in problem for problem in found) for name in names)


def test_a_refusal_gives_the_reason_of_its_own_key():
    changes = {**RECURRENT, "window": 3, "score": "cosine", "cross_normalizer": "top_k"}
    heads = "the attention of a recurrent decoder is of its own kind"
    own = "nothing has self-attention"
    assert set(problems(ModelConfig(**changes))) == {
        f"model.window=3 changes nothing in this model: {own}. Leave it out.",
        f"model.score='cosine' changes nothing in this model: {own} and {heads}. Leave it out.",
        f"model.cross_normalizer='top_k' changes nothing in this model: {heads}. Leave it out.",
    }
