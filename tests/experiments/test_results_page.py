"""docs/results.md has the tables of the recorded results; so has the figure of all parts."""

import importlib
import json
import shutil
import statistics
from pathlib import Path

import pytest

from experiments import results_page
from experiments.overview import GROUPS, RESULTS, Bar, bars_of, overview
from experiments.results_page import BLOCK, PAGE, rendered
from transformer_jax.errors import DataError
from transformer_jax.reporting.page import Code, markdown_page
from transformer_jax.tables.results import read_results
from transformer_jax.use.command_line import exit_status

ROOT = Path(__file__).parents[2]


def test_the_page_is_up_to_date():
    """`make results` changes nothing."""
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert rendered(ROOT / PAGE) == text
    blocks = BLOCK.findall(text)
    assert len(blocks) >= 6 and text.count("<!-- end -->") == len(blocks)


def test_every_recorded_small_table_is_on_the_page():
    tables = (ROOT / "docs/results").glob("*/small/results.jsonl")
    recorded = {"/".join(path.parts[-3:-1]) for path in tables}
    assert recorded <= {folder for _, folder, _ in BLOCK.findall((ROOT / PAGE).read_text())}


@pytest.mark.parametrize("path", sorted((ROOT / "docs/results").glob("*/*/table.md")), ids=str)
def test_a_page_begins_with_the_text_of_its_experiment(path):
    """`python -m experiments.NAME --report` writes it there; line ends may differ."""
    experiment = importlib.import_module(f"experiments.{path.parts[-3]}").EXPERIMENT
    page = path.read_text(encoding="utf-8").replace("\\<", "<")
    assert " ".join(experiment.about.split()) in " ".join(page.split())
    assert len(experiment.about) > 100


def page_of(folder: Path, comment: str) -> Path:
    page = folder / "results.md"
    page.write_text(f"Before.\n\n<!-- {comment} -->\nold\n<!-- end -->\n\nAfter.\n")
    return page


def test_a_table_is_made_of_the_lines_of_its_rows(tmp_path, in_checkout):
    recorded = ROOT / "docs/results/table2_bleu/longer/results.jsonl"
    (tmp_path / "results/table2_bleu/longer").mkdir(parents=True)
    copy = tmp_path / "results/table2_bleu/longer/results.jsonl"
    copy.write_text("".join(recorded.read_text().splitlines(keepends=True)[0]))
    page = page_of(tmp_path, "results: table2_bleu/longer bleu perplexity")
    table = "| row | BLEU | perplexity (per subword) |\n| --- | ---: | ---: |\n"
    table += "| Transformer | 33.47 | 7.94 |"
    assert rendered(page) == page.read_text().replace("old", table)


@pytest.mark.parametrize("name", ["sweep/mine", "scores/mine", "scores.old/small"])
def test_a_table_that_no_scale_knows_has_its_rows_as_they_are(name, tmp_path, in_checkout):
    """Neither a sweep's module nor one without the name EXPERIMENT, as README's, is imported."""
    (tmp_path / "results" / name).mkdir(parents=True)
    recorded = ROOT / "docs/results/table2_bleu/longer/results.jsonl"
    shutil.copy(recorded, tmp_path / "results" / name)
    table = rendered(page_of(tmp_path, f"results: {name} bleu"))
    rows = list(dict.fromkeys(line.row for line in read_results(recorded.parent)))
    assert [line.split(" | ")[0].strip("| ") for line in table.splitlines()[5:-3]] == rows


@pytest.mark.parametrize("kind", ["results", "verdicts"])
def test_results_that_are_not_there_are_one_line(kind, tmp_path, in_checkout, monkeypatch, capsys):
    page = page_of(tmp_path, f"{kind}: scores/small bleu")
    with pytest.raises(DataError):
        rendered(page)
    monkeypatch.setattr(results_page, "PAGE", page)
    for flags, message in (([], "scores/small"), (["--out=x"], "Unknown command line flag 'out'")):
        monkeypatch.setattr("sys.argv", ["results_page", *flags])
        assert exit_status(results_page.main) == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1 and "old" in page.read_text()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("<!-- end -->\n", "", "results.md: <!-- results: scores/small bleu --> has no <!-- end"),
        ("old", "<!-- verdicts: scores/small -->", "line 4: .* is not <!-- end -->"),
        ("results:", "result:", "line 3: <!-- result: scores/small bleu --> is not known"),
        ("bleu", "belu", "'belu' is no metric of .*scores/small: perplexity, "),
        ("After", "<!-- end --> no", "line 7: <!-- end --> no. is not known"),
        ("<!-- res", "  <!-- res", "line 3:   <!-- results: scores/small bleu --> is not known"),
    ],
)
def test_a_comment_that_makes_no_table_is_refused(old, new, message, tmp_path, in_checkout):
    shutil.copytree(ROOT / "docs/results/scores", tmp_path / "results/scores")
    page = page_of(tmp_path, "results: scores/small bleu")
    whole = rendered(page)
    page.write_text(page.read_text().replace("\n", "\r\n"), newline="")
    assert rendered(page) == whole
    page = page_of(tmp_path, "results: scores/small bleu")
    page.write_text(page.read_text().replace(old, new))
    with pytest.raises(DataError, match=message):
        rendered(page)


# The figure of all parts -------------------------------------------------------------------------


def recorded(folder: str, row: str, name: str = "bleu") -> dict[int, float]:
    """A metric of each seed, read without the experiment's functions."""
    lines = (RESULTS / folder / "results.jsonl").read_text(encoding="utf-8").split("\n")[:-1]
    return {one["seed"]: one[name] for one in map(json.loads, lines) if one.get("row") == row}


def test_bars_are_differences_of_seeds():
    for group in GROUPS.values():
        rows = {label: (*one, row) for one, own in group.items() for row, label in own.items()}
        for bar in bars_of(RESULTS, group):
            folder, base_row, row = rows.get(bar.label) or rows[bar.label.removesuffix(" †")]
            each = (recorded(folder, x, "training_flops") for x in (row, base_row))
            flops = [max(of_seeds.values()) for of_seeds in each]
            assert bar.label.endswith("†") == (flops[0] > 1.005 * flops[1] or "Muon" in row)
            own, base = recorded(folder, row), recorded(folder, base_row)
            assert bar.gaps == pytest.approx([own[seed] - base[seed] for seed in sorted(own)])


def test_the_largest_gain_comes_first_and_colors_follow_the_rule():
    bars = bars_of(RESULTS, GROUPS["captions, models of 2 M parameters"])
    means = [statistics.fmean(bar.gaps) for bar in bars]
    assert means == sorted(means, reverse=True)
    verdicts = [Bar("", "", "", gaps).verdict for gaps in ([1, 1.1, 0.9], [-2, -2.1], [3, -1, 1])]
    assert verdicts == ["holds", "does not hold", "not decided"]


def test_a_row_that_lacks_seeds_is_an_error():
    with pytest.raises(DataError, match="'recurrent' and 'base, pre-norm' lack two seeds"):
        bars_of(RESULTS, {("real_text/cores_en-it", "base, pre-norm"): {"recurrent": ""}})


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
