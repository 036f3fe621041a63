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
on them too, without their links: alone, with all 33,000 pairs of news that have at most 40 words a
side, or with 100,000 such pairs of all kinds. The diagonal is what the numbers of words alone give.

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

import itertools
import os
import re
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments.evidence import Evidence, Found, answers, of_jobs, of_seeds
from experiments.judging import Rule, Value, claims, mean_text, more
from experiments.short_demo import updates
from transformer_jax.errors import DataError
from transformer_jax.reporting.page import Heading, Part, Table, Text
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides, Scale

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
    **updates(1_000, every=500),
    "train.warmup_steps": 100,
    "train.peak_learning_rate": 4e-3,
}
CORES: Overrides = {
    **TEXT,
    "model.num_layers": 3,
    "model.dropout": 0.1,
    **updates(3_000, every=1_000),
    "train.warmup_steps": 300,
    "train.peak_learning_rate": 2e-3,
}
BASE, AGREED = "weight 0", "weight 1"
ROWS: dict[str, Overrides] = {
    BASE: {"train.agreement_weight": 0.0},
    AGREED: {"train.agreement_weight": 1.0},
}

CHOSEN_BY = 300  # pairs of the validation text
LONGEST = 40  # words of a side in the aligner's training text
DIAGONAL, ALONE, NEWS, MIXED = "diagonal", "508 pairs alone", "with all news", "with 100,000 pairs"
PARTS = {ALONE: (0, ()), NEWS: (100_000, ("wmt-news", "newscomm")), MIXED: (100_000, ())}
PREDICTED, READ = "the predicted word", "the word just read"
SHIFTS = {PREDICTED: 0, READ: -1}  # see `shifted` of transformer_jax/evaluation/alignment.py
LINK = re.compile(r"([0-9]+)([-p])([0-9]+)")
# Words as the gold text has them: "Parliament 's", "9.00", "EU-Staaten", "Gesundheits-", marks.
WORD = re.compile(r"'s\b|\d+(?:[.,:]\d+)*|\w+(?:-\w+|'(?!s\b)\w+)*-?|[^\w\s]")
TIGHT = re.compile(r" (?=[.,;:!?)%]|'s\b)|(?<=\() ")  # spaces that ordinary text does not have

LinkSet = set[tuple[int, int]]  # (German word, English word), from 0


# Text ----------------------------------------------------------------------------------------


class Pair(NamedTuple):
    """A pair as text and as words; in this experiment German is first."""

    lines: tuple[str, str]
    words: tuple[Sequence[str], Sequence[str]]


class Gold(NamedTuple):
    """The pairs and their links; the possible links of a pair contain its sure ones."""

    pairs: list[Pair]
    sure: list[LinkSet]
    possible: list[LinkSet]


def gold_links(line: str, lengths: tuple[int, int], where: str) -> tuple[LinkSet, LinkSet]:
    """Sure and possible links of a line "1-2 3p1", which counts words from 1, German first.

    Raises:
      DataError: a link has another form, or names a word that the sentence does not have.
    """
    sure: LinkSet = set()
    possible: LinkSet = set()
    for text in line.split():
        form = LINK.fullmatch(text)
        numbers = (int(form[1]), int(form[3])) if form else (0, 0)
        if form is None or not all(0 < n <= most for n, most in zip(numbers, lengths, strict=True)):
            raise DataError(f"{where}: {text!r:.40} is no link between words 1 to {lengths}.")
        possible.add((numbers[0] - 1, numbers[1] - 1))
        if form[2] == "-":
            sure.add((numbers[0] - 1, numbers[1] - 1))
    return sure, possible


def read_gold(folder: Path) -> Gold:
    """RWTH's gold alignment."""
    from transformer_jax.text.lines import TextLines

    names = ("test.uc.de", "test.uc.en", "alignment.talp")
    files = [list(TextLines(folder / name)) for name in names]
    pairs, sure, possible = [], [], []
    for number, (*sides, links) in enumerate(zip(*files, strict=True), 1):
        words = sides[0].split(), sides[1].split()
        lines = [TIGHT.sub("", " ".join(side)) for side in words]
        where = f"{folder / names[2]}, line {number}"
        of_pair = gold_links(links, (len(words[0]), len(words[1])), where)
        pairs.append(Pair((lines[0], lines[1]), words))
        sure.append(of_pair[0])
        possible.append(of_pair[1])
    return Gold(pairs, sure, possible)


def read_text(folder: Path, stem: str, kinds: Sequence[str] = ()) -> Iterator[Pair]:
    """Pairs of a file, those with one of these labels in STEM.src.gz; no kinds: all."""
    from transformer_jax.text.lines import TextLines

    files = [TextLines(folder / f"{stem}.{side}.gz") for side in ("de", "en", "src")]
    for german, english, kind in zip(*files, strict=True):
        if not kinds or kind in kinds:
            lines = " ".join(german.split()), " ".join(english.split())
            yield Pair(lines, (WORD.findall(lines[0]), WORD.findall(lines[1])))


# Measurement ---------------------------------------------------------------------------------


