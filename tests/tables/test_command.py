"""An experiment run for real, as its user would: shrunken, on the built-in corpus."""

import errno
import io
import logging
import os
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import jax
import pytest
import submitit  # noqa: F401  (when imported, it closes absl's handler, and a test's stderr with it)

from tests import tiny_runs as runs
from tests.fixtures.cases import refused
from tests.tables.test_statistics import line
from transformer_jax.config.changes import with_values
from transformer_jax.config.files import load_config
from transformer_jax.config.serialization import to_json
from transformer_jax.errors import ConfigError, DataError, RunError
from transformer_jax.files import write_atomically
from transformer_jax.parallel.devices import Share, shares
from transformer_jax.tables import command, launch, preview
from transformer_jax.tables.collect import counts
from transformer_jax.tables.experiment import Experiment, Scale, check_results, make_jobs
from transformer_jax.tables.launch import LONGEST_REASON, run_commands
from transformer_jax.tables.live import LiveTable, progress_of
from transformer_jax.tables.report import Output, draw_attention
from transformer_jax.tables.results import Answer, read_results, write_answers, write_results
from transformer_jax.use.command_line import log_handler

ROOT = Path(__file__).parent.parent.parent
TINY = {
    **runs.TINY_DEMO,
    "train.steps": 4,
    "train.decay_steps": 4,
    "train.valid_every": 2,
    "train.checkpoint_every": 2,
    "decode.tokens_per_batch": 2_048,
    "decode.max_extra_length": 2,
    "decode.beam_size": 1,
}
# It cannot train: SentencePiece has no such number of pieces for this text.
BAD = {"vocabulary.size": 90_000}
EXPERIMENT = Experiment(
    "tiny",
    rows={"base": {}, "4 heads": {"model.num_heads": 4}, "bad": BAD},
    scales={"small": Scale(str(ROOT / "configs" / "demo.py"), TINY, split="valid")},
    about="What is looked at here.",
    paper={"4 heads": {"bleu": 12.5}},
)


@pytest.fixture
def call(monkeypatch, tmp_path, capsys):
    """Runs the experiment's command; what it printed."""
    monkeypatch.chdir(ROOT)  # its processes import the package from here

    def run(*flags: str) -> str:
        folders = [f"--out={tmp_path / 'out'}", f"--runs={tmp_path / 'runs'}"]
        monkeypatch.setattr(sys, "argv", ["tiny", *folders, *flags])
        capsys.readouterr()  # of a call before, which failed
        command.run(EXPERIMENT)
        return capsys.readouterr().out

    return run


def without_command(table: str) -> list[str]:
    """The table's lines but the one that says how it was made."""
    return [line for line in table.splitlines() if not line.startswith("Command:")]


@pytest.mark.slow("trains rows in processes of their own")
def test_rows_run_once_failures_do_not_stop_others_and_the_report_is_made_again(
    call, tmp_path, monkeypatch
):
    out = tmp_path / "out"
    folder = tmp_path / "runs" / "tiny" / "small"
    # Two processes at once share all cores, so that one core is enough for this test.
    everything = Share({}, frozenset(os.sched_getaffinity(0)))
    monkeypatch.setattr(launch, "shares", lambda count: [everything] * count)
    with pytest.raises(RunError, match=r"1 of 2 runs failed; first: bad, seed 0: .*vocabulary"):
        call("--rows=bad;base", "--jobs=2")
    assert [(line.row, line.seed) for line in read_results(out)] == [("base", 0)]
    # One that was interrupted before it was scored goes on, and what is finished is left alone.
    log = folder / "base" / "seed-0.log.txt"
    before = log.read_bytes()
    printed = call("--rows=base;4 heads")
    assert "| 4 heads | 1 |" in printed and "| bad | not run |" in printed and "12.5" in printed
    assert log.read_bytes() == before
    base, heads = read_results(out)
    assert (base.row, heads.row, heads.steps) == ("base", "4 heads", 4)
    assert heads.parameters == base.parameters and heads.perplexity > 1
    assert heads.train_seconds > 0
    page = (out / "index.html").read_text()
    assert "What is looked at here." in page
    # Perplexity, curves, attention; BLEU is a line of text if no row has any yet.
    equal = page.count("The same in every finished row: BLEU 0.00.")
    assert page.count("data:image/png;base64") + equal == 4
    # From what is committed alone, without the runs.
    folder.rename(tmp_path / "gone")
    for name in ("table.md", "index.html", "perplexity.png"):
        (out / name).unlink()
    assert without_command(call("--report")) == without_command(printed)
    assert (out / "index.html").exists() and (out / "perplexity.png").exists()
    listed = call("--list").splitlines()
    assert "model.num_heads=4" in listed[3] and listed[3].endswith("| 0 | 0 |")
    assert listed[4].endswith("| 0 | none |")
    plan = call("--dry_run", "--rows=base")
    assert "finished runs on" in plan and f"{base.parameters / 1e6:.2f}" in plan
    commands = call("--print").splitlines()
    assert [text.split()[3] for text in commands if text[0] != "#"] == ["train", "evaluate"]


