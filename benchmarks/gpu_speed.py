"""Speed on one GPU: matrix products, training, PyTorch's peers, search, and a step's kernels.

    python -m benchmarks.gpu_speed --out=gpu.json --profile=FOLDER
    python -m benchmarks.gpu_speed --parts=train,torch --sizes=base --turns=3

Each task runs in its own process (gpu_points.py, peers/torch_gpu.py), which has the GPU to itself.
The tasks run turn by turn in the order of `tasks`. If a task fails or takes too long, its table
shows the reason, and the other tasks continue. After --minutes no task is started or left running.
The script prints figures to standard error as they come and Markdown to standard output at the end.

- Training: configs/wmt14.py in bfloat16 on packed rows of 256 + 256 positions. Sentences are as
  long as those of WMT (log-normal, mean 28), and ids follow Zipf's law. Batches are put on the
  device beforehand. FLOPs are those of real pairs,
  without padding. A time is the median of `BLOCKS` passes over --steps batches, after one to warm
  up.
- PyTorch: peers/torch_gpu.py trains on as many batches, of sentences of similar lengths, which it
  draws from `CORPUS_TIMES` as many pairs. Made of the pairs of so few batches, 34 % of their
  positions would be padding.
- Search: the weights are random, and no hypothesis ends before its limit, the source's length. The
  number of sentences and their lengths are like those of newstest2014.
- Profile: kernels name their HLO only without CUDA graphs, so that process does not use them.

workload.py draws the text at random. Of this package's requirements the script needs absl-py, flax,
jax (CUDA), numpy, optax, orbax-checkpoint, ml-collections, sentencepiece and grain with
array-record, but not tensorflow-datasets. The peers need torch and transformers.
"""

import datetime
import importlib.util
import json
import os
import re
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.turns import Figures, cells, markdown, middle, run_once, shown, spread
from benchmarks.workload import NEWSTEST
from transformer_jax.config.files import load_config
from transformer_jax.config.serialization import to_dict
from transformer_jax.errors import UserError
from transformer_jax.use.command_line import Flag, parse_experiment, run_main

Results = dict[str, list[Figures]]  # task -> its figures, or only "error", one entry per turn

ROOT = Path(__file__).parents[1]
PEERS = ROOT / "benchmarks" / "peers" / "torch_gpu.py"
PARTS = ("matrix", "train", "torch", "search", "profile")
WAYS = ("compiled", "layers", "eager")  # how PyTorch computes a step
SIZES = ("base", "big")
BLOCKS = 5  # timed passes; their median is the time
MATRIX = 8_192
TASK_SECONDS = 170  # limit: a compilation that hangs must not use up the other tasks' time
NO_CUDA_GRAPHS = "--xla_gpu_enable_command_buffer="
KERNELS_SHOWN = 25
TINY = {
    "model.num_layers": 1,
    "model.d_model": 32,
    "model.num_heads": 2,
    "model.d_ff": 64,
    "data.max_length": 64,
    "train.row_length": 64,
    "train.rows_multiple": 2,
    "decode.max_length": 24,
}
ENGINES = {"train": "transformer_jax", "torch": "torch.nn.Transformer"}
TRAINING = {
    "ms a step": ("ms_per_step", "{:.1f}"),
    "padding": ("padding", "{:.1%}"),
    "peak GiB": ("peak_gib", "{:.1f}"),
    "compile s": ("compile_s", "{:.0f}"),
    "target tokens a step": ("target_tokens_per_step", "{:,.0f}"),
    "nats a token": ("nats_per_token", "{:.2f}"),
}
SEARCH = {
    "output tokens/s": ("tokens_per_s", "{:,.0f}"),
    "sentences/s": ("sentences_per_s", "{:,.1f}"),
    "output tokens": ("output_tokens", "{:,.0f}"),
    "first pass, s": ("compile_s", "{:.1f}"),
}
FLAGS = [
    Flag("parts", str, "NAMES", "any of " + ",".join(PARTS), default="matrix,train,torch,search"),
    Flag("sizes", str, "NAMES", "any of base,big", default="base,big"),
    Flag("tokens", int, "N", "target tokens per step", default=25_000),
    Flag("steps", int, "N", "different batches per pass", default=30),
    Flag("turns", int, "N", "number of processes of each contender", default=1),
    Flag("decode_tokens", str, "NUMBERS", "decode.tokens_per_batch", default="65536,16384,4096"),
    Flag("torch", str, "NAMES", "any of " + ",".join(WAYS), default=",".join(WAYS)),
    Flag("marian_rows", int, "N", "sentences per batch of transformers' search", default=512),
    Flag("profile", str, "FOLDER", "where to write a trace; adds the part `profile`"),
    Flag("minutes", float, "N", "time limit of all tasks", default=9.0),
    Flag("out", str, "FILE", "where to write all figures as JSON"),
    Flag("tiny", bool, "", "only test that the script works, with tiny models"),
]

