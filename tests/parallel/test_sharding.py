"""The same update on every mesh, and every large array divided."""

import json
import math
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh
from jax.sharding import PartitionSpec as P

from tests.fixtures.tiny import relative_error
from tests.parallel.sharded_run import STEPS
from tests.tiny_runs import free_port
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import MeshConfig
from transformer_jax.config.train import TrainConfig
from transformer_jax.decoding.rows import SearchShape, empty_rows, row_shardings
from transformer_jax.errors import ConfigError
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import abstract_params, axis_names, product_axes
from transformer_jax.parallel.mesh import AXES, decoding_mesh, make_mesh, shardings
from transformer_jax.training.optimizer import make_optimizer
from transformer_jax.training.program import check_rows
from transformer_jax.training.state import init_state, state_names

pytestmark = pytest.mark.slow("each case trains in processes with several devices")

ROOT = Path(__file__).parents[2]
# (data, fsdp, tensor, micro-batches)
SHAPES = [(1, 1, 1, 1), (8, 1, 1, 1), (1, 1, 8, 1), (2, 2, 2, 4)]
MESHES = [(*shape, "transformer") for shape in SHAPES]
RECURRENT = [(*shape, "recurrent") for shape in [(1, 1, 1, 1), (2, 2, 2, 4)]]
FUSED = (2, 2, 2, 1, "fused")
RUNS = [*MESHES, *RECURRENT, FUSED]
ONE = {"transformer": MESHES[0], "recurrent": RECURRENT[0], "fused": MESHES[0]}
# On 2 processes of 2 devices each: tensor spans both in the first mesh, fsdp in the second. Data
# spans both in tests/training/test_survival.py.
OF_TWO = [(*shape, "transformer") for shape in [(1, 1, 4, 1), (1, 2, 2, 4)]]
OTHERS = [mesh for mesh in RUNS if mesh not in ONE.values()]
SEARCHED = [mesh for mesh in OTHERS if mesh != FUSED]


def output(program: str, devices: int, *arguments: object) -> str:
    """The output of a program of this folder, run with that number of devices."""
    flags = os.environ.get("XLA_FLAGS", "")
    flags += f" --xla_force_host_platform_device_count={devices}"
    done = subprocess.run(
        [sys.executable, "-m", f"tests.parallel.{program}", *map(str, arguments)],
        env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def results(folder: Path, meshes: list) -> dict:
    """What sharded_run.py wrote of each mesh."""
    found = {}
    for mesh in meshes:
        name = "-".join(map(str, mesh))
        arrays = dict(np.load(folder / f"{name}.npz"))
        found[mesh] = arrays | json.loads((folder / f"{name}.json").read_text())
    return found


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("one")
    output("sharded_run", 8, folder, json.dumps(RUNS))
    return results(folder, RUNS)


@pytest.fixture(scope="module")
def runs_of_two(tmp_path_factory):
    folder = tmp_path_factory.mktemp("two")
    arguments = folder, json.dumps(OF_TWO), free_port()
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda process: output("sharded_run", 2, *arguments, process), (1, 0)))
    return results(folder, OF_TWO)


def assert_the_same_training(got, want):
    np.testing.assert_allclose(got["losses"], want["losses"], rtol=1e-5)
    assert relative_error(got["first_gradient"], want["first_gradient"]) < 1e-5
    assert relative_error(got["params"], want["params"]) < 1e-4
    assert (got["skipped"], got["steps"]) == (0, STEPS)


@pytest.mark.parametrize("mesh", OTHERS, ids=str)
def test_ten_updates_with_dropout_are_the_same_on_every_mesh(runs, mesh):
    want = runs[ONE[mesh[-1]]]
    assert len(set(np.round(want["losses"], 3))) == STEPS
    assert_the_same_training(runs[mesh], want)


def test_the_fused_loss_is_divided_over_rows(runs):
    assert runs[FUSED]["loss_error"] < 2e-5


