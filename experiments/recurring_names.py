"""A name that was never seen comes again: who knows it the second time?

    python -m experiments.recurring_names --scale=small

The question: a language model reads documents in which two invented names recur. Does it predict a
name better at its second mention with a pointer to what it has read (Merity et al. 2017,
model.output=history), or with a cache of its own states, which needs no training (Grave et al.
2017), than with attention and a softmax alone?

The text consists of documents, one a line: 20 English sentences of the built-in corpus. In 6 of the
20 a person is named, by one of two invented names of three syllables, which take turns; no name of
one split is in another. 3,000 documents to train on, 60 to choose the cache's settings, 100 to
test. The rows are language models (model.encoder=none) of 2 layers, d_model 128, 800 updates of
2,000 subwords: with the softmax and with the pointer. The cache is added to the models of the row
softmax: p = (1 - l) p_model + l p_cache, where p_cache(w) is the sum of exp(theta h . h_i) over the
earlier positions i after which w came, normalized; h is the decoder's output. l and theta are
chosen once for each model, by the validation documents.

What a name costs is the sum of the negative log probabilities of its subwords, in nats, given
everything before; a first mention is the first one in the document.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05.
"The pointer helps" holds if later mentions cost less with it than with the softmax, and does not if
more. "The cache helps" is the same about the cache. "Attention alone remembers" holds if with the
softmax a later mention costs less than half of a first one, and does not if more.
"""

import functools
import math
import random
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.evidence import Evidence, of_jobs
from experiments.judging import Column, Rule, at, claims, means, more
from experiments.short_demo import on_text, updates, write_split
from transformer_jax.reporting.page import Heading, Part
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides
from transformer_jax.text.batches import packed_sentences
from transformer_jax.text.built_in_corpus import (
    PAIRS,
    built_in_pairs,
    detokenize,
    invented_name,
    names_in,
    renamed,
)
from transformer_jax.text.vocabulary import BOS, EOS

TEXT = Path("runs", "recurring_names", "text")
SIZES = {"train": 3_000, "valid": 60, "test": 100}  # documents
SENTENCES, NAMED, LONGEST = 20, 6, 400  # of a document; of these with a name; subwords
SOFTMAX, HISTORY, CACHE = "softmax", "history", "softmax with a cache"
ROWS: dict[str, Overrides] = {SOFTMAX: {}, HISTORY: {"model.output": "history"}}
THETAS, SHARES = (0.0, 0.03, 0.1, 0.3), (0.02, 0.05, 0.1, 0.2, 0.4)
SPACE = "\u2581"  # begins a subword that begins a word


# Text ----------------------------------------------------------------------------------------


class Document(NamedTuple):
    """A text in one line, and the invented names in it."""

    text: str
    names: tuple[str, ...]


@functools.cache
def documents(split: str) -> list[Document]:
    """The documents of a split."""
    draw = random.Random(f"recurring names {split}")
    words = [pair.src_words for pair in built_in_pairs(split, min(PAIRS[split], 20_000))]
    named = [own for own in words if len(names_in(own)) == 1]
    others = [own for own in words if not names_in(own)]
    found = []
    for _ in range(SIZES[split]):
        names = invented_name(draw, split), invented_name(draw, split)
        turns = [names[n % 2] for n in range(NAMED)]
        draw.shuffle(turns)
        sentences = [
            renamed(own, {names_in(own)[0]: name})
            for own, name in zip(draw.sample(named, NAMED), turns, strict=True)
        ]
        sentences += draw.sample(others, SENTENCES - NAMED)
        draw.shuffle(sentences)
        found.append(Document(" ".join(map(detokenize, sentences)), names))
    return found


def write_text(folder: Path) -> None:
    """Writes STEM.en, a document a line."""
    for split in SIZES:
        write_split(folder, split, {"en": [one.text for one in documents(split)]})


# Measurement ---------------------------------------------------------------------------------


class Mention(NamedTuple):
    """Where a name is among the subwords of a document."""

    first: int
    end: int
    is_later: bool  # whether the document had the name before


def mentions(pieces: Sequence[str], names: Sequence[str]) -> Iterator[Mention]:
    """The mentions of these names, in order."""
    begins = [n for n, piece in enumerate(pieces) if piece.startswith(SPACE)]
    seen = set()
    for first, end in zip(begins, [*begins[1:], len(pieces)], strict=True):
        word = "".join(pieces[first:end]).removeprefix(SPACE)
        name = next((one for one in names if word.startswith(one)), None)
        if name is None:
            continue
        lengths = np.cumsum([len(piece.removeprefix(SPACE)) for piece in pieces[first:end]])
        yield Mention(first, first + int(np.searchsorted(lengths, len(name))) + 1, name in seen)
        seen.add(name)


