"""Which settings help a Transformer that has only 5,000 pairs?

    python -m experiments.small_corpus

The question: recipes for small corpora have more dropout, in more places, and split words at random
(Sennrich and Zhang 2019; Araabi and Monz 2020; Provilkov et al. 2020), or let two dropout masks
agree (Liang et al. 2021). Which of these settings helps here?

The base is the pre-norm Transformer with LayerNorm of experiments.few_pairs: the first 5,000 pairs
of Multi30k, 800 steps of 2,000 target subwords, dropout 0.1, 6,000 subwords, and the peak rate that
experiments.fair_comparison chose for it. Each row changes one setting of it, to the value of those
papers or of common recipes; the last row joins all kinds of dropout. No row is tuned. Perplexities
of rows with another number of subwords cannot be compared. A step of R-Drop takes 2.9 times the
FLOPs of one of the other rows. All runs take about 2 hours of two CPU cores.

The rule, written before the runs. A setting helps if the BLEU of its row is higher than that of the
base, seed by seed, by Student's t over three seeds, p < 0.05. It hurts if it is lower by the same
test; otherwise nothing is decided.
"""

from experiments.few_pairs import EXPERIMENT as FEW_PAIRS
from experiments.few_pairs import FEW, row_of
from experiments.later_parts import BASE, verdicts
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Overrides

MORE: Overrides = {"model.dropout": 0.3}
WEIGHTS: Overrides = {"model.attention_dropout": 0.1}
HIDDEN: Overrides = {"model.activation_dropout": 0.1}
MERGES: Overrides = {"vocabulary.dropout": 0.1}
SETTINGS: dict[str, Overrides] = {
    BASE: {},
    "dropout 0.3": MORE,
    "dropout of attention weights 0.1": WEIGHTS,
    "dropout of hidden units 0.1": HIDDEN,
    "BPE-dropout 0.1": MERGES,
    "2,000 subwords": {"vocabulary.size": 2_000},
    "weight decay 0.01": {"train.weight_decay": 0.01},
    "R-Drop 5": {"train.consistency_weight": 5.0},
    "all kinds of dropout": {**MORE, **WEIGHTS, **HIDDEN, **MERGES},
}
ROWS = {name: {**row_of("pre", "layer", False), **own} for name, own in SETTINGS.items()}

EXPERIMENT = Experiment(
    name="small_corpus",
    rows=ROWS,
    scales={"small": FEW_PAIRS.scales[FEW]._replace(seeds=(1, 2, 3))},
    about=__doc__,
    findings=lambda folder, jobs: verdicts(folder, "setting", ROWS),
)

if __name__ == "__main__":
    main(EXPERIMENT)
