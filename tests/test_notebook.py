"""The notebook of the paper: its cells run in order, and its outputs are stored with it."""

import json
import logging
from pathlib import Path

import matplotlib
import pytest

pytestmark = pytest.mark.slow("runs the notebook, which trains")

NOTEBOOK = Path(__file__).parent.parent / "docs" / "the_paper.ipynb"
# A model that is trained in seconds; what it learns does not matter here.
SHORT = {
    "STEPS = 1_000": "STEPS = 101",
    "changes = {": 'changes = {"data.pairs": 500, "vocabulary.size": 500, "model.d_model": 16, '
    '"model.d_ff": 32, "train.tokens_per_batch": 200, "decode.max_length": 512, ',
    'built_in_pairs("test", 200)': 'built_in_pairs("test", 8)',
}


def code_cells():
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


@pytest.fixture
def own_log():
    """The notebook prints the package's log; other tests get theirs back."""
    log = logging.getLogger("transformer_jax")
    before = log.level, log.propagate, list(log.handlers)
    yield
    log.setLevel(before[0])
    log.propagate, log.handlers = before[1:]


def test_the_cells_run_in_order(own_log, capsys):
    matplotlib.use("agg")
    names: dict = {"__name__": "notebook"}
    replaced = set()
    for number, cell in enumerate(code_cells(), start=1):
        code = "".join(cell["source"])
        for old, new in SHORT.items():
            if old in code:
                code = code.replace(old, new)
                replaced.add(old)
        exec(compile(code, f"cell {number}", "exec"), names)
    assert replaced == SHORT.keys()
    printed = capsys.readouterr().out
    assert "base: 63.0 million parameters" in printed and "BLEU " in printed
    assert names["errors"].pairs == 8


@pytest.mark.parametrize("number", range(len(code_cells())))
def test_outputs_are_stored(number):
    cell = code_cells()[number]
    code = "".join(cell["source"])
    outputs = cell["outputs"]
    assert not [one for one in outputs if one["output_type"] == "error"]
    assert ("plt.show()" in code) == any("image/png" in one.get("data", {}) for one in outputs)
    shows = any(word in code for word in ("print(", "show(", "train("))
    assert bool(outputs) == shows or not number
    assert cell["execution_count"] == number + 1
