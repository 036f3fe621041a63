"""Lines to subwords and back, for every string; training that repeats; errors of one line."""

import dataclasses
import os
import re

import pytest
import sentencepiece
from hypothesis import example, given
from hypothesis import strategies as st

from transformer_jax.config.vocabulary import VocabularyConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.text import vocabulary_training as module
from transformer_jax.text.bundle import Bundle, packed, unpacked
from transformer_jax.text.vocabulary import (
    BOS,
    EOS,
    PAD,
    UNK,
    MergeDropout,
    TableVocabulary,
    Vocabulary,
    load_vocabulary,
)
from transformer_jax.text.vocabulary_training import (
    train_vocabularies,
    train_vocabulary,
    word_splitter,
)

WORDS = "Hund Katze läuft über Straße dog cat runs across the street Zug train kommt comes".split()
LINES = [
    " ".join(WORDS[(7 * i + j * j) % len(WORDS)] for j in range(3 + i % 9)) for i in range(400)
]
CONFIG = VocabularyConfig(size=330)
WHITE = re.compile("[ \u2581]+")

anything = st.text(st.characters(exclude_categories=["Cs"]))


def trained(**changes) -> Vocabulary:
    """A vocabulary of LINES."""
    return train_vocabulary(LINES, dataclasses.replace(CONFIG, **changes), seed=0)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    """With the default normalization."""
    return trained()


def squeezed(line: str) -> str:
    """The line with each run of spaces one space, and none at its ends; white space is blank."""
    if not line.strip():
        return ""
    return " ".join(part for part in WHITE.split(line) if part)


# There and back -------------------------------------------------------------------------------

IDENTITY = trained(normalization="identity")
NMT_NFKC = trained(normalization="nmt_nfkc")
UNIGRAM = trained(kind="unigram", normalization="nfkc_cf", size=290)


@pytest.mark.parametrize(
    "vocabulary", [IDENTITY, NMT_NFKC, UNIGRAM], ids=["identity", "bpe", "unigram"]
)
@given(line=anything)
@example(line="\x00 a\x00")
@example(line="\u2581 a \u2581\u2581b\u2581")
@example(line="<s> <0x41> </s> <unk> \u2047")
@example(line="\ufffd\U0010ffff\ufdfa\t\r\n\x85")
@example(line="ﬁ Å ½ ①　ｗ\u200b\ufeff\x7f")
def test_decode_of_encode_is_the_line_itself_or_sentencepiece_s_normalized_line(vocabulary, line):
    reference = sentencepiece.SentencePieceProcessor(model_proto=vocabulary.model)
    normalized = line if vocabulary is IDENTITY else reference.normalize(line)
    ids = vocabulary.encode(line)
    assert vocabulary.decode(ids) == (squeezed(normalized) if line.strip() else "")
    assert vocabulary.decode(ids) == vocabulary.normalize(line)
    assert all(UNK < i < vocabulary.size for i in ids)


def test_nfkc_is_the_default_and_is_seen(vocabulary):
    assert VocabularyConfig().normalization == "nmt_nfkc"
    assert vocabulary.normalize("ﬁ\u3000½") == "fi 1⁄2"
    assert IDENTITY.normalize("ﬁ\u3000½") == "ﬁ\u3000½"
    assert UNIGRAM.normalize("HUND") == "hund"


def test_a_lone_surrogate_becomes_a_question_mark(vocabulary):
    assert vocabulary.decode(vocabulary.encode("a\ud800b")) == vocabulary.normalize("a?b") == "a?b"


def test_a_line_of_200_kb_is_encoded_whole(vocabulary):
    for line in ("Hund läuft " * 18_000, "ß" * 100_000, "日本" * 33_000):
        assert vocabulary.decode(vocabulary.encode(line)) == line.strip()


def test_many_lines_encode_as_each_alone(vocabulary):
    lines = [*LINES, "", " ", "\x00", "\ud800", "日本"] * 3
    encoded = vocabulary.encode_lines(lines)
    assert [ids.tolist() for ids in encoded] == [vocabulary.encode(line) for line in lines]
    assert encoded[0].dtype == "int32"
    assert vocabulary.encode_lines([]) == []


def lengths(vocabulary: Vocabulary, lines: list[str], rate: float, seed: int = 0) -> list[int]:
    return [len(ids) for ids in vocabulary.encode_lines(lines, MergeDropout(rate, seed))]


def test_merges_are_skipped_at_the_rate():
    """ "ab" is two merges, so it stays whole if neither is skipped."""
    pieces = train_vocabulary(["ab"] * 300, VocabularyConfig(size=265), seed=0)
    assert pieces.pieces(pieces.encode("ab")) == ["\u2581ab"]
    count = 4_000
    whole = lengths(pieces, ["ab"] * count, 0.2).count(1) / count
    assert abs(whole - 0.8**2) < 5 * (0.64 * 0.36 / count) ** 0.5


