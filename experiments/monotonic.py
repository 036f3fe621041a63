"""Monotonic attention: is it as good where the translation keeps the order of the words?

    python -m experiments.monotonic --seeds=0,1,2

The question: a head with model.cross_normalizer monotonic (Raffel et al. 2017) reads the source
from left to right and attends to the one position where it stops; a chunkwise head (Chiu and Raffel
2018) attends to the four positions up to there, and a lookback head (Arivazhagan et al. 2019) to
all up to there. None of them sees what comes after, and none goes back to stop again. That fits a
translation that keeps the order of the words. German verbs move: "He has sold the car" is "Er hat
das Auto verkauft". Do such heads fail there, and only there?

The rows are the model of configs/demo.py on the built-in corpus, 1,000 steps of 1,000 target
subwords, with one of the normalizers in all four heads of both layers of encoder-decoder attention.
Nothing is tuned: each row has the preset's learning rate and the other defaults.

The test split (1,000 pairs) is divided by the gold links: a sentence keeps the order if no links
cross (AlignedPair.is_monotone; 334 sentences); in others a verb moves, that is, one of two crossing
links is a verb's (641); in the rest only other words move, such as times, places and owners (25),
and no verdict is about them. A translation is exact if it is the reference. The table also
has BLEU, and the share of the reference's words that the translation has, wherever they are.

The rules, written before the runs; all are about differences over seeds, by Student's t, p < 0.05,
in the percentage of exact translations. "As good where the order stays" holds for a row if what it
loses against softmax in sentences that keep the order is less than 5 points, and does not if it is
more. "Loses more where a verb moves" holds if its loss in sentences in which a verb moves is larger
than its loss in those that keep the order, and does not if it is smaller. "What was read helps with
moved verbs" holds for chunkwise, and for lookback, if more sentences in which a verb moves are
exact than with monotonic, and does not if fewer are. Otherwise nothing is decided. Two limits: the
model has four heads in each of two layers, and each can stop elsewhere, so that a row may do better
than one pointer could; and sentences that keep the order are shorter (8.5 words, with a moved verb
10.1), so the second claim compares losses against softmax and not the groups themselves.
"""

from experiments.evidence import Evidence
from experiments.judging import Column, Rule, Value, at, more, page_of_runs
from experiments.short_demo import SHORT_DEMO
from experiments.translations import pairs_of_test, scores
from transformer_jax.tables.collect import hypotheses
from transformer_jax.tables.command import main
from transformer_jax.tables.experiment import Experiment, Job, Overrides
from transformer_jax.text.built_in_corpus import AlignedPair

BASE, MONOTONIC = "softmax", "monotonic"
WIDER = ("chunkwise", "lookback")  # heads that see more than the position where they stop
ROWS: dict[str, Overrides] = {
    name: {"model.cross_normalizer": name} for name in (BASE, MONOTONIC, *WIDER)
}
SAME, VERB, OTHER = "the order stays", "a verb moves", "other words move"
SMALL_LOSS = 5.0  # points of exact translations


# Measurement ---------------------------------------------------------------------------------


def group_of(pair: AlignedPair) -> str:
    """What moves in a sentence."""
    if pair.is_monotone:
        return SAME
    return VERB if pair.moves_a_verb else OTHER


def by_order(job: Job) -> Evidence:
    """For each group of sentences: their number, BLEU, exact translations and words."""
    outputs = hypotheses(job) or []
    groups: dict[str, list[tuple[str, str]]] = {}
    for output, pair in zip(outputs, pairs_of_test(len(outputs)), strict=True):
        groups.setdefault(group_of(pair), []).append((output, pair.tgt))
    return {name: scores(*zip(*own, strict=True)) for name, own in groups.items()}


# Verdicts ------------------------------------------------------------------------------------


def exact(group: str) -> Value:
    """The percentage of a group's translations that are the reference."""
    return lambda found: 100 * found[group]["exact"]


RULES = [
    Rule("as good where the order stays", more(exact(SAME)), 1, -SMALL_LOSS, (BASE,)),
    Rule(
        "loses more where a verb moves",
        more(lambda found: exact(VERB)(found) - exact(SAME)(found)),
        wanted=-1,
        beside=(BASE,),
    ),
    Rule("what was read helps with moved verbs", more(exact(VERB)), 1, 0, (MONOTONIC,), WIDER),
]
FORMS = {"exact": ".2f", "BLEU": ".1f", "words": ".3f"}
COLUMNS = [
    Column(f"{name}, {group}", at(group, name.lower()), form)
    for group in (SAME, VERB, OTHER)
    for name, form in FORMS.items()
]


EXPERIMENT = Experiment(
    "monotonic",
    ROWS,
    {"small": SHORT_DEMO},
    __doc__,
    findings=page_of_runs(by_order, RULES, COLUMNS, "By what moves"),
    fixed=("data",),
)

if __name__ == "__main__":
    main(EXPERIMENT)
