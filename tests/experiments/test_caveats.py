"""Encoders with decoders, and few pairs: verdicts by their rules."""

import pytest

from experiments import caveats, fair_comparison, few_pairs
from experiments.few_pairs import ALL, CHOICES, FEW, RECURRENT, effect_of, losses, name_of
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from tests.experiments.rows import configs_of
from tests.tables.test_statistics import line, lines_of
from transformer_jax.tables.digests import digest_of
from transformer_jax.tables.results import write_results


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
