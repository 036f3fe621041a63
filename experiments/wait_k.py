"""Translation while reading: BLEU and exact matches against lagging, by how far words must be read.

    python -m experiments.wait_k --seeds=0,1,2

The question: a wait-k model (Ma et al. 2019) writes target subword t after k + t - 1 source
subwords. English and German differ in their order, so it has to write some words before it has read
the words that they translate, above all verbs: "Yesterday the old man bought a car" is "Gestern
kaufte der alte Mann ein Auto". A sentence's need is the smallest k with which each target subword
is written after all source subwords that it is linked to, by the gold alignment: 1 to 10 in the
test split. Does a model write what it has read, and does it fail to write the rest? And is one
model, trained on many k (Elbayad et al. 2020), as good as one that was trained for its k?

The rows are the model of configs/demo.py on the built-in corpus, 1,000 steps of 1,000 target
subwords: the whole source, read both ways; the same read one way only; one model for all k, trained
on k from 1 to 10; and a model for k = 3. The two that wait are searched greedily with k of 1, 3, 5,
7 and 9 and with the whole source. A sentence of the test split (1,000 pairs) is an exact match if
its translation is the reference. Lagging (AL) is in subwords, by the reference's length.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05,
and about the model for all k, at k = 1, 3 and 5. A share of exact matches is relative to that of
the same sentences with the whole source. "What is linked and read is enough" holds at a k if the
share is above 90 % for the sentences that need at most k, and does not if it is below; links do not
show all that a word depends on, since an article has the gender of a noun that may come later.
"What is not read cannot be written" holds at a k if the share is below 50 % for the sentences that
need more, and does not if it is above. "One model for all k is enough" holds if at k = 3 its BLEU
is less than 1 point below that of the model for k = 3, and does not if it is more. "Reading one way
costs nothing" holds if the loss of BLEU against reading both ways is below 1 point, and does not if
it is above. Otherwise nothing is decided.
"""

import collections
import contextlib
import io
from collections.abc import Sequence
from pathlib import Path

from experiments.evidence import Evidence, Found, of_jobs, of_seeds
from experiments.judging import Rule, at, claims, judged, mean_text, more
from experiments.short_demo import SHORT_DEMO
from transformer_jax.config.keys import WIDEST
from transformer_jax.reporting.page import Heading, Part, Table
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides
from transformer_jax.tables.results import read_results
from transformer_jax.tables.statistics import differences, of_row, text_of

WHOLE = WIDEST  # a k that no sentence reaches
BASE, ONE_WAY, ALL_K, THREE = "both ways", "one way", "all k", "k = 3"
ROWS: dict[str, Overrides] = {
    BASE: {},
    ONE_WAY: {"model.wait_k": WHOLE},
    ALL_K: {"model.wait_k": 1, "model.wait_k_max": 10, "decode.wait_k": WHOLE},
    THREE: {"model.wait_k": 3},
}
SEARCHED = (1, 3, 5, 7, 9, WHOLE)
JUDGED = (1, 3, 5)
ENOUGH, LITTLE, SMALL_LOSS = 0.9, 0.5, 1.0  # shares of exact matches; BLEU
BINS = ((1, 1), (2, 3), (4, 5), (6, 10))  # needs, in the table


# Measurement ---------------------------------------------------------------------------------


def needed_k(
    links: Sequence[tuple[int, int]], src_words: Sequence[int], tgt_words: Sequence[int]
) -> int:
    """The smallest k with which all links of each target subword are read before it is written.

    Args:
      links: pairs of a source word and a target word.
      src_words: the word of each source subword, or -1.
      tgt_words: the word of each target subword, or -1.
    """
    last = {word: index for index, word in enumerate(src_words)}
    linked = collections.defaultdict(list)
    for source, target in links:
        linked[target].append(last[source])
    needs = [
        index + 1 - written
        for written, word in enumerate(tgt_words)
        for index in linked.get(word, ())
    ]
    return max([1, *needs])