@pytest.mark.parametrize("own", ["one model", "a table"])
def test_dropout_splits_words_anew_and_changes_no_text(vocabulary, own):
    if own == "a table":
        vocabulary = train_vocabularies(LINES, LINES, CONFIG, seed=0).target
    drawn = vocabulary.encode_lines(LINES, MergeDropout(0.1, seed=3))
    assert [vocabulary.decode(ids) for ids in drawn] == [vocabulary.normalize(x) for x in LINES]
    usual = list(map(len, vocabulary.encode_lines(LINES)))
    assert sum(map(len, drawn)) > 1.05 * sum(usual)
    assert lengths(vocabulary, LINES, 0.1, seed=3) == list(map(len, drawn))
    assert lengths(vocabulary, LINES, 0.1, seed=4) != list(map(len, drawn))
    assert list(map(len, vocabulary.encode_lines(LINES))) == usual, "only where it is asked for"


def test_decode_leaves_out_control_ids_at_any_place(vocabulary):
    ids = vocabulary.encode("Hund läuft")
    mixed = [BOS, PAD, ids[0], EOS, *ids[1:], UNK, EOS, PAD]
    assert vocabulary.decode(mixed) == "Hund läuft"
    assert vocabulary.decode([PAD, EOS]) == vocabulary.decode([]) == ""


def test_each_side_can_have_its_own_model(tmp_path):
    sides = [line.upper() for line in LINES], LINES
    both, same = (train_vocabularies(*sides, CONFIG, seed=0) for _ in range(2))
    alone = [train_vocabulary(lines, CONFIG, 0) for lines in sides]
    assert (both.bundle.source, both.bundle.target) == tuple(one.model for one in alone)
    assert both.sizes == (330, 330) and not both.is_shared and both.target.target is both.target
    both.save(tmp_path / "vocabulary.model")
    again = load_vocabulary(tmp_path / "vocabulary.model")
    assert again.digest == both.digest == same.digest
    for one in (both, again):
        for line in ("HUND LÄUFT", "Hund läuft", "日本 \U0001f600", ""):
            for own, side in zip(alone, (one, one.target), strict=True):
                assert side.encode(line) == own.encode(line)
                assert side.decode(side.encode(line)) == own.decode(own.encode(line))
                assert side.pieces(side.encode(line)) == own.pieces(own.encode(line))
    assert both.target.normalize("ﬁ") == "fi"
    content = (tmp_path / "vocabulary.model").read_bytes()
    for place, value in ((4, 0xFF), (6, 1)):  # version and encryption of the first local header
        at = content.rindex(b"PK\x01\x02") + place + 2  # of a file in the zip's list of files
        damaged = content[:at] + bytes([value]) + content[at + 1 :]
        with pytest.raises(DataError, match="x is not a vocabulary of this project"):
            unpacked(damaged, "x")


def test_language_codes_are_text_for_a_vocabulary_of_each_side():
    """No table that is learned here has such a piece: all codes would be the same unknown one."""
    pairs = [(f">>{code}<< {line}", line) for code in ("deu", "fra") for line in LINES]
    both = train_vocabularies(*zip(*pairs, strict=True), CONFIG, seed=0)
    german, french = (both.encode(f">>{code}<< Hund") for code in ("deu", "fra"))
    assert german != french and UNK not in (*german, *french)
    assert both.decode(german) == ">>deu<< Hund"


def test_a_table_leaves_out_control_ids_and_takes_the_first_of_two_equal_pieces():
    def table(*pieces):
        model = NMT_NFKC.model
        return TableVocabulary(packed(Bundle(model, model, pieces, ("", ""))), "theirs")

    control = ("<pad>", "</s>", "<s>", "<unk>")
    [street] = NMT_NFKC.pieces(NMT_NFKC.encode("Straße"))
    vocabulary = table(*control, street, street)
    assert vocabulary.ids_of([street]) == {street: 4}
    assert vocabulary.decode([BOS, 4, UNK, PAD, 5, EOS]) == "Straße Straße"
    coded = table(*control, ">>deu<<")
    assert coded.encode(">>deu<< a")[0] == 4 and 4 not in coded.target.encode(">>deu<< a")
    assert coded.encode(">>deu<<  ") == []  # nothing to translate
    with pytest.raises(DataError, match="theirs has 3 pieces; 4 are control pieces"):
        table(*control[:3])


