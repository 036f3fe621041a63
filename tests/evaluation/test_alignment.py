"""Links between words are those of the attention, and their error rate is Och and Ney's."""

import dataclasses
import functools
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from tests.fixtures.references import softmax_by_hand
from tests.fixtures.tiny import SIZES, random_pairs, random_params, tiny_and_params
from tests.interop import marian_by_hand as marian
from tests.interop.test_marian import folder_of, models, read
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.vocabulary import VocabularyConfig
from transformer_jax.errors import RunError
from transformer_jax.evaluation import alignment
from transformer_jax.evaluation.alignment import (
    WordAlignment,
    alignment_error_rates,
    best_aligner,
    cross_weights,
    diagonal,
    error_rate,
    grow_diagonal,
    link_scores,
    links,
)
from transformer_jax.evaluation.attention import pair_attention
from transformer_jax.model.encoder_decoder import EncoderDecoder, make_model
from transformer_jax.text.built_in_corpus import AlignedPair, built_in_pairs
from transformer_jax.text.vocabulary import BOS, EOS, SPACE, Sizes, Vocabulary
from transformer_jax.text.vocabulary_training import train_vocabularies, train_vocabulary
from transformer_jax.text.words import subword_words


@functools.cache
def grammar_pairs() -> list[AlignedPair]:
    return built_in_pairs("train", 200)


@functools.cache
def vocabulary() -> Vocabulary:
    """Knows no ü, which two bytes spell; so small that many words have several subwords."""
    lines = [line for pair in grammar_pairs() for line in (pair.src, pair.tgt)]
    known = [line for line in lines if "ü" not in line]
    return train_vocabulary(known, VocabularyConfig(size=500), seed=0)


@functools.cache
def random_model() -> tuple[EncoderDecoder, Any]:
    """A model of two layers and three heads, and random parameters."""
    model = make_model(ModelConfig(**{**SIZES, "dropout": 0.0}), vocabulary().size)
    return model, random_params(model)


def encoded(line: str) -> np.ndarray:
    return np.array([*vocabulary().encode(line), EOS], np.int32)


def encoded_pairs(pairs: list[AlignedPair]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    return [encoded(pair.src) for pair in pairs], [encoded(pair.tgt) for pair in pairs]


# The word of each subword ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pieces", "words", "want"),
    [
        ("_Yes ter day , _he _came . </s>", "Yesterday , he came .", [0, 0, 0, 1, 2, 3, 4, -1]),
        ("_ ro o f . </s>", "roof .", [-1, 0, 0, 0, 1, -1]),
        ("_M <0xC3> <0xA4> d chen </s>", "Mädchen", [0, 0, 0, 0, 0, -1]),
        # Characters of two bytes before a word move it by none.
        ("_Tür en _öff ne ! </s>", "Türen öffne !", [0, 0, 1, 1, 2, -1]),
        # A piece over a border is of the word of its first character; one may be left without.
        ("_a _c ar. </s>", "a car .", [0, 1, 1, -1]),
        ("_to_the _e nd </s>", "to the end", [0, 2, 2, -1]),
    ],
)
def test_a_subword_is_of_the_word_it_begins_in(pieces, words, want):
    found = subword_words(pieces.replace("_", SPACE).split(" "), words.split(" "))
    assert found.tolist() == want


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        ("_yes . </s>", "Yes ."),
        ("_Yes </s>", "Yes ."),
        ("_Yes . ! </s>", "Yes ."),
        ("_Yes .", "Yes ."),  # EOS is missing
    ],
)
def test_subwords_that_do_not_spell_the_words_are_refused(pieces, words):
    with pytest.raises(RunError, match="do not spell Yes .: "):
        subword_words(pieces.replace("_", SPACE).split(" "), words.split(" "))


def test_the_subwords_of_a_word_of_the_corpus_spell_it():
    several = in_bytes = 0
    for pair in grammar_pairs():
        for line, words in ((pair.src, pair.src_words), (pair.tgt, pair.tgt_words)):
            ids = encoded(line)
            found = subword_words(vocabulary().pieces(ids), words)
            assert len(found) == len(ids) and found[-1] == -1
            spelled = [vocabulary().decode(ids[found == n]).strip() for n in range(len(words))]
            assert spelled == list(words)
            several += len(ids) > len(words) + 3
            in_bytes += any(piece.startswith("<0x") for piece in vocabulary().pieces(ids))
    assert several > 100 and in_bytes > 20


