"""What came after the paper, part by part: does it help a small translation model?

    python -m experiments.later_parts --seeds=0,1,2

The question: language models of today are built of parts that the Transformer of 2017 did not have.
Which of them helps, or hurts, a small model that translates?

It trains a pre-norm Transformer with 2 + 2 layers of d_model 128 and 4 heads on the built-in
corpus, for 1,000 steps of 1,000 target subwords with Adam and a cosine schedule. Each row changes
one part of the base; two rows join three and four of them, as many language models do. SwiGLU has a
third less d_ff, and so the parameters of the base. Each row has the best of four peak rates
(experiments.rates); only rows that join four parts do best with the largest, 0.016. Talking heads
and the row of four parts were added together with that rate, and the two rows with Muon instead of
Adam when all others had run. All runs and the tuning take six hours of one CPU core. Other decoders
without self-attention are compared in experiments.caveats.

The rules, written before the runs. A part helps if the BLEU of its row is higher than that of the
base, seed by seed, by Student's t over three seeds, p < 0.05. It hurts if it is lower by the same
test; otherwise nothing is decided. Of 20 comparisons, about one will differ by chance.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.judging import FAILS, HOLDS, judged, mean_text
from experiments.short_demo import SHORT_DEMO, at_rates
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Overrides
from transformer_jax.tables.results import Line, read_results
from transformer_jax.tables.statistics import differences, of_row, text_of

BASE = "base"
RMS: Overrides = {"model.norm_kind": "rms"}
SWIGLU: Overrides = {"model.activation": "swiglu", "model.d_ff": 341}
ROTARY: Overrides = {"model.positions": "rotary"}
NORMS: Overrides = {"model.qk_norm": True}
MUON: Overrides = {"train.optimizer": "muon"}
JOINED: Overrides = {**RMS, **SWIGLU, **ROTARY}
# What a row changes, and its peak rate, chosen by experiments.rates.
TABLE: dict[str, tuple[Overrides, float]] = {
    BASE: ({}, 0.004),
    "RMSNorm": (RMS, 0.004),
    "DeepNorm": ({"model.norm": "deep"}, 0.002),
    "ReZero": ({"model.norm": "rezero"}, 0.004),
    "SwiGLU": (SWIGLU, 0.008),
    "rotary positions": (ROTARY, 0.008),
    "KERPLE": ({"model.positions": "kerple"}, 0.008),
    "contextual positions": ({"model.positions": "contextual"}, 0.008),
    "cosine scores": ({"model.score": "cosine"}, 0.008),
    "attention sink": ({"model.normalizer": "sink"}, 0.008),
    "talking heads": ({"model.normalizer": "talking_heads"}, 0.008),
    "differential attention": ({"model.normalizer": "differential"}, 0.008),
    "attention gate": ({"model.attention_gate": True}, 0.004),
    "norms of queries and keys": (NORMS, 0.008),
    "one key head": ({"model.num_key_heads": 1}, 0.008),
    "synthesizer encoder": ({"model.encoder": "synthesizer"}, 0.004),
    "linear decoder": ({"model.decoder": "linear"}, 0.008),
    "RMSNorm, SwiGLU, rotary": (JOINED, 0.008),
    "RMSNorm, SwiGLU, rotary, norms of queries and keys": ({**JOINED, **NORMS}, 0.016),
    "Muon": (MUON, 0.008),
    "the four, and Muon": ({**JOINED, **NORMS, **MUON}, 0.016),
}
ROWS = {name: changes for name, (changes, _) in TABLE.items()}
RATES = {name: rate for name, (_, rate) in TABLE.items()}
# What the table calls the verdict on "the part helps".
SHOWN = {HOLDS: "helps", FAILS: "hurts"}


def verdict_of(lines: Sequence[Line], row: str) -> tuple[str, str]:
    """The verdict on a part, and what it adds in BLEU."""
    gaps = differences(lines, row, BASE, "bleu")
    verdict = judged(gaps, 0, 1)
    return SHOWN.get(verdict, verdict), mean_text(gaps, "+.1f")


def verdicts(folder: Path, what: str, names: Iterable[str]) -> list[Part]:
    """The BLEU of each row, and the verdicts; `what` a row is: a part."""
    lines = read_results(folder)
    rows = []
    for name in names:
        verdict = ("", "") if name == BASE else verdict_of(lines, name)
        rows.append([name, text_of(of_row(lines, name, "bleu"), ".1f"), *verdict])
    return [Heading("Verdicts"), Table([what, "BLEU", "verdict", "against the base"], rows)]


EXPERIMENT = Experiment(
    name="later_parts",
    rows=ROWS,
    scales={"small": SHORT_DEMO._replace(own=at_rates(RATES))},
    about=__doc__,
    findings=lambda folder, jobs: verdicts(folder, "part", ROWS),
)

if __name__ == "__main__":
    main(EXPERIMENT)
