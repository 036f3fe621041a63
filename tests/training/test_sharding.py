"""The same update on every mesh, and every large array divided."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from transformer_jax.config import Config, MeshConfig, ModelConfig
from transformer_jax.errors import ConfigError
from transformer_jax.model.transformer import Transformer
from transformer_jax.training.optimizer import make_optimizer
from transformer_jax.training.sharding import AXES, make_mesh, tree_shardings
from transformer_jax.training.state import init_state

ROOT = Path(__file__).parents[2]
# (data, fsdp, tensor, micro-batches)
ONE = (1, 1, 1, 1)
RUNS = [ONE, (8, 1, 1, 1), (2, 2, 2, 2), (1, 8, 1, 1), (1, 1, 8, 1)]


@pytest.fixture(scope="module")
def runs():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.sharded_run", json.dumps(RUNS)],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(zip(RUNS, map(json.loads, done.stdout.splitlines()), strict=True))


@pytest.mark.parametrize("mesh", RUNS[1:], ids=str)
def test_two_updates_with_dropout_are_the_same_on_every_mesh(runs, mesh):
    got, want = runs[mesh], runs[ONE]
    assert got["window"] == pytest.approx(want["window"], rel=1e-5)
    assert got["weights"] == pytest.approx(want["weights"], rel=1e-6)
    assert (got["skipped"], got["window"]["steps"]) == (0, 2)


@pytest.mark.parametrize("mesh", RUNS, ids=str)
def test_rows_are_divided_over_data_and_fsdp(runs, mesh):
    data, fsdp, tensor, _ = mesh
    assert runs[mesh]["rows_a_device"] == [16 // (data * fsdp)] * (data * fsdp * tensor)


def test_minus_1_takes_the_devices_that_are_left_over(runs):
    left_over = [runs[mesh]["left_over"] for mesh in RUNS]
    assert left_over == [[8, 1, 1], [8, 1, 1], [2, 2, 2], [1, 8, 1], [1, 1, 8]]


def test_fsdp_and_tensor_divide_the_state_and_data_repeats_it(runs):
    share = {mesh: run["share_of_the_state"] for mesh, run in runs.items()}
    assert share[ONE] == share[(8, 1, 1, 1)] == 1
    # Gains and biases, which are repeated, are a few percent of so small a model.
    assert share[(1, 8, 1, 1)] == pytest.approx(1 / 8, abs=0.06)
    assert share[(1, 1, 8, 1)] == pytest.approx(1 / 8, abs=0.06)
    assert share[(2, 2, 2, 2)] == pytest.approx(1 / 4, abs=0.06)


MESH = AbstractMesh((2, 2, 2), AXES)


def divided(model: ModelConfig, mesh=MESH):
    """{path: (shape, spec)} of the whole state."""
    config = Config(model=model)
    optimizer = make_optimizer(config)
    transformer = Transformer(model, 37_000)
    state = jax.eval_shape(lambda: init_state(config, transformer, optimizer))
    shardings = jax.tree.leaves(tree_shardings(state, mesh))
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {
        jax.tree_util.keystr(path): (leaf.shape, sharding.spec)
        for (path, leaf), sharding in zip(leaves, shardings, strict=True)
    }


@pytest.mark.parametrize(
    "changes", [{}, {"norm": "pre", "positions": "learned", "tie_embeddings": False}], ids=str
)
def test_no_large_array_of_the_state_is_repeated(changes):
    arrays = divided(ModelConfig(num_layers=1, **changes))
    matrices = {path: x for path, x in arrays.items() if len(x[0]) > 1}
    # Three attentions of 4, two feed-forward networks of 2, the embeddings; and Adam's moments.
    assert len(matrices) == 3 * (3 * 4 + 2 * 2 + (5 if changes else 1))
    for path, (shape, spec) in matrices.items():
        used = {axis for axis in spec if axis}
        assert used == ({"fsdp"} if "positions" in path else {"fsdp", "tensor"}), path
        assert all(n % 2 == 0 for n, axis in zip(shape, spec, strict=True) if axis)
    small = {path: shape for path, (shape, spec) in arrays.items() if not any(spec)}
    assert max(math.prod(shape) for shape in small.values()) == 512


def test_adam_s_moments_lie_with_their_parameters():
    arrays = divided(ModelConfig(num_layers=1))
    for path, (_, spec) in arrays.items():
        if ".params" in path:
            name = path.split(".params")[1]
            copies = [s for p, (_, s) in arrays.items() if p.endswith(name)]
            assert copies == [spec] * 3, name


def test_a_dimension_that_an_axis_does_not_divide_stays_whole():
    one_head = divided(ModelConfig(num_layers=1, num_heads=1, d_model=510, d_ff=2049))
    attention = ".params['decoder_0']['cross_attention']"
    assert one_head[f"{attention}['query']"] == ((510, 1, 510), P("fsdp", None, None))
    assert one_head[f"{attention}['out']"] == ((1, 510, 510), P(None, None, "fsdp"))
    inner = one_head[".params['decoder_0']['feed_forward']['inner']"]
    assert inner == ((510, 2049), P("fsdp", None))


def test_a_mesh_that_this_machine_cannot_have_is_refused():
    devices = [object()] * 6
    with pytest.raises(ConfigError, match="mesh.tensor=7 needs 7 devices; this machine has 6"):
        make_mesh(MeshConfig(data=-1, fsdp=1, tensor=7), devices)
    with pytest.raises(ConfigError, match="mesh.data=2, mesh.fsdp=2, mesh.tensor=2 needs 8"):
        make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), devices)
    with pytest.raises(ConfigError, match="leaves some of this machine's 6 devices idle: 4 does"):
        make_mesh(MeshConfig(data=-1, fsdp=4), devices)
