"""Elastic weights: the Fisher information and the pull by hand, and a run near its origin."""

import functools
import itertools
import shutil
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from tests import tiny_runs as runs
from tests.fixtures.tiny import relative_error
from tests.training.test_resume import assert_same_run
from tests.training.test_step import VOCABULARY, Bigrams, bigram_batch, bigram_step, by_hand
from tests.training.test_survival import start_two_processes
from transformer_jax.errors import RunError
from transformer_jax.model.stacked_params import stacked
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.batches import Batch
from transformer_jax.training.data import load_data
from transformer_jax.training.elastic import Anchor, squared_gradients
from transformer_jax.training.step import accumulated_gradients, make_loss_fn, make_update
from transformer_jax.use import origin as origins
from transformer_jax.use.loading import load_model

WEIGHT = 0.7


def row_of(batch: Batch, row: int) -> Batch:
    return jax.tree.map(lambda x: x[row : row + 1], batch)


def test_the_fisher_information_sums_the_squared_gradient_of_each_row():
    _, state = bigram_step()
    batch = bigram_batch(1)
    loss_fn, rows = make_loss_fn(Bigrams(), 0.0), jnp.arange(1)
    found = squared_gradients(
        lambda params, one: loss_fn(params, one, rows, jax.random.key(0)), state.params, batch
    )["table"]
    table = np.asarray(state.params["table"], np.float64)
    wanted = 0.0
    for row in range(len(batch.tgt.ids)):
        if batch.tgt.segments[row].any():
            update = by_hand(table, row_of(batch, row), 0.0)
            wanted = wanted + (update.grad * update.tokens) ** 2
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_an_update_adds_the_pull_to_the_gradient_of_a_subword_s_loss():
    _, state = bigram_step()
    batch, shape = bigram_batch(1), (VOCABULARY, VOCABULARY)
    old, fisher = np.random.default_rng(1).random((2, *shape)).astype(np.float32)
    optimizer = optax.sgd(1.0)
    anchor = Anchor({"table": jnp.asarray(old)}, {"table": jnp.asarray(fisher)})
    state = state._replace(opt_state=optimizer.init(state.params), anchor=anchor)
    grads, sums = accumulated_gradients(
        make_loss_fn(Bigrams(), 0.1), state.params, batch, jax.random.key(0), 1
    )
    found = make_update(optimizer, 10, WEIGHT)(state, batch, grads, sums)
    table = np.asarray(state.params["table"], np.float64)
    wanted = table - by_hand(table, batch, 0.1).grad - 2 * WEIGHT * fisher * (table - old)
    np.testing.assert_allclose(found.params["table"], wanted, rtol=1e-4, atol=1e-5)
    assert found.anchor is anchor


def test_a_changed_text_of_the_origin_is_named_without_advice_for_another_mistake(monkeypatch):
    def changed(*_):
        raise RunError("a/run was trained on other text. Choose another --workdir.")

    monkeypatch.setattr(origins, "load_data", changed)
    origin = SimpleNamespace(path="a/run", read_config=lambda: None)
    with pytest.raises(RunError, match=r"on: a/run was trained on other text\.$"):
        origins._anchor(origin, None, {})


@pytest.mark.slow("trains runs")
def test_a_run_stays_near_its_origin_and_goes_on_without_it(tmp_path):
    """A checkpoint has the anchor: the origin and its text may be gone when the run goes on.

    Two processes of two devices each measure what one does.
    """
    origin, text = runs.copy_of_run(tmp_path / "origin"), tmp_path / "text"
    shutil.copytree(runs.tiny_corpus(), text)
    for side in ("en", "de"):
        lines = runs.read_lines(text / f"train.{side}")
        runs.write_lines(text / f"train.{side}", lines[:20])
    given = {"data__path": str(text), "train__steps": 12, "train__checkpoint_every": 6}
    given |= {"train__valid_every": 6, "train__init_from": str(origin)}
    whole, stopped, free = (tmp_path / name for name in ("whole", "stopped", "free"))
    assert runs.train(free, **given) == 0
    given |= {"train__elastic_weight": 30.0}
    assert runs.train(whole, **given) == 0
    half = {**given, "train__steps": 6}
    assert runs.train(stopped, **half) == 0
    two = start_two_processes(tmp_path / "two", runs.tiny_values(**half, mesh__fsdp=2), tmp_path)
    assert [process.wait(120) for process in two] == [0, 0]
    origin.rename(tmp_path / "elsewhere")
    assert runs.train(stopped, **given) == 0
    assert_same_run(stopped, whole, "12")
    assert runs.train(tmp_path / "two", **given) == 0
    got, want = (runs.arrays(run / "checkpoints" / "12") for run in (tmp_path / "two", whole))
    assert max(relative_error(got[name], want[name]) for name in want if "anchor" in name) < 1e-5
    start = runs.arrays(tmp_path / "elsewhere" / "checkpoints" / str(runs.STEPS))
    fisher = runs.arrays(whole / "checkpoints" / "12")
    names = [name for name in start if name.startswith("params")]
    assert all((fisher[f"rest.anchor.{name}"] == start[name]).all() for name in names)

    def moved(workdir):  # as the penalty counts it
        own = runs.arrays(workdir / "checkpoints" / "12")
        weights = (fisher[f"rest.anchor.{name.replace('params', 'fisher')}"] for name in names)
        return sum(
            float((f * (own[name] - start[name]) ** 2).sum())
            for f, name in zip(weights, names, strict=True)
        )

    assert 0 < moved(whole) < 0.3 * moved(free)

    # The mean over rows of the origin's own text, of the likelihood without smoothing.
    run = RunFolder(tmp_path / "elsewhere")
    data, model = load_data(run.read_config(), run), load_model(str(run.path)).model
    loss_fn, params = make_loss_fn(model, 0.0), stacked(load_model(str(run.path)).translator.params)
    batches = [*itertools.islice(data.train_batches(None, 0), 512 // data.shape.rows)]
    compute = jax.jit(functools.partial(squared_gradients, loss_fn))
    parts = [compute(params, batch) for batch in batches]
    wanted = jax.tree.map(lambda *x: sum(x) / 512, *parts)["embedding"]["table"]
    found = fisher["rest.anchor.fisher.embedding.table"]
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-6)
