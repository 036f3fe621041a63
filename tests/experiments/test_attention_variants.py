"""Other attention, positions and stacks: what is measured by hand, and verdicts by their rules."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments import hard_attention, monotonic, one_stack, positions, scores, wait_k, windows
from experiments.claims.lengths import ALL_LENGTHS, BEYOND, SINUSOIDAL, WITHIN, extrapolates
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from experiments.monotonic import MONOTONIC, OTHER, SAME, VERB
from experiments.one_stack import CAUSAL, CHEAP, PREFIX, TWO
from experiments.wait_k import ALL_K, JUDGED, SEARCHED, THREE, WHOLE, needed_k
from experiments.windows import FARTHEST, accuracy, jumps, reach
from tests import tiny_runs as runs
from tests.experiments.rows import by_seed, configs_of, job_in, verdicts_on
from tests.tables.test_statistics import line
from transformer_jax.api import load
from transformer_jax.commands import evaluate as command
from transformer_jax.evaluation.alignment import alignment_error_rates
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import parameter_count
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.text.built_in_corpus import AlignedPair, built_in_pairs

# Score functions, with narrow and wide keys ------------------------------------------------------


def lines_of_scores(**bleu):
    """Lines of scores, from pairs of BLEU with narrow and with wide keys, one for each seed."""
    return [
        line(scores.name_of(score, d_k), seed, value)
        for score, pairs in bleu.items()
        for seed, pair in enumerate(pairs)
        for d_k, value in zip((scores.NARROW, scores.WIDE), pair, strict=True)
    ]


SCALED = [(87, 86), (88, 86.5), (86, 85)]
PLAIN = [(50, 4), (45, 2), (57, 8)]


@pytest.mark.parametrize(
    ("score", "own", "verdict"),
    [
        ("additive", [(85, 90), (86, 90.5), (87, 91)], HOLDS),
        ("bilinear", [(90, 20), (88, 10), (89, 31)], FAILS),  # it loses more than the scaled one
        ("cosine", [(80, 79), (80, 30), (80, 95)], OPEN),
        ("cosine", [(3, 3), (3, 2), (4, 3)], OPEN),  # it learned nothing, so d_k cannot matter
        ("cosine", [(0, 0), (0, 0), (0, 0)], OPEN),  # BLEU of 0.00, as of empty translations
        ("additive", [(85, 90)], OPEN),
    ],
)
def test_a_score_is_judged_beside_the_scaled_and_the_plain_product(score, own, verdict):
    lines = lines_of_scores(scaled_dot=SCALED, dot=PLAIN, **{score: own})
    assert scores.verdict_of(lines, score)[0] == verdict


def test_the_plain_product_is_judged_beside_the_scaled_one():
    assert scores.verdict_of(lines_of_scores(scaled_dot=SCALED, dot=PLAIN), "dot")[0] == FAILS
    assert scores.verdict_of(lines_of_scores(dot=PLAIN), "dot")[0] == NOT_RUN


# Positions ---------------------------------------------------------------------------------------


def by_length(**rows):
    """By row and seed, BLEU within and beyond."""
    return {row: dict(enumerate(zip(*values, strict=True))) for row, values in rows.items()}


def test_where_no_length_is_translated_nothing_is_judged():
    """The verdicts of other lengths are those of test_claims.py."""
    nothing = by_length(t5=((90,), (70,)), **{ALL_LENGTHS: ((90,), (0,))})
    assert extrapolates(nothing, "t5") == NOT_RUN


def test_a_difference_counts_if_it_is_larger_than_between_seeds():
    found = by_length(
        **{SINUSOIDAL: ((90, 91, 92), (30, 31, 35))},
        t5=((90.5, 90.9, 92), (60, 62, 64)),
        none=((50, 52, 51), (33, 29, 34)),
    )
    assert positions.against_sinusoids(found, "t5", WITHIN) == OPEN
    assert positions.against_sinusoids(found, "t5", BEYOND) == "better (+30.0)"
    assert positions.against_sinusoids(found, "none", WITHIN) == "worse (-40.0)"
    assert positions.against_sinusoids(found, "none", BEYOND) == OPEN
    assert positions.against_sinusoids(found, "rotary", BEYOND) == NOT_RUN


# Windows -----------------------------------------------------------------------------------------


def test_jumps_by_hand():
    # The man has a book bought -> Der Mann hat ein Buch gekauft, whose English verb comes third.
    links = [(0, 0), (1, 1), (2, 2), (3, 5), (4, 3), (5, 4), (6, 6)]
    assert jumps(links, 8) == [0, 0, 0, 1, 0, 3, 2, None]
    assert jumps([(1, 0), (4, 0)], 1) == [1], "the nearest source word counts"
    assert jumps([(0, 0), (3, 0), (4, 2)], 3) == [0, None, 0], "and the last one is followed"


def test_the_reach_is_that_of_all_layers():
    assert [reach(*of) for of in ((3, 1), (3, 3), (9, 2), (17, 1))] == [1, 3, 8, 8]


def test_accuracy_is_over_all_words_of_the_jumps():
    counted = [(10, 5), (4, 4), (0, 0)]
    assert accuracy(counted, [0]) == 50 and accuracy(counted, [0, 1]) == pytest.approx(900 / 14)
    assert accuracy(counted, [2]) is None


def counted_as(near, far, limit):
    """For each jump 100 words and how many are right: `near` up to the limit, `far` beyond it."""
    right = [100, *([near] * limit), *([far] * (FARTHEST - limit))]
    return [(100, one) for one in right]


def test_words_out_of_reach_are_compared_with_those_within():
    found = {}
    for seed, (near, far) in enumerate([(80, 50), (81, 52), (79, 49)]):
        found[windows.name_of(3, 2), seed] = counted_as(near, far, reach(3, 2))
        found[windows.name_of(None, 2), seed] = counted_as(90, 88, reach(3, 2))
    excess = windows.excess_losses(found, 3, 2)
    assert excess == pytest.approx([28, 27, 28])
    assert windows.excess_losses(found, 5, 2) == []


@pytest.mark.slow("compiles a run's search")
def test_words_of_a_run_are_counted():
    [job, *_] = make_jobs(windows.EXPERIMENT, "small", Path("runs"), seeds=(0,))
    found = windows.accuracy_by_jump(job._replace(folder=runs.trained_run()))[
        "words and right ones"
    ]
    assert len(found) == FARTHEST + 1 and all(words >= right >= 0 for words, right in found)
    assert found[0][0] > sum(words for words, _ in found[1:]) > 2_000


def test_the_cost_of_a_step_is_shown_in_milliseconds_and_mebibytes(tmp_path, monkeypatch):
    cost = {"256": {"whole sentence": {"seconds": 1.0, "bytes": 2**20}}}
    monkeypatch.setattr(windows, "cost_of_step", lambda: cost)
    jobs = make_jobs(windows.EXPERIMENT, "small", tmp_path / "runs")
    *_, table = windows.findings(tmp_path, jobs)
    assert table.rows == [["256", "1000", "1"]]


# Hard attention ----------------------------------------------------------------------------------


def test_error_rate_and_likelihood_of_a_run(monkeypatch):
    monkeypatch.setattr(hard_attention, "PAIRS", 6)
    folder = runs.trained_run()
    found = hard_attention.measured(job_in(hard_attention.EXPERIMENT, folder))
    loaded = load(str(folder), max_length=256).loaded
    pairs = built_in_pairs("test", 6)
    parts = loaded.model, loaded.translator.params, loaded.vocabulary
    assert found["error rate"] == pytest.approx(alignment_error_rates(*parts, pairs).mean_N[0])
    lines = loaded.line_translator()
    scored = [next(iter(lines.score([pair.src], [pair.tgt]))) for pair in pairs]
    want = -sum(one.log_prob for one in scored) / sum(one.length for one in scored)
    assert found["nats per subword"] == pytest.approx(want, rel=1e-4)
    assert 3 < want < 9, "400 equally likely subwords have 6"


def test_hard_attention_is_judged_by_the_bleu_of_the_lines_of_results():
    found = by_seed(hard_attention.BASE, 3 * [{"error rate": 0.2, "nats per subword": 0.6}])
    found |= by_seed("gumbel", [{"error rate": 0.1, "nats per subword": 0.7}] * 3)
    for losses, verdict in (([0.1, 0.0, -0.1], HOLDS), ([2.1, 2.0, 1.9], FAILS), ([0.9], OPEN)):
        assert hard_attention.verdicts(found, losses, "gumbel") == [HOLDS, verdict, FAILS]


# Monotonic attention -----------------------------------------------------------------------------


def pair_of(src, tgt, links, moves_a_verb=False):
    """A pair of lines whose last words have a full stop that is a word of its own."""
    words = (tuple(line.replace(".", " .").split()) for line in (src, tgt))
    return AlignedPair(src, tgt, *words, links, moves_a_verb)


SLEEPS = pair_of("Anna sleeps.", "Anna schläft.", ((0, 0), (1, 1), (2, 2)))
HIM_LINKS = ((0, 0), (1, 1), (1, 3), (2, 1), (2, 3), (3, 2), (4, 4))
HIM = pair_of("He is calling him.", "Er ruft ihn an.", HIM_LINKS, moves_a_verb=True)
LAKE = pair_of("Anna sleeps here today.", "Anna schläft heute hier.", ((0, 0), (1, 1), (2, 3),
                                                                       (3, 2), (4, 4)))  # fmt: skip


def test_sentences_are_grouped_by_what_moves():
    assert [monotonic.group_of(pair) for pair in (SLEEPS, HIM, LAKE)] == [SAME, VERB, OTHER]


def test_each_group_has_its_scores(tmp_path, monkeypatch):
    pairs = (SLEEPS, HIM, LAKE, HIM)
    outputs = ["Anna schläft.", "Er ruft ihn.", "Anna schläft heute hier.", "Er ruft ihn an."]
    monkeypatch.setattr(monotonic, "hypotheses", lambda job: outputs)
    monkeypatch.setattr(monotonic, "pairs_of_test", lambda count: pairs[:count])
    found = monotonic.by_order(job_in(monotonic.EXPERIMENT, tmp_path))
    assert {name: own["sentences"] for name, own in found.items()} == {SAME: 1, VERB: 2, OTHER: 1}
    assert {name: own["exact"] for name, own in found.items()} == {SAME: 1, VERB: 0.5, OTHER: 1}
    assert found[VERB]["words"] == 7 / 8


def test_only_wider_heads_are_compared_with_monotonic_ones():
    found = by_seed(MONOTONIC, 3 * [{SAME: {"exact": 0.6}, VERB: {"exact": 0.2}}])
    found |= by_seed(monotonic.BASE, 3 * [{SAME: {"exact": 0.7}, VERB: {"exact": 0.5}}])
    moved = 0.3, 0.31, 0.32
    found |= by_seed("lookback", [{SAME: {"exact": 0.69}, VERB: {"exact": own}} for own in moved])
    assert verdicts_on(monotonic.RULES, found, "lookback") == [HOLDS, HOLDS, HOLDS]
    assert verdicts_on(monotonic.RULES, found, MONOTONIC) == [FAILS, HOLDS, ""]


# Wait-k ------------------------------------------------------------------------------------------


def test_needed_k_by_hand():
    # Yesterday he sold a car -> Gestern verkaufte er ein Auto: the verb is written one word early.
    links = [(0, 0), (1, 2), (2, 1), (3, 3), (4, 4)]
    assert needed_k(links, [0, 1, 2, 3, 4, -1], [0, 1, 2, 3, 4, -1]) == 2
    # "sold" has two subwords, and a verb is written with its first one.
    assert needed_k(links, [0, 1, 2, 2, 3, 4, -1], [0, 1, 2, 3, 4, -1]) == 3
    assert needed_k(links, [0, 1, 2, 2, 3, 4, -1], [0, 0, 1, 2, 3, 4, -1]) == 2
    # A verb at the end is written late; a word without links may come at any time.
    assert needed_k([(1, 4)], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]) == 1
    assert needed_k([(4, 0)], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]) == 5


def test_matches_are_counted_by_need_at_every_k(tmp_path, monkeypatch):
    """The subwords are those of a run's vocabulary; what was translated is made up."""
    pairs = built_in_pairs("test", 12)
    workdir = runs.copy_of_run(tmp_path / "run", model__wait_k=1)
    asked = []

    def evaluate(folder, split, beam_size, overrides):
        asked.append((folder, split, beam_size, overrides))
        print("scores")
        path = tmp_path / "test.txt"
        right = 3 if overrides["decode.wait_k"] == 1 else 7
        lines = [pair.tgt if n < right else "no" for n, pair in enumerate(pairs)]
        path.write_text("".join(f"{line}\n" for line in lines))
        latency = {"average_lagging_of_reference": 2.5}
        path.with_suffix(".json").write_text(json.dumps({"latency": latency}))
        return SimpleNamespace(pairs=pairs, hypotheses=path, scores=SimpleNamespace(bleu=50.0))

    monkeypatch.setattr(command, "evaluate", evaluate)
    found = wait_k.by_k(job_in(wait_k.EXPERIMENT, workdir))
    assert [overrides["decode.wait_k"] for *_, overrides in asked] == [*SEARCHED]
    assert {one[:3] for one in asked} == {(str(workdir), "test", 1)}
    assert found["5"]["bleu"] == 50.0 and found["5"]["lagging"] == 2.5
    for k, right in (("1", 3), ("9", 7)):
        totals = [sum(column) for column in zip(*found[k]["exact"].values(), strict=True)]
        assert totals == [12, right]
    assert len(found["1"]["exact"]) > 1
    assert wait_k.exact_share(found, 1, 1, WHOLE) == 0.25


