"""One stack beside two: their sizes, and the verdicts."""

import pytest

from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from experiments.one_stack import CAUSAL, CHEAP, EXPERIMENT, PREFIX, TWO, verdicts_on
from tests.experiments.rows import configs_of
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import parameter_count


@pytest.mark.parametrize("scale", ["small", "multi30k"])
def test_one_stack_has_the_parameters_of_two(scale):
    configs = configs_of(EXPERIMENT, scale)
    counts = {row: parameter_count(make_model(x.model, 3_000)) for row, x in configs.items()}
    assert abs(counts[PREFIX] - counts[TWO]) < 0.01 * counts[TWO]
    assert counts[PREFIX] == counts[CAUSAL] > counts[CHEAP]


def test_the_verdicts():
    bleu = {TWO: [90, 91], PREFIX: [89.8, 90.9], CAUSAL: [85, 86], CHEAP: [80, 95]}
    wrong = {TWO: [1, 1.1], PREFIX: [1, 1.1], CAUSAL: [40, 41], CHEAP: [1, 60]}
    found = {
        (row, seed): {"bleu": bleu[row][seed], "wrong": wrong[row][seed]}
        for row in bleu
        for seed in (0, 1)
    }
    assert verdicts_on(found, TWO) == ["", "", HOLDS]
    assert verdicts_on(found, PREFIX) == [HOLDS, HOLDS, HOLDS]
    assert verdicts_on(found, CAUSAL) == [FAILS, "", FAILS]
    assert verdicts_on(found, CHEAP) == [OPEN, "", OPEN]
    assert verdicts_on({}, PREFIX) == [NOT_RUN, NOT_RUN, NOT_RUN]
