"""The `prune` command: an ordinary, smaller run, or one line that says why not."""

import dataclasses
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.commands.test_translate import answers
from tests.evaluation.test_head_importance import SOURCES, TARGETS, translator_of
from tests.fixtures.tiny import random_params, tiny_model
from transformer_jax.commands.prune import checked
from transformer_jax.config.schema import Config
from transformer_jax.errors import ConfigError
from transformer_jax.evaluation.head_importance import attentions
from transformer_jax.use.loading import load_model


@pytest.mark.slow("trains a run and prunes it")
def test_a_pruned_run_translates_and_another_run_starts_from_it(tmp_path, capsys, caplog):
    origin = runs.trained_run()
    flags = [f"--workdir={origin}", "--heads=0.4"]
    for name, more in (("best", []), ("random", ["--by=random", "--seed=1"])):
        assert runs.command("prune", *flags, f"--output={tmp_path / name}", *more) == 0
        loaded = load_model(str(tmp_path / name))
        assert loaded.config.model.num_heads == 1 and loaded.config.model.head_sizes == (8, 8)
        assert len(answers(["a dog"], workdir=tmp_path / name, beam_size=None)) == 1
    assert "importance of the heads of decoder_0/cross_attention" in caplog.text
    more = {"model__num_heads": 1, "model__d_k": 8, "model__d_v": 8, "train__steps": 2}
    assert runs.train(tmp_path / "tuned", train__init_from=tmp_path / "best", **more) == 0
    assert runs.command("evaluate", f"--workdir={tmp_path / 'best'}") == 0  # its text is known
    assert runs.command("train", f"--workdir={tmp_path / 'best'}") == 2
    assert "best was pruned and cannot be trained on" in capsys.readouterr().err
    for wrong, message in [
        ([flags[0], "--heads=1"], "not between 0 and 1"),
        ([*flags, "--by=luck"], "importance or random"),
        ([f"--workdir={tmp_path / 'best'}", "--heads=0.5"], "no head to spare"),
    ]:
        assert runs.command("prune", f"--output={tmp_path / 'new'}", *wrong) == 2
        assert message in capsys.readouterr().err
    shutil.copytree(runs.tiny_corpus(), tmp_path / "text")
    for suffix in ("en", "de"):
        (tmp_path / "text" / f"valid.{suffix}").write_text("\n" * 24)
    blank = f"--config.data.path={tmp_path / 'text'}"
    for by in ("importance", "random"):
        more = f"--by={by}", f"--output={tmp_path / 'new'}", blank
        assert runs.command("prune", *flags, *more) == 2
        assert "No pair of the validation text" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "changes",
    [{"positions": "alibi"}, {"normalizer": "talking_heads"}, {"positions": "t5"}],
    ids=str,
)
def test_heads_that_depend_on_each_other_are_refused(changes):
    """ALiBi's slopes follow from their number; talking heads mix; T5's biases are of all layers."""
    model = tiny_model(num_layers=1, **changes)
    d_k, d_v = model.config.head_sizes
    small = dataclasses.replace(model.config, num_heads=2, d_k=d_k, d_v=d_v)
    kept = {where: np.array([n % 2, 2]) for n, where in enumerate(attentions(model))}
    translator = translator_of(model, random_params(model))
    vocabulary = SimpleNamespace(sizes=model.sizes)
    loaded = SimpleNamespace(model=model, translator=translator, vocabulary=vocabulary)
    with pytest.raises(ConfigError, match="heads are not independent"):
        checked(loaded, Config(model=small), kept, (SOURCES, TARGETS))