# Running tasks --------------------------------------------------------------------------------


def tasks(values: dict[str, Any]) -> list[str]:
    """Names of the tasks of one turn, part by part."""
    sizes, ways = (values[name].split(",") for name in ("sizes", "torch"))
    chosen = {*values["parts"].split(","), *(["profile"] if values["profile"] else [])}
    if unknown := [*(chosen - {*PARTS}), *({*sizes} - {*SIZES})]:
        raise UserError(f"{unknown[0]}: --parts are of {','.join(PARTS)}, --sizes of base,big.")
    if unknown := [way for way in ways if way not in WAYS]:
        raise UserError(f"--torch={unknown[0]}: it is of {','.join(WAYS)}.")
    if "profile" in chosen and not values["profile"]:
        raise UserError("--parts=profile needs --profile=FOLDER.")
    of_part = {
        "matrix": ["matrix"],
        "train": [f"train {size}" for size in sizes],
        "torch": [f"torch {size} {how}" for how in ways for size in sizes],
        "search": [f"search {size}" for size in (*values["decode_tokens"].split(","), "marian")],
        "profile": [f"profile {sizes[0]}"],
    }
    return [task for part in PARTS if part in chosen for task in of_part[part]]


def make_job(values: dict[str, Any]) -> dict[str, Any]:
    """The settings that every process reads."""
    tiny = values["tiny"]
    tokens = min(values["tokens"], 400) if tiny else values["tokens"]
    fixed = {"model.dtype": "bfloat16", "train.tokens_per_batch": tokens}
    overrides = fixed | (TINY if tiny else {}) | values["overrides"]
    specs = {size: f"{ROOT / 'configs' / 'wmt14.py'}:{size}" for size in SIZES}
    return {
        "configs": {size: to_dict(load_config(spec, overrides)) for size, spec in specs.items()},
        "steps": min(values["steps"], 2) if tiny else values["steps"],
        "vocabulary_size": 256 if tiny else 37_000,
        "sentences": 12 if tiny else NEWSTEST,
        "matrix": 256 if tiny else MATRIX,
        "blocks": 2 if tiny else BLOCKS,
        "marian_rows": values["marian_rows"],
        "profile": values["profile"],
    }


def command(task: str, job: Path, seconds: int) -> list[str]:
    """The command line of the task's process."""
    if task.startswith("torch") or task == "search marian":
        return [sys.executable, str(PEERS), task, str(job), str(seconds)]
    return [sys.executable, "-m", "benchmarks.gpu_points", task, str(job), str(seconds)]


def environment(task: str, folder: Path) -> dict[str, str]:
    """Environment variables of the task's process; it keeps the XLA_FLAGS of this process."""
    flags = [os.environ.get("XLA_FLAGS", ""), *([NO_CUDA_GRAPHS] if "profile" in task else [])]
    return {
        "XLA_FLAGS": " ".join(flags).strip(),
        # Turns after the first find the first one's programs; so does the next run in your folder.
        "JAX_COMPILATION_CACHE_DIR": os.environ.get(
            "JAX_COMPILATION_CACHE_DIR", str(folder / "compiled")
        ),
        "JAX_TRACEBACK_FILTERING": "off",  # then an error's last line names the cause
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(":"),
        "TOKENIZERS_PARALLELISM": "false",
    }


def attempt(task: str, job: Path, seconds: float) -> Figures:
    """Runs the task; returns its figures, or the reason why there are none."""
    needs = ["torch"] * task.startswith("torch") + ["torch", "transformers"] * ("marian" in task)
    if missing := [name for name in needs if not importlib.util.find_spec(name)]:
        return {"error": f"not installed: {missing[0]}"}
    if seconds < 15:
        return {"error": "not started: the time of --minutes is over"}
    limit = int(min(seconds, TASK_SECONDS))
    try:
        return run_once(command(task, job, limit), environment(task, job.parent))
    except (RuntimeError, ValueError) as error:
        print(error, file=sys.stderr, flush=True)
        return {"error": reason(str(error), limit)}


def reason(text: str, limit: int) -> str:
    """The reason of a failure in one line: the last line of output that names an error."""
    if f"status -{int(signal.SIGALRM)}\n" in text:
        return f"took over {limit} s"
    lines = [line for line in text.splitlines() if line.strip()]
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Exhausted)\b", line)]
    return (named or lines)[-1].replace("|", "/")[:160]


def good(turns: list[Figures]) -> list[Figures]:
    """The turns that did not fail."""
    return [turn for turn in turns if "error" not in turn]