def test_pieces_that_the_target_s_model_lacks_are_written_with_spaces():
    """As MarianTokenizer of transformers 5.23 writes them; it has one table for both sides."""
    model = NMT_NFKC.model
    [street] = NMT_NFKC.pieces(NMT_NFKC.encode("Straße"))
    table = ("<pad>", "</s>", "<s>", "<unk>", street, "\u2581cauchemar", "mar", "\u2581")
    vocabulary = TableVocabulary(packed(Bundle(model, model, table, ("", "")))).target
    assert NMT_NFKC.ids_of(table[5:6]) == {"\u2581cauchemar": None}
    assert vocabulary.decode([5]) == "cauchemar"
    assert vocabulary.decode([5, 5, 4, 5]) == "cauchemar cauchemar Straße cauchemar"
    assert vocabulary.decode([4, 5, 7]) == "Straße cauchemar"


# Training -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_size_counts_bytes_and_control_pieces(kind):
    got = trained(kind=kind, size=290)
    reference = sentencepiece.SentencePieceProcessor(model_proto=got.model)
    assert got.size == reference.vocab_size() == 290
    assert [reference.id_to_piece(i) for i in range(4)] == ["<pad>", "</s>", "<s>", "<unk>"]
    assert sum(reference.is_byte(i) for i in range(290)) == 256


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_the_same_lines_give_the_same_bytes_whatever_the_number_of_cores(kind, monkeypatch):
    one = trained(kind=kind, size=290)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2}, raising=False)
    two = trained(kind=kind, size=290)
    assert one.model == two.model
    assert one.digest == two.digest != trained(kind=kind, size=289).digest
    assert len(one.digest) == 64


def test_a_common_word_is_one_piece_and_a_rare_character_is_bytes(vocabulary):
    assert len(vocabulary.encode("Straße")) == 1
    rare = train_vocabulary([*LINES, "日"], CONFIG, seed=0)
    assert "日" not in rare._processor.id_to_piece(list(range(rare.size)))
    assert rare.decode(rare.encode("日")) == "日"
    often = train_vocabulary([*LINES, "日" * 10], CONFIG, seed=0)  # one of 1,000 characters
    assert "日" in often._processor.id_to_piece(list(range(often.size)))


def test_a_character_of_the_trainer_s_own_costs_no_line():
    pieces = trained().pieces(range(CONFIG.size))
    marked = train_vocabulary([f"\u2585 {line}" for line in LINES], CONFIG, seed=0)
    assert marked.pieces(range(CONFIG.size)) == pieces
    assert marked.decode(marked.encode("Hund \u2585")) == "Hund \u2585"


def test_a_long_line_is_cut_between_characters_into_parts_the_trainer_takes():
    line = "日😀é a" * 1_500  # of 3, 4, 2, 1 and 1 bytes
    for text in (line, "😀" * 2_500):
        parts = list(module._trainer_lines([text, "b"]))
        assert max(map(len, parts)) <= 4_192, "the trainer skips longer ones"
        assert "".join(part.decode("utf-8", "strict") for part in parts) == text + "b"
    pair = "\U00010400\U00010401"  # two letters of four bytes each
    got = train_vocabulary([f"{pair} " * 1_400], dataclasses.replace(CONFIG, size=265), seed=0)
    assert len(got.encode(pair)) == 1


def test_more_than_max_lines_are_sampled_by_the_seed():
    config = dataclasses.replace(CONFIG, max_lines=100, size=290)
    models = {seed: train_vocabulary(iter(LINES), config, seed).model for seed in (0, 1)}
    assert models[0] == train_vocabulary(LINES, config, seed=0).model != models[1]


def test_every_line_is_as_likely_to_be_sampled():
    lines = [str(i) for i in range(12)]
    counts = dict.fromkeys(lines, 0)
    for seed in range(3_000):
        sample = list(module._sample(lines, 4, seed))
        assert len(set(sample)) == 4
        for line in sample:
            counts[line] += 1
    # 1,000 expected; the standard deviation is 26.
    assert all(870 < count < 1_130 for count in counts.values()), counts
    assert list(module._sample(lines, 12, 0)) == lines


@pytest.mark.parametrize(
    ("kind", "size", "side", "beyond"),
    [("bpe", 9_000, "less", 1), ("unigram", 9_000, "less", 1), ("bpe", 261, "more", -1)],
)
def test_a_size_that_cannot_be_names_the_nearest_that_works(kind, size, side, beyond):
    with pytest.raises(ConfigError, match=rf"vocabulary\.size={size} .* or {side}") as caught:
        trained(kind=kind, size=size)
    assert "\n" not in str(caught.value)
    nearest = int(re.search(rf"size to (\d+) or {side}", str(caught.value))[1])
    assert trained(kind=kind, size=nearest).size == nearest
    with pytest.raises(ConfigError, match=f"to {nearest} or {side}"):
        trained(kind=kind, size=nearest + beyond)


