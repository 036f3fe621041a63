"""Table 2 on real text, at equal time.

python -m experiments.real_text --scale=cores_rate_0.003
python -m experiments.real_text --scale=cores_en-it
"""

import sys
from typing import Any

from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Overrides, Scale

BASE, PRE, MODERN, BIG = "base", "base, pre-norm", "base, modern", "big"
RECURRENT, CONVOLUTIONAL = "recurrent", "convolutional"
CLIP: Overrides = {"train.clip_norm": 1.0}
ROWS: dict[str, Overrides] = {
    BASE: {},
    PRE: {"model.norm": "pre"},
    MODERN: {},
    BIG: {},
    # As many parameters as base, within 1 %.
    RECURRENT: {
        "model.encoder": "recurrent",
        "model.decoder": "recurrent",
        "model.d_hidden": 1_325,
        "train.remat": True,
        **CLIP,
    },
    CONVOLUTIONAL: {
        "model.encoder": "convolutional",
        "model.decoder": "convolutional",
        "model.num_layers": 15,
        "model.d_hidden": 448,
        **CLIP,
    },
}
AT_CORES: dict[str, Any] = {
    "vocabulary.size": 8_000,
    "model.num_layers": 3,
    "model.d_model": 256,
    "model.num_heads": 4,
    "model.d_ff": 1_024,
    "train.tokens_per_batch": 2_000,
    "train.row_length": 128,
    "train.loss_block": 512,
    "train.warmup_steps": 1_000,
    "train.keep_last": 5,
    "decode.tokens_per_batch": 2_048,
}
OWN_CORES: dict[str, Overrides] = {
    MODERN: {"model.d_ff": 683},
    RECURRENT: {"model.d_hidden": 440},
}
OF_CORES = (BASE, PRE, MODERN, RECURRENT)
TRIED = (0.001, 0.003, 0.009)
TRIAL: dict[str, Any] = {
    "train.steps": 300,
    "train.warmup_steps": 100,
    "train.valid_every": 300,
    "train.checkpoint_every": 300,
}


def configs(direction: str) -> dict[str, str]:
    """The config file of each row."""
    sizes = {row: "big" if row == BIG else "base" for row in ROWS}
    recipes = {row: "modern" if row == MODERN else "paper" for row in ROWS}
    return {row: f"configs/europarl.py:{sizes[row]},{direction},{recipes[row]}" for row in ROWS}


def at_cores(row: Overrides, **changes: Any) -> dict[str, Any]:
    [name] = [name for name, own in ROWS.items() if own is row]
    return {**row, **OWN_CORES.get(name, {}), **changes}


def rate_scale(rate: float) -> Scale:
    """The scale at which one peak rate is tried for every row."""
    trial = {"train.peak_learning_rate": rate, "train.decay_steps": 300}
    return Scale(
        configs("en-it"),
        {
            **AT_CORES,
            **TRIAL,
            **trial,
            "data.valid": ("valid",),
            "data.test": ("documents-valid[:200]",),
        },
        row=at_cores,
        rows=OF_CORES,
        compared=False,
    )


EXPERIMENT = Experiment(
    name="real_text",
    rows=ROWS,
    scales={f"cores_rate_{rate}": rate_scale(rate) for rate in TRIED},
    about=__doc__,
    metrics=("perplexity", "bleu", "chrf", "training_flops", "minutes", "parameters"),
)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
