"""A run without a source: it is trained on one side of the text, scores lines and writes some."""

import numpy as np
import pytest

from tests import tiny_runs as runs
from transformer_jax import api
from transformer_jax.errors import ConfigError, DataError

pytestmark = pytest.mark.slow("trains a run")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run whose folder of text has German alone."""
    folder = tmp_path_factory.mktemp("text")
    for split in runs.SIZES:
        lines = runs.read_lines(runs.tiny_corpus() / f"{split}.de")
        runs.write_lines(folder / f"{split}.de", lines)
    alone = {"data__path": folder, "data__src": "", "model__encoder": "none"}
    assert runs.train(folder / "run", **alone, train__steps=40) == 0
    return folder / "run"


def test_lines_are_scored_without_a_source(run, capsys):
    lines = runs.read_lines(run.parent / "test.de")
    assert runs.command("score", f"--workdir={run}", f"--tgt={run.parent / 'test.de'}") == 0
    printed = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert len(printed) == len(lines)
    model = api.load(run, beam_size=2)
    found = model.score([""] * len(lines), lines)
    assert [float(line[1]) for line in printed] == pytest.approx([x.log_prob for x in found], 1e-5)
    shuffled = model.score([""] * len(lines), [" ".join(sorted(line.split())) for line in lines])
    assert np.mean([x.log_prob for x in found]) > np.mean([x.log_prob for x in shuffled])
    first, second = model.n_best([""], 2)[0]
    assert first.score > second.score and first.text != second.text


def test_what_needs_a_source_is_one_line(run, tmp_path, capsys):
    src = runs.write_lines(tmp_path / "src", ["ein Hund"])
    for command, words in (
        (("score", f"--src={src}", f"--tgt={src}"), "The model reads no source"),
        (("align", f"--src={src}", f"--tgt={src}"), "no layers of encoder-decoder attention"),
        (("evaluate",), "A language model (model.encoder='none') has no translations"),
        (("serve", f"--port={runs.free_port()}"), "is a language model: serve answers a source"),
        (("export", f"--output={tmp_path / 'out'}", "--format=stablehlo"), "reads 0 source"),
    ):
        name, *flags = command
        assert runs.command(name, f"--workdir={run}", *flags) == 2
        error = capsys.readouterr().err
        assert words in error and "Traceback" not in error
    with pytest.raises(ConfigError, match="no translations to evaluate"):
        api.load(run).evaluate([""], ["ein Hund"])
    with pytest.raises(DataError, match="there is text"):
        api.load(run).translate(["ein Hund"])
