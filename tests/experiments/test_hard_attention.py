"""What is measured of a tiny run, and the rules of the verdicts."""

import pytest

from experiments import hard_attention
from experiments.hard_attention import BASE, EXPERIMENT, measured, verdicts
from experiments.judging import FAILS, HOLDS, NOT_RUN
from tests import tiny_runs as runs
from tests.experiments.rows import by_seed, job_in
from transformer_jax.api import load
from transformer_jax.evaluation.alignment import alignment_error_rates
from transformer_jax.text.built_in_corpus import built_in_pairs


def test_error_rate_and_likelihood_of_a_run(monkeypatch):
    monkeypatch.setattr(hard_attention, "PAIRS", 6)
    folder = runs.trained_run()
    found = measured(job_in(EXPERIMENT, folder))
    loaded = load(str(folder), max_length=256).loaded
    pairs = built_in_pairs("test", 6)
    parts = loaded.model, loaded.translator.params, loaded.vocabulary
    assert found["error rate"] == pytest.approx(alignment_error_rates(*parts, pairs).mean_N[0])
    lines = loaded.line_translator()
    scores = [next(iter(lines.score([pair.src], [pair.tgt]))) for pair in pairs]
    want = -sum(one.log_prob for one in scores) / sum(one.length for one in scores)
    assert found["nats per subword"] == pytest.approx(want, rel=1e-4)
    assert 3 < want < 9, "400 equally likely subwords have 6"


def test_bleu_is_that_of_the_lines_of_results():
    found = by_seed(BASE, 3 * [{"error rate": 0.2, "nats per subword": 0.6}])
    found |= by_seed("gumbel", [{"error rate": 0.1, "nats per subword": 0.7}] * 3)
    for losses, verdict in (([0.1, 0.0, -0.1], HOLDS), ([2.1, 2.0, 1.9], FAILS), ([0.9], NOT_RUN)):
        assert verdicts(found, losses, "gumbel") == [HOLDS, verdict, FAILS]
