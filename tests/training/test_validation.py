"""Validation's numbers, from each pair's own log probabilities."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from tests.fixtures.tiny import (
    VOCABULARY,
    lay_out,
    model_inputs,
    of_each_pair,
    random_pairs,
    random_params,
    tiny_model,
)
from transformer_jax.config.schema import MeshConfig
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.training.program import BatchShape
from transformer_jax.training.step import make_loss_fn
from transformer_jax.training.validation import make_validate

PAIRS = random_pairs(1, [(3, 4), (5, 2), (6, 7), (2, 5), (7, 3)])
ROWS = [[[0, 1], [2]], [[3, 4], []]]  # of two batches; the last row is empty


def test_loss_accuracy_and_score_are_of_every_pair_once():
    model = tiny_model(dropout=0.5)  # of which validation knows nothing
    params = random_params(model)
    batches = [lay_out(PAIRS, rows, 10, 10) for rows in ROWS]
    shape = BatchShape(2, 10, 10)
    data = SimpleNamespace(
        valid_shape=shape,
        valid_batches=lambda own: (jax.tree.map(lambda x: x[own], batch) for batch in batches),
    )
    mesh = make_mesh(MeshConfig())
    loss = make_loss_fn(model, 0.0)
    evaluate = jax.jit(lambda params, batch: loss(params, batch, None, None))
    program = SimpleNamespace(mesh=mesh, evaluate=evaluate)

    nats = 0.0
    right = 0
    count = 0
    for number, (_, target) in enumerate(PAIRS):
        alone = lay_out(PAIRS, [[number]], 8, 8)
        logits = model.apply({"params": params}, *model_inputs(alone))
        own = of_each_pair(np.asarray(logits, np.float64), alone, [[number]])[number]
        own = own[:, :VOCABULARY]
        chosen = own[np.arange(len(target)), target]
        nats += (np.log(np.exp(own).sum(-1)) - chosen).sum()
        right += int((own.argmax(-1) == target).sum())
        count += len(target)

    values, score = make_validate(data, program, None)(params)
    assert values == pytest.approx(
        {
            "nats_per_token": nats / count,
            "perplexity": np.exp(nats / count),
            "token_accuracy": right / count,
        },
        rel=1e-5,
    )
    assert score == -values["nats_per_token"], "higher is better"

    given = []
    with_bleu = make_validate(data, program, lambda params: given.append(params) or 12.5)
    values, score = with_bleu(params)
    assert values["bleu"] == score == 12.5 and given == [params]
    assert make_validate(data, program, lambda params: None)(params) is None, "a stop was requested"
