"""The comparison of table 2 is fair: which settings of its rows are equal."""

from pathlib import Path

import pytest

from experiments.table2_bleu import EXPERIMENT
from transformer_jax.config.schema import KEYS, value_at
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.tables.results import counts

OWN = {"train.steps", "train.peak_learning_rate", "train.clip_norm", "train.remat"}


@pytest.fixture
def small(in_checkout):
    jobs = make_jobs(EXPERIMENT, "small", Path("runs"))
    return {job.row: job.config() for job in jobs}


def test_both_kinds_have_as_many_parameters_and_one_row_as_many_flops(small):
    transformer, recurrent = small["Transformer"], small["recurrent, equal FLOPs"]
    (parameters, flops), (others, its) = counts(transformer), counts(recurrent)
    assert counts(small["Transformer, pre-norm"])[0] == pytest.approx(parameters, rel=0.01)
    assert others == pytest.approx(parameters, rel=0.01)
    assert its == pytest.approx(flops, rel=0.002)


def test_rows_differ_in_the_model_its_learning_rate_and_the_number_of_steps_alone(small):
    first = small["Transformer"]
    for config in small.values():
        differ = {name for name in KEYS if value_at(config, name) != value_at(first, name)}
        assert {name for name in differ if not name.startswith("model.")} <= OWN


def test_the_longer_scale_has_three_times_the_steps_and_nothing_else(small, in_checkout):
    longer = {job.row: job.config() for job in make_jobs(EXPERIMENT, "longer", Path("runs"))}
    assert list(longer) == [*EXPERIMENT.shown("longer")] and len(longer) == 3
    for row, config in longer.items():
        differ = {name for name in KEYS if value_at(config, name) != value_at(small[row], name)}
        assert differ == {"train.steps"} and config.train.steps == 3 * small[row].train.steps


def test_the_paper_s_scale_is_the_paper_s(in_checkout):
    jobs = {job.row: job for job in make_jobs(EXPERIMENT, "paper", Path("runs"))}
    assert list(jobs) == [
        "en-de: Transformer (base)",
        "en-de: Transformer (big)",
        "en-fr: Transformer (base)",
        "en-fr: Transformer (big)",
    ]
    big = jobs["en-fr: Transformer (big)"]
    config = big.config()
    assert (config.data.tgt, config.model.d_model, config.model.dropout) == ("fr", 1_024, 0.1)
    assert (config.train.steps, big.average) == (300_000, 20)
    assert jobs["en-de: Transformer (base)"].average == 5
    # Counted from matrix products: below the paper's estimates from time, 3.3e18 and 2.3e19.
    assert 0.9e18 < counts(jobs["en-de: Transformer (base)"].config())[1] < 3.3e18
    assert 0.9e19 < counts(config)[1] < 2.3e19


def test_the_table_has_every_row_of_the_paper():
    assert len(EXPERIMENT.shown("paper")) == 17
    assert EXPERIMENT.paper["en-fr: GNMT + RL"] == {"paper_bleu": 39.92, "training_flops": 1.4e20}
