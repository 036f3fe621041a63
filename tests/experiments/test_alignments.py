"""Attention as alignment: what is measured of a tiny run, and the rules of the verdicts."""

import gzip
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from experiments import agreement, alignment, explanations, gold_alignment
from experiments.alignment import alignment_of
from experiments.gold_alignment import AGREED, ALONE, MIXED, NEWS, PREDICTED, READ, WORD, read_gold
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from tests import tiny_runs as runs
from tests.experiments.rows import by_seed, job_in
from transformer_jax.api import load
from transformer_jax.errors import DataError
from transformer_jax.evaluation.alignment import (
    alignment_error_rates,
    cross_weights,
    diagonal,
    link_scores,
    links,
    shifted,
)
from transformer_jax.tables.experiment import make_jobs
from transformer_jax.text.built_in_corpus import AlignedPair, built_in_pairs
from transformer_jax.text.hmm_aligner import hmm_alignments, hmm_posteriors
from transformer_jax.text.words import subword_words

# Alignment ---------------------------------------------------------------------------------------


def test_a_shift_gives_a_position_the_word_of_another():
    words = np.array([0, 0, 1, 2, -1])
    assert shifted(words, 0).tolist() == [0, 0, 1, 2, -1]
    assert shifted(words, -1).tolist() == [-1, 0, 0, 1, 2], "the word that was just read"
    assert shifted(words, 1).tolist() == [0, 1, 2, -1, -1]


@pytest.mark.slow("trains a run")
def test_without_a_shift_the_rates_are_those_of_the_alignments():
    workdir = runs.trained_run()
    found = alignment_of(job_in(alignment.EXPERIMENT, workdir))
    loaded = load(workdir, max_length=256).loaded
    want = alignment_error_rates(
        loaded.model, loaded.translator.params, loaded.vocabulary, built_in_pairs("test", 1_000)
    )
    np.testing.assert_allclose(found["error rates"]["0"], want.mean_N)
    assert len(set(map(tuple, found["error rates"].values()))) == 3
    [mass], [entropy] = found["weight on linked subwords"], found["entropy"]
    assert 0 < mass < 1 and 0 < entropy < np.log(64)


def test_eos_is_linked_to_nothing(monkeypatch):
    """Nor is a subword of no word: weight on the source's EOS is not weight on linked subwords."""

    def on_eos(model, params, src, tgt, *args):
        for src_ids, tgt_ids in zip(src, tgt, strict=True):
            weights = np.zeros((1, 1, len(tgt_ids), len(src_ids)))
            weights[..., -1] = 1.0
            yield weights

    monkeypatch.setattr("transformer_jax.evaluation.alignment.cross_weights", on_eos)
    found = alignment_of(job_in(alignment.EXPERIMENT, runs.trained_run()))
    assert found["weight on linked subwords"] == [0.0] and found["entropy"] == [0.0]


def error_rates(errors, mass=0.5):
    rates = {str(shift): [own, 0.9] for shift, own in zip((-1, 0, 1), errors, strict=True)}
    return {"error rates": rates, "weight on linked subwords": [mass, 0.1], "entropy": [1.0, 1.0]}


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([0.4, 0.41, 0.39], [0.5, 0.52, 0.51], HOLDS),
        ([0.1, 0.12, 0.11], [0.5, 0.52, 0.51], FAILS),
        ([0.4, 0.41, 0.39], [0.1, 0.4, 0.31], OPEN),
    ],
)
def test_the_place_of_the_weights(before, after, verdict):
    errors = zip(before, (0.2, 0.201, 0.202), after, strict=True)
    found = by_seed(alignment.BASE, map(error_rates, errors))
    assert alignment.place_of_the_weights(found) == verdict
    of_one_seed = {(alignment.BASE, 0): found[alignment.BASE, 0]}
    assert alignment.place_of_the_weights(of_one_seed) == OPEN
    assert alignment.place_of_the_weights({}) == NOT_RUN


