"""Diverse beam search of a run: the best of all groups; test_search.py has the search itself."""

import numpy as np
import pytest

from tests.tiny_runs import trained_run
from transformer_jax.config.decode import DecodeConfig
from transformer_jax.decoding.translator import Hypothesis, Translator
from transformer_jax.errors import ConfigError
from transformer_jax.use.loading import load_model


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
