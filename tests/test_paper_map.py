"""docs/paper_map.md names what there is, and leaves out nothing of the paper."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINES = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8").splitlines()
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in LINES
    if line.startswith("|") and not line.startswith(("|---", "| paper "))
]
PLACES = sorted({cell.strip("`") for row in ROWS for cell in row[2:]})


def names_in(path: Path) -> dict[str, str]:
    """{name or Class.name: docstring} of a file's functions, classes and methods."""
    names = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names[node.name] = ast.get_docstring(node) or ""
        for inner in node.body if isinstance(node, ast.ClassDef) else []:
            if isinstance(inner, ast.FunctionDef):
                names[f"{node.name}.{inner.name}"] = ast.get_docstring(inner) or ""
    return names


def test_every_row_has_its_four_cells():
    assert len(ROWS) > 25
    for row in ROWS:
        assert len(row) == 4 and all(row), row
        assert row[2].startswith(("`transformer_jax/", "`experiments/")), row
        assert row[3].startswith("`tests/"), row


@pytest.mark.parametrize("place", PLACES)
def test_every_place_exists(place):
    file, _, name = place.partition(":")
    assert name in names_in(ROOT / file), place


@pytest.mark.parametrize(
    "of_the_paper",
    [f"equation {n}" for n in (1, 2, 3)]
    + [f"section 3.{n}" for n in (1, 2, 3, 4, 5)]
    + [f"section 3.2.{n}" for n in (1, 2, 3)]
    + [f"section 5.{n}" for n in (1, 2, 3, 4)]
    + [f"section 6.{n}" for n in (1, 2, 3)]
    + [f"table {n}" for n in (1, 2, 3, 4)]
    + ["section 4", "figure 1", "figure 2", "figures 3, 4 and 5"],
)
def test_nothing_of_the_paper_is_left_out(of_the_paper):
    of_this_paper = [re.sub(r"\([^)]*et al[^)]*\)", "", row[0]) for row in ROWS]
    left_out = next(line for line in LINES if line.startswith("The project has no"))
    known = "\n".join([*of_this_paper, left_out])
    assert re.search(rf"\b{re.escape(of_the_paper)}(?![0-9])", known)


def test_what_quotes_the_paper_as_its_source_is_on_the_map():
    quoting = [
        f"{path.relative_to(ROOT).as_posix()}:{name}"
        for path in sorted((ROOT / "transformer_jax").rglob("*.py"))
        for name, docstring in names_in(path).items()
        if "Source: Vaswani" in docstring
    ]
    assert len(quoting) >= 7
    assert not set(quoting) - set(PLACES)
