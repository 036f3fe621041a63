"""`python -m experiments.NAME`: does the missing runs of an experiment and writes its table."""

import contextlib
import logging
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NoReturn

from transformer_jax.errors import ConfigError, DataError, RunError, UserError
from transformer_jax.files import blamed, make_folder
from transformer_jax.kinds import fits
from transformer_jax.parallel.devices import visible_gpus
from transformer_jax.reporting.page import Part
from transformer_jax.tables.collect import collect, counts
from transformer_jax.tables.experiment import (
    Experiment,
    Job,
    check_kinds,
    check_minutes,
    check_names,
    check_results,
    check_rows,
    make_jobs,
)
from transformer_jax.tables.launch import log_file, run_here, run_with_submitit
from transformer_jax.tables.live import LiveTable
from transformer_jax.tables.merge import merge
from transformer_jax.tables.pace import (
    check_lengths,
    keep_pace,
    pace_of,
    read_paces,
    timing_command,
    with_pace,
    with_paces,
)
from transformer_jax.tables.pack import (
    RESULTS,
    Plan,
    check_packable,
    flags_of_pack,
    pack,
    results_kept,
    unpack,
)
from transformer_jax.tables.preview import listed, predicted, shown_commands
from transformer_jax.tables.report import (
    Output,
    draw_attention,
    has_other_base,
    update_significance,
    with_translations,
    write_report,
)
from transformer_jax.tables.results import Line, finished, keep, read_results
from transformer_jax.tables.statistics import Counted, check_metrics
from transformer_jax.tables.texts import check_texts
from transformer_jax.training.stopping import asking
from transformer_jax.use.command_line import Flag, parse_experiment, run_main
from transformer_jax.use.environment import check_devices

log = logging.getLogger(__name__)
FLAGS = [
    Flag("scale", str, "NAME", "how large: small (the default), paper or another of its scales"),
    Flag("rows", str, "A;B", "only these rows, separated by ;"),
    Flag("seeds", str, "0,1", "only these seeds (default: the scale's)"),
    Flag("minutes", float, "M", "time on the device for each row, which decides its updates"),
    Flag("jobs", int, "N", "runs at the same time; they share this machine's devices", default=1),
    Flag("pack", str, "FOLDER", "write what the missing runs need elsewhere, and run nothing"),
    Flag("packed", str, "FOLDER", "do the runs of this pack, and write OUT/results.tgz"),
    Flag("merge", str, "FILE", "add the results of a results.tgz, and run nothing"),
    Flag("launcher", str, "WHERE", "local or slurm", default="local"),
    Flag("slurm", str, "K=V,...", "submitit's parameters, such as gpus_per_node=1,timeout_min=600"),
    Flag("runs", str, "FOLDER", "the folder of the runs' folders", default="runs"),
    Flag("out", str, "FOLDER", "folder of the results (docs/results/NAME/SCALE)"),
    Flag("list", bool, "", "print the rows and whether they are done", default=False),
    Flag(
        "dry_run", bool, "", "print each row's parameters, FLOPs and predicted time", default=False
    ),
    Flag("print", bool, "", "print the missing runs' commands", default=False),
    Flag("report", bool, "", "write table and page from finished runs; run nothing", default=False),
]
# They do not change the table.
NO_CHANGE = {"runs", "out", "report", "jobs", "rows", "seeds", "pack"}
READ_ONLY = ("list", "dry_run", "print", "merge", "report")  # modes that need nothing prepared
MODES = (*READ_ONLY, "pack")  # each in place of running


def main(experiment: Experiment) -> NoReturn:
    """The command of an experiment; ends the process with its exit status."""
    run_main(lambda: run(experiment))


