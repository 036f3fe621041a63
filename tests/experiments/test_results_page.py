"""docs/results.md has the tables of the recorded results."""

import importlib
from pathlib import Path

import pytest

from experiments import results_page
from experiments.results_page import BLOCK, PAGE, rendered
from transformer_jax.errors import DataError

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


@pytest.mark.parametrize("kind", ["results", "verdicts"])
def test_results_that_are_not_there_are_one_line(kind, tmp_path, in_checkout, monkeypatch, capsys):
    page = page_of(tmp_path, f"{kind}: scores/small bleu")
    with pytest.raises(DataError):
        rendered(page)
    monkeypatch.setattr(results_page, "PAGE", page)
    for flags, message in (([], "scores/small"), (["--out=x"], "Unknown command line flag 'out'")):
        monkeypatch.setattr("sys.argv", ["results_page", *flags])
        assert results_page.main() == 2
        error = capsys.readouterr().err
        assert message in error and error.count("\n") == 1 and "old" in page.read_text()
