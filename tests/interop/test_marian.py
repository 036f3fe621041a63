"""A Marian folder in: logits against Marian's own formula, the vocabulary, what is refused."""

import functools
from typing import Any

import jax
import numpy as np
import pytest
import sentencepiece

from tests.fixtures.cases import first_quick
from tests.fixtures.tiny import lay_out, model_inputs, of_each_pair, relative_error
from tests.interop import marian_by_hand as marian
from transformer_jax.errors import UserError
from transformer_jax.interop.marian import read_marian, read_vocabulary_yml
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.text.bundle import packed
from transformer_jax.text.vocabulary import BOS, EOS, PAD, UNK, Sizes, TableVocabulary

SOURCE = ["the old dog sees a cat", "a cat sees the dog", "the man has an old dog"] * 9
TARGET = ["der alte Hund sieht eine Katze", "eine Katze sieht den Hund", "der Mann hat ihn"] * 9
KINDS = {
    "post": {},
    "pre": {**marian.PRE_NORM, "transformer-ffn-activation": "relu"},
    "untied": {"tied-embeddings-all": False},
    "target-tied": {"tied-embeddings-all": False, "tied-embeddings": True},
    "student": {"transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"},
    "student, pre": {**marian.PRE_NORM, "transformer-decoder-autoreg": "rnn", "dec-cell": "ssru"},
    "two vocabularies": {"tied-embeddings-all": False, "tied-embeddings": True},
    "two vocabularies, untied": {"tied-embeddings-all": False},
}


@functools.cache
def models() -> tuple[bytes, bytes]:
    return marian.train_spm(SOURCE, 60), marian.train_spm(TARGET, 60)


def folder_of(tmp_path, pieces=None, src_pieces=None, **changes) -> Any:
    options = {**marian.TINY, **changes}
    pieces = pieces or marian.pieces_of(*models())
    tables = [pieces] if src_pieces in (None, pieces) else [src_pieces, pieces]
    arrays = marian.random_arrays(options, len(pieces), src_vocabulary=len(tables[0]))
    return marian.write_folder(tmp_path / "opus", arrays, options, models(), *tables)


def read(folder):
    return read_marian(folder, ("en", "de"))


@pytest.mark.parametrize("kind", first_quick(KINDS, 3))
def test_logits_equal_marian_s_formula(kind, tmp_path):
    theirs = tables_of(kind)
    folder = folder_of(tmp_path, theirs[1], theirs[0], **KINDS[kind])
    found = read(folder)
    assert found.model.norm_epsilon == marian.EPSILON  # its effect here is within the tolerance
    options = {**marian.TINY, **KINDS[kind]}
    assert_marian_s_logits(found, marian.arrays_of(folder), options, theirs)


def assert_marian_s_logits(found, arrays, options, theirs) -> None:
    """An imported model gives the logits that the formula gives for Marian's arrays.

    `theirs`: the pieces of source and target in Marian's order.
    """
    ours = found.bundle.tables
    to_theirs = [
        [foreign.index(piece) if piece in foreign else None for piece in own]
        for foreign, own in zip(theirs, ours, strict=True)
    ]
    draw = np.random.default_rng(3)
    pairs = [
        tuple(
            [*draw.integers(4, len(own), n).tolist(), EOS]
            for own, n in zip(ours, lengths, strict=True)
        )
        for lengths in [(9, 7), (4, 5), (2, 1), (0, 6)]
    ]
    got = logits_of(found, pairs)
    columns = [i for i, own in enumerate(to_theirs[1]) if own is not None]
    assert columns == [EOS, UNK, *range(4, len(ours[1]))]
    for number, pair in enumerate(pairs):
        foreign = [[ids[i] for i in side] for ids, side in zip(to_theirs, pair, strict=True)]
        want = marian.logits_by_hand(arrays, options, *foreign)
        own = want[:, [to_theirs[1][i] for i in columns]]
        assert relative_error(got[number][:, columns], own) < 1e-5
        # Subwords that Marian does not have take nothing from the others.
        both = jax.nn.log_softmax(got[number][:, : len(ours[1])])[:, columns]
        assert relative_error(both, jax.nn.log_softmax(own)) < 1e-5


def logits_of(found, pairs) -> dict[int, Any]:
    """An imported model's logits at the target positions of four pairs; two of them share a row."""
    rows = [[0], [1, 2], [3]]
    batch = lay_out(pairs, rows, 18, 16)
    with jax.default_matmul_precision("highest"):
        model = make_model(found.model, Sizes(*map(len, found.bundle.tables)))
        logits = jax.jit(model.apply)({"params": found.params}, *model_inputs(batch))
    return of_each_pair(logits, batch, rows)


