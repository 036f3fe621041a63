"""The commands `prune` and `quantize`: ordinary, smaller runs, or one line that says why not."""

import dataclasses
import shutil
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.commands.test_translate import answers
from tests.evaluation.test_head_importance import SOURCES, TARGETS, translator_of
from tests.fixtures.tiny import random_params, tiny_model
from transformer_jax.api import load
from transformer_jax.commands import prune
from transformer_jax.commands.prune import checked, kept_heads
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import Config
from transformer_jax.errors import ConfigError
from transformer_jax.evaluation.head_importance import attentions
from transformer_jax.model.parameters import in_int8
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.folder_corpus import Pair
from transformer_jax.use.loading import load_model

# Heads -------------------------------------------------------------------------------------------


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
    # As search reads weights, not as they are kept.
    narrow = runs.copy_of_run(tmp_path / "narrow", decode__weights="bfloat16")
    flags_of_narrow = [f"--workdir={narrow}", "--heads=0.4", "--by=random", "--seed=1"]
    assert runs.command("prune", *flags_of_narrow, f"--output={tmp_path / 'again'}") == 0
    assert RunFolder(tmp_path / "again").read_config().decode.weights == "bfloat16"
    given = {"overrides": {"decode.weights": None}}
    both = (load_model(str(tmp_path / x), **given).translator.params for x in ("random", "again"))
    jax.tree.map(np.testing.assert_array_equal, *both)
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


def test_heads_are_judged_by_pairs_from_all_over_the_split(monkeypatch):
    """As a split of several texts has them one after the other."""
    pairs = [Pair(str(n), "x") for n in range(1_200)]
    monkeypatch.setattr(prune, "pairs_of_split", lambda *_: pairs)
    lines = SimpleNamespace(encode_pairs=lambda some: ([[one] for one in some], ["x"] * len(some)))
    loaded = SimpleNamespace(config=Config(), line_translator=lambda **_: lines)
    numbers = [int(one.src) for [one] in prune._sides(loaded, None)[0]]
    assert len(set(numbers)) == prune.PAIRS
    assert (numbers[0], numbers[250], numbers[-1]) == (0, 601, 1_199)


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


# Matrices in int8, with a scale for each output --------------------------------------------------


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
def test_a_quantized_run_translates_and_another_run_starts_from_it(
    tmp_path, capsys, monkeypatch, caplog
):
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
    assert "which was quantized. Start from a run that was trained in" in capsys.readouterr().err
    assert runs.command("train", f"--workdir={small}") == 2
    assert "small was quantized and cannot be trained on" in capsys.readouterr().err
    assert runs.command("evaluate", f"--workdir={small}") == 0  # its text is known
    assert RunFolder(small).fingerprints() == RunFolder(again).fingerprints()
    assert RunFolder(small).fingerprints() == RunFolder(origin).fingerprints()[:2]
    caplog.clear()
    other = shutil.copytree(runs.tiny_corpus(), tmp_path / "other")
    shutil.copy(other / "test.de", other / "valid.de")
    shutil.copy(other / "test.en", other / "valid.en")
    flags = "--split=valid", f"--config.data.path={other}"
    assert runs.command("evaluate", f"--workdir={small}", *flags) == 0
    assert "the split valid is not that of" in caplog.text
    monkeypatch.setattr(np, "isfinite", lambda x: np.zeros(1, bool))
    assert runs.command("quantize", f"--workdir={small}", f"--output={tmp_path / 'nan'}") == 2
    monkeypatch.undo()
    assert "weights that are no numbers" in capsys.readouterr().err
    shutil.rmtree(small / "checkpoints" / "0" / "int8")
    assert runs.command("evaluate", f"--workdir={small}") == 2
    assert "is damaged: int8/" in capsys.readouterr().err


def test_watched_heads_stay():
    config = ModelConfig(num_layers=2, num_heads=3, watched_heads=1)
    names = ("decoder_0/cross_attention", "decoder_1/cross_attention", "encoder_1/self_attention")
    kept = kept_heads({name: np.array([0.1, 0.3, 0.2]) for name in names}, config, 2)
    # Watched is the layer before the last.
    assert [own.tolist() for own in kept.values()] == [[0, 1], [1, 2], [1, 2]]
