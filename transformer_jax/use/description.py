"""What a run is, in words, before its first step."""

import jax

from transformer_jax.config.schema import Config
from transformer_jax.model.sides.embeddings import padded_vocabulary
from transformer_jax.parallel import processes
from transformer_jax.text.batches import bucket_lengths, bucket_rows
from transformer_jax.text.vocabulary import Sizes, both_sides
from transformer_jax.training import cost
from transformer_jax.training.program import BatchShape, Program


def describe(
    config: Config,
    program: Program,
    sizes: Sizes | int,
    shape: BatchShape,
    fill: float,
    epoch: float | None = None,
) -> list[str]:
    """Lines about a run before its first step, for the log and for `--dry_run`.

    Args:
      config: the run's config.
      program: its compiled step.
      sizes: sizes of its vocabularies.
      shape: of a batch.
      fill: the share of target positions that are not padding.
      epoch: steps of an epoch; None: not known.
    """
    both = [f"{size:,}, padded to {padded_vocabulary(size):,}" for size in both_sides(sizes)]
    parameters = sum(x.size for x in jax.tree.leaves(program.state.params))
    two_ways = config.train.agreement_weight is not None
    flops = shape.rows * cost.step_flops(config.model, sizes, shape.lengths, config.train)
    each = " in each direction" if two_ways else ""
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
    steps = config.train.steps
    epochs = []
    if epoch is not None:
        epochs = [f"epoch: {epoch:,.1f} steps; {steps:,} steps are {steps / epoch:,.1f} epochs"]
    return [
        f"parameters: {parameters:,}{each} (vocabulary {'; target '.join(dict.fromkeys(both))})",
        f"batch: {shape.rows} rows of {shape.src_length} source and {shape.tgt_length} target "
        f"positions, about {tokens:,.0f} real target tokens "
        f"(nominal {config.train.tokens_per_batch:,}), "
        f"in {config.train.accumulate_steps} micro-batches of {micro} rows",
        *epochs,
        f"training FLOPs a step: {flops:.3e} (matrix products, forward and backward)",
        f"training FLOPs of {steps:,} steps: {steps * flops:.3e}",
        f"memory of the step: {program.memory_bytes / 2**20:,.0f} MiB a device",
        f"mesh: {axes} on {devices.size} x {devices.flat[0].device_kind}{of_processes}",
        f"programs to compile: 1 initial state, 1 training step, 1 validation step{searches}",
    ]
