"""Training speed compared with MarianMT and torch.nn.Transformer: real tokens/s of the loop.

    python benchmarks/train_speed.py --data=FOLDER/multi30k
    python benchmarks/train_speed.py --data=FOLDER/multi30k --peers=marian --config.train.remat=true
    python benchmarks/train_speed.py --data=FOLDER/multi30k --dtypes=float32,bfloat16

Text, vocabulary, model and tokens per step are the same. Our code packs sentences; the peers sort
them by length. Tokens are source and target subwords; EOS counts, BOS and padding do not.
Contenders take turns in new processes, which compile and warm up before the clock starts. Overrides
change our config, and the peers follow where they have the same setting: the model's sizes,
dropout, tokens, Adam, the type of the products. With several types, each contender runs with each,
and ratios are to our fastest. The peers need torch and transformers: see
benchmarks/peers/torch_training.py. The script prints Markdown.
"""

import dataclasses
import datetime
import importlib.metadata
import importlib.util
import itertools
import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
from peers.process import memory_mib, seconds_since_start, speeds
from programs import Steps, flops_of_pairs
from turns import (
    CALIBRATION,
    Figures,
    cells,
    markdown,
    middle,
    processes_by_turns,
    ratios,
    spread,
    timed,
)

from transformer_jax.config.files import load_config
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import Config
from transformer_jax.config.serialization import from_config_dict, to_dict
from transformer_jax.errors import UserError
from transformer_jax.parallel.mesh import make_mesh
from transformer_jax.reporting.provenance import processor
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.training.data import TrainingData, load_data
from transformer_jax.use.command_line import Flag, parse_experiment, run_main

ROOT = Path(__file__).parents[1]
PEER_SCRIPT = ROOT / "benchmarks" / "peers" / "torch_training.py"
OURS = "transformer_jax"
PEERS = {"marian": "MarianMT", "torch": "torch.nn.Transformer"}
OVERRIDES = {
    "vocabulary.size": 8_000,
    "model.dropout": 0.1,
    "model.norm": "post",
    "train.tokens_per_batch": 2_000,
    "train.schedule": "rsqrt",
    "train.decay_steps": None,
}
# The peers follow these keys of the model; others must be the paper's, or change only our speed.
FOLLOWED = {"num_layers", "d_model", "num_heads", "d_ff", "dropout", "dtype"}
SPEED = {"residual_dtype", "attention_kernel"}
COLUMNS = {
    "padding": ("padding", "{:.2%}"),
    "peak MiB": ("peak_mib", "{:,.0f}"),
    "first step": ("first_step_s", "{:.1f} s"),
    "target tokens a step": ("target_tokens_per_step", "{:,.0f}"),
    "nats per token": ("nats_per_token", "{:.2f}"),
    "parameters": ("parameters", "{:,.0f}"),
}
FLAGS = [
    Flag("data", str, "FOLDER", "has train.en, train.de, valid.en, valid.de, .gz or plain"),
    Flag("turns", int, "N", "number of processes of each contender", default=5),
    Flag("steps", int, "N", "timed steps of a process", default=30),
    Flag("warm_up", int, "N", "untimed steps before them", default=6),
    Flag("peers", str, "NAMES", "any of marian,torch; or none", default="marian,torch"),
    Flag("dtypes", str, "NAMES", "values of model.dtype, with commas", default=None),
    Flag("hugetlb", int, "0|1", "glibc.malloc.hugetlb of every contender", default=1),
    Flag("task", str, "FILE", "measure only our code, in this process (internal)"),
]


def measure_ours(config: Config, folder: Path, warm_up: int, timed_steps: int) -> Figures:
    """Times complete steps, from encoded pairs to new parameters and metrics, in this process.

    Args:
      config: it names the vocabulary's file.
      folder: a run's folder; nothing is written into it.
      warm_up: steps before the clock starts, at least 1.
      timed_steps: steps after that.
    """
    data = load_data(config, RunFolder(folder))
    steps = Steps(config, data.vocabulary.sizes, data.shape, make_mesh(config.mesh))
    batches = map(steps.put, data.train_batches(None, 0))
    steps.run(itertools.islice(batches, 1))
    first_step = seconds_since_start()
    steps.run(itertools.islice(batches, warm_up - 1))
    steps.begin()
    seconds = timed(lambda: steps.run(itertools.islice(batches, timed_steps)))
    window = jax.device_get(steps.state.window)
    nats, *counts = map(float, (window.nats, window.src_tokens, window.tgt_tokens, window.slots))
    return speeds(*counts, timed_steps, seconds) | {
        "nats_per_token": nats / counts[1],
        "parameters": sum(x.size for x in jax.tree.leaves(steps.state.params)),
        "first_step_s": first_step,
        "peak_mib": memory_mib(),
    }


def flops_per_token(config: Config, data: TrainingData) -> float:
    """Training FLOPs of the corpus's pairs, without padding, per token of both sides."""
    kept = data.plan.pair_order
    src = data.train.src_lengths()[kept]
    tgt = data.train.tgt_lengths()[kept]
    flops = flops_of_pairs(config.model, data.vocabulary.sizes, src, tgt)
    return float(flops.sum() / (src.sum() + tgt.sum()))


