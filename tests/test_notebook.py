"""The notebooks: their cells run in order, and their outputs are stored with them."""

import json
import logging
from pathlib import Path

import jax
import matplotlib
import numpy as np
import pytest

pytestmark = pytest.mark.slow("runs notebooks, which train")

DOCS = Path(__file__).parent.parent / "docs"
# What is replaced so that a notebook trains for seconds; what it learns does not matter here.
SHORT = {
    "the_paper": {
        "STEPS = 1_000": "STEPS = 101",
        "changes = {": 'changes = {"data.pairs": 500, "vocabulary.size": 500, "model.d_model": 16, '
        '"model.d_ff": 32, "train.tokens_per_batch": 200, "decode.max_length": 512, ',
        'built_in_pairs("test", 200)': 'built_in_pairs("test", 8)',
    },
    "attention_around_attention": {
        "STEPS = 400": "STEPS = 20",
        '("scaled_dot", "dot", "bilinear", "cosine", "additive")': '("additive",)',
        '("sinusoidal", "learned", "rotary", "relative", "none")': '("none",)',
        'tested(f"{positions}, 9 to 12 words", model, params, longer)': "",
        '("softmax", "sparsemax", "gumbel", "monotonic", "chunkwise")': '("gumbel",)',
        'trained(backwards, cross_normalizer="monotonic")': "model, params",
        '    "without": {},\n    "memory": {"attention_memory": "coverage_gru"},\n': "",
        "for gamma in (0.0, 0.3, 1.0)": "for gamma in (0.3,)",
        'for output in ("softmax", "copy")': 'for output in ("copy",)',
        'tested(f"{output}, names of training", model, params, known)': "",
        'tested("one witness", *trained(first_witness, words=11), one)': "",
        'for combination in ("flat", "serial")': 'for combination in ("serial",)',
    },
}
CELLS = {
    name: [
        cell
        for cell in json.loads((DOCS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    for name in SHORT
}


@pytest.fixture
def own_log():
    """A notebook prints the package's log; other tests get theirs back."""
    log = logging.getLogger("transformer_jax")
    before = log.level, log.propagate, list(log.handlers)
    yield
    log.setLevel(before[0])
    log.propagate, log.handlers = before[1:]


def names_after(notebook: str, replaced_after: dict[int, dict] | None = None) -> dict:
    """What a notebook's cells define, run in order with its replacements.

    `replaced_after` has names to replace after a cell, by its number.
    """
    matplotlib.use("agg")
    names: dict = {"__name__": "notebook"}
    replaced = set()
    for number, cell in enumerate(CELLS[notebook], start=1):
        code = "".join(cell["source"])
        for old, new in SHORT[notebook].items():
            if old in code:
                code = code.replace(old, new)
                replaced.add(old)
        exec(compile(code, f"cell {number}", "exec"), names)
        names |= (replaced_after or {}).get(number, {})
    assert replaced == SHORT[notebook].keys()
    return names


def test_the_paper_runs(own_log, capsys):
    names = names_after("the_paper")
    printed = capsys.readouterr().out
    assert "base: 63.0 million parameters" in printed and "BLEU " in printed
    assert names["errors"].pairs == 8


def traced(loss, params, task, steps=0):
    """In place of `learn`, once one model has learned: the loss is only traced, not compiled."""
    batch = task(np.random.default_rng(0))
    assert jax.eval_shape(loss, params, batch, jax.random.key(0)).shape == ()
    return params


def test_attention_around_attention_runs(capsys):
    names = names_after("attention_around_attention", {4: {"learn": traced}})
    printed = [
        line.rpartition("%")[0].split("  ")[0] for line in capsys.readouterr().out.split("\n")
    ]
    asked = ["additive", "none, 4 to 8 words", "gumbel", "penalty"]
    asked += ["gamma 0.3", "copy, names never seen", "serial", "pictures", "calls"]
    assert not set(asked) - set(printed)
    assert names["weights"].sum(-1)[names["calls"].tgt.segments != 0] == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("notebook", "number"), [(name, n) for name in CELLS for n in range(len(CELLS[name]))]
)
def test_outputs_are_stored(notebook, number):
    cell = CELLS[notebook][number]
    code = "".join(cell["source"])
    outputs = cell["outputs"]
    assert not [one for one in outputs if one["output_type"] == "error"]
    draws = "plt.show()" in code or "\ndraw_maps(" in code
    is_drawn = any("image/png" in one.get("data", {}) for one in outputs)
    assert is_drawn == (draws and "def draw_maps" not in code)
    shows = any(word in code for word in ("print(", "show(", "train(", "tested("))
    only_defines = "def show" in code or "def tested" in code
    assert bool(outputs) == (shows and not only_defines)
    assert cell["execution_count"] == number + 1
