"""Warnings about a text whose lines do not look like pairs."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from tests import tiny_runs as runs
from transformer_jax.text.corpora import open_corpus
from transformer_jax.training import line_checks

Warnings = Callable[..., list[str]]


@pytest.fixture
def warnings(tmp_path, caplog) -> Warnings:
    """Writes files of a training text, by suffix, and gives the warnings about it."""

    def told(files: dict[str, Sequence[str]], **changes: Any) -> list[str]:
        for suffix, lines in files.items():
            stem = "" if "." in suffix else "train."
            runs.write_lines(tmp_path / f"{stem}{suffix}", lines)
        data = {"data__path": str(tmp_path), "data__train": ("train",), "data__test": ()}
        config = runs.tiny_config(**data | {"data__valid": ("train",)} | changes)
        pairs = open_corpus(config.data).split("train")
        caplog.clear()  # opening warns too
        line_checks.warn_of_texts(pairs, config)
        return caplog.messages

    return told


def lengths(seed: int = 0, count: int = 4_000) -> np.ndarray:
    return np.random.default_rng(seed).integers(2, 60, count)


def similar(sizes: np.ndarray) -> np.ndarray:
    """Lengths of translations of lines with these lengths."""
    return np.maximum(sizes + np.random.default_rng(1).integers(-4, 5, len(sizes)), 1)


def lines(sizes: np.ndarray, letter: str = "a") -> list[str]:
    return [letter * size for size in sizes]


def one_off(sizes: np.ndarray, first: int) -> np.ndarray:
    """The same with line `first` (from 0) lost, and one at the end."""
    return np.append(np.delete(sizes, first), 3)


EN, DE = lengths(), similar(lengths())
LOST = np.insert(DE, 2_000, 30)[:-1]  # from line 2,001 on the target is a line later


def test_lines_that_are_one_off_from_some_line_on_are_told(warnings):
    [found] = warnings({"en": lines(EN), "de": lines(LOST, "b")})
    assert found == (
        "train.en and train.de: the lengths of both sides do not correlate in 5 of 10 blocks of "
        "400 lines, first in that from line 2001, but do with the target +1 lines on: do these "
        "lines belong together?"
    )
    [found] = warnings({"en": lines(LOST), "de": lines(DE, "b")})
    assert "with the target -1 lines on" in found
    shuffled = lines(np.random.default_rng(2).permutation(DE), "b")
    [found] = warnings({"en": lines(EN), "de": shuffled})
    assert "in 10 of 10 blocks" in found and "lines on" not in found


@pytest.mark.parametrize(
    ("en", "de"),
    [
        (EN, DE),
        (np.where(np.random.default_rng(0).random(4_000) < 0.1, 0, EN), DE),  # blank lines
        (EN, 2 + np.arange(4_000) % 3),  # labels
        (EN[:99], EN[-99:]),  # too few to tell
    ],
)
def test_lines_that_belong_together_are_not(en, de, warnings):
    assert not warnings({"en": lines(en), "de": lines(de, "b")})


def test_the_last_block_counts_and_a_slice_says_which_line_of_the_file(warnings):
    late = np.concatenate([DE[:300], DE[299:389]])
    [found] = warnings({"en": lines(EN[:390]), "de": lines(late, "b")})
    assert "first in that from line 291" in found
    files = {"en": lines(EN), "de": lines(LOST, "b")}
    assert not warnings(files, data__train=("train[:2000]",))
    [found] = warnings(files, data__train=("train[1000:]",))
    assert "in 7 of 10 blocks of 300 lines, first in that from line 1901" in found


def test_of_a_long_text_so_many_blocks_are_read(warnings, monkeypatch):
    monkeypatch.setattr(line_checks, "MOST_BLOCKS", 3)
    [found] = warnings({"en": lines(EN), "de": lines(LOST, "b")})
    assert "in 1 of 3 blocks of 400 lines, first in that from line 3601" in found


def test_each_source_language_and_the_sentence_itself_are_compared(warnings):
    """However the model reads several: as one source, or each by itself."""
    files = {"en": lines(EN), "fr": lines(lengths(5), "c"), "de": lines(DE, "b")}
    for sources in (1, 2):
        changes = {"data__src": "en,fr", "model__sources": sources}
        [found] = warnings(files, **changes)
        assert "the lengths of the fr text and the target do not" in found
    of_documents = {"en": lines(EN), "de": lines(LOST, "b"), "train.doc": ["a"] * 4_000}
    for text, number in (("train", 2_001), ("train[400:]", 2_201)):
        for sources in (1, 2):
            changes = {"data__context": 1, "model__sources": sources, "data__train": (text,)}
            [found] = warnings(of_documents, **changes)
            assert f"first in that from line {number}, but do with the target +1" in found


def test_each_text_of_a_mixture_is_named_once(warnings):
    files = {"en": lines(EN), "de": lines(DE, "b"), "bt.en": lines(EN), "bt.de": lines(LOST, "b")}
    ways = ("en-de", "de-en")
    [found] = warnings(files, data__train=("train", "bt@bt"), data__directions=ways)
    assert found.startswith("bt.en and bt.de: ") and "from line 2001" in found


def test_a_side_in_another_side_s_language_is_told(warnings):
    a, b, c = (lines(own, letter) for own, letter in ((EN, "a"), (DE, "b"), (DE, "c")))
    swapped = {"en": a[:2_000] + b[2_000:], "de": b[:2_000] + a[2_000:]}
    assert warnings(swapped) == [
        "train.en and train.de: in 5 of 10 blocks of lines, first from line 2001, the source looks "
        "like the target of train.en and train.de: are sides swapped?",
        "train.en and train.de: in 5 of 10 blocks of lines, first from line 2001, the target looks "
        "like the source of train.en and train.de: are sides swapped?",
    ]
    two = {"en": a, "de": b, "more.en": b, "more.de": a}
    found = warnings(two, data__train=("train", "more@bt"))
    assert len(found) == 2 and all("more.en and more.de: in 10 of 10" in one for one in found)
    directions = {"data__train": ("train:en-de", "more:de-en"), "data__directions": ("en-de",)}
    assert [one.split("line 1, ")[1] for one in warnings(two, **directions)] == [
        "the source looks like the en text of train.en and train.de: are sides swapped?",
        "the target looks like the de text of train.en and train.de: are sides swapped?",
    ]
    french = {"en": a, "de": b, "one.en": a, "one.fr": c, "more.en": a, "more.fr": b}
    texts = ("train:en-de", "one:en-fr", "more:en-fr")
    [found] = warnings(french, data__train=texts, data__directions=("en-de", "en-fr"))
    assert "more.en and more.fr" in found and "the target looks like the de text of train" in found
    both = {"data__train": ("train@de", "more@en"), "train__objective": "back_translation"}
    assert not warnings(two, **both)
    [found] = warnings(two, **both | {"data__train": ("train@de", "more@en", "more[9:999]@de")})
    assert "the target looks like the >>en<< text of more.en and more.de: are" in found
    three = {"en": a, "fr": c, "de": b, "more.en": c, "more.fr": a, "more.de": b}
    found = warnings(three, data__src="en,fr", data__train=("train", "more"))
    assert [one.split("line 1, ")[1].split(" of train")[0] for one in found] == [
        "the en text looks like the fr text",
        "the fr text looks like the en text",
    ]
    alone = {"txt": a, "more.txt": b}
    changes = {"data__src": "", "data__tgt": "txt", "model__encoder": "none"}
    assert not warnings(alone, data__train=("train", "more"), **changes)
    one_language = {"en": a, "de": a[::-1], "more.en": a[1:], "more.de": a[:0:-1]}
    assert not [x for x in warnings(one_language, data__train=("train", "more")) if "looks" in x]


def test_a_side_that_is_one_line_is_told(warnings):
    files = {"en": lines(EN), "de": ["nan"] * 2_100 + lines(DE[:1_900], "b")}
    told = [one for one in warnings(files) if "target is" in one]
    assert told == ["train.en and train.de: in 2100 of 4000 pairs the target is 'nan'"]
    files["de"] = ["nan"] * 2_000 + lines(DE[:2_000], "b")
    assert not [one for one in warnings(files) if "target is" in one]


X, Y, Z = (lines(lengths(n, 30), letter) for n, letter in enumerate("xyz"))


@pytest.mark.parametrize(
    ("files", "changes", "told"),
    [
        ({"de": X[:16] + Y[16:]}, {}, "train.de: in 16 of 30 pairs the source is the target"),
        ({"de": X[:15] + Y[15:]}, {}, ""),
        ({"de": X[:16] + Y[16:]}, {"data__train": ("train@bt",)}, "the source is the target"),
        ({"de": X}, {"train__objective": "back_translation"}, ""),
        ({"de": Y, "fr": Y}, {"data__src": "en,fr"}, "the fr text is the target"),
        ({"de": Y, "fr": X}, {"data__src": "en,fr"}, "the en text is the fr text"),
        (
            {"de": Y, "fr": ["", *[""] * 3, *Z[4:]]},
            {"data__src": "en,fr"},
            "4 of 30 pairs have no fr",
        ),
        ({"de": Y, "fr": ["", *[""] * 2, *Z[3:]]}, {"data__src": "en,fr"}, ""),
        ({"de": ["", "", *Y[2:]], "en": ["", "", *X[2:]]}, {}, ""),
        ({"txt": X}, {"data__src": "", "data__tgt": "txt", "model__encoder": "none"}, ""),
    ],
)
def test_equal_and_missing_sides_are_told(files, changes, told, warnings):
    found = warnings({"en": X, **files}, **changes)
    assert len(found) == bool(told) and told in "".join(found)


def test_a_pair_without_any_source_is_not_one_that_lacks_a_language(warnings):
    files = {"en": [*X[:29], ""], "fr": [*Z[:25], *[""] * 5], "de": Y}
    assert warnings(files, data__src="en,fr") == [
        "train.en and train.fr and train.de: 4 of 29 pairs have no fr text"
    ]


@pytest.mark.parametrize(("others", "told"), [(3, "in 4 of 12 pairs the source is"), (4, "")])
def test_one_picture_for_most_lines_is_told(others, told, warnings):
    names = ["a.png"] * 4 + [f"{i}.png" for i in range(others)] + [""] * 5
    changes = {"data__src_kind": "pictures", "model__features": 16}
    found = warnings({"pics": names, "de": Y[: len(names)]}, data__src="pics", **changes)
    assert len(found) == bool(told) and told in "".join(found)


def test_codes_in_the_text_are_told(warnings):
    files = {"en": [">>de<< a", "b", "c"], "de": ["x", "y", "z"]}
    [found] = warnings(files, data__directions=("en-de",))
    assert "train.en and train.de: 1 of the first 3 source lines have a code of their own" in found


def test_lines_of_two_blocks_count_once(warnings):
    same = [str(n) for n in range(120)]
    [found] = warnings({"en": same, "de": same})
    assert found.endswith("in 120 of 120 pairs the source is the target")
    [found, *_] = warnings({"en": same, "de": ["nan"] * 120})
    assert found.endswith("in 120 of 120 pairs the target is 'nan'")


def test_a_table_in_place_of_a_side_is_told(warnings):
    de = lines(DE[:200], "b")
    table = [f"{src}\t{tgt}" for src, tgt in zip(lines(EN[:200]), de, strict=True)]
    tabs, inside = warnings({"en": table, "de": de})
    assert tabs.endswith("in 200 of 200 pairs the source has a tab: is it a table of both sides?")
    # Some targets are shorter than 10 characters.
    assert f"in {(DE[:200] >= 10).sum()} of 200 pairs the target stands inside the source" in inside
    two = {"en": lines(EN[:200]), "fr": lines(EN[:200], "c"), "de": de}
    assert not warnings(two, data__src="en,fr")


def test_the_built_in_corpus_is_not_looked_at(caplog):
    config = runs.tiny_config(data__source="grammar", data__path=None)
    line_checks.warn_of_texts(open_corpus(config.data).split("valid"), config)
    assert not caplog.records


def test_paths_of_files_decide_what_is_the_same_text(warnings, tmp_path):
    (tmp_path / "other").mkdir()
    files = {"en": lines(EN[:300]), "de": lines(EN[-300:], "b")}
    files |= {f"other/train.{suffix}": text for suffix, text in list(files.items())}
    assert len(warnings(files, data__train=("train", "other/train", "train*2"))) == 2


def test_a_language_is_the_frequencies_of_its_trigrams():
    language = line_checks.Language(["ab", "ab"])  # " ab" and "ab " twice each
    assert language.nats(["AB"]) == pytest.approx(np.log(9 / 3))
    assert language.nats(["abc"]) == pytest.approx(np.log(9) - np.log([3, 1, 1]).mean())
    assert language.nats([]) == line_checks.Language([]).nats(["ab"]) == np.inf


def test_lines_that_are_two_off_are_told(warnings):
    [found] = warnings({"en": lines(EN), "de": lines(np.roll(DE, 2), "b")})
    assert "but do with the target +2 lines on" in found
    [found] = warnings({"en": lines(EN), "de": lines(np.roll(DE, 3), "b")})
    assert "lines on" not in found


@pytest.mark.parametrize(("filled", "is_told"), [(49, False), (50, True)])
def test_too_few_lines_with_text_do_not_correlate(filled, is_told, warnings):
    sizes = np.zeros(100, int)
    sizes[:filled] = EN[:filled]
    found = warnings({"en": lines(sizes), "de": lines(np.where(sizes, EN[500:600], 0), "b")})
    assert bool(found) == is_told
