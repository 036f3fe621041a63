"""The rules of experiments, each given both verdicts; means and verdicts over seeds."""

import copy
import functools

import pytest

from experiments import agreement, alignment, coverage, hard_attention, monotonic
from experiments.caveats import AS_GOOD
from experiments.judging import (
    FAILS,
    HOLDS,
    NOT_RUN,
    OPEN,
    Column,
    Rule,
    at,
    claims,
    judged,
    means,
    more,
    verdicts,
)
from experiments.monotonic import SAME, VERB
from experiments.windows import NEEDS_REACH
from tests.experiments.rows import by_seed
from tests.tables.test_statistics import line

NEAR, FAR = [0.1, 0.0, -0.1], [3.0, 3.1, 2.9]
ABOVE = functools.partial(judged, limit=0.9, wanted=1)
BELOW = functools.partial(judged, limit=0.9, wanted=-1)


@pytest.mark.parametrize(
    ("rule", "values", "verdict"),
    [
        (ABOVE, [0.95, 0.96, 0.97], HOLDS),
        (BELOW, [0.95, 0.96, 0.97], FAILS),
        (ABOVE, [0.85, 0.99, 0.89], OPEN),
        (ABOVE, [0.95, None], OPEN),
        (ABOVE, [None], NOT_RUN),
        (AS_GOOD, NEAR, HOLDS),
        (AS_GOOD, [-0.5, -0.51, -0.49], HOLDS),  # lower, but by less than a point
        (AS_GOOD, FAR, HOLDS),
        (AS_GOOD, [-one for one in FAR], FAILS),
        (AS_GOOD, [-0.9, -1.0, -1.1], FAILS),  # lower, and not by less than a point
        (AS_GOOD, [-2.0, 2.0, 0.0], OPEN),
        (NEEDS_REACH, NEAR, FAILS),
        (NEEDS_REACH, [-5.0, -9.0, -7.0], FAILS),
        (NEEDS_REACH, [1.0, 5.0, -3.0], OPEN),
        (NEEDS_REACH, [2.0, 2.1, 2.2], HOLDS),
    ],
)
def test_verdicts_are_tests_over_seeds(rule, values, verdict):
    assert rule(values) == verdict


BOTH = {"forward": 0.2, "reverse": 0.4}
TWO = {agreement.RATE: BOTH, agreement.COMMON: 0.3, "bleu": {"forward": 90, "reverse": 80}}
COUNTED = {"dropped": 5.0, "doubled": 2.0, "bleu": 84.0}
GROUPS = {SAME: {"exact": 0.7}, VERB: {"exact": 0.5}}
SOFT = {"error rate": 0.2, "nats per subword": 0.6}
LINKED = {"error rates": {"0": {0: 0.06}}}


@pytest.mark.parametrize(
    ("rule", "base", "keys", "holds", "fails"),
    [
        (agreement.RULES[0], TWO, ("error rate", "forward"), 0.1, 0.3),
        (agreement.RULES[0], TWO, ("error rate", "reverse"), 0.1, 0.5),
        (agreement.RULES[1], TWO, ("error rate of common links",), 0.2, 0.4),
        # A loss in one direction is half a loss in both.
        (agreement.RULES[2], TWO, ("bleu", "forward"), 88.1, 87.9),
        (agreement.RULES[2], TWO, ("bleu", "reverse"), 78.1, 77.9),
        (coverage.RULES[0], COUNTED, ("dropped",), 4.0, 6.0),
        (coverage.RULES[1], COUNTED, ("doubled",), 1.0, 3.0),
        (coverage.RULES[2], COUNTED, ("bleu",), 83.1, 82.9),
        (monotonic.RULES[0], GROUPS, (SAME, "exact"), 0.66, 0.64),
        (monotonic.RULES[1], GROUPS, (SAME, "exact"), 0.71, 0.69),
        (monotonic.RULES[1], GROUPS, (VERB, "exact"), 0.49, 0.51),
        (monotonic.RULES[2], GROUPS, (VERB, "exact"), 0.51, 0.49),
        (alignment.SUFFICES[0], LINKED, ("error rates", "0", 0), 0.079, 0.081),
        (hard_attention.ALIGNS, SOFT, ("error rate",), 0.1, 0.3),
        (hard_attention.LIKELIER, SOFT, ("nats per subword",), 0.5, 0.7),
    ],
    ids=lambda value: value.claim if isinstance(value, Rule) else "",
)
def test_a_rule_looks_at_its_own_number_and_at_its_limit(rule, base, keys, holds, fails):
    def changed(value):
        own = copy.deepcopy(base)
        at(*keys[:-1])(own)[keys[-1]] = value
        return own

    def verdict(*values):
        found = by_seed("base", 3 * [base]) | by_seed("row", map(changed, values))
        return rule._replace(beside=("base",), rows=()).verdict(found, "row")

    noise = 0.0002, 0.0, -0.0002
    assert verdict(*(holds + own for own in noise)) == HOLDS
    assert verdict(*(fails + own for own in noise)) == FAILS
    assert verdict(2 * holds - fails, (holds + fails) / 2, 2 * fails - holds) == OPEN
    assert verdict(holds) == OPEN
    assert verdict() == NOT_RUN


def test_a_table_has_a_line_for_each_row_and_verdicts_on_all_but_the_base():
    found = by_seed("base", [{"a": 1.0}, {"a": 2.0}]) | by_seed("row", [{"a": 5.0}, {"a": 6.01}])
    found["row", 7] = {"a": 30.0}  # the base row has no such seed
    rule = Rule("it is more", more(at("a")), 1, beside=("base",))
    other = Rule("above 1", at("a"), 1, 1.0, rows=("base",))
    table = verdicts([rule, rule._replace(claim="by 9", limit=9.0)], found, ["base", "row"])
    assert table[:2] == (["row", "it is more", "by 9"], [["row", HOLDS, FAILS]])
    table = claims([rule._replace(rows=("row",)), other], found, "+.2f")
    assert table.rows == [["it is more", HOLDS, "+4.00"], ["above 1", OPEN, "+1.50"]]
    columns = [Column("A", at("a"), ".1f"), Column("none", lambda found: None, ".1f")]
    assert means(columns, found, ["row"])[:2] == (["row", "A", "none"], [["row", "13.7", ""]])
    with_bleu = means(columns[:1], {}, ["row", "base"], [line("row", 0, 20.0)])
    assert with_bleu[:2] == (["row", "BLEU", "A"], [["row", "20.0", ""], ["base", "", ""]])