def run(experiment: Experiment, values: dict[str, Any] | None = None) -> None:
    """Does what the flags ask for.

    Args:
      experiment, values: the table, and the values of FLAGS; None: those of the command line.

    Raises:
      UserError: a flag is invalid, a recorded line belongs to another config, or a run failed.
    """
    check_kinds(experiment)
    if values is None:
        about = experiment.about or sys.modules["__main__"].__doc__ or experiment.name
        values = parse_experiment(experiment.name, about, FLAGS)
    values = {flag.name: flag.default for flag in FLAGS} | values
    _check_flags(values)
    values = flags_of_pack(experiment, values)
    scale = values["scale"] = values["scale"] or "small"
    check_names(experiment, scale)
    output = Output(Path(values["out"] or Path("docs", "results", experiment.name, scale)))
    runs = Path(values["runs"], experiment.name, scale)
    check_metrics(experiment)
    minutes = values["minutes"] = values["minutes"] or experiment.scales[scale].minutes
    jobs = _jobs(experiment, values, runs)
    experiment = experiment.timed(scale, minutes)
    plan = None
    if values["packed"]:
        plan, jobs = unpack(Path(values["packed"]), runs / "packed", jobs, output)
    if values["merge"]:
        _merge(jobs, values, output)
    unpaced, jobs = jobs, with_paces(jobs, output.paces, minutes)
    lines = read_results(output.folder)
    _check_times(lines, jobs, output, minutes)
    done = finished(lines, jobs)
    missing = [job for job in jobs if (job.row, job.seed) not in done]
    _prepare(experiment, values, missing)
    if values["pack"]:
        left = [job for job in unpaced if (job.row, job.seed) not in done]
        check_texts(lines, _table(experiment, values, output, runs), left)
        plan = pack(left, values, read_paces(output.paces, minutes), Path(values["pack"]))
        print(_packed_text(experiment, plan))
    elif values["list"]:
        print(listed(experiment, jobs, missing), end="")
    elif values["dry_run"]:
        check_devices()
        print(predicted(jobs, lines, minutes), end="")
    elif values["print"]:
        print(shown_commands(missing, read_paces(output.paces, minutes), minutes), end="")
    else:
        is_to_run = not (values["report"] or values["merge"])
        if is_to_run:
            check_results(missing)
            check_texts(lines, _table(experiment, values, output, runs), missing)
        make_folder("--out", output.folder)
        make_folder("--runs", runs)
        # All jobs: those that an earlier call finished belong to results.tgz too.
        with _stopped_by_signals(), results_kept(output.folder, jobs, plan):
            failed = _run_missing(missing, experiment, output, values) if is_to_run else []
            _report(experiment, values, output, runs)
        if failed:
            raise RunError(f"{len(failed)} of {len(missing)} runs failed; first: {failed[0]}")


def _check_flags(values: dict[str, Any]) -> None:
    if "seed" in values["overrides"]:
        raise ConfigError("--config.seed: set the seeds of an experiment with --seeds=0,1.")
    modes = [name for name in MODES if values[name]]
    if values["packed"] and modes and modes[0] in ("pack", "merge"):
        modes.insert(0, "packed")
    if len(modes) > 1:
        raise ConfigError(f"--{modes[0]} and --{modes[1]} do not go together: give one.")
    check_minutes("--minutes", values["minutes"])
    if values["slurm"] is not None and values["launcher"] != "slurm":
        raise ConfigError(f"--slurm={values['slurm']} goes with --launcher=slurm.")
    if values["jobs"] != 1 and values["launcher"] == "slurm":
        raise ConfigError(f"--jobs={values['jobs']}: SLURM gets every run at once. Leave it out.")
    if values["out"] is None and values["overrides"]:
        raise ConfigError(
            "--config.KEY=VALUE makes another table: give its folder with --out=FOLDER."
        )


def _jobs(experiment: Experiment, values: dict[str, Any], runs: Path) -> list[Job]:
    """The runs that the flags ask for, before `with_pace`. Raises ConfigError: they cannot be."""
    rows, seeds = _items("rows", values["rows"], ";"), _numbers(values["seeds"])
    scale, minutes, overrides = values["scale"], values["minutes"], values["overrides"]
    check_lengths(overrides, minutes)
    if experiment.in_scale and Path(values["out"] or scale).name != scale:
        raise ConfigError(f"--out={values['out']}: call the folder {scale}, as the scale, inside.")
    jobs = make_jobs(experiment, scale, runs, rows, seeds, overrides)
    check_rows(make_jobs(experiment, scale, runs), minutes)
    check_rows(jobs, minutes)  # with the overrides of --config
    set_by = {job.row: job.scale.keys_of(job.row, experiment.rows[job.row]) for job in jobs}
    for key, value in overrides.items():
        if own := [row for row, keys in set_by.items() if key in keys]:
            log.warning("--config.%s=%s also for rows that set it: %s", key, value, "; ".join(own))
    return jobs