Layers = list[list[LinkSet]]  # for each layer, a set for each pair


def attention_links(folder: Path, pairs: Sequence[Pair], swapped: bool) -> dict[str, Layers]:
    """The links of a run, by the position whose weights count.

    Args:
      folder: of the run.
      pairs: the sides of each in the same order.
      swapped: whether the run translates from the second side.
    """
    from transformer_jax.api import load
    from transformer_jax.evaluation.alignment import align_words

    loaded = load(str(folder), max_length=256).loaded
    order = slice(None, None, -1 if swapped else 1)
    src_lines, tgt_lines = zip(*(pair.lines[order] for pair in pairs), strict=True)
    encode = loaded.line_translator().encode
    src, tgt = encode(src_lines), encode(tgt_lines, is_target=True)
    words = [pair.words[order] for pair in pairs]
    given = loaded.model, loaded.translator.params, loaded.vocabulary, src, tgt, words

    def layers(shift: int) -> Layers:
        aligned = align_words(*given, shift=shift)
        of_pairs = [
            [
                {(i, j)[order] for j, i in enumerate(own_J.tolist()) if i >= 0}
                for own_J in one.mean_NJ
            ]
            for one in aligned
        ]
        return list(map(list, zip(*of_pairs, strict=True)))

    return {name: layers(shift) for name, shift in SHIFTS.items()}


def combined(gold: Gold, forward: Sequence[LinkSet], backward: Sequence[LinkSet]) -> Evidence:
    """Error rate, precision and recall of de-en, of en-de and of both together."""
    from transformer_jax.evaluation.alignment import grow_diagonal, link_scores

    both = list(zip(forward, backward, strict=True))
    ways = {
        "de-en": forward,
        "en-de": backward,
        "intersection": [a & b for a, b in both],
        "grow-diag": [grow_diagonal(a, b) for a, b in both],
    }
    return {way: list(link_scores(own, gold.sure, gold.possible)) for way, own in ways.items()}


def run_scores(job: Job) -> Evidence:
    """By the position whose weights count: the layers chosen, and the scores of all layers."""
    from transformer_jax.evaluation.alignment import link_scores

    gold = read_gold(Path(DATA) / "alignments-de-en")
    valid = read_text(Path(DATA) / "mixed-en-de", "newscomm-valid")
    pairs = gold.pairs + list(itertools.islice(valid, CHOSEN_BY))
    folders = (job.folder, job.folder / "reverse")
    ways = [attention_links(own, pairs, n == 1) for n, own in enumerate(folders)]
    found = {}
    for name in (PREDICTED, READ):
        scores, disagreement = {}, {}
        for layers in itertools.product(range(len(ways[0][name])), repeat=2):
            both = [way[name][layer] for way, layer in zip(ways, layers, strict=True)]
            label = " and ".join(str(layer + 1) for layer in layers)
            scores[label] = combined(gold, *(own[: len(gold.pairs)] for own in both))
            others = [own[len(gold.pairs) :] for own in both]
            disagreement[label] = link_scores(*others).error_rate
        chosen = min(disagreement, key=disagreement.__getitem__)
        found[name] = {"layers": chosen, "disagreement": disagreement, "scores": scores}
    return found


def aligner_scores(pairs: int, kinds: Sequence[str]) -> Evidence:
    """The scores of the hidden Markov models, trained on the gold pairs and others."""
    from transformer_jax.evaluation.alignment import link_scores
    from transformer_jax.text.hmm_aligner import LEAST, hmm_posteriors

    gold = read_gold(Path(DATA) / "alignments-de-en")
    text = [pair.words for pair in gold.pairs]
    more = read_text(Path(DATA) / "mixed-en-de", "train", kinds) if pairs else iter(())
    short = (pair.words for pair in more if 0 < max(map(len, pair.words)) <= LONGEST)
    text += itertools.islice(short, pairs)
    posteriors = hmm_posteriors(text)[: len(gold.pairs)]
    forward = [best_links(one) for one, _ in posteriors]
    backward = [{(i, j) for j, i in best_links(other.T)} for _, other in posteriors]
    both = [{(i, j) for j, i in np.argwhere(a * b >= LEAST).tolist()} for a, b in posteriors]
    product = list(link_scores(both, gold.sure, gold.possible))
    return {"pairs": len(text), **combined(gold, forward, backward), "product": product}


def diagonal_scores() -> Evidence:
    """The scores of links between the words at the same relative positions."""
    from transformer_jax.evaluation.alignment import diagonal

    gold = read_gold(Path(DATA) / "alignments-de-en")
    lengths = [(len(german), len(english)) for _, (german, english) in gold.pairs]
    forward = [{(int(i), j) for j, i in enumerate(diagonal(*both))} for both in lengths]
    backward = [{(i, int(j)) for i, j in enumerate(diagonal(*both[::-1]))} for both in lengths]
    return combined(gold, forward, backward)