def write_task(config: Config, data: TrainingData, folder: Path, warm_up: int, steps: int) -> Path:
    """Writes the file that every contender reads, and the vocabulary that its config names."""
    vocabulary = folder / "vocabulary.model"
    data.vocabulary.save(vocabulary)
    tree = to_dict(config)
    tree["vocabulary"]["path"] = str(vocabulary)
    task = {
        "config": tree,
        "pairs": str(data.train.folder),
        "vocabulary_size": data.vocabulary.size,
        "warm_up": warm_up,
        "steps": steps,
    }
    path = folder / "task.json"
    path.write_text(json.dumps(task))
    return path


def report(results: dict[str, list[Figures]], flops: float) -> str:
    """The Markdown table; `flops` is the number of FLOPs per token."""
    speed = {name: middle(turns, "tokens_per_s") for name, turns in results.items()}
    fastest = max((name for name in speed if name.startswith(OURS)), key=speed.__getitem__)
    calibration, contenders = results[CALIBRATION], dict(results)
    del contenders[CALIBRATION]
    bounds = [1e9 * turn["gflops"] / flops for turn in calibration]
    head = ["contender", "tokens/s", "ours / it", "of the bound", *COLUMNS]
    rate = middle(calibration, "gflops")
    bound = f"bound: float32 matrix products alone, at {rate:.0f} GFLOP/s"
    rows = [[bound, f"{statistics.median(bounds):,.0f}", *[""] * (len(head) - 2)]]
    for name, turns in contenders.items():
        pairs = zip(turns, bounds, strict=True)
        share = statistics.median(turn["tokens_per_s"] / bound for turn, bound in pairs)
        ratio = spread(ratios(results[fastest], turns, "tokens_per_s"))
        own = [f"{speed[name]:,.0f}", ratio if name != fastest else "", f"{share:.1%}"]
        rows.append([name, *own, *cells(turns, COLUMNS)])
    return markdown(head, rows)


def heading(values: dict[str, Any], peers: list[str], flops: float) -> str:
    """Device, versions, date and settings."""
    packages = ["jax", *(["torch", "transformers"] if peers else [])]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages)
    allocator = f"GLIBC_TUNABLES=glibc.malloc.hugetlb={values['hugetlb']} for all"
    first = jax.devices()[0]
    device = processor() if first.platform == "cpu" else first.device_kind
    return (
        f"{device}, {os.cpu_count()} cores; {versions}; {datetime.date.today()}; {allocator}. "
        f"Medians of {values['turns']} turns of {values['steps']} steps after {values['warm_up']}; "
        f"tokens are source and target; {flops / 1e6:.1f} MFLOP a token, counted."
    )


def chosen_peers(names: str, config: Config) -> list[str]:
    """The peers' names. Raises UserError if one is unknown, not installed or not our model."""
    peers = [name for name in names.split(",") if name and name != "none"]
    unknown = [name for name in peers if name not in PEERS]
    if unknown:
        raise UserError(f"--peers={names}: {unknown[0]} is not one of {', '.join(PEERS)}.")
    if peers and not all(map(importlib.util.find_spec, ("torch", "transformers"))):
        raise UserError("the peers need torch and transformers. Install them or use --peers=none.")
    for field in dataclasses.fields(ModelConfig) if peers else ():
        value = getattr(config.model, field.name)
        if field.name not in FOLLOWED | SPEED and value != field.default:
            raise UserError(
                f"model.{field.name}={value}: peers need {field.default}; use --peers=none."
            )
    return peers


def compare(configs: dict[str, Config], values: dict[str, Any]) -> None:
    """Runs the comparison of configs that differ in model.dtype; prints heading and table."""
    contenders: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for dtype, config in configs.items():
            peers = chosen_peers(values["peers"], config)
            folder = Path(scratch) / dtype
            folder.mkdir()
            data = load_data(config, RunFolder(folder / "run"))
            task = write_task(config, data, folder, values["warm_up"], values["steps"])
            name = f", {dtype}" if len(configs) > 1 else ""
            contenders[OURS + name] = [sys.executable, __file__, f"--task={task}"]
            for peer in peers:
                command = [sys.executable, str(PEER_SCRIPT), f"--model={peer}", f"--task={task}"]
                contenders[PEERS[peer] + name] = command
        tunables = {"GLIBC_TUNABLES": f"glibc.malloc.hugetlb={values['hugetlb']}"}
        results = processes_by_turns(contenders, values["turns"], tunables)
    flops = flops_per_token(config, data)
    print(heading(values, peers, flops) + "\n\n" + report(results, flops))


def main() -> None:
    """Runs the comparison, or with --task one process of it."""
    values = parse_experiment("train_speed", __doc__, FLAGS)
    if values["task"]:
        path = Path(values["task"])
        task = json.loads(path.read_text())
        config = from_config_dict(task["config"])
        print(json.dumps(measure_ours(config, path.parent / "run", task["warm_up"], task["steps"])))
        return
    if not values["data"]:
        raise UserError("train_speed needs --data=FOLDER, the folder of train.en and train.de.")
    known = OVERRIDES | {"data.path": values["data"]} | values["overrides"]
    preset = str(ROOT / "configs" / "multi30k.py")
    dtypes = (values["dtypes"] or known.get("model.dtype") or "float32").split(",")
    compare({d: load_config(preset, known | {"model.dtype": d}) for d in dtypes}, values)


if __name__ == "__main__":
    run_main(main)
