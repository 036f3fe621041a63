"""`export --format=stablehlo`: the folder's own search finds what ours finds, for any model."""

import functools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.commands.test_export import IMPORTED, export_of, random_run
from tests.commands.test_import import imported
from transformer_jax.interop.stablehlo_search import ExportedModel
from transformer_jax.text.vocabulary import UNK
from transformer_jax.use.loading import load_model

pytestmark = pytest.mark.slow("compiles exported models")

pytest.importorskip("flatbuffers")
MODELS: dict[str, dict[str, Any]] = {
    "relative": {
        "model.positions": "relative",
        "decode.banned_subwords": ("e",),
        "model.wait_k": 1,
        "model.wait_k_max": 5,
        "decode.wait_k": 4,
    },
    "coverage": {"model.attention_memory": "coverage", "model.decoder": "average"},
    "recurrent": {"model.encoder": "recurrent", "model.decoder": "recurrent"},
    "convolutional": {
        "model.encoder": "convolutional",
        "model.decoder": "convolutional",
        "model.positions": "learned",
        "model.max_positions": 28,
        "data.max_length": 24,
        "train.row_length": 24,
    },
}


SHORT = {"decode.length_penalty": 0.0, "decode.max_length": 24, "decode.max_extra_length": 8}


@functools.cache
def run_of(name: str) -> Path:
    """A run with random weights, whose search is short and without a length penalty."""
    return imported(IMPORTED[name]) if name in IMPORTED else random_run({**SHORT, **MODELS[name]})


@functools.cache
def exported(name: str) -> Path:
    return export_of(run_of(name), "stablehlo")


def sources() -> list[str]:
    return ["", *runs.read_lines(runs.tiny_corpus() / "test.en")[:5]]


@pytest.mark.parametrize("name", [*MODELS, *IMPORTED])
def test_the_exported_search_finds_what_ours_finds(name):
    loaded = load_model(str(run_of(name)), length_penalty=0.0)
    ours = [found[0].text if found else "" for found in loaded.line_translator()(sources())]
    model = ExportedModel(exported(name))
    theirs = [model.translate(line) for line in sources()]
    assert theirs == ours
    assert len(set(theirs)) > 2


@pytest.mark.parametrize("name", ["coverage", "imported"])
def test_the_exported_search_reads_a_line_as_we_do(name):
    """Moses' rules make an ASCII quote of a curly one; a code is a piece of an imported model."""
    loaded = load_model(str(run_of(name)))
    model = ExportedModel(exported(name))
    quoted, code = "“a dog” …", ">>deu<< a dog"
    for line in [quoted, code, " >>deu<<a dog", "a >>deu<< dog", "a\u2581dog"]:
        pieces = model.subwords(line.strip())
        assert [model.ids.get(piece, UNK) for piece in pieces] == loaded.vocabulary.encode(line)
    is_imported = name == "imported"
    assert (model.subwords(code)[0] == ">>deu<<") == is_imported
    assert model.normalize(quoted) == ('"a dog" ...' if is_imported else quoted)
    assert loaded.vocabulary.normalizes_punctuation == is_imported
    if is_imported:
        assert loaded.vocabulary.normalize(quoted) == '"a dog" ...'
        into = load_model(str(run_of(name)), overrides={"decode.to": "deu"}).line_translator()
        model.signature["to"] = ">>deu<<"
        for line in ("a dog", code, " "):
            ids = [model.ids.get(piece, UNK) for piece in model.subwords(line.strip())]
            assert [ids] == [own[:-1].tolist() for own in into.encode([line])]


def test_the_folder_needs_none_of_our_code(tmp_path):
    """Its search runs alone, in another folder, while no module of ours can be imported.

    As for `translate`, only a line feed ends a line, and a byte order mark is not text.
    """
    lines = ["", "A dog\rsleeps."]
    folder = exported("convolutional")
    forbid = "import sys, runpy; sys.modules['transformer_jax'] = None; sys.argv = sys.argv[1:]; "
    run = "runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", forbid + run, str(folder / "search.py")],
        input="\ufeff" + "\n".join(lines) + "\n",
        capture_output=True,
        encoding="utf-8",
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": "", "JAX_PLATFORMS": "cpu"},
    )
    assert done.returncode == 0, done.stderr
    model = ExportedModel(folder)
    assert done.stdout.split("\n") == [*(model.translate(line) for line in lines), ""]


def test_a_translation_is_one_line_whatever_bytes_it_spells(monkeypatch):
    model = ExportedModel(exported("coverage"))
    spelled = [model.pieces["target"].index(piece) for piece in ("<0x0A>", "<0x0D>", "<0x41>")]
    monkeypatch.setattr(model, "search", lambda ids: spelled)
    assert model.translate("A dog sleeps.") == "  A"


def test_the_signature_says_what_the_programs_take():
    folder = exported("coverage")
    signature = json.loads((folder / "signature.json").read_text())
    assert signature["sizes"] == {"source": 24, "target": 32, "beams": 4}
    assert signature["encode"]["arguments"][-2:] == ["int32[rows,24]", "int32[rows]"]
    assert signature["step"]["results"][0].startswith("float32[rows,4,")
    carried = [signature["cache"][n]["shape"] for n in signature["carried"]]
    assert len(carried) == len(signature["cache"]) > 0, "an average decoder writes nothing"
    assert all(shape[0] == 4 for shape in carried)
    with np.load(folder / "weights.npz") as weights:
        assert list(weights) == signature["weights"]
    for name in ("prepare", "encode", "step"):
        assert (folder / f"{name}.mlir").read_bytes().startswith(b"ML\xefR")
    # Of 28 learned positions, a source of 24 leaves its translation 28, not 24 + 8.
    learned = json.loads((exported("convolutional") / "signature.json").read_text())
    assert learned["sizes"] == {"source": 24, "target": 28, "beams": 4}
