"""The evidence for verdicts; every rule can give either verdict."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from experiments import claims
from experiments.claims import averaging, headline, one_head, smoothing, warm_up, word_order
from experiments.claims.averaging import AVERAGED, RSQRT
from experiments.claims.judging import REFERENCE, Finding, Known, Recorded, on_grammar
from experiments.claims.lengths import bleu_by_length
from experiments.claims.linear_shifts import shift_matrix, shifts_of_positions
from experiments.claims.one_head import LARGE_KEYS, ONE_HEAD
from experiments.claims.saturation import _entropy, _ideal
from experiments.claims.scaling_in_training import NOT_SCALED, SMALL_KEYS, helps_more
from experiments.claims.smoothing import NO_SMOOTHING, UNSMOOTHED
from experiments.claims.word_order import NO_POSITIONS
from experiments.evidence import answers
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN, of_two
from tests.tables.test_statistics import line, lines_of, with_p
from tests.tiny_runs import command, train
from transformer_jax.errors import RunError
from transformer_jax.tables.digests import digest_of
from transformer_jax.tables.experiment import Job, Scale, make_jobs
from transformer_jax.tables.results import FILE, Answer, read_answers, write_answers
from transformer_jax.tables.statistics import exceeds_seeds


def angles(position, d_model):
    """PE(position), float64, by its equation."""
    return np.array(
        [
            (np.cos if n % 2 else np.sin)(position / 10_000 ** ((n - n % 2) / d_model))
            for n in range(d_model)
        ]
    )


@pytest.mark.parametrize("offset", [1, 7, 1_000])
def test_one_matrix_shifts_every_position(offset):
    matrix = shift_matrix(offset, 10)
    for position in (0, 3, 250):
        want = angles(position + offset, 10)
        np.testing.assert_allclose(matrix @ angles(position, 10), want, atol=1e-12)
    np.testing.assert_allclose(matrix @ matrix.T, np.eye(10), atol=1e-12)


def test_random_vectors_have_no_such_matrix():
    for errors in shifts_of_positions(d_model=64).values():
        assert errors["sinusoids"] < 1e-6 and errors["random"] > 0.5


def test_entropy_of_the_softmax_falls_with_d_k_unless_scores_are_scaled():
    assert _entropy(np.full((2, 8), 1 / 8)) == pytest.approx(math.log(8))
    assert _entropy(np.eye(4)) == 0
    few, many = (_ideal(d_k, "dot") for d_k in (4, 256))
    assert many["entropy"] < few["entropy"] / 4 and many["gradient"] < 0.6 * few["gradient"]
    few, many = (_ideal(d_k, "scaled_dot") for d_k in (4, 256))
    assert many["entropy"] == pytest.approx(few["entropy"], rel=0.05)


def test_rows_of_the_built_in_corpus_that_are_compared_have_three_seeds():
    seeds_of = claims.EXPERIMENT.scales["small"].seeds_of
    compared = {REFERENCE, UNSMOOTHED, LARGE_KEYS, SMALL_KEYS, RSQRT, AVERAGED}
    compared |= {keys + NOT_SCALED for keys in (LARGE_KEYS, SMALL_KEYS)}
    assert {row for row in claims.ROWS if seeds_of(row) == (0, 1, 2)} == compared
    assert {seeds_of(row) for row in claims.ROWS if row not in compared} == {(0,)}
    jobs = make_jobs(claims.EXPERIMENT, "small", Path("runs"))
    assert {job.row: job.average for job in jobs if job.average} == {AVERAGED: 5}


MANY, SINGLE = "Multi30k, 8 heads, not scaled", "Multi30k, 1 head, not scaled"
BASES = lines_of("base", (20.0, 20.4, 20.2))
OTHERS = [line(f"(A) {n} heads", 0, 19.0 + n / 10) for n in (4, 8, 16)]


def table_3(*lines, p=None):
    """Table 3 with its base row and these lines, with these p-values of BLEU."""
    of_bleu = {key: {"bleu": value} for key, value in (p or {}).items()}
    return Recorded(with_p([*BASES, *lines], of_bleu), "base")


def findings(claim, **results):
    """What a claim's module finds if these results are known and all others are missing."""
    table_2, none = Recorded((), "Transformer"), Recorded((), "base")
    nothing = Known(Path("none"), (), {}, table_2, table_2, none, {})
    return claim.findings(nothing._replace(**results))


def verdicts(claim, **results):
    return [finding.verdict for finding in findings(claim, **results)]


