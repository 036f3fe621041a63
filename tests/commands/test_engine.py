"""Translation by another engine: the same lines, and settings that it cannot express."""

from types import SimpleNamespace

import pytest

from tests import tiny_runs as runs
from tests.commands.test_export import run_of
from tests.commands.test_translate import answers
from transformer_jax.commands.engine import engine_lines
from transformer_jax.use.loading import load_model

ALPHA_0 = {"decode.length_penalty": 0.0}


def test_an_engine_answers_the_same_lines():
    pytest.importorskip("ctranslate2")
    source = ["", *runs.read_lines(runs.tiny_corpus() / "test.en")[:6], " "]
    settings = {"scores": True, "beam_size": 1, "overrides": ALPHA_0}
    ours = [line.split("\t") for line in answers(source, **settings)]
    theirs = [line.split("\t") for line in answers(source, engine="ctranslate2", **settings)]
    assert [text for _, text in theirs] == [text for _, text in ours]
    best_of_2 = answers(source[1:3], engine="ctranslate2:int8", n_best=2)
    assert [line.split(" ||| ")[0] for line in best_of_2] == ["0", "0", "1", "1"]
    unk = {"decode.banned_subwords": ("<unk>",)}
    assert len(answers(source, engine="ctranslate2", overrides=unk)) == len(source)
    assert answers(["", " "], engine="ctranslate2") == ["", ""]


def test_each_line_has_its_own_limit_of_length():
    """A random model's translations go on until the limit."""
    pytest.importorskip("ctranslate2")
    source = ["a", "dog", "Who", *runs.read_lines(runs.tiny_corpus() / "test.en")[:3]]
    settings = {**ALPHA_0, "decode.max_extra_length": 1}
    loaded = load_model(str(run_of("post")), overrides=settings, beam_size=1)
    lines = engine_lines(loaded, "ctranslate2")
    found = []
    ours = [best.text for [best] in loaded.line_translator()(source)]
    limits = [len(ids) for ids in loaded.line_translator().encode(source)]  # + 1 - 1, for EOS
    translate = lines.translator.engine.translate_batch

    def noted(*args, **how):
        found.append(translate(*args, **how))
        return list(found[-1])

    lines.translator.engine = SimpleNamespace(translate_batch=noted)
    together = [best.text for [best] in lines.shared(source)]
    lengths = [len(result.hypotheses[0]) for result in found[0]]
    late = [limit for length, limit in zip(lengths, limits, strict=True) if length > limit]
    assert late and [len(result.hypotheses[0]) for [result] in found[1:]] == late
    assert together == [best.text for line in source for [best] in lines.shared([line])] == ours


def test_the_engine_searches_with_the_run_s_settings():
    pytest.importorskip("ctranslate2")
    settings = {"decode.length_penalty": 0.3, "decode.banned_subwords": ("e", "<unk>")}
    settings |= {"decode.min_length": 3, "decode.no_repeat": 2}
    loaded = load_model(str(run_of("post")), beam_size=3, n_best=2, overrides=settings)
    search = engine_lines(loaded, "ctranslate2").translator.search
    want = {"beam_size": 3, "num_hypotheses": 2, "length_penalty": 0.3}
    want |= {"min_decoding_length": 3, "no_repeat_ngram_size": 2}
    assert search | want | {"suppress_sequences": [["e"], ["<unk>"]]} == search
