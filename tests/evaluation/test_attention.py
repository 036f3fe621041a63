"""The weights are those that the model has while it is given the translation."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests import tiny_runs as runs
from tests.fixtures.tiny import SIZES, random_pairs, random_params, tiny_model
from transformer_jax.evaluation.attention import KINDS, Attention, pair_attention
from transformer_jax.use.loading import load_model

SOURCE = "The old man bought a car."


class Reference:
    """The whole model in float64, a head at a time (figure 1); keeps the weights of each kind."""

    def __init__(self, params: Any, norm: str, d_model: int):
        self.params = params
        self.norm_first = norm == "pre"
        self.d_model = d_model
        self.weights: dict[str, list] = {kind: [] for kind in KINDS}

    def normalized(self, x, params):
        centered = x - x.mean(-1, keepdims=True)
        variance = (centered**2).mean(-1, keepdims=True)
        return centered / np.sqrt(variance + 1e-6) * params["scale"] + params["bias"]

    def residual(self, x, sublayer, params):
        if self.norm_first:
            return x + sublayer(self.normalized(x, params["norm"]))
        return self.normalized(x + sublayer(x), params["norm"])

    def embedded(self, ids):
        i = np.arange(self.d_model)
        angles = np.arange(len(ids))[:, None] / 10_000 ** (2 * (i // 2) / self.d_model)
        positions = np.where(i % 2 == 0, np.sin(angles), np.cos(angles))
        return self.params["embedding"]["table"][ids] * np.sqrt(self.d_model) + positions

    def attend(self, kind, params, x, memory):
        out = 0.0
        heads = []
        for h in range(params["query"].shape[1]):
            query, key = x @ params["query"][:, h], memory @ params["key"][:, h]
            scores = query @ key.T / np.sqrt(query.shape[1])
            if kind == "decoder":  # none looks ahead
                scores[np.triu_indices_from(scores, 1)] = -np.inf
            weights = np.exp(scores - scores.max(1, keepdims=True))
            weights /= weights.sum(1, keepdims=True)
            heads.append(weights)
            out = out + weights @ (memory @ params["value"][:, h]) @ params["out"][h]
        self.weights[kind].append(heads)
        return out

    def feed_forward(self, x, params):
        hidden = np.maximum(x @ params["inner"] + params["inner_bias"], 0)
        return hidden @ params["outer"] + params["outer_bias"]

    def layer(self, side, n, x, encoded=None):
        params = self.params[f"{side}_{n}"]

        def to_itself(y):
            return self.attend(side, params["self_attention"], y, y)

        def to_source(y):
            return self.attend("cross", params["cross_attention"], y, encoded)

        x = self.residual(x, to_itself, params["self_attention_residual"])
        if encoded is not None:
            x = self.residual(x, to_source, params["cross_attention_residual"])
        feed_forward = params["feed_forward"]
        return self.residual(
            x, lambda y: self.feed_forward(y, feed_forward), params["feed_forward_residual"]
        )

    def run(self, src_ids, input_ids, layers):
        encoded, x = self.embedded(src_ids), self.embedded(input_ids)
        for n in range(layers):
            encoded = self.layer("encoder", n, encoded)
        if self.norm_first:
            encoded = self.normalized(encoded, self.params["encoder_norm"])
        for n in range(layers):
            x = self.layer("decoder", n, x, encoded)
        return {kind: np.array(weights) for kind, weights in self.weights.items()}


def in_float64(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: in_float64(branch) for name, branch in tree.items()}
    return np.asarray(tree, np.float64)


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_weights_of_every_layer_and_head_equal_a_plain_computation(norm):
    model = tiny_model(norm=norm)
    params = random_params(model)
    names: Any = SimpleNamespace(pieces=lambda ids: [str(i) for i in ids])
    names.target = names
    src, tgt = (np.array(ids, np.int32) for ids in random_pairs(5, [(7, 4)])[0])
    found = pair_attention(model, params, names, src, tgt)
    reference = Reference(in_float64(params), norm, SIZES["d_model"])
    inputs = [2, *tgt[:-1]]  # BOS first
    want = reference.run(src, inputs, SIZES["num_layers"])
    assert {kind: weights.shape for kind, (weights, *_) in found.items()} == {
        "encoder": (2, 3, 7, 7),
        "decoder": (2, 3, 4, 4),
        "cross": (2, 3, 4, 7),
    }
    for kind, weights in want.items():
        np.testing.assert_allclose(found[kind].weights_NHLM, weights, atol=2e-6, err_msg=kind)
        assert weights.std() > 0.02  # or equal weights would pass
    source, target, before = ([str(i) for i in ids] for ids in (src, tgt, inputs))
    assert found["encoder"][1:] == (source, source, (1, 2, 3))
    assert found["decoder"][1:] == (target, before, (1, 2, 3))
    assert found["cross"][1:] == (target, source, (1, 2, 3))


def test_weights_are_distributions_and_the_decoder_never_looks_ahead():
    loaded = load_model(str(runs.trained_run()))
    model, params = loaded.translator.model, loaded.translator.params

    def weights_of(translation: str) -> dict[str, Attention]:
        [source, target] = loaded.line_translator().encode([SOURCE, translation])
        return pair_attention(model, params, loaded.vocabulary, source, target)

    found, other = weights_of("Der alte Mann ."), weights_of("Der alte Mann !")
    for weights_NHLM, attending, attended, _ in found.values():
        assert weights_NHLM.shape == (1, 2, len(attending), len(attended))
        np.testing.assert_allclose(weights_NHLM.sum(-1), 1, atol=1e-5)
    source, target = found["cross"].attended, found["cross"].attending
    assert source[-1] == target[-1] == "</s>"
    assert found["decoder"].attended == ["<s>", *target[:-1]]
    ahead = np.triu(np.ones((len(target), len(target)), bool), 1)
    assert not found["decoder"].weights_NHLM[:, :, ahead].any()
    assert (found["encoder"].weights_NHLM > 0).all()
    # A subword's row does not depend on the subword itself or later ones, only on earlier ones.
    pairs = zip(target, other["cross"].attending, strict=False)
    same = next(i for i, (a, b) in enumerate(pairs) if a != b)
    assert same > 2
    rows = np.s_[:, :, : same + 1]
    for kind in ("cross", "decoder"):
        before, after = (one[kind].weights_NHLM[rows] for one in (found, other))
        shared = min(before.shape[-1], after.shape[-1])
        np.testing.assert_allclose(before[..., :shared], after[..., :shared], atol=1e-6)
        assert np.abs(before[:, :, 0] - before[:, :, 1]).max() > 1e-4
