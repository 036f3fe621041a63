"""A CTranslate2 folder in: Marian's formula, the engine's own translations, what is refused."""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.fixtures.cases import first_quick
from tests.interop import ctranslate2_by_hand as engine
from tests.interop import marian_by_hand as marian
from tests.interop.test_marian import KINDS, assert_marian_s_logits, models, tables_of
from transformer_jax.errors import UserError
from transformer_jax.interop.ctranslate2 import read_ctranslate2
from transformer_jax.interop.imported import NEVER
from transformer_jax.interop.model_bin import read_model_bin
from transformer_jax.model.positions.choices import sinusoids
from transformer_jax.text.vocabulary import BOS, UNK, TableVocabulary, of_bundle
from transformer_jax.use.loading import load_model

FIXTURES = Path(__file__).parents[1] / "fixtures"
OF_MARIAN = [kind for kind in KINDS if "student" not in kind]
TOKENS = ["<blank>", "<s>", "</s>", *"abcdefghij"]
LANGUAGES = ("en", "de")


@functools.cache
def letters() -> dict:
    """A model whose tokens are letters, and the unknown token, which its vocabulary lacks."""
    arrays = marian.random_arrays(marian.TINY, len(TOKENS) + 1)
    return engine.from_marian(arrays, marian.TINY)


def named(value: object) -> str:
    """The name of a case: what the error says."""
    return value if isinstance(value, str) else ""


def read(folder):
    return read_ctranslate2(folder, LANGUAGES)


def folder_of(tmp_path, content: bytes | None = None, **settings):
    content = engine.model_bin(letters()) if content is None else content
    return engine.write_folder(tmp_path / "engine", content, [TOKENS], **settings)


@pytest.mark.parametrize("kind", first_quick(OF_MARIAN, 2))
def test_logits_equal_marian_s_formula(kind, tmp_path):
    options, tables = {**marian.TINY, **KINDS[kind]}, tables_of(kind)
    arrays = marian.random_arrays(options, len(tables[1]), src_vocabulary=len(tables[0]))
    content = engine.model_bin(engine.from_marian(arrays, options))
    written = tables[:1] if tables[0] == tables[1] else tables
    folder = engine.write_folder(tmp_path, content, written)
    for side, model in zip(("source", "target"), models(), strict=True):
        (folder / f"{side}.spm").write_bytes(model)
    found = read(folder)
    assert found.model.positions == "sinusoidal_t2t" and found.model.source_eos
    assert found.model.tie_output == (options.get("tied-embeddings", False))
    assert found.bundle.languages == ("", "")
    assert_marian_s_logits(found, arrays, options, tables)
    settings = json.loads((folder / "config.json").read_text()) | {"add_source_eos": False}
    (folder / "config.json").write_text(json.dumps(settings))
    assert read(folder).model.source_eos, "the tokenizer of transformers adds it"


@pytest.mark.slow("compiles an imported model")
def test_the_engine_s_translations_and_scores_of_a_model_that_others_trained(data_folder, tmp_path):
    """Pre-norm, without EOS on the source, with positions from 1, and tokens that are letters."""
    origin = data_folder / "ctranslate2-transliteration" / "aren-transliteration"
    if not origin.is_dir():
        pytest.skip("this folder of text has no model")
    run = tmp_path / "run"
    flags = f"--from={origin}", f"--workdir={run}", "--src=ar", "--tgt=en"
    assert runs.command("import", *flags) == 0
    loaded = load_model(str(run))
    assert loaded.config.decode.beam_size == 2
    fixture = json.loads((FIXTURES / "transliteration.json").read_text(encoding="utf-8"))
    lines = loaded.line_translator()
    encoded = lines.encode([line["source"] for line in fixture["lines"]])
    for line, (best,) in zip(fixture["lines"], loaded.translator.translate(encoded), strict=True):
        assert lines.text(best.ids) == line["target"]
        assert best.score == pytest.approx(line["score"], abs=1e-4)
    # The integers of the other folder, which were not rounded, are the same weights to a step.
    small = read_model_bin(origin.with_name(f"{origin.name}-i8") / "model.bin").arrays
    for name, x in read_model_bin(origin / "model.bin").arrays.items():
        step = np.abs(x).max(-1, keepdims=True) / 127 if name.endswith("weight") else 0
        assert (np.abs(small[name] - x) <= 1.01 * step).all(), name