def test_a_mean_over_seeds_counts_by_student_s_t():
    # Of three values with mean 1 and deviation s, t = 3 ** 0.5 / s, and 4.303 is needed.
    just, not_quite = 3**0.5 / 4.31, 3**0.5 / 4.30
    assert exceeds_seeds([1 - just, 1, 1 + just])
    assert not exceeds_seeds([1 - not_quite, 1, 1 + not_quite])
    # Of one value, with the deviation of another row: 4.303 x 2 ** 0.5 x 0.2 = 1.217.
    spread = of_two([20.0, 20.4, 20.2])
    assert exceeds_seeds([-1.22], spread) and not exceeds_seeds([1.21], spread)
    assert not exceeds_seeds([100.0]) and not exceeds_seeds([100.0], [20.0])
    # Of two rows: ((1 + 1 + 4 + 4) / 2) ** 0.5 x 4.303 = 9.62; each row's mean takes a degree.
    rows = [0.0, 2.0], [10.0, 14.0], [3.0]
    assert exceeds_seeds([9.63], *rows) and not exceeds_seeds([9.61], *rows)


@pytest.mark.parametrize(
    ("p_values", "certain"),
    [
        ({}, False),
        ({("other", 0): 0.001}, False),
        ({("a", 0): 0.04}, True),
        # Their means are 0.31 and 0.044.
        ({("a", n): p for n, p in enumerate((0.001, 0.04, 0.9))}, True),
        ({("a", n): p for n, p in enumerate((0.001, 0.06, 0.07))}, False),
    ],
    ids=["missing", "of another row", "one", "median below", "median above"],
)
def test_a_difference_in_bleu_counts_by_the_median_of_its_p_values(p_values, certain):
    lines = [line("a", one.seed, one.bleu + 5, 1.0) for one in BASES]
    lines += [line("other", one.seed, one.bleu + 5) for one in BASES]
    recorded = table_3(*lines, p=p_values)

    def judged(metric):
        return recorded.judge("a", metric, 1, recorded.spread(metric))

    assert judged("bleu") == (HOLDS if certain else OPEN)
    assert judged("perplexity") == FAILS, "the bootstrap is of BLEU alone"


@pytest.mark.parametrize(
    ("bleu", "p", "wanted"),
    [
        (17.0, 0.001, HOLDS),
        (25.0, 0.001, FAILS),
        (17.0, 0.2, OPEN),
        (19.4, 0.001, OPEN),
        (20.5, 0.001, OPEN),
    ],
    ids=["far below", "far above", "by chance", "within the seeds", "above within the seeds"],
)
def test_one_head_is_judged_by_chance_and_by_seeds(bleu, p, wanted):
    known = table_3(*OTHERS, line(ONE_HEAD, 0, bleu), p={(ONE_HEAD, 0): p})
    assert verdicts(one_head, table_3=known) == [wanted]


def test_one_head_above_the_base_row_but_not_the_best_decides_nothing():
    lines = [*OTHERS, line("(A) 32 heads", 0, 30.0), line(ONE_HEAD, 0, 25.0)]
    known = table_3(*lines, p={(ONE_HEAD, 0): 0.001})
    assert verdicts(one_head, table_3=known) == [OPEN]
    assert verdicts(one_head, table_3=table_3()) == [NOT_RUN]


def test_smoothing_is_judged_in_two_ways():
    lines = [line("base", seed, 20.0 + seed / 10, 5.0 + seed / 10) for seed in range(3)]
    lines += [line(NO_SMOOTHING, seed, 19.0, 4.0) for seed in range(3)]
    lines = [one._replace(p={"bleu": 0.01}) for one in lines]
    assert verdicts(smoothing, table_3=Recorded(lines, "base")) == [HOLDS, HOLDS]
    lines = [one._replace(bleu=40 - one.bleu, perplexity=9 - one.perplexity) for one in lines]
    assert verdicts(smoothing, table_3=Recorded(lines, "base")) == [FAILS, FAILS]


def test_averaging_is_judged_seed_by_seed():
    means = lines_of("Transformer", (21.0, 21.5, 21.3))
    whole, one = (Recorded(lines, "Transformer") for lines in (means, means[:1]))
    [finding] = findings(averaging, table_3=table_3(), table_2=whole)
    assert finding.verdict == HOLDS and "+1.00, +1.10, +1.10 BLEU" in finding.because
    assert verdicts(averaging, table_3=table_3(), table_2=one) == [OPEN]
    others = Recorded([line._replace(perplexity=9.9) for line in means], "Transformer")
    assert verdicts(averaging, table_3=table_3(), table_2=others) == [NOT_RUN]  # other trainings
    for bleu, wanted in ((83.0, HOLDS), (79.0, FAILS), (80.1, OPEN)):
        lines = lines_of(RSQRT, (80.0, 80.2, 80.4)) + lines_of(AVERAGED, 3 * [bleu])
        assert verdicts(averaging, table_3=table_3(), table_2=one, lines=lines) == [wanted]


