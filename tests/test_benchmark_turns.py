"""benchmarks/turns.py runs contenders by turns; our contender of train_speed.py still runs."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import turns
from tests import tiny_runs as runs
from tests.training import closed_forms
from transformer_jax.config.changes import with_values
from transformer_jax.config.serialization import from_config_dict
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.training.data import load_data

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def contender(expression: str) -> list[str]:
    """A command that prints some words, and then its figures."""
    code = f"import json, os, time; print('some words'); print(json.dumps({expression}))"
    return [sys.executable, "-c", code]


def test_contenders_run_by_turns_in_their_own_processes_and_environments(capsys):
    figures = "{'at': time.time(), 'process': os.getpid(), 'tunables': os.getenv('TUNABLES')}"
    contenders = {"ours": contender(figures), "peer": contender(figures)}
    results = turns.by_turns(contenders, 2, {"ours": {"TUNABLES": "some"}})
    assert [len(results[name]) for name in ("ours", "peer", turns.CALIBRATION)] == [2, 2, 2]
    in_time = sorted((turn["at"], name) for name in contenders for turn in results[name])
    assert [name for _, name in in_time] == ["ours", "peer", "ours", "peer"]
    assert len({turn["process"] for name in contenders for turn in results[name]}) == 4
    assert [turn["tunables"] for turn in results["ours"]] == ["some", "some"]
    assert [turn["tunables"] for turn in results["peer"]] == [None, None]
    assert all(turn["gflops"] > 0 for turn in results[turns.CALIBRATION])
    assert capsys.readouterr().out == ""  # only the caller prints results


def test_ratios_are_taken_turn_by_turn():
    # A machine that is 10 times as fast in the second turn: medians would give 11 / 22 = 0.5.
    results = {"ours": [{"rate": 2.0}, {"rate": 20.0}], "peer": [{"rate": 4.0}, {"rate": 10.0}]}
    values = turns.ratios(results, "ours", "peer", "rate")
    assert values == [0.5, 2.0]
    assert turns.ratio_text(values) == "1.25 (0.50-2.00)"
    assert turns.median(results, "peer", "rate") == 7.0


def test_one_contender_with_fewer_turns_has_no_ratios():
    with pytest.raises(ValueError):
        turns.ratios({"ours": [{"rate": 1.0}], "peer": []}, "ours", "peer", "rate")


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("import sys; sys.exit('no such peer here')", "no such peer here"),
        ("import sys; print('{}'); sys.exit(3)", "status 3"),
        ("pass", "status 0"),  # no figures
    ],
)
def test_the_error_of_a_failed_contender_has_its_command_and_its_output(code, message):
    with pytest.raises(RuntimeError) as caught:
        turns.run_once([sys.executable, "-c", code], {})
    assert message in str(caught.value)
    assert code in str(caught.value)


def test_a_table_has_a_line_for_each_row():
    assert turns.markdown(["name", "rate"], [["ours", "2"]]).split("\n") == [
        "| name | rate |",
        "| --- | ---: |",
        "| ours | 2 |",
    ]


@pytest.fixture
def train_speed(monkeypatch):
    """The script as a module; its folder is on the path, as when Python runs the script."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("train_speed")


@pytest.mark.slow("runs a benchmark")
def test_our_training_speed_is_measured_on_a_tiny_corpus(train_speed, tmp_path):
    config = with_values(from_config_dict({}), runs.tiny_values())
    data = load_data(config, RunFolder(tmp_path / "run"))
    task = json.loads(train_speed.write_task(config, data, tmp_path, 1, 2).read_text())
    given = from_config_dict(task["config"])
    assert given.vocabulary.path == str(tmp_path / "vocabulary.model")
    assert len(data.train.src_ids) == len(np.load(Path(task["pairs"]) / "src_ids.npy"))
    figures = train_speed.measure_ours(given, tmp_path / "run", warm_up=1, steps=2)
    assert figures["target_tokens_per_step"] / figures["seconds_per_step"] == pytest.approx(
        figures["target_tokens_per_s"]
    )
    assert figures["tokens_per_s"] > figures["target_tokens_per_s"] > 0
    assert 0 < figures["padding"] < 0.5  # pairs are long for rows of 48
    assert 4 < figures["nats_per_token"] < 8  # near log 400, untrained
    assert figures["peak_mib"] > 50 and figures["first_step_s"] > 0

    results = {turns.CALIBRATION: [{"gflops": 100.0}], train_speed.OURS: [figures]}
    flops = train_speed.flops_per_token(given, data)
    kept = [int(i) for i in data.plan.pair_order]
    lengths = [(len(data.train.src(i)), len(data.train.tgt(i))) for i in kept]
    size = data.vocabulary.size
    one_by_one = [closed_forms.training_flops(given.model, size, *pair) for pair in lengths]
    assert flops == pytest.approx(sum(one_by_one) / sum(map(sum, lengths)))
    assert f"{100e9 / flops:,.0f}" in train_speed.report(results, flops)


def test_peers_are_refused_if_they_would_be_another_model(train_speed):
    config = from_config_dict({"model": {"norm": "pre"}})
    assert train_speed.chosen_peers("none", config) == []
    with pytest.raises(train_speed.UserError, match="is not one of marian, torch"):
        train_speed.chosen_peers("fairseq", config)
    with pytest.raises(train_speed.UserError, match="model.norm=pre|need torch"):
        train_speed.chosen_peers("marian", config)


def test_of_two_settings_the_faster_one_of_each_turn_counts_and_slow_turns_are_named():
    first = [{"beam": 40.0, "beam_tokens": 1.0, "greedy": 9.0}, {"beam": 10.0, "beam_tokens": 2.0}]
    second = [{"beam": 30.0, "beam_tokens": 3.0}, {"beam": 20.0, "beam_tokens": 4.0}]
    results = {"ours": [{"beam": 1.0}] * 2, "peer": first, "peer, 2": second}
    found, slow = turns.faster_of_each_turn(results, {"peer": {"beam": 50.0}}, ", 2")
    assert found == {
        "ours": [{"beam": 1.0}] * 2,
        "peer": [first[0], {"beam": 20.0, "beam_tokens": 4.0}],
    }
    [line] = slow
    assert line.startswith("peer, beam: 1 of 2 turns were below 50% of the 50 of the trial")