# Links -------------------------------------------------------------------------------------------


def test_a_target_word_in_which_no_subword_begins_has_no_link():
    weights_LM = np.array([[60, 40, 0], [40, 60, 0]])
    found = links(weights_LM[None, None], np.array([0, 1, -1]), np.array([0, 2]))
    assert found.tolist() == [[[0, -1, 1]]]


def test_weights_are_summed_over_source_and_averaged_over_target_subwords_of_each_head():
    """Two source words of 1 and 2 subwords, three target words of 1, 2 and 1; then EOS."""
    src_words, tgt_words = np.array([0, 1, 1, -1]), np.array([0, 1, 1, 2, -1])
    draw = np.random.default_rng(0).random((5, 7, len(tgt_words), len(src_words)))
    draw[..., 0] *= 2  # as much as the two subwords of the other word
    found = links(draw, src_words, tgt_words)
    assert found.shape == (5, 7, 3) and found.std() > 0.4
    for n, h, j in np.ndindex(found.shape):
        of_word = draw[n, h, tgt_words == j].mean(0)
        assert found[n, h, j] == np.argmax([of_word[src_words == i].sum() for i in (0, 1)])


@pytest.mark.parametrize(
    ("src_words", "tgt_words", "want"),
    [
        (3, 3, [0, 1, 2]),
        (2, 4, [0, 0, 1, 1]),
        (4, 2, [0, 3]),
        (5, 4, [0, 1, 3, 4]),
        (4, 1, [0]),
        (1, 3, [0, 0, 0]),
    ],
)
def test_the_diagonal_goes_from_the_first_words_to_the_last(src_words, tgt_words, want):
    assert diagonal(src_words, tgt_words).tolist() == want


# The error rate ----------------------------------------------------------------------------------


def test_error_rates_worked_by_hand():
    gold = ((0, 0), (1, 1), (2, 1), (2, 2))
    # Three links found, two of them gold, of which there are four: 1 - (2 + 2) / (3 + 4).
    assert error_rate([np.array([0, 2, 0])], [gold]) == pytest.approx(3 / 7)
    assert error_rate([np.array([1, 0, 0])], [gold]) == 1
    assert error_rate([np.array([0, 1])], [((0, 0), (1, 1))]) == 0
    # A link that is not found counts as none found: 1 - (2 + 2) / (2 + 4).
    assert error_rate([np.array([0, 2, -1])], [gold]) == pytest.approx(2 / 6)
    assert error_rate([np.array([0, 2])], [gold]) == pytest.approx(2 / 6)
    # A target word without gold links: 1 - (1 + 1) / (2 + 1).
    assert error_rate([np.array([0, 0])], [((0, 0),)]) == pytest.approx(1 / 3)
    assert error_rate([np.array([-1, -1])], [()]) == 0  # no link is wrong
    assert error_rate([np.array([0, 1])], [((0, 0), (0, 0), (1, 1))]) == 0  # a set of links


def test_counts_of_every_layer_and_head_are_added_over_the_corpus_and_then_divided():
    draw = np.random.default_rng(1)
    found = [draw.integers(0, 4, (2, 3, words)) for words in (4, 5)]
    gold = [((0, 0), (1, 1), (1, 2), (3, 3)), ((0, 2), (2, 1), (3, 4))]
    rates = error_rate(found, gold)
    for n, h in np.ndindex(2, 3):
        right = total = 0
        for links_NHJ, pair_links in zip(found, gold, strict=True):
            predicted = {(int(i), j) for j, i in enumerate(links_NHJ[n, h])}
            right += 2 * len(predicted & set(pair_links))
            total += len(predicted) + len(pair_links)
        assert rates[n, h] == pytest.approx(1 - right / total)
    assert len(np.unique(rates)) > 2


