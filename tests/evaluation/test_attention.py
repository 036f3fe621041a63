"""The weights are those that the model has while it is given the translation."""

from types import SimpleNamespace
from typing import Any

import jax
import numpy as np

from tests.fixtures.references import dot_by_hand, norm_by_hand, softmax_by_hand, values_by_hand
from tests.fixtures.tiny import SIZES, random_pairs, tiny_and_params
from transformer_jax.evaluation.attention import KINDS, pair_attention


class Reference:
    """The whole post-norm model in float64 (figure 1); keeps the weights of each kind."""

    def __init__(self, params: Any):
        self.params = jax.tree.map(lambda x: np.asarray(x, np.float64), params)
        self.weights: dict[str, list] = {kind: [] for kind in KINDS}

    def embedded(self, ids):
        table = self.params["embedding"]["table"]
        d_model = table.shape[1]
        i = np.arange(d_model)
        angles = np.arange(len(ids))[:, None] / 10_000 ** (2 * (i // 2) / d_model)
        positions = np.where(i % 2 == 0, np.sin(angles), np.cos(angles))
        return table[ids] * np.sqrt(d_model) + positions

    def attend(self, kind, params, x_LD, memory_MD):
        query, key, value = (
            np.einsum("LD,DHK->LHK", y, params[name])[None]
            for name, y in (("query", x_LD), ("key", memory_MD), ("value", memory_MD))
        )
        scores_HLM = dot_by_hand(query, key, query.shape[-1] ** -0.5)
        mask = np.tri(len(x_LD), dtype=bool) if kind == "decoder" else True  # none looks ahead
        weights_1HLM = softmax_by_hand(scores_HLM, mask)
        self.weights[kind].append(weights_1HLM[0])
        return np.einsum("LHV,HVD->LD", values_by_hand(weights_1HLM, value)[0], params["out"])

    def feed_forward(self, params, x):
        hidden = np.maximum(x @ params["inner"] + params["inner_bias"], 0)
        return hidden @ params["outer"] + params["outer_bias"]

    def layer(self, side, n, x, encoded=None):
        params = self.params[f"{side}_{n}"]

        def normalized(name, y):
            own = params[f"{name}_residual"]["norm"]
            return norm_by_hand(x + y, own["scale"], own["bias"])

        x = normalized("self_attention", self.attend(side, params["self_attention"], x, x))
        if encoded is not None:
            of_source = self.attend("cross", params["cross_attention"], x, encoded)
            x = normalized("cross_attention", of_source)
        return normalized("feed_forward", self.feed_forward(params["feed_forward"], x))

    def run(self, src_ids, input_ids, layers):
        encoded, x = self.embedded(src_ids), self.embedded(input_ids)
        for n in range(layers):
            encoded = self.layer("encoder", n, encoded)
        for n in range(layers):
            x = self.layer("decoder", n, x, encoded)
        return {kind: np.array(weights) for kind, weights in self.weights.items()}


def test_weights_of_every_layer_and_head_equal_a_plain_computation():
    model, params = tiny_and_params()
    names: Any = SimpleNamespace(pieces=lambda ids: [str(i) for i in ids])
    names.target = names
    src, tgt = (np.array(ids, np.int32) for ids in random_pairs(5, [(7, 4)])[0])
    found = pair_attention(model, params, names, src, tgt)
    inputs = [2, *tgt[:-1]]  # BOS first
    want = Reference(params).run(src, inputs, SIZES["num_layers"])
    assert found.keys() == want.keys()
    for kind, weights in want.items():
        np.testing.assert_allclose(found[kind].weights_NHLM, weights, atol=2e-6, err_msg=kind)
        assert weights.std() > 0.02  # or equal weights would pass
    source, target, before = ([str(i) for i in ids] for ids in (src, tgt, inputs))
    assert found["encoder"][1:] == (source, source, (1, 2, 3))
    assert found["decoder"][1:] == (target, before, (1, 2, 3))
    assert found["cross"][1:] == (target, source, (1, 2, 3))
