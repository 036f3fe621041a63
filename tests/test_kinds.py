"""Encoders and decoders of every kind: killed runs, searches, alignments, pictures."""

import functools
import json
import shutil
from pathlib import Path

import pytest

from tests.tiny_runs import command, metrics, read_lines, scratch, tiny_corpus, train
from tests.training.test_resume import assert_same_run
from transformer_jax.tables.collect import hypotheses as hypotheses_of
from transformer_jax.tables.experiment import Job, Scale

pytestmark = pytest.mark.slow("models are trained, killed and go through commands")

STEPS = 12
SETTINGS = {
    "train__steps": STEPS,
    "train__remat": True,
    "train__valid_every": 6,
    "train__checkpoint_every": 4,
    "data__max_length": 32,
}
# Every kind of encoder and of decoder. A Transformer alone goes through the commands in most other
# files; ssru, like the average, is a decoder without attention to itself.
PAIRS = [
    ("recurrent", "recurrent"),
    ("recurrent", "transformer"),
    ("convolutional", "convolutional"),
    ("transformer", "ssru"),
]
SENTENCE = "The dog sleeps."


def settings_of(encoder, decoder):
    sides = {"model__encoder": encoder, "model__decoder": decoder}
    if {encoder, decoder} & {"recurrent", "convolutional"}:
        sides["model__d_hidden"] = 24
    # After 12 steps, this decoder translates nothing unless it learns faster.
    fast = {"train__peak_learning_rate": 0.02} if decoder == "ssru" else {}
    return {**SETTINGS, **sides, **fast}


@functools.cache
def trained(encoder, decoder):
    """A trained run's folder."""
    folder = Path(scratch().name) / f"{encoder}-{decoder}"
    assert train(folder, **settings_of(encoder, decoder)) == 0
    return folder


@pytest.fixture(params=PAIRS, ids="-".join)
def run(request):
    """A trained run's folder and its settings."""
    return trained(*request.param), settings_of(*request.param)


def test_a_killed_run_goes_on_as_if_it_had_not_been(run, tmp_path):
    """The run is killed after step 8 with a checkpoint of step 4, so it writes some lines twice."""
    folder, settings = run
    killed = shutil.copytree(folder, tmp_path / "killed")
    for later in [path for step in (8, 12) for path in (killed / "checkpoints").glob(f"{step}*")]:
        shutil.rmtree(later) if later.is_dir() else later.unlink()
    assert train(killed, **settings) == 0
    assert_same_run(killed, folder, str(STEPS))
    assert metrics(killed)[-1]["step"] == STEPS


def test_a_run_is_averaged_and_its_table_finds_its_translations(run, capsys):
    folder, settings = run
    beam = 3 if settings["model__decoder"] == "recurrent" else 2
    assert command("average", f"--workdir={folder}", "--last=2") == 0
    search = (f"--beam_size={beam}", "--checkpoint=average")
    capsys.readouterr()
    assert command("evaluate", f"--workdir={folder}", *search) == 0
    assert "BLEU" in capsys.readouterr().out
    [written] = (folder / "evaluations").glob(f"test.{STEPS}-last2.beam{beam}.*.txt")
    sources = read_lines(tiny_corpus() / "test.en")
    assert len(read_lines(written)) == len(sources)
    assert len(set(read_lines(written))) > 1
    job = Job("any", "any", 0, Scale("configs/demo.py", average=2), {}, folder)
    asked = {"train.steps": STEPS, "decode.beam_size": beam, "decode.max_extra_length": 10}
    assert hypotheses_of(job._replace(overrides=asked)) == read_lines(written)


def test_a_run_aligns_if_it_has_attention_and_is_quantized(run, tmp_path):
    folder, settings = run
    files = [f"--src={tiny_corpus() / 'test.en'}", f"--tgt={tiny_corpus() / 'test.de'}"]
    aligns = settings["model__decoder"] != "recurrent"
    assert command("align", f"--workdir={folder}", *files) == (0 if aligns else 2)
    assert command("quantize", f"--workdir={folder}", f"--output={tmp_path / 'small'}") == 0


def test_attention_is_drawn_of_layers_that_have_weights(run, tmp_path, capsys):
    folder, settings = run
    kinds = {
        "cross": settings["model__decoder"] != "recurrent",
        "encoder": settings["model__encoder"] == "transformer",
        "decoder": settings["model__decoder"] == "transformer",
    }
    for kind, exists in kinds.items():
        picture = tmp_path / f"{kind}.png"
        asked = [f"--workdir={folder}", f"--output={picture}", f"--kind={kind}", SENTENCE]
        capsys.readouterr()
        assert command("attention", *asked) == (0 if exists else 2)
        assert picture.exists() == exists
        if not exists:
            error = capsys.readouterr().err.splitlines()[-1]
            assert f"--kind={kind}: this model has no such layers and heads" in error
            own = [name for name, is_there in kinds.items() if is_there]
            assert all(name in error.rpartition(";")[2] for name in own or ["no layers"])
    weights = tmp_path / "weights.json"
    status = command(
        "attention", f"--workdir={folder}", f"--output={weights}", "--kind=all", SENTENCE
    )
    assert status == (0 if any(kinds.values()) else 2)
    if status == 0:
        assert json.loads(weights.read_text()).keys() >= {k for k, has in kinds.items() if has}