def by_k(job: Job) -> Evidence:
    """For each k: BLEU, lagging, and for each need the numbers of sentences and exact matches."""
    from transformer_jax.commands.evaluate import evaluate
    from transformer_jax.files import read_json
    from transformer_jax.text.built_in_corpus import built_in_pairs
    from transformer_jax.text.words import subword_words
    from transformer_jax.use.loading import load_model

    loaded = load_model(str(job.folder))
    found = Evidence()
    lines = loaded.line_translator()
    vocabulary = loaded.vocabulary
    needs = list[int]()
    for k in SEARCHED if loaded.config.model.wait_k else ():
        with contextlib.redirect_stdout(io.StringIO()):
            own = evaluate(
                str(job.folder), split="test", beam_size=1, overrides={"decode.wait_k": k}
            )
        if not needs:
            for pair in built_in_pairs("test", len(own.pairs)):
                (src,) = lines.encode([pair.src])
                (tgt,) = lines.encode([pair.tgt], is_target=True)
                words = (
                    subword_words(vocabulary.pieces(src), pair.src_words).tolist(),
                    subword_words(vocabulary.target.pieces(tgt), pair.tgt_words).tolist(),
                )
                needs.append(needed_k(pair.alignment, *words))
        outputs = own.hypotheses.read_text(encoding="utf-8").split("\n")
        counts: dict[str, list[int]] = {str(need): [0, 0] for need in sorted(set(needs))}
        for need, output, pair in zip(needs, outputs, own.pairs, strict=False):
            counts[str(need)][0] += 1
            counts[str(need)][1] += output == pair.tgt
        latency = read_json(own.hypotheses.with_suffix(".json"))["latency"]
        lagging = latency["average_lagging_of_reference"]
        found[str(k)] = {"bleu": own.scores.bleu, "lagging": lagging, "exact": counts}
    return found


# Verdicts ------------------------------------------------------------------------------------


def exact_share(found: Evidence, k: int, lowest: int, highest: int) -> float | None:
    """The share of exact matches among sentences with these needs; None if there are none."""
    counts = found[str(k)]["exact"]
    own = [counts[need] for need in counts if lowest <= int(need) <= highest]
    total = sum(sentences for sentences, _ in own)
    return sum(matches for _, matches in own) / total if total else None


def relative_share(found: Evidence, k: int, lowest: int, highest: int) -> float | None:
    """The same, relative to that with the whole source; None if there are no such matches."""
    whole, own = (exact_share(found, one, lowest, highest) for one in (WHOLE, k))
    return own / whole if whole and own is not None else None


def rules_of(k: int) -> list[Rule]:
    """The claims about the model for all k, at a k."""
    return [
        Rule(
            f"what is linked and read is enough, k = {k}",
            lambda own: relative_share(own, k, 1, k),
            wanted=1,
            limit=ENOUGH,
            rows=(ALL_K,),
        ),
        Rule(
            f"what is not read cannot be written, k = {k}",
            lambda own: relative_share(own, k, k + 1, WHOLE),
            wanted=-1,
            limit=LITTLE,
            rows=(ALL_K,),
        ),
    ]


RULES = [rule for k in JUDGED for rule in rules_of(k)]
BEHIND = more(at(str(3), "bleu"))
RULES.append(Rule("one model for all k is enough", BEHIND, -1, SMALL_LOSS, (ALL_K,), (THREE,)))


def verdicts_of(found: Found, losses: Sequence[float]) -> list[list[str]]:
    """Each claim and its verdict; `losses` are those of BLEU by reading one way, one for a seed."""
    last = ["reading one way costs nothing", judged(losses, SMALL_LOSS, -1)]
    return [*claims(RULES, found).rows, last]


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and for each k BLEU, lagging and exact matches by need."""
    waiting = [job for job in jobs if job.row in (ALL_K, THREE)]
    found = of_jobs(folder, waiting, by_k)
    lines = read_results(folder)
    losses = [-gap for gap in differences(lines, ONE_WAY, BASE, "bleu")]
    rows = []
    for row in (ALL_K, THREE):
        own = of_seeds(found, row).values()
        for k in SEARCHED:
            columns = ([one[str(k)][name] for one in own] for name in ("lagging", "bleu"))
            cells = [mean_text(values, ".1f") for values in columns]
            shares = [[exact_share(one, k, *bounds) for one in own] for bounds in BINS]
            cells += [mean_text(values, ".2f") for values in shares]
            rows.append([row, "whole" if k == WHOLE else str(k), *cells])
    head = ["row", "k", "AL", "BLEU", *(f"exact, need {low} to {high}" for low, high in BINS)]
    beam = [[row, text_of(of_row(lines, row, "bleu"), ".1f")] for row in (BASE, ONE_WAY)]
    return [
        Heading("Verdicts"),
        Table(["claim", "verdict"], verdicts_of(found, losses)),
        Heading("By k: greedy search"),
        Table(head, rows),
        Heading("With the whole source: beam search"),
        Table(["row", "BLEU"], beam),
    ]


EXPERIMENT = Experiment(
    "wait_k", ROWS, {"small": SHORT_DEMO}, __doc__, findings=findings, fixed=("data",)
)

if __name__ == "__main__":
    main(EXPERIMENT)
