"""Runs of several processes under real schedulers, on one machine: SLURM, submitit and Open MPI.

    make cluster    # on Debian, as root: apt-get install slurm-wlm munge openmpi-bin

It starts munge and SLURM in a temporary folder, with two nodes that are both this machine, and
stops them at the end. Each case trains the same small run as two processes, and compares its
metrics: with those of one process, and after a kill, a requeue or the end of the job's time bit for
bit with those of a run of two processes that was left alone. `--cases=srun,mpirun` runs some.
"""

import contextlib
import json
import os
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.survive import lines, step_of
from transformer_jax.errors import ConfigError, UserError
from transformer_jax.use.command_line import Flag, exit_status, parse_experiment

ROOT = Path(__file__).parents[1]
FLAGS = (
    Flag("cases", list, "NAME", "only these cases"),
    Flag("kills", int, "N", "of the case `restarts`", default=30),
    Flag("seed", int, "N", "of the random moments", default=0),
)
NEEDED = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "mpirun")
# Process 0 listens on the first node, whose name is looked up.
NODES = {"host": socket.gethostname(), "other": f"{socket.gethostname()}-2"}
CLOSE = 2e-5  # nats, between one process and two
RUN = {
    "data.pairs": 2_000,
    "model.num_layers": 1,
    "model.d_model": 32,
    "model.d_ff": 64,
    "train.steps": 200,
    "train.warmup_steps": 20,
    "train.decay_steps": 200,
    "train.log_every": 5,
    "train.valid_every": 50,
    "train.checkpoint_every": 10,
    "decode.beam_size": 1,
    "decode.max_extra_length": 3,
}
# Several times as long as a job's 2 minutes, from which SLURM may take one for its signal.
LONG = RUN | {"train.steps": 1_500, "train.decay_steps": 1_500, "train.valid_every": 500}
MID = RUN | {"train.steps": 600, "train.decay_steps": 600}  # a kill comes every 17 steps
SETTINGS = """
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=10
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool-%n
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=5
MpiDefault=none
NodeName={host} NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 State=UNKNOWN
NodeName={other} NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=2 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP
"""


class NoSlurm(UserError):
    """It is not installed, or cannot be started on this machine."""

    status = 3


@contextlib.contextmanager
def slurm(folder: Path) -> Iterator[None]:
    """SLURM with two nodes, which are both this machine."""
    if missing := [name for name in NEEDED if not shutil.which(name)]:
        raise NoSlurm(f"{missing[0]} is not there: apt-get install slurm-wlm munge openmpi-bin")
    munge, settings = folder / "munge", folder / "slurm.conf"
    for part in (munge, folder / "state"):
        part.mkdir(mode=0o711)
    (munge / "key").write_bytes(os.urandom(1024))
    (munge / "key").chmod(0o400)
    ports = dict(zip(("port", "first", "second"), _free_ports(3), strict=True))
    settings.write_text(SETTINGS.format(folder=folder, **NODES, **ports))
    os.environ["SLURM_CONF"] = str(settings)
    files = ("key-file", "socket", "pid-file", "log-file", "seed-file")
    options = [f"--{name}={munge / name.removesuffix('-file')}" for name in files]
    try:
        socket.gethostbyname(NODES["host"])
        subprocess.run(["munged", *options], check=True)
        subprocess.run(["slurmctld", "-f", str(settings)], check=True)
        for node in NODES.values():
            subprocess.run(["slurmd", "-f", str(settings), "-N", node], check=True)
        listed = ("sinfo", "-h", "-o", "%D %t")
        wait_for(lambda: _printed(*listed).strip() == "2 idle", "two nodes", 60)
    except (OSError, subprocess.CalledProcessError) as error:
        _stop(folder)
        raise NoSlurm(f"SLURM cannot be started here: {error}") from None
    try:
        yield
    finally:
        _stop(folder)