@pytest.mark.parametrize("version", [2, 3, 4, 5])
def test_every_version_of_the_format_gives_the_same_model(version, tmp_path):
    want = read(folder_of(tmp_path / "new"))
    arrays = letters()
    aliases = {}
    if version >= 3:
        arrays = dict(arrays)
        for name in ("decoder/projection/weight", "decoder/embeddings/weight"):
            del arrays[name]
            aliases[name] = "encoder/embeddings_0/weight"
    else:  # common attributes were the model's, and an embedding had no number
        arrays = {name.replace("embeddings_0", "embeddings"): x for name, x in arrays.items()}
        for name in ("num_heads", "pre_norm", "activation"):
            arrays[name] = arrays.pop(f"encoder/{name}")
            del arrays[f"decoder/{name}"]
        arrays["encoder/embeddings/multiply_by_sqrt_depth"] = arrays.pop("encoder/scale_embeddings")
    arrays = {**arrays, "with_target_bos": np.int8(0), "with_source_eos": np.int8(1)}
    folder = folder_of(tmp_path, engine.model_bin(arrays, version, aliases))
    (folder / "config.json").unlink()
    (folder / "shared_vocabulary.json").unlink()
    ends = "\r\n" if version == 3 else "\n"  # as a checkout on Windows has them
    (folder / "shared_vocabulary.txt").write_bytes((ends.join(TOKENS) + ends).encode())
    found = read(folder)
    assert found.model.norm_epsilon == 1e-5  # of the engine; the file has none
    assert found.model == want.model.__class__(**{**vars(want.model), "norm_epsilon": 1e-5})
    assert (found.bundle, found.decode) == (want.bundle, want.decode)
    for part in ("decoder_0", "embedding"):
        jax.tree.map(np.testing.assert_array_equal, found.params[part], want.params[part])


@pytest.mark.parametrize("kind", ["int8", "int16", "float16"])
def test_weights_of_other_types_are_the_numbers_that_they_stand_for(kind, tmp_path):
    arrays = {}
    for name, x in letters().items():
        if not name.endswith("weight"):
            arrays[name] = x.astype(kind) if kind == "float16" and x.ndim else x
            continue
        if kind == "float16":
            arrays[name] = x.astype(kind)
        else:
            top = np.abs(x).max(-1) if kind == "int8" else np.abs(x).max()
            scale = (127 if kind == "int8" else 2**10) / top
            arrays[name] = np.rint(x * np.reshape(scale, (-1, 1))).astype(kind)
            arrays[f"{name}_scale"] = np.float32(scale)
    (tmp_path / "model.bin").write_bytes(engine.model_bin(arrays))
    found = read_model_bin(tmp_path / "model.bin").arrays
    assert found.keys() == letters().keys()
    for name, x in letters().items():
        assert found[name].dtype == x.dtype
        step = {"int8": 1 / 127, "int16": 2**-10, "float16": 2**-10}[kind] * np.abs(x).max()
        np.testing.assert_allclose(found[name], x, atol=0.51 * step)


def test_tokens_are_words_where_there_is_no_sentencepiece_model(tmp_path):
    found = read(folder_of(tmp_path))
    vocabulary = of_bundle(found.bundle, "x")
    assert isinstance(vocabulary, TableVocabulary) and vocabulary.is_shared
    ids = vocabulary.encode("a  c ? ! d")
    assert [vocabulary.pieces([i])[0] for i in ids] == ["▁a", "▁c", "<unk>", "<unk>", "▁d"]
    assert ids[2:4] == [UNK, UNK]  # one piece of SentencePiece
    assert vocabulary.decode(ids) == "a c d"
    assert found.decode["banned_subwords"] == ("<blank>", "<s>", "<unk>")


def without(*names: str, **parts) -> dict:
    """The letters' arrays without some, and with others."""
    return {name: x for name, x in letters().items() if name not in names} | parts


