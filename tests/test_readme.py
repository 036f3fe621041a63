"""The README is short, its equation is the code's, and no page that a user reads names what is not.

Links, tests and config keys of the README and of the pages beside it must exist.
"""

import re
import textwrap
from pathlib import Path

import pytest

from tests.test_paper_map import names_in
from transformer_jax.config.schema import KEYS, SECTIONS

ROOT = Path(__file__).parent.parent
MOST_BYTES, MOST_CHARACTERS = 8_192, 100
DOCS = ("add_attention", "faq", "guide", "results", "tutorial")
PAGES = ["README.md", *(f"docs/{name}.md" for name in DOCS)]
CODE = re.compile(r"^```\w*\n(.*?)^```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")
SECTION = "|".join(sorted(SECTIONS))
KEY = re.compile(rf"`(?:{SECTION})\.[a-z][a-z_]*\b|--config\.(?:{SECTION})\.[a-z_]+")
# Named like keys.
FILES = {"train.en", "train.de", "train.parquet", "vocabulary.model", "model.safetensors"}


def text_of(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def anchors_in(path: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) <= MOST_BYTES
    assert not [line for line in text_of("README.md").split("\n") if len(line) > MOST_CHARACTERS]


def test_equation_1_of_the_readme_is_the_code():
    [quoted] = [block for block in CODE.findall(text_of("README.md")) if "scores_BHLM" in block]
    assert len(quoted.splitlines()) == 6
    code = text_of("transformer_jax/model/attention/multi_head.py")
    assert textwrap.indent(quoted, "    ") in code


def test_the_readme_has_the_two_commands_and_a_figure():
    readme = text_of("README.md")
    for words in ("make demo", "make test", "docs/faq.md", "docs/tour.md"):
        assert words in readme
    assert re.search(r"!\[[^]]+\]\(docs/results/[^)]+\.png\)", readme)


@pytest.mark.parametrize("page", PAGES)
def test_every_relative_link_leads_somewhere(page):
    links = [link for link in LINK.findall(CODE.sub("", text_of(page))) if "://" not in link]
    assert links
    for link in links:
        name, _, anchor = link.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), link
        assert not anchor or anchor in anchors_in(path), link


@pytest.mark.parametrize("page", PAGES)
def test_every_test_and_key_that_a_page_names_exists(page):
    text = text_of(page)
    for file, name in re.findall(r"`(tests/[\w/]+\.py)(?::(\w+))?`", text):
        assert (ROOT / file).exists(), file
        assert not name or name in names_in(ROOT / file), name
    keys = {key.strip("`").removeprefix("--config.") for key in KEY.findall(text)}
    assert keys - FILES <= set(KEYS)
