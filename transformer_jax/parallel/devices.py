"""The devices of this machine, and how several processes divide them."""

import itertools
import os
import shutil
import subprocess
from collections.abc import Mapping
from typing import NamedTuple

from transformer_jax.errors import ConfigError

GPU_MEMORY = 0.9  # share of a GPU that several runs use; CUDA itself needs the rest


class Share(NamedTuple):
    """The devices of one process: GPUs by number, or CPU cores."""

    environment: Mapping[str, str]
    cores: frozenset[int]


def shares(count: int) -> list[Share]:
    """This machine's devices, divided among `count` processes; what is left over stays idle.

    With more processes than GPUs, several share a GPU and divide its memory.

    Raises:
      ConfigError: there are fewer devices than processes; of GPUs and cores, the larger number
        counts.
    """
    cores = sorted(os.sched_getaffinity(0))
    gpus = visible_gpus()
    most = max(len(gpus), len(cores))
    if not 1 <= count <= most:
        kind = "GPUs" if len(gpus) == most else "CPU cores"
        raise ConfigError(f"--jobs={count} is not in 1..{most}: this machine's {kind}.")
    if not gpus:
        own = (cores[n::count][: len(cores) // count] for n in range(count))
        return [Share({}, frozenset(part)) for part in own]
    each = -(-count // len(gpus))  # processes of a GPU
    memory = {"XLA_PYTHON_CLIENT_MEM_FRACTION": f"{GPU_MEMORY / each:.3f}"} if each > 1 else {}
    most = max(1, len(gpus) // count)
    parts = [",".join(gpus[n % len(gpus) :: count][:most]) for n in range(count)]
    return [Share({"CUDA_VISIBLE_DEVICES": part, **memory}, frozenset(cores)) for part in parts]


def visible_gpus() -> list[str]:
    """The names of the GPUs that this process sees, as CUDA_VISIBLE_DEVICES has them."""
    if os.environ.get("JAX_PLATFORMS") == "cpu":
        return []
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        # As CUDA reads it: the first number below 0 ends the list.
        names = (name.strip() for name in visible.split(","))
        return list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))
    if not shutil.which("nvidia-smi"):
        return []
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    gpus = [line for line in listed.splitlines() if line.startswith("GPU")]  # not their MIG parts
    return [str(n) for n in range(len(gpus))]


def own_part(process: int, processes: int) -> range:
    """The GPUs of one of several processes of a run on this machine, by their order.

    Args:
      process: which of this machine's processes, from 0.
      processes: how many of the run are on this machine.

    Raises:
      ConfigError: the GPUs cannot be divided equally.
    """
    gpus = len(visible_gpus())
    if gpus % processes:
        raise ConfigError(
            f"this machine's {gpus} GPUs cannot be divided among {processes} processes of a run."
        )
    each = gpus // processes
    return range(process * each, (process + 1) * each)