def _prepare(experiment: Experiment, values: dict[str, Any], missing: Sequence[Job]) -> None:
    """Makes what missing runs read, if they are to run or to be packed; a pack has it already."""
    if values["pack"]:
        check_packable(missing)
    if experiment.prepare and missing and not any(values[x] for x in (*READ_ONLY, "packed")):
        experiment.prepare()


def _merge(jobs: Sequence[Job], values: dict[str, Any], output: Output) -> None:
    asked = " ".join(f"--{name}={values[name]}" for name in ("rows", "seeds") if values[name])
    merge(Path(values["merge"]), jobs, output, values["minutes"], asked)


def _report(experiment: Experiment, values: dict[str, Any], output: Output, runs: Path) -> None:
    """Writes table and page of all recorded runs, and prints the table."""
    scale = values["scale"]
    lines = read_results(output.folder)
    if values["report"] and not (output.results.exists() and output.results.stat().st_size):
        raise DataError(f"{output.results} has no results. Run the table first, or put it back.")
    table = _table(experiment, values, output, runs)
    if lines and not {line.row for line in lines} & {job.row for job in table}:
        raise DataError(f"{output.results} is of another table: it has the row {lines[0].row!r}.")
    finished(lines, table)  # a line of another config would change a mean
    again = bool(table) and has_other_base(lines, table[0].row)
    if experiment.scales[scale].compared:
        lines = update_significance(output, table, lines)
    draw_attention(table, lines, output, again)
    command = _command(experiment, NO_CHANGE)
    with blamed(output.results):
        found = experiment.findings(output.folder, table) if experiment.findings else []
    if not fits(found, Sequence[Part]):
        raise ConfigError(f"the function findings gives {found!r:.60}; expected a list of parts.")
    page = write_report(experiment, scale, output, lines, command, found, _counted(table))
    print((output.folder / "table.md").read_text(encoding="utf-8"), end="")
    log.info("%s", page)


def _table(experiment: Experiment, values: dict[str, Any], output: Output, runs: Path) -> list[Job]:
    """The runs of all rows and all recorded seeds, whatever --rows and --seeds ask for."""
    seeds = tuple(sorted({line.seed for line in read_results(output.folder)}))
    table = make_jobs(experiment, values["scale"], runs, (), seeds, values["overrides"])
    return with_paces(table, output.paces, values["minutes"])


def _check_times(
    lines: Sequence[Line], jobs: Sequence[Job], output: Output, minutes: float | None
) -> None:
    """Raises DataError if rows get a time and a recorded one has no number of updates."""
    if minutes is None:
        return
    known = read_paces(output.paces, minutes)
    rows = {job.row for job in jobs} - known.keys()
    for line in [line for line in lines if line.row in rows]:
        raise DataError(
            f"{output.paces} has no line of {line.row!r}, which {output.results} has: either this "
            f"row did not train for {minutes:g} minutes, or that line is lost. Restore it, or give "
            "another folder with --out."
        )


def _counted(jobs: Sequence[Job]) -> Counted:
    """For each row, the metrics that are known without running it."""
    one_seed = {job.row: job for job in jobs}
    each = {row: counts(job.config()) for row, job in one_seed.items()}
    return {
        row: {"parameters": parameters / 1e6, "training_flops": flops}
        for row, (parameters, flops) in each.items()
    }


def _packed_text(experiment: Experiment, plan: Plan) -> str:
    """What a pack holds, and the commands that use it."""
    runs = ", ".join(f"{one.row} (seed {one.seed})" for one in plan.jobs)
    results = f"RESULTS/{plan.scale}" if experiment.in_scale else "RESULTS"
    return (
        f"{len(plan.parts)} parts for {runs}\n"
        f"there: {_command(experiment, NO_CHANGE)} --packed=FOLDER --out={results}\n"
        f"here: {_command(experiment, {'pack'})} --merge={results}/{RESULTS}"
    )


def _command(experiment: Experiment, left_out: AbstractSet[str]) -> str:
    """This command without some flags."""
    kept = _plain(sys.argv[1:], left_out)
    return shlex.join(["python", "-m", f"experiments.{experiment.name}", *kept])


