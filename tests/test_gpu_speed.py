"""benchmarks/gpu_speed.py on a CPU: each part runs, reports what it counts, and fails alone."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gpu_points, gpu_speed
from benchmarks.workload import wmt_pairs
from tests.training import closed_forms
from transformer_jax.config.serialization import from_config_dict
from transformer_jax.errors import UserError
from transformer_jax.text.vocabulary import EOS, UNK
from transformer_jax.use.command_line import parse_flags

pytestmark = pytest.mark.slow("measures on a small device what is meant for a GPU")


def values(**given):
    """The default values of the flags, some of them replaced."""
    return parse_flags("gpu_speed", gpu_speed.FLAGS, []) | {"overrides": {}} | given


def cells(table, first):
    """The cells of the row of the report that begins with `first`."""
    line = next(line for line in table.splitlines() if line.startswith(f"| {first}"))
    return [cell.strip() for cell in line.split("|")[1:-1]]


@pytest.fixture
def run(monkeypatch, tmp_path, capsys):
    """Runs the script: products in their own process, the rest in this one, which is warm."""

    def in_this_process(command, environment):
        if "benchmarks.gpu_points" not in command or "matrix" in command:
            return once(command, environment)
        task, job, _ = command[-3:]
        return gpu_points.measure(task, json.loads(Path(job).read_text()))

    def script(*flags):
        out = tmp_path / "out.json"
        monkeypatch.setattr(sys, "argv", ["gpu_speed", "--tiny", f"--out={out}", *flags])
        gpu_speed.main()
        return capsys.readouterr().out, json.loads(out.read_text())

    once = gpu_speed.run_once
    monkeypatch.setattr(gpu_speed, "run_once", in_this_process)
    return script


def test_products_training_and_search_are_measured(run):
    parts = ["--parts=matrix,train,search", "--sizes=base", "--decode_tokens=256"]
    text, tree = run(*parts, "--config.decode.beam_size=2")
    found = {task: turns[0] for task, turns in tree["results"].items()}
    assert list(found) == ["matrix", "train base", "search 256", "search marian"]
    assert tree["report"] in text and f"{found['matrix']['flops_per_s'] / 1e12:,.1f}" in text

    train = found["train base"]
    row = cells(text, "base: transformer_jax")
    assert row[1] == f"{train['target_tokens_per_s']:,.0f}" and row[2] == ""
    share = train["target_tokens_per_s"] * train["flops_per_target_token"]
    assert row[3] == f"{share / found['matrix']['flops_per_s']:.1%}"
    assert 0 < train["padding"] < 0.3 and train["skipped"] == 0
    assert 4 < train["nats_per_token"] < 8  # near log 256: hardly trained
    assert train["target_tokens_per_s"] * train["ms_per_step"] / 1e3 == pytest.approx(
        train["target_tokens_per_step"]
    )

    beam, greedy = found["search 256"]["beam"], found["search 256"]["greedy"]
    # No hypothesis ends before its limit, which is the source's length.
    assert (
        beam["output_tokens"] == greedy["output_tokens"] == found["search 256"]["source_subwords"]
    )
    assert (beam["beam"], greedy["beam"]) == (2, 1)
    assert cells(text, "transformer_jax, 256 | beam")[2] == f"{beam['tokens_per_s']:,.0f}"


@pytest.mark.skipif(importlib.util.find_spec("torch") is not None, reason="torch is installed")
def test_without_torch_its_rows_have_the_reason(run):
    text, tree = run("--parts=torch", "--sizes=base,big")
    assert cells(text, "big: torch.nn.Transformer compiled")[1] == "not installed: torch"
    assert tree["results"]["torch base eager"] == [{"error": "not installed: torch"}]


def test_a_failed_task_is_a_row_and_the_others_continue(monkeypatch, run):
    def fail(command, environment):
        if "train base" in command:
            raise RuntimeError("python: status 1\nTraceback:\nMemoryError: too | little\n")
        if "train big" in command:
            raise RuntimeError("python: status -14\n\n")
        return {"tokens_per_s": 1.0, "kernels": [], "kernel_ms": 1.0, "wall_ms": 2.0}

    monkeypatch.setattr(gpu_speed, "run_once", fail)
    text, _ = run("--parts=train", "--profile=folder")
    assert cells(text, "base: transformer_jax")[1] == "MemoryError: too / little"
    assert cells(text, "big: transformer_jax")[1] == f"took over {gpu_speed.TASK_SECONDS} s"
    assert "Kernels 1.00 ms a step, 2.00 ms of wall" in text
    text, _ = run("--parts=train", "--minutes=0.1")
    assert "not started" in cells(text, "base: transformer_jax")[1]


def test_tasks_run_part_by_part():
    order = gpu_speed.tasks(values(profile="folder", decode_tokens="64,32", torch="compiled,eager"))
    assert ", ".join(order) == (
        "matrix, train base, train big, torch base compiled, torch big compiled, torch base eager, "
        "torch big eager, search 64, search 32, search marian, profile base"
    )
    with pytest.raises(UserError, match="speed: --parts"):
        gpu_speed.tasks(values(parts="matrix,speed"))
    with pytest.raises(UserError, match="--torch=compile: it is of compiled,layers,eager"):
        gpu_speed.tasks(values(torch="compile"))


def test_ratios_and_utilization_are_of_the_same_turn_and_sentences():
    ours = [{"target_tokens_per_s": v, "flops_per_target_token": 10.0} for v in (200.0, 400.0)]
    peer = [{"target_tokens_per_s": 100.0}, {"error": "too slow"}]
    rates = [{"flops_per_s": 8_000.0, "peak_flops_per_s": None}]
    results = {"matrix": rates, "train big": ours, "torch big eager": peer}
    text = gpu_speed.training_table(results)
    assert cells(text, "big: transformer_jax")[1:5] == ["300", "", "37.5%", ""]
    assert cells(text, "big: torch")[1:5] == ["100", "2.00 (2.00-2.00)", "12.5%", ""]


def test_generated_pairs_are_like_those_of_wmt():
    pairs = wmt_pairs(200_000, 128, 37_000)
    src = pairs.src_lengths()
    tgt = pairs.tgt_lengths()
    assert src.mean() == pytest.approx(28, rel=0.03)
    assert tgt.sum() == pytest.approx(200_000, rel=1e-3)
    assert min(src.min(), tgt.min()) >= 2 and max(src.max(), tgt.max()) <= 128
    assert all(pairs.src(i)[-1] == EOS and EOS not in pairs.src(i)[:-1] for i in range(50))
    inner = np.delete(pairs.tgt_ids, pairs.tgt_offsets[1:] - 1)
    assert UNK < inner.min() and inner.max() < 37_000
    assert np.bincount(inner).max() / len(inner) == pytest.approx(0.066, rel=0.1)  # log 2 / log V


def test_flops_are_those_of_the_real_pairs_in_the_batches():
    job = gpu_speed.make_job(values(tiny=True))
    config = from_config_dict(job["configs"]["base"])
    batches, flops = gpu_points.packed(job, config)
    counted = 0
    for batch in batches:
        for src, tgt in zip(batch.src.segments, batch.tgt.segments, strict=True):
            for pair in range(1, tgt.max() + 1):
                lengths = (src == pair).sum(), (tgt == pair).sum()
                counted += closed_forms.training_flops(config.model, 256, *map(int, lengths))
    assert flops == counted
