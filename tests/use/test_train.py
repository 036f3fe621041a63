"""The `train` command: what it writes, what it starts from, what it prints first."""

import itertools
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.training import closed_forms
from tests.training.test_loop import MEASURED, lines
from transformer_jax.api import load
from transformer_jax.commands.evaluate import evaluate
from transformer_jax.config.changes import with_values
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import MeshConfig
from transformer_jax.config.train import TrainConfig
from transformer_jax.errors import ConfigError
from transformer_jax.evaluation import bleu
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.runs.checkpoints import committed_steps
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.vocabulary import Sizes
from transformer_jax.training.program import BatchShape
from transformer_jax.use import train
from transformer_jax.use.description import describe


def test_a_run_leaves_what_the_design_says():
    workdir = runs.trained_run()
    written = {"config.json", "corpus.sha256", "vocabulary.model", "run.sha256.json"}
    written |= {".lock", "checkpoints", "metrics.jsonl", "tensorboard"}
    assert {path.name for path in workdir.iterdir()} == written
    train, valid = lines(workdir, "train"), lines(workdir, "valid")
    assert [record["step"] for record in train] == [*range(3, 40, 3), 40]
    assert [record["step"] for record in valid] == [10, 20, 30, 40]
    measured = [one.keys() for one in read_metrics(workdir) if one["kind"] == "train"]
    assert all(names == MEASURED | {"step", "kind"} for names in measured)
    assert train[-1]["nats_per_token"] < train[0]["nats_per_token"] - 1
    assert valid[-1]["nats_per_token"] < valid[0]["nats_per_token"] - 0.5


def test_the_cache_may_be_below_the_run_s_folder(tmp_path, monkeypatch):
    begun = []
    cache = tmp_path / "run" / "cache"
    monkeypatch.setattr(train, "keep_compiled_programs", lambda: cache.mkdir(parents=True))
    monkeypatch.setattr(train, "_train_in", lambda run, *_: begun.append(run.path))
    train.train(runs.tiny_config(), str(tmp_path / "run"))
    assert begun == [tmp_path / "run"] and cache.exists()


@pytest.mark.slow("trains runs")
def test_a_run_starts_from_another_s_weights_and_vocabulary_and_keeps_its_name(tmp_path, caplog):
    """With a learning rate too small to change them; its own corpus and text count for nothing.

    It is continued without the other's name, with the vocabulary's keys that it was begun with.
    """
    origin = runs.trained_run()
    changes = {"data__train": "test", "vocabulary__size": 300, "model__dropout": 0.3}
    changes["train__peak_learning_rate"] = 1e-30
    with caplog.at_level("INFO"):
        assert runs.train(tmp_path, **changes, train__init_from=origin, train__steps=1) == 0
    assert f"starting from the weights of {origin}, checkpoint {runs.STEPS}" in caplog.text
    size = RunFolder(origin).read_config().vocabulary.size
    assert f"vocabulary.size is {size}, as in {origin}" in caplog.text
    assert RunFolder(tmp_path).read_config().vocabulary.size == size != 300
    vocabularies = [(folder / "vocabulary.model").read_bytes() for folder in (tmp_path, origin)]
    assert vocabularies[0] == vocabularies[1]
    places = (tmp_path / "checkpoints/1", origin / "checkpoints/40")
    got, want = map(runs.arrays, places)
    assert got["rest.step"] == 1, "steps and optimizer start anew"
    for name in want:
        if name.startswith("params."):
            np.testing.assert_allclose(got[name], want[name], rtol=0, atol=1e-20, err_msg=name)

    caplog.clear()
    with caplog.at_level("INFO"):
        assert runs.train(tmp_path, **changes, train__steps=2) == 0
    assert "continuing from step 1" in caplog.text
    assert "init_from" not in caplog.text
    assert RunFolder(tmp_path).read_config().train.init_from == str(origin)


