"""configs/wmt14.py: the paper's recipe, and a shrunken run on a TFDS data set of that form."""

import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests import tiny_runs as runs
from tests.text.tfds_fixture import write_wmt14_like
from transformer_jax.config.files import load_config
from transformer_jax.config.schema import value_at

PRESET = str(Path(__file__).parent.parent / "configs" / "wmt14.py")

# Vaswani et al. 2017: sections 5.1, 5.3, 5.4, 6.1 and table 3.
EVERYWHERE = {
    "model.num_layers": 6,
    "model.d_k": None,
    "model.d_v": None,
    "model.norm": "post",
    "model.positions": "sinusoidal",
    "model.tie_embeddings": True,
    "data.source": "tfds",
    "train.tokens_per_batch": 25_000,
    "train.label_smoothing": 0.1,
    "train.schedule": "rsqrt",
    "train.peak_learning_rate": None,
    "train.warmup_steps": 4_000,
    "train.adam_b1": 0.9,
    "train.adam_b2": 0.98,
    "train.adam_epsilon": 1e-9,
    "train.clip_norm": None,
    "decode.beam_size": 4,
    "decode.length_penalty": 0.6,
    "decode.max_extra_length": 50,
}
BASE = {
    "model.d_model": 512,
    "model.d_ff": 2_048,
    "model.num_heads": 8,
    "model.dropout": 0.1,
    "train.steps": 100_000,
    "train.checkpoint_every": 1_400,
}
BIG = {
    "model.d_model": 1_024,
    "model.d_ff": 4_096,
    "model.num_heads": 16,
    "train.steps": 300_000,
    "train.checkpoint_every": 600,
}
DE = {"data.name": "wmt14_translate/de-en", "data.tgt": "de", "vocabulary.size": 37_000}
FR = {"data.name": "wmt14_translate/fr-en", "data.tgt": "fr", "vocabulary.size": 32_000}
ARGUMENTS = {
    "base,en-de": BASE | DE,
    "base,en-fr": BASE | FR,
    "big,en-de": BIG | DE | {"model.dropout": 0.3},
    "big,en-fr": BIG | FR | {"model.dropout": 0.1},
}


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_the_recipe_is_the_paper_s(argument):
    config = load_config(f"{PRESET}:{argument}")
    want = EVERYWHERE | ARGUMENTS[argument] | {"data.src": "en"}
    assert {name: value_at(config, name) for name in want} == want
    to_average = 5 if argument.startswith("base") else 20
    assert config.train.keep_last >= to_average


@pytest.mark.slow("trains on a TFDS data set")
def test_a_shrunken_one_trains_on_tfds_and_translates(tmp_path, capsys, monkeypatch):
    corpus = runs.tiny_corpus()
    splits = {"train": "train", "validation": "valid", "test": "test"}
    pairs = {}
    for split, stem in splits.items():
        german, english = (runs.read_lines(corpus / f"{stem}.{side}") for side in ("de", "en"))
        pairs[split] = list(zip(german, english, strict=True))
    write_wmt14_like(tmp_path / "tfds", pairs)
    keys = {
        "data.path": tmp_path / "tfds",
        **{name: value for name, value in runs.TINY.items() if "learning_rate" not in name},
        "model.norm": "post",
        "train.steps": 6,
        "train.warmup_steps": 4,
    }
    overrides = [f"--config.{name}={value}" for name, value in keys.items()]
    workdir = f"--workdir={tmp_path / 'run'}"
    assert runs.command("train", f"--config={PRESET}:base,en-de", workdir, *overrides) == 0
    first, *_, last = [r for r in runs.metrics(tmp_path / "run") if r["kind"] == "train"]
    assert last["nats_per_token"] < first["nats_per_token"] < 8

    source = "\n".join(english[:3]).encode() + b"\n"
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(source)))
    capsys.readouterr()
    assert runs.command("translate", workdir, "--beam_size=1") == 0
    assert capsys.readouterr().out.count("\n") == 3
    assert runs.command("evaluate", workdir, "--beam_size=1", "--split=validation") == 0
    [hypotheses] = (tmp_path / "run" / "evaluations").glob("validation.6.beam1.*.txt")
    assert len(runs.read_lines(hypotheses)) == runs.SIZES["valid"]
