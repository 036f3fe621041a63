"""BLEU as the objective: what a trained model gains from the BLEU of its own translations.

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.bleu_objective --scale=small

The questions: does training on the BLEU of drawn translations raise BLEU by more than training on
the text for as long? Does chrF, which is not trained, rise with it? And is it the reward that
helps, or do peaked predictions look better anyway (Choshen et al. 2020)?

Every row starts from the model of configs/multi30k_fast.py after 1,500 updates, and learns for 300
updates at a constant rate, a sixtieth of the peak, in batches of 500 target subwords: the text
alone; the text with 10 times the updates, which takes twice the FLOPs of the updates of the rows
that follow, whose draws are not counted; and, with 5 draws of each source and a weight of 10 beside
the text, risk, self-critical training and REINFORCE with the reward 1, the control that must not
help. BLEU and chrF on test2016 by greedy search, BLEU of a beam of 4, BLEU of one draw of each
source, and the entropy of the predictions: nats a subword of these draws.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"BLEU rises" and "chrF rises" hold for a row if its greedy search is better than after 10 times the
updates on the text, and do not if it is worse. "The reward matters" is the same of BLEU against the
constant reward. "Draws become better" holds if the BLEU of draws is higher than that after 10 times
the updates.
"""

from pathlib import Path

from experiments.evidence import Evidence
from experiments.judging import Column, Rule, at, more, page_of_runs
from experiments.short_demo import updates
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides, Scale
from transformer_jax.text.lines import TextLines

CONFIG = "configs/multi30k_fast.py"
BASE = Path("runs", "bleu_objective", "trained")
UPDATES, LONGER = 300, 10
TEXT, MORE_TEXT, CONSTANT = "text", "text, 10 times the updates", "constant reward"


def drawn(objective: str) -> Overrides:
    """A row that learns from its own translations."""
    keys = {"objective": objective, "objective_weight": 10.0, "candidates": 5}
    return {f"train.{name}": value for name, value in keys.items()}


ROWS: dict[str, Overrides] = {
    TEXT: {},
    MORE_TEXT: {**updates(LONGER * UPDATES), "train.decay_steps": None},
    "risk": drawn("risk"),
    "self-critical": drawn("self_critical"),
    CONSTANT: drawn("constant"),
}
LEARNING = ("risk", "self-critical", CONSTANT)  # from its own translations
KEYS: Overrides = {
    **updates(UPDATES),
    "train.init_from": str(BASE),
    "train.schedule": "constant",
    "train.decay_steps": None,
    "train.warmup_steps": 0,
    "train.peak_learning_rate": 1e-4,
    "train.tokens_per_batch": 500,
    "decode.beam_size": 1,
}
BLEU, CHRF, BEAM = "BLEU", "chrF", "BLEU, beam 4"
DRAWS, ENTROPY, LENGTH = "BLEU of draws", "entropy", "brevity penalty"
RULES = [
    Rule("BLEU rises", more(at(BLEU)), 1, 0, (MORE_TEXT,), LEARNING),
    Rule("chrF rises", more(at(CHRF)), 1, 0, (MORE_TEXT,), LEARNING),
    Rule("the reward matters", more(at(BLEU)), 1, 0, (CONSTANT,), LEARNING),
    Rule("draws become better", more(at(DRAWS)), 1, 0, (MORE_TEXT,), LEARNING),
]
FORMS = {BLEU: ".2f", BEAM: ".2f", CHRF: ".2f", LENGTH: ".3f", DRAWS: ".2f", ENTROPY: ".2f"}
COLUMNS = [Column(name, at(name), form) for name, form in FORMS.items()]
TITLE = "Greedy search, a beam, draws and their entropy"


def train_base() -> None:
    """Trains the model that all rows start from."""
    from transformer_jax.api import train

    train(CONFIG, BASE, updates(1_500))


def searched(job: Job) -> Evidence:
    """Scores of greedy search, of a beam and of draws, and the entropy."""
    from transformer_jax.api import load

    greedy, drawing = load(job.folder), load(job.folder, method="sample")
    beam = load(job.folder, beam_size=4)
    folder = Path(str(greedy.config.data.path))
    sources, references = (list(TextLines(folder / f"test2016.{x}.gz")) for x in ("en", "de"))
    scores = greedy.evaluate(sources, references)
    draws = greedy.score(sources, drawing.translate(sources))
    return {
        BLEU: scores.bleu,
        CHRF: scores.chrf,
        LENGTH: scores.brevity_penalty,
        BEAM: beam.evaluate(sources, references).bleu,
        DRAWS: drawing.evaluate(sources, references).bleu,
        ENTROPY: -sum(one.log_prob for one in draws) / sum(one.length for one in draws),
    }


SMALL = Scale(CONFIG, KEYS, seeds=(0, 1, 2), compared=False)
EXPERIMENT = Experiment(
    "bleu_objective",
    ROWS,
    {"small": SMALL},
    __doc__,
    findings=page_of_runs(searched, RULES, COLUMNS, TITLE),
    prepare=train_base,
)

if __name__ == "__main__":
    main(EXPERIMENT)
