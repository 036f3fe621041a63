"""Runs cases by turns, A B C, C B A, A B C ...; ratios are within a turn.

The speed of a machine changes by a factor of two within minutes. The cases of a turn share this
change, so their ratios do not show it. A case is a function: it times a call in this process
(`timed`), or starts a process that prints its figures as a JSON object in the last line of standard
output (`run_once`). Beside processes, every turn times a matrix product, to measure the machine.
"""

import functools
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

Figures = dict[str, Any]
Name = TypeVar("Name", bound=Hashable)
Found = TypeVar("Found")
CALIBRATION = "matrix product, GFLOP/s"


def by_turns(cases: Mapping[Name, Callable[[], Found]], turns: int) -> dict[Name, list[Found]]:
    """Calls every case once a turn; returns what each returned, turn by turn.

    Every second turn goes backward, so that a steady change of speed favors no case.
    """
    results: dict[Name, list[Found]] = {name: [] for name in cases}
    for turn in range(turns):
        for name in list(cases)[:: -1 if turn % 2 else 1]:
            results[name].append(cases[name]())
    return results


def timed(run: Callable[[], Any], calls: int = 1) -> float:
    """The median seconds of some calls; `run` returns when its work has ended."""
    seconds = []
    for _ in range(calls):
        started = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds)


def run_once(command: Sequence[str], environment: Mapping[str, str]) -> Figures:
    """Runs one process; returns the figures that it prints.

    Raises:
      RuntimeError: it failed, or printed no figures. The message has the end of its standard error.
    """
    environment = {**os.environ, **environment}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = done.stdout.strip().splitlines()
    if done.returncode or not lines:
        raise RuntimeError(f"{' '.join(command)}: status {done.returncode}\n{done.stderr[-2000:]}")
    figures: Figures = json.loads(lines[-1])
    return figures


def print_figures(measure: Callable[[str, dict[str, Any]], Figures]) -> None:
    """The main of a process of gpu_speed.py, whose arguments are TASK JOB.json SECONDS.

    It prints the figures of the task as one line of JSON, and ends itself after SECONDS.
    """
    task, job, seconds = sys.argv[1:]
    signal.alarm(int(seconds))  # ends the process even while it compiles
    print(json.dumps(measure(task, json.loads(Path(job).read_text()))))


def processes_by_turns(
    commands: Mapping[str, Sequence[str]], turns: int, environment: Mapping[str, str]
) -> dict[str, list[Figures]]:
    """Runs commands by turns; returns the figures of each and of `CALIBRATION`, turn by turn.

    `environment` has the variables that each process gets in addition.
    """

    def run(name: str, command: Sequence[str]) -> Figures:
        figures = run_once(command, environment)
        print(f"{name}: {figures}", file=sys.stderr, flush=True)
        return figures

    every = {CALIBRATION: [sys.executable, __file__], **commands}
    return by_turns({name: functools.partial(run, name, every[name]) for name in every}, turns)


# Figures as tables ------------------------------------------------------------------------------

Columns = Mapping[str, tuple[str, str]]  # title -> a figure's name, and its form


def middle(turns: Sequence[Figures], key: str) -> float | None:
    """The median over the turns that have the figure; None if no turn has it."""
    values = [turn[key] for turn in turns if turn.get(key) is not None]
    return statistics.median(values) if values else None


def shown(value: float | None, form: str) -> str:
    """The formatted value; empty if there is none."""
    return "" if value is None else form.format(value)


def cells(turns: Sequence[Figures], columns: Columns) -> list[str]:
    """The cells of one contender's row: medians over its turns."""
    return [shown(middle(turns, key), form) for key, form in columns.values()]


def ratios(ours: Sequence[Figures], peer: Sequence[Figures], key: str) -> list[float]:
    """Our figure divided by the peer's, turn by turn."""
    return [mine[key] / theirs[key] for mine, theirs in zip(ours, peer, strict=True)]


def spread(values: Sequence[float], form: str = "{:.2f}") -> str:
    """Median and, in brackets, the range: `1.23 (1.19-1.27)`."""
    middle, least, most = map(form.format, (statistics.median(values), min(values), max(values)))
    return f"{middle} ({least}-{most})"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; its first column is left-aligned, the others right-aligned."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def matrix_product() -> float:
    """The rate of a float32 matrix product by NumPy, in GFLOP/s: the median of some calls."""
    size = 2_048
    left, right = np.random.default_rng(0).random((2, size, size), dtype=np.float32)
    return 2 * size**3 / timed(lambda: left @ right, calls=12) / 1e9


if __name__ == "__main__":
    print(json.dumps({"gflops": matrix_product()}))
