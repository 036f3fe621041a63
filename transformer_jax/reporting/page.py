"""A report as one self-contained HTML file with text, sortable tables and pictures.

The file needs no network, no fonts and no script but that of page.html, so it looks the same on a
disk and in an e-mail. No table is cut off: one that does not fit in the width of the text may be as
wide as the window. If it does not fit there either, the script makes it denser; if that is not
enough, it shows each row as a block with one line per cell. A click on a head sorts by its column,
a second click reverses the order; rows without a number come last.
"""

import base64
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

from transformer_jax.files import write_atomically

# "27.3 ± 0.1" and "< 0.001" are numbers; "4 heads" and "2026-01-01" are not.
NUMBER = re.compile(r"(?:< )?([-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?![\w.,-]| ?[A-Za-z])")


class Heading(NamedTuple):
    """The heading that begins a section."""

    text: str


class Text(NamedTuple):
    """Paragraphs, separated by empty lines; `between backticks` is code."""

    text: str


class Code(NamedTuple):
    """Preformatted text, such as commands and translations."""

    text: str


class Table(NamedTuple):
    """Rows of cells; a click on a column's head sorts them."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""

    def number_columns(self) -> list[bool]:
        """Which columns hold numbers and empty cells only, and are right-aligned."""
        columns = ([row[n] for row in self.rows] for n in range(len(self.head)))
        return [all(not cell or NUMBER.match(cell) for cell in column) for column in columns]


class Picture(NamedTuple):
    """A PNG file, which is embedded in the page."""

    file: Path
    caption: str


Part = Heading | Text | Code | Table | Picture


def write_page(path: str | os.PathLike[str], title: str, parts: Sequence[Part]) -> Path:
    """Writes a page and returns its path. Raises OSError if a picture is missing."""
    loader = FileSystemLoader(Path(__file__).parent)
    environment = Environment(loader=loader, autoescape=True, keep_trailing_newline=True)
    environment.filters |= {"inline": _inline, "number": _number, "zip": zip}
    environment.filters["base64"] = lambda file: base64.b64encode(file.read_bytes()).decode()
    template = environment.get_template("page.html")
    path = Path(path)
    page = template.render(title=title, parts=[(type(part).__name__, part) for part in parts])
    write_atomically(path, page.encode("utf-8", "backslashreplace"))
    return path


def write_report(folder: Path, title: str, parts: Sequence[Part]) -> Path:
    """Writes table.md and index.html with the same parts; returns the latter's path."""
    write_atomically(folder / "table.md", markdown_page(title, parts).encode())
    return write_page(folder / "index.html", title, parts)


def _inline(text: str) -> str:
    """Text as HTML; `between backticks` is code, as in Markdown."""
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(text))))


def _number(cell: str) -> float | None:
    """The number that a cell begins with, for sorting."""
    found = NUMBER.match(cell)
    value = float(found[1].replace(",", "").replace("−", "-")) if found else math.nan
    return value if math.isfinite(value) else None  # JavaScript reads neither "inf" nor "nan"


def markdown_page(title: str, parts: Sequence[Part]) -> str:
    """The same parts as Markdown; it links pictures as files in the same folder."""
    return "\n\n".join([f"# {title}", *map(_markdown, parts)]) + "\n"


def _markdown(part: Part) -> str:
    match part:
        case Heading(text):
            return f"## {text}"
        case Text(text):
            return text.strip().replace("<", "\\<")  # else "<s>" would be an HTML element
        case Code(text):
            return "\n".join(f"    {line}" for line in text.splitlines())
        case Picture(file, caption):
            return f"![{caption}]({file.name})"
        case Table(head, rows, caption):
            words = caption.replace("<", "\\<")
            return f"{words}\n\n{markdown_table(head, rows)}".strip()


def markdown_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table with one line per row; columns of numbers are right-aligned."""
    rule = ["---:" if numbers else "---" for numbers in Table(head, rows).number_columns()]
    cells = [[_markdown_cell(cell) for cell in row] for row in (head, *rows)]
    lines = [cells[0], rule, *cells[1:]]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _markdown_cell(cell: str) -> str:
    # Escape backslashes first: a backslash before a bar would cancel the escape of the bar.
    return " ".join(cell.replace("\\", "\\\\").replace("|", "\\|").splitlines())