@pytest.mark.parametrize(
    ("masses", "losses", "verdict"),
    [
        ([0.01, 0.02, 0.04], [0.1, 0.2, 0.1], HOLDS),
        ([0.01, 0.02, 0.06], [0.1, 0.2, 0.1], FAILS),
        ([0.01, 0.02, 0.04], [2.1, 2.2, 2.1], FAILS),
        ([0.01, 0.02, 0.04], [0.1, 2.2, 1.1], OPEN),
        ([0.01], [0.1], OPEN),
        ([0.06], [0.1], OPEN),
        ([], [], NOT_RUN),
        ([0.01, 0.02, 0.04], [], NOT_RUN),
    ],
)
def test_manipulation_needs_little_weight_and_a_small_loss(masses, losses, verdict):
    found = by_seed(alignment.BASE, 3 * [error_rates((0.5, 0.2, 0.5))])
    found |= by_seed(alignment.AVOIDED, [error_rates((1, 1, 1), mass) for mass in masses])
    assert alignment.can_be_manipulated(found, losses) == verdict


# Agreement ---------------------------------------------------------------------------------------


def test_both_directions_are_measured_on_their_own_folders(tmp_path, monkeypatch):
    """One model in both folders: it reads German too, in its way."""
    shutil.copytree(runs.trained_run(), tmp_path / "run")
    shutil.copytree(runs.trained_run(), tmp_path / "run" / "reverse")
    bleus = {tmp_path / "run": 30.0, tmp_path / "run" / "reverse": 20.0}

    def evaluate(folder, split):
        return SimpleNamespace(scores=SimpleNamespace(bleu=bleus[Path(folder)]))

    monkeypatch.setattr(agreement, "PAIRS", 30)
    monkeypatch.setattr("transformer_jax.commands.evaluate.evaluate", evaluate)
    job = job_in(agreement.EXPERIMENT, tmp_path / "run")
    found = agreement.agreement_of(job)
    assert found["bleu"] == {"forward": 30.0, "reverse": 20.0}

    loaded = load(str(job.folder), max_length=256).loaded
    pairs = built_in_pairs("test", 30)
    parts = (loaded.model, loaded.translator.params, loaded.vocabulary)
    swapped = [
        AlignedPair(tgt, src, tgt_words, src_words, [(j, i) for i, j in links])
        for src, tgt, src_words, tgt_words, links, *_ in pairs
    ]
    for way, own in (("forward", pairs), ("reverse", swapped)):
        want = alignment_error_rates(*parts, own).mean_N[0]
        assert found["error rate"][way] == pytest.approx(want)
    assert 0 <= found["error rate of common links"] <= 1


# Explanations ------------------------------------------------------------------------------------


def test_explanations_verdicts():
    errors = {
        explanations.WATCHED: (0.3, 0.9),
        explanations.LAST: (0.2, 0.25),
        "alti": (0.1, 0.12),
        "norms": (0.4, 0.9),
    }
    found = {
        (row, seed): {
            way: {explanations.PREDICTED: pair[column] + 0.001 * seed, explanations.READ: 0.7}
            for way, pair in errors.items()
        }
        for column, row in enumerate((alignment.BASE, alignment.AVOIDED))
        for seed in (0, 1)
    }
    assert explanations.verdicts_on(found, "alti") == [HOLDS, HOLDS, HOLDS]
    assert explanations.verdicts_on(found, "norms") == [FAILS, FAILS, HOLDS]
    assert explanations.verdicts_on(found, explanations.WATCHED) == ["", FAILS, HOLDS]


# Gold alignments ---------------------------------------------------------------------------------

REAL = os.environ.get("TRANSFORMER_JAX_DATA")


def test_gold_links_count_words_from_1_and_sure_links_are_possible_too():
    sure, possible = gold_alignment.gold_links("1-2 3p1 2-2", (3, 2), "")
    assert sure == {(0, 1), (1, 1)}
    assert possible == {(0, 1), (1, 1), (2, 0)}


