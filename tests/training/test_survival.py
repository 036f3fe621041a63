"""What befalls a run while it trains: signals, rivals, full disks, lost processes, new meshes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import tiny_runs as runs
from tests.training.test_resume import assert_same_run, wait_until
from transformer_jax.decoding.lines import LineTranslator
from transformer_jax.runs.checkpoints import score_of

pytestmark = pytest.mark.slow("each test trains in a process of its own and kills or starves it")

ROOT = Path(__file__).parents[2]
LONG = 100_000  # steps of a run that is never to end by itself


def steps_of(workdir: Path) -> list[int]:
    checkpoints = (workdir / "checkpoints").glob("*")
    return sorted(int(path.name) for path in checkpoints if path.name.isdecimal())


# One process -----------------------------------------------------------------------------------


def test_stopped_while_it_validates_a_run_validates_first(tmp_path, monkeypatch):
    """In the validation of step 10, and in that of its last step. Muon's moments are saved too."""
    changes = {"train__valid_bleu": True, "train__steps": 20, "decode__max_extra_length": 2}
    changes["train__optimizer"] = "muon"
    assert runs.train(tmp_path / "never", **changes) == 0
    want = runs.arrays(tmp_path / "never" / "checkpoints" / "20")
    for layer in ("encoder_0", "decoder_0"):
        found = [name for name in want if name.endswith(f".mu.{layer}.self_attention.query")]
        assert len(found) == 1 and ".muon." in found[0]
    translate = LineTranslator.shared
    for step in (10, 20):
        calls = []

        def and_stop(self, lines, calls=calls, stopped=3 * step // 10 - 2):
            calls.append(lines)
            if len(calls) == stopped:  # of three calls in each validation, the first
                os.kill(os.getpid(), signal.SIGTERM)
            return translate(self, lines)

        workdir = tmp_path / f"run{step}"
        with monkeypatch.context() as patch:
            patch.setattr("transformer_jax.use.train.BLEU_LINES", 10)
            patch.setattr(LineTranslator, "shared", and_stop)
            assert runs.train(workdir, **changes) == 128 + signal.SIGTERM
            calls[:] = [None] * (3 * step // 10 - 3)  # the next call is the one that stops again
            assert runs.train(workdir, **changes) == 128 + signal.SIGTERM
        assert steps_of(workdir)[-1] == step
        assert ("valid", step) not in [(r["kind"], r["step"]) for r in runs.metrics(workdir)]
        assert runs.train(workdir, **changes) == 0
        assert_same_run(workdir, tmp_path / "never", "20")
        folders = [one / "checkpoints" / str(step) for one in (workdir, tmp_path / "never")]
        scores = list(map(score_of, folders))
        assert scores[0] == scores[1] is not None, "what --checkpoint=best compares"


def test_a_second_train_is_refused_and_the_first_goes_on(tmp_path, capsys):
    workdir, log = tmp_path / "run", tmp_path / "log"
    process = runs.train_in_process(workdir, log, train__steps=LONG)
    wait_until(lambda: steps_of(workdir), process)
    assert runs.train(workdir, train__steps=LONG) == 2
    assert capsys.readouterr().err == (
        f"transformer-jax: Another command is at work in {workdir}. Wait for it, or choose "
        "another --workdir.\n"
    )
    assert process.is_alive()
    process.kill()
    process.join()
    assert runs.train(workdir, train__steps=steps_of(workdir)[-1] + 1) == 0, "free again"


FULL_DISK = """
mount -t tmpfs -o size={size} none {folder} || exit 77
{command} 2> {folder}.log
echo status $? >> {folder}.log
cp -r {folder} {folder}.copy
"""


@pytest.mark.parametrize("mode", ["stop", "continue"])
def test_a_full_disk_is_reported_and_harms_no_older_checkpoint(mode, tmp_path):
    folder = tmp_path / "full"
    folder.mkdir()
    values = runs.tiny_values(train__keep_last=20, train__on_save_error=mode)
    preset = runs.write_preset(tmp_path / "preset.py", values)
    command = f"{sys.executable} -m transformer_jax train --config={preset} --workdir={folder}/run"
    # Room for the vocabulary and one checkpoint: whichever is written first, the last fails.
    script = FULL_DISK.format(size="1000k", folder=folder, command=command)
    environment = os.environ | {"TRANSFORMER_JAX_CACHE": str(tmp_path / "cache")}
    mounting = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script]
    done = subprocess.run(mounting, cwd=ROOT, env=environment, capture_output=True, text=True)
    if not (tmp_path / "full.log").exists():
        pytest.skip(f"no file system of our own can be mounted here: {done.stderr}")
    printed = (tmp_path / "full.log").read_text()
    assert "No space left on device" in printed and printed.endswith("status 2\n")
    assert "Traceback" not in printed
    copy = tmp_path / "full.copy" / "run"
    kept = steps_of(copy)
    assert kept and kept[-1] < runs.STEPS
    assert ("training continues" in printed) == (mode == "continue")
    # Read from the log: on a full disk the last line of metrics.jsonl may be incomplete.
    assert (f"step {runs.STEPS} of {runs.STEPS}," in printed) == (mode == "continue")
    # With room again, the run goes on from what is whole, to the end that it would have had.
    assert runs.train(copy, train__keep_last=3) == 0
    assert_same_run(copy, runs.trained_run())


# Several processes, other meshes -----------------------------------------------------------------


def start_two_processes(workdir: Path, values: dict, folder: Path) -> list:
    """A run of two processes of two devices each; their logs are log0 and log1 in the folder."""
    preset = runs.write_preset(folder / "preset.py", values)
    port = runs.free_port()
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count=2"
    command = [sys.executable, "-m", "transformer_jax", "train", f"--config={preset}"]
    command += [f"--workdir={workdir}", f"--coordinator=localhost:{port}", "--num_processes=2"]
    started = []
    for index in (0, 1):
        with (folder / f"log{index}").open("wb") as log:
            process = subprocess.Popen(
                [*command, f"--process_id={index}"],
                cwd=ROOT,
                env=os.environ | {"XLA_FLAGS": flags},
                stderr=log,
                stdout=subprocess.DEVNULL,
            )
        started.append(process)
    return started


def test_a_run_moves_between_meshes_and_a_lost_process_ends_the_others(tmp_path):
    """One device to step 10; two processes of two devices, of which one is lost; then eight."""
    workdir = tmp_path / "run"
    assert runs.train(workdir, train__steps=10) == 0
    first, second = start_two_processes(workdir, runs.tiny_values(mesh__fsdp=2), tmp_path)
    wait_until(lambda: steps_of(workdir)[-1] >= 20, first)
    second.kill()
    assert first.wait(60) != 0
    log = (tmp_path / "log0").read_text()
    # Whichever notices first: our own command, or JAX's client, which aborts the process.
    ours = "Start all processes again: the run continues from its last checkpoint."
    assert ours in log or "the JAX distributed service detected fatal errors" in log, log

    devices = "--xla_force_host_platform_device_count=8"
    mesh = {"mesh__data": 2, "mesh__fsdp": 2, "mesh__tensor": 2}
    process = runs.train_in_process(workdir, tmp_path / "log", devices, **mesh)
    process.join()
    assert process.exitcode == 0, (tmp_path / "log").read_text()
    got = runs.metrics(workdir)
    want = runs.metrics(runs.trained_run())
    # At step 10 the first part ended, with a line of its own.
    got = [r for r in got if (r["kind"], r["step"]) not in (("train", 10), ("train", 12))]
    want = [r for r in want if (r["kind"], r["step"]) != ("train", 12)]
    assert [(r["kind"], r["step"]) for r in got] == [(r["kind"], r["step"]) for r in want]
    for one, other in zip(got, want, strict=True):
        for name in {"smoothed_nats_per_token", "nats_per_token", "grad_norm"} & other.keys():
            assert one[name] == pytest.approx(other[name], rel=1e-5), (one, other)


def test_a_signal_to_one_of_two_processes_stops_both_at_one_step(tmp_path):
    workdir = tmp_path / "run"
    values = runs.tiny_values(train__steps=LONG, train__checkpoint_every=LONG)
    both = start_two_processes(workdir, values, tmp_path)
    wait_until(lambda: (workdir / "metrics.jsonl").exists() and runs.metrics(workdir), both[0])
    both[1].send_signal(signal.SIGTERM)
    assert [process.wait(60) for process in both] == [128 + signal.SIGTERM] * 2
    [step] = steps_of(workdir)
    for name in ("log0", "log1"):
        assert (tmp_path / name).read_text().splitlines()[-1] == (
            f"transformer-jax: SIGTERM: stopped, with a checkpoint at step {step}; the same "
            "command continues from there."
        )
