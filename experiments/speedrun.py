"""A record to beat: the time from a command to 37.0 BLEU on Multi30k, on two CPU cores.

    TRANSFORMER_JAX_DATA=FOLDER python -m experiments.speedrun --record=fast
    python -m experiments.speedrun --record=fast --seeds=0     # one seed, for now
    python -m experiments.speedrun --record=fast --dry_run     # predicted time
    python -m experiments.speedrun --report                    # docs/records.md again

FOLDER has multi30k/. For each seed it runs the baseline, which is the preset configs/multi30k.py,
and the record, one after the other, and writes a line for each into
docs/results/speedrun/RECORD.csv. The same command continues: a seed that has a line is not run
again, and a run that was stopped begins anew. At the end it writes docs/records.md, which has the
rules (RULES below) and a verdict on every record.

The machine has to be quiet: the log warns if other programs use it when a run begins. On a machine
with more cores choose two of them: taskset -c 0,1 python -m experiments.speedrun ...

To enter a record: write a config file, add its line to RECORDS, run all five seeds, and commit the
file of results with docs/records.md. Tune with `train` and seeds other than 0 to 4. A speed-up of
the package's code is not a record, because the baseline runs with the same code.
"""

import datetime
import logging
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.speedrun_page import (
    BASELINE,
    RECORDS,
    SEEDS,
    Record,
    Run,
    page,
    results_file,
)
from transformer_jax.config.files import load_config
from transformer_jax.config.schema import Config
from transformer_jax.errors import ConfigError, DataError, RunError
from transformer_jax.files import read_json, read_table, write_atomically, write_csv
from transformer_jax.reporting.page import markdown_table
from transformer_jax.reporting.provenance import processor, revision
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.tables.collect import counts
from transformer_jax.tables.digests import digest_of
from transformer_jax.tables.preview import CPU_RATE
from transformer_jax.use.command_line import Flag, parse_experiment, run_main

