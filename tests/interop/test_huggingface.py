"""A Hugging Face folder in: logits against transformers' own, and what is refused.

tests/fixtures/make_marian_fixtures.py computed the reference.
"""

import contextlib
import functools
import json
from pathlib import Path

import numpy as np
import pytest

from tests.fixtures.cases import refused
from tests.fixtures.tiny import relative_error
from tests.interop import marian_by_hand as marian
from tests.interop.test_marian import logits_of
from transformer_jax.errors import DataError, UserError
from transformer_jax.interop.block import halves_first
from transformer_jax.interop.huggingface import languages_of, read_huggingface
from transformer_jax.interop.safetensors import read_safetensors, safetensors_bytes
from transformer_jax.model.positions.choices import sinusoids
from transformer_jax.text.vocabulary import EOS

FIXTURES = Path(__file__).parents[1] / "fixtures"
ONE, TWO = "marian_huggingface.npz", "marian_huggingface_two.npz"
VOCABULARY = 60
PIECES = ["</s>", "<unk>", *(f"piece{i}" for i in range(2, VOCABULARY - 1)), "<pad>"]
SOURCE_PIECES = [f"source{i}" for i in range(72)]
SOURCE_PIECES[0], SOURCE_PIECES[1], SOURCE_PIECES[VOCABULARY - 1] = "</s>", "<unk>", "<pad>"


@functools.cache
def fixture(name: str = ONE) -> dict[str, np.ndarray]:
    with np.load(FIXTURES / name) as file:
        return {name: file[name] for name in file.files}


@functools.cache
def a_sentencepiece_model() -> bytes:
    return marian.train_spm(["the old dog sees a cat", "a man has the dog"] * 9, 40)


@pytest.fixture
def folder(tmp_path) -> Path:
    return write_folder(tmp_path, ONE)


def write_folder(path: Path, name: str) -> Path:
    for file in ("config.json", "generation_config.json", "model.safetensors"):
        (path / file).write_bytes(fixture(name)[file].tobytes())
    tables = {"vocab.json": PIECES}
    if name == TWO:
        tables = {"vocab.json": SOURCE_PIECES, "target_vocab.json": PIECES}
    for file, pieces in tables.items():
        (path / file).write_text(json.dumps({piece: i for i, piece in enumerate(pieces)}))
    for side in ("source", "target"):
        (path / f"{side}.spm").write_bytes(a_sentencepiece_model())
    names = {"tokenizer_class": "MarianTokenizer", "source_lang": "eng", "target_lang": "deu"}
    names |= {"separate_vocabs": name == TWO}
    (path / "tokenizer_config.json").write_text(json.dumps(names))
    return path


def change(path: Path, **values) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def read(folder: Path):
    return read_huggingface(folder, ("en", "de"))


@pytest.mark.parametrize("name", [ONE, TWO])
def test_logits_equal_those_of_transformers(name, tmp_path):
    found = read(write_folder(tmp_path, name))
    reference = fixture(name)
    ours = found.bundle.tables
    theirs = (SOURCE_PIECES if name == TWO else PIECES), PIECES
    assert found.model.tie_output == (name == TWO) and "output" not in found.params
    assert found.model.norm_epsilon == 1e-5  # PyTorch's; its effect here is within the tolerance
    assert [len(own) for own in ours] == [len(foreign) + 1 for foreign in theirs]
    assert ours[0][:4] == ours[1][:4] == ("<pad>", "</s>", "<s>", "<unk>")
    src_ids, ids = (
        {foreign.index(piece): i for i, piece in enumerate(own) if piece in foreign}
        for foreign, own in zip(theirs, ours, strict=True)
    )
    numbers = range(4)
    pairs = [
        tuple(
            [own[int(i)] for i in reference[f"{side}{n}"]]
            for side, own in (("src", src_ids), ("tgt", ids))
        )
        for n in numbers
    ]
    got = logits_of(found, pairs)
    columns = [ids[i] for i in range(VOCABULARY)]
    for n in numbers:
        assert pairs[n][1][-1] == EOS
        assert relative_error(got[n][:, columns], reference[f"logits{n}"]) < 1e-5


