"""Text shows occupations with one gender: does a model believe the sentence, and what helps?

    python -m experiments.stereotypes

The text is 20,000 pairs of the built-in corpus and 6,000 sentences with one of 24 occupations, as
in Saunders and Byrne (2020): "The dancer sells his book ." In English the pronoun tells the gender,
in German the noun too ("Tänzer", "Tänzerin"). The dial is the share of an occupation's sentences
with the gender of its stereotype, which is male for half of them: 50, 90 or 99 %. Models of the
short demo learn from it, three seeds. The probe is 160 sentences with 8 occupations, half of them
with the rare gender, about things that no such sentence of the training text names: accuracy is the
share with the form of the right gender, BLEU that of 300 test pairs of the built-in corpus.

The remedies start from each model of the dial at 99 %, and train on 480 sentences with 12 other
occupations, both genders alike: alone; with as many pairs of the built-in corpus (replay); with
elastic weights (train.elastic_weight). The control trains on 480 sentences as biased as before.
Each has four settings, numbers of updates or weights, and the one is taken that has the highest
accuracy on the rare gender of the last 4 occupations, of those that lose at most 1 BLEU on 300
validation pairs (if all lose more, the one that loses least). Balanced sentences with the 8 probed
occupations ("seen", with the same remedies) are no contenders: they show what a remedy gains and
costs where the text has what it is to help with. They were added after the first results.

The rules, written before the runs; all are over seeds, by Student's t, p < 0.05. "The dial works":
accuracy on the rare gender is lower at 99 % than at 50 %, and if this does not hold, the experiment
has failed. A remedy "helps" if that accuracy is higher than before it, and "keeps the rest" if BLEU
is at most 1 lower than before. "Forgets less": BLEU is higher than that of balanced pairs alone,
where both take 200 updates, or the elastic weights that were taken. The control must not help.
"""

import functools
import random
import statistics
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from experiments.documents import VERBS
from experiments.evidence import Evidence, Found, of_jobs
from experiments.judging import Column, at, judged, mean_text, means, side_by_side
from experiments.short_demo import on_text, updates, write_split
from experiments.translations import bleu
from grammar.lexicon import NOUNS
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides
from transformer_jax.text.built_in_corpus import built_in_pairs

TEXT = Path("runs", "stereotypes", "text")
# German nouns of men; with "in" they are of women. The stereotype is male for every other one.
OCCUPATIONS = dict(
    word.split("/")
    for word in (
        "dancer/Tänzer driver/Fahrer tailor/Schneider librarian/Bibliothekar cleaner/Reiniger "
        "secretary/Sekretär hairdresser/Friseur guard/Wächter translator/Übersetzer "
        "photographer/Fotograf plumber/Klempner electrician/Elektriker butcher/Metzger "
        "fisher/Fischer pharmacist/Apotheker chemist/Chemiker physicist/Physiker swimmer/Schwimmer "
        "runner/Läufer player/Spieler director/Direktor manager/Leiter trainer/Trainer "
        "programmer/Programmierer"
    ).split()
)
HELPING, PROBED, CHOOSING = (tuple(OCCUPATIONS)[n:m] for n, m in ((0, 12), (12, 20), (20, 24)))
MALE, FEMALE = "m", "f"
PRONOUNS = {MALE: ("he", "er", "his", "sein"), FEMALE: ("she", "sie", "her", "ihr")}
ENDINGS = {"m": "en", "f": "e", "n": ""}  # of "sein" and "ihr" before an object
STATES = (("old", "alt"), ("tired", "müde"), ("happy", "glücklich"), ("sick", "krank"))
THINGS = [
    one
    for one in NOUNS
    if one.kinds & {"furniture", "clothes", "vehicle", "text"}
    and not (one.mass or one.proper or one.neutral or " " in one.en)
]
SHOWN, UNSEEN = THINGS[:-10], THINGS[-10:]  # those of the probe, training does not show
PAIRS, BIASED, BALANCED, SCORED = 20_000, 6_000, 480, 300
DIALS = {"50 %": 0.5, "90 %": 0.9, "99 %": 0.99}
EVEN, MOST = "50 %", "99 %"
ROWS: dict[str, Overrides] = {row: {"data.train": (f"train{row[:2]}",)} for row in DIALS}
ALONE, REPLAY, ELASTIC, CONTROL = "balanced pairs", "replay", "elastic weights", "control"
NUMBERS, LONGEST = (25, 50, 100, 200), 200  # updates
WEIGHTS = (0.01, 0.1, 1.0, 10.0)
Settings = dict[str, Overrides]


def for_updates(*texts: str) -> Settings:
    """Training on these texts, for each number of updates."""
    return {f"{n} updates": {"data.train": texts, **updates(n)} for n in NUMBERS}