def tables_of(kind: str) -> tuple[list[str], list[str]]:
    """The pieces of source and target; in two vocabularies, control pieces have other ids."""
    pieces = marian.pieces_of(*models())
    return ([*pieces[2:20], "<unk>", "</s>"] if kind.startswith("two") else pieces), pieces


def test_matrices_that_are_one_in_marian_are_one_here(tmp_path):
    tied = read(folder_of(tmp_path / "a", *reversed(tables_of("two")), **KINDS["two vocabularies"]))
    assert (tied.model.tie_embeddings, tied.model.tie_output) == (False, True)
    assert "output" not in tied.params
    untied = read(folder_of(tmp_path / "b", **KINDS["untied"]))
    assert not untied.model.tie_output and "output" in untied.params
    assert {"tgt_embedding", "output"}.isdisjoint(read(folder_of(tmp_path / "c")).params)


def test_two_vocabularies_are_found_without_decoder_yml(tmp_path):
    folder = folder_of(tmp_path, *reversed(tables_of("two")), **KINDS["two vocabularies"])
    (folder / "decoder.yml").unlink()
    found = read(folder)
    assert found.decode["length_penalty"] == 0.0 and "beam_size" not in found.decode
    bundle = found.bundle
    assert bundle.tables[0] != bundle.tables[1]
    vocabulary = TableVocabulary(packed(bundle))
    assert vocabulary.sizes == tuple(map(len, bundle.tables)) and not vocabulary.is_shared
    target = vocabulary.target
    assert target.decode(target.encode("der alte Hund")) == "der alte Hund"
    assert target.target.sizes[1] == vocabulary.sizes[1]


def test_two_vocabularies_with_one_matrix_are_refused(tmp_path):
    with pytest.raises(UserError, match="opus.trg.vocab.yml are different vocabularies"):
        read(folder_of(tmp_path, *reversed(tables_of("two"))))


def test_the_ids_of_control_pieces_are_ours_wherever_marian_has_them(tmp_path):
    pieces = marian.pieces_of(*models())
    pieces = [*pieces[2:7], "</s>", *pieces[7:], "<unk>"]  # tc-models: EOS is anywhere
    found = read(folder_of(tmp_path, pieces))
    assert found.bundle.pieces[:4] == ("<pad>", "</s>", "<s>", "<unk>")
    assert set(found.bundle.pieces) == {"<pad>", "<s>", *pieces}
    assert found.bundle.pieces[4:9] == tuple(pieces[:5])
    table = found.params["embedding"]["table"]
    assert not table[PAD].any() and not table[BOS].any() and table[EOS].any() and table[UNK].any()
    decode = found.decode
    assert decode["banned_subwords"] == ("<pad>", "<s>", "<unk>")
    assert (decode["beam_size"], decode["penalty"], decode["length_penalty"]) == (3, "power", 1.0)


def test_source_and_target_have_their_own_sentencepiece_models(tmp_path):
    bundle = read(folder_of(tmp_path)).bundle
    vocabulary = TableVocabulary(packed(bundle))
    target = vocabulary.target
    assert target.decode(target.encode("der alte Hund")) == "der alte Hund"
    src, tgt = vocabulary.encode("the old dog"), vocabulary.target.encode("der alte Hund")
    assert UNK not in src and UNK not in tgt
    assert "".join(vocabulary.pieces(src)) == "▁the▁old▁dog"
    assert UNK in vocabulary.encode("漢字")
    [language, *rest] = vocabulary.encode(">>deu<< the old dog")
    assert (language, rest) == (UNK, src)  # this table has no such piece
    assert vocabulary.encode("") == vocabulary.encode("  ") == []
    assert [x.tolist() for x in vocabulary.encode_lines(["the old dog", ""])] == [src, []]


def test_files_are_those_of_the_folder_wherever_decoder_yml_was_written(tmp_path):
    folder = folder_of(tmp_path)
    elsewhere = "models: [/gone/opus.best-perplexity.npz]\nvocabs: [../opus.vocab.yml]\n"
    (folder / "decoder.yml").write_text(elsewhere)
    assert len(read(folder).bundle.pieces) > 4
    weights = folder / "opus.best-perplexity.npz"
    for named, words in [
        ("[a.npz, b.npz]", "names an ensemble of 2 models"),
        ("[opus.bin]", "opus.bin is packed for Marian's decoder"),
    ]:
        (folder / "decoder.yml").write_text(f"models: {named}\n")
        with pytest.raises(UserError, match=words):
            read(folder)
    (folder / "decoder.yml").unlink()
    (folder / "opus.npz").write_bytes(b"another, which is not the best")
    assert len(read(folder).bundle.pieces) > 4
    (folder / "opus.best-bleu.npz").write_bytes(weights.read_bytes())
    with pytest.raises(UserError, match="several files that may be its weights: opus.best-bleu"):
        read(folder)


