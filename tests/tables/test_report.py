"""Rows are tested against the base row, wherever either was run; and what a report says."""

import re
from pathlib import Path

import pytest

from tests.tables.test_statistics import line
from transformer_jax.reporting.page import Text
from transformer_jax.reporting.plots import new_figure
from transformer_jax.tables import command, report
from transformer_jax.tables.experiment import Experiment, Scale, make_jobs
from transformer_jax.tables.report import Output, curves_figure, row_figure, update_significance
from transformer_jax.tables.results import Line, read_results, write_results
from transformer_jax.tables.statistics import Summary

EXPERIMENT = Experiment("three", {"base": {}, "a": {}, "b": {}}, {"small": Scale("none.py")})
JOBS = make_jobs(EXPERIMENT, "small", Path("runs"))
WANTED = [f"sentence number {n} of the test" for n in range(30)]
SAID = {
    "base": WANTED,
    "a": [*WANTED[:10], *("another thing altogether" for _ in range(20))],
    "b": [*WANTED[:29], "sentence number 0 of the test"],
}


@pytest.fixture
def at_hand(monkeypatch):
    """Rows whose runs' folders are there."""
    rows = set(SAID)
    monkeypatch.setattr(
        report, "translations_of", lambda _, job: (SAID[job.row], "") if job.row in rows else None
    )
    monkeypatch.setattr(report, "references", lambda job: ([], WANTED))
    return rows


def test_the_base_row_s_translations_are_kept_for_rows_that_are_run_elsewhere(at_hand, tmp_path):
    output = Output(tmp_path)
    lines = [line(row, 0, 1.0) for row in SAID]
    write_results(tmp_path, lines)
    [base] = update_significance(output, JOBS, lines[:1])
    assert base.translations == WANTED and not base.p
    at_hand -= {"base", "b"}
    base, a, b = update_significance(output, JOBS, read_results(tmp_path))
    assert max(a.p.values()) < 0.01 and not b.p
    at_hand |= {"b"}
    found = update_significance(output, JOBS, read_results(tmp_path))
    assert found[:2] == [base, a] and found[2].p["bleu"] > 0.1
    assert read_results(tmp_path) == found
    known = [base, a._replace(p={"bleu": 0.5}), b]  # what is tested is not tested again
    assert update_significance(output, JOBS, known)[1].p == {"bleu": 0.5}


@pytest.mark.parametrize("against", ["base", ""])  # earlier versions did not write it
def test_another_first_row_is_another_base(at_hand, tmp_path, against):
    lines = [line(row, 0, 1.0) for row in SAID]
    write_results(tmp_path, lines)
    first = update_significance(Output(tmp_path), JOBS, lines)
    assert [one.against for one in first] == ["", "base", "base"]
    assert not report.has_other_base(first, "base") and report.has_other_base(first, "a")
    old = [one._replace(against=against) if one.p else one for one in first]
    write_results(tmp_path, old)
    moved = sorted(JOBS, key=lambda job: job.row != "a")
    found = {one.row: one for one in update_significance(Output(tmp_path), moved, old)}
    assert not found["a"].p and found["a"].against == "" and found["a"].translations
    assert found["b"].against == found["base"].against == "a"
    assert found["b"].p != first[2].p
    assert found["base"].p == pytest.approx(first[1].p, abs=0.05)


def test_a_row_whose_base_is_missing_is_not_tested(at_hand, tmp_path):
    for lines in ([line("a", 0, 1.0)], [line("base", 1, 1.0), line("a", 0, 1.0)]):
        write_results(tmp_path, lines)
        assert not any(one.p for one in update_significance(Output(tmp_path), JOBS, lines))


