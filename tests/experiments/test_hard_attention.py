"""What is measured of a tiny run, and the rules of the verdicts."""

import pytest

from experiments import hard_attention
from experiments.hard_attention import BASE, EXPERIMENT, measured, verdicts
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from tests import tiny_runs as runs
from tests.experiments.rows import SEEDS, by_seed
from transformer_jax.api import load
from transformer_jax.evaluation.alignment import alignment_error_rates
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.text.built_in_corpus import built_in_pairs

ROW = "reinforce"


def test_error_rate_and_likelihood_of_a_run(tmp_path, monkeypatch):
    monkeypatch.setattr(hard_attention, "PAIRS", 6)
    folder = runs.trained_run()
    found = measured(make_jobs(EXPERIMENT, "small", runs=tmp_path)[0]._replace(folder=folder))
    loaded = load(str(folder), max_length=256).loaded
    pairs = built_in_pairs("test", 6)
    parts = loaded.model, loaded.translator.params, loaded.vocabulary
    assert found["error rate"] == pytest.approx(alignment_error_rates(*parts, pairs).mean_N[0])
    lines = loaded.line_translator()
    scores = [next(iter(lines.score([pair.src], [pair.tgt]))) for pair in pairs]
    want = -sum(one.log_prob for one in scores) / sum(one.length for one in scores)
    assert found["nats per subword"] == pytest.approx(want, rel=1e-4)
    assert 3 < want < 9, "400 equally likely subwords have 6"


@pytest.mark.parametrize(
    ("rates", "losses", "nats", "want"),
    [
        ([0.1, 0.11, 0.1], [0.1, 0.0, -0.1], [0.7, 0.71, 0.72], [HOLDS, HOLDS, FAILS]),
        ([0.3, 0.31, 0.3], [2.1, 2.0, 1.9], [0.48, 0.5, 0.49], [FAILS, FAILS, HOLDS]),
        ([0.1, 0.2, 0.3], [-1.0, 1.0, 3.0], [0.5, 0.6, 0.7], [OPEN, OPEN, OPEN]),
        ([0.1], [0.0], [0.1], [NOT_RUN, NOT_RUN, NOT_RUN]),
    ],
)
def test_the_verdicts_on_a_row(rates, losses, nats, want):
    def evidence(rate, nats):
        return {"error rate": rate, "nats per subword": nats}

    found = by_seed(BASE, 3 * [evidence(0.2, 0.6)]) | by_seed(ROW, map(evidence, rates, nats))
    assert verdicts(found, losses, ROW, SEEDS) == want
