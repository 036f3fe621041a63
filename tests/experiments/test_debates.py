"""Debates: the text of the control, the tests' source lines, and the verdicts."""

import gzip

from experiments.debates import CONTROL, FLAT, JOINED, SPLITS, verdicts_on, ways, write_text
from experiments.judging import FAILS, HOLDS, NOT_RUN


def test_the_control_has_a_line_of_the_same_text_beside_each(tmp_path):
    for name, _ in SPLITS.values():
        for suffix in ("en", "it", "doc"):
            lines = "".join(f"{suffix} {n}\n" for n in range(40))
            (tmp_path / f"{name}.{suffix}.gz").write_bytes(gzip.compress(lines.encode()))
    write_text(tmp_path / "text", tmp_path)
    for stem in SPLITS:
        own, other = (
            (tmp_path / "text" / f"{stem}.{suffix}").read_text().splitlines()
            for suffix in ("en", "other")
        )
        assert own != other and sorted(own) == sorted(other) and len(own) == 40
    test = dict(ways(["a\tb", "c\t"], ["x", "y"]))
    assert test == {"random": ["a\tx", "c\ty"], "none": ["a\t", "c\t"]}


def test_the_verdicts():
    own = {"no context": [10, 11], JOINED: [12, 13.1], FLAT: [10.5, 11.6], CONTROL: [11, 12.1]}
    other = {JOINED: [9, 10], FLAT: [10.4, 11.5]}
    found = {
        (row, seed): {"own": bleu[seed], "random": other.get(row, bleu)[seed]}
        for row, bleu in own.items()
        for seed in (0, 1)
    }
    assert verdicts_on(found, JOINED) == [HOLDS, HOLDS, HOLDS]
    assert verdicts_on(found, FLAT)[1:] == [FAILS, FAILS]
    assert verdicts_on(found, CONTROL) == [HOLDS, "", ""]
    assert verdicts_on({}, FLAT) == [NOT_RUN, NOT_RUN, NOT_RUN]
