"""The table's arithmetic, on results made by hand."""

import itertools
import math
from collections.abc import Iterable, Mapping

import pytest

from transformer_jax.evaluation.bleu import score
from transformer_jax.tables.experiment import Experiment, Scale
from transformer_jax.tables.results import Line
from transformer_jax.tables.statistics import (
    METRICS,
    TESTS,
    compare,
    differences,
    make_table,
    of_row,
    summarize,
    verdict,
)


def line(row: str, seed: int, bleu: float, perplexity: float = 5.0, **values) -> Line:
    scores = {"perplexity": perplexity, "bleu": bleu, "chrf": 50.0, "paper_bleu": math.nan}
    cost = {"parameters": 2_150_000, "training_flops": 3e13, "train_seconds": 90.0}
    run = {"device_rate": 1e9, "steps": 10, "config_digest": "d", "revision": "r", "device": "cpu"}
    about = {"date": "2026-01-01", "signature": "s"}
    return Line(row=row, seed=seed, **{**scores, **cost, **run, **about, **values})


def lines_of(row: str, bleus: Iterable[float], first: int = 0) -> list[Line]:
    """A row's results: one BLEU for each seed, from seed `first` on."""
    return [line(row, seed, bleu) for seed, bleu in enumerate(bleus, first)]


def with_p(lines: Iterable[Line], p: Mapping[tuple[str, int], Mapping[str, float]]) -> list[Line]:
    """The lines with these p-values, by row and seed."""
    return [one._replace(p=p.get((one.row, one.seed), {})) for one in lines]


LINES = lines_of("base", (20.0, 22.0, 24.0))
LINES += [line("wide", 0, 21.0, 4.0), line("wide", 2, 26.0, 4.0)]
EXPERIMENT = Experiment(
    "hand-made",
    rows={"base": {}, "wide": {"model.d_ff": 8}, "deep": {"model.num_layers": 9}},
    scales={"small": Scale("configs/demo.py")},
    paper={"base": {"bleu": 25.8}, "deep": {"bleu": 26.2}},
    metrics=("bleu", "perplexity", "parameters", "minutes"),
)
OF_BLEU = EXPERIMENT._replace(metrics=("bleu",), paper={})


def test_each_metric_is_its_own_column_of_the_results():
    lines = [line("base", 0, 20.0, 5.0, chrf=44.0, paper_bleu=21.0)]
    values = {name: of_row(lines, "base", name).mean for name in METRICS}
    scores = {"perplexity": 5.0, "bleu": 20.0, "paper_bleu": 21.0, "chrf": 44.0}
    cost = {"training_flops": 3e13, "estimated_flops": 90e9, "minutes": 1.5, "parameters": 2.15}
    assert values == pytest.approx(scores | cost)


def test_a_difference_is_taken_seed_by_seed():
    # +1 and +2, where the difference of the means would be 23.5 - 22.
    gap = summarize(differences(LINES, "wide", "base", "bleu"))
    assert gap == (1.5, pytest.approx(0.5**0.5))
    assert differences(LINES[3:], "wide", "base", "bleu") == [], "the base row was not run"


def test_the_table_shows_every_row_and_the_paper_s_figures():
    lines = with_p(LINES, {("wide", 0): {"bleu": 0.04}, ("wide", 2): {"bleu": 0.2}})
    head, rows = make_table(EXPERIMENT, "small", lines)
    assert " | ".join(head) == (
        "row | seeds | BLEU | − base | the paper's BLEU | perplexity (per subword) | − base | "
        "parameters, millions | minutes of training | p (median of seeds)"
    )
    assert rows == [  # sqrt((4 + 0 + 4) / 2) = 2
        ["base", "3", "22.00 ± 2.00", "", "25.8", "5.00", "", "2.15"] + ["1.5", ""],
        ["wide", "2", "23.50 ± 3.54", "+1.50 ± 0.71", "", "4.00", "-1.00"]
        + ["2.15", "1.5", "0.120"],
        ["deep", "not run", "", "", "26.2", "", "", "", "", ""],
    ]


@pytest.mark.parametrize(
    ("p_values", "shown"),
    [
        ({0: 0.01, 1: 0.02, 2: 0.6}, "0.020"),  # their mean is 0.21
        ({0: 0.001, 1: 0.3, 2: 0.9}, "0.300"),
        ({0: 0.04}, "0.040"),
        ({0: 0.001, 1: 0.001}, "0.001"),  # the least of 1,000 resamples
        ({}, ""),
    ],
)
def test_the_table_shows_the_median_of_the_p_values_and_nothing_without_one(p_values, shown):
    p = {("wide", seed): {"bleu": value} for seed, value in p_values.items()}
    p |= {("base", 0): {"bleu": 0.5}, ("deep", 0): {"bleu": 0.5}}  # of other rows
    lines = with_p([*LINES, line("wide", 1, 22.0), line("deep", 0, 22.0)], p)
    _, rows = make_table(EXPERIMENT, "small", lines)
    [wide] = [row for row in rows if row[0] == "wide"]
    assert wide[-1] == shown


