"""The digest of a config: recorded ones are those of rows, and every key that counts changes it."""

import hashlib
import importlib
from pathlib import Path

import pytest

from tests.fixtures.cases import other_value
from transformer_jax.config.changes import with_values
from transformer_jax.config.schema import KEYS, Config
from transformer_jax.tables.digests import COUNTED, digest_of
from transformer_jax.tables.experiment import check_rows, make_jobs
from transformer_jax.tables.pace import with_paces
from transformer_jax.tables.results import read_answers, read_results

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
RECORDED = sorted(RESULTS.glob("*/*/results.jsonl"))  # NAME/SCALE
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
    lines = read_results(path.parent)
    jobs = jobs_of(path.parent, monkeypatch, tuple({line.seed for line in lines}))
    check_rows(list(jobs.values()))
    recorded = {(line.row, line.seed): line.config_digest for line in lines}
    assert recorded
    assert {which: jobs[which].digest() for which in recorded} == recorded


def test_every_table_of_runs_has_recorded_digests():
    tables = {path.parent for path in RESULTS.glob("*/*/table.md") if path.parent.name != "paper"}
    assert tables == {path.parent for path in RECORDED}
    assert len(tables) > 30


def test_digests_beside_the_claims_evidence_are_those_of_their_rows(monkeypatch):
    from experiments.claims import PROBES

    folder = RESULTS / "claims" / "small"
    evidence = read_answers(folder)
    jobs = jobs_of(folder, monkeypatch, (0,))
    assert evidence
    rows = {probe.name: probe.rows for probe in PROBES}
    for name, entry in evidence.items():
        own = [digest_of(jobs[row, 0].config()) for row in rows[name]]
        assert entry.configs == own, name


def test_results_depend_on_search_but_for_its_batches_and_on_the_number_of_steps():
    search = {name for name in KEYS if name.startswith("decode.")}
    assert search - COUNTED == {"decode.max_length", "decode.tokens_per_batch"}
    assert COUNTED - search == {"train.steps", "train.init_from", "train.teacher"}


@pytest.mark.parametrize("name", KEYS)
def test_a_key_changes_the_digest_if_results_depend_on_it(name):
    config = Config()
    changed = with_values(config, {name: other_value(name, KEYS[name].default)})
    assert changed != config
    assert (digest_of(changed) != digest_of(config)) == (name in COUNTING)


def test_a_digest_is_a_hash_of_what_differs_from_the_defaults():
    values = {"seed": 3, "model.d_k": 9, "train.log_every": 7, "data.train": ("train[:5]",)}
    text = b'{"data.train": ["train[:5]"], "model.d_k": 9, "seed": 3}'  # sorted; no log_every
    assert digest_of(with_values(Config(), values)) == hashlib.sha256(text).hexdigest()[:12]
