"""Metrics of a run: `metrics.jsonl`, TensorBoard events, and a progress bar.

A line of `metrics.jsonl` is a JSON object: {"step": 100, "kind": "train", "nats_per_token": 4.2}.
JSON has no numbers that are not finite, so they are written as in proto3's JSON mapping, as "NaN",
"Infinity" or "-Infinity", and `read_metrics` converts them back to floats.
"""

import contextlib
import json
import logging
import math
import numbers
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.errors import RunError
from transformer_jax.files import each_once, write_atomically
from transformer_jax.runs.weights_and_biases import WandbWriter

FILE = "metrics.jsonl"
LARGE = 1e9  # a number from which progress shows powers of ten
NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}

log = logging.getLogger(__name__)


class MetricsWriter:
    """Appends to `workdir/metrics.jsonl` and to TensorBoard events in `workdir/tensorboard`.

    If the disk is full, it warns once, keeps the lines in memory and writes them with a later line.
    """

    def __init__(self, workdir: str | os.PathLike[str], purge_after_step: int):
        """Opens both; only one process of a run does this.

        A last line without a newline, which a killed run leaves, is always removed.

        Args:
          workdir: the run's folder; it is created if it does not exist.
          purge_after_step: the restored step of a continued run. Metrics of later steps are removed
            from both, since the run takes those steps again. 0 for a new run.

        Raises:
          RunError: a line of `metrics.jsonl` is not metrics.
        """
        workdir = Path(workdir)
        workdir.mkdir(parents=True, exist_ok=True)
        path = workdir / FILE
        if path.exists():
            lines = _whole_lines(path)
            kept = [line for line, record in lines if record["step"] <= purge_after_step]
            write_atomically(path, b"".join(kept))
        self._path = path
        self._file = path.open("ab", buffering=0)
        self._unwritten = b""
        self._events = _Events(workdir / "tensorboard")
        self._events.hide_from(purge_after_step + 1)

    def write(self, step: int, kind: str, values: Mapping[str, float]) -> None:
        """Appends one line and its events.

        Args:
          step: number of batches consumed so far.
          kind: where it was measured, such as "train" or "valid".
          values: numbers by their names with units ("nats_per_token"); the names "step" and "kind"
            are not allowed. TensorBoard shows a value as "kind/name".
        """
        if not {"step", "kind"}.isdisjoint(values):
            raise ValueError(f'"step" and "kind" are not allowed as names: {sorted(values)}')
        measured = {
            name: int(value) if isinstance(value, numbers.Integral) else float(value)
            for name, value in values.items()
        }
        record = {"step": int(step), "kind": kind}
        record |= {name: _to_json(value) for name, value in measured.items()}
        self._begin_again_if_gone()
        full_before = bool(self._unwritten)
        self._unwritten += (json.dumps(record) + "\n").encode()
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
        except OSError as error:
            if not full_before:
                log.warning("%s cannot be written (%s); continuing", self._path, error.strerror)
        self._events.add(int(step), {f"{kind}/{name}": v for name, v in measured.items()})

    def _begin_again_if_gone(self) -> None:
        """Makes a new file if someone removed it; lines of a moved folder go on in the old one."""
        if not self._path.exists() and self._path.parent.exists():
            log.warning("%s was removed: its curves begin again here", self._path)
            with contextlib.suppress(OSError):
                new = self._path.open("ab", buffering=0)
                self._file.close()
                self._file = new

    def close(self) -> None:
        """Closes both files."""
        if self._unwritten:
            log.warning("the last lines of %s could not be written", self._path)
        self._file.close()
        self._events.close()


class _Events:
    """A file of TensorBoard events, written without a thread, so that a kill loses no event."""

    def __init__(self, folder: Path):
        from tensorboardX.event_file_writer import EventsWriter

        folder.mkdir(exist_ok=True)
        # The default name has whole seconds: a restart within one second would overwrite the file.
        suffix = f".{time.time_ns() % 10**9:09}"
        self._writer = EventsWriter(str(folder / "events"), suffix)

    def hide_from(self, step: int) -> None:
        """Makes TensorBoard ignore the events of earlier files from this step on."""
        from tensorboardX.proto.event_pb2 import Event, SessionLog

        start = SessionLog(status=SessionLog.START)
        self._write(Event(wall_time=time.time(), step=step, file_version="brain.Event:2"))
        self._write(Event(wall_time=time.time(), step=step, session_log=start))

    def add(self, step: int, values: Mapping[str, float]) -> None:
        """Adds a point to each of these curves."""
        from tensorboardX.proto.event_pb2 import Event
        from tensorboardX.proto.summary_pb2 import Summary

        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(Event(wall_time=time.time(), step=step, summary=Summary(value=points)))

    def _write(self, event: Any) -> None:
        with contextlib.suppress(OSError):  # `write` already warns for metrics.jsonl
            self._writer.write_event(event)
            self._writer.flush()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._writer.close()


def check_metrics(workdir: str | os.PathLike[str]) -> None:
    """A check before training. Raises RunError if a line of metrics.jsonl is not metrics."""
    path = Path(workdir) / FILE
    if path.exists():
        _whole_lines(path)