@pytest.mark.parametrize("text", ["0-1", "1-0", "4-1", "1-3", "1:1", "1-1-1"])
def test_a_wrong_link_is_named_with_its_line(text):
    with pytest.raises(DataError, match=f"^gold, line 7: '{text}' is no link"):
        gold_alignment.gold_links(f"1-1 {text}", (3, 2), "gold, line 7")


def test_words_are_those_of_the_gold_text_and_ordinary_text_has_fewer_spaces():
    words = "Parliament 's EU-wide ( 9.00 ) ' rules ' , don't it is 1995 / 96 : Gesundheits- ?"
    line = gold_alignment.TIGHT.sub("", words)
    assert line == "Parliament's EU-wide (9.00) ' rules ', don't it is 1995 / 96: Gesundheits-?"
    assert WORD.findall(line) == words.split()


@pytest.mark.skipif(not REAL, reason="needs real text: TRANSFORMER_JAX_DATA")
def test_the_gold_files_fit_their_text():
    gold = read_gold(Path(str(REAL)) / "alignments-de-en")
    assert len(gold.pairs) == 508
    assert (sum(map(len, gold.sure)), sum(map(len, gold.possible))) == (9613, 10534)
    as_gold = [
        sum(WORD.findall(pair.lines[side]) == pair.words[side] for pair in gold.pairs)
        for side in (0, 1)
    ]
    assert as_gold == [488, 502], "most lines are split as RWTH split them"


def test_the_likeliest_word_is_linked_unless_none_is_likelier():
    posterior_LM = np.array([[0.1, 0.5, 0.1], [0.3, 0.1, 0.1], [0.2, 0.3, 0.4]])
    assert gold_alignment.best_links(posterior_LM) == {(1, 0), (2, 2)}


@pytest.fixture
def text(tmp_path, monkeypatch):
    """Gold links of 6 pairs, 30 pairs to train on, and 4 to choose layers with."""

    def write(name, lines):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = "".join(f"{line}\n" for line in lines).encode()
        path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)

    pairs = built_in_pairs("test", 6)
    write("alignments-de-en/test.uc.de", [" ".join(pair.tgt_words) for pair in pairs])
    write("alignments-de-en/test.uc.en", [" ".join(pair.src_words) for pair in pairs])
    marks = [[f"{j + 1}{'-p'[i == 1]}{i + 1}" for i, j in pair.alignment] for pair in pairs]
    write("alignments-de-en/alignment.talp", map(" ".join, marks))
    for stem, split, count in (("train", "train", 30), ("newscomm-valid", "valid", 4)):
        more = built_in_pairs(split, count)
        write(f"mixed-en-de/{stem}.de.gz", [pair.tgt for pair in more])
        write(f"mixed-en-de/{stem}.en.gz", [pair.src for pair in more])
        kinds = ["newscomm" if n % 3 else "docs" for n in range(count)]
        write(f"mixed-en-de/{stem}.src.gz", kinds)
    monkeypatch.setattr(gold_alignment, "DATA", str(tmp_path / "data"))
    parts = {ALONE: (0, ()), NEWS: (8, ("newscomm",)), MIXED: (16, ())}
    monkeypatch.setattr(gold_alignment, "PARTS", parts)
    return pairs


def own_links(loaded, text, swapped):
    """The links of the first layer by the weights of each row, and by those of the next row."""
    sides = [(pair.tgt, pair.tgt_words) for pair in text], [(p.src, p.src_words) for p in text]
    src, tgt = sides[::-1] if swapped else sides
    encode = loaded.line_translator().encode
    ids = encode([line for line, _ in src]), encode([line for line, _ in tgt], is_target=True)
    weights = cross_weights(loaded.model, loaded.translator.params, *ids)
    found = {PREDICTED: [], READ: []}
    for n, weights_NHLM in enumerate(weights):
        src_words = subword_words(loaded.vocabulary.pieces(ids[0][n]), src[n][1])
        tgt_words = subword_words(loaded.vocabulary.pieces(ids[1][n]), tgt[n][1])
        mean_NHLM = weights_NHLM.mean(1, keepdims=True)
        for name, shift in ((PREDICTED, 0), (READ, 1)):
            [[linked_J]] = links(np.roll(mean_NHLM, -shift, axis=2), src_words, tgt_words)
            pairs = [(int(i), j) for j, i in enumerate(linked_J) if i >= 0]
            found[name].append({pair[::-1] for pair in pairs} if swapped else set(pairs))
    return found


