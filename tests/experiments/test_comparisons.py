"""Architectures and settings compared by BLEU: sizes of their rows, and verdicts by their rules."""

import re
from pathlib import Path

import pytest

from experiments import (
    caveats,
    fair_comparison,
    few_pairs,
    later_parts,
    rates,
    real_text,
    small_corpus,
    table2_bleu,
    table3_ablations,
)
from experiments.fair_comparison import BUDGETS, HYBRID, POST, PRE
from experiments.few_pairs import ALL, CHOICES, FEW, RECURRENT, effect_of, losses, name_of
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from experiments.real_text import BIG, MODERN
from tests.experiments.rows import configs_of
from tests.tables.test_statistics import line, lines_of
from transformer_jax.config.files import load_config
from transformer_jax.config.presets import rate_at
from transformer_jax.errors import ConfigError
from transformer_jax.reporting.page import Table
from transformer_jax.tables.collect import counts
from transformer_jax.tables.digests import digest_of
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.tables.results import write_results
from transformer_jax.training.cost import parameter_count

# Table 2 -----------------------------------------------------------------------------------------


def test_table_2_s_scale_of_the_paper_is_the_paper_s(in_checkout):
    jobs = {job.row: job for job in make_jobs(table2_bleu.EXPERIMENT, "paper", Path("runs"))}
    directions, sizes = ("en-de", "en-fr"), ("base", "big")
    assert list(jobs) == [f"{own}: Transformer ({size})" for own in directions for size in sizes]
    big = jobs["en-fr: Transformer (big)"]
    config = big.config()
    assert (config.data.tgt, config.model.d_model, config.model.dropout) == ("fr", 1_024, 0.1)
    assert (config.train.steps, big.average) == (300_000, 20)
    assert jobs["en-de: Transformer (base)"].average == 5
    # Counted from matrix products: below the paper's estimates from time, 3.3e18 and 2.3e19.
    assert 0.9e18 < counts(jobs["en-de: Transformer (base)"].config())[1] < 3.3e18
    assert 0.9e19 < counts(config)[1] < 2.3e19


def test_table_2_has_every_row_of_the_paper():
    assert len(table2_bleu.EXPERIMENT.shown("paper")) == 17
    gnmt = table2_bleu.EXPERIMENT.paper["en-fr: GNMT + RL"]
    assert gnmt == {"paper_bleu": 39.92, "training_flops": 1.4e20}


# Table 3 -----------------------------------------------------------------------------------------

KEYS = {"d_model": "d_model", "d_ff": "d_ff", "d_k": "d_k", "head": "num_heads"}
KEYS |= {"layer": "num_layers", "dropout": "dropout"}


def sizes_in(label: str) -> dict[str, float]:
    """What a label says of the model, such as d_k 16 or 2 layers."""
    before = re.findall(r"(d_\w+|dropout) ([\d.]+)", label)
    behind = [(name, number) for number, name in re.findall(r"(\d+) (head|layer)s?\b", label)]
    return {KEYS[name]: float(number) for name, number in before + behind}


def test_a_label_of_table_3_has_the_sizes_of_the_row_s_config(in_checkout):
    for scale, sizes in {"paper": 21, "small": 21, "converged": 21}.items():
        label = table3_ablations.EXPERIMENT.scales[scale].label
        labeled = 0
        for job in make_jobs(table3_ablations.EXPERIMENT, scale, Path("runs")):
            model = job.config().model
            d_k = model.d_k or model.d_model // model.num_heads
            for name, size in sizes_in(label(job.row)).items():
                assert size == (d_k if name == "d_k" else getattr(model, name)), label(job.row)
                labeled += 1
        assert labeled == sizes
    label = table3_ablations.EXPERIMENT.scales["small"].label
    labels = [label(row) for row in table3_ablations.EXPERIMENT.rows]
    assert "(C) 1 layer" in labels and len(set(labels)) == len(labels)


# Real text ---------------------------------------------------------------------------------------


OF_BIG = pytest.approx(2.14e8, rel=0.02)


@pytest.mark.parametrize(("scale", "of_big"), [("en-it", OF_BIG), ("cores_en-it", None)])
def test_all_rows_but_big_have_as_many_parameters_as_base(scale, of_big):
    sizes = {
        row: parameter_count(config.model, config.vocabulary.size)
        for row, config in configs_of(real_text.EXPERIMENT, scale).items()
    }
    assert sizes.pop(BIG, None) == of_big
    assert sizes == {row: pytest.approx(sizes[real_text.BASE], rel=0.01) for row in sizes}


