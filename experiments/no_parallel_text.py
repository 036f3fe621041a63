"""What does a model learn of translation from two languages' texts that are not translations?

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.no_parallel_text --scale=small

English captions of the first half of Multi30k and French ones of the second half, some 14,500 each,
with no English caption in both (Lample et al. 2018a). One model with subwords of both languages and
a code for each learns every text from itself with noise and from its own translation of it
(train.objective=back_translation), for 1,000 updates, from English to French and back.

It starts from a model that has learned for 1,000 updates to write each text given a noisy copy, and
given a word-by-word translation by a seed dictionary: the 0, 100 or 1,000 commonest links of words
that the HMM aligner finds in the pairs (a dictionary is parallel knowledge, so its size is in the
row's name). Words that are not in it stay as they are. One start serves all seeds. Each row has its
control, which must fail: the same start goes on with what it has learned so far for as many
updates, without translations (its noise is drawn once, of words). So it learns each target subword
of a batch once, from its noisy copy, where the row learns it from its translation too, with twice
the FLOPs. "pairs" is the same model trained on the 14,500 English captions with their French, as
many updates altogether. No row is tuned. The last checkpoint counts, since choosing one takes
pairs.

BLEU of test2016 into French (and into English) by a beam of 4, and the share of translations that
are the source itself. Published for the same setting, greedy (Lample et al. 2018a): 32.8 into
French and 32.1 into English, word by word 8.5 and 16.8, supervised 56.8 and 50.8; word vectors of
Wikipedia gave their dictionary.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"It learns to translate" holds for a row if its BLEU into French is more than 1 above that of its
control, and does not if it is less. "Above word by word" is the same, without a margin, beside the
translation of the test text by that dictionary. "The dictionary helps" is the same, with a margin
of 1, beside the row without one.
"""

import collections
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.evidence import Evidence, Found, of_jobs
from experiments.judging import Column, Rule, at, means, more
from experiments.short_demo import data_file, updates, write_split
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
PAIRS, CONTROL = "pairs", ", without translations"
NAMES = {f"{count:,} words": count for count in COUNTS}
MARGIN = 1.0  # BLEU
WORD = re.compile(r"[\w'-]+")
DROPPED, MOVED = 0.1, 3  # noise, as in training
CODES = {"en": "fr", "fr": "en"}  # and the other language
FRENCH, ENGLISH, COPIED = "into French", "into English", "copies (%)"
BY_WORD = "word by word"
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


def going_on(count: int) -> Overrides:
    """Keys of the rows that start from the model whose dictionary has `count` words."""
    own = {"train.init_from": str(started(count)), "train.tokens_per_batch": 1_000}
    return {**FURTHER, **own}


BACK: Overrides = {"data.train": texts("same"), "train.objective": "back_translation"}
ROWS: dict[str, Overrides] = {row: {**going_on(count), **BACK} for row, count in NAMES.items()}
ROWS |= {
    row + CONTROL: {**going_on(count), "data.train": (*texts("noisy"), *texts(f"words{count}"))}
    for row, count in NAMES.items()
}
ALTOGETHER = FIRST["train.steps"] + FURTHER["train.steps"]
ROWS[PAIRS] = {**updates(ALTOGETHER), "data.train": texts("pairs")}


def noisy(line: str, draw: random.Random) -> str:
    """The line without a tenth of its words, in nearly the same order (Lample et al. 2018a)."""
    words = [word for word in line.split() if draw.random() >= DROPPED]
    order = [place + draw.uniform(0, MOVED + 1) for place in range(len(words))]
    return " ".join(word for _, word in sorted(zip(order, words, strict=True)))


def by_word(line: str, dictionary: Mapping[str, str]) -> str:
    """The line with each word's translation; words without one stay, and so does the first case."""
    text = WORD.sub(lambda found: dictionary.get(found[0].lower(), found[0]), line)
    return text[:1].upper() + text[1:] if line[:1].isupper() else text


def dictionaries(pairs: Sequence[tuple[str, str]]) -> dict[str, dict[str, str]]:
    """Each language's words and their commonest translations, the most frequent words first."""
    words = [tuple(WORD.findall(line) for line in pair) for pair in pairs]
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
    """What a run gives, and what its dictionary alone gives."""
    found: Evidence = {"run": scored(job.folder)}
    if (count := NAMES.get(job.row)) is not None:
        found[BY_WORD] = {
            name: bleu(
                list(TextLines(TEXT / f"by_word{count}_{language}.tgt")), of_test(language, "tgt")
            )
            for language, name in (("fr", FRENCH), ("en", ENGLISH))
        }
    return found


def rules_of(row: str) -> list[Rule]:
    """The rules about a row, whose control is a row of its own."""
    into_french, (none, *_) = at("run", FRENCH), NAMES
    return [
        Rule("it learns to translate", more(into_french), 1, MARGIN, (row + CONTROL,)),
        Rule("above word by word", lambda x: x["run"][FRENCH] - x[BY_WORD][FRENCH], 1),
        Rule("the dictionary helps", more(into_french), 1, MARGIN, (none,)),
    ]


def verdicts_on(found: Found, row: str) -> list[str]:
    """The verdicts on a row; empty where a claim is not about it."""
    return [rule.verdict(found, row) for rule in rules_of(row)]


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and BLEU and copies of all rows."""
    found = of_jobs(folder, jobs, measured)
    names = (FRENCH, ENGLISH, f"{COPIED} {FRENCH}")
    columns = [Column(name, at("run", name), ".1f") for name in names]
    words = [Column(name, at(BY_WORD, name), ".1f") for name in (FRENCH, ENGLISH)]
    claims = [rule.claim for rule in rules_of("")]
    return [
        Heading("Verdicts"),
        Table(["row", *claims], [[row, *verdicts_on(found, row)] for row in NAMES]),
        Heading("BLEU and copies"),
        means(columns, found, ROWS),
        Heading("The dictionary alone, word by word"),
        means(words, found, NAMES),
    ]


SMALL = Scale("configs/multi30k_fast.py", FILES, seeds=(0, 1, 2), compared=False)
EXPERIMENT = Experiment(
    "no_parallel_text", ROWS, {"small": SMALL}, __doc__, findings=findings, prepare=prepare
)

if __name__ == "__main__":
    main(EXPERIMENT)
