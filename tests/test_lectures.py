"""docs/lectures.md names what there is, and its numbers are those of the formulas."""

import importlib.util
import math
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from tests.test_docs import names_in
from transformer_jax.evaluation.bleu import score
from transformer_jax.model.attention.multi_head import attend
from transformer_jax.model.attention.normalizers import softmax
from transformer_jax.model.attention.scores import inverse_root
from transformer_jax.model.outputs.sequence_objectives import sentence_bleu
from transformer_jax.model.positions.choices import sinusoids

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "lectures.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split("|")]
    for line in TEXT.splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| slide"))
]
VERDICTS = (
    "equal|holds|does not hold|in part|not decided|wrong on the slide|not measured|built|not "
)
VERDICTS += "built|a definition|a picture"
DRAW = np.random.default_rng(0)


def exists(cell: str, folder: str) -> bool:
    """Whether a cell names a function in a file of the folder, an experiment, or nothing."""
    name = cell.strip("`")
    if found := re.fullmatch(r"experiments\.(\w+)", name):
        return importlib.util.find_spec(name) is not None and found[1] != "__main__"
    file, _, function = name.partition(":")
    root = ROOT if file.startswith("experiments/") and folder != "tests" else ROOT / folder
    return name == "-" or function in names_in(root / file)


def test_every_row_says_what_came_out():
    assert len(ROWS) > 90 and TEXT.count("\n## ") == 5
    for row in ROWS:
        assert len(row) == 4 and all(row), row
        assert re.match(VERDICTS, row[3]), row


def test_every_name_exists():
    missing = [row[1] for row in ROWS if not exists(row[1], "transformer_jax")]
    missing += [row[2] for row in ROWS if not exists(row[2], "tests")]
    assert not missing


def test_every_link_to_a_result_leads_to_its_section():
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    sections = {head.lower().replace(" ", "-") for head in re.findall(r"^## (.+)$", results, re.M)}
    linked = set(re.findall(r"results\.md#([\w-]+)", TEXT))
    assert linked <= sections, linked - sections
    assert len(linked) > 25


# What slides say, beside what is right --------------------------------------------------------


def test_the_example_of_four_features():
    pos = np.arange(6)
    want = np.stack([np.sin(pos), np.cos(pos), np.sin(pos / 100), np.cos(pos / 100)], 1)
    np.testing.assert_allclose(sinusoids(6, 4), want, atol=1e-6)


def test_sines_first_are_another_order_of_the_same_features():
    ours = sinusoids(20, 512)
    slide = np.concatenate([ours[:, 0::2], ours[:, 1::2]], 1)
    assert f"differs by up to {np.abs(slide - ours).max():.2f}" in TEXT
    order = np.arange(512).reshape(2, 256).T.ravel()
    np.testing.assert_array_equal(slide[:, order], ours)


def test_the_loop_that_doubles_the_exponent():
    slide, right = np.zeros((10, 10)), np.zeros((10, 10))
    for pos in range(10):
        for i in range(0, 10, 2):
            slide[pos, i] = math.sin(pos / 10000 ** ((2 * i) / 10))
            slide[pos, i + 1] = math.cos(pos / 10000 ** ((2 * (i + 1)) / 10))
            right[pos, i] = math.sin(pos / 10000 ** (i / 10))
            right[pos, i + 1] = math.cos(pos / 10000 ** (i / 10))
    printed = [1.4112e-01, 8.8908e-01, 7.5285e-02, 9.9993e-01, 1.8929e-03]
    np.testing.assert_allclose(slide[3, :5], printed, rtol=1e-4)
    np.testing.assert_allclose(sinusoids(10, 10), right, atol=1e-6)
    for table in (slide, right):
        assert f"{table[3, 0]:.3f}, {table[3, 1]:.3f}" in " ".join(TEXT.split())


def test_exponents_that_begin_with_one():
    """As if positions were nearer to each other, by 10000^(2/d)."""
    t, i = np.arange(12), np.arange(1, 9)
    angles = t[:, None] / 10000 ** (2 * i / 16)
    ours = sinusoids(12, 16, lambda d: 10000 ** (2 * np.arange(d // 2) / d) * 10000 ** (2 / d))
    np.testing.assert_allclose(ours[:, 0::2], np.sin(angles), atol=1e-6)
    np.testing.assert_allclose(ours[:, 1::2], np.cos(angles), atol=1e-6)


def test_eight_is_the_root_of_64():
    assert inverse_root(512 // 8) == 1 / 8 and inverse_root(16) == 1 / 4


def test_a_mask_inside_the_softmax_and_one_behind_it():
    past = np.tri(4, dtype=bool)
    scores = jnp.zeros((1, 1, 4, 4))
    inside = np.asarray(softmax(scores, past))[0, 0]
    behind = np.asarray(softmax(scores, np.ones((4, 4), bool)))[0, 0] * past
    assert (inside[0, 0], behind[0, 0]) == (1, 0.25)
    np.testing.assert_allclose(inside.sum(1), 1)
    np.testing.assert_allclose(behind.sum(1), [0.25, 0.5, 0.75, 1])


def test_self_attention_is_linear_in_the_values_alone():
    x_BLHK = jnp.asarray(DRAW.normal(size=(1, 5, 1, 8)), jnp.float32)
    mask = np.ones((5, 5), bool)
    once, values_twice, all_twice = (
        attend(a * x_BLHK, a * x_BLHK, b * x_BLHK, mask)[0] for a, b in ((1, 1), (1, 2), (2, 2))
    )
    np.testing.assert_allclose(values_twice, 2 * once, rtol=1e-5)
    assert np.abs(all_twice - 2 * once).max() > 0.3


def test_bleu_is_printed_times_100():
    line = "A dog and a cat play ."
    assert score([line], [line], "de", "en").bleu == pytest.approx(100)
    ids = np.arange(7)[None]
    assert float(sentence_bleu(ids[None], np.array([[7]]), ids, np.array([7]))[0, 0]) == 1
