"""What a run writes about itself: it survives kills, cuts back on resume, and is valid JSON."""

import io
import json
import logging
import math
import os
import struct
import sys

import numpy as np
import pytest

from transformer_jax.errors import RunError
from transformer_jax.runs import metrics
from transformer_jax.runs.metrics import MetricsWriter, Progress, open_reports, read_metrics


def write(workdir, steps, purge_after_step=0, kind="train"):
    writer = MetricsWriter(workdir, purge_after_step)
    for step in steps:
        writer.write(step, kind, {"nats_per_token": 10.0 / step})
    writer.close()


def steps_of(workdir):
    return [record["step"] for record in read_metrics(workdir)]


def read_events(workdir):
    """TensorBoard's framing: length (8 bytes), checksum (4), protocol buffer, checksum (4)."""
    from tensorboardX.proto.event_pb2 import Event

    events = []
    files = (workdir / "tensorboard").iterdir()
    for path in sorted(files, key=lambda path: path.stat().st_mtime_ns):
        data = path.read_bytes()
        while data:
            (length,) = struct.unpack("<Q", data[:8])
            events.append(Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return events


def test_a_line_is_a_json_object_with_step_and_kind_first(tmp_path):
    """It is in the file at once, so a kill before `close` loses nothing."""
    writer = MetricsWriter(tmp_path / "new" / "run", 0)
    values = {"nats_per_token": np.float32(0.5), "target_tokens": np.int32(7)}
    writer.write(np.int64(100), "train", values)
    text = (tmp_path / "new" / "run" / "metrics.jsonl").read_text()
    assert text == '{"step": 100, "kind": "train", "nats_per_token": 0.5, "target_tokens": 7}\n'
    assert any(event.step == 100 for event in read_events(tmp_path / "new" / "run"))
    writer.close()


def test_numbers_that_are_not_finite_are_valid_json_and_come_back(tmp_path):
    writer = MetricsWriter(tmp_path, 0)
    values = {"a": math.nan, "b": math.inf, "c": -math.inf, "d": np.float32("nan")}
    writer.write(1, "train", values)
    writer.close()

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    line = (tmp_path / "metrics.jsonl").read_text()
    parsed = json.loads(line, parse_constant=refuse)
    assert [parsed[name] for name in "abcd"] == ["NaN", "Infinity", "-Infinity", "NaN"]
    (record,) = read_metrics(tmp_path)
    np.testing.assert_equal([record[name] for name in "abcd"], list(values.values()))


def test_the_log_shows_each_validation(tmp_path, caplog):
    with caplog.at_level("INFO"), open_reports(tmp_path, 10, 0, silent=False) as reports:
        reports.validated(4, {"perplexity": 12.3456, "bleu": 7.0})
    assert "step 4: validation perplexity 12.35, bleu 7" in caplog.text


def test_names_that_would_overwrite_step_or_kind_are_refused(tmp_path):
    writer = MetricsWriter(tmp_path, 0)
    with pytest.raises(ValueError, match='"step" and "kind"'):
        writer.write(1, "train", {"step": 3.0})
    writer.close()
    assert read_metrics(tmp_path) == []


class SmallDisk(io.BytesIO):
    """A file on a disk that is full after `room` more bytes."""

    room = 0

    def write(self, content):
        if not self.room:
            raise OSError(28, "No space left on device")
        written = super().write(content[: self.room])
        self.room -= written
        return written


def test_lines_that_a_full_disk_refuses_are_written_once_there_is_room(tmp_path, caplog):
    writer = MetricsWriter(tmp_path, 0)
    writer._file.close()
    writer._file = disk = SmallDisk()
    for step, room in ((1, 0), (2, 10), (3, 1_000)):
        disk.room = room
        writer.write(step, "train", {"loss": 0.5})
    lines = [json.loads(line) for line in disk.getvalue().splitlines()]
    assert lines == [{"step": step, "kind": "train", "loss": 0.5} for step in (1, 2, 3)]
    writer.close()
    assert caplog.text.count("cannot be written (No space left on device); continuing") == 1
    assert "the last lines" not in caplog.text
    writer = MetricsWriter(tmp_path, 0)
    writer._file.close()
    writer._file = SmallDisk()
    writer.write(4, "train", {"loss": 0.5})
    writer.close()
    assert f"the last lines of {tmp_path}/metrics.jsonl could not be written" in caplog.text


@pytest.mark.parametrize(("restored", "kept"), [(200, [100, 200]), (0, [])])
def test_resume_cuts_back_to_the_restored_step_and_appends(restored, kept, tmp_path):
    write(tmp_path, [100, 200, 300, 400])
    write(tmp_path, [300], purge_after_step=restored)
    assert steps_of(tmp_path) == [*kept, 300]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "tensorboard"]