def test_what_runs_read_is_made_before_they_begin_and_not_to_list_them(call, monkeypatch):
    def prepare() -> None:
        raise DataError("the text is not there")

    monkeypatch.setitem(globals(), "EXPERIMENT", EXPERIMENT._replace(prepare=prepare))
    with pytest.raises(DataError, match="the text is not there"):
        call()
    assert "4 heads" in call("--list") and "4 heads" in call("--dry_run")
    with pytest.raises(ConfigError, match="--seeds=a"):
        call("--seeds=a")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_end_a_report_as_ctrl_c_does(number, call, monkeypatch):
    monkeypatch.setattr(command, "_run_missing", lambda *_: [])
    monkeypatch.setattr(command, "_report", lambda *_: signal.raise_signal(number))
    before = signal.signal(number, lambda *_: pytest.fail("it would end the process"))
    try:
        with pytest.raises(KeyboardInterrupt):
            call()
    finally:
        signal.signal(number, before)


def test_a_report_is_of_every_recorded_seed_and_in_the_rows_order(
    call, tmp_path, monkeypatch, caplog
):
    seen = []
    found = EXPERIMENT._replace(findings=lambda _, jobs: seen.extend(jobs) or [])
    monkeypatch.setitem(globals(), "EXPERIMENT", found)
    jobs = make_jobs(EXPERIMENT, "small", tmp_path, seeds=(0, 1))
    digests = {(job.row, job.seed): job.digest() for job in jobs}
    lines = [line("4 heads", 1, 2.0), line("4 heads", 0, 2.0), line("base", 0, 1.0)]
    lines = [one._replace(config_digest=digests[one.row, one.seed]) for one in lines]
    write_results(tmp_path / "out", [*lines, line("of another table", 0, 1.0)])
    call("--report", "--seeds=7")
    assert "has 'of another table', which is no row of this table" in caplog.text
    assert {job.seed for job in seen} == {0, 1}
    runs_table = (tmp_path / "out" / "index.html").read_text().rpartition("<h2>")[2]
    cells = [cell.partition("<")[0] for cell in runs_table.split("<tr><td>")[1:]]
    assert cells == ["base", "4 heads", "4 heads"]


def test_a_report_needs_results(call, tmp_path):
    for _ in range(2):
        with pytest.raises(DataError, match=r"results.jsonl has no results. Run the table first"):
            call("--report")
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "results.jsonl").touch()
    write_results(tmp_path / "out", [line("of another table", 0, 1.0)])
    with pytest.raises(
        DataError, match=r"results.jsonl is of another table: it has the row 'of an"
    ):
        call("--report")
    assert not (tmp_path / "out" / "table.md").exists()


def test_an_error_in_the_findings_blames_the_file_and_says_where(call, monkeypatch, tmp_path):
    def findings(folder, jobs):
        raise KeyError("right")

    monkeypatch.setitem(globals(), "EXPERIMENT", EXPERIMENT._replace(findings=findings))
    write_answers(tmp_path / "out", [Answer("who?", [], {})])
    with pytest.raises(DataError, match=r"results.jsonl: what it says .*'right', at test_command"):
        call("--report")


