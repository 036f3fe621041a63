"""A word aligner for text without links: two hidden Markov models that are trained to agree.

Each model generates the words of one side from the words of the other. For each word, the model
jumps from the previous word's position on the other side to a new one. The word there generates it,
or, with a fixed probability, no word does (Vogel, Ney and Tillmann 1996). Both directions are
trained together: the dictionaries are estimated from the product of the two directions' posteriors
(Liang, Taskar and Klein 2006). IBM's model 1 initializes the dictionaries (Brown et al. 1993).

Dimension key
  N pairs   L generated words of a pair   M generating words of a pair   G generated words of all
  pairs   C cells of all pairs: a generated and a generating word of one pair   D dictionary
  entries: the different pairs of word forms in the cells   B pairs with the same M
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from transformer_jax.text.folder_corpus import Links

MODEL_1, MODEL_H = 5, 5  # iterations of IBM's model 1, then of the hidden Markov models
NOBODY = 0.2  # probability that no word of the other side generates a word
ANY_JUMP = 0.1  # share of the jumps that are uniform over all positions
FARTHEST = 20  # longer jumps count as jumps of this length
LEAST = 0.02  # a link has at least this product of posteriors


class Side(NamedTuple):
    """The words of all pairs on one side."""

    forms: np.ndarray  # int [words], the number of each word's form
    starts: np.ndarray  # int [N + 1], where the words of each pair begin


class Cells(NamedTuple):
    """Every word of one side with every word of the other; pair n has L M cells, row by row."""

    starts: np.ndarray  # int [N + 1]
    rows: np.ndarray  # int [N], L of each pair: a row is a generated word
    columns: np.ndarray  # int [N], M of each pair: a column is a generating word
    entry: np.ndarray  # int [C], the cell's entry of the dictionary
    row_starts: np.ndarray  # int [G], the first cell of each generated word
    of_row: np.ndarray  # int [G], the generated word's form
    of_entry: np.ndarray  # int [D], the generating form


def hmm_alignments(pairs: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[Links]:
    """The links between the words of each pair, estimated from these pairs alone.

    Words that differ only in capital letters count as one word. A pair with an empty side has no
    links.

    Args:
      pairs: source words and target words. With fewer than thousands of pairs the result is poor.
    """
    found = []
    for forward_LM, backward_LM in hmm_posteriors(pairs):
        target, source = np.nonzero(forward_LM * backward_LM >= LEAST)
        found.append(tuple(sorted(zip(source.tolist(), target.tolist(), strict=True))))
    return found


def hmm_posteriors(
    pairs: Sequence[tuple[Sequence[str], Sequence[str]]],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """For each pair, the probabilities of its links by the two models.

    Args:
      pairs: as in `hmm_alignments`.

    Returns:
      Twice float64 `[target words, source words]`: the probability that this source word generated
      this target word, and that this target word generated this source word.
    """
    found = [(np.zeros((len(tgt), len(src))),) * 2 for src, tgt in pairs]
    whole = [n for n, one in enumerate(found) if one[0].size]
    if not whole:
        return found
    sides = [_side([pairs[n][of] for n in whole]) for of in (0, 1)]
    forward, backward = _cells(sides[0], sides[1]), _cells(sides[1], sides[0])
    both = _trained(forward, backward, _transposed(forward))
    for number, n in enumerate(whole):
        cells = slice(*forward.starts[number : number + 2])
        of_forward, of_backward = (one[cells].reshape(found[n][0].shape) for one in both)
        found[n] = of_forward, of_backward
    return found


def _side(sentences: Sequence[Sequence[str]]) -> Side:
    """The sentences as numbers of word forms, upper and lower case alike."""
    words = [word.casefold() for words in sentences for word in words]
    number_of = {form: n for n, form in enumerate(sorted(set(words)))}
    forms = np.array([number_of[word] for word in words], np.int64)
    return Side(forms, np.cumsum([0, *map(len, sentences)]))


def _cells(generating: Side, generated: Side) -> Cells:
    """All cells: pair by pair, and in each pair generated word by generated word."""
    rows, columns = np.diff(generated.starts), np.diff(generating.starts)
    starts = np.concatenate([[0], np.cumsum(rows * columns)])
    pair = np.repeat(np.arange(len(rows)), rows * columns)
    row, column = np.divmod(np.arange(starts[-1]) - starts[pair], columns[pair])
    of_row = generated.forms[generated.starts[pair] + row]
    of_column = generating.forms[generating.starts[pair] + column]
    size = int(generated.forms.max()) + 1
    entries, entry = np.unique(of_column * size + of_row, return_inverse=True)
    row_starts = np.flatnonzero(column == 0)
    return Cells(starts, rows, columns, entry, row_starts, of_row[row_starts], entries // size)


def _transposed(cells: Cells) -> np.ndarray:
    """For each cell, the cell of the same two words in the other direction: int [C]."""
    pair = np.repeat(np.arange(len(cells.rows)), cells.rows * cells.columns)
    cell = np.arange(cells.starts[-1]) - cells.starts[pair]
    row, column = np.divmod(cell, cells.columns[pair])
    return cells.starts[pair] + column * cells.rows[pair] + row


# Training ------------------------------------------------------------------------------------


class Dictionary(NamedTuple):
    """p(generated form | generating form), and p(generated form | none)."""

    entries: np.ndarray  # float64 [D]
    of_none: np.ndarray  # float64 [forms]


def _trained(forward: Cells, backward: Cells, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The posteriors of both directions, float64 [C] each, in the order of `forward`."""
    both = forward, backward
    models = [_uniform(cells) for cells in both]
    jumps = [np.ones(2 * FARTHEST + 1) for _ in both]
    ours = theirs = np.zeros(0)
    for iteration in range(MODEL_1 + MODEL_H):
        is_markov = iteration >= MODEL_1
        if not is_markov:
            found = [_model_1(cells, model) for cells, model in zip(both, models, strict=True)]
        else:
            found = [_markov(*of) for of in zip(both, models, jumps, strict=True)]
            jumps = [counts for *_, counts in found]
        ours, theirs = found[0][0], found[1][0][other]
        product = ours * theirs
        backward_product = np.empty_like(product)  # in the order of `backward`
        backward_product[other] = product
        # In model 1 each direction counts its own posteriors: they are nearly uniform, and their
        # products would be near 0.
        counted = (product, backward_product) if is_markov else (found[0][0], found[1][0])
        models = [
            _dictionary(cells, counts, of_none)
            for cells, counts, (_, of_none, _) in zip(both, counted, found, strict=True)
        ]
    return ours, theirs


