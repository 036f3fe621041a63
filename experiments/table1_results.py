"""Table 1's results: the paper's claims, the lines of results.csv, and fits over them."""

import csv
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.errors import UserError
from transformer_jax.files import write_csv


class Claim(NamedTuple):
    """A line of the paper's Table 1."""

    work: str
    sequential: str
    path: str


ATTENTION, RESTRICTED = Claim("O(n²·d)", "O(1)", "O(1)"), Claim("O(r·n·d)", "O(1)", "O(n/r)")
DILATED = "convolution, dilated"  # only its paths are measured
CLAIMS = {
    "self-attention alone": ATTENTION,
    "self-attention": ATTENTION,
    "recurrent": Claim("O(n·d²)", "O(n)", "O(n)"),
    "convolution": Claim("O(k·n·d²)", "O(1)", "O(n/k)"),
    DILATED: Claim("O(k·n·d²)", "O(1)", "O(log_k n)"),
    "restricted alone": RESTRICTED,
    "restricted": RESTRICTED,
}
PATHS = ("self-attention", "recurrent", "convolution", DILATED, "restricted")
WINDOWS = {"convolution": "k", "restricted alone": "r", "restricted": "r"}

# Results ---------------------------------------------------------------------------------------


class Row(NamedTuple):
    """A line of results.csv: a timed point, or (without times) a path."""

    kind: str
    n: int
    d: int
    k: int | None  # of convolutions
    r: int | None  # of restricted self-attention
    batch: int
    forward_ms: float | None  # median
    forward_backward_ms: float | None
    memory_bytes: int | None  # temporaries of forward and backward
    forward_flops: int  # of the batch's products; the backward pass has twice as many
    products_in_sequence: int | None  # the longest chain, forward
    positions_reached: int | None  # outputs that the middle input reaches in one layer
    distance_reached: int | None  # largest distance that an input reaches in one layer
    layers_to_reach_all: int | None  # None in a path: never
    device: str
    date: str
    revision: str
    command: str

    @property
    def window(self) -> int | None:
        """k or r."""
        return self.k or self.r


TEXTS = {"kind", "device", "date", "revision", "command"}
FLOATS = {"forward_ms", "forward_backward_ms"}


def write_rows(path: Path, rows: Sequence[Row]) -> None:
    """Writes results.csv; a cell without a value is empty."""
    write_csv(path, Row._fields, rows)


def read_rows(path: Path) -> list[Row]:
    """Reads what `write_rows` wrote.

    Raises:
      UserError: there is no such file, or it is another table.
    """
    try:
        head, *lines = csv.reader(path.read_text().splitlines())
        rows = [dict(zip(Row._fields, line, strict=True)) for line in lines]
        if tuple(head) != Row._fields:
            raise ValueError(f"its columns are {','.join(head)}")
        return [Row(**{name: _value(name, cell) for name, cell in row.items()}) for row in rows]
    except FileNotFoundError:
        raise UserError(f"{path}: no such file. Measure first: leave --report out.") from None
    except ValueError as error:
        raise UserError(f"{path} is not what this experiment writes: {error}.") from error


def _value(name: str, cell: str) -> Any:
    if name in TEXTS:
        return cell
    if not cell:
        return None
    return float(cell) if name in FLOATS else int(cell)


# Fits ------------------------------------------------------------------------------------------


class Exponent(NamedTuple):
    """An exponent of a fitted power law."""

    value: float
    error: float  # standard error of the fit; 0 if the fit has no points to spare


