"""A report as one self-contained HTML file with text, sortable tables and pictures.

The file needs no network, no fonts and no script but the one below, so it looks the same on a disk
and in an e-mail.
"""

import base64
import html
import math
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from transformer_jax.files import write_atomically

# "27.3 ± 0.1" and "< 0.001" are numbers; "4 heads" and "2026-01-01" are not.
NUMBER = re.compile(r"(?:< )?([-−+]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?)(?![\w.,-]| ?[A-Za-z])")
# No table is cut off: one that does not fit in the width of the text may be as wide as the window.
# If it does not fit there either, the script makes it denser; if that is not enough, it shows each
# row as a block with one line per cell.
STYLE = """
:root { color-scheme: light dark; --line: #8884; --head: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem;
  overflow-wrap: break-word; }
h1 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
figure { margin: 1rem 0; overflow-x: auto; } figcaption { margin-bottom: .4rem; opacity: .8; }
figure.table { width: min-content; min-width: 100%; max-width: calc(100vw - 3rem);
  position: relative; left: 50%; transform: translateX(-50%); }
img { max-width: 100%; background: white; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem; text-align: left; }
th { background: var(--head); vertical-align: bottom; }
td:first-child:not(.number) { min-width: 14rem; }
.number { text-align: right; } td.number { white-space: nowrap; }
th button { all: unset; cursor: pointer; } th button:focus-visible { outline: 2px solid; }
th[aria-sort=ascending] button::after { content: " ▲"; }
th[aria-sort=descending] button::after { content: " ▼"; }
table.dense { font-size: .875rem; } .dense :is(th, td) { padding: .3rem .4rem; }
.dense td:first-child:not(.number) { min-width: 10rem; }
table.stacked, .stacked :is(thead, tbody, tr, th) { display: block; }
.stacked :is(th, td) { border: 0; padding: .1rem .4rem; }
.stacked thead tr { display: flex; flex-wrap: wrap; }
.stacked tbody tr { border-bottom: 1px solid var(--line); padding: .5rem 0; }
.stacked tbody td { display: flex; justify-content: space-between; gap: 1rem; }
.stacked tbody td:first-child { font-weight: bold; }
.stacked tbody td:not(:first-child)::before { content: attr(data-head); opacity: .8;
  white-space: normal; text-align: left; }
.stacked tbody td:empty { display: none; }
code { background: var(--head); padding: 0 .2rem; }
pre { background: var(--head); padding: .7rem; white-space: pre-wrap; }
"""
# A click sorts by the column; a second click reverses the order. Rows without a number come last.
SCRIPT = """
const tables = [...document.querySelectorAll("table")];
function fit() {
  for (const table of tables) {
    for (const form of ["", "dense", "stacked"]) {
      table.className = form;
      if (table.parentElement.scrollWidth <= table.parentElement.clientWidth) break;
    }
  }
}
for (const table of tables) {
  const heads = [...table.tHead.rows[0].cells], body = table.tBodies[0];
  for (const row of body.rows) {
    for (const cell of row.cells) cell.dataset.head = heads[cell.cellIndex].textContent;
  }
  heads.forEach((head, column) => head.firstChild.addEventListener("click", () => {
    const down = head.getAttribute("aria-sort") === "ascending";
    heads.forEach(other => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const rows = [...body.rows], value = row => row.cells[column].dataset.value ?? "";
    const numeric = rows.some(row => value(row) !== "");
    const compare = (a, b) => numeric
      ? (value(a) === "") - (value(b) === "") || (down ? -1 : 1) * (value(a) - value(b))
      : (down ? -1 : 1) * a.cells[column].textContent.localeCompare(b.cells[column].textContent);
    body.append(...rows.sort(compare));
  }));
}
addEventListener("resize", fit);
fit();
"""


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
    body = "\n".join(_html(part) for part in parts)
    name = html.escape(title)
    page = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<link rel="icon" href="data:,">\n'  # else the browser requests one
        f"<title>{name}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{name}</h1>\n"
        f"{body}\n<script>{SCRIPT}</script>\n</body>\n</html>\n"
    )
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
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
