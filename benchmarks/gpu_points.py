"""The processes of gpu_speed.py that run this package: `gpu_points.py TASK JOB.json SECONDS`."""

import dataclasses
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.hlo import computations
from benchmarks.peers.process import speeds
from benchmarks.programs import Steps, flops_of_pairs, one_device, random_params, without_end
from benchmarks.turns import Figures, print_figures, timed
from benchmarks.workload import newstest_sentences, wmt_pairs
from transformer_jax.config.schema import Config
from transformer_jax.config.serialization import from_config_dict
from transformer_jax.decoding.translator import Translator
from transformer_jax.model.encoder_decoder import make_model
from transformer_jax.model.parameters import abstract_params
from transformer_jax.text.batches import Batch, packed_batch, rows_per_batch, translation_buckets
from transformer_jax.text.packing import plan_rows
from transformer_jax.training.cost import device_peak
from transformer_jax.training.program import BatchShape

Job = dict[str, Any]  # `make_job` in gpu_speed.py defines its keys
PRODUCTS = 20  # matrix products per timed block
SEARCHES = 3  # timed passes
PROFILED_STEPS = 5


def measure(task: str, job: Job) -> Figures:
    """The figures of one task."""
    kind, *rest = task.split()
    figures = {"matrix": matrix_rate, "train": train, "search": search, "profile": profile}
    device = {"device": jax.devices()[0].device_kind, "jax": jax.__version__}
    return figures[kind](job, *rest) | device


def peak_gib() -> float | None:
    """Peak use of the device's memory; None if the device does not report it."""
    stats = jax.devices()[0].memory_stats() or {}
    return stats["peak_bytes_in_use"] / 2**30 if "peak_bytes_in_use" in stats else None


def matrix_rate(job: Job) -> Figures:
    """Times products of random bfloat16 matrices; zeros would draw less power and run faster."""
    size = job["matrix"]
    left, right = jax.random.normal(jax.random.key(0), (2, size, size), jnp.bfloat16)
    multiply = jax.jit(jnp.matmul)

    def run() -> None:
        jax.block_until_ready([multiply(left, right) for _ in range(PRODUCTS)])

    timed(run, 2)
    rate = 2 * size**3 * PRODUCTS / timed(run, 2 * job["blocks"])
    return {"size": size, "flops_per_s": rate, "peak_flops_per_s": device_peak("bfloat16")}


