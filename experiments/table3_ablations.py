"""Table 3: variations of the Transformer, row by row as the paper prints them.

    python -m experiments.table3_ablations --scale=paper --dry_run
    python -m experiments.table3_ablations --scale=small --seeds=0,1,2
    python -m experiments.table3_ablations --scale=converged

How to read it: perplexity is per subword of the validation split. The paper has BLEU of the same
split; the small scale has BLEU of test2016. No checkpoints are averaged. A row lists what differs
from the base model. The paper finds that one head is 0.9 BLEU worse than the best setting and that
too many hurt too (A), that small keys hurt (B), that bigger models are better (C), that dropout
helps (D), and that learned positions do as well as sinusoids (E).

The small scale uses Multi30k. In every row d_model, d_ff, d_k and d_v are a quarter of the paper's,
and the number of layers is half of the paper's; heads, dropout and smoothing are the paper's. Every
row, the big one too, gets the same 800 updates with the same batches. The base row takes five to
eight minutes on two cores and reaches 23 BLEU on test2016. Such short training favors models that
learn fast: compare rows with the base row, not with the paper's figures. The table and plots label
rows with the sizes that were used, beside the paper's figures for the full sizes; `--rows`,
`--list` and results.jsonl name rows by the full sizes.

The scale "converged" asks whether the paper's order of rows appears once models are trained well.
It has the sizes of the small scale, in pre-norm, for 3,000 updates with a linear schedule from a
peak rate of 0.006. A trial with a seed that no row has gave the base row 37.4 BLEU on test2016, 1.2
less than configs/multi30k.py, whose model is twice as wide. All rows have these settings, as in the
paper; this scale has no big model. The rows (F) are not the paper's: a head for every unit of
d_model, which is close to what Choi et al. 2018 propose, and layers without a feed-forward network.
"""

import re
from collections.abc import Mapping
from typing import Any

from transformer_jax.config.presets import BIG
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Scale

# In (A) d_k = d_v = d_model / h, which is the default. In (B) d_v stays 64: only this agrees with
# the paper's numbers of parameters, 58 and 60 million.
# What a row changes, and the figures that the paper prints: perplexity, BLEU and, for some rows,
# parameters in millions.
TABLE: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "base": ({}, (4.92, 25.8, 65)),
    "(A) 1 head, d_k 512": ({"model.num_heads": 1}, (5.29, 24.9)),
    "(A) 4 heads, d_k 128": ({"model.num_heads": 4}, (5.00, 25.5)),
    "(A) 16 heads, d_k 32": ({"model.num_heads": 16}, (4.91, 25.8)),
    "(A) 32 heads, d_k 16": ({"model.num_heads": 32}, (5.01, 25.4)),
    "(B) d_k 16": ({"model.d_k": 16, "model.d_v": 64}, (5.16, 25.1, 58)),
    "(B) d_k 32": ({"model.d_k": 32, "model.d_v": 64}, (5.01, 25.4, 60)),
    "(C) 2 layers": ({"model.num_layers": 2}, (6.11, 23.7, 36)),
    "(C) 4 layers": ({"model.num_layers": 4}, (5.19, 25.3, 50)),
    "(C) 8 layers": ({"model.num_layers": 8}, (4.88, 25.5, 80)),
    "(C) d_model 256, d_k 32": ({"model.d_model": 256}, (5.75, 24.5, 28)),
    "(C) d_model 1024, d_k 128": ({"model.d_model": 1_024}, (4.66, 26.0, 168)),
    "(C) d_ff 1024": ({"model.d_ff": 1_024}, (5.12, 25.4, 53)),
    "(C) d_ff 4096": ({"model.d_ff": 4_096}, (4.75, 26.2, 90)),
    "(D) dropout 0.0": ({"model.dropout": 0.0}, (5.77, 24.6)),
    "(D) dropout 0.2": ({"model.dropout": 0.2}, (4.95, 25.5)),
    "(D) smoothing 0.0": ({"train.label_smoothing": 0.0}, (4.67, 25.3)),
    "(D) smoothing 0.2": ({"train.label_smoothing": 0.2}, (5.47, 25.7)),
    "(E) learned positions": ({"model.positions": "learned"}, (4.92, 25.7)),
    "(F) one head a unit": ({"model.num_heads": 512, "model.d_k": 1, "model.d_v": 1}, ()),
    "(F) no feed-forward": ({"model.d_ff": 0}, ()),
    "big": (BIG, (4.33, 26.4, 213)),
}
ROWS = {name: changes for name, (changes, _) in TABLE.items()}
PRINTED = {name: figures for name, (_, figures) in TABLE.items() if figures}