def evidence(exact, bleu=90.0):
    """Matches of 10 sentences that need 1 and 10 that need 6, at each k; all with the whole."""
    counts = {str(k): {"1": [10, near], "6": [10, far]} for k, (near, far) in exact.items()}
    counts[str(WHOLE)] = {"1": [10, 10], "6": [10, 8]}
    return {k: {"bleu": bleu, "lagging": 1.0, "exact": own} for k, own in counts.items()}


def test_shares_are_relative_to_the_whole_source():
    found = evidence({3: (5, 2)})
    assert (
        wait_k.exact_share(found, 3, 1, 3) == 0.5
        and wait_k.relative_share(found, 3, 4, WHOLE) == 2 / 8
    )
    few = evidence(dict.fromkeys(JUDGED, (10, 1)))  # what is read is right, the rest is not
    assert wait_k.verdicts_of(by_seed(ALL_K, 3 * [few]), [])[1][1] == HOLDS
    assert (
        wait_k.exact_share(found, 3, 2, 5) is None and wait_k.relative_share(found, 3, 2, 5) is None
    )


def test_each_claim_on_wait_k_looks_at_its_own_numbers():
    found = {}
    for seed in range(3):
        found[ALL_K, seed] = evidence({1: (5, 1), 3: (10, 1), 5: (10, 7)}, bleu=90 + seed / 100)
        found[THREE, seed] = evidence({3: (10, 1)}, bleu=91.5)
    verdicts = [verdict for _, verdict in wait_k.verdicts_of(found, [2.0, 2.1, 2.2])]
    assert verdicts[:2] == [FAILS, HOLDS]  # k = 1: half of the near ones, and few of the far ones
    assert verdicts[2:4] == [HOLDS, HOLDS]  # k = 3
    assert verdicts[4:6] == [HOLDS, FAILS]  # k = 5: the far ones are right too
    assert verdicts[6:] == [FAILS, FAILS]  # 1.5 points of BLEU, and 2 by reading one way


