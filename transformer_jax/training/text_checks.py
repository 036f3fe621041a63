"""Warnings about the text of a run, before it trains."""

import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from transformer_jax.config.data import DataConfig
from transformer_jax.config.texts import Text, directed, overlap, slice_of
from transformer_jax.errors import DataError
from transformer_jax.model.outputs.ctc import STATES
from transformer_jax.model.outputs.mask_predict import LENGTHS
from transformer_jax.text.corpora import Corpus
from transformer_jax.text.encoded import EncodedPairs
from transformer_jax.text.folder_corpus import FolderCorpus, Pair
from transformer_jax.text.mixture import MixedCorpus, plain_corpora
from transformer_jax.text.vocabulary import Vocabulary, split_codes

log = logging.getLogger(__name__)
REFERENCES = 1_000  # validation references that are looked at
# Shares from which there is a warning: of references that cannot be written, of validation pairs
# that are training pairs, and of targets that are equal in two languages.
LOST_SHARE, KNOWN_SHARE, COPIED_SHARE = 0.01, 0.1, 0.5
CHUNK_PAIRS = 50_000
TARGET_LINES = 1_000  # of each text that are compared
# By model.parallel: whether targets of these lengths can be written, and which can.
WRITABLE: dict[str, tuple[Callable[[np.ndarray, np.ndarray], np.ndarray], str]] = {
    "ctc": (
        lambda src, tgt: tgt <= STATES * src,
        f"it has {STATES} places for each subword of the source",
    ),
    "mask_predict": (
        lambda src, tgt: (src - LENGTHS // 2 <= tgt) & (tgt < src + LENGTHS // 2),
        f"lengths are from {LENGTHS // 2} subwords below to {LENGTHS // 2 - 1} above the source's",
    ),
}


def warn_of_lost_characters(pairs: Sequence[Pair], vocabulary: Vocabulary) -> None:
    """Logs a warning if the model can never write many of the first references."""
    references = [pair.tgt for pair in itertools.islice(pairs, REFERENCES)]
    target = vocabulary.target
    written = [target.decode(ids) for ids in target.encode_lines(references)]
    lost = sum(x.split() != y.split() for x, y in zip(references, written, strict=True))
    if lost > LOST_SHARE * len(references):
        log.warning(
            "%d of %d validation references have characters that the vocabulary changes, so the "
            "model can never write them; one with vocabulary.normalization=identity keeps them",
            lost,
            len(references),
        )


def warn_of_missing_codes(pairs: Sequence[Pair], to: str, vocabulary: Vocabulary) -> None:
    """Logs a warning if search begins lines with a code, by decode.to, and training text has none.

    Training reads its text as it is: only data.directions and tags add codes.
    """
    lines = [pair.src for pair in itertools.islice(pairs, TARGET_LINES)]
    if not any(split_codes(line, vocabulary.codes)[0] for line in lines):
        log.warning(
            "decode.to: search begins source lines with %s, and training text does not. Name it as "
            "a tag too, such as data.train=STEM@%s and data.valid=STEM@%s, or leave decode.to out",
            to,
            *[to.strip("<>")] * 2,
        )


def warn_of_splits(corpus: Corpus, data: DataConfig, of_valid: str) -> None:
    """Logs a warning if training has pairs twice, or `evaluate` no test text, or known text.

    `of_valid` is the fingerprint of the validation text.
    """
    texts = directed(map(Text.of, data.train), data.directions)

    @functools.cache  # it reads whole files
    def same_name(stem: str) -> str:
        """What all stems of one text have in common: of files their sums, with the stem's slice."""
        own = slice_of(stem)[0]
        for one in plain_corpora(corpus):
            if isinstance(one, FolderCorpus):
                with contextlib.suppress(DataError):  # it has other languages
                    return "".join(x.hex() for x in one.text_digests(own)) + stem.removeprefix(own)
        return stem

    for one, other in itertools.combinations(texts, 2):
        is_same = (one.direction, one.tag) == (other.direction, other.tag)
        if is_same and overlap(same_name(one.stem), same_name(other.stem)):
            log.warning(
                "data.train has pairs twice, in %r and %r: leave one out, or give one *%g",
                one.name,
                other.name,
                one.weight + other.weight,
            )
    if shared := data.train_pairs_in(data.test):
        log.warning("data.train=%r and the test text %r share pairs", *shared)
    elif isinstance(corpus, FolderCorpus):
        with contextlib.suppress(DataError):  # the next lines name what is missing
            train, test = (
                {one for stem in stems for one in corpus.text_digests(slice_of(stem)[0])}
                for stems in (data.train, data.test)
            )
            if train & test:
                log.warning("data.test=%r has files of the training text", data.test)
    if data.test:
        try:
            corpus.split("test")
            if corpus.fingerprint("test") == of_valid:
                log.warning("data.test=%r is the validation text", data.test)
        except DataError as error:
            log.warning("there is no test split for a later `evaluate`: %s", error)


def check_lengths(train: EncodedPairs, valid: EncodedPairs, parallel: str) -> None:
    """Logs how many targets have a length that this model.parallel cannot write.

    Raises:
      DataError: all of a split have.
    """
    is_writable, limit = WRITABLE[parallel]
    for kind, pairs in (("training", train), ("validation", valid)):
        is_wrong = ~is_writable(pairs.src_lengths(), pairs.tgt_lengths())
        if is_wrong.all():
            raise DataError(
                f"No {kind} target has a length that model.parallel={parallel} can write: {limit}. "
                "Are the sides swapped?"
            )
        if count := int(is_wrong.sum()):
            given = count, kind, 100 * count / len(pairs), parallel, limit
            log.warning(
                "%d %s targets (%.1f %%) cannot be written by model.parallel=%s: %s", *given
            )


def warn_of_equal_targets(corpus: Corpus, by_tag: bool) -> None:
    """Logs a warning if texts of different target languages have the same targets.

    Args:
      corpus: of training; only a mixture has several languages.
      by_tag: whether tags name languages, as for back-translation without pairs.
    """
    seen = list[tuple[str, list[str]]]()
    for text, own, split in corpus.parts("train") if isinstance(corpus, MixedCorpus) else ():
        language = text.direction.partition("-")[2] or (text.tag if by_tag else "")
        lines = [pair.tgt for pair in itertools.islice(own.split(split), TARGET_LINES)]
        for other, known in seen:
            equal = sum(a == b != "" for a, b in zip(lines, known, strict=False))
            if language != other and equal > COPIED_SHARE * len(lines):
                log.warning(
                    "%d of the first %d lines of a training text are the same in %s and in %s",
                    equal,
                    len(lines),
                    other,
                    language,
                )
        seen.append((language, lines))


def warn_of_known_pairs(
    train: EncodedPairs, other: EncodedPairs, vocabulary: Vocabulary, split: str
) -> None:
    """Logs a warning if training shows much of another split's text, with whatever codes."""
    if train.src_ids.ndim == 1:
        size = max(vocabulary.sizes)
        numbers = np.random.default_rng(0).integers(2**63, size=size, dtype=np.uint64)
        numbers[list(vocabulary.codes.values())] = 0
        src, tgt = np.concatenate([*_sums(train, numbers)], 1)
        own_src, own_tgt = np.concatenate([*_sums(other, numbers)], 1)
        known = int(np.isin(own_src + 3 * own_tgt, src + 3 * tgt).sum())
    else:
        shown = set(_contents(train))
        known = sum(one in shown for one in _contents(other))
    if known > KNOWN_SHARE * len(other):
        log.warning(
            "%d of %d %s pairs are training pairs too, so scores on them say little: see data.%s",
            known,
            len(other),
            split,
            {"validation": "valid"}.get(split, split),
        )


def _contents(pairs: EncodedPairs) -> Iterator[tuple[bytes, bytes, int]]:
    """What tells recordings or pictures with their texts from others: their first positions."""
    for i in range(len(pairs)):
        first, end = pairs.src_offsets[i : i + 2]
        ids = pairs.tgt_ids[slice(*pairs.tgt_offsets[i : i + 2])]
        yield ids.tobytes(), pairs.src_ids[first : min(end, first + 8)].tobytes(), int(end - first)


def _sums(pairs: EncodedPairs, numbers: np.ndarray) -> Iterator[np.ndarray]:
    """The sum of the numbers of each sentence's subwords, uint64 [2, pairs], in chunks of pairs.

    Sentences with the same sum have the same subwords, whose order may differ.
    """
    for first in range(0, len(pairs), CHUNK_PAIRS):
        chunk = slice(first, min(first + CHUNK_PAIRS, len(pairs)) + 1)
        sides = (pairs.src_ids, pairs.src_offsets[chunk]), (pairs.tgt_ids, pairs.tgt_offsets[chunk])
        yield np.stack(
            [np.add.reduceat(numbers[ids[at[0] : at[-1]]], at[:-1] - at[0]) for ids, at in sides]
        )
