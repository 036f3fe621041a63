"""What each launcher's variables say, and what is refused."""

import pytest

from transformer_jax.errors import ConfigError
from transformer_jax.parallel import devices
from transformer_jax.parallel.clusters import PORT, read_variables

TORCH = {"MASTER_ADDR": "n1", "MASTER_PORT": "29500", "WORLD_SIZE": "8", "RANK": "5"}
LOCAL = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
SLURM = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_NUM_TASKS": "7",
    "SLURM_PROCID": "5",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "4(x1),2,1",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
SKY = {
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5",
}
JAX = {"JAX_NUM_PROCESSES": "4", "JAX_PROCESS_ID": "2", "JAX_COORDINATOR_ADDRESS": "n1:99"}
POD = {"KUBERNETES_SERVICE_HOST": "10.1.0.1", "JOB_COMPLETION_INDEX": "2"}


@pytest.fixture(autouse=True)
def four_gpus(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")


@pytest.mark.parametrize(
    ("variables", "processes", "process", "address", "gpus"),
    [
        (JAX, 4, 2, "n1:99", None),
        ({**JAX, "JAX_COORDINATOR_ADDRESS": "n1"}, 4, 2, f"n1:{PORT}", None),
        ({**JAX, "JAX_COORDINATOR_ADDRESS": "[fd00::1]:80"}, 4, 2, "[fd00::1]:80", None),
        ({**JAX, "JAX_COORDINATOR_ADDRESS": "n1", "JAX_COORDINATOR_PORT": "9"}, 4, 2, "n1:9", None),
        (POD | JAX | {"JAX_PROCESS_ID": ""}, 4, 2, "n1:99", None),
        (TORCH, 8, 5, "n1:29500", None),
        (TORCH | LOCAL, 8, 5, "n1:29500", [1]),
        (TORCH | LOCAL | {"TORCHELASTIC_RUN_ID": "none"}, 8, 5, "n1:29501", [1]),
        (SLURM, 7, 5, None, [2, 3]),
        (SLURM | {"SLURM_NODEID": "2", "SLURM_LOCALID": "0"}, 7, 5, None, []),
        (SLURM | {"SLURM_GPUS_ON_NODE": "8"}, 7, 5, None, []),  # each task sees its own alone
        (SLURM | {"PMI_SIZE": "7", "PMI_RANK": "5"}, 7, 5, None, [2, 3]),  # srun --mpi=pmi2
        (SLURM | {"JAX_LOCAL_DEVICE_IDS": "0"}, 7, 5, None, None),
        (SLURM | {"JAX_COORDINATOR_ADDRESS": "n3:1"}, 7, 5, "n3:1", [2, 3]),
        (OPEN_MPI, 4, 3, None, [2, 3]),
        (OPEN_MPI | SLURM, 4, 3, None, [2, 3]),
        ({"PMI_SIZE": "4", "PMI_RANK": "3"}, 4, 3, None, None),
        (SKY, 2, 1, f"10.0.0.4:{PORT}", []),
        (SKY | TORCH | {"TORCHELASTIC_RUN_ID": "none"}, 8, 5, "n1:29501", None),
        ({"TPU_WORKER_HOSTNAMES": "w-0,w-1", "TPU_WORKER_ID": "1"}, 2, None, None, None),
        ({"TPU_PROCESS_ADDRESSES": "w0:8471,w1:8471,w2:8471"}, 3, None, None, None),
        ({"MEGASCALE_NUM_SLICES": "4"}, 4, None, None, None),
    ],
)
def test_each_launcher_is_read(variables, processes, process, address, gpus):
    found = read_variables(variables)
    assert found is not None
    assert (found.processes, found.process, found.address) == (processes, process, address)
    assert found.devices == gpus


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"SLURM_STEP_NUM_TASKS": "1", "TPU_WORKER_HOSTNAMES": "localhost"},
        {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"},  # the shell of a batch script
        {"WORLD_SIZE": "1", "RANK": "0"},
        {"RANK": "3", "MASTER_ADDR": "n1"},
        {"JOB_COMPLETION_INDEX": "2"},
        POD | {"JAX_NUM_PROCESSES": "1"},
    ],
)
def test_a_run_of_its_own_is_told_nothing(variables):
    assert read_variables(variables) is None


@pytest.mark.parametrize(
    ("variables", "message"),
    [
        (
            SLURM | JAX,
            r"JAX_PROCESS_ID=2 JAX_NUM_PROCESSES=4 \(JAX\) and SLURM_PROCID=5 SLURM_STEP",
        ),
        (SLURM | TORCH, r"RANK=5 WORLD_SIZE=8 \(torchrun\) and SLURM_PROCID=5 .* contradict"),
        (SLURM | {"JAX_NUM_PROCESSES": "1", "JAX_PROCESS_ID": "0"}, "contradict one another"),
        ({"WORLD_SIZE": "8"}, r"WORLD_SIZE=8: .* and MASTER_ADDR is not set \(torchrun\)"),
        ({"WORLD_SIZE": "8", "MASTER_ADDR": "n1"}, "and RANK is not set"),
        ({**TORCH, "MASTER_PORT": ""}, "MASTER_PORT=: expected a port"),
        ({"WORLD_SIZE": "many"}, "WORLD_SIZE=many: expected a number"),
        (
            {"JAX_COORDINATOR_ADDRESS": "n1:99"},
            "JAX_COORDINATOR_ADDRESS=n1:99 is set, and the number of",
        ),
        (POD, "JOB_COMPLETION_INDEX=2 is set, and the number of processes is not"),
    ],
)
def test_what_is_missing_or_contradicts_is_named(variables, message):
    with pytest.raises(ConfigError, match=message):
        read_variables(variables)


def test_without_gpus_none_is_given_to_a_part_of_the_processes(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert read_variables(SLURM).devices is None  # [] would be all


def test_gpus_that_cannot_be_divided_are_refused():
    assert [*devices.own_part(1, 2)] == [2, 3]
    with pytest.raises(ConfigError, match="4 GPUs cannot be divided among 3 processes"):
        devices.own_part(0, 3)
