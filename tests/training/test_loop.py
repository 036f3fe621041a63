"""The command `train`: what it writes, when it stops, what it starts from, what it says first."""

import json
import logging
import re
import time
from collections import Counter
from types import SimpleNamespace

import jax
import numpy as np
import pytest

from tests import tiny_runs as runs
from transformer_jax.evaluation import bleu
from transformer_jax.evaluation.evaluate import evaluate
from transformer_jax.runs.checkpoints import committed_steps
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.training.data import TrainingData

MEASURED = {
    *("smoothed_nats_per_token", "nats_per_token", "perplexity", "token_accuracy"),
    *("learning_rate", "grad_norm", "target_tokens_per_step", "padding_share"),
    *("skipped_updates", "source_tokens_per_second", "target_tokens_per_second"),
}


def lines(workdir, kind: str) -> list[dict]:
    return [record for record in runs.metrics(workdir) if record["kind"] == kind]


def test_a_run_leaves_what_the_design_says():
    workdir = runs.trained_run()
    assert {path.name for path in workdir.iterdir()} == {
        *(".lock", "config.json", "corpus.sha256", "vocabulary.model"),
        *("checkpoints", "metrics.jsonl", "tensorboard"),
    }
    train, valid = lines(workdir, "train"), lines(workdir, "valid")
    assert [record["step"] for record in train] == [*range(3, 40, 3), 40]
    assert [record["step"] for record in valid] == [10, 20, 30, 40]
    raw = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    assert all(
        record.keys() == MEASURED | {"step", "kind"}
        for record in raw
        if "loss" not in record and record["kind"] == "train"
    )
    assert train[-1]["nats_per_token"] < train[0]["nats_per_token"] - 1
    assert valid[-1]["nats_per_token"] < valid[0]["nats_per_token"] - 0.5


def test_metrics_are_those_of_their_window():
    """Rates and shares from what a tiny config is known to hold: 8 rows of 48 + 48 places."""
    train = lines(runs.trained_run(), "train")
    for record in train:
        assert record["perplexity"] == pytest.approx(np.exp(record["nats_per_token"]))
        assert record["smoothed_nats_per_token"] > record["nats_per_token"] * 0.9
        assert 0 <= record["token_accuracy"] <= 1
        assert 250 < record["target_tokens_per_step"] <= 8 * 48
        assert 0 < record["padding_share"] < 0.4
    # Warm-up to 1e-2 in 10 updates, then proportional to step^-0.5.
    rates = {record["step"]: record["learning_rate"] for record in train}
    assert rates[3] == pytest.approx(3e-3) and rates[40] == pytest.approx(1e-2 * (10 / 40) ** 0.5)


def test_accumulated_batches_are_the_same_batches_and_programs_compile_once(tmp_path, caplog):
    jax.config.update("jax_log_compiles", True)
    try:
        with caplog.at_level(logging.WARNING):
            changes = {"train__accumulate_steps": 4, "train__valid_every": 3}
            assert runs.train(tmp_path, train__steps=6, **changes) == 0
    finally:
        jax.config.update("jax_log_compiles", False)
    once, never = (lines(folder, "train") for folder in (tmp_path, runs.trained_run()))
    for got, want in zip(once, never[:2], strict=True):
        assert got.pop("step") == want.pop("step")
        del got["kind"], want["kind"]
        assert got == pytest.approx(want, rel=1e-5)
    compiled = Counter(re.findall(r"Finished XLA compilation of jit\((.*?)\)", caplog.text))
    announced = {name: compiled[name] for name in ("start", "train_step", "eval_step")}
    assert announced == {"start": 1, "train_step": 1, "eval_step": 1}, compiled
    others = {name: count for name, count in compiled.items() if name not in announced}
    # Single operations outside a program: reading the learning rate, making a key.
    assert sum(others.values()) <= 20, others


