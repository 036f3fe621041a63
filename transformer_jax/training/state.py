"""The training state, which each training step updates."""

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.sharding import PartitionSpec

from transformer_jax.model.attention.hard_attention import REINFORCE, first_baseline
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.interfaces import Params
from transformer_jax.model.parameters import axis_names, init_stacked_params
from transformer_jax.model.stacked_params import stacked
from transformer_jax.training.elastic import Anchor

if TYPE_CHECKING:
    import optax  # the import takes 0.1 s, and translation does not need it

# Key in `TrainState.auxiliary` of the sum of tr(A B), see `model.auxiliary.agreement`. It is not
# multiplied by train.agreement_weight, which may be 0.
AGREEMENT = "agreement"


class Window(NamedTuple):
    """Sums since the last line of metrics, float32 scalars."""

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
        """A window without steps."""
        return cls(*(jnp.zeros((), jnp.float32) for _ in cls._fields))


class TrainState(NamedTuple):
    """The whole state of a run: what a checkpoint holds and a continued run needs."""

    step: Array  # int32 scalar, batches consumed; selects batch and key
    params: Params  # stacked by layer, see model/stacked_params.py
    opt_state: "optax.OptState"  # counts updates, which drives the schedule
    key: Array  # base key data; never split, only folded with `step`
    skipped: Array  # int32 scalar, updates skipped because they were not finite
    skipped_in_a_row: Array  # int32 scalar
    window: Window
    # The window's sums of auxiliary losses, each times its weight, and of AGREEMENT. They are not
    # in `Window`, because checkpoints that were made without them must still load.
    auxiliary: Mapping[str, Array] = {}
    baseline: Array | None = None  # expected nats per subword; only with train.hard_attention
    anchor: Anchor | None = None  # only with train.elastic_weight


# What a run's training step updates: one state, or that of each direction of translation.
States = tuple[TrainState, ...]


def init_state(
    seed: int,
    model: EncoderDecoder,
    optimizer: "optax.GradientTransformation",
    auxiliary: Collection[str] = (),
    elastic: bool = False,
) -> TrainState:
    """The state before the first step.

    Args:
      auxiliary: names of its sums of auxiliary losses.
      elastic: whether it has an anchor, which holds nothing yet.
    """
    init_key, key = jax.random.split(jax.random.key(seed))
    params = init_stacked_params(model, init_key)
    zero = jnp.zeros((), jnp.int32)
    return TrainState(
        step=zero,
        params=params,
        opt_state=optimizer.init(params),
        key=jax.random.key_data(key),
        skipped=zero,
        skipped_in_a_row=zero,
        window=Window.zero(),
        auxiliary={name: jnp.zeros((), jnp.float32) for name in auxiliary},
        baseline=first_baseline(model.sizes.target) if REINFORCE in auxiliary else None,
        anchor=Anchor(*(jax.tree.map(jnp.zeros_like, params),) * 2) if elastic else None,
    )


def state_names(model: EncoderDecoder, state: TrainState) -> TrainState:
    """The axis names of each array of a state; an optimizer's moments have their parameter's."""
    params = stacked(axis_names(model), lambda *layers: PartitionSpec(None, *layers[0]))
    names = dict(jax.tree_util.tree_leaves_with_path(params))

    def of_parameter(path: tuple[Any, ...], leaf: Array) -> PartitionSpec:
        """A moment's path ends with its parameter's."""
        ends = (path[start:] for start in range(len(path)))
        return next((names[end] for end in ends if end in names), PartitionSpec())

    whole: TrainState = jax.tree.map(lambda _: PartitionSpec(), state)
    opt_state = jax.tree_util.tree_map_with_path(of_parameter, state.opt_state)
    anchor = state.anchor and Anchor(params, params)
    return whole._replace(params=params, opt_state=opt_state, anchor=anchor)
