"""What does a model learn of translation from two languages' texts that are not translations?

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.no_parallel_text --scale=small

English captions of the first half of Multi30k and French ones of the second half, 14,500 each, with
no caption in both (Lample et al. 2018a). One model with subwords of both languages and a code for
each learns every text from itself with noise and from its own translation of it
(train.objective=back_translation), for 1,000 updates, from English to French and back.

It starts from a model that has learned for 1,000 updates to write each text given a noisy copy, and
given a word-by-word translation by a seed dictionary: the 0, 100 or 1,000 commonest links that the
HMM aligner finds in the pairs (a dictionary is parallel knowledge, so its size is in the row's
name). Words that are not in it stay as they are. Beside these: "denoising", the start without a
dictionary that goes on in the same way without translations, the control that must fail; and
"pairs", the same model trained on the 14,500 English captions with their French, as many updates
altogether. No row is tuned. The last checkpoint counts, since choosing one takes pairs.

BLEU of test2016 into French (and into English) by a beam of 4, and the share of translations that
are the source itself. Published for the same setting, greedy (Lample et al. 2018a): 32.8 into
French and 32.1 into English, word by word 8.5 and 16.8, supervised 56.8 and 50.8; word vectors of
Wikipedia gave their dictionary.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"It learns to translate" holds for a row if its BLEU into French is higher than that of its start,
and does not if it is lower. "Above word by word" is the same beside the translation of the test
text by that dictionary. "The dictionary helps" is the same beside the row without one. The control
fails if "denoising" is not above its start; if it is, what rows gain is not back-translation.
"""

import collections
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.evidence import Evidence, Found, of_jobs, of_seeds
from experiments.judging import Column, at, gaps, judged, means
from experiments.own_text import data_file, write_split
from experiments.short_demo import updates
from experiments.translations import bleu
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides, Scale
from transformer_jax.text.hmm_aligner import hmm_alignments
from transformer_jax.text.lines import TextLines

FOLDER = Path("runs", "no_parallel_text")
TEXT = FOLDER / "text"
HALF = 14_500
COUNTS = (0, 100, 1_000)
DENOISING, PAIRS = "denoising", "pairs"
NAMES = {f"{count:,} words": count for count in COUNTS}
DROPPED, MOVED = 0.1, 3  # noise, as in training
CODES = {"en": "fr", "fr": "en"}  # and the other language
FRENCH, ENGLISH, COPIED = "into French", "into English", "copies (%)"
START, BY_WORD = "start", "word by word"
CLAIMS = ("it learns to translate", "above word by word", "the dictionary helps")
FILES: Overrides = {
    "data.path": str(TEXT),
    "data.src": "src",
    "data.tgt": "tgt",
    "data.valid": ("valid_fr@fr",),
    "data.test": ("test_fr@fr",),
}
FIRST = updates(1_000)
FURTHER: Overrides = {**updates(1_000), "train.warmup_steps": 100, "train.peak_learning_rate": 2e-3}


def texts(kind: str) -> tuple[str, ...]:
    """The training texts of a kind in both languages, each with its code."""
    return tuple(f"{kind}_{language}@{language}" for language in CODES)


def started(count: int) -> Path:
    """The folder of the model that a row starts from."""
    return FOLDER / f"start-{count}"


def back_translating(count: int) -> Overrides:
    """The keys of a row that starts from the model with so many words."""
    own = {"train.objective": "back_translation", "train.tokens_per_batch": 1_000}
    return {**FURTHER, "data.train": texts("same"), "train.init_from": str(started(count)), **own}


ROWS: dict[str, Overrides] = {
    **{row: back_translating(count) for row, count in NAMES.items()},
    DENOISING: {**FURTHER, "data.train": texts("noisy"), "train.init_from": str(started(0))},
    PAIRS: {**updates(2_000), "data.train": texts("pairs")},
}


def noisy(line: str, draw: random.Random) -> str:
    """The line without a tenth of its words, in nearly the same order (Lample et al. 2018a)."""
    words = [word for word in line.split() if draw.random() >= DROPPED]
    order = [place + draw.uniform(0, MOVED + 1) for place in range(len(words))]
    return " ".join(word for _, word in sorted(zip(order, words, strict=True)))


def by_word(line: str, dictionary: Mapping[str, str]) -> str:
    """The line with each word's translation; words without one stay."""
    return " ".join(dictionary.get(word.lower(), word) for word in line.split())


def dictionaries(pairs: Sequence[tuple[str, str]]) -> dict[str, dict[str, str]]:
    """Each language's words and their commonest translations, the most frequent words first."""
    words = [tuple(line.split() for line in pair) for pair in pairs]
    counts = {language: collections.Counter[tuple[str, str]]() for language in CODES}
    for (english, french), links in zip(words, hmm_alignments(words), strict=True):
        for i, j in links:
            one, other = english[i].lower(), french[j].lower()
            counts["fr"][one, other] += 1  # used to write French
            counts["en"][other, one] += 1
    found: dict[str, dict[str, str]] = {language: {} for language in CODES}
    for language, links_of in counts.items():
        for (word, translation), _ in links_of.most_common():
            found[language].setdefault(word, translation)
    return found


def first(dictionary: Mapping[str, str], count: int) -> dict[str, str]:
    """The dictionary's first entries."""
    return dict(list(dictionary.items())[:count])