@pytest.mark.parametrize("torn", ['{"step": 300, "ki', '{"step": 150, "kind": "train"}', "\0\0\0"])
@pytest.mark.parametrize("restored", [200, 250])
def test_a_last_line_without_newline_is_dropped(tmp_path, torn, restored):
    write(tmp_path, [100, 200])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(torn)
    assert steps_of(tmp_path) == [100, 200]
    write(tmp_path, [300], restored)
    assert steps_of(tmp_path) == [100, 200, 300]


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        "[1]",
        '{"step": 1, "kind": 2}',
        '{"kind": "train"}',
        '{"step": "x", "kind": "y"}',
        f'{{"step": 1, "kind": "train", "nats": {10**400}}}',
    ],
)
def test_a_whole_line_that_is_no_metrics_is_named_and_nothing_is_lost(tmp_path, line):
    write(tmp_path, [100])
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text() + line + "\n")
    before = path.read_bytes()
    with pytest.raises(RunError, match=r"metrics\.jsonl:2 is not metrics"):
        read_metrics(tmp_path)
    with pytest.raises(RunError, match=r"metrics\.jsonl:2 is not metrics"):
        MetricsWriter(tmp_path, purge_after_step=0)
    assert path.read_bytes() == before


def test_a_kill_during_the_cut_leaves_the_file_whole(tmp_path, monkeypatch):
    write(tmp_path, [100, 200])
    before = (tmp_path / "metrics.jsonl").read_bytes()

    def killed(source, target):
        assert target == tmp_path / "metrics.jsonl"
        assert source.read_bytes() == before.splitlines(keepends=True)[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        MetricsWriter(tmp_path, purge_after_step=100)
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_reading_a_folder_without_metrics_is_a_users_error(tmp_path):
    with pytest.raises(RunError, match=r"metrics\.jsonl is not there"):
        read_metrics(tmp_path)


def test_tensorboard_shows_kind_and_name_and_hides_purged_steps(tmp_path):
    write(tmp_path, [100, 200, 300])
    write(tmp_path, [300], purge_after_step=200, kind="valid")
    events = read_events(tmp_path)
    shown = [
        (event.step, value.tag, value.simple_value)
        for event in events
        for value in event.summary.value
    ]
    assert [(step, tag) for step, tag, _ in shown] == [
        (100, "train/nats_per_token"),
        (200, "train/nats_per_token"),
        (300, "train/nats_per_token"),
        (300, "valid/nats_per_token"),
    ]
    assert shown[1][2] == pytest.approx(0.05)
    # TensorBoard drops earlier events with a step of at least a START's.
    starts = [event.step for event in events if event.HasField("session_log")]
    assert starts == [1, 201]


def test_starts_within_one_second_keep_each_others_events(tmp_path):
    for step in (1, 2, 3, 4):
        write(tmp_path, [step])
    events = read_events(tmp_path)
    assert sorted(event.step for event in events if event.summary.value) == [1, 2, 3, 4]


VALUES = {"nats_per_token": 2.34567, "perplexity": 10.44, "target_tokens_per_second": 123456.7}


def test_progress_without_a_terminal_logs_a_line_an_update(caplog, capsys, monkeypatch):
    clock = iter([1000.0, 1060.0, 1070.0])
    monkeypatch.setattr(metrics.time, "monotonic", lambda: next(clock))
    progress = Progress(total=10_000, initial=2_000)
    with caplog.at_level(logging.INFO):
        progress.update(2_100, VALUES)
        progress.update(2_200, {"grad_norm": 1.0, "perplexity": 1e304})
        progress.write("valid: BLEU 12.3")
    progress.close()
    assert caplog.messages == [
        # 7,900 steps at 0.6 s; then 7,800 at 0.1 s: the last interval counts.
        "step 2,100 of 10,000, loss 2.346, perplexity 10.44, tokens/s 123,457, 1:19:00 left",
        "step 2,200 of 10,000, perplexity 1.00e+304, 0:13:00 left",
        "valid: BLEU 12.3",
    ]
    assert capsys.readouterr() == ("", "")


def test_progress_on_a_terminal_is_a_bar_with_log_lines_above_it(monkeypatch, capsys):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    handler = logging.StreamHandler(terminal)
    monkeypatch.setattr(logging.root, "handlers", [handler])
    progress = Progress(total=1_000, initial=200)
    assert logging.root.handlers != [handler]
    progress.update(300, VALUES)
    progress.update(400, VALUES)
    logging.getLogger("elsewhere").warning("a record")
    progress.write("a line")
    progress.close()
    assert logging.root.handlers == [handler]
    assert capsys.readouterr().out == ""
    screen = terminal.getvalue()
    assert "400/1000" in screen
    assert "loss=2.346, perplexity=10.44, tokens/s=123,457" in screen
    # Each on a line of its own: the bar is wiped (carriage return) before it.
    for line in ("a record", "a line"):
        assert screen.count(line) == 1
        assert screen.split(line)[0][-1] == "\r"
        assert screen.split(line)[1].startswith("\n")
    assert screen.endswith("\n")


def test_a_file_that_is_removed_begins_again_and_a_moved_folder_keeps_its_own(tmp_path, caplog):
    writer = MetricsWriter(tmp_path / "run", 0)
    writer.write(1, "train", {"x": 1.0})
    (tmp_path / "run" / "metrics.jsonl").unlink()
    writer.write(2, "train", {"x": 1.0})
    [said] = caplog.messages
    assert said.endswith("metrics.jsonl was removed: its curves begin again here")
    (tmp_path / "run").rename(tmp_path / "moved")
    writer.write(3, "train", {"x": 1.0})
    writer.close()
    assert steps_of(tmp_path / "moved") == [2, 3] and not (tmp_path / "run").exists()
    assert caplog.messages == [said]
