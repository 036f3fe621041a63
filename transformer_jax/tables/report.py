"""The report of an experiment: table.md, plots, and one page with everything.

It is made only from the folder of results: results.jsonl and attention.png. So it can be made again
anywhere.
"""

import logging
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from transformer_jax.errors import DataError
from transformer_jax.files import write_atomically
from transformer_jax.reporting.page import (
    Code,
    Heading,
    Part,
    Picture,
    Table,
    Text,
    markdown_page,
    write_page,
)
from transformer_jax.reporting.plots import (
    BLUE,
    VERMILION,
    finish_axes,
    is_wide,
    new_figure,
    plot_curve,
    run_style,
    save_figure,
    use_log_axis,
)
from transformer_jax.runs.evaluations import text_digest
from transformer_jax.tables.collect import references, translations_of
from transformer_jax.tables.experiment import Experiment, Job
from transformer_jax.tables.launch import last_line
from transformer_jax.tables.results import (
    FILE,
    SCORES,
    Line,
    read_results,
    without_p,
    write_results,
)
from transformer_jax.tables.statistics import (
    METRICS,
    Counted,
    Summary,
    compare,
    make_table,
    of_row,
    text_of,
)
from transformer_jax.tables.texts import REFERENCES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

log = logging.getLogger(__name__)


class Output(NamedTuple):
    """The folder of an experiment's results at one scale."""

    folder: Path

    @property
    def results(self) -> Path:
        """The file with the results of each row and seed."""
        return self.folder / FILE

    @property
    def paces(self) -> Path:
        """The file with the number of updates of each row that gets a time."""
        return self.folder / "pace.csv"

    @property
    def attention(self) -> Path:
        """The picture with heat maps of one sentence."""
        return self.folder / "attention.png"


def update_significance(output: Output, jobs: Sequence[Job], lines: Sequence[Line]) -> list[Line]:
    """Tests each finished row and seed against the base row, if both translations are available.

    The jobs are those of all rows; those of the base row come first. The lines with their p-values.
    """
    base = jobs[0].row if jobs else ""
    job_of = {(job.row, job.seed): job for job in jobs}
    known = {line[:2]: line for line in lines}
    for key, line in known.items():
        if key in job_of and line.row == base:
            known[key] = with_translations(line, job_of[key])
    changed_base = has_other_base(lines, base)
    for key, line in known.items():
        if line.row == base or (changed_base and line.against != base):
            known[key] = line = without_p(line)
        of_base, job = known.get((base, line.seed)), job_of.get(key)
        if job is None or of_base is None or line.row == base or line.p:
            continue
        own = translations_of(line, job) if of_base.translations else None
        if own is not None:
            known[key] = line._replace(p=_compared(of_base, line, own, job), against=base)
    if changed := {key: line for key, line in known.items() if line not in lines}:
        # Read again: another process may have added lines.
        now = read_results(output.folder)
        write_results(output.folder, [changed.get(line[:2], line) for line in now])
    return [*known.values()]


def has_other_base(lines: Iterable[Line], base: str) -> bool:
    """Whether rows were compared with another row than the base row."""
    return any(line.against not in ("", base) or (line.row == base and line.p) for line in lines)


def draw_attention(
    jobs: Sequence[Job], lines: Sequence[Line], output: Output, again: bool = False
) -> None:
    """Draws the attention of the first row's first finished run whose folder exists, once.

    With `again`, since another row is the first one now.
    """
    samples = {line[:2]: line.samples for line in lines}
    with_weights = [job for job in jobs if (job.folder / "checkpoints").exists()]
    for job in [job for job in with_weights if job.row == jobs[0].row]:
        own = samples.get((job.row, job.seed))
        if (output.attention.exists() and not again) or not own:
            continue
        command = ["attention", f"--workdir={job.folder}", f"--output={output.attention}"]
        command += ["--checkpoint=average"] if job.average else []
        source, data = own[0][0], job.config().data
        if data.src_kind != "text":
            source = str(Path(data.path or "", source))
        whole = [sys.executable, "-m", "transformer_jax", *command, "--", source]
        done = subprocess.run(whole, capture_output=True, text=True)
        if done.returncode:
            log.warning("cannot draw attention: %s", last_line(done.stderr))
            continue
        again = False
    if again and output.attention.exists():
        log.warning("%s is of another row than %s", output.attention, jobs[0].row)


def _compared(
    of_base: Line, line: Line, own: tuple[list[str], str], job: Job
) -> Mapping[str, float]:
    """The p-values of a row's translations; none if the references differ."""
    wanted, (texts, sum_of_own) = references(job)[1], own
    sums = {of_base.row: of_base.text_sha256.get(REFERENCES, ""), line.row: sum_of_own}
    sums["the text now"] = text_digest(wanted)
    if len({*sums.values()} - {""}) > 1:
        each = ", ".join(f"{name} {sum_:.12}" for name, sum_ in sums.items() if sum_)
        log.warning("no p of %s: the references differ (SHA-256: %s)", job.label, each)
        return {}
    for row, found in ((of_base.row, of_base.translations), (line.row, texts)):
        if len(found) != len(wanted):
            raise DataError(
                f"{row}, seed {line.seed}, has {len(found)} translations of {len(wanted)} lines. "
                f"Restore {FILE} and the run's folder, or remove that line."
            )
    return compare(of_base.translations, texts, wanted, line.signature)


