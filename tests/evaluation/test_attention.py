"""The weights are those that the model has while it is given the translation."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from tests.fixtures.references import softmax_by_hand
from tests.interop import marian_by_hand as marian
from tests.interop.test_marian import folder_of, models, read
from transformer_jax.evaluation.attention import pair_attention
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.text.vocabulary import BOS, EOS, Sizes


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
