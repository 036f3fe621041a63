"""The `quantize` command: matrices in int8, a scale for each output, and an ordinary run."""

import shutil

import jax
import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.commands.test_translate import answers
from tests.fixtures.tiny import random_params, tiny_model
from transformer_jax.api import load
from transformer_jax.model.parameters import in_int8


def sizes(path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_each_output_and_each_subword_has_a_scale():
    """Against NumPy: rounded to 127 steps of the largest value of the output, or of the row."""
    model = tiny_model(num_layers=1)
    params = jax.tree.map(np.array, random_params(model))
    params["decoder_0"]["feed_forward"]["outer"][:, 1] = 0  # an output that is always 0
    small, scales = in_int8(model, params)
    asked = {
        ("embedding", "table"): (1,),
        ("decoder_0", "feed_forward", "outer"): (0,),
        ("encoder_0", "self_attention", "query"): (0,),
        ("encoder_0", "self_attention", "out"): (0, 1),
    }
    for path, axes in asked.items():
        x, narrow, scale = params, small, scales
        for name in path:
            x, narrow, scale = x[name], narrow[name], scale[name]
        x = np.asarray(x)
        largest = np.abs(x).max(axes, keepdims=True)
        assert narrow.dtype == np.int8 and scale.shape == largest.shape, path
        np.testing.assert_allclose(scale[largest > 0], largest[largest > 0] / 127, rtol=1e-6)
        assert np.all(np.abs(narrow * scale - x) <= scale / 2 + 1e-7)
        assert np.all(np.abs(narrow).max(axes)[largest.squeeze(axes) > 0] == 127)
    where = ("encoder_0", "feed_forward_residual", "norm", "scale")
    for name in where:
        small, scales = small[name], scales[name]
    assert small.dtype == np.float32 and not scales.ndim


@pytest.mark.slow("trains a run and quantizes it")
def test_a_quantized_run_translates_and_another_run_starts_from_it(tmp_path, capsys, monkeypatch):
    origin, small = runs.trained_run(), tmp_path / "small"
    assert runs.command("quantize", f"--workdir={origin}", f"--output={small}") == 0
    assert sizes(small / "checkpoints" / "0") < 0.3 * sizes(origin / "checkpoints" / "40")
    assert len(answers(["a dog"], workdir=small, beam_size=None)) == 1
    exact, rounded = load(origin), load(small)
    sides = [["a dog runs"], ["ein Hund"]]
    scores = [run.score(*sides)[0].log_prob for run in (exact, rounded)]
    assert scores[0] != scores[1] and scores[1] == pytest.approx(scores[0], rel=0.02)
    again = tmp_path / "again"
    assert runs.command("quantize", f"--workdir={small}", f"--output={again}") == 0
    trees = [load(run).loaded.translator.params for run in (small, again)]
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), *trees)
    assert runs.train(tmp_path / "tuned", train__init_from=small, train__steps=2) == 0
    pulled = {"train__init_from": small, "train__elastic_weight": 1.0}
    assert runs.train(tmp_path / "pulled", **pulled) == 2
    assert "which was quantized and has no record of its text" in capsys.readouterr().err
    assert runs.command("train", f"--workdir={small}") == 2
    assert "small was quantized and cannot be trained on" in capsys.readouterr().err
    assert runs.command("evaluate", f"--workdir={small}") == 0  # its text is known
    monkeypatch.setattr(np, "isfinite", lambda x: np.zeros(1, bool))
    assert runs.command("quantize", f"--workdir={small}", f"--output={tmp_path / 'nan'}") == 2
    monkeypatch.undo()
    assert "weights that are no numbers" in capsys.readouterr().err
    shutil.rmtree(small / "checkpoints" / "0" / "int8")
    assert runs.command("evaluate", f"--workdir={small}") == 2
    assert "is damaged: int8/" in capsys.readouterr().err