def test_warm_up_is_judged_by_perplexity():
    values = {"post-norm, warm-up": 50.0, "post-norm, no warm-up": 440.0}
    values |= {"pre-norm, warm-up": 4.0, "pre-norm, no warm-up": 4.1}

    def judged(**changes):
        lines = [line(row, 0, 1.0, value) for row, value in {**values, **changes}.items()]
        evidence = {"frequencies": {"perplexity": 450.0}}
        return verdicts(warm_up, lines=lines, evidence=evidence)

    assert judged() == [HOLDS, HOLDS]
    assert judged(**{"post-norm, no warm-up": 51.0, "pre-norm, no warm-up": 430.0}) == [FAILS] * 2
    assert judged(**{"post-norm, warm-up": 430.0}) == [OPEN, HOLDS]
    assert verdicts(warm_up) == [NOT_RUN] * 2


def test_scaling_in_training_compares_both_sizes_of_heads():
    for few, many, wanted in (
        (15.0, 5.0, [HOLDS, HOLDS]),
        (15.0, 12.0, [HOLDS, OPEN]),  # -5.0 and -5.0
        (15.0, 16.9, [OPEN, FAILS]),  # -5.0 and -0.1
        (26.0, 23.0, [FAILS, OPEN]),
    ):
        lines = [line(MANY, 0, few), line(SINGLE, 0, many)]
        known = table_3(line(ONE_HEAD, 0, 17.0))
        assert verdicts(claims.scaling_in_training, table_3=known, lines=lines) == wanted


SURELY_LOWER, SURELY_HIGHER = (82.0, 83.1, 84.0), (86.0, 87.1, 88.0)  # than 84, 85, 86


def here(row, values):
    """Lines of the built-in corpus for a row and the reference, one value for each seed."""
    both = (REFERENCE, (84.0, 85.0, 86.0)[: len(values)]), (row, values)
    return [line(name, n, one, one) for name, own in both for n, one in enumerate(own)]


@pytest.mark.parametrize("before", [HOLDS, FAILS, OPEN])
@pytest.mark.parametrize(
    ("values", "decided"),
    [(SURELY_LOWER, HOLDS), (SURELY_HIGHER, FAILS), ((80.0, 85.0, 89.0), OPEN), ((1.0,), OPEN)],
    ids=["lower", "higher", "by chance", "one seed"],
)
def test_the_built_in_corpus_decides_what_multi30k_leaves_open(values, decided, before):
    asked = "a row", "bleu", -1
    finding = on_grammar(Finding("a", "b", before, "this"), here("a row", values), *asked)
    assert finding.verdict == (decided if before == OPEN else before)
    assert finding.because.startswith("this; on the built-in corpus BLEU ")
    assert ("this decides" in finding.because) == (before == OPEN and decided != OPEN)
    assert f"({len(values)} seeds; " in finding.because
    unknown = Finding("a", "b", OPEN, "this")
    assert on_grammar(unknown, here("another row", values), *asked) == unknown


def test_rows_are_compared_over_the_seeds_that_all_of_them_have():
    most = [*here("a row", SURELY_LOWER), line(REFERENCE, 9, 0.0)]
    finding = on_grammar(Finding("a", "b", OPEN, "this"), most, "a row", "bleu", -1)
    assert 'BLEU 83.03 in the row "a row", 85.00 in "reference" (3 seeds' in finding.because


def test_one_head_better_than_four_on_the_built_in_corpus_decides_nothing():
    known = table_3(*OTHERS, line(ONE_HEAD, 0, 20.0))
    for values, wanted in ((SURELY_LOWER, HOLDS), (SURELY_HIGHER, OPEN)):
        assert verdicts(one_head, table_3=known, lines=here(LARGE_KEYS, values)) == [wanted]


def test_smoothing_is_judged_on_the_built_in_corpus_too():
    known = table_3(line(NO_SMOOTHING, 0, 20.3))
    for values, wanted in ((SURELY_LOWER, HOLDS), (SURELY_HIGHER, FAILS)):
        found = findings(smoothing, table_3=known, lines=here(UNSMOOTHED, values))
        assert [finding.verdict for finding in found] == [wanted, wanted]
        perplexity, bleu = (finding.because for finding in found)
        assert "perplexity (per subword) " in perplexity and " BLEU " in bleu


