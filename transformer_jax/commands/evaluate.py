"""The `evaluate` command: translates a split or a file, and writes translations and scores."""

import datetime
import json
import logging
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from transformer_jax import __version__
from transformer_jax.commands.loading import NO_OVERRIDES, load_model
from transformer_jax.errors import ConfigError, RunError
from transformer_jax.evaluation.bleu import Scores, format_scores, score
from transformer_jax.files import write_atomically
from transformer_jax.parallel import processes
from transformer_jax.reporting.plots import printable
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.corpora import Pair, TextLines, TextPairs, open_corpus

log = logging.getLogger(__name__)


class Evaluation(NamedTuple):
    """The scores of some translations, and the files and texts that they belong to."""

    scores: Scores
    hypotheses: Path  # a file with one translation a line
    pairs: Sequence[Pair]  # sources and references, in that file's order


def evaluate(
    workdir: str,
    *,
    split: str = "test",
    src: str | None = None,
    ref: Sequence[str] | None = None,
    checkpoint: str = "latest",
    beam_size: int | None = None,
    examples: int = 0,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> Evaluation:
    """Translates a split or a file; prints the scores and writes them to WORKDIR/evaluations.

    Args:
      workdir: the run's folder.
      split: "train", "valid", "test", or a file stem or TFDS split of the run's corpus.
      src: a file of source lines to use instead of a split, together with `ref`.
      ref: the files of its references, one or several.
      checkpoint: "latest", "best", "average" or a step.
      beam_size: None: the run's.
      examples: number of evenly spaced translations to print with their sources and references.
      overrides: keys of `decode` and `data` and their values; `beam_size` wins.

    Raises:
      UserError: there is no such run, checkpoint, split or file, or the folder cannot be written.
    """
    if (src is None) != (not ref):
        raise ConfigError("--src and --ref belong together: sources and their references.")
    if examples < 0:
        raise ConfigError(f"--examples={examples} is below 0: how many to print.")
    loaded = load_model(workdir, checkpoint, beam_size, overrides=overrides)
    run = RunFolder(workdir)
    if src is not None and ref:
        name, (pairs, others) = Path(src).name, _read_files(src, ref)
    else:
        corpus = open_corpus(loaded.config.data, loaded.config.seed)
        name, pairs, others = split, corpus.split(split), []
    sources, references = [pair.src for pair in pairs], [pair.tgt for pair in pairs]
    processes.first_does(lambda: _make_folder(run.evaluations))
    translator = loaded.line_translator()
    log.info("translating %d lines of %s", len(sources), name)
    hypotheses = [best.text for best, *_ in translator.shared(sources)]
    translator.warn_of_cut()
    data, decode = loaded.config.data, loaded.config.decode
    scores = score(hypotheses, references, data.src, data.tgt, others)
    settings = {"checkpoint": loaded.checkpoint, "beam_size": decode.beam_size}
    settings |= {"length_penalty": decode.length_penalty}
    settings |= {"coverage_penalty": decode.coverage_penalty}
    settings |= {"max_extra_length": decode.max_extra_length}
    path = _path(run, name, settings)
    if processes.is_first():
        _keep(path, {"name": name, **settings}, hypotheses, scores)
        print(format_scores(scores))
        for i in range(0, len(sources), -(-len(sources) // examples)) if examples else ():
            print(f"\nsource      {printable(sources[i])}\nreference   {printable(references[i])}")
            print(f"translation {printable(hypotheses[i])}")
    return Evaluation(scores, path, pairs)


def _read_files(src: str, ref: Sequence[str]) -> tuple[Sequence[Pair], list[list[str]]]:
    """The sources with their first references, and the other references."""
    sources = TextLines(Path(src))
    first, *others = [TextPairs(sources, TextLines(Path(file))) for file in ref]
    return first, [[pair.tgt for pair in pairs] for pairs in others]


def _make_folder(path: Path) -> None:
    """Creates the folder before the work begins. Raises RunError if it cannot be written."""
    try:
        path.mkdir(exist_ok=True)
        writable = os.access(path, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise RunError(f"Cannot write into {path}. Make it writable, or copy the run elsewhere.")


def _path(run: RunFolder, name: str, settings: dict[str, object]) -> Path:
    """WORKDIR/evaluations/NAME.CHECKPOINT.beamK.txt."""
    stem = f"{name}.{settings['checkpoint']}.beam{settings['beam_size']}"
    return run.evaluations / (re.sub(r"[^\w.-]", "_", stem) + ".txt")


def _keep(path: Path, about: dict[str, object], hypotheses: list[str], scores: Scores) -> None:
    """Writes one hypothesis a line, and scores and settings as a .json file beside it."""
    record = {
        **about,
        **scores._asdict(),
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "version": __version__,
    }
    text = "".join(f"{line}\n" for line in hypotheses)
    write_atomically(path, text.encode())
    content = json.dumps(record, indent=2, ensure_ascii=False) + "\n"
    write_atomically(path.with_suffix(".json"), content.encode())
    log.info("hypotheses and scores: %s", path.with_suffix(".*"))
