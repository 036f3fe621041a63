"""Which sentence decides a pronoun? In documents of two sentences, only the first shows its gender.

    python -m experiments.documents --scale=small

The question: "It is old." is "Er", "Sie" or "Es ist alt.", by the gender of the German noun, which
only the sentence before names. Do models that read it (data.context=1) write the right pronoun, do
they need the right sentence, and does their attention find the noun?

The text is made of the lexicon of the built-in corpus: "The farmer buys the table." and "It is
old.", or "The boy sees it."; things of all three genders, as subject or object, and people, whom
"it" never means. 8,000 documents to train on; 500 to test on, of other words together. Without the
first sentence the best guess is the commonest gender: the chance of the tables. The rows are a
model of 2 layers, d_model 128, 800 updates: without context; both sentences as one (Tiedemann and
Scherrer 2017); and with each model.combination (gated: Miculicich et al. 2018). The test documents
are translated with the right sentence before, with that of another document whose gender differs,
and with none. A pronoun counts if it is the only one of its sentence and has the right form.
Attention finds the noun if, where the pronoun is written, the first sentence's largest weight is on
it: the mean of the heads of the last layer.

The rules, written before the runs; all are over seeds, by Student's t, p < 0.05. "Context decides"
holds for a row if more than 95 % of the pronouns are right, and does not if fewer are. "A wrong
sentence misleads" holds if with it fewer are right than by chance, and does not if more are.
"Attention finds the noun" holds if it does in more than half of the documents, and does not if in
fewer.
"""

import collections
import functools
import random
import statistics
from collections.abc import Sequence
from operator import methodcaller
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.evidence import Evidence
from experiments.judging import Column, Rule, at, page_of_runs
from experiments.short_demo import on_text, updates, write_split
from grammar.entries import Noun
from grammar.german import DEFINITE
from grammar.lexicon import NOUNS
from transformer_jax.evaluation.attention import Attention
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides

TEXT = Path("runs", "documents", "text")
SIZES = {"train": 8_000, "valid": 300, "test": 500}  # documents
PRONOUNS = {"m": ("er", "ihn"), "f": ("sie", "sie"), "n": ("es", "es")}  # subject, object
THINGS = {"thing", "furniture", "vehicle", "clothes", "building", "device", "flat", "text"}
SPACE = "\u2581"  # begins a subword that begins a word
LOOKED_AT = 100  # documents whose attention is read
VERBS = (("buys", "kauft"), ("sees", "sieht"), ("finds", "findet"), ("sells", "verkauft"))
STATES = (("old", "alt"), ("new", "neu"), ("beautiful", "schön"), ("cheap", "billig"))
ALONE, JOINED = "no context", "as one"
COMBINED = ("flat", "parallel", "serial", "hierarchical", "gated")
ROWS: dict[str, Overrides] = {
    ALONE: {},
    JOINED: {"data.context": 1},
    **{
        name: {"data.context": 1, "model.sources": 2, "model.combination": name}
        for name in COMBINED
    },
}
RIGHT, WRONG, NONE = "right", "wrong", "none"
ENOUGH, HALF = 0.95, 0.5  # shares


# Text ----------------------------------------------------------------------------------------


class Document(NamedTuple):
    """Two sentences in English and in German, and what the pronoun of the second one is."""

    en: tuple[str, str]
    de: tuple[str, str]
    person: str  # the other noun of the first sentence, in English
    noun: str  # what "it" means, in English
    gender: str  # of the German noun
    pronoun: str


def documents(count: int, seed: int, shown: frozenset[tuple[str, str]] | None) -> list[Document]:
    """Random documents.

    Args:
      count: how many.
      seed: of the draws.
      shown: pairs of words that training shows, which these documents do not have; None: any.
    """
    draw = random.Random(seed)
    named = [one for one in NOUNS if not (one.mass or one.proper or one.neutral)]
    people = [one for one in named if "person" in one.kinds]
    things = [one for one in named if one.kinds & THINGS and " " not in one.en]
    found = list[Document]()
    while len(found) < count:
        person, other, thing = draw.choice(people), draw.choice(people), draw.choice(things)
        if shown is not None and (person.en, thing.en) in shown:
            continue
        verb, state = draw.choice(VERBS), draw.choice(STATES)
        if draw.random() < 0.5:
            first = (
                f"The {person.en} {verb[0]} the {thing.en} .",
                f"{noun(person, 'nom')} {verb[1]} {noun(thing, 'acc')} .",
            )
        else:
            first = (
                f"The {thing.en} of the {person.en} is {state[0]} .",
                f"{noun(thing, 'nom')} von {noun(person, 'dat')} ist {state[1]} .",
            )
        as_subject, as_object = PRONOUNS[thing.gender]
        verb, state = draw.choice(VERBS), draw.choice(STATES)
        pronoun = as_subject
        if draw.random() < 0.5:
            second = f"It is {state[0]} .", f"{as_subject} ist {state[1]} ."
        else:
            pronoun = as_object
            second = (
                f"The {other.en} {verb[0]} it .",
                f"{noun(other, 'nom')} {verb[1]} {as_object} .",
            )
        en, de = zip(first, second, strict=True)
        de = tuple(line[0].upper() + line[1:] for line in de)
        found.append(Document(en, de, person.en, thing.en, thing.gender, pronoun))
    return found


