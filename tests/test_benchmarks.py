"""Parts of benchmarks/: turns of contenders, ours of train_speed.py, FLOPs of many lengths."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gpu_kernels, programs, turns
from benchmarks.peers import searching
from benchmarks.programs import flops_of_pairs
from tests import tiny_runs as runs
from tests.training import closed_forms
from transformer_jax.config.changes import with_values
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.serialization import from_config_dict
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.vocabulary import EOS
from transformer_jax.training.cost import training_flops
from transformer_jax.training.data import load_data

# Turns -------------------------------------------------------------------------------------------


BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def contender(expression: str) -> list[str]:
    """A command that prints some words, and then its figures."""
    code = f"import json, os, time; print('some words'); print(json.dumps({expression}))"
    return [sys.executable, "-c", code]


@pytest.mark.slow("starts processes")
def test_contenders_run_by_turns_in_their_own_processes_with_the_environment(capsys):
    figures = "{'at': time.time(), 'process': os.getpid(), 'tunables': os.getenv('TUNABLES')}"
    contenders = {"ours": contender(figures), "peer": contender(figures)}
    results = turns.processes_by_turns(contenders, 2, {"TUNABLES": "some"})
    assert all(turn["gflops"] > 0 for turn in results.pop(turns.CALIBRATION))
    in_time = sorted((turn["at"], name) for name, own in results.items() for turn in own)
    assert [name for _, name in in_time] == ["ours", "peer", "peer", "ours"]
    every = [turn for own in results.values() for turn in own]
    assert len({turn["process"] for turn in every}) == 4
    assert {turn["tunables"] for turn in every} == {"some"}
    assert capsys.readouterr().out == ""  # only the caller prints results


def test_ratios_are_taken_turn_by_turn():
    # A machine that is 10 times as fast in the second turn: medians would give 11 / 22 = 0.5.
    ours, peer = [{"rate": 2.0}, {"rate": 20.0}], [{"rate": 4.0}, {"rate": 10.0}]
    values = turns.ratios(ours, peer, "rate")
    assert values == [0.5, 2.0]
    assert turns.spread(values) == "1.25 (0.50-2.00)"
    assert turns.cells(peer, {"a rate": ("rate", "{:.1f}"), "none": ("x", "{}")}) == ["7.0", ""]
    with pytest.raises(ValueError):
        turns.ratios(ours, [], "rate")


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
    figures = train_speed.measure_ours(given, tmp_path / "run", warm_up=1, timed_steps=2)
    assert 1e3 * figures["target_tokens_per_step"] / figures["ms_per_step"] == pytest.approx(
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


@pytest.mark.parametrize(
    ("peers", "model", "message"),
    [
        ("fairseq", {}, "is not one of marian, torch"),
        ("marian", {"norm": "pre"}, "model.norm=pre: peers need post"),
        ("marian", {"qk_norm": True}, "model.qk_norm=True: peers need False"),
    ],
)
def test_peers_follow_sizes_dropout_and_types_and_are_refused_if_another_model(
    train_speed, monkeypatch, peers, model, message
):
    monkeypatch.setattr(train_speed.importlib.util, "find_spec", lambda name: True)
    sizes = {"num_layers": 3, "d_model": 64, "num_heads": 4, "d_ff": 96, "dropout": 0.3}
    followed = from_config_dict({"model": sizes | {"dtype": "bfloat16"}})
    assert train_speed.chosen_peers("marian,torch", followed) == ["marian", "torch"]
    config = from_config_dict({"model": model})
    assert train_speed.chosen_peers("none", config) == []
    with pytest.raises(train_speed.UserError, match=message):
        train_speed.chosen_peers(peers, config)


def test_the_fastest_of_an_engine_s_settings_counts(monkeypatch, tmp_path, capsys):
    """All are tried on the first sentences, and the two fastest ones on all."""
    calls = []

    def engine(job, beam_size, options):
        def search():
            calls.append((options["seconds"], len(job.sources)))
            return options["seconds"], [[5, 6, EOS]] * len(job.sources)

        return search

    fields = {"sources": [[7, EOS]] * 6, "beam_size": 4, "tried": 2}
    job, out = tmp_path / "job.json", tmp_path / "out.json"
    job.write_text(json.dumps(dict.fromkeys(searching.Job._fields) | fields))
    options = json.dumps([{"seconds": seconds} for seconds in (4.0, 1.5, 9.0, 2.0)])
    monkeypatch.setitem(searching.ENGINES, "ours", engine)
    monkeypatch.setattr(sys, "argv", ["searching.py", "ours", str(job), str(out), options])
    searching.main()
    figures = json.loads(capsys.readouterr().out)
    expected = {"": 4.0, "_tokens": 12.0, "_options": {"seconds": 1.5}}
    assert figures == {m + key: own for m in searching.MODES for key, own in expected.items()}
    assert {seconds for seconds, sentences in calls if sentences == 2} == {4.0, 1.5, 9.0, 2.0}
    assert {seconds for seconds, sentences in calls if sentences == 6} == {1.5, 2.0}
    assert json.loads(out.read_text())["beam"] == [[5, 6, EOS]] * 6


# FLOPs of many lengths from a few traces ---------------------------------------------------------


SIZES = {"num_layers": 1, "d_model": 12, "num_heads": 3, "d_k": 5, "d_v": 2, "d_ff": 17}
SRC, TGT = np.array([1, 2, 7, 19, 30, 4], np.int32), np.array([9, 2, 1, 23, 5, 31], np.int32)


@pytest.mark.slow("traces many models")
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"num_encoder_layers": 3, "num_layers": 2},
        {"encoder": "recurrent", "decoder": "recurrent", "d_hidden": 7},
        {"encoder": "transformer", "decoder": "recurrent", "score": "additive"},
    ],
    ids=["transformer", "other depths", "recurrent", "both kinds"],
)
def test_the_flops_of_each_pair_are_those_of_its_own_trace(kind):
    model = ModelConfig(**SIZES | kind)
    found = flops_of_pairs(model, 50, SRC, TGT)
    assert found.dtype == np.int64
    for n in (0, 3, 4):
        assert found[n] == training_flops(model, 50, int(SRC[n]), int(TGT[n]))


def test_a_count_that_grows_in_another_way_is_refused(monkeypatch):
    monkeypatch.setattr(programs, "training_flops", lambda model, size, src, tgt: src**3 + tgt)
    with pytest.raises(ValueError, match="no polynomial of degree 2"):
        flops_of_pairs(ModelConfig(), 50, SRC, TGT)


# Contenders of gpu_kernels.py --------------------------------------------------------------------


def test_attention_over_a_range_of_blocks_is_the_same_attention():
    place = gpu_kernels.packed_places(2, 96)
    patterns = gpu_kernels.same_sentence, gpu_kernels.causal
    case = gpu_kernels.by_range(gpu_kernels.attention_case("x", patterns, place))
    assert gpu_kernels.error(case.fused(*case.arrays), case.plain(*case.arrays)) < 1e-6


def test_packed_sentences_as_cudnn_wants_them():
    lengths, starts = gpu_kernels.sequences(np.array([[1, 1, 2, 2, 2, 3], [1, 2, 2, 0, 0, 0]]))
    assert lengths.tolist() == [[2, 3, 1], [1, 2, -1]]
    assert starts.tolist() == [[0, 2, 5, -1], [0, 1, -1, -1]]
