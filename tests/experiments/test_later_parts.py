"""Parts that came after the paper: the verdicts by their rules."""

import pytest

from experiments.judging import NOT_RUN, OPEN
from experiments.later_parts import BASE, EXPERIMENT, verdict_of
from tests.experiments.rows import configs_of
from tests.tables.test_statistics import lines_of
from transformer_jax.tables.results import counts


@pytest.mark.parametrize(
    ("own", "verdict"),
    [
        ([85.0, 86.1, 87.2], "helps"),
        ([81.0, 82.1, 83.2], "hurts"),
        ([83.0, 88.0, 81.0], OPEN),
        ([85.0], NOT_RUN),
    ],
)
def test_a_part_is_judged_beside_the_base_seed_by_seed(own, verdict):
    lines = lines_of(BASE, [83.0, 84.0, 85.0]) + lines_of("RMSNorm", own)
    assert verdict_of(lines, "RMSNorm")[0] == verdict


def test_swiglu_has_the_size_of_the_base():
    configs = configs_of(EXPERIMENT, rows=(BASE, "SwiGLU"))
    base, gated = (counts(config)[0] for config in configs.values())
    assert gated == pytest.approx(base, rel=2e-3)
