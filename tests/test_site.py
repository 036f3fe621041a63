"""The site: every page is in its navigation, and the code of its pages runs."""

import re
import runpy
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import yaml

import transformer_jax
from tests import tiny_runs as runs
from transformer_jax.__main__ import COMMANDS
from transformer_jax.decoding.scoring import forced_scores
from transformer_jax.model.attention.scores import SCORES

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
# Made of README.md, CONTRIBUTING.md and the notebooks.
MADE = {"index.md", "contributing.md", "the_paper.md", "attention_around_attention.md"}
CODE = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


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
        for block in CODE.findall((DOCS / "add_attention.md").read_text()):
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