def test_a_run_s_links_are_measured_in_both_directions(text, tmp_path, monkeypatch):
    """One model in both folders: it reads both languages, in its way."""
    shutil.copytree(runs.trained_run(), tmp_path / "run")
    shutil.copytree(runs.trained_run(), tmp_path / "run" / "reverse")
    measured = {}
    attention_links = gold_alignment.attention_links

    def spied(folder, pairs, swapped):
        measured[folder.name] = attention_links(folder, pairs, swapped)
        return measured[folder.name]

    monkeypatch.setattr(gold_alignment, "attention_links", spied)
    job = job_in(gold_alignment.EXPERIMENT, tmp_path / "run")
    found = gold_alignment.run_scores(job)
    loaded = load(str(job.folder), max_length=256).loaded
    every = [*text, *built_in_pairs("valid", 4)]
    want = {name: own_links(loaded, every, name == "reverse") for name in ("run", "reverse")}
    assert measured == {way: {k: [own] for k, own in x.items()} for way, x in want.items()}
    for own in want.values():
        assert sum(a != b for a, b in zip(own[PREDICTED], own[READ], strict=True)) > 2
    gold = read_gold(tmp_path / "data" / "alignments-de-en")
    for name in (PREDICTED, READ):
        assert found[name]["layers"] == "1 and 1"
        scores = found[name]["scores"]["1 and 1"]
        for way, folder in (("de-en", "run"), ("en-de", "reverse")):
            own = want[folder][name][: len(text)]
            assert scores[way] == pytest.approx(link_scores(own, gold.sure, gold.possible))


def test_both_directions_are_combined_in_two_ways():
    gold = gold_alignment.Gold([], [{(0, 0), (1, 1)}], [{(0, 0), (1, 1), (1, 2)}])
    found = gold_alignment.combined(gold, [{(0, 0), (1, 2)}], [{(0, 0), (1, 1), (3, 3)}])
    assert found == {
        "de-en": pytest.approx([1 - 3 / 4, 1, 1 / 2]),
        "en-de": pytest.approx([1 - 4 / 5, 2 / 3, 1]),
        "intersection": pytest.approx([1 - 2 / 3, 1, 1 / 2]),
        "grow-diag": pytest.approx([0, 1, 1]),
    }


def test_layers_are_chosen_by_their_agreement_on_other_text(text, tmp_path, monkeypatch):
    """On the gold text layers 1 and 1 are right; on the other text 1 of de-en agrees with 2."""
    gold = read_gold(tmp_path / "data" / "alignments-de-en")

    def fake(folder, pairs, swapped):
        others = ([{(0, n)}] * 4 for n in ((5, 1) if swapped else (1, 7)))
        of_gold = (gold.sure, [{(0, 99)} for _ in gold.sure])
        layers = [list(one) + more for one, more in zip(of_gold, others, strict=True)]
        return {PREDICTED: layers, READ: layers[::-1]}

    monkeypatch.setattr(gold_alignment, "attention_links", fake)
    found = gold_alignment.run_scores(job_in(gold_alignment.EXPERIMENT, tmp_path))
    assert (found[PREDICTED]["layers"], found[READ]["layers"]) == ("1 and 2", "2 and 1")
    assert found[PREDICTED]["disagreement"]["1 and 2"] == 0
    scores = found[PREDICTED]["scores"]
    assert scores["1 and 1"]["grow-diag"][0] < scores["1 and 2"]["grow-diag"][0]
    assert scores["1 and 2"]["de-en"][2] == 1 and scores["1 and 2"]["en-de"][2] == 0