def with_translations(line: Line, job: Job) -> Line:
    """A run of the base row with its translations, if it had none and its folder has them."""
    sums = line.text_sha256
    if line.translations and sums.get(REFERENCES):
        return line
    if (found := translations_of(line, job)) is None:
        return line
    texts = line.translations or found[0]
    return line._replace(translations=texts, text_sha256={**sums, REFERENCES: found[1]})


def write_report(
    experiment: Experiment,
    scale: str,
    output: Output,
    lines: Sequence[Line],
    command: str,
    findings: Sequence[Part] = (),
    counted: Counted = MappingProxyType({}),
) -> Path:
    """Writes table, plots and page, with the findings above the table; returns the page's path."""
    every = dict.fromkeys((*experiment.shown(scale), *experiment.rows))
    order = {row: n for n, row in enumerate(every)}
    known = [line for line in lines if line.row in order]
    for row in dict.fromkeys(line.row for line in lines if line.row not in order):
        log.warning("%s has %r, which is no row of this table", output.results, row)
    lines = sorted(known, key=lambda line: (order[line.row], line.seed))
    head, rows = make_table(experiment, scale, lines, counted)
    title = f"{experiment.name}, {scale} scale"
    label = experiment.scales[scale].label
    parts = list[Part]()
    for paragraph in _notes(experiment, scale, lines, command).split("\n\n"):
        indented = paragraph.startswith("    ")
        parts.append(Code(textwrap.dedent(paragraph)) if indented else Text(paragraph))
    parts += [*findings, *([Heading("Runs by row")] if findings else []), Table(head, rows)]
    write_atomically(output.folder / "table.md", markdown_page(title, parts).encode())
    if lines:
        parts += [Heading("Rows"), *_row_plots(experiment, scale, output, lines)]
    if any(line.validations() for line in lines):
        picture = output.folder / "curves.png"
        save_figure(curves_figure(lines, label), picture)
        parts += [Heading("Curves"), Picture(picture, "Perplexity of the validation split")]
    if output.attention.exists():
        caption = "Encoder-decoder attention of the first row's last layer"
        parts += [Heading("Attention"), Picture(output.attention, caption)]
    with_samples = [line for line in lines if line.samples]
    parts += [Heading("Translations")] if with_samples else []
    for line in with_samples:
        texts = [
            f"{'source':<12} {src}\n{'reference':<12} {wanted}\n{'translation':<12} {found}"
            for src, wanted, found in line.samples
        ]
        parts += [Text(f"{label(line.row)}, seed {line.seed}"), Code("\n\n".join(texts))]
    parts += [Heading("Runs"), _lines_table(lines)]
    return write_page(output.folder / "index.html", title, parts)


def _notes(experiment: Experiment, scale: str, lines: Sequence[Line], command: str) -> str:
    chosen = experiment.scales[scale]
    table = pd.DataFrame(lines, columns=list(Line._fields))
    devices, dates, signatures = (
        sorted({*table[x]} - {""}) for x in ("device", "date", "signature")
    )
    when = f"{dates[0]} to {dates[-1]}" if dates else "not run"
    unknown = "not recorded" if lines else "none yet"
    given = chosen.config
    configs = list(given.values()) if isinstance(given, Mapping) else [given]
    notes = [
        experiment.about.strip(),
        f"Command: `{command}`. Device: {', '.join(devices) or unknown}. Dates: {when}. "
        f"Training of all runs: {table.train_seconds.sum() / 3600:.2f} hours. "
        f"Base config: {', '.join(dict.fromkeys(map(str, configs)))}; scored: the "
        f"{chosen.split} split{_averaged(chosen.average)}. Figures are mean ± sample standard "
        "deviation over seeds.",
    ]
    if chosen.minutes is not None:
        notes.append(
            f"Each row trains for {chosen.minutes:g} minutes on the device, with its validations "
            "and checkpoints. Its number of updates is in pace.csv."
        )
    if chosen.compared:
        notes.append(
            "Differences are taken seed by seed; p is that of the paired bootstrap of BLEU against "
            "the base row (sacreBLEU)."
        )
    if signatures:
        notes.append(f"BLEU: {', '.join(signatures)}.")
    printed = {name for row in experiment.shown(scale) for name in experiment.paper.get(row, {})}
    if printed & {*experiment.metrics}:
        notes.append(f"The paper's figures: {experiment.source}")
    return "\n\n".join(note for note in notes if note)


