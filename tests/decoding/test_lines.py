"""Lines to translations, whatever the search finds; a stream of bytes to groups of lines."""

import io
from types import SimpleNamespace

import numpy as np
import pytest

from tests import tiny_runs as runs
from transformer_jax.config.decode import DecodeConfig
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.vocabulary import VocabularyConfig
from transformer_jax.decoding.generators import UTILITIES, expected_utilities
from transformer_jax.decoding.lines import LineTranslator, banned_ids, line_groups, line_parts
from transformer_jax.decoding.translator import Hypothesis
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.vocabulary import BOS, EOS, UNK, load_vocabulary
from transformer_jax.text.vocabulary_training import train_vocabularies


class Echo:
    """A replacement of the search: it returns each sentence's own subwords, and fewer of them."""

    def __init__(self, max_length: int = 64, answers: int = 1, model: ModelConfig | None = None):
        self.decode = DecodeConfig(max_length=max_length)
        self.answers = answers
        self.model = make_model(model or ModelConfig(), 500)
        self.seen: list[np.ndarray] = []

    def translate(self, sentences: list[np.ndarray]) -> list[list[Hypothesis]]:
        self.seen += sentences
        return [
            [Hypothesis(ids[: len(ids) - n], -1.0 - n, -9.0) for n in range(self.answers)]
            for ids in sentences
        ]


@pytest.fixture
def vocabulary():
    return load_vocabulary(RunFolder(runs.trained_run()).vocabulary_file)


# Lines -----------------------------------------------------------------------------------------


def test_long_lines_are_cut_and_one_warning_counts_them(vocabulary, caplog):
    echo = Echo(max_length=8)
    translator = LineTranslator(vocabulary, echo)
    letters = "abcdefghijklmnop"
    fits, longer = (vocabulary.decode(vocabulary.encode(letters)[:n]) for n in (7, 8))
    results = translator([fits, "A"])
    translator.warn_of_cut()
    assert not caplog.records
    translator([longer, letters * 9, "", "A dog bit the old man in the garden."])
    lengths = [len(sentence) for sentence in echo.seen]
    assert lengths == [8, len(vocabulary.encode("A")) + 1, 8, 8, 8]
    assert all(sentence[-1] == EOS and EOS not in sentence[:-1] for sentence in echo.seen)
    assert results[0][0].text == fits
    translator([letters])
    translator.warn_of_cut()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage().startswith("4 lines have more than decode.max_length=8 subwords")


def test_banned_subwords_are_named_by_their_pieces(vocabulary):
    assert banned_ids(DecodeConfig(), vocabulary) == ()
    assert banned_ids(DecodeConfig(banned_subwords=("<unk>", "<s>")), vocabulary) == (UNK, BOS)
    for piece, wrong in {"no such piece": "no piece of the run's", "</s>": "EOS"}.items():
        with pytest.raises(ConfigError, match=f"decode.banned_subwords=.*'{piece}' is {wrong}"):
            banned_ids(DecodeConfig(banned_subwords=(piece,)), vocabulary)


@pytest.mark.parametrize("utility", UTILITIES)
def test_minimum_bayes_risk_returns_as_many_as_were_asked_for(utility, vocabulary):
    """Those that agree most with the samples come first."""
    echo = Echo()
    echo.decode = DecodeConfig(method="mbr", samples=4, utility=utility)
    echo.n_best = 2
    lines = ["a dog", "a dog", "a dot", "xyz"]
    samples = [Hypothesis(np.append(vocabulary.encode(text), EOS), 0.0, 0.0) for text in lines]
    samples = samples[::-1]  # as drawn, the worst first
    echo.translate = lambda sentences: [samples for _ in sentences]
    translator = LineTranslator(vocabulary, echo)
    [found] = translator(["x"])
    np.testing.assert_array_equal(translator.best(np.array([5, EOS])), samples[-1].ids)
    assert [one.text for one in found] == ["a dog", "a dot"]
    want = expected_utilities(lines, UTILITIES[utility]("13a"))
    assert [one.score for one in found] == [want[one.text] for one in found]


def test_utilities_of_text_without_spaces_count_its_characters():
    near, other = "老人在河边看见一只小猫。", "两个男人在打牌。"
    bleu = UTILITIES["bleu"]("zh")
    assert bleu(near, near.replace("小", "大")) > 50 > bleu(near, other)


@pytest.mark.parametrize(
    "line, coded",
    [
        (">>bt<< >>de<< a dog", ">>de<< >>bt<< a dog"),
        (">>de<< >>bt<< a dog", ">>de<< >>bt<< a dog"),
        (">>de<< a dog", ">>de<< a dog"),
        ("a dog", None),
        ("", ""),
    ],
)
def test_the_code_of_the_target_language_comes_first(line, coded):
    codes = [">>de<<", ">>fr<<", ">>bt<<"]
    vocabulary = SimpleNamespace(codes=codes, reads_unknown_codes=False)
    translator = LineTranslator(vocabulary, Echo(), ["de", "fr"])
    if coded is not None:
        assert translator.with_target(line) == coded
        return
    with pytest.raises(DataError, match="Into which language"):
        translator.with_target(line)


@pytest.mark.parametrize("targets", [["de"], []])  # []: a run with tags
@pytest.mark.parametrize("line", [">>xx<< a dog", ">>de<< >>xx<< a dog"])
def test_a_code_that_the_run_does_not_know_is_no_text(line, targets):
    vocabulary = SimpleNamespace(codes=[">>de<<", ">>bt<<"], reads_unknown_codes=False)
    translator = LineTranslator(vocabulary, Echo(), targets)
    with pytest.raises(DataError, match="has the code >>xx<<, and this run knows >>de<<, >>bt<<"):
        translator.with_target(line)
    vocabulary.codes = []  # it was trained without codes, so this is text
    assert LineTranslator(vocabulary, Echo()).with_target(line) == line


