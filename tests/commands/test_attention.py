"""The `attention` command draws the layers and kinds that are asked for."""

import html
import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.fixtures.tiny import tiny_model
from transformer_jax import api
from transformer_jax.api import AttendedSentence
from transformer_jax.commands import attention as command
from transformer_jax.decoding.translator import Translator
from transformer_jax.errors import ConfigError
from transformer_jax.evaluation.attention import KINDS, Attention, pair_attention
from transformer_jax.reporting.plots import attention_figure, printable
from transformer_jax.use.loading import load_model

# What is drawn -----------------------------------------------------------------------------------


def two_layers(rows: list[str], columns: list[str]) -> Attention:
    """Weights of two heads; in layer n the first attends to column n, the second to all alike."""
    weights_NHLM = np.zeros((2, 2, len(rows), len(columns)), np.float32)
    weights_NHLM[0, 0, :, 0] = weights_NHLM[1, 0, :, 1] = 1
    weights_NHLM[:, 1] = 1 / len(columns)
    return Attention(weights_NHLM, rows, columns, (1, 2))


ABC, XY = ["a", "b", "c"], ["x", "y"]
PIECES = {"encoder": (ABC, ABC), "decoder": (XY, ["<s>", "x"]), "cross": (XY, ABC)}


@pytest.fixture
def drawn(monkeypatch):
    """Runs the command with a fake model on a sentence; returns the titles that it draws."""
    kinds = {kind: two_layers(*pieces) for kind, pieces in PIECES.items()}
    found = AttendedSentence("<b> c", "x & y", "40", kinds)
    titles: list[str] = []

    def figure(weights, columns, rows, title, heads, labels):
        most = columns[weights[0, 0].argmax()]
        titles.append(f"{title}: {' '.join(rows)} to {most} of {' '.join(columns)}")
        return attention_figure(weights, columns, rows, title, heads, labels)

    run = SimpleNamespace(loaded=None, attention=lambda *_: found)
    monkeypatch.setattr(command, "load_model", lambda *_, overrides: None)
    monkeypatch.setattr(command, "_check_kinds", lambda *_: None)
    monkeypatch.setattr(command, "Run", lambda _: run)
    monkeypatch.setattr(api, "attention_figure", figure)
    return titles


MAGIC = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}


def asked(folder, flags: str) -> Path:
    """The file that the command writes, which the flags name first."""
    name, *others = flags.split()
    file = folder / name
    assert runs.command("attention", "--workdir=w", f"--output={file}", *others, "a b") == 0
    return file


@pytest.mark.parametrize(
    ("flags", "title"),
    [
        ("heat.png", "Encoder-decoder attention, layer 2 of 2: x y to b of a b c"),
        ("heat.pdf --layer=1", "Encoder-decoder attention, layer 1 of 2: x y to a of a b c"),
        ("heat.svg --kind=encoder", "Encoder self-attention, layer 2 of 2: a b c to b of a b c"),
        (
            "heat.png --kind=decoder --layer=1",
            "Decoder self-attention, layer 1 of 2: x y to <s> of <s> x",
        ),
    ],
)
def test_a_picture_is_of_one_layer_of_one_kind(flags, title, drawn, tmp_path):
    file = asked(tmp_path, flags)
    assert drawn == [title]
    assert file.read_bytes().startswith(MAGIC[file.suffix])