def test_validation_takes_no_time_in_the_rates_of_training(tmp_path, monkeypatch):
    """By a clock that each validation puts 1,000 seconds forward."""
    seconds, make_batches, passed = time.perf_counter, TrainingData.valid_batches, []

    def slow(data, own_rows):
        passed.append(1_000)
        return make_batches(data, own_rows)

    monkeypatch.setattr(TrainingData, "valid_batches", slow)
    monkeypatch.setattr(time, "perf_counter", lambda: seconds() + sum(passed))
    assert runs.train(tmp_path, train__steps=6, train__valid_every=2) == 0
    assert len(passed) == 3
    records = [record for record in read_metrics(tmp_path) if record["kind"] == "train"]
    assert [record["step"] for record in records] == [3, 6]
    # Some 1,000 tokens a line: about 1 a second if the validation before it counted.
    assert min(record["target_tokens_per_second"] for record in records) > 10


def test_a_run_that_diverges_stops_and_says_so(tmp_path, capsys):
    changes = {"train__peak_learning_rate": 1e30, "train__warmup_steps": 1, "train__max_skipped": 4}
    assert runs.train(tmp_path, train__log_every=1, train__checkpoint_every=4, **changes) == 2
    error = capsys.readouterr().err
    assert "the last 4 updates up to step " in error and "train.max_skipped=4" in error
    assert "train.clip_norm" in error and error.count("\n") == 1
    train = lines(tmp_path, "train")
    skipped = [record["skipped_updates"] for record in train]
    assert skipped[0] == 0 and skipped[-1] == 3 and skipped == sorted(skipped)
    # A line of which every update was skipped has nothing to say of the loss.
    averages = ("nats_per_token", "perplexity", "token_accuracy", "grad_norm", "padding_share")
    assert [train[-1][name] for name in averages] == ["NaN"] * len(averages)
    assert all(np.isfinite(train[0][name]) for name in averages)
    # The schedule counts updates, not steps: it stands still while they are skipped.
    assert len({record["learning_rate"] for record in train if record["skipped_updates"]}) == 1
    # Resumed, it comes to the same end: the counter is part of the state.
    assert committed_steps(tmp_path / "checkpoints") == [4]
    assert all(np.isfinite(leaf).all() for leaf in runs.arrays(tmp_path / "checkpoints/4").values())


def test_a_run_starts_from_another_s_weights_and_vocabulary(tmp_path, caplog):
    """With a learning rate too small to change them; its own corpus and text count for nothing."""
    origin = runs.trained_run()
    changes = {"train__init_from": origin, "train__peak_learning_rate": 1e-30}
    changes |= {"data__train": "valid", "vocabulary__size": 300, "model__dropout": 0.3}
    with caplog.at_level("INFO"):
        assert runs.train(tmp_path, train__steps=1, **changes) == 0
    assert f"starting from the weights of {origin}, checkpoint {runs.STEPS}" in caplog.text
    vocabularies = [(folder / "vocabulary.model").read_bytes() for folder in (tmp_path, origin)]
    assert vocabularies[0] == vocabularies[1]
    got, want = (
        runs.arrays(tmp_path / "checkpoints/1"),
        runs.arrays(origin / "checkpoints/40"),
    )
    assert got["rest.step"] == 1, "steps and optimizer start anew"
    for name in want:
        if name.startswith("params."):
            np.testing.assert_allclose(got[name], want[name], rtol=0, atol=1e-20, err_msg=name)


def test_validation_bleu_is_that_of_greedy_search_and_picks_the_best(tmp_path, monkeypatch):
    scores, seen = [5.0, 9.0, 1.0], []

    def score(hypotheses, references, src, tgt):
        seen.append(hypotheses)
        assert references == runs.read_lines(runs.tiny_corpus() / "valid.de")
        assert (src, tgt) == ("en", "de")
        return SimpleNamespace(bleu=scores[len(seen) - 1])

    monkeypatch.setattr(bleu, "score", score)
    changes = {"train__valid_every": 2, "train__checkpoint_every": 2, "train__keep_last": 1}
    assert runs.train(tmp_path, train__steps=6, train__valid_bleu=True, **changes) == 0
    assert [record["bleu"] for record in lines(tmp_path, "valid")] == scores
    assert committed_steps(tmp_path / "checkpoints") == [4, 6], "4 has the best BLEU"
    result = evaluate(str(tmp_path), split="valid", beam_size=1)
    assert runs.read_lines(result.hypotheses) == seen[-1]


