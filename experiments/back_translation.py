"""Back-translation: what target text without a source adds to few pairs, and how to make sources.

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.back_translation --scale=small

The question: there are 10,000 pairs of captions, English and German, and 19,000 more in German
alone. A model from German to English, trained on the pairs, writes their sources (Sennrich et al.
2016). How much of what 29,000 real pairs would add does that bring? Should the sources be the best
ones, or samples (Edunov et al. 2018), or the best ones with a tag (Caswell et al. 2019)?

The rows are the model of configs/multi30k_fast.py, 1,500 updates each, from English to German on
test2016: the pairs alone; with sources by a beam of 4, by samples, by samples of the 10 likeliest
subwords, and by the beam with a tag at their beginning; as the control, with each source beside the
next line's target; and 29,000 real pairs. The first lines are the pairs. Multi30k's captions were
written in English, so there is no test text that is German by origin.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"It helps" holds for a row if its BLEU is higher than that of the pairs alone, and does not if it is
lower. "It brings half" holds if its gain is more than half of that of the real pairs, and does not
if it is less. "Better than a beam" holds if its BLEU is higher than that of the row beam, and does
not if it is lower. The control must fail: it says what text in the right language adds without a
translation.
"""

from collections.abc import Sequence
from pathlib import Path

from experiments.judging import Rule, at, more, scores_of, verdicts
from experiments.short_demo import updates, write_captions, write_split
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides, Scale
from transformer_jax.tables.results import read_results
from transformer_jax.tables.statistics import of_row, text_of
from transformer_jax.text.lines import TextLines

FOLDER = Path("runs", "back_translation")
TEXT, REVERSE = FOLDER / "text", FOLDER / "reverse"
PAIRS = 10_000  # that have a source
FEW, BEAM, SAMPLES, TOP, TAGGED = "10,000 pairs", "beam", "samples", "top 10", "beam, tagged"
SHUFFLED, ALL = "beam, shuffled", "29,000 pairs"
# How the sources of a text are made: keys of the section decode.
WAYS: dict[str, dict[str, object]] = {
    "beam": {"beam_size": 4},
    "samples": {"method": "sample"},
    "top_10": {"method": "sample", "top_k": 10},
}
REAL = f"train[:{PAIRS}]"
ROWS: dict[str, Overrides] = {
    FEW: {"data.train": (REAL,)},
    BEAM: {"data.train": (REAL, "beam")},
    SAMPLES: {"data.train": (REAL, "samples")},
    TOP: {"data.train": (REAL, "top_10")},
    TAGGED: {"data.train": (REAL, "beam@bt")},
    SHUFFLED: {"data.train": (REAL, "shuffled")},
    ALL: {},
}
MADE = (BEAM, SAMPLES, TOP, TAGGED, SHUFFLED)  # rows whose sources are made
BLEU = at("bleu")
RULES = [
    Rule("it helps", more(BLEU), 1, 0, (FEW,), MADE),
    Rule(
        "it brings half",
        lambda own, few, all_: BLEU(own) - (BLEU(few) + BLEU(all_)) / 2,
        wanted=1,
        beside=(FEW, ALL),
        rows=MADE,
    ),
    Rule("better than a beam", more(BLEU), 1, 0, (BEAM,), MADE),
]
KEYS: Overrides = {"data.path": str(TEXT), **updates(1_500)}


def write_text() -> None:
    """Trains the model that translates back, and writes the texts of all rows."""
    from transformer_jax.api import load, train

    if (TEXT / "shuffled.de").exists():
        return
    write_captions(TEXT)
    reverse = {"data.src": "de", "data.tgt": "en", "data.train": (REAL,)}
    train("configs/multi30k_fast.py", REVERSE, {**KEYS, **reverse})
    more = list(TextLines(TEXT / "train.de"))[PAIRS:]
    for stem, changes in WAYS.items():
        write_split(TEXT, stem, {"en": load(REVERSE, **changes).translate(more), "de": more})
    sources = list(TextLines(TEXT / "beam.en"))
    write_split(TEXT, "shuffled", {"en": [*sources[1:], sources[0]], "de": more})


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, with the BLEU of each row."""
    lines = read_results(folder)
    scores = [[row, text_of(of_row(lines, row, "bleu"), ".1f")] for row in ROWS]
    table = verdicts(RULES, scores_of(lines), ROWS)
    return [Heading("Verdicts"), table, Heading("BLEU"), Table(["row", "BLEU"], scores)]


SMALL = Scale("configs/multi30k_fast.py", KEYS, seeds=(0, 1, 2), compared=False)
EXPERIMENT = Experiment(
    "back_translation", ROWS, {"small": SMALL}, __doc__, findings=findings, prepare=write_text
)

if __name__ == "__main__":
    main(EXPERIMENT)