def test_a_run_made_anew_is_tested_anew(at_hand, tmp_path, monkeypatch):
    known = [line(row, seed, 1.0, p={"bleu": 0.5}) for row, seed in (("a", 0), ("b", 0), ("a", 1))]
    known += [line("base", seed, 1.0, translations=["before"]) for seed in (0, 1)]

    def left(row: str) -> tuple[set[tuple[str, int]], list[str]]:
        """What is kept once that row was run again with seed 0."""
        monkeypatch.setattr(command, "collect", lambda _: line(row, 0, 1.0))
        write_results(tmp_path, known)
        [job] = [job for job in JOBS if job.row == row]
        command._keep(job, "base", Output(tmp_path))
        found = {one[:2]: one for one in read_results(tmp_path)}
        assert found.keys() == {one[:2] for one in known}
        texts = [found["base", seed].translations for seed in (0, 1)]
        return {key for key, one in found.items() if one.p}, texts

    assert left("a") == ({("b", 0), ("a", 1)}, [["before"]] * 2)
    assert left("base") == ({("a", 1)}, [WANTED, ["before"]])
    # Where rows are not compared, nothing is kept for it.
    first = JOBS[0]._replace(scale=JOBS[0].scale._replace(compared=False))
    command._keep(first, "base", Output(tmp_path / "other"))
    assert not read_results(tmp_path / "other")[0].translations


@pytest.mark.parametrize(
    ("average", "message"),
    [
        (0, ""),
        (5, ", the last 5 checkpoints averaged"),
        ({"base": 5, "big": 20}, ", the last 5 or 20 checkpoints averaged"),
        ({"plain": 0, "mean": 5}, ", the last 5 checkpoints averaged where a row says so"),
        ({"plain": 0}, ""),
    ],
)
def test_a_report_says_what_was_averaged(average, message):
    assert report._averaged(average) == message


def test_a_report_says_on_what_and_when_and_how_long_rows_were_trained():
    late = {"train_seconds": 5_400.0, "date": "2026-01-03"}
    lines = [line("base", 0, 1.0, **late), line("a", 0, 2.0, train_seconds=1_800.0)]
    notes = report._notes(EXPERIMENT, "small", lines, "python x")
    assert "Command: `python x`. Device: cpu. Dates: 2026-01-01 to 2026-01-03." in notes
    assert "Training of all runs: 2.00 hours." in notes and "BLEU: s." in notes
    assert "Device: none yet. Dates: not run." in report._notes(EXPERIMENT, "small", [], "python x")
    cells = ["base", "0", "5.000", "1.00", "2,150,000", "10", "90.0", "#d", "#r", "cpu"]
    assert report._lines_table(lines).rows[0] == [*cells, "on 2026-01-03"]


def curve_of(row: str, *perplexities: float) -> Line:
    points = enumerate(perplexities, start=1)
    curve = [{"kind": "valid", "step": step, "perplexity": value} for step, value in points]
    return line(row, 0, 1.0, curve=curve)


def test_a_curve_of_one_validation_has_a_marker_and_a_labeled_axis():
    figure = curves_figure([curve_of("base", 57.0), curve_of("wide", 61.0, 59.0)])
    [axes] = figure.axes
    assert [drawn.get_marker() for drawn in axes.lines] == ["o", "None"]
    low, high = axes.get_ylim()
    assert low < 57 < 61 < high < 62
    assert sum(low <= tick <= high for tick in axes.get_yticks()) >= 4
    assert all(step == int(step) for step in axes.get_xticks())


def test_a_metric_that_is_equal_in_all_rows_is_a_line_of_text_and_no_picture(tmp_path):
    metrics = ("bleu", "parameters", "training_flops", "paper_bleu")
    experiment = EXPERIMENT._replace(metrics=metrics)
    output = Output(tmp_path)
    (tmp_path / "parameters.png").write_text("of a report before")
    # 2.152 and 2.148 million are both 2.15 million.
    lines = [line("base", 0, 1.0, parameters=2_152_000), line("b", 0, 2.0, parameters=2_148_000)]
    note, picture = report._row_plots(experiment, "small", output, lines)
    message = "The same in every finished row: parameters, millions 2.15; training FLOPs 3.00e+13."
    assert note == Text(message) and picture.file == tmp_path / "bleu.png"
    assert [path.name for path in tmp_path.iterdir()] == ["bleu.png"]


