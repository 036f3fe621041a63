"""Compiles the training step for an H200, without one, and writes what it costs at best.

    make gpu-plan

It needs Python 3.12, JAX 0.12 and the packages of the extra `gpu-plan`, which `make gpu-plan` puts
into an environment of its own. A compilation takes one to two minutes on two cores. The command
fails if a size exceeds a limit of benchmarks/gpu_limits.json.
"""

import datetime
import json
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.gpu_roofline import (
    BYTES_PER_S,
    FLOPS_PER_S,
    MATRIX_RATE,
    Kernel,
    conditionals,
    kernels,
)
from transformer_jax.decoding.rows import SearchShape
from transformer_jax.errors import ConfigError, RunError
from transformer_jax.files import write_atomically
from transformer_jax.reporting.provenance import revision
from transformer_jax.use.command_line import Flag, exit_status, parse_flags

if TYPE_CHECKING:
    from jax.stages import Traced

    from transformer_jax.model.encoder_decoder import EncoderDecoder

HERE = Path(__file__).parent
DEVICE, LIMITS = HERE / "h200.txtpb", HERE / "gpu_limits.json"
BIG = {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}
SIZES: dict[str, dict[str, Any]] = {"base": {}, "big": BIG}
# The keys for speed on a GPU; "auto", the default, is the fused attention kernel there.
KEYS = {"dtype": "bfloat16", "residual_dtype": "bfloat16", "attention_kernel": "auto"}
ROWS, LENGTH, VOCABULARY = 104, 256, 37_000
SEARCH = SearchShape(
    rows=256,
    together=32,
    src_length=64,
    beam_size=4,
    n_best=1,
    size=114,
    max_extra_length=50,
    penalizes_coverage=False,
)
FLAGS = (
    Flag("sizes", str, "NAMES", f"of {', '.join(SIZES)}", default=",".join(SIZES)),
    Flag("search", bool, "BOOL", "compile a step of search too", default=True),
    Flag("out", str, "FILE", "the page to write", default="docs/gpu_plan.md"),
)


def _time_and_launches(kernels: Sequence[Kernel]) -> dict[str, float]:
    return {
        "milliseconds": 1e3 * sum(one.seconds for one in kernels),
        "kernels": sum(one.calls for one in kernels),
    }


class SearchCost(NamedTuple):
    """What one compiled search step costs."""

    kernels: Sequence[Kernel]
    conditionals: int
    compile_seconds: float

    @property
    def totals(self) -> dict[str, float]:
        """What has a limit."""
        return {
            **_time_and_launches(self.kernels),
            "conditionals": self.conditionals,
        }


class Cost(NamedTuple):
    """What the compiled step of one size costs."""

    kernels: Sequence[Kernel]
    temporaries_gib: float
    compile_seconds: float
    flops: int  # of the equations: without what the backward pass computes again

    @property
    def totals(self) -> dict[str, float]:
        """What has a limit."""
        return {
            **_time_and_launches(self.kernels),
            "temporaries_gib": self.temporaries_gib,
        }


def device_mesh() -> Any:
    """A mesh of one device that this machine does not have."""
    import numpy as np
    from jax.experimental import topologies
    from jax.sharding import Mesh

    from transformer_jax.parallel.mesh import AXES

    topology = topologies.get_topology_desc(
        "1x1x1", "cuda", target_config=DEVICE.read_text(), topology="1x1x1"
    )
    return Mesh(np.array(topology.devices).reshape(1, 1, 1), AXES)


def compiled_cost(changes: Mapping[str, Any]) -> Cost:
    """Compiles the training step of the paper's model with these keys changed, and `KEYS`."""
    from transformer_jax.config.model import ModelConfig
    from transformer_jax.config.train import TrainConfig
    from transformer_jax.training.cost import training_flops
    from transformer_jax.training.program import BatchShape, compile_program

    mesh = device_mesh()
    config = ModelConfig(**KEYS, **changes)
    shape = BatchShape(ROWS, LENGTH, LENGTH)
    start = time.perf_counter()
    program = compile_program(config, TrainConfig(), mesh, VOCABULARY, shape)
    seconds = time.perf_counter() - start
    compiled: Any = program.train_step
    temporaries = compiled.memory_analysis().temp_size_in_bytes / 2**30
    flops = ROWS * training_flops(config, VOCABULARY, LENGTH, LENGTH)
    return Cost(kernels(compiled.as_text()), temporaries, seconds, flops)


def compiled_search() -> SearchCost:
    """Compiles one search step of the base model in bfloat16."""
    from jax.sharding import NamedSharding, PartitionSpec

    from transformer_jax.config.model import ModelConfig
    from transformer_jax.model.encoder_decoder import make_model

    model = make_model(ModelConfig(dtype="bfloat16"), VOCABULARY)
    whole = NamedSharding(device_mesh(), PartitionSpec())
    start = time.perf_counter()
    text = traced_search(model, SEARCH, whole).lower().compile().as_text()
    return SearchCost(kernels(text), conditionals(text), time.perf_counter() - start)


def traced_search(model: "EncoderDecoder", shape: SearchShape, sharding: Any = None) -> "Traced":
    """One step of search, traced for arrays of this shape and sharding."""
    import jax

    from transformer_jax.decoding.rows import empty_rows, prepared_output
    from transformer_jax.decoding.search import advance, make_rules
    from transformer_jax.decoding.state import SearchState
    from transformer_jax.model.parameters import abstract_params

    def placed(tree: Any) -> Any:
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), tree
        )

    def search_step(params: Any, prepared: Any, state: SearchState) -> SearchState:
        def step(*of_step: Any) -> Any:
            return model.apply({"params": params}, *of_step, prepared, method="decode_step")

        return advance(step, make_rules(shape.size, 0.6), state)

    params = placed(abstract_params(model))
    prepared = placed(jax.eval_shape(lambda params: prepared_output(model, params), params))
    rows = placed(jax.eval_shape(lambda: empty_rows(model, shape)))
    return jax.jit(search_step, donate_argnums=2).trace(params, prepared, rows.search)


