"""A sweep from the command line: its rows, its folder, and what it refuses."""

import sys
from pathlib import Path

import pytest

from experiments import sweep
from experiments.sweep import make_sweep
from transformer_jax.config.files import load_config, override_texts
from transformer_jax.errors import ConfigError
from transformer_jax.tables.experiment import make_jobs

PRESET = "configs/demo.py"


def swept(*arguments: str, split: str = "test"):
    return make_sweep(PRESET, override_texts(arguments)[1], split)


def test_a_sweep_has_a_row_per_combination_and_the_rest_applies_to_all(in_checkout):
    experiment = swept(
        "--config.model.num_heads=2,4",
        "--config.model.d_k=none,8",
        "--config.train.steps=50",
        "--config.train.log_every=7",
    )
    assert experiment.rows == {
        "num_heads=2, d_k=none": {"model.num_heads": 2, "model.d_k": None},
        "num_heads=2, d_k=8": {"model.num_heads": 2, "model.d_k": 8},
        "num_heads=4, d_k=none": {"model.num_heads": 4, "model.d_k": None},
        "num_heads=4, d_k=8": {"model.num_heads": 4, "model.d_k": 8},
    }
    (name,) = experiment.scales
    assert name == "demo_num_heads_d_k_steps=50"
    jobs = make_jobs(experiment, name, Path("runs"), seeds=(0, 1))
    assert [job.seed for job in jobs] == [0] * 4 + [1] * 4
    assert {job.config().train.steps for job in jobs} == {50}
    assert jobs[0].config() == load_config(
        PRESET, {"model.num_heads": 2, "train.steps": 50, "train.log_every": 7}
    )


def test_long_names_of_folders_are_cut_and_stay_different(in_checkout):
    def name(steps: int) -> str:
        keys = ["model.num_heads=2,4", "data.pairs=30000", "vocabulary.size=900"]
        keys += ["train.tokens_per_batch=900", "model.d_model=64", f"train.warmup_steps={steps}"]
        keys += ["train.peak_learning_rate=0.003"]
        return next(iter(swept(*(f"--config.{key}" for key in keys)).scales))

    assert len(name(7)) == len(name(8)) == 100 and name(7) != name(8)


def test_keys_of_one_last_name_keep_their_sections(in_checkout):
    experiment = swept("--config.data.max_length=32,48", "--config.decode.max_length=32,48")
    assert list(experiment.rows)[1] == "data.max_length=32, decode.max_length=48"


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--config.model.num_heads=4", "no key has several values"),
        ("--config.data.train=a,b", "data.train is itself a list"),
        ("--config.data.src=de,fr", "data.src is itself a list"),
        (f"--config.train.steps={','.join(map(str, range(1, 1_002)))}", "1001 rows is too long"),
        ("--config.seed=0,1", "the seeds of a sweep are --seeds=0,1"),
        ("--config.train.adam_b1=0.9,0.90", "a value is there twice"),
        ("--config.model.num_heads=4,many", "--config.model.num_heads=many: expected int"),
        ("--config.model.num_heads=4,3", "not divisible by model.num_heads=3"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_any_run(argument, words, in_checkout):
    with pytest.raises(ConfigError, match=words):
        swept(argument)


def test_a_sweep_has_the_flags_of_every_experiment(in_checkout, monkeypatch, capsys, tmp_path):
    flags = [f"--config={PRESET}", "--config.model.num_heads=2,4", "--seeds=3", "--print"]
    folders = [f"--runs={tmp_path}", f"--out={tmp_path}/out", "--split=valid"]
    monkeypatch.setattr(sys, "argv", ["sweep", *flags, *folders])
    sweep.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[::3] == ["# num_heads=2, seed 3", "# num_heads=4, seed 3"]
    folder = f"--workdir={tmp_path}/sweep/demo_num_heads/num_heads=4/seed-3"
    assert folder in lines[4] and "--config.model.num_heads=4" in lines[4]
    assert lines[5].endswith(f"evaluate {folder} --split=valid")
