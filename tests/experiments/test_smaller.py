"""Smaller models: the verdicts, on what was measured, and the size on disk."""

from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from experiments.smaller import (
    BLEU,
    FURTHER_ALONE,
    INT8,
    LARGE,
    NARROW,
    PRUNED,
    RATE,
    SIZE,
    STUDENT,
    TRAINED,
    megabytes,
    verdicts_on,
)


def test_the_verdicts():
    numbers = {
        LARGE: {
            TRAINED: (33, 100),
            INT8: (32.9, 100),
            NARROW: (33, 130),
            FURTHER_ALONE: (35, 100),
            PRUNED: (34, 120),
        },
        STUDENT: {TRAINED: (30, 300), INT8: (29.8, 290)},
    }
    found = {
        (row, seed): {
            way: {BLEU: bleu + 0.1 * seed, RATE: rate + seed, SIZE: 8.0}
            for way, (bleu, rate) in ways.items()
        }
        for row, ways in numbers.items()
        for seed in (0, 1)
    }
    assert verdicts_on(found, LARGE, INT8) == [HOLDS, OPEN]
    assert verdicts_on(found, LARGE, NARROW) == [HOLDS, HOLDS]
    assert verdicts_on(found, LARGE, PRUNED) == [FAILS, HOLDS]
    assert verdicts_on(found, STUDENT, TRAINED) == [FAILS, HOLDS]
    assert verdicts_on(found, STUDENT, INT8) == [HOLDS, FAILS]
    assert verdicts_on({}, STUDENT, INT8) == [NOT_RUN, NOT_RUN]


def test_the_weights_of_the_newest_checkpoint_count(tmp_path):
    for step, part, size in ((9, "params", 7), (10, "int8", 2_000), (10, "optimizer", 100)):
        file = tmp_path / "checkpoints" / str(step) / part / "d" / "part"
        file.parent.mkdir(parents=True)
        file.write_bytes(bytes(size))
    (tmp_path / "checkpoints" / "10.sha256.json").write_text("{}")
    assert megabytes(tmp_path) == 0.002