def test_the_best_aligner_is_a_layer_s_mean_unless_a_head_is_better():
    gold = [((0, 0), (1, 1))]
    right, half, wrong = [0, 1], [0, 0], [1, 0]

    def best(heads, means):
        return best_aligner([WordAlignment([], [], np.array(heads), np.array(means))], gold)

    assert best([[wrong, half], [wrong, right]], [half, half]) == (1, 1, 0.0)
    assert best([[right, half], [wrong, half]], [wrong, right]) == (1, None, 0.0)
    assert best([[half, wrong], [wrong, half]], [wrong, half]) == (1, None, 0.5)


def test_scores_of_links_with_sure_and_possible_ones_are_worked_by_hand():
    """4 + 1 links found: 2 + 0 are sure, 3 + 0 possible; 3 + 1 links are sure."""
    found = [{(0, 0), (1, 1), (2, 2), (3, 0)}, {(0, 0)}]
    sure = [{(0, 0), (1, 1), (2, 3)}, {(0, 1)}]
    possible = [sure[0] | {(2, 2)}, sure[1]]
    assert link_scores(found, sure, possible) == pytest.approx((1 - 5 / 9, 3 / 5, 2 / 4))
    assert link_scores(found, sure) == pytest.approx((1 - 4 / 9, 2 / 5, 2 / 4))
    assert link_scores([set()], [set()]) == (0, 1, 1)


def test_common_links_grow_by_neighbors_whose_words_are_not_both_linked():
    """(2, 2) comes too late, and no link leads to (4, 4)."""
    forward = {(0, 0), (1, 1), (2, 1), (2, 2), (4, 4)}
    backward = {(0, 0), (1, 2), (5, 5)}
    want = {(0, 0), (1, 1), (1, 2), (2, 1)}
    assert grow_diagonal(forward, backward) == grow_diagonal(backward, forward) == want
    assert forward & backward == {(0, 0)}, "the arguments stay as they are"
    assert grow_diagonal({(0, 0)}, {(0, 1)}) == set()


# The model's -------------------------------------------------------------------------------------


# The last of three batches has an empty row; or each pair has a batch.
@pytest.mark.parametrize(("limit", "most"), [("BATCH", 3), ("CELLS", 1)])
def test_in_padded_batches_weights_are_those_of_each_pair_alone(limit, most, monkeypatch):
    monkeypatch.setattr(alignment, limit, most)
    src, tgt = encoded_pairs(grammar_pairs()[:8])
    found = list(cross_weights(*random_model(), src, tgt))
    assert len(found) == 8 and len({weights.shape for weights in found}) > 4
    alone = pair_attention(*random_model(), vocabulary(), src[4], tgt[4])["cross"].weights_NHLM
    assert alone.std() > 0.01  # or equal weights would pass
    assert len(src[4]) < max(map(len, src)) and len(tgt[4]) < max(map(len, tgt))
    np.testing.assert_allclose(found[4], alone, atol=1e-5)


def test_rows_are_no_longer_than_the_learned_positions():
    """There are 18; otherwise the length is a multiple of 16."""
    model, params = tiny_and_params(positions="learned")
    src, tgt = (np.array(ids) for ids in random_pairs(5, [(18, 17)])[0])
    [found] = cross_weights(model, params, [src], [tgt])
    names: Any = SimpleNamespace(pieces=list)
    names.target = names
    alone = pair_attention(model, params, names, src, tgt)["cross"].weights_NHLM
    assert alone.shape == (2, 3, 17, 18)
    np.testing.assert_allclose(found, alone, atol=1e-5)