def noun(one: Noun, case: str) -> str:
    """A German noun with its article, in the singular."""
    return f"{DEFINITE[case, one.gender]} {one.german(case, False)}"


@functools.cache
def splits() -> dict[str, list[Document]]:
    """The documents of each split."""
    train = documents(SIZES["train"], 0, None)
    shown = frozenset((one.person, one.noun) for one in train)
    others = {
        name: documents(SIZES[name], seed, shown) for seed, name in enumerate(("valid", "test"), 1)
    }
    return {"train": train, **others}


def write_text(folder: Path) -> None:
    """Writes the splits as files STEM.en, STEM.de and STEM.doc."""
    for stem, split in splits().items():
        lines = {
            "en": [line for one in split for line in one.en],
            "de": [line for one in split for line in one.de],
            "doc": [number for number, _ in enumerate(split) for _ in range(2)],
        }
        write_split(folder, stem, lines)


# Measurement ---------------------------------------------------------------------------------


def share_right(lines: Sequence[str], wanted: Sequence[str]) -> float:
    """The share of lines whose one pronoun is the wanted one."""
    known = {form for forms in PRONOUNS.values() for form in forms}
    found = [[word for word in line.lower().split() if word in known] for line in lines]
    return statistics.fmean(own == [one] for own, one in zip(found, wanted, strict=True))


def with_first(document: Document, other: Document | None) -> str:
    """The second sentence, after the first one of another document, or after none."""
    return f"{document.en[1]}\t{other.en[0] if other else ''}"


def of_other_gender(test: Sequence[Document]) -> list[Document]:
    """For each document the next one whose thing has another gender."""
    doubled = [*test, *test]
    return [
        next(other for other in doubled[n + 1 :] if other.gender != one.gender)
        for n, one in enumerate(test)
    ]


def found_noun(cross: Attention, document: Document) -> bool | None:
    """Whether attention finds the noun; None if the pronoun is not one subword.

    Args:
      cross: the weights of the second sentence's translation, with the first sentence as context.
      document: the document.
    """
    row = [n for n, one in enumerate(cross.attending) if _bare(one) == document.pronoun]
    ends = [n for n, one in enumerate(cross.attended) if _bare(one) in (".", "</s>")]
    if len(row) != 1:
        return None
    weights_M = cross.weights_NHLM[-1, :, row[0]].mean(0)
    first = len(document.en[1].split())  # words of the second sentence, which comes first
    words = np.cumsum([one.startswith(SPACE) for one in cross.attended])
    of_first = (words > first) & (np.arange(len(words)) > ends[0])
    noun_at = first + 1 + document.en[0].split().index(document.noun)
    best = np.where(of_first, weights_M, -1).argmax()
    return bool(words[best] == noun_at)


def _bare(piece: str) -> str:
    return piece.removeprefix(SPACE).lower()


def pronouns_of(job: Job) -> Evidence:
    """Shares of right pronouns with each first sentence, chance, and how often attention finds."""
    from transformer_jax.api import load

    run = load(job.folder)
    test = splits()["test"]
    wanted = [one.pronoun for one in test]
    genders = collections.Counter(one.gender for one in test)
    found: Evidence = {"chance": max(genders.values()) / len(test)}
    others = {RIGHT: test, WRONG: of_other_gender(test), NONE: [None] * len(test)}
    for name, first in others.items() if run.config.data.context else ():
        lines = [with_first(*both) for both in zip(test, first, strict=True)]
        found[name] = share_right(run.translate(lines), wanted)
    if not run.config.data.context:
        return found | {RIGHT: share_right(run.translate([one.en[1] for one in test]), wanted)}
    seen = [
        found_noun(run.attention(with_first(one, one), one.de[1]).kinds["cross"], one)
        for one in test[:LOOKED_AT]
    ]
    return found | {"finds": statistics.fmean(one for one in seen if one is not None)}


# Verdicts ------------------------------------------------------------------------------------

CONTEXT = (JOINED, *COMBINED)  # rows that read the first sentence
RULES = [
    Rule("context decides", at(RIGHT), 1, ENOUGH),
    Rule("a wrong sentence misleads", lambda x: x[WRONG] - x["chance"], -1, rows=CONTEXT),
    Rule("attention finds the noun", methodcaller("get", "finds"), 1, HALF, rows=CONTEXT),
]
SHARES = {RIGHT: "right sentence before", WRONG: "of another gender", NONE: "none"}
SHARES |= {"chance": "chance"}
COLUMNS = [Column(head, methodcaller("get", name), ".3f") for name, head in SHARES.items()]
COLUMNS.append(Column("attention finds the noun", methodcaller("get", "finds"), ".2f"))
TITLE = "Share of right pronouns, by the sentence before"
SMALL = on_text(TEXT, {"vocabulary.size": 1_000, **updates(800, every=400), "decode.beam_size": 1})
EXPERIMENT = Experiment(
    "documents",
    ROWS,
    {"small": SMALL},
    __doc__,
    findings=page_of_runs(pronouns_of, RULES, COLUMNS, TITLE),
    fixed=("data",),
    prepare=lambda: write_text(TEXT),
)

if __name__ == "__main__":
    main(EXPERIMENT)
