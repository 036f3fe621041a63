"""Alignments as text: the form i-j, and the line of every mistake."""

import pytest

from tests import tiny_runs as runs
from tests.fixtures.errors import refused
from transformer_jax.errors import DataError
from transformer_jax.text.folder_corpus import Pair
from transformer_jax.text.pharaoh import read_alignments
from transformer_jax.text.words import words_of

PAIRS = [Pair("a b c", "x y"), Pair("", ""), Pair("a\u00a0b", "x")]


def test_links_are_read_in_order_and_once(tmp_path):
    path = runs.write_lines(tmp_path / "gold", [" 2-1 0-0\t2-1 ", "", "0-0"])
    assert read_alignments(path, PAIRS) == [((0, 0), (2, 1)), (), ((0, 0),)]


def test_words_are_what_ascii_spaces_separate():
    assert words_of(" a\u00a0b\tc  \u2003d ") == ["a\u00a0b", "c", "\u2003d"]


@pytest.mark.parametrize(
    ("lines", "want"),
    [
        (["0-0", ""], "has 2 lines for 3 pairs"),
        (["0-0", "", "0-0", ""], "has 4 lines for 3 pairs"),
        (["3-0", "", ""], "line 1: the link 3-0 names source word 3, and the sentence has 3"),
        (["0-2", "", ""], "line 1: the link 0-2 names target word 2, and the sentence has 2"),
        (["", "0-0", ""], "line 2: the link 0-0 names source word 0, and the sentence has 0"),
        (["", "", "1-0"], "line 3: the link 1-0 names source word 1, and the sentence has 1"),
        (["0-0 0:1", "", ""], "line 1: '0:1' is not a link"),
        (["-1-0", "", ""], "line 1: '-1-0' is not a link"),
        (["\u0661-0", "", ""], "line 1: '\u0661-0' is not a link"),
        (["0-99999999999999999999", "", ""], "line 1: '0-99999999999999999999' is not a link"),
    ],
)
def test_a_mistake_is_named_by_its_line(tmp_path, lines, want):
    path = runs.write_lines(tmp_path / "gold", lines)
    with refused(DataError, want):
        read_alignments(path, PAIRS)
