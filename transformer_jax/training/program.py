"""The programs that a run compiles: a training and a validation step, each for one batch shape."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from transformer_jax import allocator
from transformer_jax.config.schema import Config
from transformer_jax.errors import ConfigError
from transformer_jax.model.embeddings import padded_vocabulary
from transformer_jax.model.encoder_decoder import EncoderDecoder, make_model
from transformer_jax.model.records import LossSums, Params
from transformer_jax.parallel import processes
from transformer_jax.parallel.mesh import batch_sharding, batch_ways, placed, with_shardings
from transformer_jax.text.batches import Batch, Packed, bucket_lengths, bucket_rows
from transformer_jax.training import cost
from transformer_jax.training.optimizer import make_optimizer
from transformer_jax.training.state import TrainState, init_state, state_names
from transformer_jax.training.step import LossFn, make_loss_fn, make_train_step


class BatchShape(NamedTuple):
    """The shape of one packed batch."""

    rows: int
    src_length: int  # positions in a row
    tgt_length: int

    def abstract(self) -> Batch:
        """Shapes and types of the batch's arrays."""
        src = jax.ShapeDtypeStruct((self.rows, self.src_length), jnp.int32)
        tgt = jax.ShapeDtypeStruct((self.rows, self.tgt_length), jnp.int32)
        return Batch(Packed(src, src, src), Packed(tgt, tgt, tgt))


class Program(NamedTuple):
    """The compiled training step and what belongs to it."""

    model: EncoderDecoder
    optimizer: optax.GradientTransformation
    mesh: Mesh
    state: TrainState  # shapes, types and shardings
    train_step: Callable[[TrainState, Batch], TrainState]  # donates the state
    eval_loss: LossFn  # without smoothing; not compiled
    memory_bytes: int  # per device: arguments and temporaries of the training step

    def init(self, config: Config) -> TrainState:
        """The state before the first step."""

        def start() -> TrainState:
            return init_state(config.seed, self.model, self.optimizer)

        # It runs once, so compile it with fewer optimizations: this halves the seconds of compiling
        # and adds only as many milliseconds to running.
        quickly = {"xla_backend_optimization_level": 1, "xla_llvm_disable_expensive_passes": True}
        on_cpu = jax.default_backend() == "cpu"
        state = jax.jit(
            start,
            out_shardings=shardings_of(self.state),
            compiler_options=quickly if on_cpu else None,
        )()
        allocator.give_back()
        return state

    def replicated(self, params: Params) -> Params:
        """The parameters, replicated on every device."""
        return jax.jit(lambda x: x, out_shardings=NamedSharding(self.mesh, PartitionSpec()))(params)


def shardings_of(tree: Any) -> Any:
    """The sharding of each array or abstract array."""
    return jax.tree.map(lambda x: x.sharding, tree)


def check_rows(config: Config, mesh: Mesh, rows: int) -> None:
    """Raises ConfigError if a batch's rows do not divide over devices and micro-batches."""
    ways = batch_ways(mesh) * config.train.accumulate_steps
    if rows % ways:
        raise ConfigError(
            f"a batch of {rows} rows (train.tokens_per_batch={config.train.tokens_per_batch}, "
            f"train.row_length={config.train.row_length}, "
            f"train.rows_multiple={config.train.rows_multiple}) does not divide into "
            f"{mesh.shape['data']} x {mesh.shape['fsdp']} devices x "
            f"{config.train.accumulate_steps} micro-batches. Set mesh.data, mesh.fsdp or "
            f"train.accumulate_steps so that their product divides {rows}."
        )


def compile_program(config: Config, mesh: Mesh, vocabulary_size: int, shape: BatchShape) -> Program:
    """Compiles the training step ahead of time, without running anything."""
    model = make_model(config.model, vocabulary_size, config.train.remat)
    optimizer = make_optimizer(config)
    state = jax.eval_shape(lambda: init_state(config.seed, model, optimizer))
    state = with_shardings(state, state_names(model, optimizer, state), mesh)
    ways = batch_ways(mesh)
    step = jax.jit(
        make_train_step(model, optimizer, config.train, ways),
        in_shardings=(shardings_of(state), batch_sharding(mesh)),
        out_shardings=shardings_of(state),
        donate_argnums=0,
    )
    with placed(mesh, model):
        compiled = step.lower(state, shape.abstract()).compile()
    allocator.give_back()
    memory = compiled.memory_analysis()
    held = memory.temp_size_in_bytes + memory.argument_size_in_bytes if memory else 0
    eval_loss = make_loss_fn(model, 0.0, config.train.loss_block, ways)
    return Program(model, optimizer, mesh, state, compiled, eval_loss, held)


def make_eval_step(program: Program) -> Callable[[Params, Batch], LossSums]:
    """Sums of the loss without dropout and smoothing, compiled at its first call."""

    def eval_step(params: Params, batch: Batch) -> LossSums:
        return program.eval_loss(params, batch, None, None)

    compiled = jax.jit(eval_step)

    def placed_eval_step(params: Params, batch: Batch) -> LossSums:
        with placed(program.mesh, program.model):
            return compiled(params, batch)

    return placed_eval_step


def describe(
    config: Config, program: Program, vocabulary_size: int, shape: BatchShape, fill: float
) -> list[str]:
    """Describes a run before its first step, in lines for the log and for `--dry_run`."""
    padded = padded_vocabulary(vocabulary_size)
    parameters = sum(x.size for x in jax.tree.leaves(program.state.params))
    flops = shape.rows * cost.training_flops(config.model, vocabulary_size, *shape[1:])
    micro = shape.rows // config.train.accumulate_steps
    tokens = shape.rows * shape.tgt_length * fill
    axes = ", ".join(f"{axis} {size}" for axis, size in program.mesh.shape.items())
    devices = program.mesh.devices
    of_processes = f" of {processes.count()} processes" if processes.count() > 1 else ""
    decode = config.decode
    shapes = sum(
        len(bucket_rows(length, decode.tokens_per_batch))
        for length in bucket_lengths(decode.max_length)
    )
    searches = f", up to {shapes} searches of validation BLEU" if config.train.valid_bleu else ""
    return [
        f"parameters: {parameters:,} (vocabulary {vocabulary_size:,}, padded to {padded:,})",
        f"batch: {shape.rows} rows of {shape.src_length} source and {shape.tgt_length} target "
        f"positions, about {tokens:,.0f} real target tokens "
        f"(nominal {config.train.tokens_per_batch:,}), "
        f"in {config.train.accumulate_steps} micro-batches of {micro} rows",
        f"training FLOPs a step: {flops:.3e} (matrix products, forward and backward)",
        f"training FLOPs of {config.train.steps:,} steps: {config.train.steps * flops:.3e}",
        f"memory of the step: {program.memory_bytes / 2**20:,.0f} MiB a device",
        f"mesh: {axes} on {devices.size} x {devices.flat[0].device_kind}{of_processes}",
        f"programs to compile: 1 initial state, 1 training step, 1 validation step{searches}",
    ]