@pytest.mark.parametrize("lines", [[], ["", " ", "\u2581"]])
def test_no_text_is_an_error_of_the_data(lines):
    with pytest.raises(DataError, match=r"no text .*data\.path"):
        train_vocabulary(lines, CONFIG, seed=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "word"}, r"vocabulary\.kind='word' is not one of bpe, unigram"),
        ({"normalization": "nfd"}, r"vocabulary\.normalization='nfd' is not one of nmt_nfkc, "),
        ({"size": -1}, r"vocabulary\.size=-1"),
    ],
)
def test_a_key_that_cannot_be_is_named(change, message):
    with pytest.raises(ConfigError, match=message):
        trained(**change)


def test_the_library_writes_nothing(capfd):
    trained()
    for bad in (lambda: trained(size=9_000), lambda: Vocabulary(b""), lambda: Vocabulary(b"x")):
        with pytest.raises((ConfigError, DataError)):
            bad()
    assert capfd.readouterr() == ("", "")


# Files ----------------------------------------------------------------------------------------


def test_a_saved_vocabulary_is_the_same(tmp_path, vocabulary):
    path = tmp_path / "run" / "vocabulary.model"
    vocabulary.save(path)
    assert os.listdir(path.parent) == ["vocabulary.model"]
    again = load_vocabulary(path)
    assert (again.digest, again.encode("Katze")) == (vocabulary.digest, vocabulary.encode("Katze"))


def test_a_file_that_is_no_model_is_named(tmp_path):
    path = tmp_path / "some.vocab"
    for content in (b"", b"<pad>\t0\n</s>\t0\n", b"\x00" * 100, NMT_NFKC.model[:-9]):
        path.write_bytes(content)
        with pytest.raises(DataError, match=r"some\.vocab is not a SentencePiece model"):
            load_vocabulary(path)
    with pytest.raises(DataError, match=r"none\.model: No such file"):
        load_vocabulary(tmp_path / "none.model")
    with pytest.raises(DataError, match="Is a directory"):
        load_vocabulary(tmp_path)


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"byte_fallback": True}, r"= \(-1, 2, 1, 0\) and byte fallback"),
        ({"pad_id": 0, "eos_id": 1, "bos_id": 2, "unk_id": 3}, "and no byte fallback"),
    ],
)
def test_a_model_of_another_form_is_refused_with_the_flags_to_train_it(options, found):
    options |= {"vocab_size": 300, "hard_vocab_limit": False, "model_type": "unigram"}
    model = module._trained(iter(LINES), **options)
    with pytest.raises(DataError, match=f"theirs has .*{found}.*--pad_id=0 .*--byte_fallback"):
        Vocabulary(model, "theirs")


# Codes of languages and tags ------------------------------------------------------------------

CODES = (">>de<<", ">>bt<<")


@pytest.mark.parametrize("separate", [False, True])
def test_codes_that_begin_a_source_line_are_one_subword_each(separate):
    if separate:
        coded: Vocabulary = train_vocabularies(LINES, LINES, CONFIG, 0, CODES)
    else:
        coded = train_vocabulary(LINES, CONFIG, 0, CODES)
    text = "Hund läuft"
    ids = coded.encode(text)
    assert coded.codes == {">>de<<": 4, ">>bt<<": 5} and coded.size == CONFIG.size
    assert coded.encode(f">>bt<< {text}") == [5, *ids]
    assert coded.encode(f" >>de<<  >>bt<<{text}") == [4, 5, *ids]
    assert coded.decode([4, 5, *ids]) == text
    for blank in ("", " \t", " \u200b"):  # a line without text
        assert coded.encode(f">>de<<{blank}") == []
    assert 4 not in coded.encode(f"{text} >>de<<")  # only at the beginning
    assert coded.encode_lines([f">>bt<< {text}", "", text])[0].tolist() == [5, *ids]
    coded.check_codes(CODES)
    with pytest.raises(DataError, match="no subword >>fr<<.* it knows: bt, de"):
        coded.check_codes([">>de<<", ">>fr<<"])
    # The target writes text, whatever it looks like.
    if separate:
        assert not coded.target.codes and 4 not in coded.target.encode(">>de<< Hund")


def test_a_vocabulary_without_codes_reads_them_as_text(vocabulary):
    assert not vocabulary.codes
    assert vocabulary.decode(vocabulary.encode(">>de<< Hund")) == ">>de<< Hund"


def test_a_word_splitter_splits_at_spaces_alone():
    words = [f"word-{n}." for n in range(40)]
    splitter = sentencepiece.SentencePieceProcessor(model_proto=word_splitter(words))
    assert splitter.encode(" ".join(words[::-1]), out_type=str) == [
        f"\u2581{x}" for x in words[::-1]
    ]
