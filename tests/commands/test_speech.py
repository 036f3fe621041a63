"""A run that reads recordings: trained, killed and resumed, translated, evaluated, refused."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

import transformer_jax
from tests import tiny_runs as runs

pytestmark = pytest.mark.slow("trains a run")

RATE, TONES = 8_000, {"low": 400, "mid": 1_000, "high": 2_500}
KEYS = {
    "data.src": "wavs",
    "data.tgt": "words",
    "data.src_kind": "speech",
    "data.sample_rate": RATE,
    "data.mel_bands": 8,
    "data.stacked_frames": 2,
    "data.masked_bands": 2,
    "data.masked_frames": 5,
    "data.max_length": 40,
    "model.features": 16,
    "vocabulary.size": 280,
    "train.row_length": 16,
    "train.steps": 10,
}


def write_tones(folder: Path, stem: str, count: int, seed: int) -> None:
    """Strings of tones and their names."""
    folder.mkdir(exist_ok=True)
    draw = np.random.default_rng(seed)
    names, texts = [], []
    for number in range(count):
        words = draw.choice(list(TONES), size=draw.integers(1, 4))
        time = np.arange(RATE // 10) / RATE
        tones = [np.sin(2 * np.pi * TONES[word] * time) for word in words]
        names.append(f"{stem}{number}.wav")
        soundfile.write(folder / names[-1], np.concatenate(tones), RATE)
        texts.append(" ".join(words))
    runs.write_lines(folder / f"{stem}.wavs", names)
    runs.write_lines(folder / f"{stem}.words", texts)


@pytest.fixture(scope="module")
def spoken(tmp_path_factory):
    """A folder of text, and a trained run."""
    folder = tmp_path_factory.mktemp("spoken")
    for seed, (stem, count) in enumerate({"train": 60, "valid": 8, "test": 6}.items()):
        write_tones(folder, stem, count, seed)
    keys = {"data.path": str(folder), **KEYS}
    given = {name.replace(".", "__"): value for name, value in keys.items()}
    assert runs.train(folder / "run", **given) == 0
    return folder


def test_a_run_reads_recordings(spoken, capsys, monkeypatch):
    run = transformer_jax.load(spoken / "run")
    files = [str(spoken / f"test{n}.wav") for n in range(6)]
    texts = run.translate([*files, ""])
    assert len(texts) == 7 and texts[-1] == ""
    # `translate` takes names from the folder in which it is called.
    monkeypatch.chdir(spoken)
    names = io.BytesIO(b"test0.wav\ntest1.wav\n")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(names))
    assert runs.command("translate", f"--workdir={spoken}/run") == 0
    assert capsys.readouterr().out.split("\n")[:2] == texts[:2]
    # `evaluate` takes them from data.path, or from the folder of --src.
    monkeypatch.chdir("/")
    assert runs.command("evaluate", f"--workdir={spoken}/run") == 0
    shown = capsys.readouterr().out
    assert "WER" in shown and "CER" in shown and "95 % interval" in shown
    [record] = (spoken / "run" / "evaluations").glob("test.*.json")
    found = json.loads(record.read_text())
    scores = run.evaluate()
    assert found["wer"]["rate"] == scores.wer.rate > 0
    sides = f"--src={spoken}/test.wavs", f"--ref={spoken}/test.words"
    assert runs.command("evaluate", f"--workdir={spoken}/run", *sides) == 0
    records = [*(spoken / "run" / "evaluations").glob("test.wavs.*.json")]
    assert len(records) == 1
    # Other recordings under the same names are other sources.
    other = spoken / "other"
    write_tones(other, "test", 6, seed=9)
    runs.write_lines(other / "test.words", (spoken / "test.words").read_text().splitlines())
    sides = f"--src={other}/test.wavs", f"--ref={other}/test.words"
    heard = capsys.readouterr().out
    assert runs.command("evaluate", f"--workdir={spoken}/run", *sides) == 0
    assert len([*(spoken / "run" / "evaluations").glob("test.wavs.*.json")]) == 2
    wer = next(line for line in shown.splitlines() if line.startswith("WER"))
    assert wer in heard
    attended = run.attention(files[0], "low mid").kinds["cross"]
    assert attended.attended[:2] == ["0.00 s", "0.02 s"]


def test_training_continues_as_if_it_had_not_stopped(spoken, tmp_path):
    keys = {"data.path": str(spoken), **KEYS}
    given = {name.replace(".", "__"): value for name, value in keys.items()}
    assert runs.train(tmp_path / "run", **{**given, "train__steps": 2}) == 0
    assert runs.train(tmp_path / "run", **given) == 0
    got, whole = (runs.arrays(one / "run" / "checkpoints" / "10") for one in (tmp_path, spoken))
    assert got.keys() == whole.keys()
    for name, values in whole.items():
        np.testing.assert_array_equal(got[name], values, err_msg=name)


@pytest.mark.parametrize("command", ["align", "export", "serve"])
def test_commands_for_text_say_so(spoken, command, capsys):
    flags = {
        "align": [f"--src={spoken / 'test.wavs'}", f"--tgt={spoken / 'test.words'}"],
        "export": ["--format=stablehlo", f"--output={spoken / 'out'}"],
        "serve": [],
    }
    assert runs.command(command, f"--workdir={spoken}/run", *flags[command]) == 2
    message = capsys.readouterr().err
    assert "reads" in message and "speech" in message and message.count("\n") == 1, message


def test_a_file_that_is_missing_is_named(spoken, capsys):
    runs.write_lines(spoken / "more.wavs", ["test0.wav", "gone.wav"])
    runs.write_lines(spoken / "more.words", ["low", "mid"])
    assert runs.command("evaluate", f"--workdir={spoken}/run", "--split=more") == 2
    assert "gone.wav': no such file" in capsys.readouterr().err