def test_the_page_says_the_minutes_that_rows_got(call, tmp_path):
    write_answers(tmp_path / "out", [Answer("who?", [], {})])
    assert "Each row trains for 0.25 minutes on the device" in call("--report", "--minutes=0.25")
    assert "minutes on the device" not in call("--report")


def test_flags_that_cannot_be_are_one_line(call):
    for flags, message in [
        (["--seeds=one"], "--seeds=one"),
        (["--seeds=1_0"], "--seeds=1_0"),
        (["--seeds=,"], "--seeds=, names none"),
        (["--rows=;"], "--rows=; names none"),
        (["--rows=other"], "no row 'other'; it has base; 4 heads; bad"),
        (["--scale=huge", "--list"], "--scale=huge: | has small"),
        (["--launcher=cloud", "--rows=base"], "not one of local, slurm"),
        (["--launcher=slurm", "--slurm=gpus"], "expected K=V"),
        (["--list", "--report"], "--list and --report do not go together"),
        (["--packed=x", "--pack=y"], "--packed and --pack do not go together"),
        (["--slurm=gpus=1"], "--slurm=gpus=1 goes with --launcher=slurm"),
        (["--launcher=slurm", "--jobs=2"], "--jobs=2: SLURM gets every run at once"),
        *((["--minutes", text], "must be a number above 0") for text in ("0", "-1", "nan", "inf")),
        (["--jobs=1000"], "--jobs=1000"),
        ([f"--out={__file__}/results"], "--out: cannot write into | is a file. Name another."),
        ([f"--runs={__file__}"], "--runs: cannot write into | is a file. Name another."),
        (["--out=/proc/results"], "--out: cannot write into /proc/results: "),
        (["--config.seed=3"], "--config.seed: set the seeds of an experiment with --seeds=0,1."),
    ]:
        with refused(ConfigError, *message.split(" | ")):
            call(*flags)


def test_a_base_row_that_is_run_again_is_drawn_again(tmp_path, monkeypatch):
    [job] = make_jobs(EXPERIMENT, "small", tmp_path, ("4 heads",))
    output = Output(tmp_path)
    monkeypatch.setattr(command, "collect", lambda job: line("4 heads", 0, 1.0))
    for base in ("base", "4 heads"):
        output.attention.touch()
        command._keep(job._replace(scale=job.scale._replace(compared=False)), base, output)
        assert output.attention.exists() == (base == "base")


def test_a_run_whose_results_could_not_be_found_is_not_trained(tmp_path):
    values = runs.tiny_values(train__steps=12)
    preset = str(runs.write_preset(tmp_path / "preset.py", values))

    def check(scale):
        experiment = Experiment("t", {"a": {}}, {"small": scale})
        check_results(make_jobs(experiment, "small", tmp_path))

    folder = tmp_path / "a" / "seed-0"
    (folder / "checkpoints" / "13" / "params").mkdir(parents=True)
    with pytest.raises(RunError, match="a/seed-0 is at step 13, beyond train.steps=12: .* --runs"):
        check(Scale(preset))
    shutil.rmtree(folder)
    origin = with_values(load_config(preset), {"train.init_from": str(tmp_path)})
    write_atomically(folder / "config.json", to_json(origin).encode())
    with pytest.raises(RunError, match=f"began with train.init_from={tmp_path}, and it is None"):
        check(Scale(preset))
    shutil.rmtree(folder)
    for scale, error, message in [
        (Scale(preset, split="newstest"), DataError, r"newstest.en: no such file.*with .en: test"),
        (Scale(preset, average=4), ConfigError, "a, seed 0: 4 checkpoints .* the run keeps 3: tr"),
        (Scale(preset, {"train.steps": 6}, average=3), ConfigError, "3 check.* the run keeps 2"),
        (Scale(preset, {"train.patience": 2}), ConfigError, "seed 0: train.patience=2 may end"),
    ]:
        with pytest.raises(error, match=message):
            check(scale)
    check(Scale(preset, split="valid", average=3))


