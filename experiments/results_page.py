"""Writes the tables of docs/results.md from recorded results: `make results`.

    python -m experiments.results_page

The page's text is written by hand; its tables are not. A table is between two comments, of
which the first says where it comes from:

    <!-- results: table2_bleu/small bleu minutes -->    metrics of its runs, a line for each row
    <!-- verdicts: positions/small -->                  the table of verdicts in table.md
    <!-- end -->

docs/results/NAME/SCALE/table.md is written from results.jsonl by the experiment.
"""

import importlib.util
import re
from pathlib import Path

from transformer_jax.errors import DataError
from transformer_jax.files import read_utf8, write_atomically
from transformer_jax.reporting.page import markdown_table
from transformer_jax.tables.experiment import Experiment
from transformer_jax.tables.results import read_results
from transformer_jax.tables.statistics import METRICS, of_row, text_of
from transformer_jax.use.command_line import parse_experiment, run_main

PAGE = Path("docs/results.md")
BLOCK = re.compile(r"<!-- (results|verdicts): (\S+) ?(.*) -->")
END = "<!-- end -->"
VERDICTS = re.compile(r"^## Verdicts.*?\n\n(?P<table>(?:\|.*\n)+)", re.MULTILINE)


def main() -> None:
    """Writes the page."""
    parse_experiment("results_page", __doc__ or "", [], takes_keys=False)
    write_atomically(PAGE, rendered(PAGE).encode())


def rendered(page: Path) -> str:
    """The page with its tables made from the results beside it.

    Raises:
      DataError: a table's results are not there, or a comment begins or ends no table.
    """
    make = {"results": _metrics, "verdicts": _verdicts}
    found, opened = list[str](), ""  # the comment before a table that has no end yet
    for number, line in enumerate(read_utf8(page).replace("\r\n", "\n").split("\n"), 1):
        if line.lstrip().startswith("<!--"):
            block = BLOCK.fullmatch(line)
            if not (line == END if opened else block):
                raise DataError(
                    f"{page}, line {number}: {line} is not {END if opened else 'known'}. A table "
                    f"is between <!-- results: or verdicts: NAME/SCALE ... --> and {END}."
                )
            if block:
                kind, folder, rest = block.groups()
                line += "\n" + make[kind](page.parent / "results" / folder, rest.split())[:-1]
            opened = "" if opened else line
        elif opened:
            continue
        found.append(line)
    if opened:
        raise DataError(f"{page}: {opened.partition(chr(10))[0]} has no {END} after it.")
    return "\n".join(found)


def _metrics(folder: Path, metrics: list[str]) -> str:
    """A line for each row that was run, with the mean and the deviation of each metric."""
    lines = read_results(folder)
    if not lines:
        raise DataError(f"{folder}/results.jsonl has no results.")
    if unknown := [name for name in metrics if name not in METRICS]:
        raise DataError(f"{unknown[0]!r} is no metric of {folder}: {', '.join(METRICS)}.")
    rows = [
        [label, *(text_of(of_row(lines, row, name), METRICS[name].text) for name in metrics)]
        for row, label in _labels(folder, list(dict.fromkeys(line.row for line in lines))).items()
    ]
    return markdown_table(["row", *(METRICS[metric].label for metric in metrics)], rows)


def _labels(folder: Path, rows: list[str]) -> dict[str, str]:
    """The rows in the order of the experiment's scale, with their labels there.

    A sweep, an experiment without the name EXPERIMENT, and a folder that is not named after a scale
    have their rows as they are.
    """
    name, scale = folder.parts[-2:]
    found = importlib.util.find_spec(f"experiments.{name}") if name.isidentifier() else None
    source = read_utf8(Path(found.origin)) if found and found.origin else ""
    # A module without it may run when it is imported, as README's does.
    if re.search(r"^EXPERIMENT\b", source, re.MULTILINE):
        experiment: Experiment = importlib.import_module(f"experiments.{name}").EXPERIMENT
        if scale in experiment.scales:
            label = experiment.scales[scale].label
            return {row: label(row) for row in experiment.shown(scale) if row in rows}
    return {row: row for row in rows}


def _verdicts(folder: Path, _: list[str]) -> str:
    """The table of verdicts of an experiment's own page."""
    found = VERDICTS.search(read_utf8(folder / "table.md"))
    if found is None:
        raise DataError(f"{folder}/table.md has no table of verdicts.")
    return found["table"]


if __name__ == "__main__":
    run_main(main)
