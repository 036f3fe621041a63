"""The `score` command: scores of given translations."""

import copy
import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from transformer_jax.decoding.lines import LineTranslator
from transformer_jax.decoding.scoring import Forced
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.text.corpora import TextPairs
from transformer_jax.text.documents import InContext
from transformer_jax.text.folder_corpus import Pair
from transformer_jax.text.lines import TextLines
from transformer_jax.text.words import words_of
from transformer_jax.training.window import perplexity
from transformer_jax.use.loading import NO_OVERRIDES, load_model

log = logging.getLogger(__name__)
LINES = 8_192  # read and scored together
# Nats a subword. A translation of a trained model has fewer than UNLIKELY, and the other way round
# SWAPPED more. TRIED pairs are scored that way.
UNLIKELY, SWAPPED, TRIED = 5.0, 1.0, 20


def score(
    workdir: str | Sequence[str],
    *,
    tgt: str,
    src: str | None = None,
    checkpoint: str = "latest",
    length_penalty: float | None = None,
    coverage_penalty: float | None = None,
    contrastive: Sequence[str] | None = None,
    overrides: Mapping[str, Any] = NO_OVERRIDES,
) -> None:
    """Prints "SCORE<tab>LOG_PROBABILITY<tab>SUBWORDS" for each pair of lines.

    The log has the perplexity of all lines, by word without lines that may be cut. With contrastive
    files it prints one line instead, "ACCURACY<tab>RIGHT<tab>LINES": on how many lines the score of
    --tgt is above that of each wrong translation; lines that are blank in all files do not count.

    The score is what search reports for these subwords: the log probability (nats, summed over the
    subwords, EOS included) over the length penalty, plus the coverage penalty if there is one. A
    blank source has only a blank translation, with score 0; any other has the score -inf.

    Args:
      tgt: a file of translations.
      src: a file of their sources; None: of a language model, whose texts have none.
      contrastive: files of wrong translations of the same sources.
      workdir, checkpoint, length_penalty, coverage_penalty, overrides: see `load_model`.

    Raises:
      UserError: there is no such run, checkpoint or file, or the files differ in length.
    """
    files = [TextLines(Path(file)) for file in (src, tgt) if file is not None]
    pairs = TextPairs(*files)
    others = [TextPairs(*files[:-1], TextLines(Path(file))) for file in contrastive or ()]
    for file, other in zip(contrastive or (), others, strict=True):
        if len(other) != len(pairs):
            raise DataError(f"{file} has {len(other)} lines, and {tgt} has {len(pairs)}.")
    loaded = load_model(workdir, checkpoint, None, length_penalty, 1, coverage_penalty, overrides)
    if src is None and loaded.translator.model.sources:
        raise ConfigError("--src=FILE is missing: the sources of the translations in --tgt.")
    lines = loaded.line_translator(folder=Path(src).parent if src else None)
    context = loaded.config.data.context
    found = _scores(lines, pairs, context)
    if others:
        of_others = [_scores(lines, other, context, is_again=True) for other in others]
        _print_accuracy([pairs, *others], [found, *of_others])
    else:
        nats = _print_scores(found, pairs, lines.longest)
        is_text = loaded.config.data.src_kind == "text" and not lines.vocabulary.codes
        if nats > UNLIKELY and is_text and loaded.translator.model.sources == 1:
            _warn_of_swapped_sides(copy.copy(lines), pairs)  # what it cuts is counted already
    lines.warn_of_cut()


def _print_accuracy(files: Sequence[TextPairs], found: Sequence[Iterable[Forced]]) -> None:
    """Prints how often the first file's translation is better than those of the others."""
    right, at_least, count = 0, 0, 0
    scores = zip(*found, strict=True)
    for pairs, (own, *wrong) in zip(zip(*files, strict=True), scores, strict=True):
        if not any(side.strip() for pair in pairs for side in pair):  # it ends a document
            continue
        best = max(one.score for one in wrong)
        right, at_least = right + (own.score > best), at_least + (own.score >= best)
        count += 1
    if not count:
        raise DataError("--contrastive: all lines are blank.")
    print(f"{right / count:.4f}\t{right}\t{count}")
    if ties := at_least - right:
        log.warning("%d lines have equal scores, which count as wrong", ties)


def _print_scores(found: Iterable[Forced], pairs: Sequence[Pair], longest: int) -> float:
    """Prints a line for each pair; logs the perplexity of all that have a probability.

    Returns the nats a subword, 0 if there is none.

    Lines of `longest` subwords may have been cut, so that they have fewer words than they show.
    """
    nats, subwords, nats_of_words, words = 0.0, 0, 0.0, 0
    for one, pair in zip(found, pairs, strict=True):
        print(f"{one.score:.6f}\t{one.log_prob:.6f}\t{one.length}")
        if math.isfinite(one.log_prob):
            nats -= one.log_prob
            subwords += one.length
            if one.length < longest:
                nats_of_words -= one.log_prob
                words += len(words_of(pair.tgt))
    if subwords:
        of_words = ""
        if words:
            of_words = f", {perplexity(nats_of_words / words):.4g} per word between spaces"
        of_subwords = perplexity(nats / subwords)
        log.info("perplexity %.4g per subword (EOS included)%s", of_subwords, of_words)
    return nats / max(subwords, 1)


def _warn_of_swapped_sides(lines: LineTranslator, pairs: Sequence[Pair]) -> None:
    """Logs a warning if the first pairs are likelier from the target to the source."""
    some = [pair for pair in pairs[:TRIED] if pair.src.strip() and pair.tgt.strip()]

    def nats(sources: Sequence[str], targets: Sequence[str]) -> float:
        found = lines.score(sources, targets)
        return -sum(one.log_prob for one in found) / sum(one.length for one in found)

    src, tgt = ([pair[side] for pair in some] for side in (0, 1))
    if some and nats(tgt, src) < nats(src, tgt) - SWAPPED:
        log.warning("the sources are likelier as translations of --tgt: are the sides swapped?")


def _scores(
    lines: LineTranslator, pairs: Sequence[Pair], context: int, is_again: bool = False
) -> Iterator[Forced]:
    """The score of each pair, in order; a sentence gets those before it (data.context).

    With `is_again`, cut sources are not counted: they were, with other targets.
    """
    add_context = InContext(context, lines.vocabulary.codes)
    for start in range(0, len(pairs), LINES):
        part = [pairs[i] for i in range(start, min(start + LINES, len(pairs)))]
        targets = [tgt for _, tgt in part]
        yield from lines.score([add_context(src) for src, _ in part], targets, is_again)
