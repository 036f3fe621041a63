"""Settings for small corpora: rows that change what they name, and a base that was run before."""

from experiments import few_pairs
from experiments.later_parts import BASE
from experiments.small_corpus import EXPERIMENT, SETTINGS
from tests.experiments.rows import configs_of, differing
from tests.tables.test_statistics import lines_of
from transformer_jax.tables.digests import digest_of
from transformer_jax.tables.results import write_results


def test_the_base_is_a_row_of_few_pairs_and_each_row_changes_what_it_says():
    own = configs_of(EXPERIMENT)
    same = few_pairs.name_of("pre", "layer", False)
    [there] = configs_of(few_pairs.EXPERIMENT, few_pairs.FEW, (same,)).values()
    assert digest_of(own[BASE]) == digest_of(there)
    for row, config in own.items():
        assert differing(config, own[BASE]) == SETTINGS[row].keys()


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