def test_the_rates_of_a_model_are_those_of_its_weights_added_up(monkeypatch):
    monkeypatch.setattr(alignment, "BATCH", 16)
    pairs = grammar_pairs()[:40]
    src, tgt = encoded_pairs(pairs)
    heads, means = [], []
    for pair, src_ids, tgt_ids, weights_NHLM in zip(
        pairs, src, tgt, cross_weights(*random_model(), src, tgt), strict=True
    ):
        src_words = subword_words(vocabulary().pieces(src_ids), pair.src_words)
        tgt_words = subword_words(vocabulary().pieces(tgt_ids), pair.tgt_words)
        heads.append(links(weights_NHLM, src_words, tgt_words))
        mean = sum(weights_NHLM[:, h] for h in range(3)) / 3
        means.append(links(mean[:, None], src_words, tgt_words)[:, 0])
    gold = [pair.alignment for pair in pairs]
    found = alignment_error_rates(*random_model(), vocabulary(), pairs)
    assert found.heads_NH.shape == (2, 3) and found.mean_N.shape == (2,)
    np.testing.assert_array_equal(found.heads_NH, error_rate(heads, gold))
    np.testing.assert_array_equal(found.mean_N, error_rate(means, gold))
    straight = [diagonal(len(pair.src_words), len(pair.tgt_words)) for pair in pairs]
    assert found.diagonal == error_rate(straight, gold)
    assert 0.1 < found.diagonal < 0.6 < found.heads_NH.min()  # random heads know nothing
    assert found.pairs == 40 and found.links == sum(map(len, gold))


def test_in_the_watched_layer_the_watched_heads_align():
    """Training teaches these alone (train.alignment_weight)."""
    model, params = random_model()
    config = dataclasses.replace(model.config, watched_layer=0, watched_heads=1)
    watching = make_model(config, vocabulary().size)
    pairs = grammar_pairs()[:5]
    every, own = (alignment_error_rates(x, params, vocabulary(), pairs) for x in (model, watching))
    assert own.mean_N[0] == every.heads_NH[0, 0] != every.mean_N[0]
    assert own.mean_N[1] == every.mean_N[1]


def test_each_side_is_spelled_by_its_own_vocabulary():
    pairs = grammar_pairs()
    lines = [(pair.src, pair.tgt) for pair in pairs]
    both = train_vocabularies(*zip(*lines, strict=True), VocabularyConfig(size=400), seed=0)
    config = ModelConfig(**{**SIZES, "dropout": 0.0, "tie_embeddings": False})
    model = make_model(config, both.sizes)
    assert alignment_error_rates(model, random_params(model), both, pairs[:3]).pairs == 3


# The weights are those that the model has while it is given the translation ---------------------


def test_weights_of_every_layer_and_head_equal_a_plain_computation(tmp_path, monkeypatch):
    """Marian's formula in float64, for the arrays that were read as a model of ours."""
    depths = {"enc-depth": 2, "dec-depth": 2}
    folder = folder_of(tmp_path, **depths)
    found = read(folder)
    (own, _), foreign = found.bundle.tables, marian.pieces_of(*models())
    src, tgt = (np.array([*ids, EOS]) for ids in ((9, 5, 12, 7, 20, 5), (8, 30, 6)))
    seen = []

    def kept(*arguments: Any) -> np.ndarray:
        seen.append(softmax_by_hand(*arguments))
        return seen[-1]

    monkeypatch.setattr(marian, "softmax_by_hand", kept)
    theirs = ([foreign.index(own[i]) for i in ids] for ids in (src, tgt))
    marian.logits_by_hand(marian.arrays_of(folder), {**marian.TINY, **depths}, *theirs)
    want = {"encoder": seen[:2], "decoder": seen[2::2], "cross": seen[3::2]}

    names: Any = SimpleNamespace(pieces=lambda ids: [str(i) for i in ids])
    names.target = names
    model = make_model(found.model, Sizes(*map(len, found.bundle.tables)))
    with jax.default_matmul_precision("highest"):
        weights = pair_attention(model, found.params, names, src, tgt)
    assert weights.keys() == want.keys()
    for kind, layers in want.items():
        np.testing.assert_allclose(
            weights[kind].weights_NHLM, np.concatenate(layers), atol=1e-5, err_msg=kind
        )
        assert np.std(layers) > 0.02  # or equal weights would pass
    source, target, before = ([str(i) for i in ids] for ids in (src, tgt, [BOS, *tgt[:-1]]))
    heads = (1, 2, 3, 4)
    assert weights["encoder"][1:] == (source, source, heads)
    assert weights["decoder"][1:] == (target, before, heads)
    assert weights["cross"][1:] == (target, source, heads)