@pytest.mark.slow("trains runs with searches")
def test_validation_bleu_is_that_of_greedy_search_and_picks_the_best(tmp_path, monkeypatch, caplog):
    scores = [5.0, 9.0, 1.0]
    seen = []

    def score(hypotheses, references, src, tgt):
        seen.append(hypotheses)
        assert references == runs.read_lines(runs.tiny_corpus() / "valid.de")
        assert (src, tgt) == ("en", "de")
        return SimpleNamespace(bleu=scores[len(seen) - 1])

    monkeypatch.setattr(bleu, "score", score)
    monkeypatch.setattr(train, "BLEU_LINES", 10)
    changes = {"train__valid_every": 2, "train__checkpoint_every": 2, "train__keep_last": 1}
    changes |= {"train__valid_bleu": True, "decode__max_length": 8}
    # Greedy search ignores these.
    changes |= {"decode__beam_size": 2, "decode__groups": 2, "decode__method": "sample"}
    with caplog.at_level("WARNING"):
        assert runs.train(tmp_path, train__steps=6, **changes) == 0
    assert caplog.text.count("more than decode.max_length=8 subwords") == 3, "sources are cut"
    assert [record["bleu"] for record in lines(tmp_path, "valid")] == scores
    assert committed_steps(tmp_path / "checkpoints") == [4, 6], "4 has the best BLEU"
    one_beam = {"decode.groups": 1, "decode.method": "beam"}
    result = evaluate(str(tmp_path), split="valid", beam_size=1, overrides=one_beam)
    assert runs.read_lines(result.hypotheses) == seen[-1]


# Before the first step -------------------------------------------------------------------------


def dry_run(capsys, *arguments: str) -> dict[str, str]:
    """The lines that a dry run prints, keyed by the words before the colon."""
    assert runs.command("train", "--dry_run", *arguments) == 0
    out, _ = capsys.readouterr()
    return dict(line.split(": ", 1) for line in out.splitlines())


def test_a_dry_run_describes_the_run_and_writes_nothing(tmp_path, capsys, in_checkout):
    """One layer of the paper's base model, whose data set is not there."""
    printed = dry_run(
        capsys,
        "--config=configs/wmt14.py:base,en-de",
        f"--workdir={tmp_path}/run",
        f"--config.data.path={tmp_path}/nowhere",
        "--config.model.num_layers=1",
    )
    assert list(tmp_path.iterdir()) == []
    model = ModelConfig(num_layers=1)
    parameters = closed_forms.parameters(model, 37_120)
    assert printed["parameters"] == f"{parameters:,} (vocabulary 37,000, padded to 37,120)"
    rows = 104  # the multiple of 8 nearest to 25,000 / (256 * 0.97)
    tokens = round(rows * 256 * 0.97)
    assert printed["batch"].startswith(f"{rows} rows of 256 source and 256 target positions, ")
    assert f"about {tokens:,} real target tokens (nominal 25,000)" in printed["batch"]
    flops = rows * closed_forms.training_flops(model, 37_000, 256, 256)
    assert printed["training FLOPs a step"].startswith(f"{flops:.3e} ")
    assert printed["training FLOPs of 100,000 steps"] == f"{flops * 100_000:.3e}"
    mebibytes = re.match(r"([\d,]+) MiB a device", printed["memory of the step"])[1]
    memory = int(mebibytes.replace(",", ""))
    assert memory > 3 * 4 * parameters / 2**20, "parameters and two moments at least"
    assert printed["mesh"].startswith("data 1, fsdp 1, tensor 1 on 1 x ")
    assert "1 training step" in printed["programs to compile"]
    assert "prepare" in printed["data"]


@pytest.mark.slow("prepares a run")
def test_a_dry_run_describes_the_text_that_would_be_used_and_how_long_the_run_takes(
    tmp_path, capsys, monkeypatch
):
    """A clock that is one second later each time that it is read: two steps, three validations."""
    values = runs.tiny_values(train__steps=1_000, vocabulary__size=300)
    preset = runs.write_preset(tmp_path / "preset.py", values)
    model = runs.trained_run() / "vocabulary.model"
    clock = SimpleNamespace(monotonic=itertools.count(1).__next__)
    monkeypatch.setattr("transformer_jax.training.timing.time", clock)
    measure = train.measure
    two_steps = {"at_least": 2, "for_seconds": 0.0}
    monkeypatch.setattr(
        train, "measure", lambda *args, **named: measure(*args, **named | two_steps)
    )
    flags = f"--config={preset}", f"--workdir={tmp_path}/run"
    flags = *flags, "--config.train.valid_bleu=True"
    printed = dry_run(capsys, *flags, f"--config.vocabulary.path={model}")
    assert not (tmp_path / "run").exists()
    assert "(vocabulary 400, padded to 512)" in printed["parameters"]
    assert printed["data"] == (
        f"text files in {runs.tiny_corpus()}, en→de: 300 pairs in train, 24 pairs in valid"
    )
    assert printed["epoch"] == "25.5 steps; 1,000 steps are 39.2 epochs"  # 204 rows, 8 a step
    # 1,000 steps, and 100 validations.
    timed = "1 s a step and 1 s a validation, 0:18:20 for 1,000 steps"
    assert printed["time"] == f"{timed}, without the searches of validation BLEU"


