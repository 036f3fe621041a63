"""What holds for every experiment: its page without runs, its comparisons and rates; sweeps."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest

from experiments import (
    caveats,
    coverage,
    fair_comparison,
    few_pairs,
    later_parts,
    one_stack,
    rates,
    real_text,
    scores,
    sweep,
    table2_bleu,
)
from experiments.claims.lengths import ALL_LENGTHS
from experiments.judging import NOT_RUN
from experiments.sweep import make_sweep
from tests.experiments.rows import configs_of
from tests.tables.test_statistics import line
from transformer_jax.config.files import load_config, override_texts
from transformer_jax.config.schema import KEYS, value_at
from transformer_jax.errors import ConfigError
from transformer_jax.reporting.page import Table, markdown_table
from transformer_jax.tables import command
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.tables.report import Output
from transformer_jax.tables.results import read_results, write_results

RECORDED = Path(__file__).parents[2] / "docs" / "results"

VERDICTS = {"agreement": 3, "alignment": 5, "at_once": 4, "back_translation": 5, "caveats": 5}
VERDICTS |= {"bleu_objective": 3, "copying": 5, "coverage": 5, "debates": 3, "distillation": 5}
VERDICTS |= {"documents": 7, "explanations": 7, "fair_comparison": 3, "few_pairs": 4}
VERDICTS |= {"hard_attention": 3, "languages": 4, "monotonic": 3, "no_parallel_text": 3}
VERDICTS |= {"one_stack": 4, "several_sources": 5}
VERDICTS |= {"digit_grids": 3, "pictures": 2, "pruning": 18, "recurring_names": 3}
VERDICTS |= {"smaller": 11, "speech": 4, "stereotypes": 17}
VERDICTS |= {"positions": 10, "small_corpus": 9, "wait_k": 8, "windows": 7}  # rows of verdicts
NOT_JUDGED = {"positions": [ALL_LENGTHS], "small_corpus": [later_parts.BASE]}
OTHER_ROWS = {"coverage": [coverage.PENALTY]}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_page_without_runs_has_every_row_and_no_verdict(name, tmp_path, monkeypatch):
    monkeypatch.setattr("experiments.windows.cost_of_step", dict)  # it takes minutes
    experiment = importlib.import_module(f"experiments.{name}").EXPERIMENT
    scale = "small" if "small" in experiment.scales else [*experiment.scales][-1]
    jobs = make_jobs(experiment, scale, tmp_path / "runs")
    parts = experiment.findings(tmp_path / name / scale, jobs)
    verdicts, *others = [part.rows for part in parts if isinstance(part, Table)]
    assert len(verdicts) == VERDICTS[name]
    assert [row[0] for row in verdicts if NOT_RUN not in row] == NOT_JUDGED.get(name, [])
    cells = [cell for row in verdicts for cell in row[1:] if not cell.isdigit()]
    assert {*cells} <= {NOT_RUN, ""}
    shown = {row[0] for table in (verdicts, *others) for row in table}
    assert shown >= {*experiment.rows, *OTHER_ROWS.get(name, [])}


OTHERS = ("claims", "gold_alignment", "later_parts", "rates", "real_text", "scores")
FINDINGS = sorted(
    file.parent.relative_to(RECORDED)
    for file in RECORDED.glob("*/*/results.jsonl")
    if file.parent.parent.name in {*VERDICTS, *OTHERS}
)


@pytest.mark.parametrize("table", FINDINGS, ids=str)
def test_the_recorded_page_has_the_verdicts_of_the_recorded_results(table, tmp_path):
    """So a rule that changes its sign, limit or row is seen, wherever the record tells."""
    name, scale = table.parts
    for other in {*RECORDED.iterdir()} - {RECORDED / name}:  # which a page may read too
        (tmp_path / other.name).symlink_to(other)
    shutil.copytree(RECORDED / name, tmp_path / name)
    experiment = importlib.import_module(f"experiments.{name}").EXPERIMENT
    values = {"scale": scale, "overrides": {}, "minutes": experiment.scales[scale].minutes}
    output = Output(tmp_path / table)
    jobs = command._table(experiment, values, output, tmp_path / "runs")
    page = (RECORDED / table / "table.md").read_text(encoding="utf-8")
    tables = [one for one in experiment.findings(output.folder, jobs) if isinstance(one, Table)]
    assert tables
    for one in tables:
        assert markdown_table(one.head, one.rows) in page


BUDGET = {"train.steps", "train.peak_learning_rate", "train.remat"}  # remat is speed


@pytest.mark.parametrize(
    ("experiment", "scale", "may_differ"),
    [
        (fair_comparison.EXPERIMENT, "budget_1", BUDGET),
        (table2_bleu.EXPERIMENT, "small", {*BUDGET, "train.clip_norm"}),
        (few_pairs.EXPERIMENT, few_pairs.FEW, BUDGET),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_contenders_differ_in_the_model_and_these_keys_alone(
    experiment, scale, may_differ, in_checkout
):
    first, *others = configs_of(experiment, scale).values()
    for config in others:
        keys = {name for name in KEYS if value_at(config, name) != value_at(first, name)}
        assert {name for name in keys if not name.startswith("model.")} <= may_differ
        assert config.model.dropout == first.model.dropout


OF_EQUAL_FLOPS = ("Transformer, pre-norm", "recurrent, equal FLOPs")
LARGER_OR_SMALLER = {"transformer to average"}
LARGER_OR_SMALLER |= {f"{caveats.BASE}, {change}" for change in ("2 + 1 layers", "1 head of keys")}


@pytest.mark.parametrize(
    ("table", "base", "rows", "parameters", "flops"),
    [
        ("fair_comparison/budget_1", fair_comparison.POST, fair_comparison.ROWS, 0.01, 0.002),
        ("table2_bleu/small", "Transformer", OF_EQUAL_FLOPS, 0.01, 0.002),
        ("later_parts/small", later_parts.BASE, ["SwiGLU"], 0.002, 0.002),
        ("caveats/small", caveats.BASE, caveats.ROWS.keys() - LARGER_OR_SMALLER, 0.06, 0.08),
    ],
)
def test_contenders_have_as_many_parameters_and_training_flops(
    table, base, rows, parameters, flops
):
    """By the recorded results, whose configs are those of the rows (tables/test_digests.py)."""
    recorded = {line.row: line for line in read_results(RECORDED / table)}
    size, cost = recorded[base].parameters, recorded[base].training_flops
    for row in rows:
        assert recorded[row].parameters == pytest.approx(size, rel=parameters), row
        assert recorded[row].training_flops == pytest.approx(cost, rel=flops), row


@pytest.mark.parametrize(
    ("experiment", "scale", "taken"),
    [
        (fair_comparison.EXPERIMENT, "budget_1", fair_comparison.RATES),
        (later_parts.EXPERIMENT, "small", later_parts.RATES),
        (one_stack.EXPERIMENT, "small", one_stack.RATES),
        (real_text.EXPERIMENT, "cores_en-it", real_text.RATES_OF_CORES),
        (scores.EXPERIMENT, "small", scores.RATES),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_a_row_has_the_rate_with_the_lowest_recorded_perplexity(experiment, scale, taken):
    for row, config in configs_of(experiment, scale).items():
        assert config.train.peak_learning_rate == taken[row], row
    trials = rates.TRIALS[experiment.name]
    tried = rates.perplexities(RECORDED / "rates" / experiment.name, trials)
    whole = {row: own for row, own in tried.items() if len(own) == len(trials.rates)}
    assert len(whole) > 1
    assert {row: rates.best_of(own) for row, own in whole.items()}.items() <= taken.items()


def test_trials_are_shown_by_rate_wherever_their_results_are(tmp_path):
    trials = rates.TRIALS["one_stack"]
    jobs = make_jobs(rates.EXPERIMENT, "one_stack", tmp_path)
    lines = [line(f"causal at {rate}", 0, 1.0, perplexity=1 / rate) for rate in trials.rates[:2]]
    write_results(tmp_path, lines)
    _, table = rates.findings(tmp_path, jobs)
    assert table.head == ["row", "0.002", "0.004", "0.008", "0.016", "best"]
    found = {row[0]: row[1:] for row in table.rows}
    assert found["causal"] == ["500.00", "250.00", "", "", "0.004"]
    assert found["prefix"] == [""] * 5 and len(found) == 4


# A sweep from the command line -------------------------------------------------------------------

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
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--config.train.steps=5", "--minutes=1"])
    with pytest.raises(ConfigError, match="train.steps changes nothing: each row gets 1 minutes"):
        sweep.main()
    folder = f"--workdir={tmp_path}/sweep/demo_num_heads/num_heads=4/seed-3"
    assert folder in lines[4] and "--config.model.num_heads=4" in lines[4]
    assert lines[5].endswith(f"evaluate {folder} --split=valid")