@pytest.mark.parametrize(
    ("change", "overrides", "message"),
    [
        ({"metrics": ("blue",)}, {}, "metrics has 'blue', which is not one of perplexity, "),
        ({"paper": {"base": {"blue": 1.0}}}, {}, "paper has 'blue', which is not one of perplex"),
        ({}, {"model.d_ff": 8}, "--config.KEY=VALUE makes another table: .*--out=FOLDER"),
        ({"in_scale": True}, {"out": "x/other"}, "--out=x/other: call the folder small"),
        ({"fixed": ("data",)}, {"out": "x", "data.src": "de"}, "--config.data.src: what tiny fin"),
        ({}, {"out": "x", "minutes": 1.0, "train.steps": 3}, "train.steps changes nothing"),
    ],
)
def test_a_table_that_cannot_be_is_refused(change, overrides, message):
    flags = {"scale": "small", "seeds": None, "rows": None, "runs": "", "out": None}
    flags |= {name: value for name, value in overrides.items() if "." not in name}
    keys = {name: value for name, value in overrides.items() if "." in name}
    with pytest.raises(ConfigError, match=message):
        command.run(EXPERIMENT._replace(**change), {**flags, "overrides": keys})


def test_a_list_has_the_values_in_force_and_a_key_that_rows_set_is_said(call, caplog):
    assert "| 4 heads | model.num_heads=2 |" in call(
        "--list", "--config.model.num_heads=2", "--rows=4 heads"
    )
    assert "--config.model.num_heads=2 also for rows that set it: 4 heads" in caplog.text
    own = EXPERIMENT.scales["small"]._replace(own={"base": {"model.d_ff": 24}})
    flags = {"list": True, "out": "x", "overrides": {"model.d_ff": 8}}
    command.run(EXPERIMENT._replace(scales={"small": own}), flags)
    assert "--config.model.d_ff=8 also for rows that set it: base" in caplog.text


def test_what_is_known_of_rows_that_are_not_run_is_in_the_table_s_units():
    jobs = make_jobs(EXPERIMENT, "small", Path("runs"), ("base", "4 heads"), (0, 1))
    parameters, flops = counts(jobs[0].config())
    want = {"parameters": parameters / 1e6, "training_flops": flops}
    assert command._counted(jobs) == {"base": want, "4 heads": want}


def test_the_time_of_a_dry_run_follows_from_runs_on_this_device_or_from_its_peak(monkeypatch):
    [job] = make_jobs(EXPERIMENT, "small", Path("runs"), ("base",))
    _, flops = counts(job.config())
    here = jax.devices()[0].device_kind
    rate = {"training_flops": flops, "train_seconds": 90.0}
    known = [line("base", 0, 1.0, device=here, **rate), line("base", 1, 1.0, device="other")]
    text = preview.predicted([job], known, None)
    assert "the median of 1 finished runs" in text
    assert text.splitlines()[2].split(" | ")[4].rstrip(" |") == "1.5", "90 seconds"
    monkeypatch.setattr(preview.cost, "device_peak", lambda dtype: 1e12)
    monkeypatch.setattr(jax, "device_count", lambda: 8)
    rate, basis = preview._rate(known[1:], "float32")
    assert rate == pytest.approx(0.4 * 8e12) and basis == f"40% of the peak of 8 x {here}"