def cached(
    log_probs_L: np.ndarray, states_LD: np.ndarray, ids_L: np.ndarray, theta: float, share: float
) -> np.ndarray:
    """The log probabilities of a text's subwords with a cache of its own past `[length]`.

    Args:
      log_probs_L: those of the model.
      states_LD: the decoder's output where each subword is predicted.
      ids_L: the subwords.
      theta: 0: p_cache is the share of a subword among those before.
      share: l, of the cache; the first subword has none.
    """
    scores_LL = theta * states_LD @ states_LD.T
    past_LL = np.tril(np.ones(scores_LL.shape, bool), -1)
    scores_LL = np.where(past_LL, scores_LL, -np.inf)[1:]
    weights_LL = np.exp(scores_LL - scores_LL.max(1, keepdims=True))
    weights_LL /= weights_LL.sum(1, keepdims=True)
    from_cache_L = (weights_LL * (ids_L[1:, None] == ids_L)).sum(1)
    mixed_L = np.log((1 - share) * np.exp(log_probs_L[1:]) + share * from_cache_L)
    return np.concatenate([log_probs_L[:1], mixed_L])


class Read(NamedTuple):
    """What a model makes of a document."""

    log_probs_L: np.ndarray
    states_LD: np.ndarray
    ids_L: np.ndarray
    mentions: list[Mention]


def read_by(run: Any, split: str) -> list[Read]:
    """What a run makes of the documents of a split."""
    model, params = run.loaded.model, run.loaded.translator.params

    def output(model: Any, source: Any, target: Any) -> Any:
        return model.decode(model.encode(source), source, target)[0]  # before the vocabulary

    states = jax.jit(functools.partial(model.apply, {"params": params}, method=output))
    own = documents(split)
    found = []
    for one, pair in zip(own, run.logits([""] * len(own), [x.text for x in own]), strict=True):
        log_probs_LV = np.asarray(jax.nn.log_softmax(pair.logits_LV))
        length = len(pair.ids_L)
        inputs = [BOS, *pair.ids_L[:-1]]
        sides = packed_sentences([[EOS]], 1, 1), packed_sentences([inputs], 1, LONGEST)
        states_LD = np.asarray(states(*sides)[0, :length], np.float64)
        log_probs_L = log_probs_LV[np.arange(length), pair.ids_L]
        found.append(
            Read(log_probs_L, states_LD, pair.ids_L, list(mentions(pair.subwords, one.names)))
        )
    return found


def costs(texts: Sequence[Read], settings: tuple[float, float] | None = None) -> Evidence:
    """The mean cost of first and of later mentions, and of any subword, in nats."""
    first, later, every = list[float](), list[float](), list[float]()
    for one in texts:
        log_probs_L = one.log_probs_L
        if settings is not None:
            log_probs_L = cached(log_probs_L, one.states_LD, one.ids_L, *settings)
        every += (-log_probs_L).tolist()
        for mention in one.mentions:
            nats = -float(log_probs_L[mention.first : mention.end].sum())
            (later if mention.is_later else first).append(nats)
    means = [statistics.fmean(own) for own in (first, later, every)]
    return dict(zip(("first", "later", "subword"), means, strict=True))


def names_of(job: Job) -> Evidence:
    """What names cost a run, and with the softmax what they cost with a cache."""
    from transformer_jax.api import load

    run = load(job.folder)
    test = read_by(run, "test")
    found: Evidence = {job.row: costs(test)}
    if job.row == SOFTMAX:
        valid = read_by(run, "valid")
        tried = [(theta, share) for theta in THETAS for share in SHARES]
        best = min(tried, key=lambda settings: costs(valid, settings)["subword"])
        found[CACHE] = costs(test, best) | {"theta": best[0], "share": best[1]}
    return found


# Verdicts ------------------------------------------------------------------------------------

HALF = 0.5
RULES = [
    Rule("the pointer helps", more(at("later")), -1, 0, (SOFTMAX,), (HISTORY,)),
    Rule("the cache helps", more(at("later")), -1, 0, (SOFTMAX,), (CACHE,)),
    Rule("attention alone remembers", lambda x: x["later"] / x["first"], -1, HALF, rows=(SOFTMAX,)),
]
COLUMNS = [
    Column("first mention, nats", at("first"), ".2f"),
    Column("later mention, nats", at("later"), ".2f"),
    Column("perplexity per subword", lambda x: math.exp(x["subword"]), ".3f"),
]


def findings(folder: Path, jobs: Sequence[Job]) -> list[Part]:
    """The verdicts, and what names cost each row."""
    found = {
        (name, seed): own
        for (_, seed), costs_of in of_jobs(folder, jobs, names_of).items()
        for name, own in costs_of.items()
    }
    table = means(COLUMNS, found, (*ROWS, CACHE))
    return [Heading("Verdicts"), claims(RULES, found), Heading("What a name costs"), table]


SMALL = on_text(
    TEXT,
    {
        "data.src": "",
        "data.tgt": "en",
        "data.max_length": LONGEST,
        "vocabulary.size": 1_000,
        "model.encoder": "none",
        **updates(800, every=400),
        "train.tokens_per_batch": 2_000,
        "train.row_length": LONGEST,
        "decode.max_length": LONGEST,
    },
)
EXPERIMENT = Experiment(
    "recurring_names",
    ROWS,
    {"small": SMALL},
    __doc__,
    findings=findings,
    metrics=("perplexity",),
    fixed=("data",),
    prepare=lambda: write_text(TEXT),
)

if __name__ == "__main__":
    main(EXPERIMENT)