def _averaged(average: int | Mapping[str, int]) -> str:
    numbers = average.values() if isinstance(average, Mapping) else [average]
    counts = " or ".join(map(str, sorted(set(numbers) - {0})))
    where = "" if all(numbers) else " where a row says so"
    return f", the last {counts} checkpoints averaged{where}" if counts else ""


def _lines_table(lines: Sequence[Line]) -> Table:
    head = ["row of results.jsonl", "seed", "perplexity", "BLEU", "parameters", "steps", "minutes"]
    head += ["config", "revision", "device", "date"]
    rows = [
        [
            line.row,
            str(line.seed),
            f"{line.perplexity:.3f}",
            f"{line.bleu:.2f}",
            f"{line.parameters:,}",
            f"{line.steps:,}",
            f"{line.train_seconds / 60:.1f}",
            f"#{line.config_digest}",
            f"#{line.revision}",
            line.device,
            f"on {line.date}",
        ]
        for line in lines
    ]
    return Table(head, rows)


def _row_plots(
    experiment: Experiment, scale: str, output: Output, lines: Sequence[Line]
) -> list[Part]:
    """One plot per metric; a line of text for the metrics that are equal in all rows."""
    shown = experiment.shown(scale)
    equal: list[str] = []
    pictures: list[Part] = []
    for name in experiment.metrics:
        metric = METRICS[name]
        path = output.folder / f"{name}.png"
        found = {row: of_row(lines, row, name) for row in shown}
        known = {row: summary for row, summary in found.items() if summary}
        values = {text_of(summary, metric.text) for summary in known.values()}
        if len(values) == 1:
            path.unlink(missing_ok=True)  # an earlier report left it
            equal.append(f"{metric.label} {values.pop()}")
        elif known:
            label = experiment.scales[scale].label
            figure = row_figure(known, experiment, name, label, shown[0])
            save_figure(figure, path)
            pictures.append(Picture(path, f"{metric.label} of each row"))
    note = Text(f"The same in every finished row: {'; '.join(equal)}.")
    return [note, *pictures] if equal else pictures


def row_figure(
    known: Mapping[str, Summary],
    experiment: Experiment,
    name: str,
    label: Callable[[str], str] = str,
    base: str = "",
) -> "Figure":
    """A dot per row with its deviation, and the paper's figure; a line at the base row.

    Args:
      known: the summaries of the finished rows, in the table's order.
      experiment: it has the paper's figures.
      name: one of METRICS.
      label: what a row is called.
      base: the row that others are compared with; without it there is no line.
    """
    from matplotlib.ticker import FuncFormatter

    heights = range(len(known))
    figure = new_figure(7.0, 1.2 + 0.28 * len(known))
    axes = figure.add_subplot()
    shown = [summary.mean for summary in known.values()]
    deviations = [summary.deviation or 0.0 for summary in known.values()]
    axes.errorbar(shown, heights, xerr=deviations, fmt="o", color=BLUE, capsize=3, label="here")
    if base in known:
        axes.axvline(known[base].mean, color=BLUE, linewidth=0.8, alpha=0.5)
    printed = [experiment.paper.get(row, {}).get(name) for row in known]
    paper = {height: value for height, value in enumerate(printed) if value is not None}
    if paper and not _far(shown, [*paper.values()]):
        shown += paper.values()
        style: dict[str, Any] = {"color": VERMILION, "markersize": 4, "label": "the paper"}
        axes.plot([*paper.values()], [*paper], "D", **style)
        figure.legend(loc="outside upper right", ncols=2, frameon=False, fontsize=8)
    axes.set_yticks(heights, [label(row) for row in known], fontsize=8)
    axes.set_ylim(len(known) - 0.5, -0.5)
    axes.set_xlabel(METRICS[name].label)
    if name not in SCORES and is_wide(shown):  # scores are from 0 to 100
        use_log_axis(axes, "x")
    else:
        axes.locator_params(axis="x", nbins=7)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    axes.grid(axis="x", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def _far(here: Sequence[float], paper: Sequence[float]) -> bool:
    """Whether a common axis would squeeze one of the two groups into a point."""
    both = [*here, *paper]
    whole = max(both) - min(both)
    spreads = [max(values) - min(values) for values in (here, paper)]
    return whole > 4 * max(*spreads, 1e-9)


def curves_figure(lines: Sequence[Line], label: Callable[[str], str] = str) -> "Figure":
    """Perplexity of the validation split over the steps: a color per row, a line per seed."""
    rows = len({line.row for line in lines})
    figure = new_figure(8.0, max(4.5, 0.5 + 0.15 * rows))  # the legend has a line for each
    axes = figure.add_subplot()
    styles: dict[str, Any] = {}
    for line in [line for line in lines if line.validations()]:
        name = None if line.row in styles else label(line.row)  # once in the legend
        style = styles.setdefault(line.row, run_style(len(styles)))
        plot_curve(axes, line.validations(), linewidth=1.2, label=name, **style)
    use_log_axis(axes)
    finish_axes(axes, "step", METRICS["perplexity"].label)
    figure.legend(loc="outside right upper", frameon=False, fontsize=7)
    return figure