def with_weights(text: str) -> Settings:
    """The longest training on a text, with each elastic weight."""
    own = {"data.train": (text,), **updates(LONGEST)}
    return {f"weight {weight:g}": {**own, "train.elastic_weight": weight} for weight in WEIGHTS}


REMEDIES: dict[str, Settings] = {
    ALONE: for_updates("balanced"),
    REPLAY: for_updates("balanced", "replay"),
    ELASTIC: with_weights("balanced"),
    CONTROL: for_updates("biased"),
    "seen": for_updates("seen"),
    "seen, replay": for_updates("seen", "replay"),
    "seen, elastic weights": with_weights("seen"),
}
TUNING: Overrides = {"train.peak_learning_rate": 5e-4, "train.warmup_steps": 10}
RARE, USUAL, CHOICE, BLEU, VALID = "rare gender", "stereotype", "for the choice", "BLEU", "valid"
HELPS, KEEPS, LESS = "helps", "keeps the rest", "forgets less"
LOST = 1.0  # BLEU

# Text ----------------------------------------------------------------------------------------


class Sentence(NamedTuple):
    """A sentence with an occupation."""

    src: str
    tgt: str
    occupation: str
    gender: str


def stereotype(occupation: str) -> str:
    """The gender of most sentences with an occupation."""
    return (MALE, FEMALE)[list(OCCUPATIONS).index(occupation) % 2]


def form(occupation: str, gender: str) -> str:
    """The German noun."""
    return OCCUPATIONS[occupation] + ("in" if gender == FEMALE else "")


def sentence(draw: random.Random, occupation: str, gender: str, things: Sequence[Any]) -> Sentence:
    """A random sentence."""
    he, er, his, sein = PRONOUNS[gender]
    who = f"{'Der' if gender == MALE else 'Die'} {form(occupation, gender)}"
    verb, state, thing = draw.choice(VERBS), draw.choice(STATES), draw.choice(things)
    owned = f"{sein}{ENDINGS[thing.gender]} {thing.german('acc', False)}"
    en, de = f"{verb[0]} {his} {thing.en} .", f"{verb[1]} {owned} ."
    if draw.random() < 0.5:
        en = f"says that {he} is {state[0]} and {en}"
        de = f"sagt , dass {er} {state[1]} ist und {owned} {verb[1]} ."
    return Sentence(f"The {occupation} {en}", f"{who} {de}", occupation, gender)


def biased(count: int, share: float, seed: int, names: Sequence[str]) -> Iterator[Sentence]:
    """Sentences in which this share has the gender of the stereotype."""
    draw = random.Random(seed)
    for n in range(count):
        name = names[n % len(names)]
        usual = stereotype(name)
        gender = usual if draw.random() < share else ({MALE, FEMALE} - {usual}).pop()
        yield sentence(draw, name, gender, SHOWN)


def probe(names: Sequence[str]) -> list[Sentence]:
    """Ten sentences with each occupation and gender, about things that training does not show."""
    draw = random.Random(99)
    return [
        sentence(draw, name, gender, [thing])
        for name in names
        for gender in (MALE, FEMALE)
        for thing in UNSEEN
    ]


def write_text() -> None:
    """Writes the texts of the dial and of the remedies, and the built-in corpus' other splits."""
    base = built_in_pairs("train", PAIRS)
    texts: dict[str, Sequence[Any]] = {
        f"train{row[:2]}": [*base, *biased(BIASED, share, 0, tuple(OCCUPATIONS))]
        for row, share in DIALS.items()
    }
    texts |= {"balanced": [*biased(BALANCED, 0.5, 1, HELPING)], "replay": base[:BALANCED]}
    texts["biased"] = [*biased(BALANCED, DIALS[MOST], 1, HELPING)]
    texts["seen"] = [*biased(BALANCED, 0.5, 1, PROBED)]
    texts |= {split: built_in_pairs(split, SCORED) for split in ("valid", "test")}
    for stem, pairs in texts.items():
        sides = {"en": [one.src for one in pairs], "de": [one.tgt for one in pairs]}
        write_split(TEXT, stem, sides)


# Measurement ---------------------------------------------------------------------------------


def accuracy(found: Sequence[str], asked: Sequence[Sentence]) -> float:
    """The share of translations, in percent, with the right form and not the other one."""
    right = []
    for line, one in zip(found, asked, strict=True):
        named = {g for g in (MALE, FEMALE) if form(one.occupation, g) in line.split()}
        right.append(named == {one.gender})
    return 100 * statistics.fmean(right)


