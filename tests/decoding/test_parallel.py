"""Writing all subwords at once: mask-predict and CTC against loops over one sentence in NumPy."""

import functools

import jax
import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.fixtures.cases import first_quick
from tests.fixtures.tiny import VOCABULARY, random_pairs, tiny_and_params
from transformer_jax.api import load
from transformer_jax.config.decode import DecodeConfig
from transformer_jax.config.schema import MeshConfig
from transformer_jax.decoding.parallel import ParallelTranslator
from transformer_jax.errors import ConfigError
from transformer_jax.model.outputs.ctc import BLANK, states
from transformer_jax.model.outputs.mask_predict import LENGTHS, MASK, length_log_probs
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.serving.answers import model_of as model_of_server
from transformer_jax.text.batches import packed_sentences, translation_buckets
from transformer_jax.text.vocabulary import BOS, EOS, PAD

BANNED = 7
SOURCES = [
    np.array(src, np.int32) for src, _ in random_pairs(0, [(n, 1) for n in (5, 2, 9, 17, 1, 5)])
]
SETTINGS = {"max_length": 64, "tokens_per_batch": 128, "max_extra_length": 3}


@functools.cache
def model_of(parallel):
    return tiny_and_params(parallel=parallel, num_layers=1, max_positions=64)


def translated(parallel, sources=SOURCES, n_best=1, own=None, banned=(BANNED,), **changes):
    """`own`: a model and its parameters in place of `model_of`."""
    settings = DecodeConfig(method=parallel, **{**SETTINGS, **changes})
    mesh = make_mesh(MeshConfig())
    translator = ParallelTranslator(*(own or model_of(parallel)), settings, mesh, n_best, banned)
    return translator.translate(sources)


@functools.cache
def applied(parallel, method):
    model, params = model_of(parallel)
    compute = jax.jit(lambda *given: model.apply({"params": params}, *given, method=method))
    return lambda *given: jax.tree.map(np.asarray, compute(*given))


def lengths_of(model, source):
    encoded = model.encode(source)
    return encoded, length_log_probs(model, encoded, model.source_place(source))[0, 0]


def filled_of(model, encoded, source, seen):
    x, _ = model.decode(encoded, source, seen, full_context=True)
    return model.out().logits(x, model.given(None, encoded, source, seen))[0]


