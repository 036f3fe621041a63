"""A page is one file: it escapes text, sorts tables by numbers, and fetches nothing."""

import html
import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

import pytest

from transformer_jax.reporting.page import (
    Code,
    Heading,
    Picture,
    Table,
    Text,
    markdown_page,
    markdown_table,
    write_page,
)

PNG = b"\x89PNG\r\n\x1a\nnot a real one"
HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=http://example.org/x onerror=alert(1)>",
    "\"><a href='javascript:alert(1)'>x</a>",
    "--> <!-- & &lt; &amp;lt;",
    "</td></tr></table></style></title></pre>",
    "lone \ud800 surrogate, U+202E \u202e, é ▁你好",
]
ADDRESSES = {"src", "href", "action", "data", "srcset", "poster", "background", "formaction"}


class Reader(HTMLParser):
    """The texts of a page by their element, its attributes and its elements' names."""

    def __init__(self, page: str):
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self.elements: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open:
            self.texts[self.open[-1]][-1] += data


@pytest.fixture
def picture(tmp_path):
    file = tmp_path / "picture.png"
    file.write_bytes(PNG)
    return file


def written(tmp_path, parts, title="A title"):
    return write_page(tmp_path / "pages" / "page.html", title, parts).read_text(encoding="utf-8")


def parts_of(text, picture):
    """One part of each kind, with the same text."""
    parts = [Heading(text), Text(text), Code(text), Picture(picture, text)]
    return [*parts, Table([text], [[text]], text)]


# Text --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_escaped_in_every_part_of_a_page(text, tmp_path, picture):
    page = Reader(written(tmp_path, parts_of(text, picture), title=text))
    plain = Reader(written(tmp_path, parts_of("x", picture)))
    assert page.elements == plain.elements
    want = text.replace("\ud800", "\\ud800")
    for element in ("title", "h1", "h2", "p", "button", "td"):
        assert page.texts[element] == [want], element
    assert page.texts["pre"] == ["\n" + want]  # HTML drops its first line end
    assert page.texts["figcaption"] == [want, want]
    assert ("alt", want) in page.attributes
    assert not {name for name, _ in page.attributes} & {"onerror", "onclick"}


def test_a_blank_line_separates_paragraphs(tmp_path):
    page = Reader(written(tmp_path, [Text("\none\ntwo\n\nthree\n")]))
    assert page.texts["p"] == ["one\ntwo", "three"]


def test_what_is_between_backticks_is_code(tmp_path, picture):
    text = "Run `a --b=<c>` and `d`; ` alone."
    parts = [Text(text), Picture(picture, text), Table(["a"], [[text]], text)]
    page = Reader(written(tmp_path, parts))
    assert page.texts["code"] == ["a --b=<c>", "d"] * 3
    assert page.texts["p"] == ["Run  and ; ` alone."]  # without the text of its elements
    assert page.texts["td"] == [text]  # a cell may hold any text, such as a translation
    assert "`a --b=\\<c>`" in markdown_page("T", [Text(text)])


def test_a_table_without_a_caption_has_none(tmp_path):
    assert "figcaption" not in Reader(written(tmp_path, [Table(["a"], [])])).elements


def test_a_page_fits_phones_and_keeps_wide_tables_and_long_words_inside(tmp_path, picture):
    page = written(tmp_path, [Table(["a"], [["1"]]), Picture(picture, "x")])
    head, _, body = page.partition("<body>")
    assert '<meta charset="utf-8">' in head.partition("<title>")[0]
    viewport = '<meta name="viewport" content="width=device-width, initial-scale=1">'
    assert viewport in head
    assert '<figure class="table"><table>' in body and "<figure><figcaption>x" in body
    rules = dict(re.findall(r"([^{}]+?) \{([^{}]*)\}", head.partition("<style>")[2]))
    named = {selector.strip(): rule for selector, rule in rules.items()}
    assert "max-width: calc(100vw" in named["figure.table"]
    assert "max-width: 100%" in named["img"]
    assert "overflow-wrap: break-word" in named["body"]
    assert "white-space: pre-wrap" in named["pre"]
    assert not re.search(r"overflow(-x)?: (hidden|clip)", head)


# Numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "value"),
    [
        ("38.55", 38.55),
        ("29,000", 29_000),
        ("−1.5", -1.5),
        ("-1.5", -1.5),
        ("+0.25", 0.25),
        ("1e-3", 0.001),
        ("38.55 ± 0.40", 38.55),
        ("96 %", 96),
        ("6–10", 6),
        ("31+", 31),
        ("0", 0),
        ("< 0.001", 0.001),
        *((cell, None) for cell in ("", "–", "base", "nan", "1e999", "(3)", "4 heads")),
        *((cell, None) for cell in ("1,024 x", "2026-01-01", "45a")),
    ],
)
def test_a_cell_that_starts_with_a_number_is_sorted_by_the_number(cell, value, tmp_path):
    page = written(tmp_path, [Table(["a"], [[cell]])])
    [(number, text)] = re.findall(r'<td(?: class="number" data-value="(.*)")?>(.*)</td>', page)
    assert (float(number) if number else None, html.unescape(text)) == (value, cell)
    assert page.count("data-value=") == bool(number)


def test_the_head_of_a_column_of_numbers_is_aligned_as_they_are(tmp_path):
    page = written(tmp_path, [Table(["row", "BLEU"], [["base", "1.5"], ["big", ""]])])
    assert re.findall(r'<th scope="col"( class="number")?>', page) == ["", ' class="number"']


# Nothing is fetched ------------------------------------------------------------------------------


def test_a_page_asks_for_nothing_over_the_network(tmp_path, picture):
    page = written(tmp_path, parts_of("x", picture))
    assert not re.search(r"https?:|//\w|@import|url\(|fetch|XMLHttp|WebSocket", page)
    read = Reader(page)
    addresses = [value for name, value in read.attributes if name in ADDRESSES]
    assert len(addresses) == 2  # the icon, which is empty, and the picture
    assert all(value is not None and value.startswith("data:") for value in addresses)
    assert not {"iframe", "object", "embed", "video", "audio", "base"} & set(read.elements)


def test_a_picture_that_is_missing_leaves_no_page(tmp_path):
    with pytest.raises(OSError):
        written(tmp_path, [Picture(tmp_path / "nowhere.png", "x")])
    assert list(tmp_path.iterdir()) == []


# Markdown ----------------------------------------------------------------------------------------


def test_a_markdown_table_worked_by_hand():
    table = markdown_table(["row", "BLEU"], [["base", "27.3"], ["big", ""]])
    assert table == "| row | BLEU |\n| --- | ---: |\n| base | 27.3 |\n| big |  |\n"


def test_a_caption_is_above_its_table_in_markdown_too():
    page = markdown_page("T", [Table(["a"], [["1"]], "what <s> is")])
    assert page == "# T\n\nwhat \\<s> is\n\n| a |\n| ---: |\n| 1 |\n"


def test_bars_backslashes_and_line_ends_stay_in_their_cell():
    nasty = ["a|b", "a\\", "a\\|b", "a\r\nb\rc\u2028d", "|", "\\"]
    lines = markdown_table(nasty, [nasty]).split("\n")
    assert len(lines) == 4 and lines[-1] == ""
    for line in (lines[0], lines[2]):
        # GitHub reads a backslash and what follows as one character, then splits at the bars.
        cells = re.findall(r"(?:\\.|[^|\\])+", line.removeprefix("|").removesuffix("|"))
        read = [re.sub(r"\\(.)", r"\1", cell.strip()) for cell in cells]
        assert read == ["a|b", "a\\", "a\\|b", "a b c d", "|", "\\"]


# In a browser ------------------------------------------------------------------------------------

# After each click: the sort order of the head, and the first column.
CLICKS = """
<script>
const heads = [...document.querySelectorAll("th button")];
const column = () => [...document.querySelectorAll("tbody tr")].map(r => r.cells[0].textContent);
const seen = [column()];
for (const n of [1, 1, 0, 0]) {
  heads[n].click();
  seen.push([heads[n].parentElement.getAttribute("aria-sort"), ...column()]);
}
document.body.append(JSON.stringify(seen));
console.log("the console is heard");
</script>
"""