def test_a_vocabulary_may_be_a_sentencepiece_model(tmp_path):
    processor = sentencepiece.SentencePieceProcessor(model_proto=models()[0])
    pieces = [processor.id_to_piece(i) for i in range(processor.vocab_size())]
    folder = folder_of(tmp_path, pieces)
    (folder / "vocab.spm").write_bytes(models()[0])
    for name in ("opus.vocab.yml", "decoder.yml", "source.spm", "target.spm"):
        (folder / name).unlink()
    bundle = read(folder).bundle
    assert set(bundle.pieces) == {"<pad>", *pieces, "<s> (ours)"}
    assert (bundle.source, bundle.target) == (models()[0], models()[0])
    assert bundle.languages == ("", ""), "Marian does not normalize punctuation"


def test_vocabularies_of_other_kinds_are_refused(tmp_path):
    folder = folder_of(tmp_path)
    (folder / "source.spm").rename(folder / "source.bpe")
    with pytest.raises(UserError, match="source.bpe: a model of the time before SentencePiece"):
        read(folder)
    (folder / "opus.vocab.yml").rename(folder / "opus.fsv")
    (folder / "decoder.yml").write_text("vocabs: [opus.fsv]\n")
    with pytest.raises(UserError, match="opus.fsv is a factored vocabulary"):
        read(folder)


@pytest.mark.parametrize(("layer", "want"), [("last", -1), ("1", 0), (2, 1)])
def test_words_are_aligned_by_the_layer_of_marian_and_its_first_head(layer, want, tmp_path):
    changes: dict[str, Any] = {"transformer-guided-alignment-layer": layer, "dec-depth": 2}
    model = read(folder_of(tmp_path, **changes)).model
    assert (model.watched_layer, model.watched_heads) == (want, 1)


def test_padding_of_its_own_is_our_padding(tmp_path):
    pieces = [*marian.pieces_of(*models()), "<pad>"]
    found = read(folder_of(tmp_path, pieces))
    assert found.bundle.pieces[0] == "<pad>" and len(found.bundle.pieces) == len(pieces) + 1
    assert found.params["embedding"]["table"][PAD].any()


def test_an_output_matrix_may_be_stored_transposed(tmp_path):
    folder = folder_of(tmp_path, **KINDS["untied"])
    want = read(folder).params["output"]["table"]
    arrays = marian.arrays_of(folder)
    arrays["decoder_ff_logit_out_Wt"] = arrays.pop("decoder_ff_logit_out_W").T
    np.savez(folder / "opus.best-perplexity.npz", **arrays)
    np.testing.assert_array_equal(read(folder).params["output"]["table"], want)


REFUSED = [
    ({"type": "s2s"}, "type='s2s'"),
    ({"transformer-decoder-autoreg": "average-attention"}, "autoreg='average-attention'"),
    ({"transformer-decoder-autoreg": "rnn", "dec-cell": "gru"}, "dec-cell='gru'"),
    ({**KINDS["student"], "layer-normalization": True}, "layer-normalization=True"),
    ({"transformer-ffn-activation": "gelu"}, "transformer-ffn-activation='gelu'"),
    ({"transformer-postprocess-emb": "nd"}, "transformer-postprocess-emb='nd'"),
    ({"transformer-train-position-embeddings": True}, "transformer-train-position-embeddings=True"),
    *(
        ({f"transformer-{name}": True}, f"transformer-{name}=True")
        for name in ("no-projection", "no-bias", "no-affine", "rnn-projection", "pool")
    ),
    ({"output-omit-bias": True}, "output-omit-bias=True"),
    ({"transformer-ffn-depth": 3}, "transformer-ffn-depth=3"),
    ({"transformer-decoder-ffn-depth": 3}, "transformer-decoder-ffn-depth=3"),
    ({"transformer-tied-layers": [1, 1]}, "transformer-tied-layers="),
    ({"lemma-dim-emb": 512}, "lemma-dim-emb=512"),
    ({"lemma-dependency": "lemma"}, "lemma-dependency='lemma'"),
    ({"factors-combine": "concat"}, "factors-combine='concat'"),
    ({"factors-dim-emb": 8}, "factors-dim-emb=8"),
    ({"right-left": True}, "right-left=True"),
    ({"transformer-decoder-dim-ffn": 99}, "transformer-decoder-dim-ffn=99"),
    ({"transformer-guided-alignment-layer": "first"}, "is missing or wrong: .*'first'"),
    ({"transformer-postprocess": "dn"}, "transformer-preprocess"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=lambda x: str(x))
def test_what_our_block_cannot_hold_is_refused_by_name(changes, words, tmp_path):
    with pytest.raises(UserError, match=words):
        read(folder_of(tmp_path, **changes))


def test_damaged_and_missing_files_are_one_clear_line(tmp_path):
    folder = folder_of(tmp_path)
    weights = folder / "opus.best-perplexity.npz"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UserError, match="is not a .npz file"):
        read(folder)
    np.savez(weights, Wemb=np.array([{"an": "object"}], object))
    with pytest.raises(UserError, match="pickle"):
        read(folder)
    weights.write_bytes(whole)
    (folder / "opus.vocab.yml").write_text("</s>: 0\n<unk>: 1\n")
    with pytest.raises(UserError, match="rows, and the vocabulary 2 pieces"):
        read(folder)
    (folder / "source.spm").unlink()
    with pytest.raises(UserError, match="has no SentencePiece model of the source"):
        read(folder)


