"""The `evaluate` command: translates a split or a file, and writes translations and scores."""

import dataclasses
import datetime
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import jax

from transformer_jax import __version__
from transformer_jax.commands.loading import load_model
from transformer_jax.errors import ConfigError, RunError
from transformer_jax.evaluation.bleu import Scores, format_scores, score
from transformer_jax.parallel import processes
from transformer_jax.reporting.plots import printable
from transformer_jax.reporting.revision import revision
from transformer_jax.runs.evaluations import evaluation_path, text_digest, write_evaluation
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.corpora import Joined, Pair, TextLines, TextPairs, open_corpus

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
    ref: str | None = None,
    checkpoint: str = "latest",
    beam_size: int | None = None,
    examples: int = 0,
) -> Evaluation:
    """Translates a split or a file; prints the scores and writes them to WORKDIR/evaluations.

    A name in that folder ends in a hash of texts and settings, so that no evaluation overwrites
    another one.

    Args:
      workdir: the run's folder.
      split: "train", "valid", "test", or a file stem or TFDS split of the run's corpus.
      src: a file of source lines to use instead of a split, together with `ref`.
      ref: the file of its references.
      checkpoint: "latest", "best", "average", a step, or an average's name, such as "40-last5".
      beam_size: None: the run's.
      examples: number of evenly spaced translations to print with their sources and references.

    Raises:
      UserError: there is no such run, checkpoint, split or file, or the folder cannot be written.
    """
    if (src is None) != (ref is None):
        raise ConfigError("--src and --ref belong together: sources and their references.")
    if examples < 0:
        raise ConfigError(f"--examples={examples} is below 0: how many to print.")
    loaded, run = load_model(workdir, checkpoint, beam_size), RunFolder(workdir)
    if src is not None and ref is not None:
        name = Path(src).name
        pairs: Sequence[Pair] = TextPairs(TextLines(Path(src)), TextLines(Path(ref)))
    else:
        name, pairs = split, open_corpus(loaded.config.data).split(split)
    sources, references = [pair.src for pair in pairs], [pair.tgt for pair in pairs]
    processes.first_does(lambda: _make_folder(run.evaluations))
    translator = loaded.line_translator()
    log.info("translating %d lines of %s", len(sources), name)
    hypotheses = [best.text for best, *_ in translator.shared(sources)]
    translator.warn_of_cut()
    data, decode = loaded.config.data, loaded.config.decode
    scores = score(hypotheses, references, data.src, data.tgt)
    settings = {
        "split": split if src is None else None,
        "src_sha256": text_digest(sources),
        "ref_sha256": text_digest(references),
        "checkpoint": loaded.checkpoint,
        **dataclasses.asdict(decode),
    }
    path = evaluation_path(run.evaluations, name, settings)
    if processes.is_first():
        about = {"name": name, **_files(pairs), **settings, **scores._asdict(), **_origin()}
        write_evaluation(path, hypotheses, about)
        log.info("hypotheses and scores: %s", path.with_suffix(".*"))
        print(format_scores(scores))
        _print_examples(pairs, hypotheses, examples)
    return Evaluation(scores, path, pairs)


def _print_examples(pairs: Sequence[Pair], hypotheses: Sequence[str], examples: int) -> None:
    """Prints that many evenly spaced pairs with their translations."""
    for i in range(0, len(pairs), -(-len(pairs) // examples)) if examples else ():
        source, reference = map(printable, pairs[i])
        print(f"\nsource      {source}\nreference   {reference}")
        print(f"translation {printable(hypotheses[i])}")


def _make_folder(path: Path) -> None:
    """Creates the folder before the work begins. Raises RunError if it cannot be written."""
    try:
        path.mkdir(exist_ok=True)
        writable = os.access(path, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise RunError(f"Cannot write into {path}. Make it writable, or copy the run elsewhere.")


def _files(pairs: Sequence[Pair]) -> dict[str, list[str]]:
    """The absolute paths of the text files of sources and references; none of other corpora."""
    parts = pairs.parts if isinstance(pairs, Joined) else [pairs]
    texts = [part for part in parts if isinstance(part, TextPairs)]
    return {
        "src_files": [str(text.src.path.absolute()) for text in texts],
        "ref_files": [str(text.tgt.path.absolute()) for text in texts],
    }


def _origin() -> dict[str, object]:
    """The devices, the date and the code of this evaluation."""
    return {
        "device": jax.devices()[0].device_kind,
        "devices": jax.device_count(),
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "revision": revision(),
    }
