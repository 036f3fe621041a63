"""Settings for small corpora: rows that change what they name, and a base that was run before."""

from pathlib import Path

from experiments import few_pairs
from experiments.later_parts import BASE
from experiments.small_corpus import EXPERIMENT, ROWS, SETTINGS
from tests.tables.test_statistics import line
from transformer_jax.config.schema import KEYS, value_at
from transformer_jax.tables.digests import digest_of
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.tables.results import write_results


def configs(experiment, scale, rows):
    jobs = make_jobs(experiment, scale, Path("runs"), rows, seeds=(1,))
    return {job.row: job.config() for job in jobs}


def test_the_base_is_a_row_of_few_pairs_and_each_row_changes_what_it_says():
    own = configs(EXPERIMENT, "small", tuple(ROWS))
    same = few_pairs.name_of("pre", "layer", False)
    [there] = configs(few_pairs.EXPERIMENT, few_pairs.FEW, (same,)).values()
    assert digest_of(own[BASE]) == digest_of(there)
    for row, config in own.items():
        changed = {k for k in KEYS if value_at(config, k) != value_at(own[BASE], k)}
        assert changed == SETTINGS[row].keys()


def test_a_setting_is_judged_beside_the_base_seed_by_seed(tmp_path):
    bleu = {BASE: [20.0, 21.0, 22.0], "dropout 0.3": [22.0, 23.1, 24.2], "BPE-dropout 0.1": [19.0]}
    lines = [line(row, n, value) for row, own in bleu.items() for n, value in enumerate(own, 1)]
    write_results(tmp_path / "results.csv", lines)
    assert EXPERIMENT.findings
    _, table = EXPERIMENT.findings(tmp_path, [])
    found = {row[0]: row[1:] for row in table.rows}
    assert found[BASE] == ["21.0 ± 1.0", "", ""]
    assert found["dropout 0.3"] == ["23.1 ± 1.1", "helps", "+2.1"]
    assert found["BPE-dropout 0.1"][1:] == ["not run", "-1.0"]
    assert found["2,000 subwords"][0] == ""
