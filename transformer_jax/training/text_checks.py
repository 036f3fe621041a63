"""Warnings about the text of a run, before it trains."""

import contextlib
import itertools
import logging
from collections.abc import Iterator, Sequence

import numpy as np

from transformer_jax.config.data import DataConfig, Text, directed, overlap, slice_of
from transformer_jax.errors import DataError
from transformer_jax.text.corpora import Corpus
from transformer_jax.text.encoded import EncodedPairs
from transformer_jax.text.folder_corpus import FolderCorpus, Pair
from transformer_jax.text.mixture import MixedCorpus, plain_parts
from transformer_jax.text.vocabulary import EOS, Vocabulary, split_codes

log = logging.getLogger(__name__)
REFERENCES = 1_000  # validation references that are looked at
# Shares from which there is a warning: of references that cannot be written, of validation pairs
# that are training pairs, of training pairs whose sides are equal, and of those without a source.
LOST_SHARE, KNOWN_SHARE, COPIED_SHARE, MISSING_SHARE = 0.01, 0.1, 0.5, 0.1
CHUNK_PAIRS = 50_000
# Nats per subword. Swapped sides in two languages: 1.7 to 4.4 on captions, news, Europarl, manuals
# (also news after captions, and after 500 pairs); sides of one language: below 0.1 either way.
SWAPPED_GAP = 0.5
CODED_LINES = 1_000  # source lines of each text in which codes are looked for
# In blocks of 100 to 1,000 pairs of real text (Europarl, news, manuals, captions) the logarithms of
# lengths correlate at 0.74 to 0.97, and at -0.4 to 0.37 where the lines of one side are one off.
BLOCK_PAIRS, SMALLEST_BLOCK, LEAST_CORRELATION, SHIFTS = 1_000, 100, 0.3, (1, -1, 2, -2)


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


def warn_of_splits(corpus: Corpus, data: DataConfig, of_valid: str) -> None:
    """Logs a warning if training has pairs twice, or `evaluate` no test text, or known text.

    `of_valid` is the fingerprint of the validation text.
    """
    texts = directed(map(Text.of, data.train), data.directions)
    for one, other in itertools.combinations(texts, 2):
        is_same = (one.direction, one.tag) == (other.direction, other.tag)
        if is_same and overlap(one.stem, other.stem):
            log.warning(
                "data.train has pairs twice, in %r and %r: give %s*2, if they are to count twice",
                one.name,
                other.name,
                one.name,
            )
    if shared := data.train_pairs_in(data.test):
        log.warning("data.train=%r and the test text %r share pairs", *shared)
    elif isinstance(corpus, FolderCorpus):
        with contextlib.suppress(DataError):  # the next lines name what is missing
            train, test = (_sums_of_files(corpus, stems) for stems in (data.train, data.test))
            if train & test:
                log.warning("data.test=%r has files of the training text", data.test)
    if data.test:
        try:
            corpus.split("test")
            if corpus.fingerprint("test") == of_valid:
                log.warning("data.test=%r is the validation text", data.test)
        except DataError as error:
            log.warning("there is no test split for a later `evaluate`: %s", error)


def check_states(train: EncodedPairs, valid: EncodedPairs, states: int) -> None:
    """Logs how many training targets are longer than the states of their source: CTC writes none.

    Raises:
      DataError: all of a split are.
    """
    longer = [one.tgt_lengths() > states * one.src_lengths() for one in (train, valid)]
    for kind, is_longer in zip(("training", "validation"), longer, strict=True):
        if is_longer.all():
            raise DataError(
                f"Every {kind} target has more than {states} subwords for each of its source, more "
                "than model.parallel=ctc can write: no pair counts. Are the sides swapped?"
            )
    if count := int(longer[0].sum()):
        log.warning(
            "%d targets (%.1f %%) have more than %d subwords for each of the source: they do not "
            "count in training",
            count,
            100 * count / len(train),
            states,
        )


