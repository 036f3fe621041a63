"""Parts that came after the paper, and settings for small corpora: the verdicts by their rules."""

import pytest

from experiments import small_corpus
from experiments.judging import NOT_RUN, OPEN
from experiments.later_parts import BASE, verdict_of
from tests.tables.test_statistics import lines_of
from transformer_jax.tables.results import write_results


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


def test_a_setting_is_judged_beside_the_base_seed_by_seed(tmp_path):
    lines = lines_of(BASE, [20.0, 21.0, 22.0]) + lines_of("dropout 0.3", [22.0, 23.1, 24.2])
    write_results(tmp_path / "results.csv", lines + lines_of("BPE-dropout 0.1", [19.0]))
    _, table = small_corpus.EXPERIMENT.findings(tmp_path, [])
    found = {row[0]: row[1:] for row in table.rows}
    assert found[BASE] == ["21.0 ± 1.0", "", ""]
    assert found["dropout 0.3"] == ["23.1 ± 1.1", "helps", "+2.1"]
    assert found["BPE-dropout 0.1"][1:] == ["not run", "-1.0"]
    assert found["2,000 subwords"][0] == ""
