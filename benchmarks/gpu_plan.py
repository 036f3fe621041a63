"""Compiles the training step for an H200, without one, and writes what it costs at best.

    make gpu-plan

It needs Python 3.12, JAX 0.12 and the packages of the extra `gpu-plan`, which `make gpu-plan` puts
into an environment of its own. A compilation takes one to two minutes on two cores. The command
fails if a size exceeds a limit of benchmarks/gpu_limits.json.
"""

import datetime
import json
import math
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jax.stages import Traced

from benchmarks.gpu_roofline import (
    BYTES_PER_S,
    FLOPS_PER_S,
    MATRIX_RATE,
    Kernel,
    conditionals,
    kernels,
)
from benchmarks.turns import markdown
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.train import TrainConfig
from transformer_jax.decoding.rows import SearchShape, empty_rows, prepared_output
from transformer_jax.decoding.search import advance, make_rules
from transformer_jax.decoding.state import SearchState
from transformer_jax.errors import ConfigError, RunError
from transformer_jax.files import write_atomically
from transformer_jax.model.encoder_decoder import EncoderDecoder, make_model
from transformer_jax.model.parameters import abstract_params
from transformer_jax.parallel.mesh import AXES
from transformer_jax.reporting.provenance import revision
from transformer_jax.training.cost import training_flops
from transformer_jax.training.program import BatchShape, compile_program
from transformer_jax.use.command_line import Flag, exit_status, parse_experiment

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


class Cost(NamedTuple):
    """What a compiled program costs: the training step of one size, or a step of search."""

    kernels: Sequence[Kernel]
    others: Mapping[str, float]  # what has a limit beside time and launches
    compile_seconds: float
    flops: int = 0  # of the equations: without what the backward pass computes again

    @property
    def totals(self) -> dict[str, float]:
        """What has a limit."""
        return {
            "milliseconds": 1e3 * sum(one.seconds for one in self.kernels),
            "kernels": sum(one.calls for one in self.kernels),
            **self.others,
        }


def device_mesh(axes: tuple[int, int, int] = (1, 1, 1)) -> Mesh:
    """A mesh of devices that this machine does not have, on nodes of 8."""
    count = math.prod(axes)
    shape = f"1x{max(1, count // 8)}x{min(count, 8)}"
    topology = topologies.get_topology_desc(
        shape, "cuda", target_config=DEVICE.read_text(), topology=shape
    )
    return Mesh(np.array(topology.devices).reshape(axes), AXES)


def compiled_step(changes: Mapping[str, Any]) -> Cost:
    """Compiles the training step of the paper's model with these keys changed, and `KEYS`."""
    mesh = device_mesh()
    config = ModelConfig(**KEYS, **changes)
    shape = BatchShape(ROWS, LENGTH, LENGTH)
    start = time.perf_counter()
    program = compile_program(config, TrainConfig(), mesh, VOCABULARY, shape)
    seconds = time.perf_counter() - start
    compiled: Any = program.train_step
    temporaries = compiled.memory_analysis().temp_size_in_bytes / 2**30
    flops = ROWS * training_flops(config, VOCABULARY, LENGTH, LENGTH)
    return Cost(kernels(compiled.as_text()), {"temporaries_gib": temporaries}, seconds, flops)


def compiled_search() -> Cost:
    """Compiles one search step of the base model in bfloat16."""
    model = make_model(ModelConfig(dtype="bfloat16"), VOCABULARY)
    whole = NamedSharding(device_mesh(), PartitionSpec())
    start = time.perf_counter()
    text = traced_search(model, SEARCH, whole).lower().compile().as_text()
    seconds = time.perf_counter() - start
    return Cost(kernels(text), {"conditionals": conditionals(text)}, seconds)


def traced_search(model: EncoderDecoder, shape: SearchShape, sharding: Any = None) -> Traced:
    """One step of search, traced for arrays of this shape and sharding."""

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


def table(cost: Cost) -> str:
    """A line for each part of the model, the slowest first, and their sum."""
    parts: dict[str, list[Kernel]] = {}
    for one in cost.kernels:
        parts.setdefault(one.part, []).append(one)
    ordered = sorted(parts.items(), key=lambda part: -sum(one.seconds for one in part[1]))
    rows = []
    for name, own in [*ordered, ("**all**", cost.kernels)]:
        milliseconds = 1e3 * sum(one.seconds for one in own)
        calls = sum(one.calls for one in own)
        moved = sum(one.calls * one.bytes for one in own) / 2**30
        flops = sum(one.calls * sum(one.flops.values()) for one in own) / 1e12
        rows.append([name, f"{milliseconds:.1f}", f"{calls:,}", f"{moved:.1f}", f"{flops:.2f}"])
    return markdown(["part", "ms", "kernels", "GiB moved", "TFLOP"], rows)


