"""What training carries from one step to the next."""

import dataclasses
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.schema import Config
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.layers import DecoderLayer, EncoderLayer
from transformer_jax.model.transformer import Transformer

if TYPE_CHECKING:
    import optax  # takes 0.1 s, and translation needs none

Params = Any  # a pytree of float32 arrays


class Window(NamedTuple):
    """Sums since the last line of metrics; float32 scalars."""

    smoothed_nats: Array
    nats: Array
    correct: Array
    tgt_tokens: Array
    src_tokens: Array
    slots: Array  # source and target positions of the batches, padding included
    grad_norm: Array
    steps: Array

    @classmethod
    def zero(cls) -> "Window":
        """The start of a window."""
        return cls(*(jnp.zeros((), jnp.float32) for _ in cls._fields))


class TrainState(NamedTuple):
    """The whole state of a run; a checkpoint holds it and nothing else is needed to go on."""

    step: Array  # int32 scalar, batches consumed; selects batch and key
    params: Params
    opt_state: "optax.OptState"  # counts updates, which drives the schedule
    key: Array  # base key data; never split, only folded with `step`
    skipped: Array  # int32 scalar, updates skipped as not finite
    skipped_in_a_row: Array  # int32 scalar
    window: Window


def init_params(model: EncoderDecoder, key: Array) -> Params:
    """The model's initial parameters, a pure function of the key.

    A Transformer's layers are drawn together, stack by stack: to compile each draw takes seconds.
    """
    # Shapes of parameters do not depend on the batch's.
    ids = jnp.ones((1, 2), jnp.int32)
    if not isinstance(model, Transformer):
        drawn: Params = model.init(key, *(ids,) * 6)["params"]
        return drawn
    config, (other_key, *stack_keys) = model.config, jax.random.split(key, 3)
    x, mask = jnp.ones((1, 2, config.d_model)), jnp.ones((2, 2))
    without_layers = model.clone(config=dataclasses.replace(config, num_layers=0))
    params: Params = without_layers.init(other_key, *(ids,) * 6)["params"]

    def encoder_layer(key: Array) -> Params:
        return EncoderLayer(config).init(key, x, mask, None)["params"]

    def decoder_layer(key: Array) -> Params:
        return DecoderLayer(config).init(key, x, x, mask, mask, None)["params"]

    layers = {"encoder": encoder_layer, "decoder": decoder_layer}
    for (name, init_layer), stack_key in zip(layers.items(), stack_keys, strict=True):
        stack = jax.vmap(init_layer)(jax.random.split(stack_key, config.num_layers))
        for n in range(config.num_layers):
            params[f"{name}_{n}"] = jax.tree.map(lambda x, n=n: x[n], stack)
    return params


def init_state(
    config: Config, model: EncoderDecoder, optimizer: "optax.GradientTransformation"
) -> TrainState:
    """The state before the first step, from `config.seed`."""
    init_key, key = jax.random.split(jax.random.key(config.seed))
    params = init_params(model, init_key)
    zero = jnp.zeros((), jnp.int32)
    return TrainState(
        step=zero,
        params=params,
        opt_state=optimizer.init(params),
        key=jax.random.key_data(key),
        skipped=zero,
        skipped_in_a_row=zero,
        window=Window.zero(),
    )
