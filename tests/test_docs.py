"""The pages: what they name exists, their code runs, the map leaves out nothing of the paper."""

import ast
import re
import runpy
import textwrap
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import yaml

import transformer_jax
from tests import tiny_runs as runs
from transformer_jax.__main__ import COMMANDS
from transformer_jax.config.schema import KEYS, SECTIONS
from transformer_jax.decoding.scoring import forced_scores
from transformer_jax.model.attention.scores import SCORES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


# docs/paper_map.md -------------------------------------------------------------------------------

LINES = (DOCS / "paper_map.md").read_text(encoding="utf-8").splitlines()
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


# The README, and the pages beside it that a user reads -------------------------------------------

MOST_BYTES, MOST_CHARACTERS = 8_192, 100
PAGES = ["README.md"]
PAGES += [f"docs/{name}.md" for name in ("add_attention", "faq", "guide", "results", "tutorial")]
CODE = re.compile(r"^```\w*\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SECTION = "|".join(sorted(SECTIONS))
KEY = re.compile(rf"`(?:{SECTION})\.[a-z][a-z_]*\b|--config\.(?:{SECTION})\.[a-z_]+")
# Named like keys.
FILES = {"train.en", "train.de", "train.parquet", "vocabulary.model", "model.safetensors"}


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def anchors_in(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= MOST_BYTES
    assert not [line for line in text_of("README.md").split("\n") if len(line) > MOST_CHARACTERS]


def test_equation_1_of_the_readme_is_the_code():
    [quoted] = [block for block in CODE.findall(text_of("README.md")) if "scores_BHLM" in block]
    assert len(quoted.splitlines()) == 6
    code = text_of("transformer_jax/model/attention/multi_head.py")
    assert textwrap.indent(quoted, "    ") in code


def test_the_readme_has_the_two_commands_and_a_figure():
    readme = text_of("README.md")
    for words in ("make demo", "make test", "docs/faq.md", "docs/tour.md"):
        assert words in readme
    assert re.search(r"!\[[^]]+\]\(docs/results/[^)]+\.png\)", readme)


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_somewhere(page):
    links = [link for link in LINK.findall(CODE.sub("", text_of(page))) if "://" not in link]
    assert links
    for link in links:
        name, _, anchor = link.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), link
        assert not anchor or anchor in anchors_in(path), link


@pytest.mark.parametrize("page", PAGES)
def test_every_test_and_key_that_a_page_names_exists(page):
    text = text_of(page)
    for file, name in re.findall(r"`(tests/[\w/]+\.py)(?::(\w+))?`", text):
        assert (ROOT / file).exists(), file
        assert not name or name in names_in(ROOT / file), name
    keys = {key.strip("`").removeprefix("--config.") for key in KEY.findall(text)}
    assert keys - FILES <= set(KEYS)


# The site ----------------------------------------------------------------------------------------

# Made of README.md, CONTRIBUTING.md and the notebooks.
MADE = {"index.md", "contributing.md", "the_paper.md", "attention_around_attention.md"}
PYTHON = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


def pages_in(navigation):
    for entry in navigation:
        [value] = entry.values()
        yield from pages_in(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_navigation_once():
    settings = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    found = list(pages_in(settings["nav"]))
    assert sorted(found) == sorted({path.name for path in DOCS.glob("*.md")} | MADE)
    assert settings["strict"]


def test_commands_of_the_tutorial_exist():
    text = (DOCS / "tutorial.md").read_text()
    named = re.findall(r"^transformer-jax (\w+)", text, re.M)
    assert len(set(named)) >= 7 and set(named) <= COMMANDS.keys()


@pytest.fixture
def page_s_code():
    """The names that the code of add_attention.md defines; its scores are known for one test."""
    assert not {"distance", "scaled_distance"} & SCORES.keys(), "the page adds what is there"
    names = {"__name__": "distance"}
    with mock.patch.dict(SCORES):
        for block in PYTHON.findall((DOCS / "add_attention.md").read_text()):
            exec(compile(block, "docs/add_attention.md", "exec"), names)
        yield names


def test_the_score_of_the_page_is_its_formula(page_s_code):
    draw = np.random.default_rng(0)
    query, key = draw.normal(size=(2, 3, 4, 5)), draw.normal(size=(2, 6, 4, 5))
    away = query[:, :, None] - key[:, None]
    want = -np.einsum("BLMHK,BLMHK->BHLM", away, away) / (2 * 5**0.5)
    np.testing.assert_allclose(page_s_code["distance"]({}, query, key), want, atol=1e-5)
    factors = {"factor": np.arange(4.0)}
    scaled = page_s_code["scaled_distance"](factors, query, key)
    np.testing.assert_allclose(scaled, want * np.arange(4)[:, None, None], atol=1e-5)


@pytest.mark.slow("trains a run")
def test_a_model_with_the_page_s_score_is_trained_and_translates(page_s_code, tmp_path):
    config = runs.tiny_config(train__steps=10, model__score="scaled_distance")
    run = transformer_jax.train(config, tmp_path / "run")
    translator = run.loaded.translator
    source = run.loaded.line_translator().encode(["The old man sleeps."])
    [[best]] = translator.translate(source)
    [scored] = forced_scores(translator, source, [np.array(best.ids)])
    assert scored.score == pytest.approx(best.score, rel=1e-4)


def test_pictures_of_a_notebook_have_the_heading_above_them():
    hooks = runpy.run_path(str(DOCS / "site_hooks.py"))
    page = (
        "# All\n## One\n![png](a.png)\n\n![png](b.png)\n## Two\n```\n# code\n```\n![png](c.png)\n"
    )
    found = hooks["with_alternative_texts"](page)
    assert re.findall(r"!\[(.*?)\]\((.)", found) == [
        ("Picture: One", "a"),
        ("Picture: One", "b"),
        ("Picture: Two", "c"),
    ]