def warn_of_codes(pairs: Sequence[Pair], codes: Sequence[str]) -> None:
    """Logs a warning if source lines have codes of their own, beside those that they get."""
    for part in plain_parts(pairs) if codes else ():
        lines = [src for src, _ in itertools.islice(part, CODED_LINES)]
        if has := sum(bool(split_codes(line, codes)[0]) for line in lines):
            log.warning(
                "%d of the first %d source lines of a training text have a code of their own, and "
                "get another one (data.directions, @TAG)",
                has,
                len(lines),
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
        lines = [pair.tgt for pair in itertools.islice(own.split(split), CODED_LINES)]
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


def warn_of_known_pairs(train: EncodedPairs, valid: EncodedPairs, vocabulary: Vocabulary) -> None:
    """Logs a warning if training shows much of the validation text, or has equal sides.

    Equal sides are not found if each has a vocabulary of its own.
    """
    numbers = np.random.default_rng(0).integers(2**63, size=max(vocabulary.sizes), dtype=np.uint64)
    src, tgt = np.concatenate([*_sums(train, numbers)], 1)
    own_src, own_tgt = np.concatenate([*_sums(valid, numbers)], 1)
    known = int(np.isin(own_src + 3 * own_tgt, src + 3 * tgt).sum())
    if known > KNOWN_SHARE * len(valid):
        log.warning(
            "%d of %d validation pairs are training pairs too, so scores on them say little: see "
            "data.valid",
            known,
            len(valid),
        )
    copied = int((src == tgt).sum())
    if vocabulary.is_shared and copied > COPIED_SHARE * len(train):
        log.warning("in %d of %d training pairs both sides are equal", copied, len(train))


def warn_of_swapped_sides(train: EncodedPairs, valid: EncodedPairs, vocabulary: Vocabulary) -> None:
    """Logs a warning if a side of the validation text looks like the other side of training.

    Compared is how likely its subwords are by their frequencies. With a vocabulary for each side
    they cannot be compared.
    """
    if not vocabulary.is_shared:
        return
    size = max(vocabulary.sizes)
    counts = [np.bincount(ids, minlength=size) + 1 for ids in (train.src_ids, train.tgt_ids)]
    src, tgt = (np.log(own / own.sum()) for own in counts)
    gaps = (tgt - src)[valid.src_ids].mean(), (src - tgt)[valid.tgt_ids].mean()
    if any(wrong := [gap > SWAPPED_GAP for gap in gaps]):
        log.warning(
            "%s of the validation text looks like the other side of training: are files swapped?",
            "each side" if all(wrong) else f"the {('source', 'target')[wrong.index(True)]}",
        )


def warn_of_unrelated_lines(pairs: EncodedPairs, kind: str, data: DataConfig) -> None:
    """Logs a warning if the lengths of both sides do not correlate: a line of one may be missing.

    Each of several source languages is compared; with data.context, only the sentence itself.

    Args:
      kind: of the pairs, for the message.
    """
    size = min(BLOCK_PAIRS, max(SMALLEST_BLOCK, len(pairs) // 10))
    if len(pairs) < size:
        return
    firsts = np.unique([*range(0, len(pairs) - size + 1, size), len(pairs) - size])
    target = pairs.tgt_lengths() - 1
    compared = data.sources[:1] if data.context else data.sources
    lengths = _source_lengths(pairs, len(data.sources)).T
    for name, source in zip(compared, lengths, strict=False):
        wrong = firsts[_correlations(source, target, firsts, size, 0) < LEAST_CORRELATION]
        if not len(wrong):
            continue
        shifted = [_correlations(source, target, wrong[:1], size, by)[0] for by in SHIFTS]
        found, later = max(zip(np.nan_to_num(shifted), SHIFTS, strict=True))
        off = f", but do with the target {later:+d} lines on"
        log.warning(
            "the lengths of %s do not correlate in %d of %d blocks of %d %s pairs, first in that "
            "from pair %d%s: do these lines belong together?",
            f"the {name} text and the target" if len(compared) > 1 else "both sides",
            len(wrong),
            len(firsts),
            size,
            kind,
            wrong[0] + 1,
            off if found > 2 * LEAST_CORRELATION else "",
        )


def _correlations(
    src: np.ndarray, tgt: np.ndarray, firsts: np.ndarray, size: int, later: int
) -> np.ndarray:
    """The correlation of the logarithms of lengths in each block: float [blocks].

    Pairs with a blank side do not count. It is NaN where too few are left, or a side is constant.

    Args:
      src, tgt: lengths without EOS: int [pairs].
      firsts: the first pair of each block of `size` pairs.
      later: source line i is compared with target line i + later, if both are in the block.
    """
    at = firsts[:, None] + np.arange(max(0, -later), size - max(0, later))
    lengths = src[at], tgt[at + later]
    counts = (lengths[0] > 0) & (lengths[1] > 0)
    number = counts.sum(1, keepdims=True)
    deviations = []
    for one in lengths:
        logs = np.where(counts, np.log(np.maximum(one, 1)), 0.0)
        mean = logs.sum(1, keepdims=True) / np.maximum(number, 1)
        deviations.append(np.where(counts, logs - mean, 0.0))
    x, y = deviations
    norms = np.sqrt((x**2).sum(1) * (y**2).sum(1))
    is_known = (number[:, 0] >= SMALLEST_BLOCK // 2) & (norms > 1e-6)  # rounding of a mean
    return (x * y).sum(1) / np.where(is_known, norms, np.nan)


def _source_lengths(pairs: EncodedPairs, count: int) -> np.ndarray:
    """Subwords of each of `count` source sentences without EOS: int64 [pairs, count]."""
    if count <= 1:
        return (pairs.src_lengths() - 1)[:, None]
    is_end = np.asarray(pairs.src_ids) == EOS
    ends = np.add.reduceat(is_end.astype(np.int64), pairs.src_offsets[:-1])  # 1 without text
    lengths = np.diff(np.flatnonzero(is_end), prepend=-1) - 1
    found = np.zeros((len(pairs), count), np.int64)
    found[ends == count] = lengths[np.repeat(ends == count, ends)].reshape(-1, count)
    return found


def _sums_of_files(corpus: FolderCorpus, stems: Sequence[str]) -> set[bytes]:
    return {one for stem in stems for one in corpus.text_digests(slice_of(stem)[0])}


def warn_of_sources(train: EncodedPairs, languages: Sequence[str]) -> None:
    """Logs a warning if many pairs lack one of several source sentences, or have one twice.

    Twice: it is another source sentence, or the translation. Sentences with the same sum of random
    numbers of their subwords count as equal.
    """
    lengths = _source_lengths(train, len(languages))
    has_text = lengths.any(1)
    of_pairs = lengths[has_text]
    for language, own in zip(languages, of_pairs.T, strict=True):
        if (missing := int((own == 0).sum())) > MISSING_SHARE * len(own):
            log.warning("%d of %d training pairs have no %s text", missing, len(own), language)
    largest = max(int(ids.max()) for ids in (train.src_ids, train.tgt_ids))
    numbers = np.random.default_rng(0).integers(2**63, size=largest + 1, dtype=np.uint64)
    begins = np.append(0, np.flatnonzero(np.asarray(train.src_ids) == EOS)[:-1] + 1)
    in_text = np.repeat(has_text, np.where(has_text, len(languages), 1))
    of_source = np.add.reduceat(numbers[train.src_ids], begins)[in_text].reshape(of_pairs.shape)
    of_target = np.add.reduceat(numbers[train.tgt_ids], train.tgt_offsets[:-1])
    sides = [*of_source.T, of_target[has_text]]
    for (one, first), (other, second) in itertools.combinations(enumerate(sides), 2):
        equal = int(((first == second) & (of_pairs[:, one] > 0)).sum())
        if equal > COPIED_SHARE * len(of_pairs):
            what = "translation" if other == len(languages) else f"{languages[other]} text"
            log.warning(
                "in %d of %d pairs the %s text is the %s",
                equal,
                len(of_pairs),
                languages[one],
                what,
            )


def _sums(pairs: EncodedPairs, numbers: np.ndarray) -> Iterator[np.ndarray]:
    """The sum of the numbers of each sentence's subwords, uint64 [2, pairs], in chunks of pairs.

    Sentences with the same sum have the same subwords, whose order may differ.
    """
    for first in range(0, len(pairs), CHUNK_PAIRS):
        chunk = slice(first, min(first + CHUNK_PAIRS, len(pairs)) + 1)
        sums = []
        for ids, offsets in (
            (pairs.src_ids, pairs.src_offsets[chunk]),
            (pairs.tgt_ids, pairs.tgt_offsets[chunk]),
        ):
            of_each = numbers[ids[offsets[0] : offsets[-1]]]
            sums.append(np.add.reduceat(of_each, offsets[:-1] - offsets[0]))
        yield np.stack(sums)
