"""Rows are tested against the base row, wherever either was run; and what a report says."""

import json
import math
import re
from pathlib import Path

import pytest

from tests.tables.test_statistics import line
from transformer_jax.errors import DataError
from transformer_jax.reporting.page import Text
from transformer_jax.tables import command, report
from transformer_jax.tables.experiment import Experiment, Scale, make_jobs
from transformer_jax.tables.records import FILE, read_records, write_record
from transformer_jax.tables.report import Output, curves_figure, row_figure, update_significance
from transformer_jax.tables.results import Record, read_results
from transformer_jax.tables.statistics import Paired, Summary, read_p_values, write_p_values

EXPERIMENT = Experiment("three", {"base": {}, "a": {}, "b": {}}, {"small": Scale("none.py")})
WANTED = [f"sentence number {n} of the test" for n in range(30)]
SAID = {
    "base": WANTED,
    "a": [*WANTED[:10], *("another thing altogether" for _ in range(20))],
    "b": [*WANTED[:29], "sentence number 0 of the test"],
}
GOOD = {"row": "a", "seed": 0, "curve": [], "samples": []}


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
    jobs = make_jobs(EXPERIMENT, "small", Path("runs"))
    lines = [line(row, 0, 1.0) for row in SAID]
    write_record(tmp_path, Record("base", 0, [], []))
    assert update_significance(output, jobs, lines[:1]) == {}
    at_hand -= {"base", "b"}
    found = update_significance(output, jobs, lines)
    assert found.keys() == {("a", 0)} and max(found["a", 0]) < 0.01
    at_hand |= {"b"}
    found = update_significance(output, jobs, lines)
    assert found.keys() == {("a", 0), ("b", 0)} and found["b", 0].bleu > 0.1
    assert read_p_values(output.significance).keys() == found.keys()


def test_a_row_whose_line_is_missing_is_not_tested(at_hand, tmp_path):
    output = Output(tmp_path)
    jobs = make_jobs(EXPERIMENT, "small", Path("runs"))
    assert update_significance(output, jobs, [line("a", 0, 1.0)]) == {}
    assert update_significance(output, jobs, [line("base", 1, 1.0), line("a", 0, 1.0)]) == {}


def test_a_run_made_anew_is_tested_anew(at_hand, tmp_path, monkeypatch):
    output = Output(tmp_path)
    jobs = make_jobs(EXPERIMENT, "small", Path("runs"))
    known = dict.fromkeys([("a", 0), ("b", 0), ("a", 1)], Paired(0.5))

    def left(row: str) -> tuple[set[tuple[str, int]], list[str]]:
        """What is kept once that row was run again with seed 0."""
        record = Record(row, 0, [], [])
        monkeypatch.setattr(command, "collect", lambda _: (line(row, 0, 1.0), record))
        for seed in (0, 1):
            write_record(tmp_path, Record("base", seed, [], [], translations=["before"]))
        write_p_values(output.significance, known)
        [job] = [job for job in jobs if job.row == row]
        command._keep(job, "base", output)
        records = read_records(tmp_path)
        texts = [records["base", seed].translations for seed in (0, 1)]
        return set(read_p_values(output.significance)), texts

    assert left("a") == ({("b", 0), ("a", 1)}, [["before"]] * 2)
    assert read_records(tmp_path)["a", 0].translations is None
    assert left("base") == ({("a", 1)}, [WANTED, ["before"]])
    # Where rows are not compared, nothing is kept for it.
    jobs = [job._replace(scale=job.scale._replace(compared=False)) for job in jobs]
    command._keep(jobs[0], "base", Output(tmp_path / "other"))
    assert read_records(tmp_path / "other")["base", 0].translations is None


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


def test_a_record_is_read_as_it_was_written(tmp_path):
    curve = [{"step": 3, "kind": "train"}, {"step": 4, "kind": "valid", "perplexity": math.inf}]
    record = Record("a, b", 1, curve, [["s", "r", "t"]])
    written = [record._replace(row="b", seed=0), record, record._replace(seed=0)]
    for one in written:
        write_record(tmp_path, one)
    assert read_records(tmp_path) == {one[:2]: one for one in written}
    assert record.validations() == [(4, math.inf)]
    assert json.loads((tmp_path / FILE).read_text().splitlines()[1]) == {
        "row": "a, b",
        "seed": 1,
        "curve": curve,
        "samples": [["s", "r", "t"]],
    }
    sets = {"test": {"bleu": 1.5}}
    more = record._replace(samples=[], sets=sets, translations=["t"], text_sha256={"sources": "s"})
    write_record(tmp_path, more)
    lines = (tmp_path / FILE).read_text().splitlines()
    (tmp_path / FILE).write_text("\n".join(lines))  # an editor may remove the last line end
    found = read_records(tmp_path)
    assert [*found] == [("a, b", 0), ("a, b", 1), ("b", 0)]
    assert found["a, b", 1] == more and found["b", 0] == written[0]