def test_the_tokenizer_s_settings_give_the_languages_and_the_generation_s_the_search(folder):
    assert languages_of(folder) == ("eng", "deu")
    assert read(folder).bundle.languages == ("en", "de"), "of the normalizer of punctuation"
    change(folder / "tokenizer_config.json", normalizes_punctuation=False)
    assert read(folder).bundle.languages == ("", "")
    change(folder / "tokenizer_config.json", normalizes_punctuation="no")
    with pytest.raises(DataError, match="normalizes_punctuation='no' is not true or false"):
        read(folder)
    change(folder / "tokenizer_config.json", normalizes_punctuation=True)
    assert read(folder).decode["length_penalty"] == 1.0
    change(folder / "config.json", num_beams=5, length_penalty=0.4)
    change(folder / "generation_config.json", num_beams=6, length_penalty=0.6)
    decode = read(folder).decode
    assert (decode["beam_size"], decode["penalty"], decode["length_penalty"]) == (6, "power", 0.6)
    assert decode["banned_subwords"] == ("<pad>", "<s>", "<unk>")
    (folder / "generation_config.json").write_text("{}")
    assert read(folder).decode["beam_size"] == 1, "transformers' default, not config.json's"
    change(folder / "generation_config.json", _from_model_config=True)
    assert read(folder).decode["beam_size"] == 5
    (folder / "generation_config.json").unlink()  # as in older folders
    decode = read(folder).decode
    assert (decode["beam_size"], decode["length_penalty"]) == (5, 0.4)


@pytest.mark.parametrize("flag", [True, False])
def test_what_is_banned_takes_no_probability_if_transformers_renormalizes(flag, folder):
    change(folder / "generation_config.json", bad_words_ids=[[59], [5]], renormalize_logits=flag)
    found = read(folder)
    bias = dict(zip(found.bundle.tables[1], found.params["output_bias"], strict=False))
    assert [bias[one] == -100 for one in ("<pad>", "piece5", "piece6")] == [flag, flag, False]


def test_training_goes_on_with_the_rates_of_dropout_of_the_folder(folder):
    names = ("dropout", "attention_dropout", "activation_dropout")
    change(folder / "config.json", **dict(zip(names, (0.3, 0.2, 0.05), strict=True)))
    model = read(folder).model
    assert [getattr(model, name) for name in names] == [0.3, 0.2, 0.05]
    config = json.loads((folder / "config.json").read_text())
    kept = {name: value for name, value in config.items() if name not in names}
    (folder / "config.json").write_text(json.dumps(kept))
    model = read(folder).model
    assert [getattr(model, name) for name in names] == [0.1, 0, 0]
    change(folder / "config.json", dropout=1.5)
    with pytest.raises(UserError, match="model.dropout=1.5"):
        read(folder)


@pytest.mark.parametrize("name", ["swish", "silu"])
def test_both_names_of_the_swish_are_known(name, folder):
    change(folder / "config.json", activation_function=name)
    assert read(folder).model.activation == "swish"


def rewrite(folder: Path, name: str, change) -> None:
    """Writes the weights with one array changed, which may be new, or without it."""
    file = folder / "model.safetensors"
    arrays = {key: np.array(x) for key, x in read_safetensors(file).items()}
    if change is None:
        del arrays[name]
    else:
        arrays[name] = np.ascontiguousarray(change(arrays.get(name, arrays["model.shared.weight"])))
    file.write_bytes(safetensors_bytes(arrays))


MATRIX, BIAS = "model.decoder.layers.0.fc2.weight", "final_logits_bias"
POSITIONS = "model.encoder.embed_positions.weight"


@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        (MATRIX, np.transpose, f"{MATRIX} is .*, but ours is "),
        (BIAS, None, "bias of the output .* is missing, and the target's"),
        (BIAS, lambda x: x[..., :9], "bias of the output .* has 9 numbers, and the target's"),
        (BIAS, lambda x: np.where(x == x[0, 3], np.nan, x), f"{BIAS} has values that are not num"),
        # Marian's wavelengths, which are not this model's.
        (POSITIONS, lambda _: marian.positions(12, 16), f"the weights have {POSITIONS}"),
        # These change nothing: a copy, the model's positions, a subword that is never output.
        ("lm_head.weight", lambda shared: shared, ""),
        (POSITIONS, lambda _: halves_first(sinusoids(12, 16), 1), ""),
        (BIAS, lambda x: np.where(x == x[0, 3], -np.inf, x), ""),
    ],
)
def test_arrays_that_cannot_be_right_are_refused_by_name(name, change, words, folder):
    rewrite(folder, name, change)
    with pytest.raises(UserError, match=words) if words else contextlib.nullcontext():
        assert read(folder)


