"""benchmarks/pair_flops.py: FLOPs of many lengths from a few traces."""

import numpy as np
import pytest

from benchmarks import pair_flops
from benchmarks.pair_flops import flops_of_pairs
from transformer_jax.config.model import ModelConfig
from transformer_jax.training.cost import training_flops

SIZES = {"num_layers": 1, "d_model": 12, "num_heads": 3, "d_k": 5, "d_v": 2, "d_ff": 17}
SRC, TGT = np.array([1, 2, 7, 19, 30, 4], np.int32), np.array([9, 2, 1, 23, 5, 31], np.int32)


@pytest.mark.slow("traces many models")
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"num_encoder_layers": 3, "num_layers": 2},
        {"encoder": "recurrent", "decoder": "recurrent", "d_hidden": 7},
        {"encoder": "transformer", "decoder": "recurrent", "score": "additive"},
    ],
    ids=["transformer", "other depths", "recurrent", "both kinds"],
)
def test_the_flops_of_each_pair_are_those_of_its_own_trace(kind):
    model = ModelConfig(**SIZES | kind)
    found = flops_of_pairs(model, 50, SRC, TGT)
    assert found.dtype == np.int64
    for n in (0, 3, 4):
        assert found[n] == training_flops(model, 50, int(SRC[n]), int(TGT[n]))


def test_a_count_that_grows_in_another_way_is_refused(monkeypatch):
    monkeypatch.setattr(pair_flops, "training_flops", lambda model, size, src, tgt: src**3 + tgt)
    with pytest.raises(ValueError, match="no polynomial of degree 2"):
        flops_of_pairs(ModelConfig(), 50, SRC, TGT)
