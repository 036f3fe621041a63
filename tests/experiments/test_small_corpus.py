"""Settings for small corpora, judged beside a base."""

from experiments.later_parts import BASE
from experiments.small_corpus import EXPERIMENT
from tests.tables.test_statistics import lines_of
from transformer_jax.tables.results import write_results


def test_a_setting_is_judged_beside_the_base_seed_by_seed(tmp_path):
    lines = lines_of(BASE, [20.0, 21.0, 22.0]) + lines_of("dropout 0.3", [22.0, 23.1, 24.2])
    write_results(tmp_path / "results.csv", lines + lines_of("BPE-dropout 0.1", [19.0]))
    assert EXPERIMENT.findings
    _, table = EXPERIMENT.findings(tmp_path, [])
    found = {row[0]: row[1:] for row in table.rows}
    assert found[BASE] == ["21.0 ± 1.0", "", ""]
    assert found["dropout 0.3"] == ["23.1 ± 1.1", "helps", "+2.1"]
    assert found["BPE-dropout 0.1"][1:] == ["not run", "-1.0"]
    assert found["2,000 subwords"][0] == ""
