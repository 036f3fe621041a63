"""The `align` command: word alignments of given translations, by encoder-decoder attention."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.api import Run
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.evaluation.alignment import WordAlignment, error_rate, link_scores
from transformer_jax.evaluation.explanations import check_method
from transformer_jax.model.sides.transformer import watched_layer
from transformer_jax.text.corpora import TextPairs
from transformer_jax.text.documents import InContext
from transformer_jax.text.folder_corpus import Links, Pair
from transformer_jax.text.hmm_aligner import hmm_alignments
from transformer_jax.text.lines import TextLines
from transformer_jax.text.pharaoh import read_alignments
from transformer_jax.text.vocabulary import split_codes
from transformer_jax.text.words import words_of
from transformer_jax.use.loading import NO_OVERRIDES, load_model

log = logging.getLogger(__name__)

LINES = 1_024  # read and aligned together
MOST_CELLS = 2 * 10**8  # pairs of a source and a target word


def align(
    workdir: str | None = None,
    *,
    src: str,
    tgt: str,
    gold: str | None = None,
    layer: int | None = None,
    explain: str | None = None,
    checkpoint: str = "latest",
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> None:
    """Prints a line "i-j i-j ..." for each pair of lines: source word i, target word j, from 0.

    With a run, each target word is linked to the source word with the largest weight in the mean of
    a layer's heads (in model.watched_layer, of its model.watched_heads). Without one, an aligner is
    trained on these lines (`hmm_alignments`). Words are split at ASCII white space; if punctuation
    is separated by spaces, it is linked too. With a gold alignment, the log has the alignment error
    rate of each layer's mean, or of the aligner.

    Args:
      workdir: the run's folder; None: no run.
      src, tgt: files of sources and of their translations.
      gold: a file of the right links, in the same form; None: none.
      layer: of the decoder, from 1; None: model.watched_layer.
      explain: a name in EXPLANATIONS, for what it finds in place of a layer's weights.
      checkpoint, overrides: see `load_model`.

    Raises:
      UserError: there is no such run, checkpoint, file, layer or method, the files differ in
        length, a gold link is wrong, or the model has no encoder-decoder attention.
    """
    pairs = TextPairs(*(TextLines(Path(file)) for file in (src, tgt)))
    right = None if gold is None else read_alignments(gold, pairs)
    if workdir is None:
        if layer is not None or explain or checkpoint != "latest" or overrides:
            raise ConfigError(
                "--layer, --explain, --checkpoint, --to and keys are of a run: add "
                "--workdir=FOLDER."
            )
        _align_alone(pairs, right)
        return
    if explain is not None:
        check_method(explain)
        if layer is not None:
            raise ConfigError(f"--explain={explain} is about the whole model: leave --layer out.")
    run = Run(load_model(workdir, checkpoint, overrides=overrides).reading_text("align"))
    changed, means = 0, []
    for pair, found in _aligned(run, pairs, explain):
        number = _number(layer, len(found.mean_NJ), watched_layer(run.config.model))
        means.append(found.mean_NJ)
        print(" ".join(f"{i}-{j}" for j, i in enumerate(found.mean_NJ[number].tolist()) if i >= 0))
        source = split_codes(pair.src, run.loaded.vocabulary.codes)[1]
        changed += is_renumbered(found.src_words, words_of(source)) or is_renumbered(
            found.tgt_words, words_of(pair.tgt)
        )
    if right is not None:
        _log_rates(f"by {explain}" if explain else f"of layers 1 to {len(means[0])}", means, right)
    if changed:
        what = "have other words after the vocabulary's normalization; links count these"
        log.warning("%d lines %s", changed, what)


def _log_rates(by: str, means: Sequence[Any], right: Sequence[Links]) -> None:
    rates = " ".join(f"{rate:.3f}" for rate in error_rate(means, right))
    log.info("alignment error rate %s: %s", by, rates)


def is_renumbered(words: Sequence[str], of_line: Sequence[str]) -> bool:
    """Whether a word's number is another one in the line; the end of a long line may be cut off."""
    fewer = len(words) < len(of_line) and [*words[:-1]] != [*of_line[: len(words)]][:-1]
    return len(words) > len(of_line) or fewer


def _aligned(
    run: Run, pairs: TextPairs, explain: str | None
) -> Iterator[tuple[Pair, WordAlignment]]:
    """Each pair, with the sentences before its source (data.context), and its alignment."""
    add_context = InContext(run.config.data.context, run.loaded.vocabulary.codes)
    for start in range(0, len(pairs), LINES):
        part = [pairs[i] for i in range(start, min(start + LINES, len(pairs)))]
        part = [pair._replace(src=add_context(pair.src)) for pair in part]
        sides = ([pair[side] for pair in part] for side in (0, 1))
        yield from zip(part, run.align(*sides, explain=explain), strict=True)


def _align_alone(pairs: TextPairs, right: Sequence[Links] | None) -> None:
    """Prints the links that two hidden Markov models find in these lines."""
    words = [(words_of(pair.src), words_of(pair.tgt)) for pair in pairs]
    cells = sum(len(src) * len(tgt) for src, tgt in words)
    if cells > MOST_CELLS:
        raise DataError(
            f"{len(pairs)} pairs have {cells:,} pairs of words, more than {MOST_CELLS:,}, which "
            "would take tens of GB. Align a part of the lines."
        )
    found = hmm_alignments(words)
    for links in found:
        print(" ".join(f"{i}-{j}" for i, j in links))
    if right is not None:
        both = (list(map(set, links)) for links in (found, right))
        log.info("alignment error rate: %.3f", link_scores(*both).error_rate)


def _number(layer: int | None, layers: int, watched: int) -> int:
    """The layer's number from 0. Raises ConfigError if there is no such layer."""
    if layer is not None and not 1 <= layer <= layers:
        raise ConfigError(f"--layer={layer}: the decoder has layers 1 to {layers} to align by.")
    return min(watched, layers - 1) if layer is None else layer - 1