def read_metrics(workdir: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The lines of `workdir/metrics.jsonl` in order, without a last line that has no newline yet.

    Raises:
      RunError: there is no such file, or a line is not metrics.
    """
    path = Path(workdir) / FILE
    if not path.exists():
        raise RunError(
            f"{path} is not there, so {workdir} is not the folder of a run that has trained."
        )
    return [record for _, record in _whole_lines(path)]


class Reports(NamedTuple):
    """Receives a run's metrics; without writers and progress they are lost."""

    writers: Sequence[MetricsWriter | WandbWriter] = ()
    progress: "Progress | None" = None

    def trained(self, step: int, values: Mapping[str, float]) -> None:
        """Reports metrics of the training steps since the last call."""
        for writer in self.writers:
            writer.write(step, "train", values)
        if self.progress is not None:
            self.progress.update(step, values)

    def validated(self, step: int, values: Mapping[str, float]) -> None:
        """Reports metrics of the validation split."""
        for writer in self.writers:
            writer.write(step, "valid", values)
        if self.progress is not None:
            shown = ", ".join(f"{name} {value:.4g}" for name, value in values.items())
            self.progress.write(f"step {step:,}: validation {shown}")


@contextlib.contextmanager
def open_reports(
    workdir: str | os.PathLike[str],
    total: int,
    first: int,
    silent: bool,
    wandb_project: str | None = None,
    shown: bool = True,
) -> Iterator[Reports]:
    """A context that reports metrics into the run's folder and to the user.

    Args:
      total: number of training steps of the run.
      first: number of steps already taken.
      silent: report nothing; only one of several processes reports.
      wandb_project: the Weights & Biases project that gets the metrics too; None: none.
      shown: whether the user sees them; else they are only written.
    """
    if silent:
        yield Reports()
        return
    with contextlib.ExitStack() as closing:
        writers: list[MetricsWriter | WandbWriter] = [MetricsWriter(workdir, first)]
        closing.callback(writers[0].close)
        if wandb_project is not None:
            writers.append(WandbWriter(wandb_project, Path(workdir)))
            closing.callback(writers[1].close)
        progress = Progress(total, first) if shown else None
        if progress is not None:
            closing.callback(progress.close)
        yield Reports(writers, progress)


def _text(form: str, value: float) -> str:
    # A run that diverges can have a perplexity of 300 digits.
    return form.format(value) if value < LARGE else f"{value:.2e}"


class Progress:
    """Shows the progress of training on standard error.

    On a terminal it is a bar, and log records appear above it; elsewhere each update is a log line.
    """

    # The metrics shown, with label and format; an update may lack any of them.
    SHOWN = {
        "epoch": ("epoch", "{:.2f}"),
        "nats_per_token": ("loss", "{:.3f}"),
        "perplexity": ("perplexity", "{:.2f}"),
        "target_tokens_per_second": ("tokens/s", "{:,.0f}"),
    }

    def __init__(self, total: int, initial: int = 0):
        """Takes the run's number of steps, and how many were taken before this start."""
        self._total = total
        self._step = initial
        self._time = time.monotonic()
        self._bar = None
        self._open = contextlib.ExitStack()
        if sys.stderr.isatty():
            from tqdm import tqdm
            from tqdm.contrib.logging import logging_redirect_tqdm

            self._bar = tqdm(total=total, initial=initial, unit="step", file=sys.stderr)
            own = logging.getLogger("transformer_jax")
            loggers = [logging.root] if own.propagate else [logging.root, own]
            self._open.enter_context(logging_redirect_tqdm(loggers))

    def update(self, step: int, values: Mapping[str, float]) -> None:
        """Shows step and metrics; call it once per log interval: reading metrics is slow."""
        shown = {
            label: _text(form, float(values[name]))
            for name, (label, form) in self.SHOWN.items()
            if name in values
        }
        if self._bar is not None:
            self._bar.set_postfix(shown, refresh=False)
            self._bar.update(step - self._bar.n)
        else:
            parts = [f"step {step:,} of {self._total:,}"]
            parts += [f"{label} {value}" for label, value in shown.items()]
            log.info("%s", ", ".join([*parts, self._time_left(step)]))

    def write(self, line: str) -> None:
        """Writes a line above the bar, or to the log."""
        if self._bar is not None:
            self._bar.write(line, file=sys.stderr)
        else:
            log.info("%s", line)

    def close(self) -> None:
        """Leaves the bar as it is; later log records go where they went before."""
        if self._bar is not None:
            self._bar.close()
        self._open.close()

    def _time_left(self, step: int) -> str:
        # From the last interval alone: the first one includes the start of other processes.
        now = time.monotonic()
        taken, seconds = step - self._step, now - self._time
        self._step, self._time = step, now
        if taken <= 0:
            return "time left unknown"
        return f"{clock((self._total - step) * seconds / taken)} left"


def clock(seconds: float) -> str:
    """A time as hours, minutes and seconds: 2:03:00."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


def _to_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return next(word for word, number in NON_FINITE.items() if str(number) == str(value))


def _whole_lines(path: Path) -> list[tuple[bytes, dict[str, Any]]]:
    """Each line that ends in a newline, as bytes and parsed."""
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror}.") from None
    return [(line + b"\n", _parse(line, path, at)) for at, line in enumerate(lines, start=1)]


def _parse(line: bytes, path: Path, at: int) -> dict[str, Any]:
    try:
        record = json.loads(line.decode(), object_pairs_hook=each_once)
        if not isinstance(record["step"], int) or not isinstance(record["kind"], str):
            raise TypeError
        values = {name: value for name, value in record.items() if name != "kind"}
        values = {n: NON_FINITE[v] if isinstance(v, str) else v for n, v in values.items()}
        [float(value) for value in values.values()]
    except UnicodeDecodeError:
        raise RunError(f"{path}:{at} is not UTF-8: convert the file.") from None
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        raise RunError(
            f'{path}:{at} is not metrics (an object with "step", "kind" and numbers): '
            "remove that line."
        ) from None
    return record | values
