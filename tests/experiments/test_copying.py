"""Names by hand, the measurement on made-up translations, and the rules of the verdicts."""

import functools
from types import SimpleNamespace

import pytest

from experiments import copying
from experiments.copying import COPY, HISTORY, INVENTED, KNOWN, SEPARATE, SOFTMAX, verdicts
from experiments.judging import FAILS, HOLDS, NOT_RUN, OPEN
from tests.experiments.rows import by_seed, job_in
from transformer_jax.text.built_in_corpus import built_in_pairs, names_in


@pytest.fixture
def of_training(monkeypatch):
    """Pairs of the training split in place of test's, which take seconds to draw."""
    copying.named_pairs.cache_clear()
    monkeypatch.setattr(copying, "PAIRS", 60)
    monkeypatch.setattr(copying, "pairs_of_test", functools.partial(built_in_pairs, "train"))
    yield copying.named_pairs(60)
    copying.named_pairs.cache_clear()


def test_the_same_sentences_have_known_and_invented_names(of_training):
    known, invented = of_training[KNOWN], of_training[INVENTED]
    assert len(known) == len(invented) > 2
    for one, other in zip(known, invented, strict=True):
        assert names_in(one.src_words) and not names_in(other.src_words)
        assert one.alignment == other.alignment and one.src != other.src


def test_names_are_counted_apart_from_other_words(of_training, tmp_path, monkeypatch):
    """The made-up model translates all but the first sentence's invented names."""
    known, invented = of_training[KNOWN], of_training[INVENTED]
    lines = {pair.src: pair.tgt for pair in (*known, *invented)}
    lines[invented[0].src] = known[0].tgt

    def load(folder):
        assert folder == job.folder
        return SimpleNamespace(translate=lambda sources: [lines[src] for src in sources])

    monkeypatch.setattr("transformer_jax.api.load", load)
    job = job_in(copying.EXPERIMENT, tmp_path)
    found = copying.names_of(job)
    assert found[KNOWN]["names"] == found[KNOWN]["exact"] == 1
    wrong, names = (
        sum(len(names_in(pair.tgt_words)) for pair in pairs) for pairs in (known[:1], known)
    )
    assert found[INVENTED]["names"] == pytest.approx(1 - wrong / names)
    assert found[INVENTED]["exact"] == pytest.approx(1 - 1 / len(known))
    assert found[INVENTED]["words"] > found[INVENTED]["names"]


def evidence(names, bleu=84.0):
    one = {"sentences": 10, "exact": 0.5, "words": 0.9}
    return {KNOWN: {**one, "bleu": bleu, "names": 0.99},
            INVENTED: {**one, "bleu": 80.0, "names": names}}  # fmt: skip


def test_each_claim_looks_at_its_own_numbers():
    found = by_seed(SOFTMAX, map(evidence, (0.80, 0.81, 0.82), (84.0, 84.1, 84.2)))
    found |= by_seed(COPY, map(evidence, (0.95, 0.97, 0.99), 3 * [82.8]))
    found |= by_seed(HISTORY, map(evidence, (0.75, 0.80, 0.85)))
    found |= by_seed(SEPARATE, map(evidence, (0.85, 0.87, 0.89)))
    want = [FAILS, HOLDS, OPEN, FAILS, FAILS]
    assert [verdict for _, verdict in verdicts(found)] == want
    of_one_seed = {(row, seed): one for (row, seed), one in found.items() if seed == 0}
    assert {verdict for _, verdict in verdicts(of_one_seed)} == {NOT_RUN}
