"""Lines that arrive in parts have the subwords of whole lines, those of a word once it is over."""

from types import SimpleNamespace

import numpy as np
import pytest

from transformer_jax.config.vocabulary import VocabularyConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.text.arriving import ArrivingLine, word_ends
from transformer_jax.text.built_in_corpus import built_in_pairs
from transformer_jax.text.vocabulary import Vocabulary
from transformer_jax.text.vocabulary_training import train_vocabularies, train_vocabulary

PAIRS = [(pair.src, pair.tgt) for pair in built_in_pairs("train", 200)]
HOSTILE = [
    "",
    "   ",
    "a",
    " a  b ",
    "\u3000x\u3000",
    "tab\tand\u00a0no-break",
    "one\r",
    "\r",
    "a \u0301b",
    "x\u00a8 y\u00a8",
    "e\u0301 \u0301",
    "\u2581\u2581a \u2581",
    "\u200b \u200bz",
    ">>deu<< The dogs",
    ">>deu<<The dogs",
    "<s> </s> <unk>",
    "中文 字😀 x",
    "a\x0bb\x85c\u2028d",
    "ﬁ ﬀ ½ … x",
    "\u1680a\u2003b",
    "\ufeff a",
]


@pytest.fixture(scope="module", params=["bpe", "unigram", "identity", "separate"])
def vocabulary(request) -> Vocabulary:
    if request.param == "separate":
        return train_vocabularies(*zip(*PAIRS, strict=True), VocabularyConfig(size=400), 0)
    keys = {"kind": request.param} if request.param != "identity" else {"normalization": "identity"}
    lines = [line for pair in PAIRS for line in pair]
    return train_vocabulary(lines, VocabularyConfig(size=500, **keys), 0)


def test_parts_have_the_subwords_of_the_whole_line(vocabulary):
    draw = np.random.default_rng(4)
    ends = word_ends(vocabulary)
    letters = list("abcdefghijklmnopqrstuvwxyzäöü.,!?-'\"0123456789       \t\u00a0\u0301")
    random = ["".join(draw.choice(letters, 40)) for _ in range(60)]
    for text in [*HOSTILE, *random, *(src for src, _ in PAIRS[:60])]:
        (want,) = vocabulary.encode_lines([text.removesuffix("\r")])
        cuts = np.sort(draw.integers(0, len(text) + 1, 6)).tolist()
        parts = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        line = ArrivingLine(vocabulary, ends)
        got = [line.add(part, i == len(parts) - 1) for i, part in enumerate(parts)]
        assert np.concatenate(got).tolist() == want.tolist(), text


def test_a_word_is_read_at_the_white_space_after_it(vocabulary):
    line = ArrivingLine(vocabulary, word_ends(vocabulary))
    pieces = [vocabulary.decode(line.add(part, False)) for part in ("Th", "e do", "gs ", " ", "ba")]
    assert pieces == ["", "The", "dogs", "", ""]
    assert vocabulary.decode(line.add("rk", True)) == "bark"


def test_white_space_ends_a_word_where_the_vocabulary_makes_it_a_space(vocabulary):
    ends = word_ends(vocabulary)
    assert " " in ends
    is_identity = vocabulary.normalize("a\u00a0b") != "a b"
    assert ("\u00a0" in ends) != is_identity and ("\t" in ends) != is_identity


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pieces": lambda ids: ["\u2581", "\u2581a", "\u2581of\u2581the"]}, "pieces that cross"),
        ({"normalize": lambda line: line}, "white space that is repeated"),
        ({"normalizes_punctuation": True}, "normalizes punctuation across words"),
    ],
)
def test_a_vocabulary_whose_words_depend_on_one_another_is_refused(change, reason, vocabulary):
    names = ("size", "normalizes_punctuation", "pieces", "normalize")
    own = SimpleNamespace(**{name: getattr(vocabulary, name) for name in names} | change)
    with pytest.raises(ConfigError, match=f"{reason}.*leave out --simultaneous"):
        word_ends(own)


UNKNOWN = {"reads_unknown_codes": False}


@pytest.mark.parametrize(
    ("begun", "line", "is_right"),
    [
        ("", ">>de<< a", True),
        ("", ">>fr<< a", False),  # as a whole line of this run
        (">>de<< ", "a b", True),
        (">>de<< ", ">>de<< a", False),  # the line would begin twice
        (">>de<< ", "a >>fr<< b", True),
    ],
)
def test_a_code_is_known_and_given_once(begun, line, is_right):
    def letters(lines):
        return [np.array([*map(ord, lines[0])])]

    known = SimpleNamespace(encode_lines=letters, codes={">>de<<": 4}, **UNKNOWN)
    arriving = ArrivingLine(known, (" ",), begun)
    if is_right:
        assert len(arriving.add(line, True)) == len(begun + line)
    else:
        with pytest.raises(DataError, match=f"A line begins with {line[:6]}"):
            arriving.add(line, False)


def test_subwords_that_change_once_they_are_read_are_an_error():
    def joined(lines):
        return [np.array([*map(ord, lines[0].replace(" :", ":"))])]

    line = ArrivingLine(SimpleNamespace(encode_lines=joined, codes={}, **UNKNOWN), (" ",))
    line.add("a ", False)
    with pytest.raises(DataError, match="not those of its words"):
        line.add(": b", True)