@pytest.mark.parametrize(
    ("changes", "max_length", "longest"),
    [
        ({}, 64, 64),
        ({"positions": "learned"}, 64, 5),
        ({"positions": "learned"}, 4, 4),
        ({"positions": "learned", "encoder": "recurrent"}, 64, 5),
        ({"positions": "learned", "decoder": "recurrent"}, 64, 5),
        ({"positions": "learned", "encoder": "recurrent", "decoder": "ssru"}, 64, 5),
        ({"positions": "learned", "encoder": "recurrent", "decoder": "recurrent"}, 64, 64),
    ],
)
def test_only_learned_positions_have_a_last_one(changes, max_length, longest, vocabulary, caplog):
    echo = Echo(max_length, model=ModelConfig(max_positions=5, **changes))
    translator = LineTranslator(vocabulary, echo)
    assert translator.longest == longest
    assert len(translator.encode(["x" * 200])[0]) == longest
    translator.warn_of_cut()
    limit = "model.max_positions=5" if longest == 5 else f"decode.max_length={longest}"
    assert f"1 lines have more than {limit} subwords" in caplog.text


def test_line_ends_that_bytes_spell_do_not_break_the_line(vocabulary):
    pieces = vocabulary.pieces(range(vocabulary.size))
    spelled = [*vocabulary.encode("a"), pieces.index("<0x0A>"), pieces.index("<0x0D>"), EOS]
    echo = Echo()
    echo.translate = lambda _: [[Hypothesis(np.array(spelled), -1.0, -1.0)]]
    [[(text, _)]] = LineTranslator(vocabulary, echo)(["A dog."])
    assert "\n" not in text and "\r" not in text and "a" in text


def test_a_line_for_which_search_finds_nothing_is_still_answered(vocabulary):
    """A model with NaN logits gives no hypothesis; the lines after it keep their places."""
    translator = LineTranslator(vocabulary, Echo(answers=0))
    assert translator.best(np.array([5, EOS])) is None
    assert translator(["A dog."]) == [[("", float("-inf"))]]


def test_banned_subwords_are_the_target_s():
    pairs = [("the dog", "der Hund"), ("a cat", "die Katze")] * 9
    both = train_vocabularies(*zip(*pairs, strict=True), VocabularyConfig(size=275), seed=0)
    sides = [set(side.pieces(range(both.size))) for side in (both, both.target)]
    [first, *_] = sorted(sides[1] - sides[0])
    [banned] = banned_ids(DecodeConfig(banned_subwords=(first,)), both)
    assert both.target.pieces([banned]) == [first]


# A stream in groups ----------------------------------------------------------------------------


class Pipe(io.BytesIO):
    """A pipe that has one of these blocks at a time, and then nothing for a while."""

    def __init__(self, *blocks: bytes):
        super().__init__()
        self.blocks = list(blocks)

    def read1(self, size: int | None = -1) -> bytes:
        assert size is not None and size > 0
        return self.blocks.pop(0) if self.blocks else b""


@pytest.fixture
def quiet(monkeypatch):
    monkeypatch.setattr("transformer_jax.decoding.lines._is_quiet", lambda stream: True)


def test_a_group_is_what_has_arrived(quiet):
    pipe = Pipe(b"a\nb\nc", b"d\n", b"e\n", b"f")
    assert list(line_groups(pipe)) == [["a", "b"], ["cd"], ["e"], ["f"]]


def test_a_group_has_at_most_so_many_lines():
    lines = [str(n) for n in range(10)]
    stream = io.BytesIO("\n".join(lines).encode())
    groups = list(line_groups(stream, size=4))
    assert [len(group) for group in groups] == [4, 4, 2]
    assert sum(groups, []) == lines


def test_characters_and_line_ends_may_be_split_anywhere(quiet, caplog):
    """A byte order mark is one at the start only."""
    given = "\ufeffä\r\n\U0001f600\r\n\r\n\ufeff\u2028x\ry\n".encode()
    blocks = [given[i : i + 1] for i in range(len(given))]
    assert sum(line_groups(Pipe(*blocks)), []) == ["ä", "\U0001f600", "", "\ufeff\u2028x\ry"]
    assert caplog.messages == ["line 4 has a carriage return inside, which ends no line"]


@pytest.mark.parametrize("number", [1, 2, 5, 9])
def test_a_line_that_is_not_utf8_is_named_after_those_before_it(number):
    lines = [b"x"] * 10
    lines[number - 1] = b"\xc3\x28"
    got: list[str] = []
    with pytest.raises(DataError, match=rf"standard input, line {number}: not UTF-8"):
        for group in line_groups(io.BytesIO(b"\n".join(lines)), size=4):
            got += group
    assert got == ["x"] * (number - 1)


@pytest.mark.parametrize(("given", "line"), [(b"a\nb\xc3\nc", 2), (b"a\n\xc3", 2), (b"\xff", 1)])
def test_half_a_character_at_a_line_s_end_is_an_error_in_parts_too(given, line):
    with pytest.raises(DataError, match=f"standard input, line {line}: not UTF-8"):
        [*line_parts(io.BytesIO(given))]


def test_parts_are_the_lines_whose_ends_are_known():
    given = "\ufeffä b\n\n\ufeff c".encode()
    parts = [("ä b", True), ("", True), ("\ufeff c", False), ("", True)]
    assert [*line_parts(io.BytesIO(given))] == parts
    assert [*line_parts(io.BytesIO(b""))] == []
