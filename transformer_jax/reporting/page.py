"""A report as one self-contained HTML file with text, sortable tables and pictures.

The file needs no network, no fonts and no script but that of page.html, so it looks the same on a
disk and in an e-mail. No table is cut off: one that does not fit in the width of the text may be as
wide as the window. If it does not fit there either, the script makes it denser; if that is not
enough, it shows each row as a block with one line per cell. A click on a head sorts by its column,
a second click reverses the order; rows without a number come last.
"""

import base64
import html
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from string import Template
from typing import NamedTuple

from transformer_jax.files import write_atomically

# "27.3 ± 0.1" and "< 0.001" are numbers; "4 heads" and "2026-01-01" are not.
NUMBER = re.compile(r"(?:< )?([-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?![\w.,-]| ?[A-Za-z])")
TEMPLATE = Path(__file__).with_name("page.html")  # with $title and $body


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


class Picture(NamedTuple):
    """A PNG file, which is embedded in the page."""

    file: Path
    caption: str


Part = Heading | Text | Code | Table | Picture


def write_page(path: str | os.PathLike[str], title: str, parts: Sequence[Part]) -> Path:
    """Writes a page and returns its path. Raises OSError if a picture is missing."""
    template, path = Template(TEMPLATE.read_text(encoding="utf-8")), Path(path)
    page = template.substitute(title=html.escape(title), body="\n".join(map(_html, parts)))
    write_atomically(path, page.encode("utf-8", "backslashreplace"))
    return path


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
    rule = ["---:" if numbers else "---" for numbers in _number_columns(head, rows)]
    cells = [[_markdown_cell(cell) for cell in row] for row in (head, *rows)]
    lines = [cells[0], rule, *cells[1:]]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def _markdown_cell(cell: str) -> str:
    # Escape backslashes first: a backslash before a bar would cancel the escape of the bar.
    return " ".join(cell.replace("\\", "\\\\").replace("|", "\\|").splitlines())


def _number_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[bool]:
    return [all(_is_number(row[n]) for row in rows) for n in range(len(head))]


def _is_number(cell: str) -> bool:
    return not cell or NUMBER.match(cell) is not None


def _html(part: Part) -> str:
    match part:
        case Heading(text):
            return f"<h2>{html.escape(text)}</h2>"
        case Text(text):
            return "\n".join(f"<p>{_inline(one)}</p>" for one in text.strip().split("\n\n"))
        case Code(text):
            return f"<pre>\n{html.escape(text)}</pre>"  # HTML ignores the first line end
        case Picture(file, caption):
            data, words = base64.b64encode(file.read_bytes()).decode(), html.escape(caption)
            image = f'<img alt="{words}" src="data:image/png;base64,{data}">'
            return f"<figure><figcaption>{_inline(caption)}</figcaption>{image}</figure>"
        case Table(head, rows, caption):
            return _table(head, rows, caption)


def _inline(text: str) -> str:
    """Text as HTML; `between backticks` is code, as in Markdown."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", html.escape(text))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], caption: str) -> str:
    right = [' class="number"' if numbers else "" for numbers in _number_columns(head, rows)]
    heads = "".join(
        f'<th scope="col"{where}><button type="button">{html.escape(name)}</button></th>'
        for where, name in zip(right, head, strict=True)
    )
    body = "\n".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    table = f"<table><thead><tr>{heads}</tr></thead>\n<tbody>\n{body}\n</tbody></table>"
    words = f"<figcaption>{_inline(caption)}</figcaption>" if caption else ""
    return f'<figure class="table">{words}{table}</figure>'


def _cell(text: str) -> str:
    number = NUMBER.match(text)
    value = float(number[1].replace(",", "").replace("−", "-")) if number else math.nan
    if not math.isfinite(value):  # JavaScript reads neither "inf" nor "nan"
        return f"<td>{html.escape(text)}</td>"
    return f'<td class="number" data-value="{value!r}">{html.escape(text)}</td>'