@pytest.mark.parametrize("average", [0, 2])
def test_the_attention_of_the_scored_weights_is_drawn_and_again_if_the_first_row_changes(
    average, tmp_path, monkeypatch, caplog
):
    scale = EXPERIMENT.scales["small"]._replace(average=average)
    experiment = EXPERIMENT._replace(scales={"small": scale})
    [job] = make_jobs(experiment, "small", tmp_path, ("base",))
    (job.folder / "checkpoints").mkdir(parents=True)
    output = Output(tmp_path)
    samples = [["a b", "r", "t"], ["c", "r", "t"]]
    lines = [line("base", 0, 1.0, samples=samples)]
    calls = []
    done = SimpleNamespace(returncode=0)
    monkeypatch.setattr("subprocess.run", lambda given, **_: calls.append(given) or done)
    draw_attention([job], lines, output)
    [given] = calls
    assert given[3:5] == ["attention", f"--workdir={job.folder}"] and given[-1] == "a b"
    assert ("--checkpoint=average" in given) == bool(average)
    (job.folder / "checkpoints").rmdir()  # a run that came from another machine has no weights
    draw_attention([job], lines, output)
    output.attention.touch()
    draw_attention([job], lines, output, again=True)
    assert calls == [given] and "attention.png is of another row than base" in caplog.text
    (job.folder / "checkpoints").mkdir()
    draw_attention([job], lines, output)
    assert calls == [given]
    draw_attention([job], lines, output, again=True)
    assert calls == [given, given] and caplog.text.count("another row") == 1


def test_an_error_of_a_job_s_thread_is_raised_and_starts_no_other_job(tmp_path, monkeypatch):
    started = []

    def full(job, share, stop, commands):
        started.append(job)
        raise OSError(errno.ENOSPC, "No space left on device", "log.txt")

    monkeypatch.setattr(launch, "run_commands", full)
    jobs = make_jobs(EXPERIMENT, "small", tmp_path)
    with pytest.raises(OSError, match="No space left"):
        launch.run_here(jobs, lambda job, reason: None)
    assert len(started) == 1 < len(jobs)


def test_each_row_may_have_seeds_of_its_own():
    scale = EXPERIMENT.scales["small"]._replace(seeds={"base": (0,), "4 heads": (0, 1), "bad": ()})
    one = EXPERIMENT._replace(scales={"small": scale})

    def made(**which):
        return [(job.seed, job.row) for job in make_jobs(one, "small", Path("runs"), **which)]

    assert made() == [(0, "base"), (0, "4 heads"), (1, "4 heads")]
    assert made(rows=("4 heads",)) == [(0, "4 heads"), (1, "4 heads")]
    assert made(rows=("base", "bad"), seeds=(2,)) == [(2, "base"), (2, "bad")]


def test_the_last_line_of_a_process_is_its_reason():
    assert launch.last_line("a\n b\n\n") == "b" and launch.last_line(" \n") == "it printed nothing"
    assert launch.last_line("x" * 500) == "x" * LONGEST_REASON
    of_another = "transformer-jax: RUN is used by another process.\n12:00:00 step 100 of 200\n"
    assert launch.last_line(of_another) == "transformer-jax: RUN is used by another process."


def test_devices_are_shared_out(monkeypatch):
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5,6")
    assert [s.environment["CUDA_VISIBLE_DEVICES"] for s in shares(2)] == ["3", "5"]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    listed = SimpleNamespace(stdout="GPU 0: NVIDIA H100\n  MIG 1g.10gb Device 0:\nGPU 1: NVIDIA\n")
    monkeypatch.setattr("shutil.which", lambda name: name)
    monkeypatch.setattr("subprocess.run", lambda *_, **__: listed)
    assert [s.environment["CUDA_VISIBLE_DEVICES"] for s in shares(2)] == ["0", "1"]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    assert [sorted(s.cores) for s in shares(2)] == [[0, 2], [1, 3]]
    monkeypatch.delenv("JAX_PLATFORMS")
    for nothing in ("", "-1", "-1,0"):  # CUDA ignores what follows a number below 0
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", nothing)
        assert [sorted(s.cores) for s in shares(2)] == [[0, 2], [1, 3]]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 0,-1,1")
    assert [s.environment["CUDA_VISIBLE_DEVICES"] for s in shares(2)] == ["2", "0"]
    several = [s.environment for s in shares(3)]
    assert [e["CUDA_VISIBLE_DEVICES"] for e in several] == ["2", "0", "2"]
    assert {e["XLA_PYTHON_CLIENT_MEM_FRACTION"] for e in several} == {"0.450"}
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in shares(2)[0].environment
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with pytest.raises(ConfigError, match=r"--jobs=5 is not in 1\.\.4"):
        shares(5)


