"""One page about a run, to send to a colleague: settings, curves, translations, attention, scores.

    python -m experiments.report --workdir=RUN

It translates a split of the run's text; --config.data.path=FOLDER names it if it has moved. The
page is one file, which needs no network.
"""

import logging
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.figures import (
    Asked,
    by_length,
    check_moved,
    check_translates,
    draw_attention,
    made_by,
)
from transformer_jax.config.schema import KEYS, Config, value_at
from transformer_jax.errors import UserError
from transformer_jax.files import make_folder
from transformer_jax.reporting.page import Code, Heading, Part, Picture, Table, Text, write_report
from transformer_jax.reporting.plots import printable, runs_figure, save_figure
from transformer_jax.runs.metrics import read_metrics
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.use.command_line import Flag, parse_experiment, run_main
from transformer_jax.use.loading import NO_OVERRIDES

log = logging.getLogger("experiments.report")
FLAGS = [
    Flag("workdir", str, "RUN", "a run's folder", required=True),
    Flag("split", str, "NAME", "split of the run's corpus to translate", default="test"),
    Flag("checkpoint", str, "WHICH", "latest, best, average or a step", default="latest"),
    Flag("out", str, "FOLDER", "where pictures, table.md and page go", default="runs/report"),
]
SHOWN = 8  # translations


def settings(config: Config) -> Table:
    """The keys that have another value than their default."""
    values = {name: value_at(config, name) for name in KEYS}
    changed = {name: x for name, x in values.items() if x != KEYS[name].default}
    rows = [[name, str(value), str(KEYS[name].default)] for name, value in changed.items()]
    return Table(["key", "value", "default"], rows)


def examples(sides: Sequence[tuple[str, str, str]]) -> Iterator[str]:
    """Some evenly spaced sources, references and translations, a line each."""
    for number in range(0, len(sides), max(1, len(sides) // SHOWN)):
        for name, line in zip(("source", "reference", "translation"), sides[number], strict=True):
            yield f"{name:<12}{printable(line)}"
        yield ""


def curves(workdir: str, out: Path) -> list[Part]:
    """The training curves, if the run was trained in its folder."""
    try:
        records = read_metrics(workdir)
    except UserError as error:
        return [Text(f"{error}")]
    figure = runs_figure({Path(workdir).absolute().name: records})
    return [Picture(save_figure(figure, out / "curves.png"), "Training and validation.")]


def report(
    workdir: str,
    split: str,
    checkpoint: str,
    out: Path,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> Path:
    """Translates the split and writes the page; returns its path.

    Keys of the config, the overrides, say where the text is now.

    Raises:
      UserError: the folder is not writable, or the run cannot be used.
    """
    from transformer_jax.commands.evaluate import evaluate

    check_moved(overrides)
    check_translates(workdir)
    make_folder("--out", out)
    found = evaluate(workdir, split=split, checkpoint=checkpoint, overrides=overrides)
    translations = found.hypotheses.read_text(encoding="utf-8").split("\n")[:-1]
    sides = [(*pair[:2], one) for pair, one in zip(found.pairs, translations, strict=True)]
    asked = Asked(out, workdir, None, split, checkpoint, overrides)
    scores = found.scores
    flags = [f"--workdir={workdir}", f"--split={split}", f"--checkpoint={checkpoint}"]
    flags += [f"--config.{name}={value}" for name, value in overrides.items()]
    parts: list[Part] = [
        Code(shlex.join(["python", "-m", "experiments.report", *flags])),
        Text(made_by()),
        Heading("Scores"),
        Table(
            ["direction", "sentences", "BLEU", "chrF", "brevity penalty"],
            [
                [
                    scores.direction,
                    f"{scores.sentences:,}",
                    f"{scores.bleu:.2f}",
                    f"{scores.chrf:.2f}",
                    f"{scores.brevity_penalty:.3f}",
                ]
            ],
        ),
        Heading("Settings that are no defaults"),
        settings(RunFolder(workdir).read_config()),
        Heading("Curves"),
        *curves(workdir, out),
        Heading("Translations"),
        Code("\n".join(examples(sides))),
        Heading("BLEU by the length of the source"),
        *by_length(found, out),
        Heading("Attention of every layer and head"),
        *draw_attention(asked),
    ]
    return write_report(out, f"The run {Path(workdir).absolute().name}", parts)


def main() -> None:
    """Writes the page."""
    values = parse_experiment("report", __doc__, FLAGS)
    print(f"page        {report(**{**values, 'out': Path(values['out'])})}")


if __name__ == "__main__":
    run_main(main)
