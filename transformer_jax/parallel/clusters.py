"""The environment variables by which launchers make a process one of several: one table for all.

JAX's own detection finds where process 0 listens for the launchers that it knows: SLURM, Open MPI
4, MPI through mpi4py, and TPU pods. For the others their variables say it.
"""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from transformer_jax.errors import ConfigError
from transformer_jax.parallel.devices import own_part, visible_gpus

Environment = Mapping[str, str]
PORT = 55_527  # where process 0 listens if no variable says it; JAX has the same for Kubernetes
INDEX = "JOB_COMPLETION_INDEX"  # of a pod of an Indexed Job
FLAGS = "--coordinator, --num_processes and --process_id"
TORCHRUN = "TORCHELASTIC_RUN_ID"  # torchrun sets it, and a script of one's own does not
Numbers = tuple[int, int]


class Launcher(NamedTuple):
    """The variables of a launcher; of several names for a number, the first that is set counts."""

    processes: tuple[str, ...]  # how many processes; or their machines' names, separated by commas
    process: tuple[str, ...]  # which this one is, from 0; (): JAX finds it
    address: str | None = None  # where process 0 listens; None: JAX finds it
    # -> HOST:PORT, from the value of `address`
    read: Callable[[Environment, str], str] = lambda _, address: address
    # -> which of the processes on this machine, and how many these are; None: unknown
    local: Callable[[Environment], Numbers] | None = None
    method: str | None = None  # the name of JAX's detection where JAX uses it only if asked
    # Whether its processes are inside those of a launcher of OUTER, whose variables they inherit.
    is_inner: Callable[[Environment], bool] = lambda _: False


class Launched(NamedTuple):
    """What a launcher's variables have about this process."""

    launcher: str
    variables: str  # with their values, for a message
    missing: str  # a variable that should be set and is not, or ""
    processes: int
    process: int | None  # None: JAX finds it
    address: str | None = None  # likewise
    devices: list[int] | None = None  # the GPUs to use, by order; []: all; None: as JAX decides
    method: str | None = None


def _with_port(environment: Environment, address: str) -> str:
    has_port = re.search(r"(^[^:]*|\]):\d+$", address)
    return address if has_port else f"{address}:{environment.get('JAX_COORDINATOR_PORT', PORT)}"


def _of_torch(environment: Environment, address: str) -> str:
    """torchrun itself listens on MASTER_PORT, so process 0 takes the next port."""
    port = environment.get("MASTER_PORT", "")
    if not port.isdecimal():
        raise ConfigError(f"MASTER_PORT={port}: expected a port, as torchrun sets it.")
    return f"{address}:{int(port) + (TORCHRUN in environment)}"


def _numbers(process: str, count: str) -> Callable[[Environment], Numbers]:
    return lambda environment: (int(environment[process]), int(environment[count]))


def _of_slurm(environment: Environment) -> Numbers:
    """SLURM_STEP_TASKS_PER_NODE is such as 4(x2),3: two nodes with 4 tasks and one with 3."""
    of_node = environment.get("SLURM_GPUS_ON_NODE", "0")
    if 0 < len(visible_gpus()) < int(of_node):
        return 0, 1  # SLURM shows each task only its own GPUs
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", environment["SLURM_STEP_TASKS_PER_NODE"])
    tasks = [int(each) for each, nodes in parts for _ in range(int(nodes or 1))]
    return int(environment["SLURM_LOCALID"]), tasks[int(environment["SLURM_NODEID"])]