def _plain(arguments: Sequence[str], left_out: AbstractSet[str]) -> list[str]:
    """The arguments without these flags and their values."""
    kept, is_value = [], False
    for argument in arguments:
        name, equals, _ = argument.lstrip("-").partition("=")
        if not is_value and name not in left_out:
            kept.append(argument)
        is_value = not is_value and name in left_out - {"report"} and not equals
    return kept


def _items(flag: str, text: str | None, separator: str) -> tuple[str, ...]:
    """The items of a flag's value; empty if the flag is not given."""
    items = tuple(item.strip() for item in (text or "").split(separator) if item.strip())
    if text is not None and not items:
        raise ConfigError(f"--{flag}={text} names none. Name one, or leave the flag out for all.")
    return items


def _numbers(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(item.replace("_", " ")) for item in _items("seeds", text, ","))
    except ValueError:
        raise ConfigError(f"--seeds={text}: expected numbers, such as 0,1,2.") from None


@contextlib.contextmanager
def _stopped_by_signals() -> Iterator[None]:
    """What asks a run to stop, like Ctrl-C, stops all; they leave checkpoints, results are kept."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in asking()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_missing(
    missing: Sequence[Job], experiment: Experiment, output: Output, values: dict[str, Any]
) -> list[str]:
    """Runs jobs and records each one when it ends; returns one message for each failed job."""
    failed, base = list[str](), experiment.shown(values["scale"])[0]
    if values["minutes"] is not None and values["launcher"] == "local":
        missing = _paced(missing, values, output)
        check_results(missing)
    with LiveTable(missing) as table:

        def done(job: Job, reason: str) -> None:
            """Records a run, or shows the reason of its failure."""
            try:
                if not reason:
                    _keep(job, base, output)
            except UserError as error:
                reason = str(error)
            table.ended(job, reason)
            if reason:
                failed.append(f"{job.label}: {reason} (log: {log_file(job)})")

        if values["launcher"] == "local":
            run_here(missing, done, values["jobs"])
        elif values["launcher"] == "slurm":
            if values["minutes"] is not None:
                _check_paces(missing, output, values["minutes"])
            folder = Path(values["runs"]) / "submitit"
            run_with_submitit(missing, done, folder, values["slurm"])
        else:
            raise ConfigError(f"--launcher={values['launcher']} is not one of local, slurm.")
    return failed


def _check_paces(missing: Sequence[Job], output: Output, minutes: float) -> None:
    """Raises ConfigError if a row's updates are not known: no node is asked to measure them."""
    known = read_paces(output.paces, minutes)
    for job in missing:
        if job.row not in known:
            raise ConfigError(
                f"--launcher=slurm: {output.paces} has no number of updates for {job.row!r}, which "
                "gets a time. Run its first seed with --launcher=local on such a node."
            )


def _paced(missing: Sequence[Job], values: dict[str, Any], output: Output) -> list[Job]:
    """The jobs with the number of updates of their rows, which is measured if it is not known."""
    minutes, gpus = values["minutes"], visible_gpus()
    if gpus and values["jobs"] > len(gpus):
        raise ConfigError(
            f"--jobs={values['jobs']}: a row with a time needs a GPU of its own, and this machine "
            f"has {len(gpus)}."
        )
    known = read_paces(output.paces, minutes)
    first = {job.row: job for job in reversed(missing) if job.row not in known}

    def done(job: Job, reason: str) -> None:
        """Keeps what the process measured, or raises what went wrong in it."""
        if reason:
            raise RunError(f"{job.label}: its time cannot be measured: {reason}")
        pace = pace_of(job, minutes)
        try:
            with_pace(job, pace).config()
        except ConfigError as error:
            raise RunError(
                f"{job.label}: --minutes={minutes:g} is enough for {pace.steps} updates only, "
                f"and {error}"
            ) from None
        keep_pace(output.paces, pace)

    run_here([*first.values()], done, values["jobs"], lambda job: [timing_command(job)])
    return with_paces(missing, output.paces, minutes)


def _keep(job: Job, base: str, output: Output) -> None:
    """Writes the results of a finished job."""
    line = collect(job)
    if job.row == base and job.scale.compared:
        line = with_translations(line, job)
    keep(output.folder, line, base)
    if job.row == base:  # its picture is of an earlier run
        output.attention.unlink(missing_ok=True)
