"""What an experiment would do, as text, without doing it: --list, --dry_run, --print."""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from transformer_jax.reporting.page import markdown_table
from transformer_jax.tables.collect import counts
from transformer_jax.tables.experiment import Experiment, Job
from transformer_jax.tables.launch import command_lines
from transformer_jax.tables.pace import Pace
from transformer_jax.tables.results import Line
from transformer_jax.training import cost

# Assumed until a run has measured it: the share of a GPU's peak rate that training reaches, and
# FLOP/s of a CPU's core.
GPU_SHARE, CPU_RATE = 0.4, 3e10


def listed(experiment: Experiment, jobs: Sequence[Job], missing: Sequence[Job]) -> str:
    """The rows, what differs in them, their seeds and which of these are finished."""
    left = {(job.row, job.seed) for job in missing}
    rows = []
    for row in dict.fromkeys(job.row for job in jobs):
        seeds = [job.seed for job in jobs if job.row == row]
        done = [str(seed) for seed in seeds if (row, seed) not in left]
        own = next(job for job in jobs if job.row == row)
        changes = own.scale.keys_of(row, experiment.rows[row])
        text = ", ".join(f"{key}={own.overrides[key]}" for key in changes)
        rows.append([row, text, ", ".join(map(str, seeds)), ", ".join(done) or "none"])
    return markdown_table(["row", "what differs", "seeds", "finished"], rows)


def predicted(jobs: Sequence[Job], lines: Sequence[Line], given: float | None) -> str:
    """Parameters, FLOPs and time of each job, and of all; `given`: minutes that each row gets."""
    rate, basis = _rate(lines, jobs[0].config().model.dtype)
    rows = []
    total = 0.0
    for job in jobs:
        parameters, flops = counts(job.config())
        minutes = flops / rate / 60 if given is None else given
        total += minutes / 60
        counted = f"{flops:.2e}" if given is None else "as many as fit"
        rows.append([job.row, str(job.seed), f"{parameters / 1e6:.2f}", counted, f"{minutes:,.1f}"])
    head = ["row", "seed", "parameters, millions", "training FLOPs", "predicted minutes"]
    table = markdown_table(head, rows)
    if given is not None:
        return f"{table}\nall: {total:,.1f} hours of training\n"
    return f"{table}\nall: {total:,.1f} hours of training, at {rate:.2e} FLOP/s: {basis}\n"


def _rate(lines: Sequence[Line], dtype: str) -> tuple[float, str]:
    """FLOP/s of training on this device, and the source of this figure."""
    import jax

    device = jax.devices()[0].device_kind
    count = jax.device_count()
    peak = cost.device_peak(dtype)
    rates = []
    for line in lines:
        if line.device == device and np.isfinite(line.train_seconds):
            own = peak * count / line.device_rate if peak else 1.0  # it may have had fewer devices
            rates.append(line.training_flops / line.train_seconds * own)
    rates = [rate for rate in rates if np.isfinite(rate)]
    if rates:
        return float(np.median(rates)), f"the median of {len(rates)} finished runs on {device}"
    if peak:
        return GPU_SHARE * peak * count, f"{GPU_SHARE:.0%} of the peak of {count} x {device}"
    rate = CPU_RATE * (os.cpu_count() or 1)
    return rate, f"a guess, {CPU_RATE:.0e} for each of this machine's cores"


def shown_commands(missing: Sequence[Job], known: Mapping[str, Pace], minutes: float | None) -> str:
    """The commands of missing runs; `known` has the number of updates of rows that get a time."""
    lines = []
    for job in missing:
        is_open = minutes is not None and job.row not in known
        note = f"; its updates in {minutes:g} minutes are measured first" if is_open else ""
        lines += [f"# {job.label}{note}", *command_lines(job)]
    return "".join(f"{line}\n" for line in lines)