CHROMIUM = shutil.which("chromium")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not on the PATH")


def shown_by_chromium(file, profile) -> subprocess.CompletedProcess[str]:
    """A page as it is once its scripts have run, and what the console reports."""
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"]
    options += ["--enable-logging=stderr", "--v=0", f"--user-data-dir={profile}"]
    command = ["chromium", *options, f"file://{file}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@needs_chromium
def test_a_click_on_a_head_sorts_by_number_and_a_second_one_the_other_way(tmp_path, picture):
    rows = [["d", "9"], ["none", ""], ["b", "−2.5"], ["c", "1,000"], ["bad", "diverged"]]
    rows.append(["a", "10"])
    page = written(tmp_path, [Table(["row", "BLEU"], rows), Text(HOSTILE[0])])
    copy = tmp_path / "copy.html"
    copy.write_text(page.replace("</body>", f"{CLICKS}</body>"), encoding="utf-8")
    done = shown_by_chromium(copy, tmp_path / "profile")
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert len(console) == 1 and "the console is heard" in console[0]
    assert "<h1>A title</h1>" in done.stdout
    assert json.loads(done.stdout[done.stdout.rindex("[[") : done.stdout.rindex("]]") + 2]) == [
        ["d", "none", "b", "c", "bad", "a"],
        ["ascending", "b", "d", "a", "c", "none", "bad"],
        ["descending", "c", "a", "d", "b", "none", "bad"],
        ["ascending", "a", "b", "bad", "c", "d", "none"],
        ["descending", "none", "d", "c", "bad", "b", "a"],
    ]


# Of each table of each frame: whether the window shows all of it, its form and its width.
MEASURE = """
<script>
onload = () => {
const found = [...document.querySelectorAll("iframe")].map(frame => {
  const page = frame.contentWindow;
  return [...page.document.querySelectorAll("table")].map(table => {
    const cells = [...table.querySelectorAll("td:not(:empty)")];
    const fits = cells.every(cell => {
      const box = cell.getBoundingClientRect();
      return box.left >= 0 && box.right <= page.innerWidth && cell.scrollWidth <= cell.clientWidth;
    });
    const box = table.parentElement;
    return [fits && box.scrollWidth <= box.clientWidth, table.className, box.clientWidth];
  });
});
document.body.append(JSON.stringify(found));
};
</script>
"""
WINDOWS = (390, 1280, 1920)


@needs_chromium
def test_tables_are_whole_in_windows_of_any_width(tmp_path):
    head = ["row", "seeds", *["the paper's perplexity (per subword)"] * 8, "p (median of seeds)"]
    row = ["(C) d_model 1024, d_k 128", "3", *["20.22 ± 4.58", "4.92"] * 4, "0.001"]
    wide = Table(head, [row, ["big"] + [""] * 10])
    small = Table(["source words", "BLEU"], [["1–5", "27.10"]], "A caption " * 40)
    prose = Table(["claim", "because"], [["one " * 20, "other " * 60]])
    page = html.escape(written(tmp_path, [wide, small, prose]))
    frames = (f'<iframe width="{width}" srcdoc="{page}"></iframe>' for width in WINDOWS)
    file = tmp_path / "frames.html"
    file.write_text(f"<!doctype html>{''.join(frames)}{MEASURE}", encoding="utf-8")
    shown = shown_by_chromium(file, tmp_path / "profile").stdout
    tables = json.loads(shown[shown.rindex("[[[") : shown.rindex("]]]") + 3])
    assert all(fits for window in tables for fits, _, _ in window)
    stacked = [[form == "stacked" for _, form, _ in window] for window in tables]
    assert stacked == [[True, False, False], [False] * 3, [False] * 3]
    # Only the wide table is wider than the text.
    (_, _, first), (_, _, second), (_, _, third) = tables[2]
    assert first > second == third