def best_links(posterior_LM: np.ndarray) -> LinkSet:
    """(m, l) for each row l whose likeliest column m is likelier than that no column has it."""
    best_L = posterior_LM.argmax(1)
    is_linked_L = posterior_LM.max(1) > 1 - posterior_LM.sum(1)
    return {(int(best_L[row]), int(row)) for row in np.flatnonzero(is_linked_L)}


# Verdicts ------------------------------------------------------------------------------------

WAYS = ("de-en", "en-de", "intersection", "grow-diag", "product")
EUROPARL = "Europarl, 1.9 million pairs"
# In the order of WAYS, in percent; *: from memory, not checked.
PUBLISHED = [
    # github.com/lilt/alignment-scripts, README and results/.
    "fast_align; 28.4 (71.3 / 71.8); 32.0 (69.7 / 66.4); 28.0 (87.1 / 61.3); 27.0 (84.6 / 64.1);",
    "MGIZA++; 21.0 (86.2 / 72.8); 23.1 (86.6 / 69.0); 23.4 (95.8 / 63.7); 21.4 (94.3 / 67.2);",
    "attention, optimized for the word, Zenkel et al. 2019*;;;; 21.2;",
    "multi-task in full context, Garg et al. 2019*;;;; 20.2;",
    "the same with links of GIZA++, Garg et al. 2019*;;;; 16.0;",
    "attention, the word just read, Chen et al. 2020*;;;; 17.9;",
    "a module trained on its links, Chen et al. 2020*;;;; 15.4;",
    # github.com/THUNLP-MT/Mask-Align, README.
    "Mask-Align, Chen et al. 2021;;;;; 14.4 (87.7 / 83.5)",
]


def error(found: Evidence, way: str = "grow-diag", name: str = PREDICTED) -> float:
    """The error rate of a run's chosen layers."""
    return float(found[name]["scores"][found[name]["layers"]][way][0])


def verdicts(found: Found, aligner: Evidence) -> Table:
    """Each claim with its verdict; see the rules above."""
    values: dict[str, Value] = {
        "the aligner is better than attention": lambda x: error(x) - aligner["grow-diag"][0],
        "both directions are better than one": lambda x: (
            statistics.fmean(error(x, way) for way in WAYS[:2]) - error(x)
        ),
        "the word just read is aligned better": lambda x: error(x) - error(x, name=READ),
    }
    rules = [Rule(claim, value, 1, rows=(BASE,)) for claim, value in values.items()]
    rules.insert(2, Rule("agreement aligns better", more(error), 1, 0, (AGREED,), (BASE,)))
    return claims(rules, found, "+.3f")


def _cells(scores: Sequence[Evidence]) -> list[str]:
    """For each of WAYS, error rate, precision and recall in percent, means over seeds."""
    cells = []
    for way in WAYS:
        values = [one[way] for one in scores if way in one]
        means = [100 * statistics.fmean(own) for own in zip(*values, strict=True)]
        cells.append("{:.1f} ({:.1f} / {:.1f})".format(*means) if means else "")
    return cells


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and the error rates beside published ones."""
    found = of_jobs(folder, jobs, run_scores)
    asked = {name: ([], lambda part=part: aligner_scores(*part)) for name, part in PARTS.items()}
    others = answers(folder, {DIAGONAL: ([], diagonal_scores), **asked})
    rows, layers = [], []
    for row, name in itertools.product(ROWS, (PREDICTED, READ)):
        own = [one[name] for one in of_seeds(found, row).values()]
        chosen = [one["scores"][one["layers"]] for one in own]
        rows.append([f"attention, {row}, {name}", "mixed-en-de", *_cells(chosen)])
        for label in own[0]["scores"] if own else ():
            disagreement = mean_text([one["disagreement"][label] for one in own], ".3f")
            times = str(sum(one["layers"] == label for one in own))
            cells = _cells([one["scores"][label] for one in own])[:-1]
            layers.append([row, name, label, *cells, disagreement, times])
    for name in (DIAGONAL, *PARTS):
        pairs = f"{others[name]['pairs']:,} pairs" if name in PARTS else ""
        label = f"hidden Markov models, {name}" if name in PARTS else name
        rows.append([label, pairs, *_cells([others[name]])])
    for line in PUBLISHED:
        label, *cells = map(str.strip, line.split(";"))
        rows.append([label, EUROPARL, *cells])
    head = ["row", "weights for", "layers", *WAYS[:-1], "disagreement on other text"]
    return [
        Heading("Verdicts"),
        verdicts(found, others[MIXED]),
        Heading("Error rates, percent (precision / recall)"),
        Text("Rows with a star are from memory; the others were read where the code names them."),
        Table(["links", "trained on", *WAYS[:-1], "product or other"], rows),
        Heading("By layers of de-en and en-de"),
        Table([*head, "seeds that chose them"], layers),
    ]


EXPERIMENT = Experiment(
    name="gold_alignment",
    rows=ROWS,
    scales={
        "small": Scale("configs/text.py", SMALL, seeds=(0, 1, 2), compared=False),
        "cores": Scale("configs/text.py", CORES, seeds=(0, 1), compared=False),
    },
    about=__doc__,
    findings=findings,
)

if __name__ == "__main__":
    main(EXPERIMENT)