WIDTHS = {"model.d_model", "model.d_ff", "model.d_k", "model.d_v"}
EVERY_UNIT = 512  # heads, of d_model 512; they shrink with it
SMALL_WIDTH, SMALL_DEPTH = 4, 2  # divisors


def shrink(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with a quarter of the widths and half the depth."""
    small = dict(row)
    for key, value in row.items():
        # The d_k and d_v of one head a unit stay 1.
        is_width = key in WIDTHS and value != 1
        if is_width or (key == "model.num_heads" and value == EVERY_UNIT):
            small[key] = value // SMALL_WIDTH
        elif key == "model.num_layers":
            small[key] = value // SMALL_DEPTH
    return small


def small_label(row: str) -> str:
    """The row's name with the sizes that it has when its widths are divided."""
    row = re.sub(r"(?<=d_)(\w+) (\d+)", lambda m: f"{m[1]} {int(m[2]) // SMALL_WIDTH}", row)
    row = re.sub(r"(\d+) layers", lambda m: f"{int(m[1]) // SMALL_DEPTH} layers", row)
    return re.sub(r"\b1 layers", "1 layer", row)


SHRUNK = {row: shrink(changes) for row, changes in ROWS.items()}
BASE = {"model.num_layers": 6, "model.d_model": 512, "model.num_heads": 8, "model.d_ff": 2_048}
RECIPE = {"model.norm": "post", "model.dropout": 0.1}
SHORT = {
    "train.steps": 800,
    "train.warmup_steps": 200,
    "train.schedule": "rsqrt",
    "train.peak_learning_rate": None,
    "train.decay_steps": None,
    "train.valid_every": 200,
    "train.checkpoint_every": 400,
    "train.keep_last": 1,
}
LONGER = {
    "model.norm": "pre",
    "model.dropout": 0.1,
    "train.steps": 3_000,
    "train.warmup_steps": 300,
    "train.schedule": "linear",
    "train.peak_learning_rate": 0.006,
    "train.decay_steps": 3_000,
    "train.clip_norm": 1.0,
    "train.valid_every": 500,
    "train.checkpoint_every": 1_000,
    "train.keep_last": 1,
}

EXPERIMENT = Experiment(
    name="table3_ablations",
    rows=ROWS,
    scales={
        "paper": Scale(
            "configs/wmt14.py:base",
            split="valid",
            own={"big": {"train.steps": 300_000}},
            rows=tuple(PRINTED),
        ),
        "small": Scale(
            "configs/multi30k.py",
            {**shrink(BASE), **RECIPE, **SHORT},
            own=SHRUNK,
            label=small_label,
            rows=tuple(PRINTED),
        ),
        "converged": Scale(
            "configs/multi30k.py",
            {**shrink(BASE), **LONGER},
            own=SHRUNK,
            label=small_label,
            rows=tuple(row for row in ROWS if row != "big"),
        ),
    },
    about=__doc__,
    paper={
        row: dict(zip(("perplexity", "bleu", "parameters"), printed, strict=False))
        for row, printed in PRINTED.items()
    },
    source="Vaswani et al. 2017, table 3 (newstest2013, paper BLEU).",
    metrics=("perplexity", "bleu", "parameters"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
