"""The digest of a config: recorded ones are those of rows, and every key that counts changes it."""

import hashlib
import importlib
import json
from pathlib import Path

import pytest

from experiments.fair_comparison import TRIED as FAIR_RATES
from experiments.later_parts import TRIED as LATER_RATES
from experiments.real_text import TRIED as REAL_RATES
from experiments.scores import TRIED
from tests.fixtures.keys import other_value
from transformer_jax.config.changes import with_values
from transformer_jax.config.schema import KEYS, Config
from transformer_jax.tables.digests import COUNTED, digest_of
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.tables.pace import with_paces
from transformer_jax.tables.results import read_results

ROOT = Path(__file__).parents[2]
RECORDED = sorted((ROOT / "docs" / "results").glob("*/*/results.csv"))  # NAME/SCALE
BY_HAND = {
    "train.steps",
    "train.init_from",
    "decode.method",
    "decode.groups",
    "decode.diversity",
    "decode.dtype",
    "decode.weights",
    "decode.temperature",
    "decode.top_k",
    "decode.top_p",
    "decode.seed",
    "decode.samples",
    "decode.utility",
    "decode.beam_size",
    "decode.length_penalty",
    "decode.penalty",
    "decode.coverage_penalty",
    "decode.max_extra_length",
    "decode.banned_subwords",
    "decode.min_length",
    "decode.no_repeat",
    "decode.wait_k",
}
COUNTING = [name for name, key in KEYS.items() if not key.mutable or name in COUNTED]


def jobs_of(folder, monkeypatch, seeds):
    """The jobs of docs/results/NAME/SCALE, by row and seed."""
    monkeypatch.chdir(ROOT)  # experiments name their config files from there
    experiment = importlib.import_module(f"experiments.{folder.parent.name}").EXPERIMENT
    jobs = make_jobs(experiment, folder.name, Path("runs"), seeds=seeds)
    jobs = with_paces(jobs, folder / "pace.csv", experiment.scales[folder.name].minutes)
    return {(job.row, job.seed): job for job in jobs}


@pytest.mark.parametrize("path", RECORDED, ids=lambda path: "-".join(path.parts[-3:-1]))
def test_every_recorded_digest_is_that_of_its_row(path, monkeypatch):
    lines = read_results(path)
    jobs = jobs_of(path.parent, monkeypatch, tuple({line.seed for line in lines}))
    recorded = {(line.row, line.seed): line.config_digest for line in lines}
    assert recorded
    assert {which: digest_of(jobs[which].config()) for which in recorded} == recorded


def test_all_tables_of_runs_have_recorded_digests():
    found = {"-".join(path.parts[-3:-1]) for path in RECORDED}
    assert found == {
        "claims-small",
        "table2_bleu-longer",
        "table2_bleu-small",
        "table3_ablations-small",
        "table3_ablations-converged",
        *(f"scores-rate_{rate}" for rate in TRIED),
        "scores-small",
        "positions-small",
        "positions-multi30k",
        "alignment-small",
        "wait_k-small",
        "agreement-small",
        "gold_alignment-small",
        "copying-small",
        "hard_attention-small",
        "coverage-small",
        "monotonic-small",
        "caveats-small",
        "windows-small",
        "few_pairs-pairs_29000",
        "few_pairs-pairs_5000",
        "small_corpus-small",
        *(f"later_parts-rate_{rate}" for rate in LATER_RATES),
        "later_parts-small",
        *(f"fair_comparison-rate_{rate}" for rate in FAIR_RATES),
        "fair_comparison-budget_1",
        "fair_comparison-budget_3",
        "fair_comparison-budget_9",
        *(f"real_text-cores_rate_{rate}" for rate in REAL_RATES),
        "real_text-cores_en-it",
        "real_text-en-it",
    }


def test_digests_beside_the_claims_evidence_are_those_of_their_rows(monkeypatch):
    from experiments.claims import PROBES

    path = ROOT / "docs" / "results" / "claims" / "small" / "evidence.json"
    evidence = json.loads(path.read_text(encoding="utf-8"))
    jobs = jobs_of(path.parent, monkeypatch, (0,))
    assert evidence
    rows = {probe.name: probe.rows for probe in PROBES}
    for name, entry in evidence.items():
        own = [digest_of(jobs[row, 0].config()) for row in rows[name]]
        assert entry["configs"] == own, name


def test_results_depend_on_these_mutable_keys():
    assert COUNTED == BY_HAND


@pytest.mark.parametrize("name", COUNTING)
def test_every_key_that_results_depend_on_changes_the_digest(name):
    config = Config()
    changed = with_values(config, {name: other_value(name, KEYS[name].default)})
    assert digest_of(changed) != digest_of(config)


@pytest.mark.parametrize("name", [name for name in KEYS if name not in COUNTING])
def test_a_key_that_results_do_not_depend_on_leaves_the_digest(name):
    config = Config()
    changed = with_values(config, {name: other_value(name, KEYS[name].default)})
    assert changed != config
    assert digest_of(changed) == digest_of(config)


def test_a_digest_is_a_hash_of_what_differs_from_the_defaults():
    values = {"seed": 3, "model.d_k": 9, "train.log_every": 7, "data.train": ("train[:5]",)}
    text = b'{"data.train": ["train[:5]"], "model.d_k": 9, "seed": 3}'  # sorted; no log_every
    assert digest_of(with_values(Config(), values)) == hashlib.sha256(text).hexdigest()[:12]