def test_ids_without_a_piece_have_names_of_their_own_and_others_are_refused(folder):
    table = json.loads((folder / "vocab.json").read_text())
    del table["piece7"]
    (folder / "vocab.json").write_text(json.dumps(table))
    assert "<unused 7>" in read(folder).bundle.pieces
    change(folder / "vocab.json", piece7=VOCABULARY)
    with pytest.raises(UserError, match="vocab.json: its ids are not 0 to 59"):
        read(folder)


REFUSED = [
    ({"model_type": "bart"}, "model_type='bart'"),
    ({"model_type": "pegasus"}, "no model.encoder.layer_norm.weight"),
    ({"activation_function": "gelu_new"}, "activation_function='gelu_new'"),
    ({"scale_embedding": False}, "scale_embedding=False"),
    ({"tie_word_embeddings": False}, "tie_word_embeddings=False"),
    ({"share_encoder_decoder_embeddings": False}, "no model.encoder.embed_tokens.weight"),
    ({"normalize_embedding": True}, "normalize_embedding=True"),
    *(
        ({name: True}, f"{name}=True")
        for name in ("normalize_before", "add_final_layer_norm", "add_bias_logits")
    ),
    ({"static_position_embeddings": False}, "static_position_embeddings=False"),
    ({"decoder_ffn_dim": 99}, "encoder_ffn_dim that is not"),
    ({"decoder_attention_heads": 2}, "encoder_attention_heads that is not"),
    ({"encoder_ffn_dim": 20, "decoder_ffn_dim": 20}, "fc1.weight is .*, but ours is .*16, 20"),
    ({"decoder_vocab_size": 61}, "decoder_vocab_size=61 is not vocab_size"),
    ({"decoder_start_token_id": 99}, "decoder_start_token_id=99"),
    ({"decoder_start_token_id": -1}, "decoder_start_token_id=-1"),
    ({"eos_token_id": 5}, "eos_token_id=5 is not 0, the id of </s> in vocab.json"),
    ({"encoder_layers": 1}, "the weights have model.encoder.layers.1.*, and the settings know no"),
    ({"vocab_size": 10**9}, "vocab_size=1000000000, and vocab.json 60 pieces"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED, ids=lambda x: str(x))
def test_what_our_block_cannot_hold_is_refused_by_name(changes, words, folder):
    change(folder / "config.json", **changes)
    with pytest.raises(UserError, match=words):
        read(folder)


KEPT = {"bad_words_ids": [[59], [5]], "num_beams": 3, "repetition_penalty": 1.0, "top_k": 50}
KEPT |= {"min_length": 8, "no_repeat_ngram_size": 3, "max_length": 512, "forced_eos_token_id": 0}


def test_settings_of_search_are_kept(folder, caplog):
    change(folder / "generation_config.json", **KEPT)
    found = read(folder).decode
    assert found["banned_subwords"] == ("<pad>", "<s>", "<unk>", "piece5")
    # transformers counts the token with which a translation begins.
    assert (found["min_length"], found["no_repeat"], found["beam_size"]) == (7, 3, 3)
    assert "without them" not in caplog.text


LOST = {"min_new_tokens": 8, "max_length": 40, "do_sample": True, "bad_words_ids": [[5], [6, 7]]}
OF_LOST = "bad_words_ids=[[6, 7]], do_sample=True, max_length=40, min_new_tokens=8, top_k=50"


@pytest.mark.parametrize(
    ("config", "generation", "named"),
    [
        ({}, KEPT | LOST, f"generation_config.json {OF_LOST}"),
        ({}, {"decoder_start_token_id": 7}, "generation_config.json decoder_start_token_id=7"),
        ({"forced_bos_token_id": 7}, None, "config.json forced_bos_token_id=7"),
        ({"min_new_tokens": 9}, None, "config.json min_new_tokens=9"),  # an older folder
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_settings_of_search_that_the_run_cannot_keep_are_named(
    config, generation, named, folder, caplog
):
    change(folder / "config.json", **config)
    if generation is None:
        (folder / "generation_config.json").unlink()
    else:
        change(folder / "generation_config.json", **generation)
    found = read(folder).decode
    assert ("piece5" in found["banned_subwords"]) == named.endswith(OF_LOST)
    assert found["beam_size"] == 1 or generation is not None  # transformers' default
    [message] = [one for one in caplog.messages if "without them" in one]
    file, _, settings = message.partition(": ")
    assert f"{Path(file).relative_to(folder)} {settings.partition(': ')[2]}" == named


@pytest.mark.parametrize(
    ("file", "name", "value"),
    [
        ("generation_config.json", "no_repeat_ngram_size", 2.5),
        ("generation_config.json", "no_repeat_ngram_size", True),
        ("generation_config.json", "min_length", "three"),
        ("generation_config.json", "bad_words_ids", 5),
        *(("config.json", *one) for one in (("d_model", "32"), ("encoder_layers", 2.5))),
        ("config.json", "dropout", "x"),
    ],
)
def test_a_setting_of_another_type_is_named(file, name, value, folder):
    change(folder / file, **{name: value})
    where = "missing or wrong: " if file == "config.json" else ""
    what = f"{where}{name}={value!r} is not a (list|(whole )?number)"
    with pytest.raises(DataError, match=what):
        read(folder)


def test_weights_are_floating_point_numbers(folder):
    path = folder / "model.safetensors"
    content = path.read_bytes()
    begins = content.index(b"F32", content.index(MATRIX.encode()))
    path.write_bytes(content[:begins] + b"I32" + content[begins + 3 :])
    with pytest.raises(DataError, match=f"{MATRIX} is of int32: weights are floating-point"):
        read(folder)


def test_files_of_two_models_are_warned_of(folder, caplog):
    """The pieces of this test's vocabulary are names that its SentencePiece models do not have."""
    read(folder)
    assert "pieces of the source's SentencePiece model; the others are unknown" in caplog.text


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("added_tokens.json", {"<2de>": 60}),
        ("tokenizer_config.json", {"added_tokens_decoder": {"60": {"content": "<2de>"}}}),
    ],
)
def test_tokens_that_a_user_added_are_refused_by_name(file, content, folder):
    known = {"added_tokens_decoder": {"0": {"content": "</s>"}}}
    change(folder / "tokenizer_config.json", **known)
    assert read(folder)
    path = folder / file
    if not path.exists():
        path.write_text("{}")
    change(path, **content)
    with pytest.raises(UserError, match="added to its tokenizer, such as '<2de>'"):
        read(folder)


def test_a_pickle_is_refused_with_the_line_that_converts_it(folder):
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"is a pickle.*python -c .*MarianMTModel.*save_pretrained"):
        read(folder)