def by_hand(ids, iterations, lengths, limit):
    """Mask-predict of one sentence: [(subwords, mean log probability)], best first."""
    source = packed_sentences([ids], 1, len(ids))
    encoded, log_p = applied("mask_predict", lengths_of)(source)
    allowed = [
        (log_p[c], len(ids) + c - LENGTHS // 2)
        for c in range(LENGTHS)
        if 2 <= len(ids) + c - LENGTHS // 2 <= max(2, limit)
    ]
    texts = []
    for _, length in sorted(allowed, reverse=True)[:lengths]:
        text, sure = [MASK] * (length - 1), np.zeros(length - 1)
        for t in range(iterations):
            seen = packed_sentences([[*text, EOS]], 1, length)
            logits = applied("mask_predict", filled_of)(encoded, source, seen)
            logits = logits[:, :VOCABULARY].astype(np.float64)
            log_probs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            log_probs[:, [PAD, EOS, BOS, BANNED]] = -np.inf
            for at in range(length - 1):
                if text[at] == MASK:
                    text[at], sure[at] = int(log_probs[at].argmax()), log_probs[at].max()
            again = (length - 1) * (iterations - t - 1) // iterations
            for at in np.argsort(sure)[:again]:
                text[at] = MASK
        texts.append(([*text, EOS], sure.mean()))
    return sorted(texts, key=lambda one: -one[1])


@pytest.mark.parametrize(("iterations", "lengths"), first_quick([(4, 3), (1, 1)], 1))
def test_mask_predict_fills_in_what_a_loop_fills_in(iterations, lengths):
    found = translated("mask_predict", n_best=lengths, iterations=iterations, lengths=lengths)
    for ids, hypotheses in zip(SOURCES, found, strict=True):
        want = by_hand(ids, iterations, lengths, len(ids) + SETTINGS["max_extra_length"])
        assert [one.ids.tolist() for one in hypotheses] == [text for text, _ in want]
        for one, (text, score) in zip(hypotheses, want, strict=True):
            np.testing.assert_allclose(one.score, score, rtol=1e-4)
            np.testing.assert_allclose(one.log_prob, score * (len(text) - 1), rtol=1e-4)


def test_each_length_that_is_tried_counts_as_a_row_of_a_batch(monkeypatch):
    given = []

    def buckets(*own):
        given.append(own[1])
        return translation_buckets(*own)

    monkeypatch.setattr("transformer_jax.decoding.parallel.translation_buckets", buckets)
    for lengths in (1, 4):
        translated("mask_predict", lengths=lengths, iterations=1)
    assert given == [64, 16]


def test_no_translation_is_longer_than_its_limit():
    for extra in (0, 1):
        found = translated("mask_predict", max_extra_length=extra, lengths=100, n_best=100)
        for ids, hypotheses in zip(SOURCES, found, strict=True):
            lengths = sorted(len(one.ids) for one in hypotheses)
            assert lengths == list(range(2, max(2, len(ids) + extra) + 1))


@pytest.mark.parametrize("parallel", ["mask_predict", "ctc"])
def test_logits_that_are_no_numbers_give_no_translation(parallel):
    model, params = model_of(parallel)
    own = model, jax.tree.map(lambda x: x * np.nan, params)
    assert translated(parallel, SOURCES[:2], own=own) == [[], []]


@pytest.mark.parametrize("parallel", ["mask_predict", "ctc"])
def test_nothing_but_subwords_is_written_however_likely_it_is(parallel):
    model, params = tiny_and_params(parallel=parallel, num_layers=1, output_bias=True)
    often = [PAD, BANNED, *((EOS, BOS) if parallel == "mask_predict" else ())]
    params["output_bias"] = params["output_bias"].at[np.array(often)].set(50.0)
    for [found] in translated(parallel, SOURCES[:2], own=(model, params)):
        assert found.ids[-1] == EOS and not {*often, EOS, BOS} & {*found.ids[:-1].tolist()}


def test_no_translation_has_more_positions_than_the_model():
    keys = {"num_layers": 1, "positions": "learned", "max_positions": 11}
    own = tiny_and_params(parallel="mask_predict", **keys)
    changes = {"max_length": 11, "tokens_per_batch": 64, "max_extra_length": 50, "lengths": 100}
    for hypotheses in translated("mask_predict", SOURCES[:3], 100, own, **changes):
        assert sorted(len(one.ids) for one in hypotheses) == list(range(2, 12))


def test_ctc_names_the_likeliest_way():
    def logits_of(model, source):
        encoded = model.encode(source)
        x, _ = states(model, encoded, source, None)
        return model.out().logits(x, model.given(None, encoded, source, source))[0]

    for ids, [found] in zip(SOURCES, translated("ctc"), strict=True):
        logits = applied("ctc", logits_of)(packed_sentences([ids], 1, len(ids)))
        log_probs = np.array(jax.nn.log_softmax(logits[:, :VOCABULARY]))
        log_probs[:, [PAD, BANNED]] = -np.inf
        best = log_probs.argmax(-1).tolist()
        written = [x for x, before in zip(best, [None, *best], strict=False) if x != before]
        written = [x for x in written if x != BLANK]
        end = written.index(EOS) if EOS in written else len(written)
        assert found.ids.tolist() == [*written[:end], EOS]
        np.testing.assert_allclose(found.log_prob, log_probs.max(-1).sum(), rtol=1e-4)


def test_banning_the_blank_which_is_never_written_changes_nothing():
    model, params = model_of("ctc")
    embedding = jax.tree.map(lambda x: x.at[BLANK].multiply(5), params["embedding"])
    own = model, {**params, "embedding": embedding}
    plain, without = (translated("ctc", own=own, banned=banned) for banned in ((), (BLANK,)))
    for [one], [other] in zip(plain, without, strict=True):
        assert one.ids.tolist() == other.ids.tolist() and one.log_prob == other.log_prob


@functools.cache
def trained(parallel):
    workdir = runs.Path(runs.scratch().name) / parallel
    keys = {"model.parallel": parallel, "decode.method": parallel, "train.valid_bleu": True}
    assert runs.train(workdir, **keys) == 0
    return workdir


@pytest.mark.slow("trains a run for each")
@pytest.mark.parametrize("parallel", ["mask_predict", "ctc"])
def test_a_run_that_writes_all_at_once_translates_and_says_what_it_cannot(
    parallel, tmp_path, capsys
):
    workdir = trained(parallel)
    run = load(workdir)
    lines = run.translate(["a dog runs", "", "two dogs"])
    assert len(lines) == 3 and lines[1] == ""
    assert lines[2] == run.translate(["two dogs"])[0]
    for asked in (
        lambda: run.score(["a dog"], ["ein Hund"]),
        lambda: run.align(["a dog"], ["ein Hund"]),
        lambda: run.attention("a dog"),
        lambda: run.logits(["a dog"], ["ein Hund"]),
        lambda: load([str(workdir), str(workdir)]),
    ):
        with pytest.raises(ConfigError, match="from left to right"):
            asked()
    capsys.readouterr()
    for name, *flags in (("export", "--format=stablehlo"), ("prune", "--heads=0.5")):
        output = f"--output={tmp_path / name}"
        assert runs.command(name, f"--workdir={workdir}", output, *flags) != 0
        assert f"{name} is for models that write from left to right" in capsys.readouterr().err
    for said, flag in (
        ("has model.wait_k=None", "--simultaneous"),
        ("without --sample", "--sample"),
        ("nothing reads it: leave it out", "--beam_size=8"),
        ("--engine is for models that", "--engine=ctranslate2"),
    ):
        assert runs.command("translate", f"--workdir={workdir}", flag) != 0
        assert said in capsys.readouterr().err
    assert runs.train(tmp_path / "taught", train__teacher=str(workdir)) != 0
    assert f"train.teacher={workdir}: a teacher predicts" in capsys.readouterr().err
    most = model_of_server(run).beam_size
    assert most == {"mask_predict": 5, "ctc": 1}[parallel]
    small = tmp_path / "small"
    assert runs.command("quantize", f"--workdir={workdir}", f"--output={small}") == 0
    assert len(load(small).translate(["a dog"])) == 1