@pytest.mark.parametrize("mesh", SEARCHED, ids=str)
def test_search_finds_the_same_on_every_mesh(runs, mesh):
    want = runs[ONE[mesh[-1]]]["translations"]
    assert runs[mesh]["translations"] == want
    assert len(set(map(tuple, want))) > 5 and len({len(ids) for ids in want}) > 3


def test_devices_that_wait_for_one_another_start_one_search_at_a_time(runs):
    """Two programs that start in different orders on two devices can wait for each other forever.

    Two lanes search at once. Without a lock they start two of them here.
    """
    assert {runs[mesh]["started_at_once"] for mesh in SEARCHED} == {1}


@pytest.mark.parametrize("mesh", OF_TWO, ids=str)
def test_two_processes_are_one_run(runs, runs_of_two, mesh):
    one = runs[ONE[mesh[-1]]]
    assert_the_same_training(runs_of_two[mesh], one)
    if mesh == OF_TWO[-1]:  # a process searches on its own devices, whatever spans the processes
        assert runs_of_two[mesh]["translations"] == one["translations"]


@pytest.mark.parametrize("mesh", RUNS, ids=str)
def test_rows_are_divided_over_data_and_fsdp(runs, mesh):
    data, fsdp, tensor, *_ = mesh
    assert runs[mesh]["rows_a_device"] == [32 // (data * fsdp)] * (data * fsdp * tensor)


def test_fsdp_and_tensor_divide_the_state_and_data_repeats_it(runs):
    share = {mesh[:4]: runs[mesh]["share_of_the_state"] for mesh in MESHES}
    assert share[(1, 1, 1, 1)] == share[(8, 1, 1, 1)] == 1
    # Gains and biases, which are repeated, are a few percent of so small a model.
    assert share[(1, 1, 8, 1)] == pytest.approx(1 / 8, abs=0.06)
    assert share[(2, 2, 2, 4)] == pytest.approx(1 / 4, abs=0.06)


MESH = AbstractMesh((2, 2, 2), AXES)


def bytes_of(arrays, mesh=(1, 1, 1)) -> float:
    """Of arrays (shape, spec) of 4 bytes an entry, what one device of a mesh holds."""
    ways = dict(zip(AXES, mesh, strict=True))

    def parts(axes) -> int:
        return math.prod(ways[axis] for axis in ([axes] if isinstance(axes, str) else axes or ()))

    return sum(4 * math.prod(shape) / math.prod(map(parts, spec)) for shape, spec in arrays)


def by_path(tree, specs):
    """{path: (shape, spec)} of a tree of arrays and a tree of PartitionSpecs."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path): (leaf.shape, spec)
        for (path, leaf), spec in zip(leaves, jax.tree.leaves(specs), strict=True)
    }


def specs_of(tree, names, mesh):
    return jax.tree.map(lambda sharding: sharding.spec, shardings(tree, names, mesh))


def divided(config: ModelConfig, optimizer="adam"):
    """{path: (shape, spec)} of the whole state, whose layers are stacked."""
    model = make_model(config, 37_000)
    train = TrainConfig(optimizer=optimizer)
    optimizer = make_optimizer(train, config.d_model, product_axes(model))
    state = jax.eval_shape(lambda: init_state(0, model, optimizer))
    return by_path(state, specs_of(state, state_names(model, state), MESH))


@pytest.mark.parametrize("optimizer", ["adam", "muon"])
def test_an_optimizer_s_moments_are_divided_as_their_parameters(optimizer):
    arrays = divided(ModelConfig(num_layers=1), optimizer=optimizer)
    found = set()
    for path, (shape, spec) in arrays.items():
        if ".params" in path:
            name = path.split(".params")[1]
            copies = [x for p, x in arrays.items() if p.endswith(name)]
            assert copies == [(shape, spec)] * len(copies), name
            found.add(len(copies))
    # With Adam's two moments three arrays. Of a matrix, muon has one moment.
    assert found == ({3} if optimizer == "adam" else {2, 3})


def test_a_dimension_that_an_axis_does_not_divide_stays_whole():
    one_head = divided(ModelConfig(num_layers=1, num_heads=1, d_model=510, d_ff=2049))
    attention = ".params['decoder_layers']['cross_attention']"
    assert one_head[f"{attention}['query']"] == ((1, 510, 1, 510), P(None, "fsdp", None, None))
    assert one_head[f"{attention}['out']"] == ((1, 1, 510, 510), P(None, None, None, "fsdp"))
    inner = one_head[".params['decoder_layers']['feed_forward']['inner']"]
    assert inner == ((1, 510, 2049), P(None, "fsdp", None))


# Every model -------------------------------------------------------------------------------------

# With the models that train above, these have every part that a mesh treats in its own way.
WITH_OTHER_PARTS = "together", "average", "agreement", "reinforce", "consistency", "muon"
WITH_OTHER_PARTS += ("distillation", "risk", "mask_predict", "ctc", "back_translation")


@pytest.fixture(scope="module")
def gradients():
    return json.loads(output("sharded_gradients", 8, *WITH_OTHER_PARTS))


@pytest.mark.parametrize("name", WITH_OTHER_PARTS)
def test_the_gradient_is_the_same_on_a_mesh_with_micro_batches(gradients, name):
    error, norm = gradients[name]
    assert error < 1e-5 and norm > 1


SIDES = ("transformer", "recurrent")
PAIRS = [{"encoder": encoder, "decoder": decoder} for encoder in SIDES for decoder in SIDES]
VARIANTS = [
    {"attention_bias": True, "output_bias": True},
    {"attention_gate": True},
    {"normalizer": "talking_heads"},
    {"score": "additive"},
    {"attention_memory": "coverage"},
    {"attention_memory": "coverage_gru"},
    {"decoder": "linear"},
    {"attention_memory": "coverage_embedding"},
    {"cross_normalizer": "chunkwise"},
    {"attention_memory": "coverage", "cross_score": "additive", "encoder": "recurrent"},
    {"positions": "learned", "tie_embeddings": False},
    *({"output": output} for output in ("copy", "history", "marginal")),
]
WITH_OTHER_MATRICES = [
    {**PAIRS[3], "tie_embeddings": False},
    {"activation": "glu"},
    {"attention_gate": True},
]
DIVISIBLE = {"num_layers": 1, "d_model": 16, "num_heads": 4, "d_k": 3, "d_v": 5, "d_ff": 24}
DIVISIBLE |= {"d_hidden": 8}


def divisible_model(changes):
    return make_model(ModelConfig(**{**DIVISIBLE, **changes}), 1000)


@pytest.mark.parametrize("mesh", [(1, 2, 2), (1, 4, 1), (1, 1, 4), (2, 2, 2)], ids=str)
@pytest.mark.parametrize("changes", [*PAIRS, *WITH_OTHER_MATRICES], ids=str)
def test_a_device_holds_exactly_its_part_of_the_matrices(changes, mesh):
    devices = AbstractMesh(mesh, AXES)
    model = divisible_model(changes)
    shapes = abstract_params(model)
    arrays = by_path(shapes, specs_of(shapes, axis_names(model), devices)).values()
    matrices = [(shape, spec) for shape, spec in arrays if len(shape) > 1]
    assert len(matrices) >= 12
    assert bytes_of(matrices, mesh) * 4 == bytes_of(matrices)


@pytest.mark.parametrize("changes", [*PAIRS, *VARIANTS], ids=str)
def test_search_divides_memory_and_cache_by_rows_and_heads(changes):
    """The tensor axis divides the heads, and never the beams or the source's positions.

    Every size is even, so each of them could be divided. An earlier version of the code counted
    axes from the end, and divided the beams of the cache and the source's positions instead; this
    test fails there.
    """
    sizes = {"num_heads": 6, "d_k": 4, "d_v": 10, "max_positions": 64}
    model = divisible_model({**sizes, **changes})
    shape = SearchShape(
        rows=12,
        together=4,
        src_length=20,
        beam_size=2,
        n_best=2,
        size=30,
        max_extra_length=10,
        penalizes_coverage=True,
    )
    rows = jax.eval_shape(lambda: empty_rows(model, shape))
    mesh = AbstractMesh((1, 2, 2), AXES)
    places = jax.tree.map(lambda sharding: sharding.spec, row_shardings(model, shape, mesh))
    arrays = by_path(rows, places)
    kept = {path: x for path, x in arrays.items() if ".memory" in path or ".cache" in path}
    with_heads = 0
    for path, (sizes, spec) in arrays.items():
        spec = (*spec, *(None,) * (len(sizes) - len(spec)))
        has_heads = path in kept and 6 in sizes
        heads = sizes.index(6) if has_heads else None
        with_heads += has_heads
        for axis, size in enumerate(sizes):
            want = ("data", "fsdp") if axis == 0 else "tensor" if axis == heads else None
            assert spec[axis] == want, (path, axis, size)
    # Blocks of 16 and 14 positions, and the source: keys and values of each.
    # A linear decoder has its state instead of the blocks: two arrays.
    own = {"transformer": 6, "linear": 4}.get(model.config.decoder, 0)
    state = 2 if model.config.attention_memory or model.config.cross_normalizer else 0
    assert with_heads == own + state
    assert len(kept) > with_heads


def test_a_mesh_that_this_machine_cannot_have_is_refused():
    devices = [object()] * 6
    with pytest.raises(ConfigError, match="mesh.tensor=7 needs 7 devices, and there are 6"):
        make_mesh(MeshConfig(data=-1, fsdp=1, tensor=7), devices)
    with pytest.raises(ConfigError, match="mesh.data=2, mesh.fsdp=2, mesh.tensor=2 needs 8"):
        make_mesh(MeshConfig(data=2, fsdp=2, tensor=2), devices)
    with pytest.raises(ConfigError, match="leaves some of the 6 devices idle: 4 does"):
        make_mesh(MeshConfig(data=-1, fsdp=4), devices)


def test_rows_that_do_not_divide_over_devices_and_micro_batches_are_refused():
    mesh = AbstractMesh((2, 3, 5), AXES)
    check_rows(TrainConfig(accumulate_steps=2), mesh, 24)
    for rows in (6, 8, 18):
        with pytest.raises(ConfigError, match=f"{rows} rows .* 2 x 3 devices x 2 micro-batches"):
            check_rows(TrainConfig(accumulate_steps=2), mesh, rows)


def test_every_process_has_devices_in_the_mesh(monkeypatch):
    monkeypatch.setattr(jax, "device_count", lambda: 6)
    monkeypatch.setattr(jax, "local_device_count", lambda: 3)
    with pytest.raises(ConfigError, match="uses 4 of the 6 devices of all processes"):
        make_mesh(MeshConfig(data=2, fsdp=2), [object()] * 6)


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (MeshConfig(data=1, fsdp=2, tensor=2), (2, 2, 2)),  # all devices, whatever data was
        (MeshConfig(data=2, fsdp=-1, tensor=2), (1, 4, 2)),
        (MeshConfig(fsdp=3), (8, 1, 1)),  # it does not divide them
        (MeshConfig(fsdp=4, tensor=4), (8, 1, 1)),
    ],
    ids=str,
)
def test_search_uses_all_devices_of_its_process_on_the_run_s_mesh_if_it_fits(
    config, sizes, monkeypatch
):
    monkeypatch.setattr(jax, "local_devices", lambda: [object()] * 8)
    monkeypatch.setattr(jax, "make_mesh", lambda sizes, *_, **__: sizes)
    assert decoding_mesh(config) == sizes
