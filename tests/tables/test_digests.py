"""The digest of a config: recorded ones never change, and every key that counts changes it."""

import importlib
import json
from pathlib import Path

import pytest

from experiments.fair_comparison import TRIED as FAIR_RATES
from experiments.scores import TRIED
from tests.fixtures.keys import other_value
from transformer_jax.config.changes import with_values
from transformer_jax.config.files import load_config
from transformer_jax.config.schema import KEYS, Config
from transformer_jax.tables.digests import COUNTED, LEFT_OUT, NAMES, RENAMED, digest_of, hashed
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.tables.results import read_results

ROOT = Path(__file__).parents[2]
RECORDED = sorted((ROOT / "docs" / "results").glob("*/*/results.csv"))  # NAME/SCALE
BY_HAND = {
    "train.steps",
    "decode.beam_size",
    "decode.length_penalty",
    "decode.penalty",
    "decode.coverage_penalty",
    "decode.max_extra_length",
    "decode.banned_subwords",
    "decode.wait_k",
}
COUNTING = [name for name, key in KEYS.items() if not key.mutable or name in COUNTED]


def jobs_of(folder, monkeypatch, seeds):
    """The jobs of docs/results/NAME/SCALE, by row and seed."""
    monkeypatch.chdir(ROOT)  # experiments name their config files from there
    experiment = importlib.import_module(f"experiments.{folder.parent.name}").EXPERIMENT
    jobs = make_jobs(experiment, folder.name, Path("runs"), seeds=seeds)
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
        *(f"scores-rate_{rate}" for rate in TRIED),
        "scores-small",
        "positions-small",
        "alignment-small",
        "wait_k-small",
        "agreement-small",
        "copying-small",
        "hard_attention-small",
        "coverage-small",
        "monotonic-small",
        "caveats-small",
        "windows-small",
        "few_pairs-pairs_5000",
        *(f"fair_comparison-rate_{rate}" for rate in FAIR_RATES),
        "fair_comparison-budget_1",
        "fair_comparison-budget_3",
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
    [*_, default] = hashed(config).items()
    changed = with_values(config, {name: other_value(name, KEYS[name].default)})
    assert digest_of(changed) != digest_of(config)
    assert default == ("seed", 0)  # a later key would follow the old ones, and none does


@pytest.mark.parametrize("name", [name for name in KEYS if name not in COUNTING])
def test_a_key_that_results_do_not_depend_on_leaves_the_digest(name):
    config = Config()
    changed = with_values(config, {name: other_value(name, KEYS[name].default)})
    assert changed != config
    assert digest_of(changed) == digest_of(config)


def test_a_later_key_is_hashed_after_the_older_ones_where_it_is_not_its_default():
    values = {"model.window": 5, "model.num_encoder_layers": 2, "decode.coverage_penalty": 0.2}
    found = hashed(with_values(Config(), values))
    later = [name for name in found if name not in NAMES]
    assert later == [name for name in KEYS if name in values]  # the order of the schema
    assert list(found)[-3:] == later
    assert {name: found[name] for name in later} == values


def test_values_that_old_keys_had_are_hashed_under_their_names_and_others_under_new_names():
    def differs(**values):
        own = hashed(with_values(Config(), values))
        base = hashed(Config())
        return {name: value for name, value in own.items() if base.get(name) != value}

    kinds = {"model.encoder": "recurrent", "model.decoder": "recurrent"}
    assert differs(**kinds) == {"model.kind": "recurrent"}
    assert differs(**{"model.score": "dot"}) == {"model.scale_attention": False}
    assert differs(**{"model.d_hidden": 9}) == {"model.d_hidden": 9}
    one = {"model.encoder": "recurrent"}
    assert differs(**one) == one
    other = {"model.decoder": "recurrent"}
    assert differs(**other) == other
    assert differs(**{"model.score": "additive"}) == {"model.score": "additive"}
    both = [with_values(Config(), values) for values in ({}, kinds, one, other)]
    assert len({digest_of(config) for config in both}) == 4


def test_the_order_and_the_places_of_old_names_are_those_of_the_first_digests():
    # Of the JSON that the code hashed before the keys were renamed.
    assert digest_of(load_config(str(ROOT / "configs" / "demo.py"))) == "cee3a135060c"
    values = {"model.encoder": "recurrent", "model.decoder": "recurrent", "model.score": "dot"}
    found = list(hashed(with_values(Config(), values | {"model.d_hidden": 9})))
    assert found == list(NAMES)


def test_old_names_mean_what_they_meant():
    assert {name: KEYS[name].default for name in LEFT_OUT if name in KEYS} == {
        "model.d_hidden": None
    }
    for name, renamed in RENAMED.items():
        assert name not in KEYS
        defaults = tuple(KEYS[key].default for key in renamed.keys)
        assert renamed.values[defaults] == LEFT_OUT[name]
