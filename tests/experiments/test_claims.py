"""What verdicts are taken from, and that each way of deciding can go either way."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from experiments import claims, claims_verdicts, table3_ablations
from experiments.claims_evidence import (
    NO_POSITIONS,
    PROBES,
    REFERENCE,
    SHORT_LEARNED,
    SHORT_SINUSOIDAL,
    _entropy,
    _ideal,
    bleu_by_length,
    gather,
    shift_matrix,
    shifts_of_positions,
    word_order,
)
from experiments.claims_verdicts import FAILS, HOLDS, NOT_RUN, OPEN, Known
from tests.bench.test_tables import line
from tests.runs import command, train
from transformer_jax.bench.experiment import Job, Scale, make_jobs
from transformer_jax.config import KEYS, value_at


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
    few, many = (_ideal(d_k, scaled=False) for d_k in (4, 256))
    assert many["entropy"] < few["entropy"] / 4 and many["gradient"] < 0.6 * few["gradient"]
    few, many = (_ideal(d_k, scaled=True) for d_k in (4, 256))
    assert many["entropy"] == pytest.approx(few["entropy"], rel=0.05)


def test_rows_are_what_they_are_compared_with_but_for_one_key(in_checkout):
    jobs = {job.row: job.config() for job in make_jobs(claims.EXPERIMENT, "small", Path("runs"))}
    table_3 = make_jobs(table3_ablations.EXPERIMENT, "small", Path("runs"))
    known = {job.row: job.config() for job in table_3 if job.seed == 0}

    def differing(one, other):
        return {name for name in KEYS if value_at(one, name) != value_at(other, name)}

    for plain, scaled in (
        ("8 heads, not scaled", "base"),
        ("1 head, not scaled", claims_verdicts.ONE_HEAD),
    ):
        assert differing(jobs[plain], known[scaled]) == {"model.scale_attention"}
    assert differing(jobs[REFERENCE], jobs[NO_POSITIONS]) == {"model.positions"}
    assert differing(jobs[SHORT_SINUSOIDAL], jobs[SHORT_LEARNED]) == {"model.positions"}
    assert differing(jobs[REFERENCE], jobs[SHORT_SINUSOIDAL]) == {"data.max_length"}
    for norm in ("post", "pre"):
        with_it, without = (jobs[f"{norm}-norm, {how}"] for how in ("warm-up", "no warm-up"))
        assert differing(with_it, without) == {"train.warmup_steps"}


def known_with(folder, table_3=(), p_values=None, lines=(), evidence=None, table_2=()):
    return Known(folder, lines, evidence or {}, table_3, p_values or {}, table_2)


BASES = [line("base", seed, bleu) for seed, bleu in enumerate((20.0, 20.4, 20.2))]
OTHERS = [line(f"(A) {n} heads", 0, 21.0 + n / 10) for n in (4, 16, 32)]


@pytest.mark.parametrize(
    ("bleu", "p", "wanted"),
    [(17.0, 0.001, HOLDS), (25.0, 0.001, FAILS), (17.0, 0.2, OPEN), (19.9, 0.001, OPEN)],
    ids=["far below", "far above", "by chance", "within the seeds"],
)
def test_one_head_is_judged_by_chance_and_by_seeds(bleu, p, wanted, tmp_path):
    row = claims_verdicts.ONE_HEAD
    known = known_with(tmp_path, [*BASES, *OTHERS, line(row, 0, bleu)], {(row, 0): p})
    [finding] = claims_verdicts.one_head(known)
    assert finding.verdict == wanted
    [finding] = claims_verdicts.one_head(known_with(tmp_path, BASES))
    assert finding.verdict == NOT_RUN


def test_smoothing_is_judged_in_two_ways(tmp_path):
    row = "(D) smoothing 0.0"
    lines = [line("base", seed, 20.0 + seed / 10, 5.0 + seed / 10) for seed in range(3)]
    lines += [line(row, seed, 19.0, 4.0) for seed in range(3)]
    p_values = {(row, seed): 0.01 for seed in range(3)}
    perplexity, bleu = claims_verdicts.smoothing(known_with(tmp_path, lines, p_values))
    assert (perplexity.verdict, bleu.verdict) == (HOLDS, HOLDS)
    lines = [one._replace(bleu=40 - one.bleu, perplexity=9 - one.perplexity) for one in lines]
    perplexity, bleu = claims_verdicts.smoothing(known_with(tmp_path, lines, p_values))
    assert (perplexity.verdict, bleu.verdict) == (FAILS, FAILS)


def test_averaging_is_judged_seed_by_seed(tmp_path):
    means = [line("Transformer", seed, bleu) for seed, bleu in enumerate((21.0, 21.5, 21.3))]
    [finding] = claims_verdicts.averaging(known_with(tmp_path, BASES, table_2=means))
    assert finding.verdict == HOLDS and "+1.07 BLEU ± 0.06" in finding.because
    [finding] = claims_verdicts.averaging(known_with(tmp_path, BASES, table_2=means[:1]))
    assert finding.verdict == OPEN


def test_warm_up_is_judged_by_perplexity(tmp_path):
    values = {"post-norm, warm-up": 5.0, "post-norm, no warm-up": 90.0}
    values |= {"pre-norm, warm-up": 4.0, "pre-norm, no warm-up": 4.1}
    lines = [line(row, 0, 1.0, perplexity) for row, perplexity in values.items()]
    post, pre = claims_verdicts.warm_up(known_with(tmp_path, lines=lines))
    assert (post.verdict, pre.verdict) == (HOLDS, HOLDS)
    lines = [one._replace(perplexity=100 - one.perplexity) for one in lines]
    post, pre = claims_verdicts.warm_up(known_with(tmp_path, lines=lines))
    assert post.verdict == FAILS
    assert [one.verdict for one in claims_verdicts.warm_up(known_with(tmp_path))] == [NOT_RUN] * 2


def test_scaling_in_training_compares_both_sizes_of_heads(tmp_path):
    one_head = claims_verdicts.SCALED_1
    table_3 = [*BASES, line(one_head, 0, 17.0)]
    for plain, wanted in ((10.0, HOLDS), (17.1, OPEN), (24.0, FAILS)):
        lines = [line("8 heads, not scaled", 0, 19.0), line("1 head, not scaled", 0, plain)]
        findings = claims_verdicts._scaling_in_training(known_with(tmp_path, table_3, lines=lines))
        assert findings.verdict == wanted


PROBED = {
    "lengths": {
        "sentences": [5, 3, 2, 1],
        **{REFERENCE: [97.0, 96, 95, 94, 95], SHORT_SINUSOIDAL: [97.0, 60, 50, 40, 55]},
        SHORT_LEARNED: [97.0, 30, 20, 10, 25],
    },
    "word order": {
        REFERENCE: {"same": 0.02, "exact": 0.9, "order": 0.01},
        NO_POSITIONS: {"same": 1.0, "exact": 0.4, "order": 0.2},
    },
    "alignment": {
        **{"heads": [[0.3, 0.4], [0.1, 0.5]], "mean": [0.35, 0.2], "diagonal": 0.41},
        **{"least": 0.06, "pairs": 9},
    },
}


def test_probes_are_judged_by_their_numbers(tmp_path):
    judged = [
        *claims_verdicts.lengths(known_with(tmp_path, evidence=PROBED)),
        *claims_verdicts.word_order(known_with(tmp_path, evidence=PROBED)),
        *claims_verdicts.alignments(known_with(tmp_path, evidence=PROBED)),
    ]
    assert [finding.verdict for finding in judged] == [HOLDS] * 4
    other = json.loads(json.dumps(PROBED))
    other["lengths"][SHORT_SINUSOIDAL][-1], other["lengths"][SHORT_LEARNED][-1] = 30, 60
    other["word order"][NO_POSITIONS]["same"] = 0.5
    other["alignment"]["diagonal"] = 0.15
    judged = [
        *claims_verdicts.lengths(known_with(tmp_path, evidence=other)),
        *claims_verdicts.word_order(known_with(tmp_path, evidence=other)),
        *claims_verdicts.alignments(known_with(tmp_path, evidence=other)),
    ]
    assert [finding.verdict for finding in judged] == [FAILS] * 4


def test_the_page_says_what_was_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(claims_verdicts, "RECORDED", tmp_path)
    few = {name: PROBES[name] for name in ("scaling at the start", "shifts of positions")}
    monkeypatch.setattr("experiments.claims_evidence.PROBES", few)
    monkeypatch.setattr("experiments.claims_evidence.KEYS_SIZES", (8, 512))
    jobs = make_jobs(claims.EXPERIMENT, "small", tmp_path / "runs")
    parts = claims.findings(tmp_path, jobs)
    verdicts = parts[1].rows
    assert len(verdicts) == 14
    assert [row[2] for row in verdicts].count(NOT_RUN) == 11
    assert (tmp_path / "scaling.png").exists()
    before = (tmp_path / "evidence.json").read_text()
    monkeypatch.setattr("experiments.claims_evidence._ideal", None)  # what is known is not asked
    gather(tmp_path / "evidence.json", jobs)
    assert (tmp_path / "evidence.json").read_text() == before


def test_without_positions_a_shuffled_source_is_the_same_source(tmp_path):
    folder = tmp_path / "run"
    assert train(folder, model__positions="none", train__steps=12, train__checkpoint_every=12) == 0
    assert command("evaluate", f"--workdir={folder}", "--split=test") == 0
    overrides = json.loads((folder / "config.json").read_text())
    sections = {a: inner for a, inner in overrides.items() if a != "seed"}
    flat = {f"{a}.{b}": value for a, inner in sections.items() for b, value in inner.items()}
    job = Job("claims", "none", 0, Scale(write_empty(tmp_path)), flat, folder)
    assert word_order(job)["none"]["same"] == 1.0
    lengths = bleu_by_length(job)
    assert sum(lengths["sentences"]) == 12 and len(lengths["none"]) == 5


def write_empty(folder):
    path = folder / "empty.py"
    path.write_text("def get_config():\n    return {}\n")
    return str(path)