def test_a_picture_in_the_run_s_folder_is_drawn_again(drawn, tmp_path, monkeypatch):
    """The demo does so; the run's own files are not overwritten (tests/test_bad_input.py)."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "heat.png").write_bytes(b"old")
    assert asked(tmp_path / "w", "heat.png").read_bytes().startswith(MAGIC[".png"])


@pytest.mark.parametrize(
    ("flags", "kinds", "layers"),
    [
        ("heat.html --kind=all", list(KINDS), [1, 2]),
        ("heat.html --kind=all --layer=2", list(KINDS), [2]),
        ("heat.html --kind=decoder", ["decoder"], [1, 2]),
        ("heat.html", ["cross"], [1, 2]),
    ],
)
def test_a_page_is_of_every_layer_of_its_kinds(flags, kinds, layers, drawn, tmp_path):
    file = asked(tmp_path, flags)
    titles = [KINDS[kind].title for kind in kinds]
    want = [f"{title}, layer {layer} of 2" for title in titles for layer in layers]
    assert [title.partition(":")[0] for title in drawn] == want
    page = file.read_text()
    assert re.findall("<h2>(.*)</h2>", page) == titles
    assert page.count('src="data:image/png;base64,') == len(want)
    assert "source       &lt;b&gt; c\ntranslation  x &amp; y" in page and "<b>" not in page
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("suffix", [".npz", ".json"])
@pytest.mark.parametrize(
    ("flags", "kinds", "layers"),
    [("--kind=all", list(KINDS), [1, 2]), ("--layer=2", ["cross"], [2])],
    ids=["all", "one layer"],
)
def test_weights_are_written_with_their_subwords(suffix, flags, kinds, layers, drawn, tmp_path):
    found = weights_in(asked(tmp_path, f"weights{suffix} {flags}"))
    assert drawn == []
    texts = {name: found.pop(name) for name in ("source", "translation", "checkpoint")}
    assert texts == {"source": "<b> c", "translation": "x & y", "checkpoint": "40"}
    assert list(found) == kinds
    for kind, part in found.items():
        want = two_layers(*PIECES[kind]).weights_NHLM[np.array(layers) - 1]
        np.testing.assert_allclose(part["weights"], want, rtol=0, atol=1e-7)
        names = [list(part[name]) for name in ("layers", "heads", "attending", "attended")]
        assert names == [layers, [1, 2], *PIECES[kind]]


def test_one_head_is_written_and_drawn_under_its_number(drawn, tmp_path):
    part = weights_in(asked(tmp_path, "weights.json --head=2"))["cross"]
    assert part["heads"] == [2] and np.array(part["weights"]).shape == (2, 1, 2, 3)
    np.testing.assert_allclose(part["weights"], 1 / 3, atol=1e-7)
    asked(tmp_path, "heat.png --head=2")
    assert drawn == ["Encoder-decoder attention, layer 2 of 2: x y to a of a b c"]


def weights_in(file) -> dict:
    """A file of weights in the form of the .json file."""
    if file.suffix == ".json":
        return json.loads(file.read_text(encoding="utf-8"))
    found: dict = {}
    with np.load(file) as arrays:  # which unpickles nothing
        for name, array in arrays.items():
            kind, _, part = name.partition("_")
            if part:
                found.setdefault(kind, {})[part] = array.tolist()
            else:
                found[kind] = str(array)
    return found


# The command on a run ----------------------------------------------------------------------------


def draw(*arguments: str) -> int:
    return runs.command("attention", f"--workdir={runs.trained_run()}", *arguments)


def test_the_command_says_the_translation_and_draws_it(tmp_path, capsys):
    file = tmp_path / "heat.html"
    # Behind "--" a sentence may begin with a dash.
    assert draw("--kind=all", f"--output={file}", "--", "-5 degrees") == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("translation ") and out[1] == f"attention   {file}"
    page = file.read_text()
    assert "source       -5 degrees\n" in page
    assert html.escape(f"translation  {printable(out[0].removeprefix('translation '))}") in page
    assert page.count("data:image/png") == 3 and "checkpoint 40." in page


def test_a_given_translation_is_drawn_in_place_of_the_model_s_own(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Translator, "translate", None)  # no search
    page, weights = tmp_path / "heat.html", tmp_path / "heat.json"
    for file in (page, weights):
        assert draw(f"--output={file}", "--target=Der alte Mann .", "The old man .") == 0
        assert capsys.readouterr().out.startswith("target      Der alte Mann .\nattention ")
    assert "source       The old man .\ntarget       Der alte Mann ." in page.read_text()
    loaded = load_model(str(runs.trained_run()))
    ids = loaded.line_translator().encode(["The old man .", "Der alte Mann ."])
    translator = loaded.translator
    want = pair_attention(translator.model, translator.params, loaded.vocabulary, *ids)["cross"]
    found = weights_in(weights)["cross"]
    assert found["attending"] == want.attending == [*want.attending[:-1], "</s>"]
    np.testing.assert_allclose(found["weights"], want.weights_NHLM, atol=1e-6)


@pytest.mark.parametrize(
    ("kinds", "layers"), [(["encoder"], 1), (["decoder"], 3), (["cross"], 3), (list(KINDS), 1)]
)
def test_the_layers_to_choose_from_are_those_that_every_drawn_kind_has(kinds, layers):
    model = tiny_model(num_encoder_layers=1, num_decoder_layers=3)
    loaded = SimpleNamespace(model=model)
    command._check_kinds(loaded, kinds, layers)
    with pytest.raises(ConfigError, match=f"={layers + 1}: this model has layers 1 to {layers}"):
        command._check_kinds(loaded, kinds, layers + 1)