def test_plots_call_rows_what_the_scale_calls_them_and_show_large_numbers_whole():
    known = {"a": Summary(2.2525e13, None), "b": Summary(1.83e13, 1e11)}
    figure = row_figure(known, EXPERIMENT, "training_flops", str.upper)
    figure.draw_without_rendering()
    [axes] = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["A", "B"]
    ticks = [label.get_text() for label in axes.get_xticklabels()]
    assert "1.9e+13" in ticks and axes.xaxis.get_offset_text().get_text() == ""
    [legend] = curves_figure([curve_of("a", 2.0)] * 2, str.upper).legends  # of two seeds
    assert [text.get_text() for text in legend.get_texts()] == ["A"]


def test_a_row_s_dot_has_the_deviation_of_its_seeds_and_the_paper_s_figure_beside_it():
    known = {"a": Summary(20.0, 0.5), "b": Summary(22.0, None)}
    paper = EXPERIMENT._replace(paper={"b": {"bleu": 23.5}})
    [axes] = row_figure(known, paper, "bleu").axes
    [dots] = axes.containers
    assert dots[0].get_xydata().tolist() == [[20.0, 0.0], [22.0, 1.0]]
    [bars] = dots[2]
    ends = [segment[:, 0].tolist() for segment in bars.get_segments()]
    assert ends == [[19.5, 20.5], [22.0, 22.0]]
    printed = next(one for one in axes.lines if one.get_marker() == "D")
    assert printed.get_xydata().tolist() == [[23.5, 1.0]]


def test_a_page_says_which_text_is_the_reference_and_which_the_translation(tmp_path):
    output = Output(tmp_path)
    lines = [line("a", 0, 1.0, samples=[["the src", "the ref", "the hyp"]])]
    page = report.write_report(EXPERIMENT, "small", output, lines, "python x")
    text = page.read_text()
    assert re.search(r"source +the src\s+reference +the ref\s+translation +the hyp", text)


def test_rows_and_the_line_of_the_base_are_as_in_the_table(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        report, "row_figure", lambda *given: drawn.append(given) or new_figure(1, 1)
    )
    scale = EXPERIMENT.scales["small"]._replace(rows=("b", "a"))
    experiment = EXPERIMENT._replace(scales={"small": scale}, metrics=("bleu",))
    lines = [line("a", 0, 1.0), line("b", 0, 2.0)]
    report.write_report(experiment, "small", Output(tmp_path), lines, "python x")
    [(known, _, _, _, base)] = drawn
    assert [*known] == ["b", "a"] and base == "b"
    monkeypatch.undo()
    axes = row_figure(known, experiment, "bleu", str, "a").axes[0]
    assert [*axes.lines[-1].get_xdata()] == [1.0, 1.0]
    assert len(row_figure(known, experiment, "bleu", str, "c").axes[0].lines) < len(axes.lines)


def test_rows_whose_ratio_is_large_have_a_log_axis_but_not_their_bleu():
    known = {"a": Summary(2.0, None), "b": Summary(400.0, 10.0)}
    axes = {name: row_figure(known, EXPERIMENT, name).axes[0] for name in ("perplexity", "bleu")}
    assert [one.get_xscale() for one in axes.values()] == ["log", "linear"]
    low, high = axes["perplexity"].get_xlim()
    shown = [tick for tick in axes["perplexity"].get_xticks() if low <= tick <= high]
    assert shown == pytest.approx([2, 5, 10, 20, 50, 100, 200, 500])
    # So has a plot in which the paper's figures are far from those of the rows.
    paper = EXPERIMENT._replace(paper={"a": {"perplexity": 2.0}, "b": {"perplexity": 9.0}})
    close = {"a": Summary(20.0, None), "b": Summary(24.0, None)}
    assert row_figure(close, paper, "perplexity").axes[0].get_xscale() == "log"
    assert row_figure(close, EXPERIMENT, "perplexity").axes[0].get_xscale() == "linear"
