"""Translation while a sentence arrives: the result of whole sentences, as early as possible."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from tests.fixtures.tiny import random_params, tiny_model
from transformer_jax.config.decode import DecodeConfig
from transformer_jax.config.schema import MeshConfig
from transformer_jax.config.vocabulary import VocabularyConfig
from transformer_jax.decoding import simultaneous
from transformer_jax.decoding.simultaneous import Interpreter, LineInterpreter
from transformer_jax.decoding.translator import Translator
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.text.built_in_corpus import built_in_pairs
from transformer_jax.text.vocabulary import EOS
from transformer_jax.text.vocabulary_training import train_vocabulary

LONGEST, EXTRA, K = 16, 4, 3
DECODE = DecodeConfig(
    beam_size=1, max_extra_length=EXTRA, max_length=LONGEST, tokens_per_batch=1_000, wait_k=K
)
# Together: biases that differ before and after a position, a window, memories of attention, whose
# state of a word begins before the word is read, a decoder without self-attention, learned
# positions, which cut a translation, and outputs that need the source or the translation.
MODELS: dict[str, dict[str, Any]] = {
    "t5": {
        "positions": "t5",
        "window": 7,
        "norm": "pre",
        "attention_memory": "coverage_gru",
        "num_encoder_layers": 2,
        "num_decoder_layers": 1,
        "output": "copy",
    },
    "learned": {
        "positions": "learned",
        "max_positions": LONGEST + 2,
        "decoder": "average",
        "num_layers": 1,
        "d_ff": 0,
        "attention_memory": "coverage_embedding",
        "output": "history",
    },
}

EASE = {"t5": 4.0, "learned": 1.0}  # added to the logit of EOS: some end early, some late


def translator(name: str, ease: float) -> Translator:
    changes = {"tie_embeddings": False, "output_bias": True, **MODELS[name]}
    model = tiny_model(wait_k=1, wait_k_max=5, **changes)
    params = random_params(model, seed=1)
    params["output_bias"] = params["output_bias"].at[EOS].add(ease)
    for part in params.values():  # so that the output depends on what is read
        if isinstance(part, dict) and "cross_attention" in part:
            part["cross_attention"] = jax.tree.map(lambda x: 3 * x, part["cross_attention"])
    banned = (7, 8)
    return Translator(model, params, DECODE, make_mesh(MeshConfig()), banned=banned)


def written_for(interpreter: Interpreter, ids: np.ndarray, parts: list[int]) -> list[int]:
    """The output while a source without EOS arrives in parts of these sizes; it ends later."""
    written: list[int] = []
    for part in np.split(ids, np.cumsum(parts)):
        written += interpreter.feed(part, is_end=False)
    written += interpreter.feed([], is_end=True)
    interpreter.begin()
    return written


@pytest.mark.slow("compiles two models for search and reading")
@pytest.mark.parametrize("name", MODELS)
def test_what_is_written_while_reading_is_what_search_finds_in_the_whole_sentence(name):
    whole = translator(name, EASE[name])
    draw = np.random.default_rng(6)
    lengths = [1, 2, 3, LONGEST - 1, *[LONGEST + 5] * 6, *draw.integers(1, LONGEST, 36)]
    sources = [draw.integers(4, 41, length) for length in lengths]
    cut = [np.append(ids[: LONGEST - 1], EOS).astype(np.int32) for ids in sources]
    found = whole.translate(cut)
    interpreter = Interpreter(SimpleNamespace(translator=whole, longest=LONGEST))  # type: ignore[arg-type]
    compiled = simultaneous.begin, simultaneous.read, simultaneous.write
    before = [one._cache_size() for one in compiled]
    assert len({tuple(best.ids) for (best,) in found}) > 15, "the output depends on the source"
    early, ended = 0, 0
    for ids, (best,) in zip(sources, found, strict=True):
        want = best.ids[best.ids != EOS].tolist()
        parts = draw.integers(0, 4, 5).tolist()
        assert written_for(interpreter, ids, parts) == want
        early += len(want) < len(ids) - K
        ended += len(want) < len(ids) + EXTRA
    assert early > 1 and len(sources) - ended > 1, ("ends of every kind", early, ended)
    # One sentence on a mesh of one device or of several: nothing is compiled twice.
    added = [one._cache_size() - b for one, b in zip(compiled, before, strict=True)]
    assert added == [0, 1, 1]


def test_a_subword_is_written_once_k_more_are_read_and_no_later():
    """And what is read is encoded once: the encoder's keys of a place are written at its turn."""
    endless = SimpleNamespace(translator=translator("t5", -9.0), longest=LONGEST)
    interpreter = Interpreter(endless)  # type: ignore[arg-type]
    ids = np.random.default_rng(1).integers(4, 41, 12)
    counts, keys = [], []
    for number in ids:
        counts.append(len([*interpreter.feed([number], is_end=False)]))
        (key, _), *_ = jax.device_get(
            interpreter.sentence.encoder_cache.written[1]["self_attention"]
        )
        keys.append(key[0, :, :, 0])
    assert not interpreter.has_ended
    assert counts == [0] * (K - 1) + [1] * (len(ids) - K + 1)
    for place, key in enumerate(keys):
        written = abs(key).max((0, 2)) > 0
        assert written.tolist() == [m <= place for m in range(16)][: len(written)]
        np.testing.assert_array_equal(keys[-1][:, : place + 1], key[:, : place + 1])


def test_text_is_only_appended_to_whatever_subwords_are_written(monkeypatch):
    """Characters that are spelled in bytes, in part too, spaces alone and control pieces."""
    pairs = [(pair.src, pair.tgt) for pair in built_in_pairs("train", 200)]
    vocabulary = train_vocabulary(sum(pairs, ()), VocabularyConfig(size=420), 0)
    of_byte = vocabulary.ids_of([f"<0x{byte:02X}>" for byte in range(256)])
    spelled = [of_byte[f"<0x{byte:02X}>"] for byte in "ä中😀\n".encode()]
    draw = np.random.default_rng(2)
    monkeypatch.setattr(simultaneous, "Interpreter", lambda lines: stub)
    stub = SimpleNamespace(begin=lambda: None)
    lines = SimpleNamespace(vocabulary=vocabulary, longest=99, cut=0, empty=0, to=None, targets=())
    lines.text = lambda ids: vocabulary.decode(ids).replace("\n", " ").replace("\r", " ")
    interpreter = LineInterpreter(lines)  # type: ignore[arg-type]
    for _ in range(300):
        ids = draw.integers(0, vocabulary.size, 12)
        begin = draw.integers(0, 8)
        ids[begin : begin + 4] = np.array(spelled)[draw.integers(0, len(spelled) - 3) :][:4]
        ids[9] = vocabulary.encode(" a")[0]
        stub.feed = lambda _, is_end, ids=ids: iter(ids)
        written = [*interpreter.feed("", is_end=True)]
        assert "".join(written) == lines.text(ids)
    assert len(written) > 3, "in pieces"
    stub.feed = lambda _, is_end: iter(spelled)
    assert [*interpreter.feed("", is_end=True)] == ["ä", "中", "😀", " "]
