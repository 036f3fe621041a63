"""Both directions of translation, trained to agree: the update, and whole runs."""

import dataclasses
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.fixtures.references import along_a_direction
from tests.fixtures.tiny import (
    SIZES,
    VOCABULARY,
    lay_out,
    model_inputs,
    random_pairs,
    random_params,
    relative_error,
)
from tests.training.test_resume import assert_same_run
from transformer_jax.config.changes import of_other_direction
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.train import TrainConfig
from transformer_jax.errors import RunError
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.training.optimizer import make_optimizer
from transformer_jax.training.state import AGREEMENT, init_state
from transformer_jax.training.step import make_train_step
from transformer_jax.training.two_directions import make_two_way_loss, make_two_way_step

LENGTHS = [(9, 7), (3, 9), (10, 2), (5, 5), (1, 1), (7, 8)]
PACKED = [[0, 1], [2, 4], [3], [5]]
# Rows are as long on both sides, so that one program serves both directions.
BATCH = lay_out(random_pairs(0, LENGTHS), PACKED, 17, 17)
TRAIN = TrainConfig(
    warmup_steps=2, peak_learning_rate=0.05, adam_epsilon=1e-6, clip_norm=0.5, coverage_weight=0.3
)


def model_of(**changes):
    return make_model(ModelConfig(**{**SIZES, "num_layers": 1, **changes}), VOCABULARY, watch=True)


def watched(model, params, batch):
    """The attention of a model that is given a batch, by its own `decode`."""
    source, target = model_inputs(batch)
    encoded = model.apply({"params": params}, source, method="encode")
    return model.apply({"params": params}, encoded, source, target, method="decode")[1]


def test_the_objective_rewards_agreement_and_its_gradient_is_that_of_finite_differences():
    """In double precision: -gamma tr(A B^T), A and B by the models' own `decode`."""
    with jax.enable_x64(True):
        model = model_of(dropout=0.0, dtype="float64")
        both = tuple(
            jax.tree.map(lambda x: jnp.asarray(x, jnp.float64), random_params(model, seed))
            for seed in (0, 1)
        )
        gamma = 0.7
        loss = make_two_way_loss(model, dataclasses.replace(TRAIN, agreement_weight=gamma))

        def objective(params, batch):
            sums = loss(params, batch)
            return sums.objective, sums

        compute = jax.jit(jax.value_and_grad(objective, has_aux=True))
        (value, sums), gradient = compute(both, BATCH)
        A_BLM, B_BML = jax.jit(
            lambda params: (
                watched(model, params[0], BATCH),
                watched(model, params[1], BATCH.swapped()),
            )
        )(both)
        A_BLM, B_BML = np.asarray(A_BLM), np.asarray(B_BML)
        trace = 0.0
        for b, at, place in np.ndindex(A_BLM.shape):
            if 0 != BATCH.tgt.segments[b, at] == BATCH.src.segments[b, place]:
                trace += A_BLM[b, at, place] * B_BML[b, place, at]
        assert float(sums.agreement) == pytest.approx(trace, rel=1e-9) and trace > 1
        alone = sums.forward.objective + sums.reverse.objective
        assert float(value) == pytest.approx(float(alone) - gamma * trace, rel=1e-9)
        assert sums.forward.tokens == 32 and sums.reverse.tokens == 35

        slope, want = along_a_direction(lambda own: compute(own, BATCH)[0][0], gradient, both)
        assert slope == pytest.approx(want, rel=1e-5)
        # The models change places with the sides of the batch.
        (other_way, _), _ = compute(both[::-1], BATCH.swapped())
        assert float(other_way) == pytest.approx(float(value), rel=1e-9)


@pytest.mark.slow("trains four runs")
def test_without_a_bonus_each_direction_takes_the_steps_of_a_run_of_its_own():
    """In two micro-batches, with dropout, clipping and another auxiliary loss."""
    train = dataclasses.replace(TRAIN, agreement_weight=0.0, accumulate_steps=2)
    model = model_of(dropout=0.2)
    optimizer = make_optimizer(train, model.config.d_model)
    step = jax.jit(make_two_way_step(model, optimizer, train))
    alone = jax.jit(make_train_step(model, optimizer, TRAIN))
    # The states differ in parameters and dropout key.
    start = jax.jit(lambda seed: init_state(seed, model, optimizer, ("coverage", AGREEMENT)))
    states = (start(3), start(4))
    wanted = [state._replace(auxiliary={"coverage": jnp.float32(0)}) for state in states]
    for _ in range(2):
        states = step(states, BATCH)
        wanted = [alone(wanted[0], BATCH), alone(wanted[1], BATCH.swapped())]
    for state, want in zip(states, wanted, strict=True):
        for got, right in ((state.params, want.params), (state.opt_state, want.opt_state)):
            flat_got, flat_right = (jax.flatten_util.ravel_pytree(tree)[0] for tree in (got, right))
            assert relative_error(flat_got, flat_right) < 1e-4
        np.testing.assert_allclose(state.window, want.window, rtol=1e-4)
        assert state.auxiliary["coverage"] == pytest.approx(float(want.auxiliary["coverage"]))
        assert 1 < state.auxiliary[AGREEMENT] < 2 * sum(map(min, LENGTHS))
    assert states[0].window.tgt_tokens == 2 * 32 == states[1].window.src_tokens