def test_a_row_with_a_time_has_a_gpu_of_its_own(call, monkeypatch):
    monkeypatch.setattr(command, "visible_gpus", lambda: ["0", "1"])
    monkeypatch.setattr(command, "run_here", mock.Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(ConfigError, match="--jobs=3: a row with a time .* this machine has 2"):
        call("--minutes=1", "--jobs=3")
    with pytest.raises(KeyboardInterrupt):
        call("--minutes=1", "--jobs=2")


def job_of(folder: Path, *commands: list[str]) -> SimpleNamespace:
    """A job with commands of a moment in place of a run."""
    return SimpleNamespace(
        row="base",
        seed=0,
        label="base, seed 0",
        folder=folder,
        commands=lambda: commands,
        config=lambda: runs.tiny_config(train__steps=100),
    )


def test_a_run_sees_its_share_of_the_devices_and_is_interrupted_not_killed(tmp_path, monkeypatch):
    """SIGINT lets a run write a checkpoint before it ends."""
    start, bound = mock.Mock(), mock.Mock()
    process = start.return_value
    process.poll.return_value = None
    monkeypatch.setattr("subprocess.Popen", start)
    monkeypatch.setattr("os.sched_setaffinity", bound)
    stop = threading.Event()
    stop.set()
    share = Share({"CUDA_VISIBLE_DEVICES": "2,3"}, frozenset({1}))
    job = job_of(tmp_path / "run", ["train", "--x"], ["evaluate"])
    assert run_commands(job, share, stop) == "interrupted"
    [started] = start.call_args_list
    assert started.args[0][-2:] == ["train", "--x"]
    assert started.kwargs["env"] == {**os.environ, "CUDA_VISIBLE_DEVICES": "2,3"}
    bound.assert_called_once_with(process.pid, {1})
    interrupt = mock.call.send_signal(signal.SIGINT)
    assert process.mock_calls == [mock.call.poll(), interrupt, mock.call.wait()]
    process.poll.return_value = process.returncode = 3
    ended = run_commands(job, commands=lambda job: [["a.module", "x"]])
    assert ended == "`a.module` ended with 3: it printed nothing"


@pytest.mark.slow("starts submitit's processes")
def test_submitit_runs_the_same_commands(tmp_path):
    ended = []
    good = job_of(tmp_path / "a" / "run", ["train", "--help"], ["average", "--help"])
    bad = job_of(tmp_path / "b" / "run", ["nonsense"])
    several = "timeout_min=5,tasks_per_node=2"
    launch.run_with_submitit(
        [good, bad], lambda *one: ended.append(one), tmp_path / "s", several, "local"
    )
    reasons = {job.folder.parent.name: reason for job, reason in ended}
    assert reasons["a"] == "" and "`nonsense` ended with 2" in reasons["b"]
    # All processes of a run train; only the first does what is done once.
    first, second = (launch.log_file(good, process).read_text() for process in (0, 1))
    assert second and first.startswith(second) and len(first) > len(second)


@pytest.mark.parametrize(
    ("number", "handed_on"), [(signal.SIGUSR2, [signal.SIGUSR2]), (signal.SIGTERM, [])]
)
def test_a_job_that_slurm_ends_stops_its_run_and_then_waits_for_the_end(
    number, handed_on, tmp_path, monkeypatch
):
    """submitit's own handler puts the job back into the queue; it comes after the checkpoint."""
    monkeypatch.setattr("submitit.JobEnvironment", lambda: SimpleNamespace(global_rank=1))
    monkeypatch.delenv("SUBMITIT_PREEMPT_SIGNAL", raising=False)
    happened = []

    def run_commands(job, stop, process):
        os.kill(os.getpid(), number)
        assert stop.wait(10)
        happened.append(("stopped", process))
        return "interrupted"

    monkeypatch.setattr(launch, "run_commands", run_commands)
    monkeypatch.setattr(launch.time, "sleep", lambda s: happened.append(("waited", s)))
    before = signal.signal(signal.SIGUSR2, lambda number, _: happened.append(number))
    try:
        job = job_of(tmp_path / "run")
        submitted = launch.Submitted()
        assert submitted(job) == "interrupted"
        again = submitted.checkpoint(job)
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert happened == [("stopped", 1), *handed_on, ("waited", launch.ENDED_BY_SLURM)]
    assert (again.function, again.args) == (submitted, (job,))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ("gpus", "--slurm=gpus: expected K=V,K=V."),
        ("gpus_per_nod=1", "unknown|Unknown"),
        ("mem_gb=much", '"mem_gb" expected type'),
        ("mem_gb=[", "while parsing"),
        ("timeout_min=5", "srun|sbatch"),
    ],
)
def test_what_submitit_refuses_is_one_line(parameters, message, tmp_path, monkeypatch):
    if parameters != "timeout_min=5":  # it is a parameter, but there is no SLURM
        (tmp_path / "srun").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=message) as error:
        launch.run_with_submitit([], print, tmp_path / "submitit", parameters)
    assert "\n" not in str(error.value)


