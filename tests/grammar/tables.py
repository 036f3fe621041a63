"""Tables beside these tests: a case a line, its cells between tabs."""

from pathlib import Path


def rows(name: str) -> list[list[str]]:
    """The cells of each line of a file in this folder, without the line that names the columns."""
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return [line.split("\t") for line in text.splitlines()[1:]]