def of_test(language: str, side: str) -> list[str]:
    """A side of the test text that is translated into a language."""
    return list(TextLines(TEXT / f"test_{language}.{side}"))


def write_texts() -> None:
    """Writes the texts of all rows and of their starts."""
    data = data_file("multi30k")
    read = {x: list(TextLines(data / f"train.{x}.gz")) for x in CODES}
    pairs = list(zip(read["en"], read["fr"], strict=True))
    known = {english for english, _ in pairs[:HALF]}
    alone = {
        "en": [english for english, _ in pairs[:HALF]],
        "fr": [french for english, french in pairs[HALF:] if english not in known],
    }
    found, draw = dictionaries(pairs), random.Random(0)
    for language, other in CODES.items():
        lines = alone[language]
        kinds: dict[str, list[str]] = {
            "same": lines,
            "noisy": [noisy(line, draw) for line in lines],
        }
        for count in COUNTS:
            few = first(found[other], count)
            kinds[f"words{count}"] = [by_word(line, few) for line in lines]
        for kind, sources in kinds.items():
            write_split(TEXT, f"{kind}_{language}", {"src": sources, "tgt": lines})
        both = {"src": read[other][:HALF], "tgt": read[language][:HALF]}
        write_split(TEXT, f"pairs_{language}", both)
        for split, stem in (("valid", "valid"), ("test", "test2016")):
            files = {
                side: TextLines(data / f"{stem}.{x}.gz")
                for side, x in (("src", other), ("tgt", language))
            }
            write_split(TEXT, f"{split}_{language}", files)
        for count in COUNTS:
            few = first(found[language], count)
            lines = [by_word(line, few) for line in of_test(language, "src")]
            write_split(TEXT, f"by_word{count}_{language}", {"tgt": lines})


def prepare() -> None:
    """Writes all texts, and trains the models that rows start from."""
    from transformer_jax.api import train

    if not (TEXT / f"by_word{COUNTS[-1]}_fr.tgt").exists():
        write_texts()
    for count in COUNTS:
        if not (started(count) / "checkpoints" / "1000").exists():
            keys = {"data.train": (*texts("noisy"), *texts(f"words{count}"))}
            train("configs/multi30k_fast.py", started(count), {**FILES, **FIRST, **keys})


def scored(folder: Path) -> Evidence:
    """BLEU of a run into both languages, and how many translations are their source."""
    from transformer_jax.api import load

    run, found = load(folder), Evidence()
    for language, name in (("fr", FRENCH), ("en", ENGLISH)):
        sources, references = (of_test(language, side) for side in ("src", "tgt"))
        written = run.translate([f">>{language}<< {line}" for line in sources])
        found[name] = bleu(written, references)
        same = sum(a.split() == b.split() for a, b in zip(sources, written, strict=True))
        found[f"{COPIED} {name}"] = 100 * same / len(sources)
    return found


def measured(job: Job) -> Evidence:
    """What a run gives, and what its start and its dictionary alone give."""
    found: Evidence = {"run": scored(job.folder)}
    if job.row == PAIRS:
        return found
    count = NAMES.get(job.row, 0)
    found[START] = scored(started(count))
    found[BY_WORD] = {
        name: bleu(
            list(TextLines(TEXT / f"by_word{count}_{language}.tgt")), of_test(language, "tgt")
        )
        for language, name in (("fr", FRENCH), ("en", ENGLISH))
    }
    return found


def verdicts_on(found: Found, row: str) -> list[str]:
    """The verdicts on a row, in the order of CLAIMS; empty where a claim is not about it."""
    own = of_seeds(found, row).values()
    gains = [one["run"][FRENCH] - one[START][FRENCH] for one in own]
    above = [one["run"][FRENCH] - one[BY_WORD][FRENCH] for one in own]
    cells = [judged(gains, 0, 1), "", ""]
    if row in NAMES:
        cells[1] = judged(above, 0, 1)
        if NAMES[row]:
            base = next(iter(NAMES))
            cells[2] = judged(gaps(found, row, base, at("run", FRENCH)), 0, 1)
    return cells


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and BLEU and copies of all rows."""
    found = of_jobs(folder / "evidence.json", jobs, measured)
    columns = [Column(name, at("run", name), ".1f") for name in (FRENCH, ENGLISH)]
    copies = f"{COPIED} {FRENCH}"
    columns.append(Column(copies, at("run", copies), ".1f"))
    rows = [row for row in ROWS if row != PAIRS]
    before = [
        Column(f"{when}, {name}", at(when, name), ".1f")
        for when in (BY_WORD, START)
        for name in (FRENCH, ENGLISH)
    ]
    return [
        Heading("Verdicts"),
        Table(["row", *CLAIMS], [[row, *verdicts_on(found, row)] for row in rows]),
        Heading("BLEU and copies"),
        means(columns, found, ROWS),
        Heading("Before back-translation"),
        means(before, found, rows),
    ]


SMALL = Scale("configs/multi30k_fast.py", FILES, seeds=(0, 1, 2), compared=False)
EXPERIMENT = Experiment(
    "no_parallel_text", ROWS, {"small": SMALL}, __doc__, findings=findings, prepare=prepare
)

if __name__ == "__main__":
    sys.exit(main(EXPERIMENT))
