"""A sentence with those before it in its document."""

import dataclasses

import numpy as np
import pytest

from tests import tiny_runs as runs
from transformer_jax.config.data import DataConfig
from transformer_jax.errors import DataError
from transformer_jax.text.corpora import open_corpus
from transformer_jax.text.documents import InContext
from transformer_jax.text.mixture import plain_parts
from transformer_jax.training.text_checks import warn_of_splits

LINES = ["a", "b", "c", "d", "e"]


@pytest.fixture
def folder(tmp_path):
    """Five pairs in two documents of three and two: by names, and in `blank` by blank lines."""
    for stem, lines in {"train": LINES, "blank": ["a", "b", "c", " ", "", "d", "e"]}.items():
        runs.write_lines(tmp_path / f"{stem}.en", lines)
        runs.write_lines(tmp_path / f"{stem}.de", [x.upper() for x in lines])
    runs.write_lines(tmp_path / "train.doc", ["x", "x", "x", "y", "y"])
    return tmp_path


def sources(folder, context: int, stem: str = "train", **keys) -> list[str]:
    data = DataConfig(path=str(folder), train=(stem,), valid=("blank",), context=context, **keys)
    return [pair.src for pair in open_corpus(data).split("train")]


def test_the_nearest_sentence_comes_first_and_none_from_another_document(folder):
    assert sources(folder, 1) == ["a\t", "b\ta", "c\tb", "d\t", "e\td"]
    assert sources(folder, 2) == ["a\t\t", "b\ta\t", "c\tb\ta", "d\t\t", "e\td\t"]
    assert sources(folder, 0) == LINES


def test_pairs_that_are_blank_on_both_sides_end_documents(folder):
    assert sources(folder, 2, "blank") == ["a\t\t", "b\ta\t", "c\tb\ta", " ", "", "d\t\t", "e\td\t"]
    runs.write_lines(folder / "blank.de", ["A", "B", "C", "D", "", "D", "E"])
    # Only one side is blank: a pair of the document, which has no source.
    assert sources(folder, 1, "blank")[3:6] == [" ", "", "d\t"]


def test_a_slice_keeps_the_context_of_the_whole_text(folder):
    assert sources(folder, 1, "train[2:4]") == ["c\tb", "d\t"]
    data = DataConfig(path=str(folder), train=("train",), valid=("blank",), context=1)
    pairs = open_corpus(data).split("train")
    assert pairs[1:3] == [("b\ta", "B"), ("c\tb", "C")] and pairs[4].src == "e\td"
    assert [len(part) for part in plain_parts(pairs)] == [5]


def test_context_comes_with_directions_and_tags(folder):
    assert sources(folder, 1, "train@bt", directions=("en-de",))[:2] == [
        ">>de<< >>bt<< a\t",
        ">>de<< >>bt<< b\ta",
    ]


def test_tabs_in_sentences_are_spaces(folder):
    runs.write_lines(folder / "train.en", ["a\ta", *LINES[1:]])
    assert sources(folder, 1)[:2] == ["a a\t", "b\ta a"]


def test_the_content_of_documents_counts(folder):
    digests = set()

    def digest(context: int) -> str:
        data = DataConfig(path=str(folder), train=("train",), valid=("blank",), context=context)
        return open_corpus(data).fingerprint("train")

    digests |= {digest(0), digest(1), digest(2)}
    runs.write_lines(folder / "train.doc", ["x", "x", "y", "y", "y"])
    assert sources(folder, 1)[2] == "c\t"
    assert len(digests | {digest(1)}) == 4


def test_a_file_of_documents_has_a_line_for_each_pair(folder):
    runs.write_lines(folder / "train.doc", ["x", "y"])
    with pytest.raises(DataError, match="train.doc has 2 lines, and the text has 5"):
        sources(folder, 1)
    runs.write_lines(folder / "train.doc", ["x", "x", " ", "y", "y"])
    with pytest.raises(DataError, match="train.doc, line 3 is blank: line n names the document"):
        sources(folder, 1)


def test_documents_of_one_line_are_warned_of(folder, caplog):
    sources(folder, 1)
    assert not caplog.messages
    runs.write_lines(folder / "train.doc", LINES)
    sources(folder, 1)
    assert "names another document in each line" in caplog.text


def test_the_same_number_of_sentences_before_is_no_common_text(folder, caplog):
    data = DataConfig(path=str(folder), valid=("train[:1]",), test=("blank",), context=1)
    data = dataclasses.replace(data, train=("train[1:]",))
    warn_of_splits(open_corpus(data), data, "")
    assert "has files of the training text" not in caplog.text


def test_lines_that_arrive_get_those_before_them_without_their_codes():
    add = InContext(2)
    found = [add(line) for line in ["a", "b", "", "c", "d\tgiven\tby hand", "e"]]
    assert found == ["a\t\t", "b\ta\t", "", "c\t\t", "d\tgiven\tby hand", "e\td\tc"]
    assert [InContext(0)(line) for line in ("a", "", "b")] == ["a", "", "b"]
    add = InContext(1, {">>de<<", ">>en<<"})
    coded = [add(line) for line in (">>de<< a", ">>en<< b", "c")]
    assert coded == [">>de<< a\t", ">>en<< b\ta", "c\tb"]


def test_sentences_of_the_context_are_learned_once(folder, monkeypatch):
    from transformer_jax.training import vocabulary as module

    seen: list[str] = []

    def spy(lines, *others):
        seen.extend(lines)
        raise DataError("enough")

    monkeypatch.setattr(module, "train_vocabulary", spy)
    config = runs.tiny_config(
        data__path=str(folder), data__valid=("blank",), data__context=1, model__sources=2
    )
    corpus = open_corpus(config.data)
    with pytest.raises(DataError, match="enough"):
        module.new_vocabulary(config, corpus, corpus.fingerprint("train"))
    assert seen == [text for line in LINES for text in (line, line.upper())]
    np.testing.assert_array_equal(open_corpus(config.data).split("train").starts, [0, 0, 0, 3, 3])