# Before the first step -------------------------------------------------------------------------


def dry_run(capsys, *arguments: str) -> dict[str, str]:
    """What a dry run prints, by the words before each colon."""
    assert runs.command("train", "--dry_run", *arguments) == 0
    out, _ = capsys.readouterr()
    return dict(line.split(": ", 1) for line in out.splitlines())


def test_a_dry_run_says_what_a_run_would_be_and_touches_nothing(tmp_path, capsys, in_checkout):
    """One layer of the paper's base model, whose data set is not there."""
    said = dry_run(
        capsys,
        "--config=configs/wmt14.py:base,en-de",
        f"--workdir={tmp_path}/run",
        f"--config.data.path={tmp_path}/nowhere",
        "--config.model.num_layers=1",
    )
    assert list(tmp_path.iterdir()) == []
    d, f, attention, norm = 512, 2048, 4 * 512 * 512, 2 * 512
    feed_forward = 2 * d * f + f + d
    layers = (attention + feed_forward + 2 * norm) + (2 * attention + feed_forward + 3 * norm)
    parameters = layers + 37_120 * d
    assert said["parameters"] == f"{parameters:,} (vocabulary 37,000, padded to 37,120)"
    rows = 104  # the multiple of 8 nearest to 25,000 / (256 * 0.97)
    tokens = round(rows * 256 * 0.97)
    assert said["batch"].startswith(f"{rows} rows of 256 source and 256 target positions, ")
    assert f"about {tokens:,} real target tokens (nominal 25,000)" in said["batch"]
    # 6 FLOPs a weight and position, embeddings apart, and 12 d for each pair of positions.
    by_weights = 6 * 256 * (3 * attention + 2 * 2 * d * f + 37_120 * d)
    by_pairs = 12 * d * 3 * 256 * 256
    flops = rows * (by_weights + by_pairs)
    assert said["training FLOPs a step"].startswith(f"{flops:.3e} ")
    assert said["training FLOPs of 100,000 steps"] == f"{flops * 100_000:.3e}"
    memory = int(re.match(r"([\d,]+) MiB a device", said["memory of the step"])[1].replace(",", ""))
    assert memory > 3 * 4 * parameters / 2**20, "parameters and two moments at least"
    assert said["mesh"].startswith("data 1, fsdp 1, tensor 1 on 1 x ")
    assert "1 training step" in said["programs to compile"]


def test_a_finished_run_is_left_as_it_is_and_was_what_is_said_first(caplog, tmp_path):
    """The same lines go into the log; the tiny run's parameters by closed form."""
    workdir = runs.copy_of_run(tmp_path / "run")
    before = runs.contents(workdir)
    with caplog.at_level("INFO"):
        assert runs.train(workdir) == 0
    assert runs.contents(workdir) == before
    assert "nothing to do: trained to step 40 of train.steps=40" in caplog.text
    d, f = 16, 32
    attention, feed_forward, norm = 4 * d * d, 2 * d * f + f + d, 2 * d
    parameters = 512 * d + 3 * attention + 2 * feed_forward + 5 * norm + 2 * norm
    assert f"parameters: {parameters:,} (vocabulary 400, padded to 512)" in caplog.text
    leaves = runs.arrays(workdir / "checkpoints" / "40")
    sizes = [leaf.size for name, leaf in leaves.items() if name.startswith("params.")]
    assert sum(sizes) == parameters
    said = re.search(r"about ([\d,]+) real target tokens \(nominal 400\)", caplog.text)
    tokens = [record["target_tokens_per_step"] for record in lines(workdir, "train")]
    assert float(said[1]) == pytest.approx(np.mean(tokens), rel=0.05)
    assert RunFolder(workdir).read_config() == runs.tiny_config()