@pytest.mark.parametrize(
    ("few", "many", "wanted"),
    [
        ((-1.0, -1.1, -0.9), (-9.0, -9.3, -9.2), HOLDS),
        ((-9.0, -9.3, -9.2), (-1.0, -1.1, -0.9), FAILS),
        ((-9.0, -1.0, -4.0), (-5.0, -6.0, -5.5), OPEN),
        ((2.0, 2.1, 2.2), (0.5, 0.6, 0.4), OPEN),
        ((), (), OPEN),
    ],
    ids=["more", "less", "by chance", "helps neither", "no seed"],
)
def test_scaling_helps_more_for_large_keys_only_where_it_helps(few, many, wanted):
    assert helps_more(few, many) == wanted


def test_one_seed_s_difference_of_differences_has_twice_the_variance():
    spread = of_two([20.0, 20.4, 20.2])  # 4.303 x 2 x 0.2 = 1.721
    assert helps_more([0.0], [-1.73], spread) == HOLDS
    assert helps_more([0.0], [-1.71], spread) == OPEN


def test_scaling_is_judged_on_the_built_in_corpus_too():
    lines = [line(MANY, 0, 15.0), line(SINGLE, 0, 12.0)]
    for keys, drops in ((SMALL_KEYS, (1.0, 1.5, 1.2)), (LARGE_KEYS, (9.0, 8.0, 9.5))):
        lines += lines_of(keys, 3 * [80.0])
        lines += lines_of(keys + NOT_SCALED, [80 - drop for drop in drops])
    known = table_3(line(ONE_HEAD, 0, 17.0))
    _, finding = findings(claims.scaling_in_training, table_3=known, lines=lines)
    assert finding.verdict == HOLDS
    assert "-1.2 with one head of d_k 8, -8.8 with one of d_k 128 (3 seeds" in finding.because


@pytest.mark.parametrize(
    ("bleu", "p", "seconds", "wanted"),
    [
        (17.0, 0.001, 90.0, [HOLDS, HOLDS]),
        (25.0, 0.001, 90.0, [FAILS, FAILS]),
        (25.0, 0.2, 90.0, [OPEN, OPEN]),
        (25.0, 0.001, 120.0, [FAILS, OPEN]),
    ],
    ids=["below", "above", "by chance", "times that are not equal"],
)
def test_the_headline_is_judged_at_equal_cost(bleu, p, seconds, wanted):
    rows = "recurrent, equal FLOPs", "recurrent, equal time"
    lines = [line("Transformer", 0, 20.0)]
    lines += [line(row, 0, bleu, train_seconds=seconds) for row in rows]
    lines = [one._replace(p={"bleu": p}) for one in lines]
    longer = [one._replace(bleu=40 - one.bleu) for one in lines]
    table_2, three_times = (Recorded(own, "Transformer") for own in (lines, longer))
    found = verdicts(headline, table_2=table_2, longer=three_times, table_3=table_3())
    at_flops, at_time = wanted
    assert found == [at_flops, {HOLDS: FAILS, FAILS: HOLDS, OPEN: OPEN}[at_flops], at_time]
    found = verdicts(headline, table_2=table_2, table_3=table_3())
    assert found == [at_flops, NOT_RUN, at_time]


def test_probes_are_judged_by_their_numbers():
    for same, diagonal, wanted in ((1.0, 0.41, HOLDS), (0.5, 0.15, FAILS)):
        rows = {REFERENCE: {"same": 0.02, "exact": 0.9, "order": 0.01}}
        rows[NO_POSITIONS] = {"same": same, "exact": 0.4, "order": 0.2}
        rates = {"heads": [[0.3, 0.4], [0.1, 0.5]], "mean": [0.35, 0.2], "diagonal": diagonal}
        evidence = {"word order": rows, "alignment": {**rates, "least": 0.06, "pairs": 9}}
        assert verdicts(word_order, evidence=evidence) == [wanted]
        assert verdicts(claims.alignments, evidence=evidence) == [wanted]