def test_damaged_files_are_one_clear_line(folder):
    whole = (folder / "model.safetensors").read_bytes()
    end = 8 + int.from_bytes(whole[:8], "little")
    name, about = next(iter(json.loads(whole[8:end]).items()))
    twice = json.dumps({name: about})[:-1].encode() + b"," + whole[9:end]
    for content in (
        b"",
        whole[:5],
        b"\xff" * 20,
        whole[:-4],
        whole[:60],
        whole.replace(b"F32", b"F9"),
        len(twice).to_bytes(8, "little") + twice + whole[end:],
    ):
        (folder / "model.safetensors").write_bytes(content)
        with refused(UserError, "is not a safetensors file"):
            read(folder)
    (folder / "model.safetensors").write_bytes(whole)
    (folder / "vocab.json").write_text("[1]")
    with refused(UserError, "vocab.json, line 1: a JSON list; expected an object"):
        read(folder)
    (folder / "vocab.json").write_text("{}")
    with refused(UserError, "vocab.json has no </s>"):
        read(folder)


def test_two_vocabularies_that_do_not_fit_the_config_are_refused(folder, tmp_path):
    change(folder / "tokenizer_config.json", separate_vocabs=True)
    with pytest.raises(UserError, match="two vocabularies"):
        read(folder)
    (tmp_path / "two").mkdir()
    two = write_folder(tmp_path / "two", TWO)
    (two / "target_vocab.json").unlink()
    with pytest.raises(UserError, match="target_vocab.json"):
        read(two)