LAUNCHERS = {
    "JAX": Launcher(
        ("JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT"),
        ("JAX_PROCESS_ID", INDEX),
        "JAX_COORDINATOR_ADDRESS",
        _with_port,
    ),
    "torchrun": Launcher(
        ("WORLD_SIZE",),
        ("RANK",),
        "MASTER_ADDR",
        _of_torch,
        _numbers("LOCAL_RANK", "LOCAL_WORLD_SIZE"),
        is_inner=lambda environment: TORCHRUN in environment,
    ),
    "Open MPI": Launcher(
        ("OMPI_COMM_WORLD_SIZE",),
        ("OMPI_COMM_WORLD_RANK",),
        local=_numbers("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        is_inner=lambda _: True,
    ),
    "MPI": Launcher(
        ("PMI_SIZE",),
        ("PMI_RANK",),
        local=_numbers("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
        method="mpi4py",
        is_inner=lambda _: True,
    ),
    # `srun` sets SLURM_STEP_NUM_TASKS; SLURM_NTASKS is set in a batch script's own shell too.
    "SLURM": Launcher(("SLURM_STEP_NUM_TASKS",), ("SLURM_PROCID",), local=_of_slurm),
    "SkyPilot": Launcher(
        ("SKYPILOT_NUM_NODES",),
        ("SKYPILOT_NODE_RANK",),
        "SKYPILOT_NODE_IPS",
        lambda _, addresses: f"{addresses.split()[0]}:{PORT}",
        lambda _: (0, 1),
    ),
    "TPU pod": Launcher(("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES"), ()),
    "TPU slices": Launcher(("MEGASCALE_NUM_SLICES",), ()),
}
OUTER = ("SLURM", "SkyPilot")  # they start something on each machine, which may be a launcher


def read_variables(environment: Environment) -> Launched | None:
    """What the launcher of this process has set; None: this process is a run of its own.

    Raises:
      ConfigError: variables are missing, are no numbers, or contradict one another.
    """
    every = (_of_launcher(name, environment) for name in LAUNCHERS)
    found = {one.launcher: one for one in every if one}
    if "SLURM" in found and _same(found.get("MPI"), found["SLURM"]):
        del found["MPI"]  # set by srun itself (--mpi=pmi2), where no MPI started anything
    whole = [one for one in found.values() if not one.missing]
    if not whole:
        for one in found.values():
            raise ConfigError(
                f"{one.variables}: this is one of several processes, and {one.missing} is not "
                f"set ({one.launcher}). Set it, unset the others, or give {FLAGS}."
            )
        _check_left_over(environment)
        return None
    first = whole[0]
    is_inner = LAUNCHERS[first.launcher].is_inner(environment)
    for other in found.values():
        is_known = None not in (first.process, other.process)
        if is_known and not _same(first, other) and not (is_inner and other.launcher in OUTER):
            raise ConfigError(
                f"{first.variables} ({first.launcher}) and {other.variables} ({other.launcher}) "
                f"contradict one another. Unset what is left over, or give {FLAGS}."
            )
    if first.processes == 1:
        return None
    launcher = LAUNCHERS[first.launcher]
    is_moved = environment.get("JAX_COORDINATOR_ADDRESS") and first.process is not None
    by = LAUNCHERS["JAX"] if is_moved else launcher
    address = by.address and by.read(environment, environment[by.address])
    return first._replace(address=address, devices=_devices(launcher, environment))


def _same(one: Launched | None, other: Launched) -> bool:
    numbers = other.processes, other.process
    return one is not None and (one.processes, one.process) == numbers


def _of_launcher(name: str, environment: Environment) -> Launched | None:
    """What one launcher has set, without its address and devices; None: nothing about several."""
    launcher = LAUNCHERS[name]
    of_processes = next((x for x in launcher.processes if environment.get(x)), None)
    if of_processes is None:
        return None
    processes = _number(of_processes, environment)
    if processes == 1 and name != "JAX":
        return None
    of_process = next((x for x in launcher.process if environment.get(x)), None)
    missing = launcher.process[0] if launcher.process and not of_process else ""
    if launcher.address and not environment.get(launcher.address):
        missing = launcher.address
    process = _number(of_process, environment) if of_process else None
    variables = " ".join(f"{x}={environment[x]}" for x in (of_process, of_processes) if x)
    missing = "" if processes == 1 else missing
    return Launched(name, variables, missing, processes, process, method=launcher.method)


def _number(name: str, environment: Environment) -> int:
    value = environment[name]
    if name.startswith("TPU_"):  # names, separated by commas
        return value.count(",") + 1
    if not value.isdecimal():
        raise ConfigError(f"{name}={value}: expected a number. Unset it, or give {FLAGS}.")
    return int(value)


def _check_left_over(environment: Environment) -> None:
    """Raises ConfigError if a variable is of a run with others, and none has their number."""
    name = "JAX_COORDINATOR_ADDRESS"
    is_pod = "KUBERNETES_SERVICE_HOST" in environment and INDEX in environment
    if not environment.get(name) and not is_pod:
        return
    given = name if environment.get(name) else INDEX
    raise ConfigError(
        f"{given}={environment[given]} is set, and the number of processes is not: set "
        "JAX_NUM_PROCESSES (1: this process is a run of its own), JAX_PROCESS_ID and "
        f"{name}, or give {FLAGS}."
    )


def _devices(launcher: Launcher, environment: Environment) -> list[int] | None:
    """The GPUs of this process. JAX alone would take the one with the process's local number."""
    if launcher.local is None or environment.get("JAX_LOCAL_DEVICE_IDS"):
        return None
    try:
        process, processes = launcher.local(environment)
    except (KeyError, ValueError, IndexError):
        return None
    if processes == 1:
        return []
    return [*own_part(process, processes)] or None
