"""The figure of all parts: each bar is the difference of the recorded rows, seed by seed."""

import json
import statistics

import pytest

from experiments.overview import GROUPS, RESULTS, Bar, Compared, bars_of, overview
from transformer_jax.errors import DataError
from transformer_jax.reporting.page import Code, markdown_page


def recorded(folder: str, row: str) -> dict[str, float]:
    """The BLEU of each seed, read without the experiment's functions."""
    lines = (RESULTS / folder / "results.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    return {one["seed"]: one["bleu"] for one in map(json.loads, lines) if one.get("row") == row}


def test_bars_are_differences_of_seeds():
    for group in GROUPS.values():
        rows = {label: (one, row) for one in group for row, label in one.rows.items()}
        for bar in bars_of(RESULTS, group):
            one, row = rows[bar.label]
            own, base = recorded(one.folder, row), recorded(one.folder, one.base)
            assert bar.gaps == pytest.approx([own[seed] - base[seed] for seed in sorted(own)])


def test_the_largest_gain_comes_first_and_colors_follow_the_rule():
    bars = bars_of(RESULTS, GROUPS["captions, models of 2 M parameters"])
    means = [statistics.fmean(bar.gaps) for bar in bars]
    assert means == sorted(means, reverse=True)
    verdicts = [Bar("", "", "", gaps).verdict for gaps in ([1, 1.1, 0.9], [-2, -2.1], [3, -1, 1])]
    assert verdicts == ["holds", "does not hold", "not decided"]


def test_a_row_that_lacks_seeds_is_an_error():
    with pytest.raises(DataError, match="'recurrent' and 'base, pre-norm' lack two seeds"):
        bars_of(RESULTS, [Compared("real_text/cores_en-it", "base, pre-norm", {"recurrent": ""})])


def test_a_folder_without_results_is_named(tmp_path):
    with pytest.raises(DataError, match="results.jsonl is not there: --results="):
        bars_of(tmp_path, GROUPS["captions, models of 2 M parameters"])


def test_the_recorded_table_is_that_of_the_recorded_results(tmp_path):
    parts = [Code("python -m experiments.overview"), *overview(RESULTS, tmp_path)]
    written = (RESULTS / "overview" / "table.md").read_text(encoding="utf-8")
    assert markdown_page("What each part gains", parts) == written, (
        "results have changed: run `python -m experiments.overview`"
    )
    assert (tmp_path / "overview.png").stat().st_size > 50_000
