"""Jumps by hand, and accuracy."""

from pathlib import Path

import pytest

from experiments import windows
from experiments.windows import EXPERIMENT, FARTHEST, accuracy, jumps, name_of, reach
from tests import tiny_runs as runs
from transformer_jax.tables.experiment import make_jobs


def test_jumps_by_hand():
    # The man has a book bought -> Der Mann hat ein Buch gekauft, whose English verb comes third.
    links = [(0, 0), (1, 1), (2, 2), (3, 5), (4, 3), (5, 4), (6, 6)]
    assert jumps(links, 8) == [0, 0, 0, 1, 0, 3, 2, None]
    assert jumps([(1, 0), (4, 0)], 1) == [1], "the nearest source word counts"
    assert jumps([(0, 0), (3, 0), (4, 2)], 3) == [0, None, 0], "and the last one is followed"


def test_the_reach_is_that_of_all_layers():
    assert [reach(*of) for of in ((3, 1), (3, 3), (9, 2), (17, 1))] == [1, 3, 8, 8]


def test_accuracy_is_over_all_words_of_the_jumps():
    counted = [(10, 5), (4, 4), (0, 0)]
    assert accuracy(counted, [0]) == 50 and accuracy(counted, [0, 1]) == pytest.approx(900 / 14)
    assert accuracy(counted, [2]) is None


def counted_as(near, far, limit):
    """Words with each jump, of which these percentages are right up to a limit and beyond."""
    right = [100, *([near] * limit), *([far] * (FARTHEST - limit))]
    return [(100, one) for one in right]


def test_words_out_of_reach_are_compared_with_those_within():
    found = {}
    for seed, (near, far) in enumerate([(80, 50), (81, 52), (79, 49)]):
        found[name_of(3, 2), seed] = counted_as(near, far, reach(3, 2))
        found[name_of(None, 2), seed] = counted_as(90, 88, reach(3, 2))
    excess = windows.excess_losses(found, 3, 2)
    assert excess == pytest.approx([28, 27, 28])
    assert windows.excess_losses(found, 5, 2) == []


@pytest.mark.slow("compiles a run's search")
def test_words_of_a_run_are_counted():
    [job, *_] = make_jobs(EXPERIMENT, "small", Path("runs"), seeds=(0,))
    found = windows.accuracy_by_jump(job._replace(folder=runs.trained_run()))[
        "words and right ones"
    ]
    assert len(found) == FARTHEST + 1 and all(words >= right >= 0 for words, right in found)
    assert found[0][0] > sum(words for words, _ in found[1:]) > 2_000


def test_the_cost_of_a_step_is_shown_in_milliseconds_and_mebibytes(tmp_path, monkeypatch):
    cost = {"256": {"whole sentence": {"seconds": 1.0, "bytes": 2**20}}}
    monkeypatch.setattr(windows, "cost_of_step", lambda: cost)
    *_, table = windows.findings(tmp_path, make_jobs(EXPERIMENT, "small", tmp_path / "runs"))
    assert table.rows == [["256", "1000", "1"]]