@pytest.mark.parametrize(
    ("version", "start", "row"), [(6, "</s>", "</s>"), (6, "b", "b"), (5, 0, "</s>"), (5, 1, "<s>")]
)
def test_the_decoder_begins_with_the_token_that_the_file_names(version, start, row, tmp_path):
    arrays = without("decoder/start_from_zero_embedding")
    settings = {"decoder_start_token": start} if version == 6 else {}
    if version == 5:
        arrays |= {"with_target_bos": np.int8(start), "with_source_eos": np.int8(1)}
    found = read(folder_of(tmp_path, engine.model_bin(arrays, version), **settings))
    table = letters()["decoder/embeddings/weight"]
    np.testing.assert_allclose(
        found.params["embedding"]["table"][BOS],
        table[TOKENS.index(row)].reshape(2, 8).T.reshape(-1),  # sinusoids were in halves
    )


PLACES = [f"{side}/position_encodings/encodings" for side in ("encoder", "decoder")]


def test_a_file_without_a_table_of_positions_counts_them_from_1(tmp_path):
    found = read(folder_of(tmp_path, engine.model_bin(without(*PLACES))))
    assert (found.model.positions, found.model.max_positions) == ("learned", 1_024)
    for side in ("src", "tgt"):
        got = found.params[f"{side}_positions"]["table"]
        np.testing.assert_allclose(got, marian.positions(1_025, 16)[1:], atol=1e-6)


def test_an_output_without_a_bias_gets_one_for_subwords_that_only_ours_has(tmp_path):
    found = read(folder_of(tmp_path, engine.model_bin(without("decoder/projection/bias"))))
    pieces = len(found.bundle.pieces)
    want = [NEVER if i == BOS else 0 for i in range(pieces)]
    np.testing.assert_array_equal(found.params["output_bias"][:pieces], want)


def test_a_vocabulary_in_our_order_keeps_its_ids(tmp_path):
    tokens = ["<pad>", "</s>", "<s>", "<unk>", *TOKENS[3:]]
    parts = without("decoder/projection/bias", "decoder/start_from_zero_embedding")
    folder = engine.write_folder(
        tmp_path, engine.model_bin(parts), [tokens], decoder_start_token="<s>"
    )
    found = read(folder)
    assert found.bundle.pieces == (*tokens[:4], *(f"▁{token}" for token in tokens[4:]))
    assert not found.model.output_bias and "output_bias" not in found.params


def test_heads_and_alignment_of_old_files(tmp_path):
    names = [f"{side}/num_heads" for side in ("encoder", "decoder")]
    whole = {"decoder/alignment_layer": np.int16(0), "decoder/alignment_heads": np.int16(0)}
    for spec, heads in {"TransformerBase": 8, "TransformerBig": 16}.items():
        content = engine.model_bin({**without(*names), **whole}, spec=spec)
        model = read(folder_of(tmp_path, content)).model
        assert model.num_heads == heads
        assert (model.watched_layer, model.watched_heads) == (0, None)
    common = {"alignment_layer": np.int16(-2), "alignment_heads": np.int16(2)}
    model = read(folder_of(tmp_path, engine.model_bin({**letters(), **common}))).model
    assert (model.watched_layer, model.watched_heads) == (-2, 2)


def test_equal_embeddings_with_another_output_are_not_one_matrix(tmp_path):
    output = {"decoder/projection/weight": 2 * letters()["decoder/projection/weight"]}
    found = read(folder_of(tmp_path, engine.model_bin({**letters(), **output})))
    assert not (found.model.tie_embeddings or found.model.tie_output)
    assert "output" in found.params


TABLES = {
    "sinusoidal": sinusoids(40, 16),
    "none": np.zeros((40, 16), np.float32),
    "learned": np.random.default_rng(0).normal(size=(40, 16)).astype(np.float32),
}


