"""The programs that a run compiles: a training and a validation step, each for one batch shape."""

import concurrent.futures
import dataclasses
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax import allocator
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.train import TrainConfig
from transformer_jax.errors import ConfigError
from transformer_jax.model.encoder_decoder import EncoderDecoder, make_model
from transformer_jax.model.interfaces import LossSums, Params
from transformer_jax.model.kernels.choices import GPUS, with_attention_kernel
from transformer_jax.model.outputs.objectives import loss_weights, reads_watched
from transformer_jax.model.parameters import product_axes
from transformer_jax.model.stacked_params import stacked, unstacked
from transformer_jax.parallel.mesh import batch_sharding, batch_ways, placed, with_shardings
from transformer_jax.text.batches import Batch, Packed
from transformer_jax.text.encoded import Taught
from transformer_jax.text.links import BITS
from transformer_jax.text.vocabulary import Sizes
from transformer_jax.training.optimizer import make_optimizer
from transformer_jax.training.state import AGREEMENT, States, TrainState, init_state, state_names
from transformer_jax.training.step import loss_block, make_loss_fn, make_train_step
from transformer_jax.training.two_directions import make_two_way_step


class BatchShape(NamedTuple):
    """The shape of one packed batch."""

    rows: int
    src_length: int  # positions in a row
    tgt_length: int
    has_links: bool = False  # between subwords, with data.alignments
    features: int = 0  # numbers at each source position; 0: subwords
    taught: int = 0  # subwords of a teacher at each target position; 0: there is no teacher

    def swapped(self) -> "BatchShape":
        """The shape for the other direction of translation."""
        return self._replace(src_length=self.tgt_length, tgt_length=self.src_length)

    @property
    def lengths(self) -> tuple[int, int]:
        """Positions of a row in the source and in the target."""
        return self.src_length, self.tgt_length

    def abstract(self) -> Batch:
        """Shapes and types of the batch's arrays."""
        src = jax.ShapeDtypeStruct((self.rows, self.src_length), jnp.int32)
        tgt = jax.ShapeDtypeStruct((self.rows, self.tgt_length), jnp.int32)
        bits = (self.rows, self.tgt_length, -(-self.src_length // BITS))
        links = jax.ShapeDtypeStruct(bits, jnp.uint32) if self.has_links else None
        source = Packed(src, src, src)
        if self.features:
            numbers = jax.ShapeDtypeStruct((*src.shape, self.features), jnp.float32)
            source = source._replace(features=numbers)
        taught = None
        if self.taught:
            likeliest = (*tgt.shape, self.taught)
            types = jnp.int32, jnp.float32
            taught = Taught(*(jax.ShapeDtypeStruct(likeliest, one) for one in types))
        return Batch(source, Packed(tgt, tgt, tgt), links, taught)


class Program(NamedTuple):
    """The compiled training step and what belongs to it."""

    model: EncoderDecoder
    optimizer: optax.GradientTransformation
    mesh: Mesh
    state: TrainState  # shapes, types and shardings; both directions have the same
    train_step: Callable[[States, Batch], States]  # donates the states
    eval_step: Callable[[Params, Batch], LossSums]  # see `evaluate`
    memory_bytes: int  # per device: arguments and temporaries of the training step

    def init(self, seed: int) -> TrainState:
        """The state before the first step."""

        def start() -> TrainState:
            elastic = self.state.anchor is not None
            return init_state(seed, self.model, self.optimizer, self.state.auxiliary, elastic)

        # It runs once, so compile it with fewer optimizations: this halves the seconds of compiling
        # and adds only as many milliseconds to running. A user's own level has priority.
        quickly = {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True}
        chosen = "xla_backend_optimization_level" in os.environ.get("XLA_FLAGS", "")
        on_cpu = jax.default_backend() == "cpu"
        state = jax.jit(
            start,
            out_shardings=shardings_of(self.state),
            compiler_options=quickly if on_cpu and not chosen else None,
        )()
        allocator.give_back()
        return state

    def evaluate(self, params: Params, batch: Batch) -> LossSums:
        """The loss of a batch without dropout and smoothing; compiles when first called."""
        with placed(self.mesh, self.model):
            return self.eval_step(params, batch)

    def replicated(self, params: Params) -> Params:
        """The parameters of a state as the model takes them, replicated on every device."""
        return jax.jit(unstacked, out_shardings=NamedSharding(self.mesh, PartitionSpec()))(params)

    @property
    def saved_state(self) -> TrainState:
        """Shapes, types and shardings of the state in a checkpoint."""
        saved: TrainState = unstacked(self.state, layers_of)
        return saved

    def to_save(self, state: TrainState) -> TrainState:
        """The state for a checkpoint, which stores the parameters of each layer separately."""
        saved: TrainState = _unstack(state)
        return saved

    def from_saved(self, saved: Any) -> Any:
        """The state, or the parameters, of a checkpoint as the training step takes them."""
        like = self.state if isinstance(saved, TrainState) else self.state.params
        return jax.jit(stacked, out_shardings=shardings_of(like))(saved)


_unstack = jax.jit(unstacked)


def layers_of(x: jax.ShapeDtypeStruct) -> tuple[jax.ShapeDtypeStruct, ...]:
    """The shape of a layer's parameter, for each layer of a stack."""
    assert isinstance(x.sharding, NamedSharding)
    own = NamedSharding(x.sharding.mesh, PartitionSpec(*x.sharding.spec[1:]))
    return (jax.ShapeDtypeStruct(x.shape[1:], x.dtype, sharding=own),) * x.shape[0]


def shardings_of(tree: Any) -> Any:
    """The sharding of each array or abstract array."""
    return jax.tree.map(lambda x: x.sharding, tree)


def check_rows(train: TrainConfig, mesh: Mesh, rows: int) -> None:
    """Raises ConfigError if a batch's rows do not divide over devices and micro-batches."""
    ways = batch_ways(mesh) * train.accumulate_steps
    if rows % ways:
        raise ConfigError(
            f"a batch of {rows} rows (train.tokens_per_batch={train.tokens_per_batch}, "
            f"train.row_length={train.row_length}, "
            f"train.rows_multiple={train.rows_multiple}) does not divide into "
            f"{mesh.shape['data']} x {mesh.shape['fsdp']} devices x "
            f"{train.accumulate_steps} micro-batches. Set mesh.data, mesh.fsdp or "
            f"train.accumulate_steps so that their product divides {rows}, or "
            f"train.rows_multiple={ways}."
        )


def compile_program(
    model_config: ModelConfig,
    train: TrainConfig,
    mesh: Mesh,
    sizes: Sizes | int,
    shape: BatchShape,
    meanwhile: Callable[[], Any] | None = None,
) -> Program:
    """Compiles the training step ahead of time, without running anything.

    Args:
      train: batches, optimizer and loss.
      sizes: sizes of the vocabularies.
      shape: shape of a batch.
      meanwhile: called in another thread while XLA compiles, which needs no Python; this function
        returns after it has ended.
    """
    auxiliary = loss_weights(train)
    device = mesh.devices.flat[0]
    platform = "rocm" if device.device_kind.startswith("AMD") else device.platform  # both "gpu"
    model_config = with_attention_kernel(model_config, platform)
    block = loss_block(train, platform)
    train = dataclasses.replace(train, loss_block=block)
    both = train.agreement_weight is not None
    sums = (*auxiliary, AGREEMENT) if both else tuple(auxiliary)
    model = make_model(model_config, sizes, train.remat, watch=reads_watched(sums))
    optimizer = make_optimizer(train, model_config.d_model, product_axes(model))
    elastic = train.elastic_weight > 0
    state = jax.eval_shape(lambda: init_state(0, model, optimizer, sums, elastic))
    state = with_shardings(state, state_names(model, state), mesh)
    states = (state,) * (1 + both)
    ways = batch_ways(mesh)
    make_step = make_two_way_step if both else _make_step
    step = jax.jit(
        make_step(model, optimizer, train, ways),
        in_shardings=(shardings_of(states), batch_sharding(mesh)),
        out_shardings=shardings_of(states),
        donate_argnums=0,
    )
    with placed(mesh, model), concurrent.futures.ThreadPoolExecutor(1) as beside:
        lowered = step.lower(states, shape.abstract())
        done = beside.submit(meanwhile or (lambda: None))
        compiled = lowered.compile(compiler_options(platform))
        done.result()
    allocator.give_back()
    memory = compiled.memory_analysis()
    held = memory.temp_size_in_bytes + memory.argument_size_in_bytes if memory else 0
    loss = make_loss_fn(model, 0.0, block, ways)

    def eval_step(params: Params, batch: Batch) -> LossSums:
        return loss(params, batch, None, None)

    return Program(model, optimizer, mesh, state, compiled, jax.jit(eval_step), held)


def _make_step(*arguments: Any) -> Callable[[States, Batch], States]:
    """`make_train_step` for states in a tuple."""
    update = make_train_step(*arguments)

    def train_step(states: States, batch: Batch) -> States:
        return (update(states[0], batch),)

    return train_step


def compiler_options(platform: str) -> dict[str, str | bool]:
    """XLA's options for the training step.

    On a GPU they keep the products of queries, keys and values apart. XLA joins them otherwise, and
    then copies the parts of the result: a step of base takes 1.03 times as long (docs/gpu_runs.md).
    """
    return {"xla_gpu_dot_merger_threshold_mb": "0"} if platform in GPUS else {}
