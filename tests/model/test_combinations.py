"""Several source sentences in encoder-decoder attention: the softmax of each alone, summed."""

import jax.numpy as jnp
import numpy as np

from tests.fixtures.references import dot_by_hand, softmax_by_hand, values_by_hand
from tests.fixtures.tiny import relative_error
from transformer_jax.model.attention.combinations import COMBINATIONS, mean_over_sentences
from transformer_jax.model.attention.multi_head import attend
from transformer_jax.model.attention.normalizers import softmax

B, L, M, H, K, V = 2, 5, 7, 3, 4, 6
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


def test_parallel_sums_attention_to_each_sentence():
    normalize = COMBINATIONS["parallel"](softmax, jnp.asarray(SENTENCES), 3)
    heads, weights = attend(QUERY, KEY, VALUE, MASK, normalize=normalize)
    scores = dot_by_hand(QUERY, KEY, K**-0.5)
    each = [alone_by_hand(scores, MASK & (SENTENCES == n)[:, None, None]) for n in range(3)]
    assert relative_error(weights, sum(each)) < 1e-6
    assert relative_error(heads, sum(values_by_hand(one, VALUE) for one in each)) < 1e-6
    sums = np.asarray(weights).sum(-1)  # the number of sentences of the query's pair
    np.testing.assert_allclose(sums[0], [[2, 2, 3, 3, 3]] * H, rtol=1e-5)
    np.testing.assert_allclose(sums[1], [[3, 3, 3, 3, 0]] * H, rtol=1e-5)
    mean = mean_over_sentences(weights, MASK, jnp.asarray(SENTENCES), 3)
    np.testing.assert_allclose(np.asarray(mean).sum(-1)[0], 1, rtol=1e-5)  # some see two sentences
    np.testing.assert_allclose(mean[1], weights[1] / 3, rtol=1e-6)
