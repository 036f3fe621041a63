"""The aligner: posteriors by enumeration of all paths, and gold links of the built-in corpus."""

import itertools
import tracemalloc

import numpy as np
import pytest

from transformer_jax.text import hmm_aligner
from transformer_jax.text.built_in_corpus import built_in_pairs
from transformer_jax.text.hmm_aligner import (
    ANY_JUMP,
    FARTHEST,
    NOBODY,
    Dictionary,
    _cells,
    _dictionary,
    _forward_backward,
    _markov,
    _model_1,
    _side,
    _trained,
    _transposed,
    _uniform,
    hmm_alignments,
    hmm_posteriors,
)

DRAW = np.random.default_rng(0)


def bin_of(jump, jumps):
    """Jumps beyond the farthest count as the farthest."""
    farthest = len(jumps) // 2
    return farthest + min(max(jump, -farthest), farthest)


def moves(jumps, positions):
    """p(position | position before), the first row from before the sentence."""
    found = np.zeros((positions + 1, positions))
    for i, j in np.ndindex(*found.shape):
        found[i, j] = jumps[bin_of(j - (i - 1), jumps)]
    found /= found.sum(1, keepdims=True)
    return (1 - ANY_JUMP) * found + ANY_JUMP / positions


@pytest.mark.parametrize("farthest", [FARTHEST, 1])
def test_posteriors_and_counts_are_those_of_all_paths(farthest, monkeypatch):
    monkeypatch.setattr(hmm_aligner, "FARTHEST", farthest)
    lengths = (4, 2)
    positions = 3
    emission_BLM = DRAW.random((2, 4, positions)) + 0.1
    real_BL = np.arange(4) < np.array(lengths)[:, None]
    jumps = DRAW.random(2 * farthest + 1) + 0.1
    move = moves(jumps, positions)
    want_BLM = np.zeros((2, 4, positions))
    counts = np.zeros_like(jumps)
    for b, length in enumerate(lengths):
        paths = list(itertools.product(range(positions), repeat=length))
        chances = []
        for path in paths:
            chance = 1.0
            before = -1
            for n, place in enumerate(path):
                chance *= move[before + 1, place] * emission_BLM[b, n, place]
                before = place
            chances.append(chance)
        for path, chance in zip(paths, np.array(chances) / sum(chances), strict=True):
            before = -1
            for n, place in enumerate(path):
                want_BLM[b, n, place] += chance
                counts[bin_of(place - before, jumps)] += chance
                before = place
    got_BLM, got = _forward_backward(emission_BLM, real_BL, jumps)
    np.testing.assert_allclose(got_BLM[real_BL], want_BLM[real_BL], rtol=1e-9)
    np.testing.assert_allclose(got - 1e-6, counts, atol=1e-9)


PAIRS = [(["a", "b"], ["x", "y", "z"]), (["c"], ["x"]), (["b", "a", "c"], ["z", "x"])]


def small():
    sides = [_side([pair[of] for pair in PAIRS]) for of in (0, 1)]
    return _cells(*sides), _cells(*sides[::-1])


def test_model_1_shares_a_word_among_all_positions_and_none():
    cells, _ = small()
    model = Dictionary(DRAW.random(len(cells.of_entry)), DRAW.random(3))
    found, of_none, _ = _model_1(cells, model)
    place = row = 0
    entry = iter(cells.entry)
    for src, tgt in PAIRS:
        for word in tgt:
            emissions = [(1 - NOBODY) * model.entries[next(entry)] / len(src) for _ in src]
            none = NOBODY * model.of_none["xyz".index(word)]
            total = sum(emissions) + none
            np.testing.assert_allclose(found[place : place + len(src)], np.array(emissions) / total)
            assert of_none[row] == pytest.approx(none / total)
            place = place + len(src)
            row = row + 1
    entries = list(zip(cells.of_entry[cells.entry], cells.entry, strict=True))
    assert [of for of, _ in entries] == [*[0, 1] * 3, 2, *[1, 0, 2] * 2]
    assert cells.entry[0] == cells.entry[11] and cells.entry[0] != cells.entry[1], "a says x"


def test_dictionaries_begin_uniform_and_are_shares_of_what_is_counted():
    cells, _ = small()
    first = _uniform(cells)
    np.testing.assert_allclose(first.entries, 1 / 3)
    np.testing.assert_allclose(first.of_none, np.array([3, 1, 2]) / 6, err_msg="of x, y and z")
    counts, of_none = DRAW.random(len(cells.entry)), DRAW.random(6)
    by_words = np.zeros((3, 3))
    by_form = np.zeros(3)
    words = [(a, x) for src, tgt in PAIRS for x in tgt for a in src]
    for (a, x), count in zip(words, counts, strict=True):
        by_words["abc".index(a), "xyz".index(x)] += count
    for x, count in zip([x for _, tgt in PAIRS for x in tgt], of_none, strict=True):
        by_form["xyz".index(x)] += count
    got = _dictionary(cells, counts, of_none)
    for (a, x), entry in zip(words, cells.entry, strict=True):
        row = by_words["abc".index(a)]
        assert got.entries[entry] == pytest.approx(row["xyz".index(x)] / row.sum())
    np.testing.assert_allclose(got.of_none, by_form / by_form.sum())


