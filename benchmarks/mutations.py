"""Which mistakes of one line do the tests find? A share of `make test`, and of `make test-all`.

    python -m benchmarks.mutations --number=80 --seed=0 --out=mutations.csv

It changes one operator or constant of the package at a time, drawn at random, in a copy of the
committed tree, and runs the tests: first those of the part's own folder, then all quick ones, then
the slow ones, until one fails. A line of the file is one mutation; it continues where it stopped. A
mutation that lives is a line without a test, or changes nothing (a limit, a message, a speed).
"""

import argparse
import ast
import csv
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
SECONDS = 3_600.0  # for one run of tests; a mutation that makes them hang is found
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


def outcome(tree: Path, mutation: Mutation) -> str:
    """The first of "own folder", "quick" and "slow" tests that fail; "lives" if all pass."""
    file = tree / mutation.file
    original = file.read_text(encoding="utf-8")
    lines = original.split("\n")
    assert lines[mutation.line - 1] == mutation.before
    lines[mutation.line - 1] = mutation.after
    file.write_text("\n".join(lines), encoding="utf-8")
    own = f"tests/{Path(mutation.file).parts[1]}"
    env = {**os.environ, "PYTHONPATH": str(tree)}  # for processes that tests start
    runs = [("own folder", "not slow", own)] if (tree / own).is_dir() else []
    runs += [("quick", "not slow", "tests"), ("slow", "slow", "tests")]
    try:
        for name, marker, folder in runs:
            command = ["-m", "pytest", "-q", "-x", "-n", "2", "-m", marker, folder]
            try:
                done = subprocess.run(
                    [sys.executable, *command],
                    cwd=tree,
                    env=env,
                    capture_output=True,
                    timeout=SECONDS,
                )
            except subprocess.TimeoutExpired:
                return name
            if done.returncode:
                return name
    finally:
        file.write_text(original, encoding="utf-8")
    return "lives"


def main() -> None:
    """Draws mutations, runs the tests on each and prints the shares that are found."""
    parser = argparse.ArgumentParser(prog="mutations", allow_abbrev=False)
    parser.add_argument("--number", type=int, default=80)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    files = sorted((ROOT / "transformer_jax").rglob("*.py"))
    every = [mutation for file in files for mutation in mutations(file)]
    drawn = random.Random(asked.seed).sample(every, asked.number)
    found: list[dict[str, str]] = []
    if asked.out.exists():
        with open(asked.out, encoding="utf-8", newline="") as lines:
            found = list(csv.DictReader(lines))
    with tempfile.TemporaryDirectory() as temporary:
        tree = Path(temporary, "tree")
        subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)
        for mutation in drawn[len(found) :]:
            start = time.monotonic()
            result = outcome(tree, mutation)
            line = {**mutation._asdict(), "found": result, "seconds": time.monotonic() - start}
            found.append({name: str(value) for name, value in line.items()})
            with open(asked.out, "w", encoding="utf-8", newline="") as out:
                writer = csv.DictWriter(out, found[0].keys())
                writer.writeheader()
                writer.writerows(found)
            print(mutation.file, mutation.line, result, flush=True)
    quick = sum(one["found"] in ("own folder", "quick") for one in found)
    slow = sum(one["found"] == "slow" for one in found)
    print(f"of {len(found)}: make test finds {quick}, make test-all {quick + slow}")


if __name__ == "__main__":
    main()