@pytest.mark.parametrize(
    "content",
    [
        {"row": "a", "seed": 0, "curve": []},
        {**GOOD, "seed": True},
        {**GOOD, "curve": [3]},
        {**GOOD, "curve": [{"kind": "valid", "step": 1}]},
        {**GOOD, "curve": [{"kind": "valid", "step": 10, "perplexity": -5}]},
        {**GOOD, "curve": [{"kind": "valid", "step": -1, "perplexity": 5}]},
        {**GOOD, "curve": [{"kind": "valid", "step": 10**10, "perplexity": 5.0}]},
        {**GOOD, "curve": [{"kind": "valid", "step": math.inf, "perplexity": 5.0}]},
        {**GOOD, "curve": [{"kind": "valid", "step": 1, "perplexity": 10**400}]},
        *({**GOOD, "samples": [sample]} for sample in (["s", "r"], "abc", [1, None, {}], 3)),
        *({**GOOD, "translations": texts} for texts in ("text", [3])),
        *({**GOOD, "sets": sets} for sets in ({"valid": 27.5}, "valid", 3)),
    ],
)
def test_what_is_no_record_is_refused(content, tmp_path):
    (tmp_path / FILE).write_text(f"{json.dumps(content)}\n")
    with pytest.raises(DataError, match=f"^{tmp_path / FILE}, line 1: not the record of a run"):
        read_records(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", ", line 1: not JSON"),
        (b"[]", ", line 1: a JSON list; expected an object"),
        (b'{"row": "\xff"}', ", line 1: not UTF-8"),
        (b"[" * 100_000, ", line 1: cannot be read"),
        (json.dumps(GOOD).encode() + b'\n{"row": "a"}', ", line 2: not the record of a run"),
        (
            "\n".join(json.dumps({**GOOD, "row": row}) for row in "aba").encode(),
            ", lines 1 and 3: both are of row 'a' and seed 0",
        ),
    ],
)
def test_a_damaged_file_of_records_is_refused_naming_the_line(content, message, tmp_path):
    (tmp_path / FILE).write_bytes(content + b"\n")
    with pytest.raises(DataError, match=f"^{tmp_path / FILE}{message}"):
        read_records(tmp_path)


def test_a_run_that_two_processes_recorded_has_one_line(tmp_path, monkeypatch):
    output = Output(tmp_path)
    job = make_jobs(EXPERIMENT, "small", Path("runs"))[1]
    record = Record("a", 0, [], [])
    for bleu in (1.0, 2.0):
        monkeypatch.setattr(command, "collect", lambda _, bleu=bleu: (line("a", 0, bleu), record))
        command._keep(job, "base", output)
    assert [found.bleu for found in read_results(output.results)] == [2.0]


def curve_of(row: str, *perplexities: float) -> Record:
    points = enumerate(perplexities, start=1)
    curve = [{"kind": "valid", "step": step, "perplexity": value} for step, value in points]
    return Record(row, 0, curve, [])


def test_a_curve_of_one_validation_has_a_marker_and_a_labeled_axis():
    figure = curves_figure([curve_of("base", 57.0), curve_of("wide", 61.0, 59.0)])
    [axes] = figure.axes
    assert [line.get_marker() for line in axes.lines] == ["o", "None"]
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
    records = [curve_of("a", 2.0)] * 2  # of two seeds
    [legend] = curves_figure(records, str.upper).legends
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
    write_record(tmp_path, Record("a", 0, [], [["the src", "the ref", "the hyp"]]))
    page = report.write_report(EXPERIMENT, "small", output, [line("a", 0, 1.0)], "python x")
    text = page.read_text()
    assert re.search(r"source +the src\s+reference +the ref\s+translation +the hyp", text)


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