def test_a_description_of_two_directions_two_vocabularies_and_micro_batches(monkeypatch):
    monkeypatch.setattr("transformer_jax.training.cost.step_flops", lambda *_: 1_000)  # of a row
    config = runs.tiny_config(train__agreement_weight=0.0, train__accumulate_steps=4)
    state = SimpleNamespace(params={"a": np.zeros(7)})
    mesh = make_mesh(MeshConfig())
    program = SimpleNamespace(state=state, mesh=mesh, memory_bytes=3 * 2**20)
    shape = BatchShape(rows=8, src_length=48, tgt_length=40)
    described = describe(config, program, Sizes(400, 600), shape, 0.5)
    sizes = "400, padded to 512; target 600, padded to 640"
    assert described[0] == f"parameters: 7 in each direction (vocabulary {sizes})"
    assert "about 160 real target tokens (nominal 400), in 4 micro-batches of 2" in described[1]
    assert described[-1].endswith("1 validation step")
    config = runs.tiny_config(train__valid_bleu=True)
    described = describe(config, program, 400, shape, 0.5)
    assert described[0] == "parameters: 7 (vocabulary 400, padded to 512)"
    assert re.search(r"1 validation step, up to \d+ searches of validation BLEU$", described[-1])


def test_a_run_without_its_metrics_or_its_checkpoints_says_so(tmp_path, caplog):
    run = runs.copy_of_run(tmp_path / "run")
    (run / "metrics.jsonl").unlink()
    with caplog.at_level("INFO"):
        assert runs.train(run, decode__beam_size=3, train__init_from=runs.trained_run()) == 0
    assert f"{run}/metrics.jsonl is gone: the curves begin after step 40" in caplog.text
    assert "from here on, decode.beam_size is 3 (was 4)" in caplog.text
    assert "is by another search" not in caplog.text
    assert "train.init_from has no effect: it is for the start of a run" in caplog.text
    (run / "metrics.jsonl").touch()
    shutil.rmtree(run / "checkpoints")
    with caplog.at_level("INFO"):
        assert runs.train(run, train__steps=1) == 0
    assert f"{run} has no checkpoint: training begins again at step 0" in caplog.text


@pytest.mark.slow("prepares runs of several texts")
def test_a_dry_run_counts_the_pairs_and_refuses_text_that_cannot_be_used(tmp_path, capsys):
    for name in ("train.en", "train.de", "test.en", "test.de"):
        shutil.copy(runs.tiny_corpus() / name, tmp_path)
    links = runs.write_lines(tmp_path / "train.align", ["0-0"] * 300)
    values = {"data.path": str(tmp_path), "data.alignments": True, "train.alignment_weight": 0.5}
    preset = runs.write_preset(tmp_path / "preset.py", runs.TINY | values)
    before = runs.contents(tmp_path)
    flags = [f"--config={preset}", f"--workdir={tmp_path}/run"]
    printed = dry_run(capsys, *flags)["data"]
    assert printed.endswith(": 285 pairs in train, 15 pairs in valid")
    assert runs.contents(tmp_path) == before

    runs.write_lines(links, ["0-0"] * 10)
    assert runs.command("train", "--dry_run", *flags) == 2
    out, err = capsys.readouterr()
    assert out == "" and "train.align has 10 lines for 300 pairs" in err


def test_a_dry_run_refuses_a_folder_that_training_would_refuse(tmp_path, capsys, monkeypatch):
    preset = runs.write_preset(tmp_path / "preset.py", runs.tiny_values())
    run = runs.copy_of_run(tmp_path / "run")
    flags = ["--dry_run", f"--config={preset}", f"--workdir={run}", "--force"]
    assert runs.command("train", *flags, "--config.model.d_ff=48") == 2
    assert "d_ff: the run has 32, the config now says 48" in capsys.readouterr().err
    (run / "corpus.sha256").write_text("0" * 64)
    monkeypatch.setattr("transformer_jax.use.train.compile_program", lambda *_, **__: None)
    monkeypatch.setattr("transformer_jax.use.train.describe", lambda *_: ["sizes"])
    assert runs.command("train", *flags) == 2
    out, err = capsys.readouterr()
    assert out == "" and "trained on other text" in err and err.count("\n") == 1


