"""Documents in which names recur, where names are among subwords, and the cache."""

import numpy as np
import pytest

from experiments import recurring_names
from experiments.recurring_names import Mention, cached, documents, mentions

IDS = np.array([5, 7, 5, 5, 9])


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Documents that are made in no time."""
    monkeypatch.setattr(recurring_names, "SIZES", {"train": 30, "valid": 5, "test": 5})
    documents.cache_clear()
    yield
    documents.cache_clear()


def test_two_names_take_turns_and_no_split_has_those_of_another():
    splits = {name: documents(name) for name in recurring_names.SIZES}
    for one in splits["test"]:
        counts = [one.text.count(name) for name in one.names]
        assert counts == [3, 3] and one.text.count(". ") + one.text.count("? ") == 19
    known = {name for one in splits["train"] for name in one.names}
    assert not known & {name for one in splits["test"] for name in one.names}


def test_a_mention_is_the_subwords_that_spell_the_name():
    pieces = ["▁Ke", "mi", "dan", "'s", "▁car", "▁Kemi", "dan.", "▁Fo", "li", "</s>"]
    found = list(mentions(pieces, ("Kemidan", "Foli")))
    assert found == [Mention(0, 3, False), Mention(5, 7, True), Mention(7, 9, False)]


def test_with_theta_0_the_cache_is_the_share_of_a_subword_among_those_before():
    states = np.random.default_rng(0).normal(size=(5, 3))
    log_probs = np.log([0.5, 0.4, 0.3, 0.2, 0.1])
    got = np.exp(cached(log_probs, states, IDS, 0.0, 0.25))
    model, shares = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0, 1 / 2, 2 / 3, 0])
    np.testing.assert_allclose(got, [0.5, *(0.75 * model + 0.25 * shares)])


def test_the_cache_prefers_states_like_the_present_one_and_sums_to_1():
    states = np.random.default_rng(0).normal(size=(5, 3))
    theta = 2.0
    weights = np.exp(theta * states[:4] @ states[4])
    weights /= weights.sum()
    total = 0.0
    for subword in range(12):
        ids = np.append(IDS[:4], subword)
        p = 1 / 12  # the model's, for every subword
        got = np.exp(cached(np.log(np.full(5, p)), states, ids, theta, 0.4))[4]
        assert got == pytest.approx(0.6 * p + 0.4 * weights[IDS[:4] == subword].sum())
        total += got
    assert total == pytest.approx(1)