def test_a_scale_chooses_its_rows_and_shows_those_that_the_paper_alone_has():
    paper = {**EXPERIMENT.paper, "ByteNet": {"bleu": 23.75, "training_flops": 2.3e19}}
    scale = Scale("configs/demo.py", rows=("ByteNet", "wide", "deep"), compared=False)
    metrics = ("bleu", "training_flops", "estimated_flops")
    experiment = EXPERIMENT._replace(scales={"one": scale}, paper=paper, metrics=metrics)
    deep = {"deep": {"training_flops": 7e18, "parameters": 1.5}}
    lines = with_p(LINES, {("wide", 0): {"bleu": 0.04}})
    counted = {"wide": {"training_flops": 0.0}, **deep}
    head, rows = make_table(experiment, "one", lines, counted)
    assert " | ".join(head) == (
        "row | seeds | BLEU | the paper's BLEU | training FLOPs | the paper's training FLOPs | "
        "training FLOPs by time"
    )
    assert rows == [
        ["ByteNet", "the paper's", "", "23.75", "", "2.3e+19", ""],
        # 90 seconds at 1e9 FLOP/s.
        ["wide", "2", "23.50 ± 3.54", "", "3.00e+13", "", "9.00e+10"],
        ["deep", "not run", "", "26.2", "7.00e+18", "", ""],
    ]


def test_rows_are_called_what_the_scale_calls_them():
    scales = {"small": EXPERIMENT.scales["small"]._replace(label=lambda row: f"{row}, halved")}
    experiment = EXPERIMENT._replace(scales=scales)
    _, rows = make_table(experiment, "small", with_p(LINES, {("wide", 0): SURE}))
    assert [row[0] for row in rows] == ["base, halved", "wide, halved", "deep, halved"]
    assert [row[1] for row in rows] == ["3", "2", "not run"]
    assert rows[1][-1] == "not decided"


def test_what_is_not_a_number_shows_as_nothing():
    experiment = EXPERIMENT._replace(metrics=("paper_bleu",))
    assert make_table(experiment, "small", LINES)[0] == ["row", "seeds"]
    lines = [LINES[0]._replace(paper_bleu=23.0), *LINES[3:]]
    head, rows = make_table(experiment, "small", lines)
    assert head == ["row", "seeds", "paper BLEU"]
    assert rows == [["base", "1", "23.00"], ["wide", "2", ""], ["deep", "not run", ""]]


def test_the_paired_bootstrap_tells_a_real_difference_from_none():
    references = [f"the cat number {n} sat on a mat near the old house" for n in range(80)]
    bad = [text.replace("sat on a", "dog in the") for text in references]
    mixed = [(bad if n % 2 else references)[n] for n in range(80)]
    other = [(references if n % 2 else bad)[n] for n in range(80)]
    assert max(compare(bad, references, references).values()) < 0.01
    assert min(compare(mixed, other, references).values()) > 0.2


def test_two_systems_without_any_bleu_have_no_p():
    references = [f"sentence number {n} of the old test" for n in range(8)]
    p = compare(["xx"] * 8, ["yy"] * 8, references)
    assert p.keys() == {"chrf", "chrf_permutation"}
    assert compare(references, ["yy"] * 8, references)["bleu"] < 0.05


def test_bleu_is_compared_by_the_tokens_that_its_signature_names():
    references = [f"第{n}个老人在河边看见一只小猫。" for n in range(12)]
    other = [text.replace("看见一只", "忘记那些") for text in references]
    assert "bleu" not in compare(other, [text[::-1] for text in references], references)
    p = compare(other, references, references, "nrefs:1|case:mixed|eff:no|tok:zh|smooth:exp")
    assert max(p.values()) < 0.05 and len(p) == 4


def test_rows_without_any_bleu_are_not_compared_with_one_another():
    """Nor are they where an earlier version recorded p = 1."""
    lines = lines_of("base", (0.0, 0.004, 20.0)) + lines_of("wide", (0.001, 0.0, 0.0))
    lines += lines_of("deep", (0.0, 0.002))
    p = {("wide", 0): 1.0, ("wide", 2): 0.001, ("deep", 0): 1.0}
    lines = with_p(lines, {key: {"bleu": value} for key, value in p.items()})
    head, [base, wide, deep] = make_table(OF_BLEU, "small", lines)
    assert head == ["row", "seeds", "BLEU", "− base", "p (median of seeds)"]
    assert base[2] == "6.67 ± 11.55"
    assert wide == ["wide", "3", "0.00", "-20.00", "0.001"]
    assert deep == ["deep", "2", "0.00", "", ""]