# Runs --------------------------------------------------------------------------------------------

SETTINGS = {"train__steps": 12, "train__checkpoint_every": 5, "train__valid_every": 6}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The folder of a run of both directions."""
    folder = tmp_path_factory.mktemp("agreement") / "run"
    assert runs.train(folder, train__agreement_weight=0.0, **SETTINGS) == 0
    return folder


def remove(folder, *steps):
    for step in steps:
        shutil.rmtree(folder / "checkpoints" / str(step))


@pytest.mark.slow("trains runs that are killed")
def test_a_kill_between_the_two_checkpoints_of_a_step_changes_nothing(trained, tmp_path, caplog):
    """The run is killed when step 10 is in one folder; step 5 is inside a window of metrics."""
    killed = shutil.copytree(trained, tmp_path / "killed")
    remove(killed, 10, 12)
    remove(killed / "reverse", 12)
    with caplog.at_level("WARNING"):
        assert runs.train(killed, train__agreement_weight=0.0, **SETTINGS) == 0
    assert "is now 10.unused" in caplog.text
    assert (killed / "reverse" / "checkpoints" / "10.unused").is_dir()
    assert_same_run(killed, trained, "12")
    assert_same_run(killed / "reverse", trained / "reverse", "12")
    agreed = [r["agreement_per_token"] for r in runs.metrics(killed) if r["kind"] == "train"]
    assert all(0 < one < 1 for one in agreed) and len(agreed) == 4


@pytest.mark.slow("trains runs")
def test_each_direction_is_an_ordinary_run(trained, tmp_path, capsys):
    """Both translate; neither trains alone, and without the other folder nothing is lost."""
    config, other = (RunFolder(one).read_config() for one in (trained, trained / "reverse"))
    assert other == of_other_direction(config)
    assert (other.data.src, other.data.tgt) == (config.data.tgt, config.data.src) == ("de", "en")
    moved = shutil.copytree(trained / "reverse", tmp_path / "moved")
    capsys.readouterr()
    text = runs.write_lines(tmp_path / "src", ["Ein Hund sieht den Mann ."])
    files = [f"--src={text}", f"--ref={text}"]
    assert runs.command("evaluate", f"--workdir={moved}", "--beam_size=1", *files) == 0
    assert "de→en" in capsys.readouterr().out

    changes = {"train__agreement_weight": 0.0, **SETTINGS}
    assert runs.train(trained / "reverse", data__src="de", data__tgt="en", **changes) == 2
    assert f"is trained together with {trained}" in capsys.readouterr().err
    alone = shutil.copytree(trained, tmp_path / "alone", ignore=shutil.ignore_patterns("reverse"))
    before = runs.contents(alone / "checkpoints")
    assert runs.train(alone, **changes, train__keep_last=4) == 2
    assert "(3 tried). Put the missing ones back" in capsys.readouterr().err
    assert runs.contents(alone / "checkpoints") == before


@pytest.mark.slow("trains runs")
def test_a_run_can_start_from_two_trained_directions(trained, tmp_path, capsys):
    """After one step of Adam, of at most 1e-3, the weights are still near those it began with."""
    settings = {**SETTINGS, "train__steps": 1, "train__agreement_weight": 0.0}
    origin = {"train__init_from": trained}
    assert runs.train(tmp_path / "two", **settings, **origin) == 0
    for name in (".", "reverse"):
        got, want = (
            runs.arrays(folder / name / "checkpoints" / step)
            for folder, step in ((tmp_path / "two", "1"), (trained, "12"))
        )
        for key in (key for key in want if key.startswith("params")):
            np.testing.assert_allclose(got[key], want[key], atol=1.1e-3, err_msg=key)
    origin["train__init_from"] = trained / "reverse"
    assert runs.train(tmp_path / "none", **settings, **origin) == 2
    assert f"{trained / 'reverse' / 'reverse'} holds no run" in capsys.readouterr().err


def test_the_folder_of_a_run_that_is_no_direction_of_another_may_be_called_reverse(tmp_path):
    RunFolder(tmp_path / "reverse").check_can_train()
    with pytest.raises(RunError):
        RunFolder(tmp_path / "reverse").read_config()
