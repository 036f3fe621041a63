"""A run that does not fit into the machine is refused before data are read or anything compiles."""

import time
from types import SimpleNamespace

import pytest

from tests.tiny_runs import command, tiny_config, train
from tests.training import closed_forms
from transformer_jax.config.schema import MeshConfig
from transformer_jax.errors import ConfigError
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.training.program import BatchShape
from transformer_jax.use import description as limits

GIB = limits.GIB


def test_absurd_lengths_are_refused_at_once(tmp_path, capsys):
    start = time.monotonic()
    assert train(tmp_path / "run", train__row_length=10**8) == 2
    assert time.monotonic() - start < 10
    error = capsys.readouterr().err
    assert "The model's state and one batch alone need" in error and error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_the_state_and_the_batch_are_counted_by_device(monkeypatch):
    """16 bytes a parameter; a position has three int32 and a vector of d_model."""
    config = tiny_config()
    shape = BatchShape(rows=8, src_length=48, tgt_length=40)
    mesh = make_mesh(MeshConfig())
    need = 16 * closed_forms.parameters(config.model, 512) + 8 * (48 + 40) * (12 + 4 * 16)
    monkeypatch.setattr(limits, "device_memory", lambda mesh: need)
    limits.check_sizes(config, mesh, shape)
    monkeypatch.setattr(limits, "device_memory", lambda mesh: need - 1)
    with pytest.raises(ConfigError, match="need 0.0 GiB a device, .* --force starts"):
        limits.check_sizes(config, mesh, shape)
    monkeypatch.setattr(limits, "device_memory", lambda mesh: None)
    limits.check_sizes(config, mesh, shape)


def test_what_one_device_of_several_needs(monkeypatch):
    """fsdp and tensor divide the state, data and fsdp the rows; two directions double the state."""
    needed = []
    monkeypatch.setattr(limits, "check_bytes", lambda count, *_: needed.append(count))

    def need(mesh: dict[str, int], rows: int, **changes) -> int:
        shape = BatchShape(rows, src_length=48, tgt_length=40)
        limits.check_sizes(tiny_config(**changes), SimpleNamespace(shape=mesh), shape)
        return needed[-1]

    mesh = {"data": 2, "fsdp": 4, "tensor": 3}
    state = need(dict.fromkeys(mesh, 1), 0)
    assert need(mesh, 0) == state // 12
    assert need(mesh, 0, train__agreement_weight=0.0) == 2 * state // 12
    batch = need(mesh, 16, train__accumulate_steps=4) - need(mesh, 0)
    assert batch == 2 * (48 + 40) * (12 + 4 * 16 // 4)


def test_a_step_that_needs_too_much_is_refused_unless_forced(tmp_path, monkeypatch, capsys):
    """The sizes alone fit, the compiled step does not."""
    monkeypatch.setattr(limits, "device_memory", lambda mesh: 1 << 20)
    monkeypatch.setattr("transformer_jax.use.train.check_sizes", lambda *_: None)
    assert train(tmp_path / "run", train__steps=1) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("transformer-jax: The training step needs 0.0 GiB a device")
    assert not (tmp_path / "run" / "config.json").exists()


def test_force_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "device_memory", lambda mesh: 0)
    called = []
    monkeypatch.setattr("transformer_jax.use.train._train_in", lambda *a: called.append(a))
    preset = tmp_path / "preset.py"
    preset.write_text("def get_config():\n    return {'data': {'source': 'grammar'}}\n")
    flags = [f"--config={preset}", f"--workdir={tmp_path / 'run'}"]
    assert command("train", *flags) == 2 and not called
    assert command("train", *flags, "--force") == 0
    assert called[0][-1] is True


def test_memory_is_that_of_the_device_or_a_share_of_the_machine(monkeypatch):
    def mesh(platform, stats, count=4):
        device = SimpleNamespace(platform=platform, memory_stats=lambda: stats)
        return SimpleNamespace(local_devices=[device] * count)

    assert limits.device_memory(mesh("gpu", {"bytes_limit": 7})) == 7
    assert limits.device_memory(mesh("tpu", None)) is None
    monkeypatch.setattr(limits, "machine_memory", lambda: 8 * GIB)
    assert limits.device_memory(mesh("cpu", None)) == 2 * GIB


def test_the_machine_s_memory_is_the_smallest_limit(tmp_path, monkeypatch):
    whole = limits.machine_memory()
    assert GIB // 4 < whole < 1 << 50
    groups = []
    for number, text in enumerate(["max\n", f"{whole // 2}\n"]):
        groups.append(tmp_path / str(number))
        groups[-1].write_text(text)
    monkeypatch.setattr(limits, "CGROUPS", (*groups, tmp_path / "missing"))
    assert limits.machine_memory() == whole // 2
    monkeypatch.setattr("resource.getrlimit", lambda _: (whole // 4, whole // 3))
    assert limits.machine_memory() == whole // 4
