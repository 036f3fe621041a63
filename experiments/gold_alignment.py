"""Word alignment of real text against gold links: attention, an aligner, and published figures.

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.gold_alignment
    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.gold_alignment --scale=cores

The questions: how well does the attention of a Transformer that was trained on real text align
words, beside the hidden Markov models of `transformer-jax align`? Do both directions together align
better than one, and better if they were trained to agree?

FOLDER has alignments-de-en/, RWTH's gold links of 508 German-English pairs of Europarl (Vilar et
al. 2006), sure and possible, and mixed-en-de/, the training text: technical documents, Buddhist
texts and news, but no Europarl. So the gold text is of another domain, and it has the spelling of
before 1996. Published figures are of models that were trained on the 1.9 million pairs of Europarl
itself. The Transformers do not see the 508 pairs; the aligner, like the published ones, is trained
on them too, without their links: alone, with 36,000 pairs of news, or with 100,000 pairs of all
kinds.

A run is two Transformers, de-en and en-de, that are trained on the same batches, without and with
the bonus for attentions that agree (train.agreement_weight 0 and 1), which acts on
model.watched_layer, the last but one. A word's weights are those at the position that predicts it,
or at the next one, which has just read it (Chen et al. 2020). Each word is linked to the word with
the largest weight in the mean of a layer's heads. The layers of both directions are chosen without
gold links: those whose links agree most on 300 pairs of the validation text. What a choice by gold
links would give is reported as the oracle. Both directions' links are combined: those that both
have, or these and their neighbors in either ("grow-diag", Koehn et al. 2003).

The error rate is 1 - (|A & S| + |A & P|) / (|A| + |S|) of links A, sure links S and possible links
P, which contain S; precision is |A & P| / |A|, recall |A & S| / |S| (Och and Ney 2003).

The rules, written before the runs; all are about differences of error rates over seeds, by
Student's t, p < 0.05. Where nothing else is named they are about grow-diag at weight 0 with the
weights of the position that predicts the word. "The aligner is better than attention" holds if its
links with 100,000 pairs have a lower error rate, and does not if theirs is higher. "Both directions
are better than one" holds if the error rate is lower than the mean of the two directions' own, and
does not if it is higher. "Agreement aligns better" holds if it is lower at weight 1 than at 0, and
does not if it is higher. "The word just read is aligned better" holds if it is lower with the
weights of the position that has read the word, and does not if it is higher. Otherwise nothing is
decided.
"""

import os
import sys

from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Overrides, Scale

DATA = os.environ.get("TRANSFORMER_JAX_DATA", "data")
TEXT: Overrides = {
    "data.path": os.path.join(DATA, "mixed-en-de"),
    "data.src": "de",
    "data.tgt": "en",
    "data.valid": ("newscomm-valid[:300]",),
    "data.test": ("newscomm-test[:200]",),
    "data.max_length": 64,
    "vocabulary.normalization": "identity",  # subwords have to spell the words
    "vocabulary.max_lines": 200_000,
    "train.tokens_per_batch": 2_000,
    "train.row_length": 64,
    "train.loss_block": 512,
    "train.schedule": "cosine",
    "train.clip_norm": 1.0,
    "train.keep_last": 1,
    "decode.tokens_per_batch": 2_048,
}
SMALL: Overrides = {
    **TEXT,
    "data.train": ("train[:200000]",),  # more than a run reads
    "model.num_layers": 2,
    "model.d_model": 128,
    "model.d_ff": 512,
    "model.dropout": 0.0,  # less than an epoch
    "train.steps": 1_000,
    "train.decay_steps": 1_000,
    "train.warmup_steps": 100,
    "train.peak_learning_rate": 4e-3,
    "train.valid_every": 500,
    "train.checkpoint_every": 500,
}
CORES: Overrides = {
    **TEXT,
    "model.num_layers": 3,
    "model.dropout": 0.1,
    "train.steps": 3_000,
    "train.decay_steps": 3_000,
    "train.warmup_steps": 300,
    "train.peak_learning_rate": 2e-3,
    "train.valid_every": 1_000,
    "train.checkpoint_every": 1_000,
}
BASE, AGREED = "weight 0", "weight 1"
ROWS: dict[str, Overrides] = {
    BASE: {"train.agreement_weight": 0.0},
    AGREED: {"train.agreement_weight": 1.0},
}

EXPERIMENT = Experiment(
    name="gold_alignment",
    rows=ROWS,
    scales={
        "small": Scale("configs/text.py", SMALL, seeds=(0, 1, 2), compared=False),
        "cores": Scale("configs/text.py", CORES, seeds=(0, 1), compared=False),
    },
    about=__doc__,
)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