def test_the_aligner_reads_the_gold_pairs_and_the_text_of_a_kind(text, tmp_path):
    folder = tmp_path / "data" / "mixed-en-de"
    gold = read_gold(tmp_path / "data" / "alignments-de-en")
    news = [pair.words for pair in gold_alignment.read_text(folder, "train", ("newscomm",))]
    second = built_in_pairs("train", 2)[1]
    assert len(news) == 20 and news[0] == ([*second.tgt_words], [*second.src_words])
    found = gold_alignment.aligner_scores(8, ("newscomm",))
    words = [pair.words for pair in gold.pairs] + news[:8]
    want = {"product": [set(one) for one in hmm_alignments(words)[:6]], "de-en": [], "en-de": []}
    for forward_LM, backward_LM in hmm_posteriors(words)[:6]:
        for way, posterior_LM, axis in (("de-en", forward_LM, 1), ("en-de", backward_LM, 0)):
            none = 1 - posterior_LM.sum(axis, keepdims=True)
            is_best = (posterior_LM == posterior_LM.max(axis, keepdims=True)) & (
                posterior_LM > none
            )
            want[way].append({(i, j) for j, i in np.argwhere(is_best).tolist()})
    assert found["pairs"] == 14
    for way, own in want.items():
        assert found[way] == pytest.approx(link_scores(own, gold.sure, gold.possible)), way


def evidence(grown, ways, read):
    scores = {"de-en": [ways - 0.1], "en-de": [ways + 0.1], "grow-diag": [grown]}
    of_read = {"2 and 2": {"grow-diag": [read]}}
    return {
        PREDICTED: {"layers": "1 and 2", "scores": {"1 and 2": scores, "1 and 1": {}}},
        READ: {"layers": "2 and 2", "scores": of_read},
    }


@pytest.mark.parametrize(
    ("aligner", "ways", "agreed", "read", "want"),
    [(0.3, 0.5, 0.3, 0.3, HOLDS), (0.5, 0.3, 0.5, 0.5, FAILS), (0.401, 0.401, 0.401, 0.401, OPEN)],
)
def test_the_rules_of_gold_alignments(aligner, ways, agreed, read, want):
    base = [0.4, 0.41, 0.39]
    found = by_seed(gold_alignment.BASE, [evidence(grown, ways, read) for grown in base])
    moved = [0.01, -0.01, 0.0]
    found |= by_seed(AGREED, [evidence(agreed + own, 0, 0) for own in moved])
    scores = {"grow-diag": [aligner]}
    assert [row[1] for row in gold_alignment.verdicts(found, scores).rows] == [want] * 4


def test_a_page_without_runs_has_the_aligner_and_published_figures(text, tmp_path):
    jobs = make_jobs(gold_alignment.EXPERIMENT, "small", runs=tmp_path)
    parts = gold_alignment.findings(tmp_path, jobs)
    assert {row[1] for row in parts[1].rows} == {NOT_RUN}
    rows = {row[0]: row for row in parts[4].rows}
    assert rows[f"hidden Markov models, {MIXED}"][1] == "22 pairs"
    lengths = [(len(pair.tgt_words), len(pair.src_words)) for pair in text]
    straight = [diagonal(*both) for both in lengths]
    gold = read_gold(tmp_path / "data" / "alignments-de-en")
    own = [{(int(i), j) for j, i in enumerate(one)} for one in straight]
    scores = link_scores(own, gold.sure, gold.possible)
    want = "{:.1f} ({:.1f} / {:.1f})".format(*(100 * one for one in scores))
    assert rows["diagonal"][1:3] == ["", want] and want != rows["diagonal"][3] != ""
    assert len({len(row) for row in parts[4].rows}) == 1
