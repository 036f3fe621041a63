"""Diverse beam search (Vijayakumar et al. 2018) against one that is written obviously."""

from collections import Counter

import numpy as np
import pytest

from tests.decoding import reference_search as reference
from tests.decoding.toy_decoders import HashModel, RecurrentModel, assert_same_hypotheses, run
from tests.tiny_runs import trained_run
from transformer_jax.config.decode import DecodeConfig
from transformer_jax.decoding.translator import Hypothesis, Translator
from transformer_jax.errors import ConfigError
from transformer_jax.use.loading import load_model

LIMITS = np.array([9, 7, 9, 0, 5])


def diverse_search(decoder, sentence, limit, *, groups, beam, n_best, alpha, diversity, banned):
    """The n_best best of each group: Python lists, no cache."""
    live = [[([], 0.0)] if limit else [] for _ in range(groups)]
    finished = [[] for _ in range(groups)]
    for length in range(1, limit + 1):
        chosen = Counter()  # subwords of earlier groups' hypotheses at this length
        for g in range(groups):
            candidates = []
            for ids, log_prob in live[g]:
                for i, gain in enumerate(reference.log_softmax(decoder(sentence, ids))):
                    if i not in banned and (length < limit or i == reference.EOS):
                        candidates.append((ids + [i], log_prob + gain))
            candidates.sort(key=lambda one: -(one[1] - diversity * chosen[one[0][-1]]))
            for ids, log_prob in candidates[:beam]:
                if ids[-1] == reference.EOS:
                    score = log_prob / reference.gnmt(length, alpha)
                    finished[g].append(reference.Hypothesis(ids, log_prob, score))
            if beam == 1:
                candidates = candidates[:1]
            live[g] = [one for one in candidates if one[0][-1] != reference.EOS][:beam]
            finished[g].sort(key=lambda one: -one.score)
            last = finished[g][n_best - 1].score if len(finished[g]) >= n_best else -np.inf
            best = max((log_prob for _, log_prob in live[g]), default=-np.inf)
            after = range(length + 1, limit + 1)
            if not any(best / reference.gnmt(end, alpha) > last for end in after):
                live[g] = []
            chosen.update(ids[-1] for ids, _ in live[g])
    return [one for group in finished for one in group[:n_best]]


@pytest.mark.parametrize(
    ("groups", "beam", "n_best", "banned"),
    [(2, 4, 4, ()), (3, 3, 3, ()), (2, 6, 2, ()), (2, 4, 4, (0, 2))],
)
@pytest.mark.parametrize("model_class", [HashModel, RecurrentModel])
def test_equals_a_plain_search_over_many_models(model_class, groups, beam, n_best, banned):
    for seed, diversity in enumerate([0.0, 0.3, 1.0, 5.0]):
        model = model_class(seed)
        asked = {"groups": groups, "diversity": diversity, "banned": banned}
        result = run(model_class, model.table, LIMITS, beam=beam, n_best=n_best, **asked)
        asked |= {"beam": beam // groups, "n_best": n_best // groups, "alpha": 0.6}
        for sentence, limit in enumerate(LIMITS):
            want = diverse_search(model.next_logits, sentence, limit, **asked)
            assert len(want) == (n_best if limit else 0)
            assert_same_hypotheses(result, sentence, want)


def test_the_best_of_all_groups_comes_first():
    first, second = (Hypothesis(np.array([4]), score, score) for score in (-3.0, -1.0))
    translator = Translator.__new__(Translator)
    translator.decode = DecodeConfig(beam_size=4, groups=2)
    translator.n_best = 1
    assert translator._best([first, second]) == [second]


@pytest.mark.slow("trains a run")
def test_a_run_translates_with_groups_best_first():
    run = str(trained_run())
    line = ["The dog sleeps."]

    def translated(n_best, **keys):
        overrides = {f"decode.{name}": value for name, value in keys.items()}
        loaded = load_model(run, beam_size=4, n_best=n_best, overrides=overrides)
        [found] = loaded.line_translator()(line)
        return found

    with pytest.raises(ConfigError, match="decode.diversity=3.0 changes nothing here"):
        translated(4, groups=1, diversity=3.0)
    four = translated(4, groups=2, diversity=3.0)
    assert len(four) == 4
    assert [one.score for one in four] == sorted((one.score for one in four), reverse=True)
    assert translated(1, groups=2, diversity=3.0)[0].score <= four[0].score + 1e-6
    assert len(translated(3, groups=2, diversity=3.0)) == 3
    with pytest.raises(ConfigError, match="beam_size=4 is not a multiple of decode.groups=3"):
        translated(1, groups=3)