def _uniform(cells: Cells) -> Dictionary:
    """The first dictionary: equal probabilities, and without a generating word, frequencies."""
    forms = int(cells.of_row.max()) + 1
    frequency = np.bincount(cells.of_row, minlength=forms) / len(cells.of_row)
    return Dictionary(np.full(len(cells.of_entry), 1 / forms), frequency)


def _dictionary(cells: Cells, counts: np.ndarray, of_none: np.ndarray) -> Dictionary:
    """The dictionary of expected counts [C] of cells, and [G] of words that nothing generated."""
    entries = np.bincount(cells.entry, counts, minlength=len(cells.of_entry))
    totals = np.bincount(cells.of_entry, entries)
    of_forms = np.bincount(cells.of_row, of_none)
    return Dictionary(
        entries / np.maximum(totals, 1e-12)[cells.of_entry], of_forms / of_forms.sum()
    )


# The probability of each cell [C], the probability that nothing generated a word [G], and the
# expected counts of jumps (none in model 1).
Posteriors = tuple[np.ndarray, np.ndarray, np.ndarray]


def _model_1(cells: Cells, model: Dictionary) -> Posteriors:
    """Posteriors of model 1: all positions of the other side are equally likely."""
    lengths = np.diff(np.append(cells.row_starts, cells.starts[-1]))
    emission = (1 - NOBODY) * model.entries[cells.entry] / np.repeat(lengths, lengths)
    by_none = NOBODY * model.of_none[cells.of_row]
    totals = np.add.reduceat(emission, cells.row_starts) + by_none + 1e-300
    return emission / np.repeat(totals, lengths), by_none / totals, np.zeros(0)


def _markov(cells: Cells, model: Dictionary, jumps: np.ndarray) -> Posteriors:
    """Posteriors of the Markov model; pairs with the same M are computed together."""
    posterior = np.zeros(cells.starts[-1])
    by_none = np.zeros(len(cells.of_row))
    first_rows = np.concatenate([[0], np.cumsum(cells.rows)])
    counts = np.zeros_like(jumps)
    for positions in np.unique(cells.columns):
        own = np.flatnonzero(cells.columns == positions)
        lengths = cells.rows[own]
        real_BL = np.arange(lengths.max()) < lengths[:, None]
        row_BL = np.where(real_BL, first_rows[own][:, None] + np.arange(lengths.max()), 0)
        cell_BLM = cells.row_starts[row_BL][:, :, None] + np.arange(positions)
        emission_BLM = (1 - NOBODY) * model.entries[cells.entry[cell_BLM]]
        none_BL1 = NOBODY * model.of_none[cells.of_row[row_BL]][:, :, None] + 1e-30
        state_BLM, counted = _forward_backward(emission_BLM + none_BL1, real_BL, jumps)
        counts += counted
        share_BLM = state_BLM / (emission_BLM + none_BL1)
        posterior[cell_BLM[real_BL]] = (share_BLM * emission_BLM)[real_BL]
        by_none[row_BL[real_BL]] = (share_BLM * none_BL1).sum(-1)[real_BL]
    return posterior, by_none, counts


def _forward_backward(
    emission_BLM: np.ndarray, real_BL: np.ndarray, jumps: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The posterior of each position for each word `[B, L, M]`, and expected counts of jumps."""
    batch, length, positions = emission_BLM.shape
    # A sentence's first word jumps from before the first position.
    distance = np.arange(positions)[None] - np.arange(-1, positions)[:, None]
    bins = np.clip(distance, -FARTHEST, FARTHEST) + FARTHEST
    move = jumps[bins]
    move = (1 - ANY_JUMP) * move / move.sum(1, keepdims=True) + ANY_JUMP / positions
    forward = np.zeros_like(emission_BLM)
    scale = np.ones((batch, length))
    for n in range(length):
        now = (forward[:, n - 1] @ move[1:] if n else move[0]) * emission_BLM[:, n]
        scale[:, n] = now.sum(1)
        forward[:, n] = now / scale[:, n, None]
    backward = np.ones_like(emission_BLM)
    counted = np.zeros((positions + 1, positions))
    for n in range(length - 1, -1, -1):
        ahead = emission_BLM[:, n] * backward[:, n] / scale[:, n, None] * real_BL[:, n, None]
        if n == 0:
            counted[0] = (move[0] * ahead).sum(0)
            break
        counted[1:] += move[1:] * (forward[:, n - 1].T @ ahead)
        # After a sentence's last word, `backward` stays 1.
        backward[:, n - 1] = np.where(real_BL[:, n, None], ahead @ move[1:].T, 1.0)
    counts = np.bincount(bins.ravel(), counted.ravel(), minlength=len(jumps))
    return forward * backward, counts + 1e-6