def table(cost: Cost | SearchCost) -> str:
    """A line for each part of the model, the slowest first, and their sum."""
    parts: dict[str, list[Kernel]] = {}
    for one in cost.kernels:
        parts.setdefault(one.part, []).append(one)
    ordered = sorted(parts.items(), key=lambda part: -sum(one.seconds for one in part[1]))
    lines = [
        "| part | ms | kernels | GiB moved | TFLOP |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, own in [*ordered, ("**all**", cost.kernels)]:
        moved = sum(one.calls * one.bytes for one in own) / 2**30
        flops = sum(one.calls * sum(one.flops.values()) for one in own) / 1e12
        cells = (1e3 * sum(one.seconds for one in own), sum(one.calls for one in own), moved, flops)
        lines.append("| {} | {:.1f} | {:,} | {:.1f} | {:.2f} |".format(name, *cells))
    return "\n".join(lines)


def page(costs: Mapping[str, Cost], search: SearchCost | None) -> str:
    """The page docs/gpu_plan.md."""
    import jax

    rates = (
        f"{BYTES_PER_S / 1e12:g} TB/s; {FLOPS_PER_S['bf16'] / 1e12:g} TFLOP/s for bfloat16: "
        f"80 % of {MATRIX_RATE / 1e12:g}, assumed for large products; "
        f"{FLOPS_PER_S['f32'] / 1e12:g} TFLOP/s for float32"
    )
    parts = [
        "# The training step on an H200, planned without one",
        f"`make gpu-plan`, {datetime.date.today()}, JAX {jax.__version__}, revision {revision()}. "
        "XLA compiled the whole step for the device that benchmarks/h200.txtpb describes. The "
        "times are lower bounds, not measurements: each kernel takes as long as the slower of its "
        f"memory traffic and its products ({rates}). Each kernel is counted in the part of its "
        "last operation. Without the device XLA cannot choose between kernels by measurement, so "
        "every product is a Triton kernel here. docs/gpu_runs.md has measurements of an H200.",
        "A kernel of the project's own (fused attention, residuals, loss) counts the bytes of "
        "its operands and results, and the FLOPs of its formula.",
        f"{ROWS} rows of {LENGTH} source and {LENGTH} target positions, vocabulary {VOCABULARY:,}, "
        + ", ".join(f"`model.{key}={value!r}`" for key, value in KEYS.items())
        + ", one device. Limits: benchmarks/gpu_limits.json.",
    ]
    for name, cost in costs.items():
        share = 1e3 * cost.flops / cost.totals["milliseconds"] / MATRIX_RATE
        parts += [
            f"## {name}",
            table(cost),
            f"At best {share:.0%} of the rate that large products are assumed to have "
            f"({MATRIX_RATE / 1e12:g} TFLOP/s), by the {cost.flops / 1e12:.2f} TFLOP of the "
            "equations. "
            f"Temporaries: {cost.temporaries_gib:.1f} GiB. The compilation took "
            f"{cost.compile_seconds:.0f} s.",
        ]
    if search:
        parts += [
            "## One step of beam search, base",
            table(search),
            f"{SEARCH.rows} sentences of up to {SEARCH.src_length} subwords with beam "
            f"{SEARCH.beam_size}, at the end of the longest translation ({SEARCH.size} subwords), "
            f"`model.dtype='bfloat16'`. The program has {search.conditionals} conditionals, at "
            "which the GPU may wait for the host. The compilation took "
            f"{search.compile_seconds:.0f} s.",
        ]
    return "\n\n".join(map(_wrapped, parts)) + "\n"


def _wrapped(part: str) -> str:
    """A paragraph in lines of 100 characters; a table as it is."""
    if "\n" in part:
        return part
    return textwrap.fill(part, 100, break_long_words=False, break_on_hyphens=False)


def passed_limits(
    costs: Mapping[str, Cost | SearchCost], limits: Mapping[str, Mapping[str, float]]
) -> list[str]:
    """A phrase for each limit that a size exceeds."""
    return [
        f"{name}: {cost.totals[what]:,.1f} {what} where {limit:,} are allowed"
        for name, cost in costs.items()
        for what, limit in limits.get(name, {}).items()
        if cost.totals[what] > limit
    ]


def main() -> None:
    """Compiles each size, writes the page and checks the limits."""
    values = parse_flags("gpu_plan", FLAGS, sys.argv[1:])
    names = values["sizes"].split(",")
    if unknown := [name for name in names if name not in SIZES]:
        raise ConfigError(f"--sizes={unknown[0]} is not one of {', '.join(SIZES)}.")
    costs = {name: compiled_cost(SIZES[name]) for name in names}
    search = compiled_search() if values["search"] else None
    write_atomically(Path(values["out"]), page(costs, search).encode())
    every: dict[str, Any] = costs | ({"search": search} if search else {})
    print("\n\n".join(f"{name}\n{table(cost)}" for name, cost in every.items()))
    if passed := passed_limits(every, json.loads(LIMITS.read_text())):
        raise RunError(f"limits of {LIMITS.name} are passed: {'; '.join(passed)}.")


if __name__ == "__main__":
    sys.exit(exit_status(main))