def test_base_and_big_are_the_paper_s_and_the_modern_row_is_the_preset_s():
    rows = configs_of(real_text.EXPERIMENT, "en-it")
    for row, size in ((real_text.BASE, "base"), (BIG, "big")):
        model = load_config(f"configs/wmt14.py:{size},en-de").model
        of_type = {"dtype": "bfloat16", "residual_dtype": "bfloat16"}
        assert vars(rows[row].model) == {**vars(model), **of_type}
        assert rows[row].train.peak_learning_rate is None
    assert rows[MODERN] == load_config("configs/europarl.py:modern,base", real_text.AT_GPU)
    assert rows[MODERN].train.decay_steps == rows[MODERN].train.steps


def test_every_direction_reads_its_own_text_and_scores_newstest2014_where_it_exists():
    for direction, folder in (("it-en", "europarl-en-it"), ("de-en", "mixed-en-de")):
        data = load_config(real_text.configs(direction)[real_text.BASE]).data
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
        lines.append(line(real_text.BASE, seed, 20.0, sets=sets))
    write_results(tmp_path, lines)
    _, table = real_text.findings(tmp_path, make_jobs(real_text.EXPERIMENT, "en-it", tmp_path))
    assert isinstance(table, Table)
    assert table.rows == [
        [real_text.BASE, "a", "21.0 ± 1.4", "", "50.0"],
        [real_text.BASE, "c", "21.0 ± 1.4", "", "50.0"],
    ]
    assert real_text.findings(tmp_path / "none", []) == []


# A fair comparison -------------------------------------------------------------------------------


def lines_of_sides(**bleu):
    """Lines of rows; the first row of each side has the lowest perplexity."""
    rows = {"pre": PRE, "post": POST, "recurrent": "recurrent", "hybrid": HYBRID}
    return [
        line(rows[name], seed, value, perplexity=5.0 + n, parameters=2, training_flops=1e13)
        for n, (name, values) in enumerate(bleu.items())
        for seed, value in enumerate(values)
    ]


def test_budgets_use_other_seeds_than_tuning():
    def seeds(experiment, scale):
        return {job.seed for job in make_jobs(experiment, scale, Path("runs"))}

    own = [seeds(fair_comparison.EXPERIMENT, f"budget_{times}") for times in BUDGETS]
    assert own == [{1, 2, 3}, {1, 2}, {1}]
    assert seeds(rates.EXPERIMENT, "fair_comparison") == {0}


def test_the_better_transformer_is_compared_with_the_best_other():
    lines = lines_of_sides(pre=(33, 34), post=(35, 36), hybrid=(30, 30), recurrent=(40, 40))
    assert fair_comparison.gaps_of(lines) == (PRE, HYBRID, [3, 4])


def test_one_seed_is_judged_by_the_deviation_of_another_budget():
    lines = lines_of_sides(pre=(35,), recurrent=(30,))
    assert fair_comparison.verdict_of(lines)[0] == OPEN
    assert fair_comparison.verdict_of(lines, spread=(2.0, 2.3))[0] == HOLDS
    assert fair_comparison.verdict_of(lines, spread=(2.0, 6.0))[0] == OPEN
    # Three differences with a deviation of 1 judge another one by t = 4.303, 2 degrees of freedom.
    for gap, verdict in ((1.1 * 4.303, HOLDS), (0.9 * 4.303, OPEN)):
        one = lines_of_sides(pre=(30 + gap,), recurrent=(30,))
        assert fair_comparison.verdict_of(one, spread=(3.0, 4.0, 5.0))[0] == verdict


def test_the_findings_read_every_budget(tmp_path):
    for times, values, better in ((1, (33, 34, 35.1), 4), (3, (36, 37.1), -4)):
        lines = lines_of_sides(pre=values, recurrent=[round(one) - better for one in values])
        (tmp_path / f"budget_{times}").mkdir()
        write_results(tmp_path / f"budget_{times}", lines)
    parts = fair_comparison.findings(tmp_path / "budget_1", [])
    assert [row[1] for row in parts[1].rows] == [HOLDS, FAILS, NOT_RUN]
    assert (tmp_path / "budget_1" / "budgets.png").stat().st_size > 5_000


# Encoders with decoders, and few pairs -----------------------------------------------------------