def packed(job: Job, config: Config) -> tuple[list[Batch], float]:
    """All full batches of generated pairs, on the host; FLOPs of the pairs without padding."""
    tokens = (job["steps"] + 1) * config.train.tokens_per_batch
    pairs = wmt_pairs(tokens, config.data.max_length, job["vocabulary_size"])
    src = pairs.src_lengths()
    tgt = pairs.tgt_lengths()
    length = config.train.row_length
    plan = plan_rows(src, tgt, length, length, config.seed)
    shape = (length, plan.tgt_fill, config.train.rows_multiple)
    rows = rows_per_batch(config.train.tokens_per_batch, *shape)
    numbers = np.arange(len(plan) // rows * rows).reshape(-1, rows)
    used = plan.pair_order[: plan.row_starts[numbers.size]]
    flops = flops_of_pairs(config.model, job["vocabulary_size"], src[used], tgt[used])
    return [packed_batch(pairs, plan, those) for those in numbers], float(flops.sum())


def compiled(job: Job, config: Config, host: Batch) -> Steps:
    """The training step of these batches."""
    shape = BatchShape(*host.src.ids.shape, host.tgt.ids.shape[1])
    return Steps(config, job["vocabulary_size"], shape)


def train(job: Job, size: str) -> Figures:
    """Times complete training steps over batches that are already on the device."""
    config = from_config_dict(job["configs"][size])
    host, flops = packed(job, config)
    steps = compiled(job, config, host[0])
    batches = [steps.put(batch) for batch in host]
    steps.run(batches)
    seconds = []
    for _ in range(job["blocks"]):
        steps.begin()  # the metrics are those of the last pass
        seconds.append(timed(lambda: steps.run(batches)))
    window = jax.device_get(steps.state.window)
    src, tgt = (
        sum(np.count_nonzero(getattr(batch, side).segments) for batch in host)
        for side in ("src", "tgt")
    )
    slots = sum(batch.src.ids.size + batch.tgt.ids.size for batch in host)
    return speeds(src, tgt, slots, len(host), statistics.median(seconds)) | {
        "flops_per_target_token": flops / tgt,
        "ms_of_each_pass": [1e3 * s / len(host) for s in seconds],
        "peak_gib": peak_gib(),
        "compile_s": steps.compile_seconds,
        "nats_per_token": float(window.nats / window.tgt_tokens),
        "skipped": int(steps.state.skipped),
        "parameters": sum(x.size for x in jax.tree.leaves(steps.state.params)),
        "rows": list(host[0].tgt.ids.shape),
    }


def search(job: Job, tokens: str) -> Figures:
    """Times beam search ("beam") and greedy search of the base model by Translator.translate."""
    config = from_config_dict(job["configs"]["base"])
    size = job["vocabulary_size"]
    model = make_model(config.model, size)
    params = random_params(abstract_params(model))
    params = jax.device_put(without_end(params, config.model.num_layers))
    sentences = newstest_sentences(job["sentences"], config.decode.max_length, size)
    lengths = np.array([len(ids) for ids in sentences])
    given = int(tokens)
    buckets = translation_buckets(lengths, given, config.decode.max_length)
    groups = [[sentences[i] for i in bucket.indices] for bucket in buckets]
    figures: Figures = {"sentences": len(sentences), "source_subwords": int(lengths.sum())}
    for mode, beam in (("beam", config.decode.beam_size), ("greedy", 1)):
        options = {"beam_size": beam, "tokens_per_batch": given, "max_extra_length": 0}
        decode = dataclasses.replace(config.decode, **options)
        translate = Translator(model, params, decode, one_device()).translate
        figures[mode] = {"beam": beam} | timed_search(translate, groups, sentences)
    return figures | {"peak_gib": peak_gib()}


def timed_search(translate: Any, groups: list[list], sentences: list[np.ndarray]) -> Figures:
    """Times passes over all sentences, after a pass that compiles all groups' programs at once."""
    started = time.perf_counter()
    with ThreadPoolExecutor() as threads:
        list(threads.map(translate, groups))
    compile_s = time.perf_counter() - started
    found = list[Any]()
    second = timed(lambda: found.append(translate(sentences)), SEARCHES)
    output = sum(len(best[0].ids) for best in found[-1] if best)
    rates = {"tokens_per_s": output / second, "sentences_per_s": len(sentences) / second}
    return rates | {"output_tokens": output, "compile_s": compile_s}


# A step's kernels -----------------------------------------------------------------------------


def profile(job: Job, size: str) -> Figures:
    """Traces some steps; returns each kernel's operation and its milliseconds per step."""
    config = from_config_dict(job["configs"][size])
    host, _ = packed(job, config)
    steps = compiled(job, config, host[0])
    batch = steps.put(host[0])
    steps.run([batch] * 3)
    with jax.profiler.trace(job["profile"]):
        wall = timed(lambda: steps.run([batch] * PROFILED_STEPS))
    compiled_step: Any = steps.program.train_step
    module = computations(compiled_step.as_text())  # names are unique in a module
    program = {name: one for own in module.values() for name, one in own.items()}
    times, calls = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for name, operation, nanoseconds in kernels(Path(job["profile"])):
        place = program[operation].op_name if operation in program else ""
        # The same kernel in several layers or instructions counts as one.
        where = re.sub(r"coder_\d+", "coder_*", re.sub(r"^jit\(\w+\)/", "", place))
        kernel = (re.sub(r"([._]\d+)+$", "", name), where)
        times[kernel] += nanoseconds
        calls[kernel] += 1
    rows = [
        [*kernel, ns / 1e6 / PROFILED_STEPS, calls[kernel] / PROFILED_STEPS]
        for kernel, ns in times.most_common()
    ]
    total = sum(times.values()) / 1e6 / PROFILED_STEPS
    return {"kernels": rows, "kernel_ms": total, "wall_ms": wall * 1e3 / PROFILED_STEPS}


def kernels(folder: Path) -> Iterator[tuple[str, str, float]]:
    """Yields (kernel, HLO instruction, nanoseconds) from the folder's newest trace.

    On a CPU it yields the events that have an HLO instruction.
    """
    traces = sorted(folder.rglob("*.xplane.pb"), key=lambda path: path.stat().st_mtime)
    planes = list(jax.profiler.ProfileData.from_file(str(traces[-1])).planes)
    devices = [plane for plane in planes if plane.name.startswith("/device:GPU")]
    for plane in devices or planes:
        for line in plane.lines:
            # A GPU's other lines repeat the same times by module and by step.
            if devices and not line.name.startswith("Stream"):
                continue
            for event in line.events:
                operation = dict(event.stats).get("hlo_op")
                if devices or operation:
                    yield event.name, str(operation or ""), event.duration_ns


if __name__ == "__main__":
    print_figures(measure)
