"""Links between words: as text, as subwords, in packed batches, and from each kind of corpus."""

import dataclasses
import logging

import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.fixtures.cases import refused
from tests.fixtures.encoded import encode_pairs, rows_of
from transformer_jax.config.vocabulary import VocabularyConfig
from transformer_jax.errors import DataError
from transformer_jax.text.batches import TrainSource, packed_batch
from transformer_jax.text.built_in_corpus import built_in_pairs
from transformer_jax.text.corpora import open_corpus
from transformer_jax.text.encoded import EncodedLinks
from transformer_jax.text.folder_corpus import AlignedWords, Pair
from transformer_jax.text.links import _subword_links, encode_links, link_bits
from transformer_jax.text.packing import plan_rows
from transformer_jax.text.pharaoh import read_alignments
from transformer_jax.text.vocabulary_training import train_vocabulary
from transformer_jax.text.words import subword_words, words_of

# Alignments as text: the form i-j, and the line of every mistake ---------------------------------

THREE = [Pair("a b c", "x y"), Pair("", ""), Pair("a\u00a0b", "x")]


def test_links_are_read_in_order_and_once(tmp_path):
    path = runs.write_lines(tmp_path / "gold", [" 2-1 0-0\t2-1 ", "", "0-0"])
    assert read_alignments(path, THREE) == [((0, 0), (2, 1)), (), ((0, 0),)]


def test_links_that_never_name_the_first_words_are_told(tmp_path, caplog):
    pairs = [Pair("a b c", "x y z")] * 100
    for links, is_told in (("1-1 2-2", True), ("0-1 2-2", False), ("1-0 2-2", False)):
        path = runs.write_lines(tmp_path / "links", [links] * 100)
        caplog.clear()
        assert len(read_alignments(path, pairs)) == 100
        assert ("100 pairs name neither source word 0 nor" in caplog.text) == is_told
    path = runs.write_lines(tmp_path / "links", ["1-1", *[""] * 99])
    caplog.clear()
    read_alignments(path, pairs)
    assert not caplog.records


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
        read_alignments(path, THREE)


# Links of subwords -------------------------------------------------------------------------------

PAIRS = built_in_pairs("train", 60)
LINES = [Pair(pair.src, pair.tgt) for pair in PAIRS]
GOLD = [AlignedWords(pair.src_words, pair.tgt_words, pair.alignment) for pair in PAIRS]


def trained(**changes):
    config = VocabularyConfig(size=400, **changes)
    return train_vocabulary([line for pair in LINES for line in pair], config, seed=0)


VOCABULARY = trained(normalization="identity")
ENCODED = encode_pairs(LINES, VOCABULARY)
LINKS = encode_links(GOLD, ENCODED, VOCABULARY)


def links_of(links: EncodedLinks, number: int) -> set[tuple[int, int]]:
    place = slice(*links.offsets[number : number + 2])
    return set(zip(links.src[place].tolist(), links.tgt[place].tolist(), strict=True))


@pytest.mark.parametrize("link", [(1, 0), (0, 1)])
def test_a_word_in_which_no_subword_begins_has_no_link(link):
    """Not one to EOS either, whose word is -1."""
    src, tgt = _subword_links(np.array([0, 0, -1]), np.array([0, -1]), [link])
    assert not len(src) and not len(tgt)


def test_every_subword_of_a_word_is_linked_to_every_subword_of_its_words():
    for number, pair in enumerate(PAIRS):
        src = subword_words(VOCABULARY.pieces(ENCODED.src(number)), pair.src_words)
        tgt = subword_words(VOCABULARY.pieces(ENCODED.tgt(number)), pair.tgt_words)
        want = {
            (m, n) for m, i in enumerate(src) for n, j in enumerate(tgt) if (i, j) in pair.alignment
        }
        assert links_of(LINKS, number) == want and want
    assert len(LINKS.offsets) == len(PAIRS) + 1


