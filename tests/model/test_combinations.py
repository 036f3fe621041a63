"""Several source sentences in encoder-decoder attention: the softmax of each alone, summed."""

import jax
import jax.numpy as jnp
import numpy as np

from tests.fixtures.references import dot_by_hand, softmax_by_hand, values_by_hand
from tests.fixtures.tiny import relative_error
from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.combinations import COMBINATIONS, Reading
from transformer_jax.model.attention.multi_head import attend
from transformer_jax.model.attention.normalizers import softmax
from transformer_jax.model.axes import unboxed

B, L, M, H, K, V, D = 2, 5, 7, 3, 4, 6, 8
DRAW = np.random.default_rng(9)
QUERY, KEY, VALUE = (
    DRAW.normal(size=shape).astype(np.float32)
    for shape in ((B, L, H, K), (B, M, H, K), (B, M, H, V))
)
# Two packed pairs in the first row, and padding, whose numbers mean nothing.
SENTENCES = np.array([[0, 0, 1, 0, 1, 2, 2], [0, 0, 1, 1, 2, 2, 1]])
PAIRS = np.array([[1, 1, 1, 2, 2, 2, 2], [1, 1, 1, 1, 1, 1, 0]])
QUERIES = np.array([[1, 1, 2, 2, 2], [1, 1, 1, 1, 0]])  # the first pair has no third sentence
MASK = (QUERIES[:, None, :, None] == PAIRS[:, None, None]) & (PAIRS != 0)[:, None, None]


def alone_by_hand(scores, mask):
    sees = mask.any(-1, keepdims=True)
    return np.where(sees, softmax_by_hand(scores, mask | ~sees), 0)


CONFIG = ModelConfig(d_model=D, num_heads=H, d_k=K, d_v=V, sources=3)
X, OUT = DRAW.normal(size=(B, L, D)).astype(np.float32), DRAW.normal(size=(H, V, D))


def join(heads):
    return jnp.einsum("BLHV,HVD->BLD", heads, OUT.astype(np.float32))


def reading(mask=MASK) -> Reading:
    def read(normalize):
        return attend(QUERY, KEY, VALUE, mask, normalize=normalize)

    return Reading(read, join, softmax, jnp.asarray(mask), jnp.asarray(SENTENCES))


def each_by_hand():
    """Weights and joined heads of attention to each sentence alone, in float64."""
    scores = dot_by_hand(QUERY, KEY, K**-0.5)
    weights = [alone_by_hand(scores, MASK & (SENTENCES == n)[:, None, None]) for n in range(3)]
    heads = [np.einsum("BLHV,HVD->BLD", values_by_hand(one, VALUE), OUT) for one in weights]
    return weights, heads


def test_parallel_sums_attention_to_each_sentence():
    out, weights = COMBINATIONS["parallel"](CONFIG, (0, 1, 2)).apply({}, reading(), X)
    each, heads = each_by_hand()
    seen = np.maximum(sum(one.any(-1, keepdims=True) for one in each), 1)
    assert relative_error(weights, sum(each) / seen) < 1e-6
    assert relative_error(out, sum(heads)) < 1e-6


def test_a_serial_sublayer_reads_one_sentence():
    each, heads = each_by_hand()
    total = 0
    for number in range(3):
        out, weights = COMBINATIONS["serial"](CONFIG, (number,)).apply({}, reading(), X)
        assert relative_error(out, heads[number]) < 1e-6
        assert not np.asarray(weights)[np.broadcast_to(each[number] == 0, weights.shape)].any()
        total += weights
    np.testing.assert_allclose(total.sum(-1)[1], [[1, 1, 1, 1, 0]] * H, rtol=1e-5)


def test_hierarchical_attends_to_what_each_sentence_gave():
    module = COMBINATIONS["hierarchical"](CONFIG, (0, 1, 2))
    drawn = unboxed(module.init(jax.random.key(3), reading(), X)["params"])
    out, weights = module.apply({"params": drawn}, reading(), X)
    params = {name: np.asarray(x, np.float64) for name, x in drawn["over_sentences"].items()}
    each, heads = each_by_hand()
    context = np.stack(heads, 2)  # [B, L, N, D]
    query = np.einsum("BLD,DHK->BLHK", X, params["query"])
    key, value = (np.einsum("BLND,DHK->BLNHK", context, params[x]) for x in ("key", "value"))
    scores = np.einsum("BLHK,BLNHK->BLHN", query, key) / K**0.5
    seen = np.stack([one.any(-1)[:, 0] for one in each], -1)[:, :, None]  # [B, L, 1, N]
    shares = alone_by_hand(scores, seen)
    joined = np.einsum("BLHN,BLNHV->BLHV", shares, value)
    real = seen.any(-1)[..., 0, None]
    wanted = np.einsum("BLHV,HVD->BLD", joined, params["out"])
    assert relative_error(out * real, wanted * real) < 1e-5
    of_sentences = shares.mean(2)  # [B, L, N]
    together = np.einsum("BHLMN,BLN->BHLM", np.stack(each, -1), of_sentences)
    assert relative_error(weights, together) < 1e-5


def test_a_gate_mixes_the_first_sentence_with_the_others():
    module = COMBINATIONS["gated"](CONFIG, (0, 1, 2))
    params = unboxed(module.init(jax.random.key(5), reading(), X)["params"])
    out, weights = module.apply({"params": params}, reading(), X)
    each, heads = each_by_hand()
    others = COMBINATIONS["hierarchical"](CONFIG, (1, 2))
    d, of_others = others.apply({"params": params["others"]}, reading(), X)
    both = np.concatenate([heads[0], d], -1)
    gate = 1 / (1 + np.exp(-both @ np.asarray(params["gate"], np.float64)))
    gate *= np.stack([one.any(-1)[:, 0] for one in each[1:]]).any(0)[..., None]
    assert relative_error(out, (1 - gate) * heads[0] + gate * d) < 1e-5
    share = gate.mean(-1)[:, None, :, None]
    assert relative_error(weights, (1 - share) * each[0] + share * of_others) < 1e-5


def test_without_other_sentences_a_gate_is_closed():
    first = MASK & (SENTENCES == 0)[:, None, None]
    module = COMBINATIONS["gated"](CONFIG, (0, 1, 2))
    params = module.init(jax.random.key(5), reading(), X)
    out, weights = module.apply(params, reading(mask=first), X)
    each, heads = each_by_hand()
    assert relative_error(out, heads[0]) < 1e-6 and relative_error(weights, each[0]) < 1e-6