@pytest.mark.parametrize(
    ("sinusoidal", "learned", "wanted"),
    [
        ((85, 84), (25, 30), [HOLDS, HOLDS]),
        ((30, 45), (90, 79), [FAILS, FAILS]),
        ((60, 85), (60, 25), [OPEN, OPEN]),
    ],
)
def test_extrapolation_is_judged_by_the_runs_of_positions(sinusoidal, learned, wanted):
    positions = {}
    for row, beyond in (
        ("sinusoidal", sinusoidal),
        ("learned", learned),
        ("relative, keys only", (1, 2)),
        ("all lengths", (95, 96)),
    ):
        for seed, bleu in enumerate(beyond):
            bins = [97.0, 90, 80 + seed, 70, bleu]
            positions[f"{row}, seed {seed}"] = {"sentences": [5, 3, 2, 1], row: bins}
    judged = findings(claims.lengths, positions=positions)
    assert [finding.verdict for finding in judged] == wanted
    beyond = f"{sum(sinusoidal) / 2:.1f}"
    assert f"BLEU {beyond}, where training on all lengths gives 95.5" in judged[0].because
    [table] = judged[0].parts
    assert table.rows[2] == ["17 to 20", "2", "80.5", "80.5", "80.5"]
    assert table.rows[-1][:4] == ["all above 12", "6", "95.5", beyond]
    assert verdicts(claims.lengths) == [NOT_RUN] * 2


def test_measurements_are_judged_at_the_largest_d_k_and_by_the_worst_offset(tmp_path):
    def of(entropy, gradient):
        return dict.fromkeys(("ideal", "block"), {"entropy": entropy, "gradient": gradient})

    scaled = of(4.0, 0.5)
    for entropy, gradient, error, wanted in (
        (0.79, 0.049, 9e-7, HOLDS),  # below 20 % of 4 and 10 % of 0.5
        (0.81, 0.051, 2e-6, FAILS),
    ):
        largest = {"scaled": scaled, "not scaled": of(entropy, gradient)}
        errors = {"sinusoids": 1e-8, "random": 0.9}
        evidence = {
            "scaling at the start": {"64": dict.fromkeys(largest, scaled), "512": largest},
            "shifts of positions": {"1": {**errors, "sinusoids": error}, "2": errors},
        }
        found = verdicts(claims.saturation, folder=tmp_path, evidence=evidence)
        assert found + verdicts(claims.linear_shifts, evidence=evidence) == [wanted] * 3


@pytest.mark.slow("draws every page")
def test_the_page_shows_which_claims_were_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "RECORDED", tmp_path)
    few = [one for one in claims.PROBES if not one.rows]
    monkeypatch.setattr(claims, "PROBES", few)
    monkeypatch.setattr("experiments.claims.saturation.KEYS_SIZES", (64, 512))
    jobs = make_jobs(claims.EXPERIMENT, "small", tmp_path / "runs")
    parts = claims.findings(tmp_path, jobs)
    verdicts = parts[1].rows
    assert len(verdicts) == 18
    assert [row[2] for row in verdicts].count(NOT_RUN) == 15
    assert (tmp_path / "scaling.png").exists()
    before = (tmp_path / FILE).read_text()
    monkeypatch.setattr("experiments.claims.saturation._ideal", None)  # what is known is not asked
    claims.findings(tmp_path, jobs)
    assert (tmp_path / FILE).read_text() == before


def test_evidence_of_other_runs_is_refused_and_kept(tmp_path):
    scale = Scale(write_empty(tmp_path))
    job = Job("claims", "a", 0, scale, {"data.source": "grammar", "seed": 0}, tmp_path / "gone")
    write_answers(tmp_path, [Answer("order", [digest_of(job.config())], {"same": 1.0})])
    assert answers(tmp_path, {"order": ([job], word_order.word_order)}) == {"order": {"same": 1.0}}
    other = job._replace(overrides={**job.overrides, "model.num_layers": 5})
    with pytest.raises(RunError, match="'order' was recorded of runs with another config"):
        answers(tmp_path, {"order": ([other], word_order.word_order)})
    assert read_answers(tmp_path)["order"].found == {"same": 1.0}


@pytest.mark.slow("compiles models")
def test_without_positions_a_shuffled_source_is_the_same_source(tmp_path):
    folder = tmp_path / "run"
    assert train(folder, model__positions="none", train__steps=12, train__checkpoint_every=12) == 0
    assert command("evaluate", f"--workdir={folder}", "--split=test") == 0
    overrides = json.loads((folder / "config.json").read_text())
    sections = {a: inner for a, inner in overrides.items() if a != "seed"}
    flat = {f"{a}.{b}": value for a, inner in sections.items() for b, value in inner.items()}
    job = Job("claims", "none", 0, Scale(write_empty(tmp_path)), flat, folder)
    assert word_order.word_order(job)["none"]["same"] == 1.0
    assert 50 < warm_up.frequencies(job)["perplexity"] < 400
    bins = bleu_by_length(job)
    assert sum(bins["sentences"]) == 12 and len(bins["none"]) == 5


def write_empty(folder):
    path = folder / "empty.py"
    path.write_text("def get_config():\n    return {}\n")
    return str(path)
