"""Table 2: translation quality and training cost, beside the models that the paper compares with.

    python -m experiments.table2_bleu --scale=paper --dry_run
    python -m experiments.table2_bleu --scale=small --seeds=0,1,2
    python -m experiments.table2_bleu --scale=longer

How to read it: paper BLEU is what the paper prints (Moses tokens, compound splitting for German);
BLEU is sacreBLEU on detokenized text, which is lower. Training FLOPs are counted from matrix
products, forward and backward. "By time" is nearly the paper's estimate: training time x devices x
the peak rate of a device, where the paper uses the rate that a device sustains. The paper's scale
needs wmt14_translate and GPUs; it averages the last 5 checkpoints of base and 20 of big.

The small scale compares the Transformer (table 3's base row at that scale, and the same with
pre-norm) with the kind of model that it replaced: a bidirectional encoder and a decoder of gated
recurrent units with additive attention (Bahdanau et al. 2015). All have the same vocabulary,
batches, loss, search, averaging of the last 5 checkpoints and, within 1 %, the same number of
parameters (2.15 million). The recurrent model has two rows: one with as many training FLOPs as the
Transformer, and one with as much time as the post-norm Transformer. The steps for equal time were
measured with one CPU core for each run; "minutes of training" shows the times reached. Set them
again on another device.

The longer scale is the small one with three times the steps of every row. It asks whether the
Transformer overtakes the recurrent model with a larger budget.

Two things are not equal: the recurrent model clips its gradients at norm 1, and it computes
attention again in the backward pass, which was faster on a CPU. Learning rates were chosen in short
runs by validation perplexity after 200 steps. For the recurrent model, the largest of 0.0015, 0.003
and 0.006 was best (70, 40, 25); for the Transformer, the formula's 0.00625 was better than 0.0015
and 0.003 (124, 84, 71). Larger rates were not tried.
"""

from collections.abc import Mapping
from typing import Any

from experiments.table3_ablations import BASE, RECIPE, SHORT, shrink
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Scale

# Paper BLEU and training FLOPs that the paper prints, for en-de and for en-fr.
Figures = tuple[float | None, float | None]
PRINTED: dict[str, tuple[Figures, Figures]] = {
    "Transformer (base)": ((27.3, 3.3e18), (38.1, 3.3e18)),
    "Transformer (big)": ((28.4, 2.3e19), (41.8, 2.3e19)),
    "ByteNet": ((23.75, None), (None, None)),
    "Deep-Att + PosUnk": ((None, None), (39.2, 1.0e20)),
    "GNMT + RL": ((24.6, 2.3e19), (39.92, 1.4e20)),
    "ConvS2S": ((25.16, 9.6e18), (40.46, 1.5e20)),
    "MoE": ((26.03, 2.0e19), (40.56, 1.2e20)),
    "Deep-Att + PosUnk, ensemble": ((None, None), (40.4, 8.0e20)),
    "GNMT + RL, ensemble": ((26.30, 1.8e20), (41.16, 1.1e21)),
    "ConvS2S, ensemble": ((26.36, 7.7e19), (41.29, 1.2e21)),
}
# The size that configs/wmt14.py takes, and the number of checkpoints to average.
SIZES = {"Transformer (base)": ("base", 5), "Transformer (big)": ("big", 20)}
DIRECTIONS = ("en-de", "en-fr")


METRICS = ("paper_bleu", "training_flops")
PAPER = {
    f"{direction}: {name}": {
        metric: figure for metric, figure in zip(METRICS, figures[n], strict=True) if figure
    }
    for n, direction in enumerate(DIRECTIONS)
    for name, figures in PRINTED.items()
    if any(figures[n])
}
OURS = {f"{d}: {name}": (f"{size},{d}", k) for d in DIRECTIONS for name, (size, k) in SIZES.items()}

# The recurrent model has as many parameters as the Transformer, within 1 %.
RECURRENT: dict[str, Any] = {
    "model.encoder": "recurrent",
    "model.decoder": "recurrent",
    "model.d_hidden": 220,
    "train.remat": True,
    "train.peak_learning_rate": 6e-3,
    "train.clip_norm": 1.0,
}
SMALL: dict[str, Mapping[str, Any]] = {
    "Transformer": {},
    "Transformer, pre-norm": {"model.norm": "pre"},
    "recurrent, equal FLOPs": {**RECURRENT, "train.steps": 839},
    "recurrent, equal time": {**RECURRENT, "train.steps": 680},
}
LAST = 5  # checkpoints to average
AVERAGED = {"train.checkpoint_every": 20, "train.keep_last": LAST}
CONFIG = "configs/multi30k.py"
AT_SMALL = {**shrink(BASE), **RECIPE, **SHORT, **AVERAGED}
EXPERIMENT = Experiment(
    name="table2_bleu",
    rows={**{row: {} for row in OURS}, **SMALL},
    scales={
        "paper": Scale(
            {row: f"configs/wmt14.py:{argument}" for row, (argument, _) in OURS.items()},
            average={row: last for row, (_, last) in OURS.items()},
            rows=tuple(PAPER),
            compared=False,
        ),
        "small": Scale(CONFIG, AT_SMALL, average=LAST, rows=tuple(SMALL)),
        "longer": Scale(
            CONFIG,
            {**AT_SMALL, "train.steps": 2_400},
            average=LAST,
            own={"recurrent, equal FLOPs": {"train.steps": 2_517}},
            rows=("Transformer", "Transformer, pre-norm", "recurrent, equal FLOPs"),
        ),
    },
    about=__doc__,
    paper=PAPER,
    source="Vaswani et al. 2017, table 2 (newstest2014, paper BLEU).",
    metrics=("paper_bleu", "bleu", *METRICS[1:], "estimated_flops", "minutes", "parameters"),
)

if __name__ == "__main__":
    main(EXPERIMENT)
