"""The speed record: the test against the bar, the verdicts, the order of runs, what is timed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import scipy.stats

from experiments import speedrun
from experiments.speedrun_page import (
    BAR,
    BASELINE,
    RECORDS,
    SEEDS,
    Record,
    Run,
    p_above,
    page,
    results_file,
    rows,
    standing,
)
from tests import tiny_runs
from tests.fixtures.cases import refused
from transformer_jax.config.changes import with_values
from transformer_jax.config.files import load_config
from transformer_jax.errors import ConfigError, DataError, RunError
from transformer_jax.files import read_table, write_csv
from transformer_jax.reporting.provenance import revision
from transformer_jax.tables.digests import digest_of

ROOT = Path(__file__).parents[2]
GOOD = (37.6, 37.2, 37.9, 37.5, 37.4)


def a_run(record=BASELINE, seed=0, bleu=37.5, seconds=100.0, digest="d", where=None) -> Run:
    code, processor = where or (revision(), speedrun.processor())
    return Run(record, seed, bleu, seconds, 190.0, digest, code, processor, "2026-01-01", "s")


def five(record, bleu=GOOD, seconds=(100.0, 110.0, 90.0, 105.0, 95.0)):
    return [a_run(record, seed, bleu[seed], seconds[seed]) for seed in SEEDS]


# The test, and the verdicts -----------------------------------------------------------------


def test_p_is_that_of_student_s_test_for_one_mean():
    values = [37.25, 36.9, 37.5, 37.1, 37.75]
    for own in (values, [2 * BAR - value for value in values]):
        want = scipy.stats.ttest_1samp(own, BAR, alternative="greater").pvalue
        assert p_above(own, BAR) == pytest.approx(want)
    assert 0.9 < want < 0.97, "a case that could tell nothing"
    assert p_above([99.0], BAR) == 1
    assert p_above([37.5, 37.5], BAR) == 0
    assert p_above([37.0, 37.0], BAR) == 1


SHORT = (37.6, 36.2, 37.9, 37.5, 36.4)


def test_verdicts():
    beside = five(BASELINE)
    assert standing(BASELINE, beside).verdict == "the first record"
    assert standing(BASELINE, five(BASELINE, SHORT)).verdict == "misses the bar"
    times = (50.0, 66.0, 45.0, 63.0, 57.0)
    fast = five("fast", seconds=times)
    found = standing("fast", beside + fast[::-1])
    assert found.shares == pytest.approx([0.5, 0.6, 0.5, 0.6, 0.6])  # seed by seed; mean 0.56
    assert found.verdict == "record"
    for runs, best, verdict in [
        (beside, 1.0, "not run"),
        (beside + fast[:3], 1.0, "3 of 5 seeds"),
        (beside[:4] + fast, 1.0, "4 of 5 seeds"),
        (beside + fast, 0.57, "not faster"),
        (beside + fast, 0.62, "record"),
        (beside + five("fast"), 1.0, "not faster"),
        (beside + five("fast", SHORT, times), 1.0, "misses the bar"),
    ]:
        assert standing("fast", runs, best).verdict == verdict


def test_a_later_record_has_to_beat_the_earlier_one(tmp_path, monkeypatch):
    records = {}
    monkeypatch.setattr("experiments.speedrun_page.RECORDS", records)
    for name, share in ((BASELINE, 1.0), ("a", 0.5), ("b", 0.8), ("c", 0.4)):
        records[name] = Record("f.py", name)
        if name != BASELINE:
            noise = (0.99, 1.0, 1.01, 1.0, 1.0)
            own = five(name, seconds=[share * 100 * one for one in noise])
            base = five(BASELINE, seconds=[100.0] * 5)
            write_csv(results_file(name, tmp_path), Run._fields, base + own)
    found = {line[0]: line for line in rows(tmp_path)}
    assert [found[name][-1] for name in "abc"] == ["record", "not faster", "record"]
    assert found["baseline, beside a"][-1] == "the first record"
    assert found["c"][2:7] == ["37.52 ± 0.26", "0.005", "40 ± 0", "190", "0.400 ± 0.003"]


# Files and rules -----------------------------------------------------------------------------


def test_the_page_is_up_to_date():
    assert (ROOT / "docs" / "records.md").read_text(encoding="utf-8") == page(ROOT / "docs")


def test_every_record_keeps_the_rules_and_other_text_or_weights_break_them(in_checkout):
    configs = {name: load_config(record.config) for name, record in RECORDS.items()}
    assert len({digest_of(config) for config in configs.values()}) == len(RECORDS) > 1
    for config in configs.values():
        speedrun.check_rules(config)
    others = {str: "x", tuple: ("other",), type(None): "x"}
    for name, wanted in speedrun.FIXED.items():
        broken = with_values(configs[BASELINE], {name: others[type(wanted)]})
        with pytest.raises(ConfigError, match=f"{name}=.*rule 1"):
            speedrun.check_rules(broken)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--record=slow"], "no record 'slow'; there are baseline, fast"),
        (["--record=baseline"], "is the baseline"),
        *(([f"--seeds=0,{wrong}"], "the seeds 0, 1, 2, 3, 4") for wrong in ("7", "x", "1.0", "")),
        (["--config.train.steps=5"], "write one instead of overriding"),
    ],
)
def test_wrong_flags_are_one_clear_line(flags, words):
    with refused(ConfigError, words):
        speedrun.main(flags)


# Runs ------------------------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch, in_checkout):
    """The calls of a `measure` that runs nothing; the third one fails."""
    calls = []

    def measure(name, seed, digest, folder, cores):
        calls.append((name, seed))
        if len(calls) == 3:
            raise RunError("stopped")
        return a_run(name, seed, digest=digest)

    monkeypatch.setattr(speedrun, "measure", measure)
    monkeypatch.setattr(speedrun, "_two_cores", lambda: {0, 1})
    return calls


def test_baseline_and_record_take_turns_and_a_stopped_experiment_goes_on(measured, tmp_path):
    path = tmp_path / "fast.csv"
    with pytest.raises(RunError, match="stopped"):
        speedrun.run_missing("fast", SEEDS[:3], path, tmp_path)
    assert len(read_table(path, Run)) == 2
    speedrun.run_missing("fast", SEEDS[:3], path, tmp_path)
    order = [(BASELINE, 0), ("fast", 0), ("fast", 1), (BASELINE, 1), (BASELINE, 2), ("fast", 2)]
    assert measured == [*order[:3], *order[2:]]
    assert [(run.record, run.seed) for run in read_table(path, Run)] == order


def test_lines_that_cannot_be_compared_stop_the_experiment(measured, tmp_path):
    path = tmp_path / "fast.csv"
    digest = digest_of(load_config("configs/multi30k.py"))
    write_csv(path, Run._fields, [a_run(digest="of another config")])
    with pytest.raises(RunError, match="'baseline' was recorded with another config"):
        speedrun.run_missing("fast", (0,), path, tmp_path)
    for where in (("other", speedrun.processor()), (revision(), "other")):
        write_csv(path, Run._fields, [a_run(digest=digest, where=where)])
        with pytest.raises(RunError, match="seed 0, is of .*cannot be compared"):
            speedrun.run_missing("fast", (0,), path, tmp_path)
    assert not measured


SCRIPT = """
import json, os, pathlib, sys, time
run = pathlib.Path(sys.argv[1])
(run / "evaluations").mkdir(parents=True)
found = {"cores": sorted(os.sched_getaffinity(0)), "env": dict(os.environ)}
(run / "found.json").write_text(json.dumps(found))
(run / "corpus.sha256").write_text("trained-on\\nvalidated-on\\n")
scores = {"bleu": 37.25, "bleu_signature": "s", "src_sha256": "a", "ref_sha256": "b"}
(run / "evaluations" / "valid.json").write_text(json.dumps(scores))
end = time.process_time() + 0.4
while time.process_time() < end: pass
time.sleep(0.5)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_a_run_is_timed_on_its_cores_without_caches(tmp_path, monkeypatch):
    def script(name, seed, workdir):
        return [sys.executable, "-S", "-c", SCRIPT, str(workdir)]

    monkeypatch.setattr(speedrun, "command_of", script)
    monkeypatch.setattr(speedrun, "busy_cores", lambda: 0.0)
    text = {"train": "trained-on", "src_sha256": "a", "ref_sha256": "b"}
    monkeypatch.setattr(speedrun, "TEXT", text)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "somewhere")
    cores = os.sched_getaffinity(0)
    folder = tmp_path / "fast"
    (folder / "run" / "evaluations").mkdir(parents=True)  # of a run that was stopped
    run = speedrun.measure("fast", 3, "d", folder, {min(cores)})
    assert (run.record, run.seed, run.bleu, run.config_digest) == ("fast", 3, 37.25, "d")
    assert 0.4 <= run.cpu_seconds < run.seconds - 0.3 and run.seconds >= 0.9
    found = json.loads((folder / "run" / "found.json").read_text())
    assert found["cores"] == [min(cores)] and os.sched_getaffinity(0) == cores
    assert not {"XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR"} & found["env"].keys()
    assert found["env"]["TRANSFORMER_JAX_CACHE"] == str(folder / "cache")
    monkeypatch.setattr(speedrun, "TEXT", {**text, "ref_sha256": "c"})
    with pytest.raises(DataError, match=r"not that of Multi30k \(ref_sha256\)"):
        speedrun.scores_of(folder / "run")
    monkeypatch.setattr(speedrun, "command_of", lambda *_: [sys.executable, "-c", "1 / 0"])
    with pytest.raises(RunError, match="seed 3 failed with status 1; see .*log.txt"):
        speedrun.measure("fast", 3, "d", folder, cores)
    assert "ZeroDivisionError" in (folder / "log.txt").read_text()


