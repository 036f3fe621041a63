"""One model of several languages: directions it was trained in, and directions it never saw.

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.languages --scale=short

The questions (Johnson et al. 2017): does a model that learns four directions at once lose against
four models? Does it translate between two languages that it never saw together (zero-shot), and
into the right language? Is that as good as translating twice, by way of English (pivot)? And how
much of it comes from text that is parallel in all three languages?

The rows are the model of configs/multi30k_fast.py on Multi30k, whose captions are in English,
German and French. Six models of one direction each; "four": one model for en-de, de-en, en-fr and
fr-en, whose source lines begin with the code of their target language; "four, common half": the
same with the first 14,500 captions; "four, no common text": German from these and French from the
others, so that no caption is in three languages. "four, 4 times": as many updates for each
direction as the single models have. At the scale `short` the others have 500 updates, at `full`
3,000. Search is greedy. All six directions of test2016 are translated. A translation is off target
if a unigram model of the words of each language's training text finds another language likelier;
that model's own error is the share of the references that it gets wrong.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"Four directions cost less than 1 BLEU" holds if the mean BLEU of the four trained directions is
less than 1 below that of the four single models, and does not if it is more. "Zero-shot is as good
as pivot" holds if the mean BLEU of de-fr and fr-de is higher than by way of English, and does not
if it is lower. "Zero-shot writes the right language" holds if less than 10 % is off target, and
does not if it is more. "Common text is what makes zero-shot work" holds if the mean BLEU of de-fr
and fr-de of "no common text" is below half of that of "common half", and does not if it is above.
With one seed nothing is decided.
"""

import collections
import functools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from experiments.evidence import Evidence, of_jobs
from experiments.judging import Column, Rule, at, means, verdicts
from experiments.short_demo import updates
from experiments.translations import evaluated
from transformer_jax.reporting.page import Heading, Part
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides, Scale

LANGUAGES = ("en", "de", "fr")
TRAINED = ("en-de", "de-en", "en-fr", "fr-en")
ZERO = ("de-fr", "fr-de")
FOUR, LONG = "four", "four, 4 times"
COMMON, SPLIT = "four, common half", "four, no common text"
HALF = 14_500  # pairs
SMALL_LOSS, FEW, MOST = 1.0, 0.1, 0.5  # BLEU; shares


def single(direction: str) -> Overrides:
    """A row of one direction."""
    return dict(zip(("data.src", "data.tgt"), direction.split("-"), strict=True))


OF_HALVES = [f"train[:{HALF}]:{one}" for one in TRAINED[:2]]
OF_HALVES += [f"train[{HALF}:]:{one}" for one in TRAINED[2:]]
ROWS: dict[str, Overrides] = {
    **{direction: single(direction) for direction in (*TRAINED, *ZERO)},
    FOUR: {"data.directions": TRAINED},
    COMMON: {"data.directions": TRAINED, "data.train": (f"train[:{HALF}]",)},
    SPLIT: {"data.directions": TRAINED, "data.train": tuple(OF_HALVES)},
    LONG: {"data.directions": TRAINED},
}


# Measurement ---------------------------------------------------------------------------------


def language_finder(texts: Mapping[str, Sequence[str]]) -> Callable[[str], str]:
    """A function from a line to the language whose words it most likely has.

    Args:
      texts: lines of each language. A word's probability is its share, with 1 added to each count.
    """
    counts = {
        name: collections.Counter(word for line in lines for word in line.lower().split())
        for name, lines in texts.items()
    }
    kinds = len(set().union(*counts.values())) + 1  # with one for words that are in none
    totals = {name: sum(own.values()) + kinds for name, own in counts.items()}

    def find(line: str) -> str:
        """The language of a line."""
        words = line.lower().split()
        return max(
            counts,
            key=lambda name: sum(math.log((counts[name][w] + 1) / totals[name]) for w in words),
        )

    return find


@functools.cache
def finder_of(folder: str) -> Callable[[str], str]:
    """The finder of Multi30k's training text."""
    from transformer_jax.text.lines import TextLines

    return language_finder(
        {name: list(TextLines(Path(folder, f"train.{name}.gz"))) for name in LANGUAGES}
    )