def test_sbatch_gets_the_parameters_as_submitit_reads_them(tmp_path, monkeypatch):
    (tmp_path / "srun").touch(mode=0o755)
    (tmp_path / "sbatch").write_text("#!/bin/sh\necho Submitted batch job 7 >&2; exit 1\n")
    (tmp_path / "sbatch").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    given = "timeout_min=600,mem_gb=7.5,nodes=2,gpus_per_node=2,slurm_max_num_timeout=9"
    given += ",slurm_partition=long,slurm_exclusive=true,slurm_time=700,slurm_setup=module load x"
    job = job_of(tmp_path / "run", ["--help"])
    with pytest.raises(Exception, match="Submitted batch job 7"):
        launch.run_with_submitit([job], print, tmp_path / "submitit", given)
    [script] = [path.read_text() for path in (tmp_path / "submitit").glob("*.sh")]
    options = {line.removeprefix("#SBATCH --") for line in script.splitlines() if "SBATCH" in line}
    want = {"time=700", "mem=7680MB", "nodes=2", "gpus-per-node=2", "partition=long", "exclusive"}
    assert want <= options and "\nmodule load x\n" in script


def test_progress_is_read_from_the_run_s_folder(tmp_path):
    job = job_of(tmp_path / "run")
    assert progress_of(job) == ("waiting", 0)
    job.folder.mkdir()
    (tmp_path / "run.log.txt").write_text("")
    record = '{"step": 40, "kind": "train"}\n{"step": 41, "ki'
    (job.folder / "metrics.jsonl").write_text('{"step": 20, "kind": "train"}\n' + record)
    assert progress_of(job) == ("running", 40)
    assert progress_of(job, since=time.time() + 9) == ("waiting", 40), "an earlier call's log"
    table = LiveTable([job])
    assert table.tasks[0].start_time is None
    table.look()
    assert table.tasks[0].start_time is not None
    assert [(one.completed, one.total) for one in table.tasks] == [(40, 100), (40, 100)]
    assert [one.fields["state"] for one in table.tasks] == ["running", ""]
    table.ended(job, "it broke")
    table.look()
    assert [one.fields["state"] for one in table.tasks] == ["it broke", "1 of 1"]
    assert table.get_renderables()


def test_log_lines_go_where_standard_error_goes_now(monkeypatch):
    """A live table shows them above itself, although it is opened later."""
    handler = log_handler()
    monkeypatch.setattr(sys, "stderr", now := io.StringIO())
    handler.emit(logging.makeLogRecord({"msg": "said"}))
    assert now.getvalue().endswith(" said\n")


@pytest.mark.parametrize(
    "given", ["--seeds=0,1", "--seeds 0,1", "--report --rows base", "--jobs 2"]
)
def test_the_command_on_the_page_lacks_what_does_not_change_the_table(given):
    kept = ["--scale", "small", "--config.model.num_heads=4"]
    assert command._plain([*kept[:2], *given.split(), kept[2]], command.NO_CHANGE) == kept