def test_a_packed_batch_has_the_bits_of_its_pairs_links():
    encoded = dataclasses.replace(ENCODED, links=LINKS)
    lengths = encoded.src_lengths(), encoded.tgt_lengths()
    plan = plan_rows(*lengths, 70, 65, seed=0)  # three numbers of 32 bits, the last not full
    rows = rows_of(plan)
    batch = packed_batch(encoded, plan, np.arange(len(rows)))
    assert batch.links.shape == (len(rows), 65, 3) and batch.links.dtype == np.uint32
    places = np.arange(70)
    for bits, pairs in zip(batch.links, rows, strict=True):
        want = np.zeros((65, 70), bool)
        src_begin = tgt_begin = 0
        for pair in pairs:
            for m, n in links_of(LINKS, pair):
                want[tgt_begin + n, src_begin + m] = True
            src_begin += len(encoded.src(pair))
            tgt_begin += len(encoded.tgt(pair))
        got = (bits[:, places // 32] >> (places % 32).astype("u4")) & 1
        np.testing.assert_array_equal(got.astype(bool), want)
    source = TrainSource(encoded, plan, 5, seed=0)
    assert source[0].links.any()


def test_only_the_first_pairs_keep_their_links():
    few = encode_links(GOLD, ENCODED, VOCABULARY, 7)
    assert len(few.offsets) == len(LINKS.offsets)
    for number in range(len(PAIRS)):
        assert links_of(few, number) == (links_of(LINKS, number) if number < 7 else set())


def test_no_pairs_no_bits():
    empty = np.zeros(0, np.int64)
    assert not link_bits(LINKS, empty, empty, (empty, empty), (2, 3, 4)).any()


def test_words_that_the_vocabulary_spells_otherwise_are_counted_between_spaces(caplog):
    lower = trained(normalization="nmt_nfkc_cf")
    lines = [Pair("The Dog .", "Der Hund ."), Pair("a\u00a0b c", "x y")]
    aligned = [
        AlignedWords(words_of(pair.src), words_of(pair.tgt), ((0, 0), (1, 1))) for pair in lines
    ]
    encoded = encode_pairs(lines, lower)
    with caplog.at_level(logging.WARNING):
        links = encode_links(aligned, encoded, lower)
    pieces = lower.pieces(encoded.src(0)), lower.target.pieces(encoded.tgt(0))
    first = [[n for n, p in enumerate(side) if p.startswith("\u2581")] for side in pieces]
    assert (first[0][1], first[1][1]) in links_of(links, 0)
    assert not links_of(links, 1), "the vocabulary makes a space of U+00A0, so there are 3 words"
    assert "no links in 1 pairs" in caplog.text
    with pytest.raises(DataError, match="no pair has a link"):
        encode_links([AlignedWords(["a"], ["b"], ())] * 2, encoded, lower)


# Corpora ------------------------------------------------------------------------------------------


def folder(tmp_path, stem="train", pairs=tuple(PAIRS)):
    sides = {
        "en": [" ".join(p.src_words) for p in pairs],
        "de": [" ".join(p.tgt_words) for p in pairs],
        "align": [" ".join(f"{i}-{j}" for i, j in p.alignment) for p in pairs],
    }
    for suffix, lines in sides.items():
        runs.write_lines(tmp_path / f"{stem}.{suffix}", lines)
    return tmp_path


def corpus(path, **changes):
    values = {f"data__{name}": value for name, value in changes.items()}
    return open_corpus(runs.tiny_config(data__path=str(path), data__alignments=True, **values).data)


@pytest.mark.parametrize("train", [("train",), ("train[10:30]", "train[:5]")])
def test_links_stay_beside_their_pairs_in_slices_and_when_a_split_is_cut_off(tmp_path, train):
    files = corpus(folder(tmp_path), train=train)
    for split in ("train", "valid"):
        pairs = files.split(split)
        aligned = files.alignments(split)
        assert len(pairs) == len(aligned) > 0
        known = {" ".join(p.src_words): p.alignment for p in PAIRS}
        for pair, one in zip(pairs, aligned, strict=True):
            assert (words_of(pair.src), words_of(pair.tgt)) == (one.src, one.tgt)
            assert one.links == known[pair.src]


def test_the_links_of_training_are_part_of_its_fingerprint(tmp_path):
    path = folder(tmp_path)
    before = corpus(path).fingerprint("train"), corpus(path).fingerprint("valid")
    lines = runs.read_lines(path / "train.align")
    runs.write_lines(path / "train.align", ["", *lines[1:]])
    assert corpus(path).fingerprint("train") != before[0]
    assert corpus(path).fingerprint("valid") == before[1]
    without = open_corpus(runs.tiny_config(data__path=str(path)).data).fingerprint("train")
    assert without not in (before[0], corpus(path).fingerprint("train"))


def test_a_missing_file_and_a_wrong_link_are_named(tmp_path):
    path = folder(tmp_path)
    runs.write_lines(path / "train.align", ["0-0"] * 59 + ["0-99"])
    with pytest.raises(DataError, match="train.align, line 60: the link 0-99 names target word"):
        list(corpus(path, valid=("train",)).alignments("train"))
    runs.write_lines(path / "train.align", ["0-0"] * 59)
    with pytest.raises(DataError, match="train.align has 59 lines for 60 pairs"):
        corpus(path).alignments("train")
    (path / "train.align").unlink()
    command = r"transformer-jax align --src=.*train.en --tgt=.*train.de > .*train.align"
    with pytest.raises(DataError, match=f"train.align: no such file.*{command}"):
        corpus(path).alignments("train")


def test_other_sources_have_no_links(tmp_path):
    with pytest.raises(DataError, match="data.alignments=True with data.source='parquet'"):
        corpus(tmp_path, source="parquet", valid=("valid",)).alignments("train")


@pytest.mark.parametrize(("src", "tgt"), [("en", "de"), ("de", "en")])
def test_the_built_in_corpus_has_gold_links_in_both_directions(src, tgt):
    built_in = corpus("", source="grammar", src=src, tgt=tgt)
    [pair, aligned] = built_in.split("test")[0], built_in.alignments("test")[0]
    first = built_in_pairs("test", 1)[0]
    assert {src: pair.src, tgt: pair.tgt} == {"en": first.src, "de": first.tgt}
    words = {"en": first.src_words, "de": first.tgt_words}
    assert {src: aligned.src, tgt: aligned.tgt} == words
    links = first.alignment if src == "en" else tuple(sorted((j, i) for i, j in first.alignment))
    assert aligned.links == links