def measured(folder: Path) -> Evidence:
    """Accuracy on both genders and on the occupations of the choice, and BLEU of two splits."""
    from transformer_jax.api import load

    run = load(folder)
    found: Evidence = {}
    asked = {RARE: PROBED, USUAL: PROBED, CHOICE: CHOOSING}
    for name, occupations in asked.items():
        own = [
            one
            for one in probe(occupations)
            if (one.gender == stereotype(one.occupation)) == (name == USUAL)
        ]
        found[name] = accuracy(run.translate([one.src for one in own]), own)
    for name, split in ((BLEU, "test"), (VALID, "valid")):
        pairs = built_in_pairs(split, SCORED)
        found[name] = bleu(run.translate([one.src for one in pairs]), [one.tgt for one in pairs])
    return found


def remedied(job: Job, remedy: str) -> Evidence:
    """What is measured after each setting of a remedy."""
    from transformer_jax.api import train

    found: Evidence = {}
    with tempfile.TemporaryDirectory() as scratch:
        for setting, own in REMEDIES[remedy].items():
            folder = Path(scratch, setting)
            origin = {"train.init_from": str(job.folder), "seed": job.seed}
            train(job.config_file, folder, {**job.overrides, **own, **TUNING, **origin})
            found[setting] = measured(folder)
    return found


# Verdicts ------------------------------------------------------------------------------------


def chosen(settings: Mapping[str, Evidence], before: Evidence) -> Evidence:
    """What the setting gives that is taken; the test split and the probe have no part in it."""
    good = [one for one in settings.values() if before[VALID] - one[VALID] <= LOST]
    if not good:
        return max(settings.values(), key=at(VALID))
    return max(good, key=at(CHOICE))


def differences(after: Mapping[str, Found], before: Found, remedy: str) -> dict[str, list[float]]:
    """What a remedy changes at each seed: accuracy, BLEU, and BLEU beside balanced pairs alone."""
    last, changes = f"{LONGEST} updates", dict[str, list[float]]()
    founds = before, after.get(remedy, {}), after.get(ALONE, {})
    for key in sorted(set(founds[0]).intersection(*founds[1:])):
        start, own, alone = (found[key] for found in founds)
        taken = chosen(own, start)
        same_time = own.get(last, taken)  # all elastic weights take as many updates
        changes.setdefault(HELPS, []).append(taken[RARE] - start[RARE])
        changes.setdefault(KEEPS, []).append(taken[BLEU] - start[BLEU])
        changes.setdefault(LESS, []).append(same_time[BLEU] - alone[last][BLEU])
    return changes


def verdicts(after: Mapping[str, Found], before: Found) -> list[list[str]]:
    """Each claim, its verdict, and the mean difference."""
    works = [most[RARE] - even[RARE] for most, even in side_by_side(before, MOST, EVEN)]
    rows = [["the dial works", judged(works, 0, -1), mean_text(works, "+.1f")]]
    for remedy in REMEDIES:
        changes = differences(after, before, remedy)
        for claim, limit in ((HELPS, 0), (KEEPS, -LOST), (LESS, 0)):
            if claim != LESS or remedy in (REPLAY, ELASTIC):
                values = changes.get(claim, [])
                verdict = judged(values, limit, 1)
                rows.append([f"{remedy}: {claim}", verdict, mean_text(values, "+.1f")])
    return rows


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, the dial, and accuracy against BLEU of every setting."""
    before = of_jobs(folder, jobs, lambda job: measured(job.folder))
    most, after = [job for job in jobs if job.row == MOST], dict[str, Found]()
    for remedy in REMEDIES:
        ask = functools.partial(remedied, remedy=remedy)
        after[remedy] = of_jobs(folder, most, ask, f", {remedy}")
    names = (USUAL, RARE, BLEU)
    columns = [Column(name, at(name), ".1f") for name in names]
    settings = []
    for remedy, setting in ((remedy, x) for remedy, own in REMEDIES.items() for x in own):
        values = [[x[setting][name] for x in after[remedy].values()] for name in names]
        settings.append([remedy, setting, *(mean_text(own, ".1f") for own in values)])
    return [
        Heading("Verdicts"),
        Table(["claim", "verdict", "mean difference"], verdicts(after, before)),
        Heading("The dial: accuracy (%) by gender, and BLEU"),
        means(columns, before, DIALS),
        Heading("After each setting, from the dial at 99 %"),
        Table(["remedy", "setting", *names], settings),
    ]


SMALL = on_text(TEXT, {"decode.beam_size": 1})
EXPERIMENT = Experiment(
    "stereotypes",
    ROWS,
    {"small": SMALL},
    __doc__,
    findings=findings,
    fixed=("data",),
    prepare=write_text,
)

if __name__ == "__main__":
    main(EXPERIMENT)