def _stop(folder: Path) -> None:
    """Ends SLURM and munge."""
    for path in [*folder.glob("*.pid"), folder / "munge" / "pid"]:
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(path.read_text()), signal.SIGTERM)
    time.sleep(2)


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as closing:
        sockets = [closing.enter_context(socket.create_server(("", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def _printed(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout


def wait_for(happened: Callable[[], bool], what: str, seconds: float = 600) -> None:
    """Returns when `happened()` is true. Raises TimeoutError, which says for what it waited."""
    deadline = time.monotonic() + seconds
    while not happened():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.1)


class Cases:
    """The cases; each returns what it found."""

    def __init__(self, folder: Path, kills: int, draw: random.Random) -> None:
        self.folder, self.kills, self.draw = folder, kills, draw

    def command(self, name: str, *flags: str) -> list[str]:
        """The run of that name."""
        keys = [f"--config.{key}={value}" for key, value in _run(name).items()]
        command = [sys.executable, "-m", "transformer_jax", "train", "--config=configs/demo.py"]
        return [*command, f"--workdir={self.folder / name}", *keys, *flags]

    def start(self, launcher: list[str], name: str, *flags: str) -> subprocess.Popen:
        """Starts the run of that name; its output is appended to a log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            whole = [*launcher, *self.command(name, *flags)]
            return subprocess.Popen(whole, cwd=ROOT, stdout=log, stderr=log)

    def train(self, launcher: list[str], name: str, *flags: str) -> list[dict[str, Any]]:
        """Does the run, or what is left of it, and returns its metrics."""
        status = self.start(launcher, name, *flags).wait()
        assert status == 0, f"status {status}: see {self.folder}/{name}.log"
        return lines(self.folder / name)

    def compared(self, name: str) -> dict[str, Any]:
        """Whether a run of two processes equals another, and how far a short one is from one.

        After 1,500 steps, when it knows its 2,000 pairs by heart, sums in another order are 0.008
        nats apart.
        """
        ending = "_long" if name.endswith("_long") else ""
        got = lines(self.folder / name)
        two = self.made(f"two{ending}", "--num_processes=2")
        if ending:
            return {"equals_two": got == two, "good": True}
        one, key = self.made("one"), "nats_per_token"
        assert [x["step"] for x in got] == [x["step"] for x in one], f"{name}: lines are missing"
        far = max(abs(a[key] - b[key]) for a, b in zip(got, one, strict=True))
        return {"nats_from_one_process": far, "equals_two": got == two, "good": far <= CLOSE}

    def made(self, name: str, *flags: str) -> list[dict[str, Any]]:
        """The metrics of a run without a launcher, which is done if it is not there."""
        return lines(self.folder / name) or self.train([], name, *flags)

    def killed(self, launcher: list[str], name: str) -> dict[str, Any]:
        """Kills one of the two processes in the middle, and gives the same command again."""
        running = self.start(launcher, name)
        middle = self.draw.randint(40, 160)
        wait_for(lambda: step_of(self.folder / name) >= middle, f"step {middle} of {name}")
        os.kill(self.draw.choice(_training(self.folder / name)), signal.SIGKILL)
        begun = time.monotonic()
        status = running.wait()
        seconds = time.monotonic() - begun
        self.train(launcher, name)
        found = self.compared(name)
        found["good"] &= found["equals_two"] and status != 0
        return {"killed_at": middle, "seconds_until_all_ended": round(seconds, 1), **found}

    def launched(self, launcher: list[str], name: str) -> dict[str, Any]:
        """A run of two processes, left alone or killed."""
        if name.endswith("_killed"):
            return self.killed(launcher, name)
        self.train(launcher, name)
        return self.compared(name)

    def batch(self) -> dict[str, Any]:
        """The script of docs/many_machines.md: its time ends, and it requeues itself."""
        name = "batch_long"
        log, script = self.folder / f"{name}.log", self.folder / "batch.sh"
        train = shlex.join(self.command(name))
        script.write_text(BATCH.format(log=log, train=train))
        done = subprocess.run(["sbatch", "--parsable", script], cwd=ROOT, capture_output=True)
        assert done.returncode == 0, done.stderr
        wait_for(lambda: not _printed("squeue", "-h"), "the end of the job", 3_600)
        found = self.compared(name) | {"continued_from": _continued(log)}
        found["good"] &= found["equals_two"] and _stopped_well(found)
        return found

    def sweep(self, name: str, slurm: str, *flags: str) -> subprocess.Popen:
        """Starts a table of two rows, each two processes, through submitit and sbatch."""
        run = {key: value for key, value in _run(name).items() if key != "model.d_ff"}
        keys = [f"--config.{key}={value}" for key, value in run.items()]
        command = [sys.executable, "-m", "experiments.sweep", "--config=configs/demo.py", *keys]
        command += ["--config.model.d_ff=64,32", "--seeds=0", "--launcher=slurm"]
        command += [f"--slurm=nodes=2,{slurm}", f"--runs={self.folder / name}"]
        command += [f"--out={self.folder / name}_table", *flags]
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    def of_row(self, name: str, running: subprocess.Popen) -> dict[str, Any]:
        """Waits for a sweep's end, and compares the row that is the small run."""
        status = running.wait()
        assert status == 0, f"status {status}: see {self.folder}/{name}.log"
        copied = f"row_of_{name}"
        os.symlink(self.row(name), self.folder / copied)
        log = self.row(name).with_name("seed-0.log.txt")
        found = self.compared(copied) | {"continued_from": _continued(log)}
        found["good"] &= found["equals_two"]
        return found

    def row(self, name: str) -> Path:
        """The folder of the row that is the small run."""
        return next((self.folder / name).glob("sweep/*/d_ff=64/seed-0"), self.folder / "none")

    def submitit(self) -> dict[str, Any]:
        """Rows of two nodes."""
        return self.of_row("submitit", self.sweep("submitit", "timeout_min=30"))

    def requeue(self) -> dict[str, Any]:
        """`scontrol requeue` in the middle."""
        running = self.sweep("requeue", "timeout_min=30")
        wait_for(lambda: step_of(self.row("requeue")) >= 60, "step 60 of a row")
        for job in _printed("squeue", "-h", "-t", "R", "-o", "%A").split():
            subprocess.run(["scontrol", "requeue", job], check=True)
        found = self.of_row("requeue", running)
        found["good"] &= len(found["continued_from"]) >= 1
        return found

    def walltime(self) -> dict[str, Any]:
        """A job's time ends in the middle: SIGUSR2, a checkpoint, and submitit requeues it."""
        keys = "timeout_min=2,slurm_signal_delay_s=30,slurm_max_num_timeout=30"
        found = self.of_row("walltime_long", self.sweep("walltime_long", keys, "--rows=d_ff=64"))
        found["good"] &= _stopped_well(found)
        return found

    def restarts(self) -> dict[str, Any]:
        """SIGKILL for one of four processes again and again, under `train --restarts`."""
        name, killed = "restarts_mid", 0
        workdir = self.folder / name
        running = self.start([], name, "--num_processes=4", "--restarts=5")
        while running.poll() is None and killed < self.kills:
            at = step_of(workdir) + self.draw.randint(1, 12)
            before = set(_training(workdir))
            wait_for(lambda: running.poll() is not None or step_of(workdir) >= at, f"step {at}")  # noqa: B023
            if alive := [pid for pid in _training(workdir) if pid in before]:
                os.kill(self.draw.choice(alive), signal.SIGKILL)
                killed += 1
                wait_for(lambda: not set(alive) & set(_training(workdir)), "the others' end")
        status = running.wait()
        equal = lines(workdir) == self.train([], "four_mid", "--num_processes=4")
        good = equal and status == 0 and killed == self.kills
        return {"kills": killed, "equals_four": equal, "good": good}


MPIRUN = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
# Of cases without a method of their own.
LAUNCHERS = {"srun": ["srun", "-N2", "-n2"], "mpirun": [*MPIRUN, "-n", "2"]}
CASES = "srun srun_killed mpirun mpirun_killed batch submitit requeue walltime restarts".split()
BATCH = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=1 --time=2
#SBATCH --requeue --signal=USR1@30 --open-mode=append --output={log}
srun {train}
case $? in 138 | 143) scontrol requeue $SLURM_JOB_ID ;; esac
"""


def _run(name: str) -> dict[str, Any]:
    """The keys of a run, which is long or of middle length if its name ends so."""
    return LONG if name.endswith("_long") else MID if name.endswith("_mid") else RUN


def _continued(log: Path) -> list[int]:
    """The steps from which a run continued."""
    return [int(step) for step in re.findall(r"continuing from step (\d+)", log.read_text())]


def _stopped_well(found: dict[str, Any]) -> bool:
    """Whether a run continued from a checkpoint that only its stop can have written."""
    return any(step % RUN["train.checkpoint_every"] for step in found["continued_from"])


def _training(workdir: Path) -> list[int]:
    """The processes that train in a folder, without those that started them."""
    found = list[int]()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = path.read_bytes().decode(errors="replace").split("\0")
            restarts = [x for x in command if x.startswith("--restarts=")]
            trains = "python" in command[0] and f"--workdir={workdir}" in command
            if trains and restarts[-1:] in ([], ["--restarts=0"]):  # else it only starts others
                found.append(int(path.parent.name))
    return found


def main() -> None:
    """Prints one JSON object a case; exits with 1 unless all are good."""
    values = parse_experiment("cluster", __doc__, FLAGS, takes_keys=False)
    names = values["cases"] or CASES
    if wrong := set(names) - set(CASES):
        raise ConfigError(f"--cases={wrong.pop()}: expected some of {', '.join(CASES)}.")
    os.environ["JAX_PLATFORMS"] = "cpu"
    good = True
    scratch = Path(tempfile.mkdtemp(prefix="cluster_"))  # left behind if a case fails
    scratch.chmod(0o711)  # munged demands it
    with slurm(scratch):
        cases = Cases(scratch / "runs", values["kills"], random.Random(values["seed"]))
        cases.folder.mkdir()
        for name in names:
            begun = time.monotonic()
            launcher = LAUNCHERS.get(name.removesuffix("_killed"))
            found = cases.launched(launcher, name) if launcher else getattr(cases, name)()
            minutes = round((time.monotonic() - begun) / 60, 1)
            print(json.dumps({"case": name, **found, "minutes": minutes}), flush=True)
            good &= found["good"]
    if not good:
        sys.exit(1)
    shutil.rmtree(scratch)


if __name__ == "__main__":
    sys.exit(exit_status(main))