def exponents(sizes: Sequence[Sequence[float]], values: Sequence[float]) -> list[Exponent]:
    """Exponents of values = c · size_1^e_1 · size_2^e_2 ..., by least squares of logarithms.

    Args:
      sizes: a line for each point, a column for each size, such as n and d.
      values: one for each point, above 0.
    """
    columns = np.log(np.asarray(sizes, np.float64))
    design = np.column_stack([np.ones(len(columns)), columns])
    logs = np.log(np.asarray(values, np.float64))
    solution, *_ = np.linalg.lstsq(design, logs)
    spare = len(logs) - design.shape[1]
    variance = ((logs - design @ solution) ** 2).sum() / spare if spare > 0 else 0.0
    errors = np.sqrt(variance * np.diag(np.linalg.pinv(design.T @ design)))
    return [Exponent(float(e), float(s)) for e, s in zip(solution[1:], errors[1:], strict=True)]


def crossing(lengths: Sequence[float], first: Sequence[float], second: Sequence[float]) -> str:
    """The length from which the first curve is above the second, by a power law between points.

    Returns:
      The length, or "≤ 32" if it is before the first one, "> 2,048" if it is after the last one.
    """
    gap = np.log(np.asarray(first, np.float64) / np.asarray(second, np.float64))
    below = np.flatnonzero(gap < -1e-12)
    if not len(below):
        return f"≤ {lengths[0]:,}"
    at = int(below[-1])
    if at + 1 == len(lengths):
        return f"> {lengths[-1]:,}"
    share = gap[at] / (gap[at] - gap[at + 1])
    return f"{np.exp(np.interp(share, (0, 1), np.log(lengths[at : at + 2]))):,.0f}"


class Results:
    """The rows of results.csv, and what the report needs of them."""

    def __init__(self, rows: Sequence[Row]) -> None:
        timed = [row for row in rows if row.forward_ms is not None]
        self.paths = [row for row in rows if row.forward_ms is None]
        self.first = timed[0]
        self.kinds = list(dict.fromkeys(row.kind for row in timed))
        self.lengths = sorted({row.n for row in timed})
        self.widths = sorted({row.d for row in timed})
        # Windows vary at one point only; all other points have the usual window.
        usual = {
            kind: Counter(row.window for row in timed if row.kind == kind).most_common(1)[0][0]
            for kind in self.kinds
        }
        self.usual = [row for row in timed if row.window == usual[row.kind]]
        others = {(row.kind, row.n, row.d) for row in timed if row.window != usual[row.kind]}
        self.windows = [row for row in timed if (row.kind, row.n, row.d) in others]

    def curve(
        self, kind: str, column: str, n: int | None = None, d: int | None = None
    ) -> list[tuple[int, float]]:
        """(n, value) at a width, or (d, value) at a length, in order."""
        here = [row for row in self.usual if row.kind == kind and n in (None, row.n)]
        here = [row for row in here if d in (None, row.d)]
        return sorted((row.n if n is None else row.d, getattr(row, column)) for row in here)

    def law(self, kind: str, column: str, errors: bool = True) -> str:
        """The fitted power law, such as `n^2.00±0.01 d^0.98±0.02`; empty if there is none."""
        lengths, widths = map(upper_half, (self.lengths, self.widths))
        rows = [row for row in self.usual if row.kind == kind]
        upper = [row for row in rows if row.n in lengths and row.d in widths]
        fits = [("nd", upper)]
        if windows := [row for row in self.windows if row.kind == kind]:
            fits.insert(0, (WINDOWS[kind], windows))
        words = []
        for names, fitted in fits:
            varied = [name for name in names if len({getattr(row, name) for row in fitted}) > 1]
            sizes = [[getattr(row, name) for name in varied] for row in fitted]
            values = [getattr(row, column) for row in fitted]
            if min(values) <= 0:
                return ""
            for name, (value, error) in zip(varied, exponents(sizes, values), strict=True):
                spread = f"±{error:.2f}" if errors and error else ""
                words.append(f"{name}^{round(value, 2) + 0.0:.2f}{spread}")  # + 0: no -0.00
        return " ".join(words)


def upper_half(sizes: Sequence[int]) -> Sequence[int]:
    """The upper half of sorted sizes; at least two of them, if there are two."""
    return sizes[max(0, min(len(sizes) // 2, len(sizes) - 2)) :]