ABOUT = f"""
# The training step on an H200, planned without one

`make gpu-plan`, {{date}}, JAX {{jax}}, revision {{revision}}. XLA compiled the whole step for the
device that benchmarks/h200.txtpb describes. The times are lower bounds, not measurements: each
kernel takes as long as the slower of its memory traffic and its products ({BYTES_PER_S / 1e12:g}
TB/s; {FLOPS_PER_S["bf16"] / 1e12:g} TFLOP/s for bfloat16: 80 % of {MATRIX_RATE / 1e12:g}, assumed
for large products; {FLOPS_PER_S["f32"] / 1e12:g} TFLOP/s for float32). Each kernel is counted in
the part of its last operation. Without the device XLA cannot choose between kernels by measurement,
so every product is a Triton kernel here. docs/gpu_runs.md has measurements of an H200.

A kernel of the project's own (fused attention, residuals, loss) counts the bytes of its operands
and results, and the FLOPs of its formula.

{ROWS} rows of {LENGTH} source and {LENGTH} target positions, vocabulary {VOCABULARY:,}, {{keys}},
one device. Limits: benchmarks/gpu_limits.json.
"""
OF_A_STEP = f"""
At best {{share:.0%}} of the rate that large products are assumed to have ({MATRIX_RATE / 1e12:g}
TFLOP/s), by the {{tflop:.2f}} TFLOP of the equations. Temporaries: {{temporaries_gib:.1f}} GiB. The
compilation took {{seconds:.0f}} s.
"""
OF_SEARCH = f"""
{SEARCH.rows} sentences of up to {SEARCH.src_length} subwords with beam {SEARCH.beam_size}, at the
end of the longest translation ({SEARCH.size} subwords), `model.dtype='bfloat16'`. The program has
{{conditionals}} conditionals, at which the GPU may wait for the host. The compilation took
{{seconds:.0f}} s.
"""


def page(costs: Mapping[str, Cost]) -> str:
    """The page docs/gpu_plan.md; the cost of search is called "search"."""
    keys = ", ".join(f"`model.{key}={value!r}`" for key, value in KEYS.items())
    date = datetime.date.today()
    parts = ABOUT.format(date=date, jax=jax.__version__, revision=revision(), keys=keys)
    paragraphs = parts.strip().split("\n\n")
    for name, cost in costs.items():
        about = OF_SEARCH if name == "search" else OF_A_STEP
        text = about.format(
            share=1e3 * cost.flops / cost.totals["milliseconds"] / MATRIX_RATE,
            tflop=cost.flops / 1e12,
            seconds=cost.compile_seconds,
            **cost.others,
        )
        title = "One step of beam search, base" if name == "search" else name
        paragraphs += [f"## {title}", table(cost), text.strip()]
    return "\n\n".join(map(_wrapped, paragraphs)) + "\n"


def _wrapped(part: str) -> str:
    """A paragraph in lines of 100 characters; a table as it is."""
    if part.startswith("|"):
        return part
    return textwrap.fill(part, 100, break_long_words=False, break_on_hyphens=False)


def passed_limits(
    costs: Mapping[str, Cost], limits: Mapping[str, Mapping[str, float]]
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
    values = parse_experiment("gpu_plan", __doc__, FLAGS, takes_keys=False)
    names = values["sizes"].split(",")
    if unknown := [name for name in names if name not in SIZES]:
        raise ConfigError(f"--sizes={unknown[0]} is not one of {', '.join(SIZES)}.")
    costs = {name: compiled_step(SIZES[name]) for name in names}
    if values["search"]:
        costs["search"] = compiled_search()
    write_atomically(Path(values["out"]), page(costs).encode())
    print("\n\n".join(f"{name}\n{table(cost)}" for name, cost in costs.items()))
    if passed := passed_limits(costs, json.loads(LIMITS.read_text())):
        raise RunError(f"limits of {LIMITS.name} are passed: {'; '.join(passed)}.")


if __name__ == "__main__":
    sys.exit(exit_status(main))