def test_time_in_use_is_neither_idle_nor_waiting_for_a_disk():
    stat = "cpu  10 20 30 1000 500 4 5 6 700 800\ncpu0 1 1 1 1 1 1 1 1 1 1\n"
    assert speedrun.busy_ticks(stat) == 10 + 20 + 30 + 4 + 5 + 6


def test_a_busy_core_is_noticed():
    spinning = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert speedrun.busy_cores(0.5) > 0.4
    finally:
        spinning.kill()
        spinning.wait()


def test_the_text_is_that_of_the_files(data_folder):
    """The digests of the rules, from the files themselves."""
    import gzip
    import hashlib

    def digest(name):
        return hashlib.sha256(gzip.open(data_folder / "multi30k" / f"{name}.gz").read())

    train = b"".join(digest(f"train.{side}").digest() for side in ("en", "de"))
    assert speedrun.TEXT == {
        "train": hashlib.sha256(train).hexdigest(),
        "src_sha256": digest("valid.en").hexdigest(),
        "ref_sha256": digest("valid.de").hexdigest(),
    }


@pytest.mark.parametrize("last", [0, 2])
def test_what_is_timed_trains_and_scores_the_validation_split(last, tmp_path, monkeypatch):
    preset = tiny_runs.write_preset(tmp_path / "preset.py", {"train.steps": 7, "data.path": "x"})
    done = []
    for part, name in (("use", "train"), ("commands", "average"), ("commands", "evaluate")):
        monkeypatch.setattr(
            f"transformer_jax.{part}.{name}.{name}",
            lambda *values, name=name, **more: done.append((name, *values, more)),
        )
    monkeypatch.setitem(RECORDS, "own", Record(str(preset), "", last))
    speedrun.main(["--one=own", "--seed=3", "--workdir=w"])
    config = load_config(str(preset), {"seed": 3})
    averaged = [("average", "w", last, {})] if last else []
    which = {"split": "valid", "checkpoint": "average" if last else "latest"}
    assert done == [("train", config, "w", {}), *averaged, ("evaluate", "w", which)]


def test_the_prediction_is_that_of_recorded_runs_of_this_processor(tmp_path, monkeypatch):
    for name, steps in ((BASELINE, 100), ("own", 50)):
        values = {**tiny_runs.TINY, "train.steps": steps, "data.path": "x"}
        preset = tiny_runs.write_preset(tmp_path / f"{name}.py", values)
        monkeypatch.setitem(RECORDS, name, Record(str(preset), ""))
    seen = [a_run(seconds=7200.0), a_run(seed=1, seconds=1.0, where=("r", "another processor"))]
    table = speedrun.prediction("own", (0, 1), seen).splitlines()
    assert [line.split("|")[4].strip() for line in table[2:4]] == ["120", "60"]
    assert [line.split("|")[5].strip() for line in table[2:4]] == ["0", "2"]
    assert "all missing runs: 2.0 hours" in table[-1] and "median of 1 runs" in table[-1]