def test_both_paired_tests_compare_cased_scores():
    references = [f"The Cat number {n}, on a Mat, sees the old House." for n in range(40)]
    lower = [text.lower() for text in references]
    assert max(compare(lower, references, references).values()) < 0.01
    assert compare(lower, lower, references) == dict.fromkeys(TESTS, 1.0)


def test_the_permutation_test_is_near_the_exact_one_of_all_swaps():
    """Seven sentences have 128 swaps; a swap and its complement have the same |d|."""
    references = ["a b c d e f g h"] * 7
    ours = ["a b c d e f g h"] * 4 + ["a b c d e f x h"] * 2 + ["a b x d e f g h"]
    theirs = ["a b c d e f g x"] * 5 + ["a b c d e f g h"] * 2

    def gap(first, second):
        bleu = [score(texts, references, "en", "de").bleu for texts in (first, second)]
        return abs(bleu[0] - bleu[1])

    observed = gap(ours, theirs)
    exact = 0
    for swaps in itertools.product((False, True), repeat=7):
        pairs = [(b, a) if swap else (a, b) for a, b, swap in zip(ours, theirs, swaps, strict=True)]
        exact += gap(*zip(*pairs, strict=True)) >= observed - 1e-9
    p = compare(ours, theirs, references)
    assert p["bleu_permutation"] == pytest.approx(exact / 2**7, abs=0.05)
    assert 0.1 < exact / 2**7 < 0.95, "a case that could tell nothing"
    assert p["bleu"] < p["bleu_permutation"]  # about one-sided


SURE = dict.fromkeys(TESTS, 0.01)


@pytest.mark.slow("draws many resamples")
@pytest.mark.parametrize(
    ("gaps", "chrf", "p", "shown"),
    [
        ([3.0, 3.1, 2.9], [2.0, 2.1, 1.9], SURE, "better"),
        ([-3.0, -3.1, -2.9], [-2.0, -2.1, -1.9], SURE, "worse"),
        ([3.0, 3.1, 2.9], [-2.0, -2.1, -1.9], SURE, "not decided"),  # the metrics disagree
        ([3.0, -2.0, 2.9], [2.0, 2.1, 1.9], SURE, "not decided"),  # seeds differ in BLEU
        ([3.0, 3.1, 2.9], [2.0, -2.1, 1.9], SURE, "not decided"),  # or in chrF
        ([3.0, 3.1, 2.9], [2.0, 2.1, 1.9], {**SURE, "bleu": 0.06}, "not decided"),
        ([3.0, 3.1, 2.9], [2.0, 2.1, 1.9], {**SURE, "chrf_permutation": 0.06}, "not decided"),
        ([3.0, 3.1, 2.9], [2.0, 2.1, 1.9], {"bleu": 0.01}, ""),  # an old record
        ([3.0], [2.0], SURE, "better"),  # beyond the spread of the other row's seeds
        ([0.3], [2.0], SURE, "not decided"),
    ],
)
def test_a_verdict_needs_both_tests_both_metrics_and_more_than_the_spread(gaps, chrf, p, shown):
    seeds = range(3)
    lines = [line("base", seed, 20.0 + seed, chrf=50.0 + seed) for seed in seeds]
    lines += [
        line("wide", seed, 20.0 + seed + gap, chrf=50.0 + seed + other)
        for seed, gap, other in zip(seeds, gaps, chrf, strict=False)
    ]
    lines += [line("deep", seed, 20.0 + seed * 1.3, chrf=50.0 + seed * 1.2) for seed in seeds]
    lines = with_p(lines, {("wide", seed): p for seed in seeds})
    rows = ("base", "wide", "deep")
    assert verdict(lines, rows, "wide", "base") == shown
    assert verdict(lines, rows, "base", "base") == ""
    head, table = make_table(OF_BLEU, "small", lines)
    assert (head[-1] == "against base") == bool(shown)
    if shown:
        assert table[1][-1] == shown and table[1][-5] == f"{p['bleu']:.3f}"


def test_p_values_count_at_the_seeds_that_the_base_has_too():
    lines = [line("base", seed, 20.0) for seed in (0, 1)]
    lines += [line("wide", 0, 22.0, p={"bleu": 0.5}), line("wide", 1, 22.0, p={"bleu": 0.01})]
    shown = [make_table(OF_BLEU, "small", own)[1][1] for own in (lines, lines[:1] + lines[2:])]
    assert [("0.255" in row, "0.500" in row) for row in shown] == [(True, False), (False, True)]


def test_one_seed_decides_nothing_where_no_row_has_several():
    lines = [line("base", 0, 20.0), line("wide", 0, 40.0, chrf=80.0, p=SURE)]
    assert verdict(lines, ("base", "wide"), "wide", "base") == "not decided"