@pytest.mark.parametrize("kind", TABLES)
def test_positions_are_recognized(kind, tmp_path):
    arrays = letters() | dict.fromkeys(PLACES, TABLES[kind].astype(np.float16))
    found = read(folder_of(tmp_path, engine.model_bin(arrays)))
    assert found.model.positions == kind
    assert ("src_positions" in found.params) == (kind == "learned")
    # With interleaved sinusoids, or with none, features stay where they are.
    got = found.params["encoder_0"]["feed_forward"]["outer_bias"]
    np.testing.assert_array_equal(got, letters()["encoder/layer_0/ffn/linear_1/bias"])
    if kind == "learned":
        assert found.model.max_positions == 40
        for side in ("src", "tgt"):
            got = found.params[f"{side}_positions"]["table"]
            np.testing.assert_allclose(got, TABLES[kind], atol=2e-3)


def test_two_tables_of_positions_become_learned_ones(tmp_path):
    arrays = letters() | {PLACES[0]: TABLES["sinusoidal"]}
    found = read(folder_of(tmp_path, engine.model_bin(arrays)))
    assert (found.model.positions, found.model.max_positions) == ("learned", 40)
    np.testing.assert_array_equal(found.params["src_positions"]["table"], TABLES["sinusoidal"])
    want = marian.positions(40, 16)
    np.testing.assert_allclose(found.params["tgt_positions"]["table"], want, atol=1e-6)


@pytest.mark.parametrize(
    ("parts", "said"),
    [
        ({"decoder/alibi": np.int8(1)}, "decoder/alibi=1"),
        ({"encoder/layer_0/self_attention/relative_position_keys": np.ones((3, 4))}, "_keys"),
        ({"encoder/layer_0/ffn/linear_0_noact/weight": np.ones((24, 16))}, "linear_0_noact/weight"),
        ({"encoder/layer_0/self_attention/num_heads_kv": np.int32(2)}, "num_heads_kv=2"),
        ({"encoder/embeddings_1/weight": np.ones((3, 4))}, "embeddings_1/weight"),
        ({"decoder/layer_norm/gamma": np.ones(16)}, "decoder/layer_norm/gamma"),
        ({"decoder/scale_outputs": np.float32(0.5)}, "decoder/scale_outputs=0.5"),
        ({"encoder/scale_embeddings": np.int8(0)}, "encoder/scale_embeddings=0"),
        ({"encoder/scale_embeddings": np.float32(1)}, "encoder/scale_embeddings=1.0"),
        ({"encoder/activation": np.int8(5), "decoder/activation": np.int8(5)}, "activation=5"),
        ({"encoder/num_heads": np.int16(2)}, "encoder/num_heads=2 beside decoder/num_heads=4"),
        ({"encoder/layer_0/self_attention/head_dim": np.int32(8),
          "decoder/layer_0/attention/head_dim": np.int32(4)}, r"head_dim of \[4, 8\]"),
    ],
    ids=named,
)  # fmt: skip
def test_a_part_that_ours_cannot_have_is_refused_by_name(parts, said, tmp_path):
    parts = {name: np.float32(x) if np.ndim(x) else x for name, x in parts.items()}
    with pytest.raises(UserError, match=f"ours cannot have its .*{said}"):
        read(folder_of(tmp_path, engine.model_bin({**letters(), **parts})))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"add_source_bos": True}, "config.json: add_source_bos=True"),
        ({"add_source_eos": False}, "sources, to which its tokenizer adds tokens"),
        ({"decoder_start_token": None}, "decoder_start_token=None"),
        ({"quantization_type": "awq"}, "quantization_type='awq'"),
        ({"lang_ids": [1, 2]}, "config.json: lang_ids"),
        ({"eos_token": "<end>"}, "its eos_token, '<end>', is not in its vocabulary"),
        ({"layer_norm_epsilon": "x"}, "model.norm_epsilon"),
    ],
    ids=named,
)
def test_settings_that_ours_cannot_have_are_refused(settings, said, tmp_path):
    parts = {**letters(), "decoder/start_from_zero_embedding": np.int8(0)}
    with pytest.raises(UserError, match=said):
        read(folder_of(tmp_path, engine.model_bin(parts), **settings))


