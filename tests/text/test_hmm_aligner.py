"""The aligner: a slow one that enumerates all paths, and gold links of the built-in corpus."""

import itertools
import math
import tracemalloc
from collections import Counter

import numpy as np
import pytest

from transformer_jax.text import hmm_aligner
from transformer_jax.text.built_in_corpus import built_in_pairs
from transformer_jax.text.hmm_aligner import (
    ANY_JUMP,
    FARTHEST,
    NOBODY,
    _side,
    hmm_alignments,
    hmm_posteriors,
)

# Pairs of one number of source words have different numbers of target words, and vice versa.
PAIRS = [
    (["a", "b"], ["x", "y", "z"]),
    (["c"], ["x"]),
    (["b", "a", "c"], ["z", "x"]),
    (["C", "b", "b"], ["X", "x", "y", "z"]),
]


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


def over_all_paths(emission_LM, jumps):
    """The posterior of each position for each word, and expected counts of jumps."""
    length, positions = emission_LM.shape
    move = moves(jumps, positions)
    paths = list(itertools.product(range(positions), repeat=length))
    steps = [list(itertools.pairwise((-1, *path))) for path in paths]
    chances = [
        math.prod(move[i + 1, j] * emission_LM[n, j] for n, (i, j) in enumerate(of_path))
        for of_path in steps
    ]
    posterior_LM, counts = np.zeros_like(emission_LM), np.zeros_like(jumps)
    for of_path, chance in zip(steps, np.array(chances) / sum(chances), strict=True):
        for n, (i, j) in enumerate(of_path):
            posterior_LM[n, j] += chance
            counts[bin_of(j - i, jumps)] += chance
    return posterior_LM, counts


def posteriors(pairs, model, of_none, jumps):
    """Of each cell, of no generating word, and counts of jumps; without jumps, of model 1."""
    cells, nobodies, counts = [], [], np.full(2 * hmm_aligner.FARTHEST + 1, 1e-6)
    for generating, generated in pairs:
        emission_LM = np.array([[model[a, x] for a in generating] for x in generated])
        emission_LM *= 1 - NOBODY
        none_L1 = NOBODY * np.array([[of_none[x]] for x in generated])
        if jumps is None:
            emission_LM /= len(generating)
            share_LM = 1 / (emission_LM.sum(1, keepdims=True) + none_L1)
            nobodies.append((none_L1 * share_LM).ravel())
        else:
            state_LM, counted = over_all_paths(emission_LM + none_L1, jumps)
            share_LM = state_LM / (emission_LM + none_L1)
            nobodies.append((none_L1 * share_LM).sum(1))
            counts += counted
        cells.append(emission_LM * share_LM)
    return cells, nobodies, counts


def dictionary(pairs, cells, nobodies):
    """p(generated | generating) and p(generated | none) from expected counts."""
    entries, totals, of_none = Counter(), Counter(), Counter()
    for (generating, generated), cells_LM, nobody_L in zip(pairs, cells, nobodies, strict=True):
        for n, x in enumerate(generated):
            of_none[x] += nobody_L[n]
            for m, a in enumerate(generating):
                entries[a, x] += cells_LM[n, m]
                totals[a] += cells_LM[n, m]
    entries = {(a, x): count / totals[a] for (a, x), count in entries.items()}
    return entries, {x: count / of_none.total() for x, count in of_none.items()}


def trained(pairs, model_1, markov):
    """The posteriors after the given numbers of iterations of each model."""
    pairs = [([a.lower() for a in src], [x.lower() for x in tgt]) for src, tgt in pairs]
    both = pairs, [pair[::-1] for pair in pairs]
    models = []
    for way in both:
        words = Counter(x for _, generated in way for x in generated)
        cells = [(a, x) for generating, generated in way for x in generated for a in generating]
        frequencies = {x: count / words.total() for x, count in words.items()}
        models.append((dict.fromkeys(cells, 1 / len(words)), frequencies))
    jumps = [np.ones(2 * hmm_aligner.FARTHEST + 1)] * 2
    for iteration in range(model_1 + markov):
        is_markov = iteration >= model_1
        given = jumps if is_markov else (None, None)
        found = [
            posteriors(way, *model, jump)
            for way, model, jump in zip(both, models, given, strict=True)
        ]
        ours, theirs = found[0][0], [cells.T for cells in found[1][0]]
        counted = [ours, found[1][0]]
        if is_markov:
            jumps = [counts for *_, counts in found]
            products = [one * other for one, other in zip(ours, theirs, strict=True)]
            counted = [products, [product.T for product in products]]
        models = [
            dictionary(way, cells, nobodies)
            for way, cells, (_, nobodies, _) in zip(both, counted, found, strict=True)
        ]
    return list(zip(ours, theirs, strict=True))


@pytest.mark.parametrize("farthest", [FARTHEST, 1])
@pytest.mark.parametrize(("model_1", "markov"), [(2, 0), (1, 3)])
def test_posteriors_are_those_of_an_aligner_that_enumerates_all_paths(
    model_1, markov, farthest, monkeypatch
):
    for name, value in {"MODEL_1": model_1, "MODEL_H": markov, "FARTHEST": farthest}.items():
        monkeypatch.setattr(hmm_aligner, name, value)
    found = hmm_posteriors([*PAIRS, ([], [])])
    assert [one.shape for one in found[-1]] == [(0, 0)] * 2
    for got, want in zip(found[:-1], trained(PAIRS, model_1, markov), strict=True):
        for got_LM, want_LM in zip(got, want, strict=True):
            np.testing.assert_allclose(got_LM, want_LM, rtol=1e-4)


def test_gold_links_are_found_from_the_text_alone():
    pairs = built_in_pairs("train", 3_000)
    found = hmm_alignments([(pair.src_words, pair.tgt_words) for pair in pairs])
    hits = sum(len({*mine} & {*pair.alignment}) for mine, pair in zip(found, pairs, strict=True))
    links = sum(map(len, found)), sum(len(pair.alignment) for pair in pairs)
    assert 1 - 2 * hits / sum(links) < 0.08
    assert hits / links[0] > 0.96 and hits / links[1] > 0.87


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