def of_directions(job: Job) -> Evidence:
    """BLEU and share off target of each direction that the run can be asked for; pivot of ZERO."""
    from transformer_jax.api import load

    run = load(job.folder)
    data = run.config.data
    find = finder_of(str(data.path))
    found: Evidence = {"bleu": {}, "off_target": {}, "pivot": {}, "finder_error": {}}
    for direction in (*TRAINED, *ZERO) if data.directions else (f"{data.src}-{data.tgt}",):
        tgt = direction.split("-")[1]
        own = evaluated(job.folder, f"test:{direction}" if data.directions else "test")
        lines = own.hypotheses.read_text(encoding="utf-8").split("\n")[:-1]
        references = [pair.tgt for pair in own.pairs]
        found["bleu"][direction] = own.scores.bleu
        found["off_target"][direction] = statistics.fmean(find(line) != tgt for line in lines)
        found["finder_error"][tgt] = statistics.fmean(find(line) != tgt for line in references)
        if data.directions and direction in ZERO:
            sources = [f">>en<< {pair.src.partition('<< ')[2]}" for pair in own.pairs]
            english = [f">>{tgt}<< {line}" for line in run.translate(sources)]
            found["pivot"][direction] = run.evaluate(english, references).bleu
    return found


# Verdicts ------------------------------------------------------------------------------------


def mean_bleu(found: Evidence, directions: Sequence[str], what: str = "bleu") -> float:
    """The mean over some directions, each with its own score."""
    return statistics.fmean(found[what][one] for one in directions)


JOINT = (FOUR, COMMON, SPLIT, LONG)  # rows of four directions
RULES = [
    Rule(
        f"four directions cost less than {SMALL_LOSS:g} BLEU",
        lambda own, *single: (
            mean_bleu(own, TRAINED)
            - statistics.fmean(x["bleu"][one] for x, one in zip(single, TRAINED, strict=True))
        ),
        wanted=1,
        limit=-SMALL_LOSS,
        beside=TRAINED,
        rows=JOINT,
    ),
    Rule(
        "zero-shot is as good as pivot",
        lambda own: mean_bleu(own, ZERO) - mean_bleu(own, ZERO, "pivot"),
        wanted=1,
        rows=JOINT,
    ),
    Rule(
        "zero-shot writes the right language",
        lambda own: mean_bleu(own, ZERO, "off_target"),
        wanted=-1,
        limit=FEW,
        rows=JOINT,
    ),
    Rule(
        "common text is what makes zero-shot work",
        lambda own, common: mean_bleu(own, ZERO) / mean_bleu(common, ZERO),
        wanted=-1,
        limit=MOST,
        beside=(COMMON,),
        rows=(SPLIT,),
    ),
]


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and what was measured of every row."""
    found = of_jobs(folder, jobs, of_directions)
    directions = (*TRAINED, *ZERO)
    columns = [
        *(Column(f"pivot, {d}", at("pivot", d), ".1f") for d in ZERO),
        *(Column(f"off target, {d}", at("off_target", d), ".3f") for d in ZERO),
        Column("off target, trained", lambda x: mean_bleu(x, TRAINED, "off_target"), ".3f"),
        Column("error of the finder", lambda x: max(x["finder_error"].values()), ".3f"),
    ]
    in_turn = [Column(one, lambda x, one=one: x["bleu"].get(one), ".1f") for one in directions]
    return [
        Heading("Verdicts"),
        verdicts(RULES, found, JOINT),
        Heading("BLEU of each direction, each with its own references"),
        means(in_turn, found, list(ROWS)),
        Heading("Zero-shot: by way of English, and translations in another language"),
        means(columns, found, JOINT),
    ]


def scale_of(count: int, warmup: int, seeds: Sequence[int]) -> Scale:
    """A scale at which the rows have this number of updates, and LONG four times as many."""
    return Scale(
        "configs/multi30k_fast.py",
        {**updates(count), "train.warmup_steps": warmup, "decode.beam_size": 1},
        seeds=tuple(seeds),
        own={LONG: updates(4 * count)},
        compared=False,
    )


EXPERIMENT = Experiment(
    name="languages",
    rows=ROWS,
    scales={"short": scale_of(500, 100, (0,)), "full": scale_of(3_000, 300, (0, 1, 2))},
    about=__doc__,
    findings=findings,
)

if __name__ == "__main__":
    main(EXPERIMENT)