log = logging.getLogger("experiments.speedrun")
PAGE = Path("docs/records.md")
CORES = 2
BUSY = 0.2  # cores that other programs use, above which a machine is not quiet
# SHA-256 of the training split, as runs record it, and of validation sources and references.
TEXT = {
    "train": "031c0088165842651e5ab2bf5e4ac118c8785d588be7b72769d59c6f6a29ee76",
    "src_sha256": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "ref_sha256": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
}
# Keys by which a run could learn from more than the training split.
FIXED = {
    "data.source": "files",
    "data.src": "en",
    "data.tgt": "de",
    "data.train": ("train",),
    "data.valid": (),
    "vocabulary.path": None,
    "train.init_from": None,
    "train.teacher": None,
}
FLAGS = [
    Flag("record", str, "NAME", "the record to run beside the baseline", default=list(RECORDS)[-1]),
    Flag("seeds", str, "0,1", "only these seeds (default: all five)"),
    Flag("runs", str, "FOLDER", "the folder of the runs' folders", default="runs/speedrun"),
    Flag("dry_run", bool, "", "print parameters, FLOPs and predicted time", default=False),
    Flag("report", bool, "", "write docs/records.md; run nothing", default=False),
    Flag("one", str, "NAME", "what is timed: one run of this record, in --workdir, at --seed"),
    Flag("seed", int, "N", "with --one", default=0),
    Flag("workdir", str, "FOLDER", "with --one"),
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Does what the flags ask for. Raises UserError."""
    values = parse_experiment("speedrun", __doc__, FLAGS, arguments)
    if values["overrides"]:
        raise ConfigError("a record is a config file: write one instead of overriding its keys.")
    if values["one"]:
        train_and_score(record_of(values["one"]), values["seed"], values["workdir"])
        return
    name = values["record"]
    seeds = _seeds(values["seeds"])
    record_of(name)
    if name == BASELINE:
        raise ConfigError(
            f"--record={name} is the baseline, which runs beside each record; name a record."
        )
    path = results_file(name)
    if values["dry_run"]:
        print(prediction(name, seeds, read_table(path, Run)), end="")
        return
    if not values["report"]:
        run_missing(name, seeds, path, Path(values["runs"]))
    write_atomically(PAGE, page(PAGE.parent).encode())
    log.info("%s", PAGE)


def record_of(name: str) -> Record:
    """A record by its name. Raises ConfigError if there is none."""
    if name not in RECORDS:
        raise ConfigError(f"there is no record {name!r}; there are {', '.join(RECORDS)}.")
    return RECORDS[name]


def _seeds(text: str | None) -> tuple[int, ...]:
    known = {str(seed): seed for seed in SEEDS}
    words = [word.strip() for word in text.split(",")] if text else [*known]
    chosen = tuple(known[word] for word in words if word in known)
    if len(chosen) < len(words):
        raise ConfigError(f"--seeds={text}: records have the seeds {', '.join(map(str, SEEDS))}.")
    return chosen


# What is timed ---------------------------------------------------------------------------------


def train_and_score(record: Record, seed: int, workdir: str) -> None:
    """Trains a run, averages if the record does, and scores the validation split."""
    from transformer_jax.commands.average import average
    from transformer_jax.commands.evaluate import evaluate
    from transformer_jax.use.train import train

    train(load_config(record.config, {"seed": seed}), workdir)
    if record.average:
        average(workdir, record.average)
    evaluate(workdir, split="valid", checkpoint="average" if record.average else "latest")


# The runs --------------------------------------------------------------------------------------


def run_missing(name: str, seeds: Sequence[int], path: Path, folder: Path) -> None:
    """Runs baseline and record at each seed that has no line, and writes the line of each run.

    Raises:
      UserError: a config breaks a rule or differs from a recorded one, or a run failed.
    """
    configs = {one: load_config(record_of(one).config) for one in (BASELINE, name)}
    for config in configs.values():
        check_rules(config)
    digests = {one: digest_of(config) for one, config in configs.items()}
    cores = _two_cores()
    for seed in seeds:
        # In turns, so that neither is always the first: a machine may get warmer or busier.
        for one in (BASELINE, name) if seed % 2 == 0 else (name, BASELINE):
            runs = read_table(path, Run)
            _check_recorded(runs, digests, path)
            if any((run.record, run.seed) == (one, seed) for run in runs):
                continue
            _check_beside(runs, seed, path)
            run = measure(one, seed, digests[one], folder / one / f"seed-{seed}", cores)
            write_csv(path, Run._fields, [*runs, run])
            log.info("%s, seed %d: %.2f BLEU in %.0f s", one, seed, run.bleu, run.seconds)


def check_rules(config: Config) -> None:
    """Raises ConfigError if the config learns from more than Multi30k's training split."""
    for name, wanted in FIXED.items():
        section, key = name.split(".")
        value = getattr(getattr(config, section), key)
        if value != wanted:
            raise ConfigError(f"{name}={value!r}: a record has {wanted!r} (rule 1).")


def _check_recorded(runs: Sequence[Run], digests: Mapping[str, str], path: Path) -> None:
    """Raises RunError if a line was recorded with another config than its record has now."""
    for run in runs:
        if run.config_digest != digests.get(run.record):
            raise RunError(
                f"{path}: {run.record!r} was recorded with another config than it has now. Give "
                "the new one a name of its own in RECORDS."
            )


def _check_beside(runs: Sequence[Run], seed: int, path: Path) -> None:
    """Raises RunError if the other run of this seed was not made here with this code."""
    here = (revision(), processor())
    for run in runs:
        if run.seed == seed and (run.revision, run.processor) != here:
            raise RunError(
                f"{path}: {run.record!r}, seed {seed}, is of {run.revision} on {run.processor}, "
                f"and this is {here[0]} on {here[1]}: their times cannot be compared. Remove that "
                "line to run the seed again."
            )


def _two_cores() -> set[int]:
    """The first two cores that this process may use. Raises RunError if there are fewer."""
    if not hasattr(os, "sched_getaffinity"):
        raise RunError("a record is timed on Linux, where a process can be kept on two cores.")
    cores = sorted(os.sched_getaffinity(0))[:CORES]
    if len(cores) < CORES:
        raise RunError(f"a record needs {CORES} CPU cores, and this process may use {len(cores)}.")
    return set(cores)


def command_of(name: str, seed: int, workdir: Path) -> list[str]:
    """The command that is timed."""
    flags = [f"--one={name}", f"--seed={seed}", f"--workdir={workdir}"]
    return [sys.executable, "-m", "transformer_jax", "experiment", "speedrun", *flags]


def measure(name: str, seed: int, digest: str, folder: Path, cores: set[int]) -> Run:
    """Runs a record in a new process, without caches, and takes its time. Raises UserError."""
    if folder.exists():  # a run that was stopped: its time is unknown
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    if (busy := busy_cores()) > BUSY:
        log.warning("other programs use %.1f cores: times will be too long", busy)
    workdir, output = folder / "run", folder / "log.txt"
    log.info("%s, seed %d: %s", name, seed, output)
    status, seconds, cpu_seconds = timed(command_of(name, seed, workdir), folder, output, cores)
    if status:
        raise RunError(f"{name}, seed {seed} failed with status {status}; see {output}.")
    scores = scores_of(workdir)
    return Run(
        record=name,
        seed=seed,
        bleu=scores["bleu"],
        seconds=round(seconds, 1),
        cpu_seconds=round(cpu_seconds, 1),
        config_digest=digest,
        revision=revision(),
        processor=processor(),
        date=datetime.date.today().isoformat(),
        signature=scores["bleu_signature"],
    )


def busy_cores(seconds: float = 2.0) -> float:
    """Cores in use for the next seconds. The load average would count the run before, too."""
    before = busy_ticks(Path("/proc/stat").read_text())
    time.sleep(seconds)
    ticks = busy_ticks(Path("/proc/stat").read_text()) - before
    return ticks / os.sysconf("SC_CLK_TCK") / seconds


def busy_ticks(stat: str) -> int:
    """The time that all cores together were in use since the machine started, in clock ticks."""
    user, nice, system, _, _, *others = map(int, stat.split("\n")[0].split()[1:9])
    return user + nice + system + sum(others)


def timed(
    command: Sequence[str], folder: Path, output: Path, cores: set[int]
) -> tuple[int, float, float]:
    """Runs a command on these cores; its exit status, wall-clock seconds and CPU seconds."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # the new process inherits it
    try:
        with output.open("wb") as file:
            start = time.monotonic()
            process = subprocess.Popen(command, env=_environment(folder), stdout=file, stderr=file)
            try:
                _, status, used = os.wait4(process.pid, 0)
            except BaseException:
                process.kill()
                raise
            seconds = time.monotonic() - start
    finally:
        os.sched_setaffinity(0, before)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, seconds, used.ru_utime + used.ru_stime


def _environment(folder: Path) -> dict[str, str]:
    """The environment of a timed run: no caches, and no settings of XLA of one's own."""
    left_out = ("XLA_FLAGS", "JAX_COMPILATION_CACHE_DIR")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return kept | {
        "JAX_PLATFORMS": "cpu",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # else the command would restart itself
        "TRANSFORMER_JAX_CACHE": str(folder / "cache"),
    }


def scores_of(workdir: Path) -> dict[str, Any]:
    """The scores of a run's only evaluation. Raises DataError if its text is not Multi30k's."""
    [path] = (workdir / "evaluations").glob("*.json")
    scores: dict[str, Any] = read_json(path)
    found = {name: scores[name] for name in ("src_sha256", "ref_sha256")}
    found["train"] = RunFolder(workdir).fingerprints()[0]
    wrong = sorted(name for name, digest in TEXT.items() if found[name] != digest)
    if wrong:
        raise DataError(f"{workdir}: the text is not that of Multi30k ({', '.join(wrong)}).")
    return scores


# Predicted time --------------------------------------------------------------------------------


def prediction(name: str, seeds: Sequence[int], runs: Sequence[Run]) -> str:
    """A table of parameters, FLOPs and predicted minutes, and the hours of all missing runs."""
    sizes = {one: counts(load_config(record_of(one).config)) for one in (BASELINE, name)}
    rates = [sizes[run.record][1] / run.seconds for run in runs if run.processor == processor()]
    rate = statistics.median(rates) if rates else CORES * CPU_RATE
    basis = f"the median of {len(rates)} runs" if rates else f"a guess, {CPU_RATE:.0e} a core"
    done = {(run.record, run.seed) for run in runs}
    rows = []
    hours = 0.0
    for one, (parameters, flops) in sizes.items():
        missing = sum((one, seed) not in done for seed in seeds)
        hours += missing * flops / rate / 3600
        cells = [f"{parameters / 1e6:.2f}", f"{flops:.2e}", f"{flops / rate / 60:.0f}"]
        rows.append([one, *cells, str(missing)])
    head = ["record", "parameters, millions", "training FLOPs", "predicted minutes", "missing runs"]
    table = markdown_table(head, rows)
    return f"{table}\nall missing runs: {hours:.1f} hours, at {rate:.2e} FLOP/s: {basis}\n"


if __name__ == "__main__":
    run_main(main)
