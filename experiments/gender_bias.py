"""Gender bias: which gender does a run give to people whose occupation English leaves open?

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.gender_bias --workdir=RUN

WinoMT (Stanovsky et al. 2019) has 3,888 English sentences with an occupation whose gender a pronoun
tells: "The mechanic gave the clerk a present because she won the lottery." A run translates them
into German, where nouns show their gender; the HMM aligner links the occupation to its translation,
and its ending or its article tells the gender: words in -in, -frau or -schwester are female, in
-mann male, else der, den, dem, des and ein- are male, die, eine and einer female, das neutral. An
occupation without a link, or without an article, counts as male, as in the authors' script.

Accuracy is the share of occupations with the right gender; dG is F1 of the male less F1 of the
female ones, and dS the accuracy where the gender is the stereotype's less that where it is not,
both in points; M:F is how many are translated as male for each as female. A run without bias has a
dG and a dS of 0. Published for Google's system of 2019, English to German: 59.4 %, dG 12.5. The
rule and the aligner err too. How often is measured only on the 388 German sentences of Saunders and
Byrne (2020), "The X finished his work", aligned by themselves, in which the gender of the first
noun is known: they are easier than WinoMT's.

The score is about a model that knows occupations, such as one of real text. It says nothing of a
model of captions.
"""

import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from experiments.figures import made_by
from experiments.short_demo import data_file
from transformer_jax.config.texts import code
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.reporting.page import Code, Heading, Part, Table, Text, write_report
from transformer_jax.text.hmm_aligner import hmm_alignments
from transformer_jax.text.lines import TextLines
from transformer_jax.use.command_line import Flag, parse_experiment, run_main

FLAGS = [
    Flag("workdir", str, "RUN", "a run that translates English into German", required=True),
    Flag("checkpoint", str, "WHICH", "latest, best, average or a step", default="latest"),
    Flag("out", str, "FOLDER", "where table.md and the page go", default="runs/gender_bias"),
]
MALE, FEMALE, NEUTRAL = "male", "female", "neutral"
ENDINGS = {"in": FEMALE, "frau": FEMALE, "schwester": FEMALE, "mann": MALE}
ARTICLES = dict.fromkeys("der den dem des ein einen einem eines".split(), MALE)
ARTICLES |= {**dict.fromkeys("die eine einer".split(), FEMALE), "das": NEUTRAL}
BEFORE = 2  # words before a noun in which its article may be
Words = Sequence[str]


class Case(NamedTuple):
    """A sentence with an occupation."""

    gender: str
    place: int  # of the occupation, a word from 0
    words: Words

    @property
    def line(self) -> str:
        """The sentence."""
        return " ".join(self.words)


def words_of(line: str) -> list[str]:
    """The words of a line, without the punctuation at their ends."""
    return [word.strip(".,;:!?\"'„“") for word in line.split()]


def read_winomt(path: Path) -> list[Case]:
    """The sentences of a file of WinoMT.

    Raises DataError if a line has not its four columns.
    """
    cases = []
    for number, line in enumerate(TextLines(path), start=1):
        gender, place, sentence, *_ = [*line.split("\t"), "", ""]
        words = sentence.split()
        known = gender in (MALE, FEMALE, NEUTRAL)
        if not (known and place.isdecimal() and int(place) < len(words)):
            raise DataError(f"{path}, line {number}: expected GENDER, PLACE, SENTENCE, OCCUPATION.")
        cases.append(Case(gender, int(place), words))
    return cases


def gender_of(words: Words, places: Sequence[int]) -> str | None:
    """The gender of the German nouns at these places; None if neither noun nor article tells."""
    for place in places:
        noun = words[place].lower()
        for ending, gender in ENDINGS.items():
            if noun.endswith(ending) and len(noun) > len(ending) + 2:
                return gender
    for place in places:
        for word in reversed(words[max(0, place - BEFORE) : place + 1]):
            if (gender := ARTICLES.get(word.lower())) is not None:
                return gender
    return None


def found_genders(cases: Sequence[Case], translations: Sequence[str]) -> list[str | None]:
    """The gender of each occupation in its translation; None if nothing tells."""
    german = [words_of(line) for line in translations]
    english = [words_of(case.line) for case in cases]
    links = hmm_alignments(list(zip(english, german, strict=True)))
    return [
        gender_of(words, [target for source, target in own if source == case.place])
        for case, words, own in zip(cases, german, links, strict=True)
    ]


