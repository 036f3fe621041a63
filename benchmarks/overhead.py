"""The cost of checkpoints and metrics, and the time to the first step of a continued run.

    python benchmarks/overhead.py --config=configs/demo.py
    python benchmarks/overhead.py --config=configs/multi30k.py --config.data.path=FOLDER/multi30k

Cost: blocks of steps with a save, or with lines of metrics, take turns with plain blocks of the
same number of steps. The cost is the difference of medians, divided by the time of the preset's
interval. First step: the script runs `train` in a new folder with an empty cache, in a new folder
with cached programs, and in a folder that has a run.
"""

import functools
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from programs import steps_of_run
from turns import by_turns

from transformer_jax.config.files import load_config
from transformer_jax.config.schema import Config
from transformer_jax.runs.checkpoints import Checkpoints
from transformer_jax.runs.metrics import MetricsWriter
from transformer_jax.training.window import WindowReader
from transformer_jax.use.command_line import Flag, exit_status, parse_experiment, set_up_logs

ROOT = Path(__file__).parents[1]
FLAGS = [
    Flag("config", str, "FILE", "a config file", required=True),
    Flag("block", int, "STEPS", "steps of a timed block", default=20),
    Flag("repeats", int, "N", "number of blocks of each kind", default=7),
]


class Run:
    """The parts of a run, whose steps are called one by one."""

    def __init__(self, config: Config, folder: Path):
        data, self.steps, self.batches = steps_of_run(config, folder)
        program, state = self.steps.program, self.steps.state
        self.read_window = WindowReader(config.train, data, program, state.window)
        self.writer = MetricsWriter(folder)
        self.checkpoints = Checkpoints(folder / "checkpoints", 1)

    def block(self, count: int, saves: bool = False, line: bool = False) -> float:
        """Seconds of `count` steps, with a save before them or a line of metrics after each."""
        steps = self.steps
        begin = time.perf_counter()
        if saves:
            saved = steps.program.to_save(steps.state)
            self.checkpoints.save(saved, int(steps.state.step), None)
        for batch in itertools.islice(self.batches, count):
            (steps.state,) = steps.program.train_step((steps.state,), batch)
            if line:
                self.writer.write(int(steps.state.step), "train", self.read_window(steps.state))
        steps.state.step.block_until_ready()
        self.checkpoints.check(wait=True)
        return time.perf_counter() - begin


def cost(config: Config, folder: Path, block: int, repeats: int) -> list[str]:
    """Lines of the report: seconds per save and per line, and their share of the steps' time."""
    run = Run(config, folder)
    run.block(block)
    kinds = {"plain": {}, "saving": {"saves": True}, "writing": {"line": True}}
    cases = {name: functools.partial(run.block, block, **how) for name, how in kinds.items()}
    seconds = by_turns(cases, repeats)
    run.checkpoints.close()
    plain, saving, writing = map(statistics.median, seconds.values())
    step, save, line = plain / block, saving - plain, (writing - plain) / block
    train = config.train
    share = save / (train.checkpoint_every * step) + line / (train.log_every * step)
    return [
        f"step {1e3 * step:.1f} ms (blocks: {', '.join(f'{s:.2f}' for s in seconds['plain'])} s)",
        f"a save costs {save:.3f} s (every {train.checkpoint_every} steps), "
        f"a line of metrics {1e3 * line:.2f} ms (every {train.log_every})",
        f"together {100 * share:.2f} % of the steps' time",
    ]


def first_step(arguments: list[str], cache: Path, workdir: Path, steps: int) -> float:
    """Seconds from the command to the end of its first step; it runs for `steps` steps."""
    command = [sys.executable, "-m", "transformer_jax", "train", *arguments]
    command += [f"--workdir={workdir}", f"--config.train.steps={steps}"]
    environment = os.environ | {"TRANSFORMER_JAX_CACHE": str(cache)}
    begin = time.perf_counter()
    taken = 0.0
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if " taken; " in line:
                taken = time.perf_counter() - begin
    assert process.returncode == 0 and taken
    return taken


def main() -> None:
    """Measures both, and prints the report."""
    values = parse_experiment("overhead", __doc__, FLAGS)
    arguments = [f"--config={values['config']}"]
    arguments += [a for a in sys.argv[1:] if a.startswith("--config.")]
    config = load_config(values["config"], values["overrides"])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        lines = cost(config, folder / "run", values["block"], values["repeats"])
        times = {}
        for name, cache, workdir, steps in (
            ("new, empty cache", "cache", "a", 3),
            ("new, cached programs", "cache", "b", 3),
            ("continued", "cache", "b", 6),
        ):
            times[name] = first_step(arguments, folder / cache, folder / workdir, steps)
        lines.append("first step: " + ", ".join(f"{n} {t:.1f} s" for n, t in times.items()))
    print("\n".join(lines))


if __name__ == "__main__":
    set_up_logs()
    sys.exit(exit_status(main))