def test_a_vocabulary_file_is_read_as_yaml_would_without_its_surprises(tmp_path):
    path = tmp_path / "vocab.yml"
    pieces = {
        '"</s>"': "</s>", "<unk>": "<unk>", '"\\""': '"', "''''": "'", "no": "no", "1": "1",
        "01": "01", '"\\x86"': "\x86", ":": ":", f"? {'x' * 200}\n": "x" * 200, '"\\\\"': "\\",
        '"\\u2581\\U0001F600"': "▁\U0001f600", "▁": "▁", '"\\N"': "\x85", '"\\L"': "\u2028",
        '"\\P"': "\u2029", '"\\_"': "\xa0", '"\\v"': "\v", '"\\f"': "\f", "N": "N",
        "a\u2028b": "a\u2028b", "\x7f": "\x7f",  # YAML 1.1 forbids them, or ends lines there
    }  # fmt: skip
    lines = [f"{written}: {i}\n" for i, written in enumerate(pieces)]
    path.write_text("".join(lines), encoding="utf-8")
    assert read_vocabulary_yml(path) == list(pieces.values())
    for text, said in (
        ("a: 0\nb: 2\n", "not 0, 1, 2"),
        ("a: 0\nb: 1\nc: 0\n", "line 3: an earlier line has the id 0 too"),
        ("a: 0\nb\n", "line 2: 'b' is not PIECE: ID"),
    ):
        path.write_text(text)
        with pytest.raises(UserError, match=said):
            read_vocabulary_yml(path)


def test_an_array_that_the_options_do_not_know_is_refused(tmp_path):
    folder = folder_of(tmp_path)
    arrays = marian.arrays_of(folder)
    np.savez(folder / "opus.best-perplexity.npz", **arrays, encoder_l3_ffn_W1=np.ones(3))
    with pytest.raises(UserError, match="has encoder_l3_ffn_W1, and its options know no such part"):
        read(folder)


def test_settings_of_decoder_yml_that_the_run_cannot_keep_are_named(tmp_path, caplog):
    folder = folder_of(tmp_path)
    file = folder / "decoder.yml"
    plain = file.read_text()
    file.write_text(plain + "mini-batch: 64\nword-penalty: 0\n")
    assert read(folder) and "is without them" not in caplog.text
    file.write_text(plain + "allow-unk: false\nmax-length: 1000\n")
    assert read(folder) and "is without them" not in caplog.text
    file.write_text(plain + "beam-size: 0\n")
    assert read(folder).decode["beam_size"] == 0, "which no run can have"
    file.write_text(plain + "word-penalty: 1.5\nmax-length-factor: 1.2\nallow-unk: true\n")
    assert read(folder)
    [named] = [one for one in caplog.messages if "is without them" in one]
    assert named.endswith("allow-unk=True, max-length-factor=1.2, word-penalty=1.5")


def test_aliases_of_yaml_are_refused(tmp_path):
    """Ten lines with aliases can expand to 10^10 values."""
    folder = folder_of(tmp_path)
    file = folder / "decoder.yml"
    file.write_text(file.read_text() + "a: &a [1, 1]\nb: &b [*a, *a]\nword-penalty: [*b, *b]\n")
    with pytest.raises(UserError, match="decoder.yml has aliases"):
        read(folder)