def test_what_has_no_effect_is_not_refused(tmp_path):
    off = {"decoder/alibi": np.int8(0), "decoder/alibi_use_positive_positions": np.int8(1)}
    scale = {"encoder/scale_embeddings": np.float32(4)}  # the root of d_model
    content = engine.model_bin({**letters(), **off, **scale})
    assert read(folder_of(tmp_path, content, multi_query_attention=False, lang_ids=None))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (engine.model_bin({"a": np.ones(3, np.float32)})[:-5], "ends too early"),
        (engine.model_bin({"a": np.ones(3, np.float32)}) + b"x", "1 bytes are left over"),
        (engine.model_bin({}, version=7), "version 7.*2 to 6 can be read"),
        (engine.model_bin({}, version=1), "version 1"),
        (engine.model_bin({}, aliases={"a": "b"}), "'b'"),
        (engine.model_bin({"a/weight": np.ones((2, 2), np.int8)}), "'a/weight_scale'"),
        (engine.model_bin({}, spec="WhisperSpec"), "it is a WhisperSpec of revision 7"),
        (engine.model_bin({}, revision=1), "of revision 1. Known are .* from revision 2"),
        (engine.model_bin({}), "has no encoder/embeddings_0/weight or encoder/embeddings/weight"),
        (engine.model_bin({}).replace(b"Spec\0", b"Spec!"), "a name does not end in 0"),
    ],
    ids=named,
)
def test_a_damaged_file_is_one_line(content, said, tmp_path):
    with pytest.raises(UserError, match=said) as caught:
        read(folder_of(tmp_path, content))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("decoder/layer_0/ffn/linear_0/weight", None, "has no decoder/layer_0/ffn/linear_0/weight"),
        ("encoder/layer_0/ffn/layer_norm/beta", None, "of a model that ours cannot be"),
        ("decoder/layer_0/attention/linear_1/weight", lambda x: x[:31], "31 rows for 2 maps"),
        ("encoder/layer_1/ffn/linear_1/weight", lambda x: x[:, :20], "but ours is"),
        ("encoder/embeddings_0/weight", lambda x: x[:9], "9 rows, and the vocabulary 13 pieces"),
        ("decoder/projection/bias", lambda x: x[:9], "has 9 numbers"),
        ("encoder/position_encodings/encodings", lambda x: x[0], "its parts do not fit"),
        ("decoder/layer_0/attention/linear_1/bias", lambda x: x[:31], "its parts do not fit"),
        ("encoder/num_heads", lambda x: np.array([x, x]), "its parts do not fit"),
        ("decoder/embeddings/weight", lambda x: x[:, :3], "3 features: it cannot be right"),
        ("encoder/layer_0/ffn/linear_0/bias", lambda x: x * np.inf, "not numbers"),
    ],
    ids=named,
)
def test_arrays_that_are_missing_or_of_another_size_are_refused(name, change, said, tmp_path):
    arrays = dict(letters())
    if change is None:
        del arrays[name]
    else:
        arrays[name] = np.ascontiguousarray(change(arrays[name]))
    with pytest.raises(UserError, match=said):
        read(folder_of(tmp_path, engine.model_bin(arrays)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "is not a list of tokens"),
        ('["a", 1]', "is not a list of tokens"),
        ("[", "is not a vocabulary"),
        (json.dumps([*TOKENS[:-1], "a"]), "has a token twice"),
        (json.dumps([*TOKENS[:-1], "▁a"]), "Copy them there as source.spm and target.spm"),
    ],
)
def test_a_vocabulary_that_is_wrong_is_refused(text, said, tmp_path):
    folder = folder_of(tmp_path)
    (folder / "shared_vocabulary.json").write_text(text)
    with pytest.raises(UserError, match=said):
        read(folder)


def test_the_command_says_what_is_wrong_and_writes_nothing(tmp_path, capsys):
    folder = folder_of(tmp_path, engine.model_bin({**letters(), "decoder/alibi": np.int8(1)}))
    run = tmp_path / "run"
    flags = f"--from={folder}", f"--workdir={run}", "--src=en", "--tgt=de"
    assert runs.command("import", *flags) == 2
    assert "decoder/alibi=1" in capsys.readouterr().err and not run.exists()