@pytest.mark.parametrize(
    ("mine", "others", "verdict"),
    [([9, 10], [11, 12], HOLDS), ([9, 11.5], [11, 12], OPEN), ([13], [11, 12], FAILS)],
)
def test_slower_is_slower_in_every_seed(mine, others, verdict):
    assert caveats.slower(mine, others) == verdict
    assert caveats.slower([], others) == caveats.slower(mine, []) == NOT_RUN


def test_the_effect_of_a_norm_is_its_mean_over_the_other_choices():
    worth = {"pre": 4.0, "scale": -1.0, True: 0.5}
    lines = []
    for choice in CHOICES:
        bleu = 10 + sum(worth.get(part, 0.0) for part in choice)
        lines += lines_of(name_of(*choice), [bleu + 0.1, bleu + 0.2], first=1)
    assert effect_of(lines, 0, "pre") == pytest.approx([4.0, 4.0])
    assert effect_of(lines, 1, "scale") == pytest.approx([-1.0, -1.0])
    assert effect_of(lines, 2, True) == pytest.approx([0.5, 0.5])
    assert effect_of([one for one in lines if one[:2] != (name_of(*CHOICES[0]), 1)], 2, True) == (
        pytest.approx([0.5])
    )
    assert effect_of(lines[2:], 0, "pre") == []
    empty = [one._replace(bleu=0.0) if one.seed == 1 else one for one in lines[:4]] + lines[4:]
    assert effect_of(empty, 2, True) == pytest.approx([0.5])  # two rows without BLEU at seed 1


def test_a_transformer_is_hard_on_few_pairs_if_it_loses_more(tmp_path):
    base = name_of("post", "layer", False)
    for name, own, other in ((FEW, 10.0, 20.0), (ALL, 30.0, 25.0)):
        lines = lines_of(base, [own + seed for seed in (1, 2, 3)], first=1)
        lines += lines_of(RECURRENT, [other + seed**2 / 9 for seed in (1, 2, 3)], first=1)
        (tmp_path / name).mkdir()
        write_results(tmp_path / name, lines)
    _, verdicts, _, table = few_pairs.findings(tmp_path / FEW)
    assert verdicts.rows[0][1:] == [HOLDS, "+15.0"]
    assert table.rows[0][1:] == ["12.0 ± 1.0", "32.0 ± 1.0", "+20.0"]
    assert losses(lines, lines, base) == {1: 0.0, 2: 0.0, 3: 0.0}


def test_runs_of_the_fair_comparison_are_read_not_run_again(tmp_path):
    every = few_pairs.EXPERIMENT._replace(scales={ALL: few_pairs.scale_of()})
    there = configs_of(fair_comparison.EXPERIMENT, "budget_1", seed=1)
    here = {digest_of(config): row for row, config in configs_of(every, ALL, seed=1).items()}
    shared = {row: here.get(digest_of(config)) for row, config in there.items()}
    assert {one: other for one, other in shared.items() if other} == few_pairs.SAME
    results = tmp_path / "fair_comparison" / "budget_1"
    results.mkdir(parents=True)
    write_results(results, [line(row, 1, 20.0) for row in fair_comparison.ROWS])
    *_, table = few_pairs.findings(tmp_path / "few_pairs" / FEW)
    assert [row[2] for row in table.rows if row[0] in few_pairs.SAME.values()] == ["20.0"] * 3
    assert [row[2] for row in table.rows if row[0] not in few_pairs.SAME.values()] == [""] * 6


# Later parts, and a small corpus -----------------------------------------------------------------


def test_a_part_or_a_setting_is_judged_beside_the_base_seed_by_seed(tmp_path):
    lines = lines_of(later_parts.BASE, [20.0, 21.0, 22.0])
    lines += lines_of("dropout 0.3", [22.0, 23.1, 24.2]) + lines_of("R-Drop 5", [18.0, 19.1, 20.2])
    lines += lines_of("BPE-dropout 0.1", [19.0]) + lines_of("weight decay 0.01", [20.0, 25.0, 18.0])
    write_results(tmp_path, lines)
    _, table = small_corpus.EXPERIMENT.findings(tmp_path, [])
    found = {row[0]: row[1:] for row in table.rows}
    assert found[later_parts.BASE] == ["21.0 ± 1.0", "", ""]
    assert found["dropout 0.3"] == ["23.1 ± 1.1", "helps", "+2.1"]
    assert found["R-Drop 5"] == ["19.1 ± 1.1", "hurts", "-1.9"]
    assert found["weight decay 0.01"][1] == "not decided"
    assert found["BPE-dropout 0.1"][1:] == ["not decided", "-1.0"]
    assert found["2,000 subwords"][0] == ""
