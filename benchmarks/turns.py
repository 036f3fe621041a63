"""Runs contenders in turns, A B C A B C ..., each in a new process; ratios are within a turn.

A contender is a command that prints its figures as a JSON object in the last line of standard
output. The speed of a machine changes by a factor of two within minutes. The contenders of a turn
share this change, so their ratios do not show it. Every turn also times a matrix product, to
measure the machine.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np

Figures = dict[str, float]
CALIBRATION = "matrix product, GFLOP/s"
SLOW = 0.5  # of the speed in the trial: a turn below it is named
SIZE, PRODUCTS = 2048, 12


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


def by_turns(
    contenders: Mapping[str, Sequence[str]],
    turns: int,
    environments: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, list[Figures]]:
    """Runs contenders in turns; returns the figures of each, and of `CALIBRATION`, turn by turn.

    Args:
      contenders: name -> command.
      turns: how often each contender runs.
      environments: name -> environment variables that its process gets in addition.
    """
    results: dict[str, list[Figures]] = {CALIBRATION: [], **{name: [] for name in contenders}}
    for turn in range(turns):
        results[CALIBRATION].append(run_once([sys.executable, __file__], {}))
        for name, command in contenders.items():
            figures = run_once(command, (environments or {}).get(name, {}))
            results[name].append(figures)
            print(f"turn {turn + 1} of {turns}: {name}: {figures}", file=sys.stderr, flush=True)
    return results


def faster_of_each_turn(
    results: Mapping[str, Sequence[Figures]],
    tried: Mapping[str, Mapping[str, float]],
    second: str,
) -> tuple[dict[str, list[Figures]], list[str]]:
    """In each turn, the figures of the faster of two settings of a contender, by mode.

    Args:
      results: of `by_turns`; those of second settings are under a contender's name and `second`.
      tried: speeds in a trial, by contender and mode; a mode's other figures are called MODE_NAME.
      second: see `results`.

    Returns:
      The results, and a line for each contender and mode that was slow in some turns.
    """
    joined, slow = dict[str, list[Figures]](), []
    for name, turns in results.items():
        if name.endswith(second):
            continue
        others = results.get(name + second, turns)
        joined[name] = [dict(one) for one in turns]
        for mode, speed in tried.get(name, {}).items():
            for mine, other in zip(joined[name], others, strict=True):
                if other[mode] > mine[mode]:
                    of_mode = (key for key in other if key.split("_")[0] == mode)
                    mine.update({key: other[key] for key in of_mode})
            if count := sum(one[mode] < SLOW * speed for one in joined[name]):
                slow.append(
                    f"{name}, {mode}: {count} of {len(turns)} turns were below {SLOW:.0%} of the "
                    f"{speed:.0f} of the trial; the machine had other work"
                )
    return joined, slow


def median(results: Mapping[str, list[Figures]], name: str, key: str) -> float:
    """The median of one contender's figure over the turns."""
    return statistics.median(figures[key] for figures in results[name])


def ratios(results: Mapping[str, list[Figures]], ours: str, peer: str, key: str) -> list[float]:
    """Our figure divided by the peer's, turn by turn."""
    pairs = zip(results[ours], results[peer], strict=True)
    return [mine[key] / theirs[key] for mine, theirs in pairs]


def ratio_text(values: Sequence[float]) -> str:
    """Median and, in brackets, the range: `1.23 (1.19-1.27)`."""
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table; its first column is left-aligned, the others right-aligned."""
    lines = [head, ["---"] + ["---:"] * (len(head) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _matrix_product() -> Figures:
    draw = np.random.default_rng(0)
    left, right = draw.random((2, SIZE, SIZE), dtype=np.float32)
    rates = []
    for _ in range(PRODUCTS):
        started = time.perf_counter()
        left @ right
        rates.append(2 * SIZE**3 / (time.perf_counter() - started) / 1e9)
    return {"gflops": statistics.median(rates)}


if __name__ == "__main__":
    print(json.dumps(_matrix_product()))