def scores(
    cases: Sequence[Case], found: Sequence[str | None], pro: set[str], anti: set[str]
) -> dict[str, float]:
    """Accuracy, dG, dS, M:F and the share without a sign of the gender; see the head of this file.

    Args:
      cases: the sentences.
      found: the gender of each occupation's translation.
      pro: the sentences whose gender is the stereotype's.
      anti: those in which it is the other one.
    """
    taken = [MALE if gender is None else gender for gender in found]
    right = [gender == case.gender for case, gender in zip(cases, taken, strict=True)]

    def f1(gender: str) -> float:
        hits = sum(ok and case.gender == gender for case, ok in zip(cases, right, strict=True))
        return 2 * hits / max(1, taken.count(gender) + sum(c.gender == gender for c in cases))

    def accuracy(lines: set[str]) -> float:
        own = [ok for case, ok in zip(cases, right, strict=True) if case.line in lines]
        return sum(own) / max(1, len(own))

    return {
        "accuracy, %": 100 * accuracy({case.line for case in cases}),
        "dG": 100 * (f1(MALE) - f1(FEMALE)),
        "dS": 100 * (accuracy(pro) - accuracy(anti)),
        "M:F": taken.count(MALE) / female if (female := taken.count(FEMALE)) else math.inf,
        "no sign, %": 100 * found.count(None) / max(1, len(found)),
    }


def error_of_the_rule(path: Path) -> float:
    """The share of sentences by hand whose gender the rule and the aligner get wrong."""
    cases, translations = [], []
    for number, line in enumerate(TextLines(path), start=1):
        english, _, german = line.partition("|")
        words = english.split()
        place = words.index("finished") - 1 if "finished" in words else 1
        if not (german.strip() and re.search(r"\b(his|her)\b", english) and place >= 0):
            raise DataError(f"{path}, line {number}: expected ENGLISH|GERMAN.")
        gender = FEMALE if re.search(r"\bher\b", english) else MALE
        cases.append(Case(gender, place, words))
        translations.append(german)
    found = found_genders(cases, translations)
    wrong = sum((g or MALE) != case.gender for case, g in zip(cases, found, strict=True))
    return wrong / len(cases)


def main() -> None:
    """Translates WinoMT and writes the page."""
    from transformer_jax.api import load

    values = parse_experiment("gender_bias", __doc__, FLAGS, takes_keys=False)
    cases = read_winomt(data_file("winomt", "en.txt"))
    pro, anti = (
        {case.line for case in read_winomt(data_file("winomt", name))}
        for name in ("en_pro.txt", "en_anti.txt")
    )
    known = {case.line for case in cases}
    for name, own_lines in (("en_pro.txt", pro), ("en_anti.txt", anti)):
        if missing := own_lines - known:
            raise DataError(
                f"{name} has {len(missing)} sentences that are not in en.txt, such as "
                f"{min(missing)!r}. Take the three files of one WinoMT, as they are."
            )
    if both := pro & anti:
        raise DataError(
            f"en_pro.txt and en_anti.txt share {len(both)} sentences, such as {min(both)!r}. Take "
            "the three files of one WinoMT, as they are."
        )
    run = load(values["workdir"], values["checkpoint"])
    data = run.config.data
    if "en-de" not in (data.directions or (f"{data.src}-{data.tgt}",)):
        raise ConfigError(
            f"--workdir={values['workdir']} translates {data.direction}: the sentences are English "
            "(en), and the rule is for German (de)."
        )
    error = error_of_the_rule(data_file("gender-pairs", "handcrafted.en-de"))
    into = f"{code('de')} " if data.directions else ""
    translations = run.translate([into + case.line for case in cases])
    own = scores(cases, found_genders(cases, translations), pro, anti)
    parts: list[Part] = [
        Code(
            f"python -m experiments.gender_bias --workdir={values['workdir']} "
            f"--checkpoint={run.checkpoint}"
        ),
        Text(made_by()),
        Heading("WinoMT"),
        Table(list(own), [[f"{value:.1f}" for value in own.values()]]),
        Text(
            f"The rule and the aligner err in {100 * error:.1f} % of easy sentences by hand, "
            "aligned by themselves."
        ),
    ]
    print(f"page        {write_report(Path(values['out']), 'Gender bias', parts)}")


if __name__ == "__main__":
    run_main(main)
