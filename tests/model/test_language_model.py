"""A decoder without an encoder, beside an encoder-decoder whose attention to the source is cut."""

import jax
import numpy as np
import pytest

from tests.fixtures.tiny import VOCABULARY, lay_out, model_inputs, random_pairs, tiny_model
from tests.fixtures.tiny import random_params as random_params_of
from transformer_jax.config.changes import with_values
from transformer_jax.config.checks import check
from transformer_jax.config.schema import Config
from transformer_jax.errors import ConfigError

PAIRS = random_pairs(5, [(9, 7), (4, 5), (2, 3)])
ROWS = [[1, 0], [2]]
ALONE = {"model.encoder": "none", "data.src": "", "data.tgt": "en", "data.path": "."}


def test_it_is_the_decoder_whose_attention_to_the_source_adds_nothing():
    """With pre-norm a sub-layer that adds 0 leaves its input as it is, so the logits are equal."""
    whole = tiny_model(norm="pre", num_layers=2)
    alone = tiny_model(norm="pre", num_layers=2, encoder="none")
    params = random_params_of(whole)
    own = {name: x for name, x in params.items() if not name.startswith("encoder")}
    for n in range(2):
        layer = dict(own[f"decoder_{n}"])
        cut = jax.tree.map(np.zeros_like, layer.pop("cross_attention"))
        layer.pop("cross_attention_residual")
        params[f"decoder_{n}"]["cross_attention"] = cut
        own[f"decoder_{n}"] = layer
    assert jax.tree.map(np.shape, own) == jax.tree.map(np.shape, random_params_of(alone))
    batch = model_inputs(lay_out(PAIRS, ROWS, 16, 16))
    want = jax.jit(whole.apply)({"params": params}, *batch)[..., :VOCABULARY]
    got = jax.jit(alone.apply)({"params": own}, *batch)[..., :VOCABULARY]
    real = batch[1].segments != 0
    np.testing.assert_allclose(got[real], want[real], rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data.src": "de"}, "model.encoder='none' and data.src='de' do not go together"),
        ({"model.encoder": "transformer"}, "model.encoder='transformer' and data.src=''"),
        ({"model.decoder": "recurrent"}, "model.decoder='recurrent' attends to an encoder"),
        ({"model.tie_embeddings": False, "model.tie_output": True}, "model.tie_embeddings=False"),
        ({"model.output": "copy"}, "no attention to a source. Use an encoder"),
        ({"train.coverage_weight": 1.0}, "train.coverage_weight=1.0: model.encoder='none'"),
        ({"train.hard_attention": "reinforce"}, "train.hard_attention='reinforce': model.encoder"),
        ({"model.cross_score": "dot"}, "model.cross_score='dot' changes nothing"),
        ({"model.sources": 2}, "model.sources=2 changes nothing"),
        ({"model.wait_k": 2}, "model.wait_k=2"),
        ({"train.valid_bleu": True}, "train.valid_bleu=True do not go together: nothing is"),
        ({"train.agreement_weight": 0.0}, "data.src='' and train.agreement_weight=0.0"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_needs_a_source_is_refused(changes, words):
    check(with_values(Config(), ALONE))
    with pytest.raises(ConfigError) as caught:
        check(with_values(Config(), ALONE | changes))
    assert words in str(caught.value)