def test_a_finished_run_is_not_changed_and_the_log_describes_it(caplog, tmp_path):
    """The log has the lines of a dry run."""
    workdir = runs.copy_of_run(tmp_path / "run")
    before = runs.contents(workdir)
    with caplog.at_level("INFO"):
        assert runs.train(workdir) == 0
    assert runs.contents(workdir) == before
    assert "nothing to do: trained to step 40 of train.steps=40" in caplog.text
    leaves = runs.arrays(workdir / "checkpoints" / "40")
    parameters = sum(x.size for name, x in leaves.items() if name.startswith("params."))
    assert f"parameters: {parameters:,} (vocabulary 400, padded to 512)" in caplog.text
    logged = re.search(r"about ([\d,]+) real target tokens \(nominal 400\)", caplog.text)
    tokens = [record["target_tokens_per_step"] for record in lines(workdir, "train")]
    assert float(logged[1]) == pytest.approx(np.mean(tokens), rel=0.05)
    assert RunFolder(workdir).read_config() == runs.tiny_config()


@pytest.mark.slow("trains a run and compiles every command")
def test_each_side_can_have_its_own_vocabulary(tmp_path):
    """From training to every command that turns ids into text."""
    changes = {"vocabulary__separate": True, "model__tie_embeddings": False}
    changes |= {"model__tie_output": True, "train__steps": 20, "vocabulary__size": 330}
    assert runs.train(tmp_path / "run", train__valid_bleu=True, **changes) == 0
    run = load(tmp_path / "run")
    assert run.loaded.vocabulary.sizes == (330, 330) and not run.loaded.vocabulary.is_shared
    src, tgt = (runs.read_lines(runs.tiny_corpus() / f"test.{side}")[:3] for side in ("en", "de"))
    [logits] = run.logits(src[:1], tgt[:1])
    assert "".join(logits.subwords[:-1]).replace("\u2581", " ").strip() == tgt[0]
    attended = run.attention(src[0], tgt[0]).kinds["cross"]
    assert "".join(attended.attending[:-1]).replace("\u2581", " ").strip() == tgt[0]
    assert "".join(attended.attended[:-1]).replace("\u2581", " ").strip() == src[0]
    assert [link.tgt_words for link in run.align(src, tgt)] == [line.split() for line in tgt]


def test_a_run_that_outlasts_its_schedule_is_refused():
    for schedule in ("linear", "cosine"):
        with pytest.raises(ConfigError, match="train.steps=40 is above train.decay_steps=39"):
            train._check_rate(TrainConfig(steps=40, schedule=schedule, decay_steps=39))
    train._check_rate(TrainConfig(steps=40, schedule="linear", decay_steps=40))
    train._check_rate(TrainConfig(steps=40, schedule="rsqrt", decay_steps=39))


@pytest.mark.slow("trains runs")
def test_a_run_keeps_the_seed_of_its_text(tmp_path, caplog):
    """A run of an older version had its own; a config file names the default."""
    assert runs.train(tmp_path, train__steps=1, data__seed=4, train__checkpoint_every=1) == 0
    with caplog.at_level("INFO"):
        assert runs.train(tmp_path, train__steps=2, train__checkpoint_every=1) == 0
    assert f"data.seed is 4, as in {tmp_path}" in caplog.text
    assert RunFolder(tmp_path).read_config().data.seed == 4


def test_what_comes_from_another_run_is_checked_too(monkeypatch, tmp_path):
    """As a teacher with two vocabularies gives them to a student with one matrix."""
    taken = {"vocabulary.separate": True}
    monkeypatch.setattr(train, "with_origin", lambda config, run: with_values(config, taken))
    with pytest.raises(ConfigError, match="vocabulary.separate=True has a vocabulary for each"):
        train.train(runs.tiny_config(), str(tmp_path / "run"))
    assert not (tmp_path / "run").exists()