def training_table(results: Results) -> str:
    """Markdown table of our training and PyTorch's, by model size."""
    matrix = results.get("matrix", [])
    bounds = [middle(matrix, key) for key in ("flops_per_s", "peak_flops_per_s")]
    found = [task for task in results if task.split()[0] in ("train", "torch")]
    rows = []
    for task in sorted(found, key=lambda task: task.split()[1]):
        kind, size, *how = task.split()
        name = f"{size}: " + " ".join([ENGINES[kind], *how])
        turns = results[task]
        ours = results.get(f"train {size}", [])
        if not good(turns):
            rows.append([name, turns[0]["error"], *[""] * (len(TRAINING) + 3)])
            continue
        pairs = [pair for pair in zip(ours, turns, strict=False) if len(good([*pair])) == 2]
        rates = [a["target_tokens_per_s"] / b["target_tokens_per_s"] for a, b in pairs]
        flops = middle(ours, "flops_per_target_token")
        rate = middle(turns, "target_tokens_per_s")
        shares = [flops * rate / bound if flops and rate and bound else None for bound in bounds]
        ratio = spread(rates) if rates and kind == "torch" else ""
        measured = [shown(rate, "{:,.0f}"), ratio, *(shown(share, "{:.1%}") for share in shares)]
        rows.append([name, *measured, *cells(turns, TRAINING)])
    head = ["contender", "target tokens/s", "ours / it", "MFU, measured", "MFU, vendor's"]
    return markdown([*head, *TRAINING], rows)


def search_table(results: Results) -> str:
    """Markdown table of beam and greedy search, by batch size."""
    rows = []
    for task in (task for task in results if task.startswith("search")):
        name = task.replace("search marian", "MarianMT").replace("search", "transformer_jax,")
        turns = good(results[task])
        if not turns:
            rows.append([name, "", results[task][0]["error"], *[""] * len(SEARCH)])
        for mode in ("beam", "greedy") if turns else ():
            of_both = shown(middle(turns, "peak_gib"), "{:.1f}")
            memory = of_both if mode == "beam" else ""  # which takes more
            rows.append([name, mode, *cells([turn[mode] for turn in turns], SEARCH), memory])
    head = ["engine, subwords or rows a batch", "search", *SEARCH, "peak GiB"]
    return markdown(head, rows)


def profile_table(turns: list[Figures]) -> str:
    """Markdown table of the kernels that take the most time."""
    if not good(turns):
        return f"profile: {turns[0]['error']}"
    figures = good(turns)[0]
    total = figures["kernel_ms"]
    rows = [
        [name[:60], f"{ms:.3f}", f"{ms / total:.1%}", f"{calls:.0f}", operation[-90:]]
        for name, operation, ms, calls in figures["kernels"][:KERNELS_SHOWN]
    ]
    text = f"Kernels {total:.2f} ms a step, {figures['wall_ms']:.2f} ms of wall without CUDA graphs"
    return f"{text}\n\n" + markdown(["kernel", "ms a step", "share", "calls", "of"], rows)


def report(results: Results) -> str:
    """Heading, and the table of each part that ran."""
    done = [turn for turns in results.values() for turn in good(turns)]
    versions = {
        f"{name} {turn[name]}" for turn in done for name in ("jax", "torch") if name in turn
    }
    devices = sorted({turn["device"] for turn in done if "device" in turn})
    lines = [", ".join([*devices, *sorted(versions), str(datetime.date.today()), "bfloat16"])]
    for turn in results.get("matrix", []):
        rate, peak = turn.get("flops_per_s"), turn.get("peak_flops_per_s")
        text = f"{shown(rate and rate / 1e12, '{:,.1f}')} TFLOP/s, vendor's peak "
        text += shown(peak and peak / 1e12, "{:,.0f}") or "not known"
        lines.append(f"matrix products of {turn.get('size')}: {turn.get('error', text)}")
    names = {task.split()[0] for task in results}
    if names & {"train", "torch"}:
        lines.append(training_table(results))
    if "search" in names:
        lines.append(search_table(results))
    lines += [profile_table(turns) for task, turns in results.items() if "profile" in task]
    return "\n\n".join(lines)


def main() -> None:
    """Runs all tasks turn by turn, and prints the report."""
    values = parse_experiment("gpu_speed", __doc__, FLAGS)
    end = time.monotonic() + 60 * values["minutes"]
    results = Results()
    every = tasks(values) * values["turns"]
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.json"
        job.write_text(json.dumps(make_job(values)))
        for task in every:
            started = time.monotonic()
            figures = attempt(task, job, end - started)
            results.setdefault(task, []).append(figures)
            brief = {key: value for key, value in figures.items() if key != "kernels"}
            took = time.monotonic() - started
            print(f"{task}, {took:.0f} s: {brief}", file=sys.stderr, flush=True)
            if values["out"]:
                tree = {"arguments": sys.argv[1:], "results": results, "report": report(results)}
                Path(values["out"]).write_text(json.dumps(tree, indent=1))
    print(report(results))


if __name__ == "__main__":
    run_main(main)
