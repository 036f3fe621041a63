"""Which runs can be an ensemble: they read the same and translate the same."""

from pathlib import Path

import pytest

from tests import tiny_runs as runs
from tests.fixtures.errors import refused
from transformer_jax.errors import ConfigError
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.use.loading import _check_searched

PICTURES = {"data__src_kind": "pictures", "model__features": 256}


@pytest.mark.parametrize(
    "first, other, words",
    [
        ({}, {"data__src": "de", "data__tgt": "en"}, "translates de→en"),
        ({}, {"data__context": 1}, "data.context=1 and 0"),
        (
            {"data__directions": ("en-de", "de-en")},
            {"data__directions": ("en-de",)},
            "translate the same",
        ),
        (
            {"data__src": "de,fr", "data__tgt": "en"},
            {"data__src": "de,fr", "data__tgt": "en", "model__sources": 2},
            "has model.sources=2, and the first run 1",
        ),
        ({}, PICTURES, "in another way"),
        (PICTURES, {**PICTURES, "data__patch_width": 8, "data__patch_height": 32}, "in another"),
        ({}, {"model__num_heads": 1}, ""),
        (
            {"data__directions": ("en-de", "de-en")},
            {"data__directions": ("de-en", "en-de")},
            "",
        ),
    ],
)
def test_the_models_of_an_ensemble_read_and_translate_the_same(first, other, words):
    one, two = runs.tiny_config(**first), runs.tiny_config(**other)
    run = RunFolder(Path("other"))
    if not words:
        return _check_searched(run, two, one.decode, one)
    with refused(ConfigError, "other ", words):
        _check_searched(run, two, one.decode, one)