def test_in_model_1_each_direction_counts_its_own_posteriors(monkeypatch):
    monkeypatch.setattr(hmm_aligner, "MODEL_1", 2)
    monkeypatch.setattr(hmm_aligner, "MODEL_H", 0)
    both = small()
    alone = []
    for cells in both:
        found, of_none, _ = _model_1(cells, _uniform(cells))
        alone.append(_model_1(cells, _dictionary(cells, found, of_none))[0])
    other = _transposed(both[0])
    ours, theirs = _trained(*both, other)
    np.testing.assert_allclose(ours, alone[0])
    np.testing.assert_allclose(theirs, alone[1][other])


def test_pairs_of_different_lengths_are_computed_apart():
    """Each pair alone gives the same posteriors as all together."""
    cells, _ = small()
    model = Dictionary(DRAW.random(len(cells.of_entry)), DRAW.random(3))
    jumps = DRAW.random(2 * FARTHEST + 1) + 0.1
    found, of_none, _ = _markov(cells, model, jumps)
    for number, (src, tgt) in enumerate(PAIRS):
        own = slice(*cells.starts[number : number + 2])
        emission_LM = (1 - NOBODY) * model.entries[cells.entry[own]].reshape(len(tgt), len(src))
        none_L1 = NOBODY * np.array([[model.of_none["xyz".index(word)]] for word in tgt])
        whole = emission_LM + none_L1
        states, _ = _forward_backward(whole[None], np.ones((1, len(tgt)), bool), jumps)
        want = (states[0] * emission_LM / whole).ravel()
        np.testing.assert_allclose(found[own], want, rtol=1e-9)
        rows = slice(sum(len(p[1]) for p in PAIRS[:number]), None)
        np.testing.assert_allclose(of_none[rows][: len(tgt)], 1 - want.reshape(whole.shape).sum(1))


def test_the_other_direction_has_the_same_pairs_of_words():
    forward, backward = small()
    other = _transposed(forward)
    assert sorted(other) == list(range(len(other)))
    ours = forward.of_entry[forward.entry]
    np.testing.assert_array_equal(
        ours, np.array([n for pair in PAIRS for _ in pair[1] for n in map("abc".index, pair[0])])
    )
    theirs = backward.of_entry[backward.entry][other]
    np.testing.assert_array_equal(
        theirs, np.array(["xyz".index(word) for pair in PAIRS for word in pair[1] for _ in pair[0]])
    )


def test_gold_links_are_found_from_the_text_alone():
    pairs = built_in_pairs("train", 3_000)
    found = hmm_alignments([(pair.src_words, pair.tgt_words) for pair in pairs])
    hits = sum(len({*mine} & {*pair.alignment}) for mine, pair in zip(found, pairs, strict=True))
    links = sum(map(len, found)), sum(len(pair.alignment) for pair in pairs)
    assert 1 - 2 * hits / sum(links) < 0.08
    assert hits / links[0] > 0.96 and hits / links[1] > 0.87


def test_each_direction_shares_a_generated_word_among_the_words_of_the_other_side():
    """A word generates several others, but is generated once."""
    pairs = [(["a"], ["x", "y"]), (["b", "c"], ["z"]), (["a", "b", "c"], ["x", "y", "z"]), ([], [])]
    found = hmm_posteriors(pairs * 5)
    shapes = [tuple(len(side) for side in pair[::-1]) for pair in pairs]
    assert [(a.shape, b.shape) for a, b in found[:4]] == [(shape, shape) for shape in shapes]
    for forward_LM, backward_LM in found:
        assert (forward_LM.sum(1) < 1 + 1e-9).all() and (backward_LM.sum(0) < 1 + 1e-9).all()
    assert found[0][0].sum(0) > 1.2 and found[1][1].sum(1) > 1.2


def test_empty_sides_have_no_links_and_capitals_do_not_count():
    pairs = [(["Yes"], []), ([], ["Ja"]), ([], [])]
    assert hmm_alignments(pairs) == [(), (), ()]
    known = [(["Yes"], ["ja"]), (["no"], ["nein"]), (["yes", "no"], ["Ja", "nein"])] * 5
    assert hmm_alignments([*pairs, *known])[-1] == ((0, 0), (1, 1))


def test_one_long_token_does_not_multiply_the_memory():
    """An array of strings would pad every word to the longest one: 800 MB."""
    tracemalloc.start()
    side = _side([["a", "b"] * 1_000, ["x" * 100_000]])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10e6
    assert side.forms.tolist() == [0, 1] * 1_000 + [2]
