"""Which mistakes of one line do the tests find? A share of `make test`, and of `make test-all`.

    python -m benchmarks.mutations --number=80 --seed=0 --out=mutations.csv

It changes one operator or constant of the package at a time, drawn at random, in a copy of the
committed tree, and runs the quick tests, those of files that name the module first, until one
fails. Mutations that live then meet the slow tests. Each time is a line of the file; it continues
where it stopped. A mutation that lives is a line without a test, or changes nothing (a limit, a
message, a speed). If none lives, look whether the tests pass without one.
"""

import ast
import csv
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.use.command_line import Flag, exit_status, parse_experiment

ROOT = Path(__file__).parent.parent
NO_TESTS = 5  # pytest's status
QUICK, SLOW, OPEN, LIVES = "quick", "slow", "not by quick ones", "lives"
SECONDS = 1_800.0  # for one run of tests; a mutation that makes them hang is found
FLAGS = (
    Flag("number", int, "N", "mutations", default=80),
    Flag("seed", int, "N", "of the draw", default=0),
    Flag("out", str, "FILE", "CSV, a line for each mutation", required=True),
)
OPERATORS: dict[type[ast.AST], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "%"),
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
    ast.And: ("and", "or"),
    ast.Or: ("or", "and"),
}


class Mutation(NamedTuple):
    """One change of one line."""

    file: str  # relative to the repository
    line: int  # from 1
    before: str
    after: str


def mutations(file: Path) -> Iterator[Mutation]:
    """Every mutation of a file."""
    lines = file.read_text(encoding="utf-8").split("\n")
    name = str(file.relative_to(ROOT))

    def changed(line: int, start: int, end: int, old: str, new: str) -> Iterator[Mutation]:
        """The mutation that replaces `old` between two columns, if it stands there once."""
        text = lines[line - 1]  # columns of `ast` are bytes, so only ASCII lines are taken
        if text.isascii() and text[start:end].count(old) == 1:
            part = text[start:end].replace(old, new)
            yield Mutation(name, line, text, text[:start] + part + text[end:])

    def between(left: ast.expr, right: ast.expr, operator: ast.AST) -> Iterator[Mutation]:
        if type(operator) in OPERATORS and left.end_lineno == right.lineno:
            old, new = OPERATORS[type(operator)]
            yield from changed(right.lineno, left.end_col_offset or 0, right.col_offset, old, new)

    for node in ast.walk(ast.parse("\n".join(lines))):
        if isinstance(node, ast.BinOp):
            yield from between(node.left, node.right, node.op)
        elif isinstance(node, ast.Compare):
            yield from between(node.left, node.comparators[0], node.ops[0])
        elif isinstance(node, ast.BoolOp):
            yield from between(*node.values[:2], node.op)
        elif isinstance(node, ast.Constant) and type(node.value) in (bool, int, float):
            new = not node.value if type(node.value) is bool else node.value + 1
            end = node.end_col_offset or 0
            old = lines[node.lineno - 1][node.col_offset : end]
            yield from changed(node.lineno, node.col_offset, end, old, str(new))


def first_failing(tree: Path, mutation: Mutation, marker: str) -> str | None:
    """The test that finds a mutation, of those with a pytest marker; None: all pass.

    The tests of files that name the module come first.
    """
    file = tree / mutation.file
    original = file.read_text(encoding="utf-8")
    lines = original.split("\n")
    assert lines[mutation.line - 1] == mutation.before
    lines[mutation.line - 1] = mutation.after
    file.write_text("\n".join(lines), encoding="utf-8")
    module = mutation.file.removesuffix(".py").replace("/", ".")
    tests = sorted((tree / "tests").rglob("test_*.py"))
    near = [str(path) for path in tests if module in path.read_text(encoding="utf-8")]
    env = {**os.environ, "PYTHONPATH": str(tree)}  # for processes that tests start
    options: Any = {"cwd": tree, "env": env, "stdout": subprocess.PIPE, "timeout": SECONDS}
    try:
        for chosen in ([near] if near else []) + [["tests"]]:
            pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "2", "-m", marker, *chosen]
            done = subprocess.run(pytest, text=True, **options)
            if done.returncode not in (0, NO_TESTS):
                return "; ".join(re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.M))
    except subprocess.TimeoutExpired:
        return "they hang"
    finally:
        file.write_text(original, encoding="utf-8")
    return None


def read_found(out: Path) -> dict[Mutation, str]:
    """What is known of mutations; a later line of the file counts."""
    rows = list(csv.reader(out.read_text(encoding="utf-8").splitlines())) if out.exists() else []
    width = len(Mutation._fields)
    return {Mutation(row[0], int(row[1]), *row[2:width]): row[width] for row in rows[1:]}


def main() -> None:
    """Draws mutations, runs the tests on each and prints the shares that are found."""
    values = parse_experiment("mutations", __doc__, FLAGS, takes_keys=False)
    out = Path(values["out"])
    files = sorted((ROOT / "transformer_jax").rglob("*.py"))
    every = [mutation for file in files for mutation in mutations(file)]
    drawn = random.Random(values["seed"]).sample(every, values["number"])
    found = read_found(out)
    with (
        tempfile.TemporaryDirectory() as temporary,
        out.open("a", encoding="utf-8", newline="", buffering=1) as file,
    ):
        writer = csv.writer(file)
        if not found:
            writer.writerow([*Mutation._fields, "found", "by", "seconds"])
        tree = Path(temporary, "tree")
        subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)
        for name, marker, before in ((QUICK, "not slow", None), (SLOW, "slow", OPEN)):
            for mutation in drawn:
                if found.get(mutation) != before:
                    continue
                start = time.monotonic()
                failing = first_failing(tree, mutation, marker)
                lives = OPEN if name == QUICK else LIVES
                found[mutation] = lives if failing is None else name
                seconds = round(time.monotonic() - start)
                writer.writerow([*mutation, found[mutation], failing, seconds])
                print(mutation.file, mutation.line, found[mutation], failing, flush=True)
    counts = Counter(found.values())
    both = counts[QUICK] + counts[SLOW]
    print(f"of {len(found)}: make test finds {counts[QUICK]}, make test-all {both}")


if __name__ == "__main__":
    sys.exit(exit_status(main))
