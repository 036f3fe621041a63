"""The `align` command: word alignments of given translations, by encoder-decoder attention."""

import logging
from pathlib import Path

from transformer_jax.api import Run
from transformer_jax.commands.loading import load_model
from transformer_jax.errors import ConfigError
from transformer_jax.model.transformer import watched_layer
from transformer_jax.text.corpora import TextLines, TextPairs

log = logging.getLogger(__name__)

LINES = 1_024  # read and aligned together


def align(
    workdir: str, *, src: str, tgt: str, layer: int | None = None, checkpoint: str = "latest"
) -> None:
    """Prints a line "i-j i-j ..." for each pair of lines: source word i, target word j, from 0.

    Each target word is linked to the source word with the largest weight in the mean of a layer's
    heads. Words are what ASCII spaces separate; a file whose punctuation is separated links it too.

    Args:
      workdir: the run's folder.
      src: a file of sources.
      tgt: a file of their translations.
      layer: of the decoder, from 1; None: model.watched_layer.
      checkpoint: "latest", "best", "average", a step, or an average's name.

    Raises:
      UserError: there is no such run, checkpoint, file or layer, the files differ in length, or the
        model has no encoder-decoder attention.
    """
    pairs = TextPairs(TextLines(Path(src)), TextLines(Path(tgt)))
    run = Run(load_model(workdir, checkpoint))
    changed = 0
    for start in range(0, len(pairs), LINES):
        part = [pairs[i] for i in range(start, min(start + LINES, len(pairs)))]
        for pair, found in zip(part, run.align(*map(list, zip(*part, strict=True))), strict=True):
            number = _number(layer, len(found.mean_NJ), watched_layer(run.config.model))
            links = found.mean_NJ[number].tolist()
            print(" ".join(f"{i}-{j}" for j, i in enumerate(links) if i >= 0))
            sides = (found.src_words, found.tgt_words)
            changed += any(
                len(words) > len(line.encode().split())
                for words, line in zip(sides, pair, strict=True)
            )
    if changed:
        log.warning("%d lines have more words as the vocabulary spells them", changed)


def _number(layer: int | None, layers: int, watched: int) -> int:
    """The layer's number from 0. Raises ConfigError if there is no such layer."""
    if layer is not None and not 1 <= layer <= layers:
        raise ConfigError(f"--layer={layer}: the decoder has layers 1 to {layers} to align by.")
    return min(watched, layers - 1) if layer is None else layer - 1
