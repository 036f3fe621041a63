"""The `plot` command."""

import pytest

from tests.fixtures.cases import full
from tests.tiny_runs import command


@pytest.fixture
def drawn(monkeypatch):
    """What is drawn instead of a picture."""
    found = []
    monkeypatch.setattr("transformer_jax.commands.plot.runs_figure", lambda runs: runs)
    monkeypatch.setattr("transformer_jax.commands.plot.save_figure", lambda *one: found.append(one))
    return found


def write_metrics(folder):
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text('{"step": 1, "kind": "train", "nats_per_token": 2.5}\n')
    return f"--workdir={folder}"


def test_several_runs_are_drawn_into_one_file(tmp_path, drawn):
    """A comma of a folder's name separates nothing."""
    a, b, c = (write_metrics(tmp_path / name) for name in ("a", "b", "a,b"))
    write_metrics(tmp_path / "more/b")
    assert command("plot", a, b, f"--output={tmp_path}/two.png") == 0
    assert command("plot", f"{b},{tmp_path}/more/b", f"--output={tmp_path}/same.png") == 0
    assert command("plot", c, f"{b},") == 0
    assert [list(runs) for runs, _ in drawn] == [
        ["a", "b"],
        [str(tmp_path / "b"), str(tmp_path / "more" / "b")],
        ["a,b", "b"],
    ]
    assert drawn[0][0]["a"] == [{"step": 1, "kind": "train", "nats_per_token": 2.5}]


def test_a_run_without_metrics_is_named_and_not_drawn(tmp_path, drawn, caplog):
    runs = [write_metrics(tmp_path / name) for name in ("a", "b")]
    (tmp_path / "a" / "metrics.jsonl").write_text("")
    assert command("plot", *runs) == 0
    assert "not drawn, without any metrics: a" in caplog.messages


def test_the_picture_is_a_png(tmp_path):
    run = write_metrics(tmp_path / "a")
    assert command("plot", run, f"--output={tmp_path}/curves.png") == 0
    assert (tmp_path / "curves.png").read_bytes()[:4] == b"\x89PNG"


def test_a_full_disk_leaves_an_earlier_picture_as_it_was(tmp_path, monkeypatch, capsys):
    output = tmp_path / "curves.png"
    output.write_bytes(b"old")
    monkeypatch.setattr("os.fsync", full)
    assert command("plot", write_metrics(tmp_path / "a"), f"--output={output}") == 2
    assert f"No space left on device ({output})." in capsys.readouterr().err
    assert output.read_bytes() == b"old"