# One stack or two --------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["small", "multi30k"])
def test_one_stack_has_the_parameters_of_two(scale):
    configs = configs_of(one_stack.EXPERIMENT, scale)
    counts = {row: parameter_count(make_model(x.model, 3_000)) for row, x in configs.items()}
    assert abs(counts[PREFIX] - counts[TWO]) < 0.01 * counts[TWO]
    assert counts[PREFIX] == counts[CAUSAL] > counts[CHEAP]


def test_one_stack_verdicts():
    bleu = {TWO: [90, 91], PREFIX: [89.8, 90.9], CAUSAL: [85, 86], CHEAP: [80, 95]}
    wrong = {TWO: [1, 1.1], PREFIX: [1, 1.1], CAUSAL: [40, 41], CHEAP: [1, 60]}
    found = {}
    for row in bleu:
        pairs = zip(bleu[row], wrong[row], strict=True)
        found |= by_seed(row, [{"bleu": own, "wrong": share} for own, share in pairs])
    assert verdicts_on(one_stack.RULES, found, TWO) == ["", "", HOLDS]
    assert verdicts_on(one_stack.RULES, found, PREFIX) == [HOLDS, HOLDS, HOLDS]
    assert verdicts_on(one_stack.RULES, found, CAUSAL) == [FAILS, "", FAILS]
    assert verdicts_on(one_stack.RULES, found, CHEAP) == [OPEN, "", OPEN]
