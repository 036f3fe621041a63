"""Which heads matter, by gates that are learned while the weights stay.

A gate is drawn as clip(s (ZETA - GAMMA) + GAMMA, 0, 1), with s = sigmoid((log alpha + u) / BETA)
and logistic noise u, so that it is 0, 1 or between them. What is minimized is the mean nats of a
subword plus the expected share of gates above 0. Heads whose log alpha stays high are needed.
Source: Louizos, Welling and Kingma 2018, equations 10 to 12; for heads Voita et al. 2019.

Dimension key
  B rows, one pair each   L target length
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import Array

from transformer_jax.evaluation.explanations import log_probs
from transformer_jax.evaluation.head_importance import attentions, gated
from transformer_jax.model.attention.traces import in_rows
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import Params

BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1  # Louizos et al. 2018, section 4
START, RATE = 2.0, 0.1  # the first log alpha, and Adam's learning rate


def learned_gates(
    model: EncoderDecoder,
    params: Params,
    sources: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    updates: int,
    seed: int,
) -> dict[str, np.ndarray]:
    """log alpha of each head, by "decoder_0/cross_attention": float32 `[heads]`.

    Args:
      model, params, sources, targets: as in `importance`; all pairs are one batch.
      updates: how many, of Adam.
      seed: of the noise.
    """
    lengths = max(map(len, sources)), max(map(len, targets))
    rows, heads = in_rows(sources, targets, len(sources), lengths), model.config.num_heads
    real_BL = rows.target.segments != 0

    def loss(log_alpha: dict[str, Array], params: Params, key: Array) -> Array:
        noise = jax.random.logistic(key, (len(log_alpha), heads))
        drawn = {name: gates(x + noise[n]) for n, (name, x) in enumerate(log_alpha.items())}
        found_BL = log_probs(model, {"params": gated(params, drawn)}, rows)
        return -jnp.where(real_BL, found_BL, 0.0).sum() / real_BL.sum() + share_open(log_alpha)

    optimizer = optax.adam(RATE)

    @jax.jit
    def update(log_alpha: Any, state: Any, params: Params, key: Array) -> Any:
        changes, state = optimizer.update(jax.grad(loss)(log_alpha, params, key), state)
        return optax.apply_updates(log_alpha, changes), state

    log_alpha = {name: jnp.full(heads, START) for name in attentions(model)}
    state = optimizer.init(log_alpha)
    for key in jax.random.split(jax.random.key(seed), updates):
        log_alpha, state = update(log_alpha, state, params, key)
    return {name: np.asarray(own) for name, own in log_alpha.items()}


def gates(logits: Array) -> Array:
    """Gates from 0 to 1, of log alpha plus noise."""
    return jnp.clip(jax.nn.sigmoid(logits / BETA) * (ZETA - GAMMA) + GAMMA, 0, 1)


def share_open(log_alpha: Mapping[str, Array]) -> Array:
    """The expected share of gates above 0."""
    shift = BETA * np.log(-GAMMA / ZETA)
    return jnp.stack([jax.nn.sigmoid(x - shift).mean() for x in log_alpha.values()]).mean()
