"""A run that learns from another one: what the teacher predicts, and which teacher it may be."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.training.test_resume import assert_same_run
from transformer_jax.config.changes import with_values
from transformer_jax.decoding.scoring import forced_logits
from transformer_jax.errors import ConfigError
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.training.data import load_data
from transformer_jax.use.loading import load_model
from transformer_jax.use.origin import _check_reads_the_same, with_teacher

STUDENT = {"train__steps": 12, "train__checkpoint_every": 5, "train__valid_every": 12}


@pytest.mark.slow("trains a run")
def test_the_predictions_are_those_of_forced_decoding(tmp_path):
    """A pair that training leaves out, as it is too long, has none."""
    teacher = runs.trained_run()
    config = runs.tiny_config(train__teacher=str(teacher))
    run = RunFolder(tmp_path)
    data = with_teacher(load_data(config, run), config, run)
    pairs, taught = data.train, data.train.taught
    assert data.shape.taught == taught.ids.shape[1] == 8
    assert data.vocabulary.digest == load_model(str(teacher)).vocabulary.digest
    numbers = data.plan.pair_order[[0, 7, -1]].tolist()
    [left_out, *_] = np.setdiff1d(np.arange(len(pairs)), data.plan.pair_order)
    assert not taught.probabilities[slice(*pairs.tgt_offsets[left_out : left_out + 2])].any()
    sides = [pairs.src(i) for i in numbers], [pairs.tgt(i) for i in numbers]
    logits = forced_logits(load_model(str(teacher)).translator, *sides)
    for i, logits_LV in zip(numbers, logits, strict=True):
        own = slice(pairs.tgt_offsets[i], pairs.tgt_offsets[i + 1])
        best = np.argsort(-logits_LV, axis=1, kind="stable")[:, :8]
        exp = np.exp(np.take_along_axis(logits_LV, best, 1).astype(np.float64))
        want = exp / exp.sum(1, keepdims=True)
        np.testing.assert_allclose(taught.probabilities[own], want, atol=1e-3)
        np.testing.assert_array_equal(taught.ids[own][:, 0], best[:, 0])
    again = with_teacher(load_data(config, run), config, run).train.taught  # from the cache
    np.testing.assert_array_equal(again.ids, taught.ids)
    np.testing.assert_array_equal(again.probabilities, taught.probabilities)


@pytest.mark.slow("trains runs")
def test_a_student_learns_logs_and_continues_bit_for_bit(tmp_path, capsys):
    """With its own size, and the teacher's vocabulary without being told."""
    teacher = shutil.copytree(runs.trained_run(), tmp_path / "teacher")
    settings = {**STUDENT, "train__teacher": teacher}
    settings |= {"model__d_model": 8, "vocabulary__size": 350}
    whole = tmp_path / "whole"
    assert runs.train(whole, **settings) == 0
    losses = [r["distillation_loss_per_token"] for r in runs.metrics(whole) if r["kind"] == "train"]
    assert len(losses) == 4 and losses[-1] < losses[0]
    assert (whole / "vocabulary.model").read_bytes() == (teacher / "vocabulary.model").read_bytes()
    assert RunFolder(whole).read_config().vocabulary.size == 400

    killed = shutil.copytree(whole, tmp_path / "killed")
    for step in ("10", "12"):
        shutil.rmtree(killed / "checkpoints" / step)
    assert runs.train(killed, **settings) == 0
    assert_same_run(killed, whole, "12")

    capsys.readouterr()
    without = {name: x for name, x in settings.items() if name != "train__teacher"}
    without["vocabulary__size"] = 400
    assert runs.train(killed, **without) == 2
    assert "holds a run with another teacher" in capsys.readouterr().err
    shutil.rmtree(teacher / "checkpoints" / str(runs.STEPS))  # an earlier checkpoint is the latest
    assert runs.train(killed, **settings) == 2
    assert "or has other weights now" in capsys.readouterr().err


@pytest.mark.slow("trains a run")
def test_a_teacher_of_other_subwords_or_sources_is_refused(tmp_path, capsys):
    teacher = runs.trained_run()
    other = tmp_path / "other"
    assert runs.train(other, train__steps=1, vocabulary__size=350) == 0
    settings = {**STUDENT, "train__teacher": teacher}
    assert runs.train(tmp_path / "a", **settings, train__init_from=other) == 2
    assert "has another vocabulary than this run" in capsys.readouterr().err
    config = runs.tiny_config(train__teacher=str(teacher))
    data = load_data(config, RunFolder(tmp_path / "b"))
    with pytest.raises(ConfigError, match="reads another source than this run"):
        with_teacher(data, with_values(config, {"model.sources": 2}), RunFolder(tmp_path / "b"))
    ways = {"data__src": "de", "data__tgt": "en"}
    assert runs.train(tmp_path / "d", **settings, **ways) == 2
    assert "translates en→de, and this run de→en" in capsys.readouterr().err
    teacher = load_model(str(teacher))
    short = SimpleNamespace(longest=lambda: 40, sources=1)
    stub = SimpleNamespace(model=short, vocabulary=teacher.vocabulary, config=teacher.config)
    with pytest.raises(ConfigError, match="for 40 subwords only. Set data.max_length=40"):
        _check_reads_the_same(stub, data, config)
    assert runs.train(tmp_path / "c", train__teacher=tmp_path) == 2
    assert "holds no run" in capsys.readouterr().err
