"""Parts that came after the paper, and settings for small corpora: the verdicts by their rules."""

from experiments import small_corpus
from experiments.later_parts import BASE
from tests.tables.test_statistics import lines_of
from transformer_jax.tables.results import write_results


def test_a_part_or_a_setting_is_judged_beside_the_base_seed_by_seed(tmp_path):
    lines = lines_of(BASE, [20.0, 21.0, 22.0]) + lines_of("dropout 0.3", [22.0, 23.1, 24.2])
    lines += lines_of("R-Drop 5", [18.0, 19.1, 20.2]) + lines_of("BPE-dropout 0.1", [19.0])
    lines += lines_of("weight decay 0.01", [20.0, 25.0, 18.0])
    write_results(tmp_path, lines)
    _, table = small_corpus.EXPERIMENT.findings(tmp_path, [])
    found = {row[0]: row[1:] for row in table.rows}
    assert found[BASE] == ["21.0 ± 1.0", "", ""]
    assert found["dropout 0.3"] == ["23.1 ± 1.1", "helps", "+2.1"]
    assert found["R-Drop 5"] == ["19.1 ± 1.1", "hurts", "-1.9"]
    assert found["weight decay 0.01"][1] == "not decided"
    assert found["BPE-dropout 0.1"][1:] == ["not run", "-1.0"]
    assert found["2,000 subwords"][0] == ""
