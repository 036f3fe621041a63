"""Real text: presets and rows have the paper's sizes, equal parameters, and the rates chosen."""

from pathlib import Path

import pytest

from experiments.real_text import AT_GPU, BASE, BIG, EXPERIMENT, MODERN, configs, findings
from tests.experiments.rows import configs_of
from tests.tables.test_statistics import line
from transformer_jax.config.files import load_config
from transformer_jax.config.presets import rate_at
from transformer_jax.errors import ConfigError
from transformer_jax.reporting.page import Table
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.tables.results import write_results
from transformer_jax.training.cost import parameter_count


@pytest.mark.parametrize("scale", ["en-it", "cores_en-it"])
def test_all_rows_but_big_have_as_many_parameters_as_base(scale):
    sizes = {
        row: parameter_count(config.model, config.vocabulary.size)
        for row, config in configs_of(EXPERIMENT, scale).items()
    }
    assert sizes.pop(BIG, 2.1e8) == pytest.approx(2.14e8, rel=0.02)
    assert sizes == {row: pytest.approx(sizes[BASE], rel=0.01) for row in sizes}


def test_base_and_big_are_the_paper_s_and_the_modern_row_is_the_preset_s():
    rows = configs_of(EXPERIMENT, "en-it")
    for row, size in ((BASE, "base"), (BIG, "big")):
        model = load_config(f"configs/wmt14.py:{size},en-de").model
        of_type = {"dtype": "bfloat16", "residual_dtype": "bfloat16"}
        assert vars(rows[row].model) == {**vars(model), **of_type}
        assert rows[row].train.peak_learning_rate is None
    assert rows[MODERN] == load_config("configs/europarl.py:modern,base", AT_GPU)
    assert rows[MODERN].train.decay_steps == rows[MODERN].train.steps


def test_every_direction_reads_its_own_text_and_scores_newstest2014_where_it_exists():
    for direction, folder in (("it-en", "europarl-en-it"), ("de-en", "mixed-en-de")):
        data = load_config(configs(direction)[BASE]).data
        assert f"{data.src}-{data.tgt}" == direction and Path(str(data.path)).name == folder
        is_news = [Path(stem).name == "newstest2014" for stem in data.test]
        assert any(is_news) == (folder != "europarl-en-it")


def test_a_wrong_word_names_the_choices():
    for word in ("base,big", "en-xx", "en-it,en-it,modern"):
        with pytest.raises(ConfigError, match="one of base, big and one of en-it, it-en and one"):
            load_config(f"configs/europarl.py:{word}")


def test_rates_fall_with_the_root_of_the_width():
    assert (rate_at(0.004, 256), rate_at(0.004, 1024)) == (0.004, 0.002)


def test_each_test_set_has_its_scores(tmp_path):
    lines = []
    for seed, bleu in ((0, 20.0), (1, 22.0)):
        sets = {name: {"bleu": bleu, "paper_bleu": None, "chrf": 50.0} for name in ("a", "../b/c")}
        lines.append(line(BASE, seed, 20.0, sets=sets))
    write_results(tmp_path, lines)
    _, table = findings(tmp_path, make_jobs(EXPERIMENT, "en-it", tmp_path))
    assert isinstance(table, Table)
    assert table.rows == [
        [BASE, "a", "21.0 ± 1.4", "", "50.0"],
        [BASE, "c", "21.0 ± 1.4", "", "50.0"],
    ]
    assert findings(tmp_path / "none", []) == []
