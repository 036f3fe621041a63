"""Kills a run many times, and compares its metrics with those of a run that was never stopped.

    python benchmarks/survive.py            # `make survive`: 25 kills of a small run, then the soak
    python benchmarks/survive.py --soak=0 --kills=100 --seed=7

Small run: it gets SIGKILL at random moments, and every fifth time while it writes a checkpoint.
Soak: a run of the demo's model and corpus with 2,000 steps gets SIGKILL every 100 to 300 steps. In
both parts every resume must succeed. On the CPU the metrics of the killed run, except timings, must
equal those of the other run bit for bit: no step is lost, and no step runs twice.
"""

import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformer_jax.use.command_line import Flag, exit_status, parse_experiment

ROOT = Path(__file__).parents[1]
TIMINGS = ("source_tokens_per_second", "target_tokens_per_second", "mfu")
FLAGS = (
    Flag("kills", int, "N", "of the small run; 0: skip it", default=25),
    Flag("soak", int, "0|1", "0: skip the soak", default=1),
    Flag("seed", int, "N", "of the random moments", default=0),
)
SMALL = {
    "data.pairs": 2_000,
    "model.num_layers": 1,
    "model.d_model": 32,
    "model.d_ff": 64,
    "train.steps": 400,
    "train.log_every": 3,
    "train.valid_every": 40,
    "train.checkpoint_every": 10,
    "train.decay_steps": 400,
}
SOAK = {"train.checkpoint_every": 25}


def start(workdir: Path, overrides: dict[str, Any], log: Path) -> subprocess.Popen:
    """Starts `train` in a new process; its output is appended to the log."""
    flags = [f"--config.{name}={value}" for name, value in overrides.items()]
    command = [sys.executable, "-m", "transformer_jax", "train", "--config=configs/demo.py"]
    with log.open("ab") as file:
        return subprocess.Popen([*command, f"--workdir={workdir}", *flags], cwd=ROOT, stderr=file)


def lines(workdir: Path) -> list[dict[str, Any]]:
    """The complete lines of the metrics, without timings."""
    path = workdir / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    records = map(json.loads, text.split("\n")[:-1])
    return [{k: v for k, v in record.items() if k not in TIMINGS} for record in records]


def step_of(workdir: Path) -> int:
    """The newest step in the metrics."""
    return max((record["step"] for record in lines(workdir)), default=0)


def writing_of(workdir: Path) -> set[Path]:
    """The checkpoints that are being written, or whose writer was killed."""
    return set((workdir / "checkpoints").glob("*.orbax-checkpoint-tmp*"))


def kill_when(process: subprocess.Popen, happened: Callable[[], bool]) -> bool:
    """Sends SIGKILL as soon as `happened()` is true; returns False if the run ended before."""
    while process.poll() is None:
        if happened():
            process.kill()
            return process.wait() == -signal.SIGKILL
        time.sleep(0.002)
    assert process.returncode == 0, "a run failed without being killed: see its log"
    return False


def kill_small(folder: Path, kills: int, draw: random.Random) -> dict[str, Any]:
    """Kills the small run `kills` times at random moments, then lets it finish."""
    workdir, log = folder / "killed", folder / "killed.log"
    killed = writing = 0
    while killed < kills:
        left = writing_of(workdir)  # by an earlier kill
        process = start(workdir, SMALL, log)
        begun = time.monotonic()
        first = step_of(workdir)
        in_write = killed % 5 == 4
        at_step = first + draw.randint(0, 24)
        delay = draw.uniform(0, 0.2)

        def happened(in_write: bool = in_write, at: int = at_step, pause: float = delay) -> bool:
            if in_write:
                return bool(writing_of(workdir) - left)  # noqa: B023
            if step_of(workdir) < at or time.monotonic() - begun < 1.0:  # noqa: B023
                return False
            time.sleep(pause)
            return True

        if kill_when(process, happened):
            killed += 1
            writing += bool(writing_of(workdir) - left)
        elif step_of(workdir) >= SMALL["train.steps"]:
            break
    return {"kills": killed, "during_a_checkpoint": writing} | compare(folder, workdir, SMALL, log)


def kill_soak(folder: Path, draw: random.Random) -> dict[str, Any]:
    """Kills the demo's run every 100 to 300 steps."""
    workdir, log = folder / "soak", folder / "soak.log"
    killed = 0
    at = draw.randint(100, 300)
    while kill_when(start(workdir, SOAK, log), lambda: step_of(workdir) >= at):  # noqa: B023
        killed += 1
        at = step_of(workdir) + draw.randint(100, 300)
    return {"kills": killed} | compare(folder, workdir, SOAK, log)


def compare(folder: Path, killed: Path, overrides: dict[str, Any], log: Path) -> dict[str, Any]:
    """Finishes the killed run, runs another without stopping it, and compares their metrics."""
    assert start(killed, overrides, log).wait() == 0, f"the last resume failed: see {log}"
    never = folder / f"{killed.name}_never"
    assert start(never, overrides, folder / "never.log").wait() == 0
    got, want = lines(killed), lines(never)
    output = log.read_text(errors="replace")
    return {
        "lines": len(want),
        "steps": step_of(never),
        "equal_bit_for_bit": got == want,
        "resumes": output.count("continuing from step"),
        "damaged_checkpoints": output.count("is damaged"),
        "tracebacks": output.count("Traceback"),
    }


def main() -> None:
    """Prints one JSON object per part; exits with 1 unless all metrics are equal."""
    values = parse_experiment("survive", __doc__, FLAGS, takes_keys=False)
    draw = random.Random(values["seed"])
    good = True
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        kills = values["kills"]
        parts = {"small": lambda: kill_small(folder, kills, draw)} if kills else {}
        if values["soak"]:
            parts["soak"] = lambda: kill_soak(folder, draw)
        for name, part in parts.items():
            begun = time.monotonic()
            result = part()
            minutes = round((time.monotonic() - begun) / 60, 1)
            print(json.dumps({"part": name, **result, "minutes": minutes}), flush=True)
            good &= result["equal_bit_for_bit"] and not result["tracebacks"]
            good &= name != "small" or result["kills"] == kills
    if not good:
        sys.exit(1)


if __name__ == "__main__":
    sys.exit(exit_status(main))
