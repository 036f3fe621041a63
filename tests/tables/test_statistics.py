"""The table's arithmetic, on results made by hand."""

import itertools
import math
from collections.abc import Iterable

import pytest

from transformer_jax.errors import DataError
from transformer_jax.evaluation.bleu import score
from transformer_jax.tables.experiment import Experiment, Scale
from transformer_jax.tables.results import Line
from transformer_jax.tables.statistics import (
    METRICS,
    Paired,
    compare,
    differences,
    make_table,
    of_row,
    read_p_values,
    summarize,
    verdict,
    write_p_values,
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


LINES = lines_of("base", (20.0, 22.0, 24.0))
LINES += [line("wide", 0, 21.0, 4.0), line("wide", 2, 26.0, 4.0)]
EXPERIMENT = Experiment(
    "hand-made",
    rows={"base": {}, "wide": {"model.d_ff": 8}, "deep": {"model.num_layers": 9}},
    scales={"small": Scale("configs/demo.py")},
    paper={"base": {"bleu": 25.8}, "deep": {"bleu": 26.2}},
    metrics=("bleu", "perplexity", "parameters", "minutes"),
)


def test_mean_and_sample_standard_deviation():
    assert summarize([20.0, 22.0, 24.0]) == (22.0, 2.0)  # sqrt((4 + 0 + 4) / 2)
    assert summarize([7.0]) == (7.0, None)
    assert of_row(LINES, "deep", "bleu") is None


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
    p_values = {("wide", 0): Paired(0.04), ("wide", 2): Paired(0.2)}
    head, rows = make_table(EXPERIMENT, "small", LINES, p_values)
    assert " | ".join(head) == (
        "row | seeds | BLEU | − base | the paper's BLEU | perplexity (per subword) | − base | "
        "parameters, millions | minutes of training | p (median of seeds)"
    )
    assert rows == [
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
    others = {("base", 0): Paired(0.5), ("deep", 0): Paired(0.5)}  # of other rows
    of_wide = {("wide", seed): Paired(p) for seed, p in p_values.items()}
    unrecorded = {("wide", 9): Paired(0.9)}
    lines = [*LINES, line("wide", 1, 22.0)]
    _, rows = make_table(EXPERIMENT, "small", lines, {**of_wide, **others, **unrecorded})
    [wide] = [row for row in rows if row[0] == "wide"]
    assert wide[-1] == shown


def test_a_scale_chooses_its_rows_and_shows_those_that_the_paper_alone_has():
    paper = {**EXPERIMENT.paper, "ByteNet": {"bleu": 23.75, "training_flops": 2.3e19}}
    scale = Scale("configs/demo.py", rows=("ByteNet", "wide", "deep"), compared=False)
    metrics = ("bleu", "training_flops", "estimated_flops")
    experiment = EXPERIMENT._replace(scales={"one": scale}, paper=paper, metrics=metrics)
    deep = {"deep": {"training_flops": 7e18, "parameters": 1.5}}
    known = {("wide", 0): Paired(0.04)}, {"wide": {"training_flops": 0.0}, **deep}
    head, rows = make_table(experiment, "one", LINES, *known)
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
    _, rows = make_table(experiment, "small", LINES, {("wide", 0): Paired(0.04)})
    assert [row[0] for row in rows] == ["base, halved", "wide, halved", "deep, halved"]
    assert [row[1] for row in rows] == ["3", "2", "not run"]
    assert rows[1][-1] == "0.040"


def test_what_is_not_a_number_shows_as_nothing():
    experiment = EXPERIMENT._replace(metrics=("paper_bleu",))
    assert make_table(experiment, "small", LINES, {})[0] == ["row", "seeds"]
    lines = [LINES[0]._replace(paper_bleu=23.0), *LINES[3:]]
    head, rows = make_table(experiment, "small", lines, {})
    assert head == ["row", "seeds", "paper BLEU"]
    assert rows == [["base", "1", "23.00"], ["wide", "2", ""], ["deep", "not run", ""]]


def test_the_paired_bootstrap_tells_a_real_difference_from_none():
    references = [f"the cat number {n} sat on a mat near the old house" for n in range(80)]
    bad = [text.replace("sat on a", "dog in the") for text in references]
    mixed = [(bad if n % 2 else references)[n] for n in range(80)]
    other = [(references if n % 2 else bad)[n] for n in range(80)]
    assert max(compare(bad, references, references)) < 0.01
    assert min(compare(mixed, other, references)) > 0.2


def test_two_systems_without_any_bleu_have_no_p():
    references = [f"sentence number {n} of the old test" for n in range(8)]
    p = compare(["xx"] * 8, ["yy"] * 8, references)
    assert math.isnan(p.bleu) and math.isnan(p.bleu_permutation)
    assert compare(references, ["yy"] * 8, references).bleu < 0.05


def test_rows_without_any_bleu_are_not_compared_with_one_another():
    """Nor are they where an earlier version recorded p = 1."""
    lines = lines_of("base", (0.0, 0.004, 20.0)) + lines_of("wide", (0.001, 0.0, 0.0))
    lines += lines_of("deep", (0.0, 0.002))
    experiment = EXPERIMENT._replace(metrics=("bleu",), paper={})
    p = {("wide", 0): 1.0, ("wide", 1): math.nan, ("wide", 2): 0.001, ("deep", 0): 1.0}
    p_values = {key: Paired(value) for key, value in p.items()}
    head, [base, wide, deep] = make_table(experiment, "small", lines, p_values)
    assert head == ["row", "seeds", "BLEU", "− base", "p (median of seeds)"]
    assert base[2] == "6.67 ± 11.55"
    assert wide == ["wide", "3", "0.00", "-20.00", "0.001"]
    assert deep == ["deep", "2", "0.00", "", ""]


def test_both_paired_tests_compare_cased_scores():
    references = [f"The Cat number {n}, on a Mat, sees the old House." for n in range(40)]
    lower = [text.lower() for text in references]
    assert max(compare(lower, references, references)) < 0.01
    assert compare(lower, lower, references) == Paired(1.0, 1.0, 1.0, 1.0)


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
    assert p.bleu_permutation == pytest.approx(exact / 2**7, abs=0.05)
    assert 0.1 < exact / 2**7 < 0.95, "a case that could tell nothing"
    assert p.bleu < p.bleu_permutation  # about one-sided


SURE = Paired(0.01, 0.01, 0.01, 0.01)


@pytest.mark.slow("draws many resamples")
@pytest.mark.parametrize(
    ("gaps", "chrf", "p", "shown"),
    [
        ([3.0, 3.1, 2.9], [2.0, 2.1, 1.9], SURE, "better"),
        ([-3.0, -3.1, -2.9], [-2.0, -2.1, -1.9], SURE, "worse"),
        ([3.0, 3.1, 2.9], [-2.0, -2.1, -1.9], SURE, "not decided"),  # the metrics disagree
        ([3.0, -2.0, 2.9], [2.0, 2.1, 1.9], SURE, "not decided"),  # seeds differ in BLEU
        ([3.0, 3.1, 2.9], [2.0, -2.1, 1.9], SURE, "not decided"),  # or in chrF
        ([3.0, 3.1, 2.9], [2.0, 2.1, 1.9], SURE._replace(bleu=0.06), "not decided"),
        ([3.0, 3.1, 2.9], [2.0, 2.1, 1.9], SURE._replace(chrf_permutation=0.06), "not decided"),
        ([3.0, 3.1, 2.9], [2.0, 2.1, 1.9], Paired(0.01), ""),  # an old record
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
    p_values = {("wide", seed): p for seed in seeds}
    rows = ("base", "wide", "deep")
    assert verdict(lines, rows, "wide", "base", p_values) == shown
    assert verdict(lines, rows, "base", "base", p_values) == ""
    experiment = EXPERIMENT._replace(metrics=("bleu",), paper={})
    head, table = make_table(experiment, "small", lines, p_values)
    assert (head[-1] == "against base") == bool(shown)
    if shown:
        assert table[1][-1] == shown and table[1][-5] == f"{p.bleu:.3f}"


def test_one_seed_decides_nothing_where_no_row_has_several():
    lines = [line("base", 0, 20.0), line("wide", 0, 40.0, chrf=80.0)]
    found = verdict(lines, ("base", "wide"), "wide", "base", {("wide", 0): SURE})
    assert found == "not decided"


def test_p_values_are_kept(tmp_path):
    values = {("a, b", 0): Paired(0.0125, 0.5), ("c", 3): Paired(1.0), ("d", 0): Paired(math.nan)}
    write_p_values(tmp_path / "significance.csv", values)
    assert repr(read_p_values(tmp_path / "significance.csv")) == repr(values)
    assert (tmp_path / "significance.csv").read_text().endswith("c,3,1.0000,,,\nd,0,,,,\n")
    assert read_p_values(tmp_path / "none.csv") == {}
    (tmp_path / "old.csv").write_text("row,seed,p\na,0,0.0300\n")
    assert repr(read_p_values(tmp_path / "old.csv")) == repr({("a", 0): Paired(0.03)})


@pytest.mark.parametrize("wrong", ["7.5", "-0.5", "half"])
def test_a_p_that_is_none_is_refused_naming_the_line(wrong, tmp_path):
    """What `read_table` refuses of any table is in test_results.py."""
    path = tmp_path / "significance.csv"
    path.write_text(f"row,seed,p,p_bleu_permutation,p_chrf,p_chrf_permutation\na,0,0.5,{wrong},,\n")
    with pytest.raises(DataError, match=f"^{path}, line 2: p_bleu_permutation='{wrong}' is not of"):
        read_p_values(path)
