"""Table 2's scale of the paper's sizes, and the rows that the paper prints."""

from pathlib import Path

from experiments.table2_bleu import EXPERIMENT
from transformer_jax.tables.collect import counts
from transformer_jax.tables.experiment import make_jobs


def test_the_paper_s_scale_is_the_paper_s(in_checkout):
    jobs = {job.row: job for job in make_jobs(EXPERIMENT, "paper", Path("runs"))}
    directions, sizes = ("en-de", "en-fr"), ("base", "big")
    assert list(jobs) == [f"{own}: Transformer ({size})" for own in directions for size in sizes]
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
