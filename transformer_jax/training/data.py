"""Prepares what training reads: vocabulary, encoded splits and the plan of packed rows."""

import contextlib
import dataclasses
import logging
from collections.abc import Generator, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import Config
from transformer_jax.config.texts import code
from transformer_jax.config.train import TrainConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.model.outputs.back_translation import BACK_TRANSLATION, check_two_codes
from transformer_jax.model.outputs.objectives import loss_weights, objective_of
from transformer_jax.model.sides.choices import longest as longest_of
from transformer_jax.parallel import processes
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.batches import (
    Batch,
    TrainSource,
    packed_batch,
    rows_per_batch,
    train_batches,
)
from transformer_jax.text.by_position import Joined
from transformer_jax.text.corpora import Corpus, open_corpus
from transformer_jax.text.encoded import LIKELIEST, EncodedPairs, Segmentations, encode_corpus
from transformer_jax.text.features import FeatureReader
from transformer_jax.text.folder_corpus import Pair
from transformer_jax.text.links import encode_links
from transformer_jax.text.mixture import Mixed
from transformer_jax.text.packing import (
    RowPlan,
    lengths_alone,
    plan_rows,
    select_pairs,
    source_row_length,
)
from transformer_jax.text.speech import Masks
from transformer_jax.text.vocabulary import Vocabulary
from transformer_jax.training import line_checks, text_checks
from transformer_jax.training.program import BatchShape
from transformer_jax.training.vocabulary import run_vocabulary

log = logging.getLogger(__name__)
SKIPPED_SHARE = 0.01  # a warning, if this share of the pairs is skipped

NOMINAL_FILL = 0.97  # fill of the target side in a dry run, which has no corpus to measure
LENGTH_MULTIPLE = 8  # the length of validation rows is a multiple of this number
VALID_STRETCH = 8  # a validation row is at most this many times as long as a training row


class TrainingData(NamedTuple):
    """Everything from which batches are made."""

    vocabulary: Vocabulary
    corpus: Corpus
    fingerprints: tuple[str, ...]  # as `RunFolder.check_corpus` takes them
    train: EncodedPairs
    plan: RowPlan
    valid: EncodedPairs
    valid_plan: RowPlan
    shape: BatchShape  # a training batch's
    valid_shape: BatchShape  # a validation batch's, with rows for every pair
    seed: int  # decides the order of each epoch's rows
    masks: Masks | None = None  # what training hides of recordings
    segmentations: int = 1  # of each pair; `train` and `plan` have the text this often

    @property
    def steps_per_epoch(self) -> float:
        """Training steps of an epoch, in which each pair is seen as often as its weight says."""
        return self.plan.epoch_rows / self.shape.rows / self.segmentations

    def train_batches(
        self, own_rows: np.ndarray | None, start_batch: int
    ) -> Generator[Batch, None, None]:
        """Batches start_batch, start_batch + 1, ... without end; see `text.batches.train_batches`.

        Args:
          own_rows: numbers of a batch's rows that this process needs, int [own]; None: all.
          start_batch: number of the first batch, from 0.
        """
        source = TrainSource(
            self.train, self.plan, self.shape.rows, self.seed, own_rows, self.masks
        )
        return train_batches(source, start_batch)

    def of_other_direction(self, config: Config) -> "TrainingData":
        """The same pairs in the same rows for the other direction of translation.

        Args:
          config: the config of that direction.

        Raises:
          ConfigError: the sides have different vocabularies.
        """
        if not self.vocabulary.is_shared:
            raise ConfigError(
                f"train.agreement_weight={config.train.agreement_weight} needs one vocabulary for "
                "both sides, since each direction writes what the other one reads. Leave this key "
                "or vocabulary.path out."
            )
        corpus = open_corpus(config.data)
        names = ("train", "plan", "shape", "valid", "valid_plan", "valid_shape")
        swapped: dict[str, Any] = {name: getattr(self, name).swapped() for name in names}
        fingerprints = corpus.fingerprint("train"), corpus.fingerprint("valid")
        return self._replace(corpus=corpus, fingerprints=fingerprints, **swapped)

    def valid_batches(self, own_rows: np.ndarray) -> Iterator[Batch]:
        """Every validation pair once, packed; the last batch is filled up with empty rows.

        Args:
          own_rows: numbers of a batch's rows that this process needs, int [own].
        """
        rows, plan = self.valid_shape.rows, self.valid_plan
        for first in range(0, len(plan), rows):
            batch = packed_batch(self.valid, plan, np.arange(first, min(first + rows, len(plan))))
            missing = rows - len(batch.src.ids)
            yield batch.map(
                lambda x: np.pad(x, ((0, missing), *[(0, 0)] * (x.ndim - 1)))[own_rows]  # noqa: B023
            )


def nominal_shape(config: Config) -> BatchShape:
    """The batch's shape if no corpus was measured: each source sentence is as long as the target.

    So is a recording or a picture, which may be far longer.
    """
    train = config.train
    sentences = max(1, config.model.sources, 1 + config.data.context)
    rows = rows_per_batch(
        train.tokens_per_batch, train.row_length, NOMINAL_FILL, train.rows_multiple
    )
    return BatchShape(
        rows,
        train.row_length * sentences,
        train.row_length,
        config.data.alignments,
        config.model.features,
        LIKELIEST if train.teacher else 0,
    )


def load_data(config: Config, run: RunFolder) -> TrainingData:
    """Opens the corpus, encodes its splits and plans their rows; does not write into the folder.

    Raises:
      UserError: the corpus cannot be read, or does not fit the config or the run in the folder.
    """
    corpus = open_corpus(config.data)
    pairs, valid_pairs = corpus.split("train"), corpus.split("valid")
    counts = len(pairs), len(valid_pairs)
    log.info("%s: %d training and %d validation pairs", corpus.describe(), *counts)
    fingerprint, of_valid = corpus.fingerprint("train"), corpus.fingerprint("valid")
    text_checks.warn_of_splits(corpus, config.data, of_valid)
    if of_valid == fingerprint:
        raise DataError(
            f"data.valid={config.data.valid!r} is the training text. Name other text, which shows "
            "how well the model translates what it has not seen."
        )
    run.check_corpus(fingerprint, of_valid)
    vocabulary = run_vocabulary(config, run, corpus, fingerprint)
    vocabulary.check_codes(config.data.codes)
    if config.train.objective == BACK_TRANSLATION:
        check_two_codes(vocabulary.codes)
    of_test = _test_pairs(config, corpus)
    line_checks.warn_of_texts(Joined([pairs, valid_pairs, *of_test]), config)
    text_checks.warn_of_equal_targets(corpus, config.train.objective == BACK_TRANSLATION)
    if config.decode.to is not None:
        vocabulary.check_codes([code(config.decode.to)])
        text_checks.warn_of_missing_codes(pairs, code(config.decode.to), vocabulary)
    text_checks.warn_of_lost_characters(valid_pairs, vocabulary)
    segmentations = _segmentations(config, vocabulary)
    train = _encode(config, pairs, vocabulary, fingerprint, segmentations)
    if config.data.alignments:
        links = encode_links(
            corpus.alignments("train"), train, vocabulary, config.data.aligned_pairs
        )
        train = dataclasses.replace(train, links=links)
    valid = _encode(config, valid_pairs, vocabulary, of_valid)
    _check_encoded(config, vocabulary, corpus, train, valid, of_test)
    weights = pairs.pair_weights() if isinstance(pairs, Mixed) else None
    if segmentations is not None and weights is not None:
        weights = np.tile(weights, segmentations.number)
    plan, shape = _plan_training(train, config.train, config.data.max_length, config.seed, weights)
    valid_plan, valid_shape = _plan_validation(valid, shape)
    _check_positions(config.model, shape, valid_shape)
    return TrainingData(
        vocabulary=vocabulary,
        corpus=corpus,
        fingerprints=(fingerprint, of_valid),
        train=train,
        plan=plan,
        valid=valid,
        valid_plan=valid_plan,
        shape=shape,
        valid_shape=valid_shape,
        seed=config.seed,
        masks=_masks(config),
        segmentations=segmentations.number if segmentations else 1,
    )


def _test_pairs(config: Config, corpus: Corpus) -> list[Sequence[Pair]]:
    """The test split; none if it cannot be read, as `warn_of_splits` has said."""
    if config.data.test and processes.is_first():  # another process may lack the test text
        with contextlib.suppress(DataError):
            return [corpus.split("test")]
    return []


def _check_encoded(
    config: Config,
    vocabulary: Vocabulary,
    corpus: Corpus,
    train: EncodedPairs,
    valid: EncodedPairs,
    of_test: list[Sequence[Pair]],
) -> None:
    """Warns of text that may be a mistake. Raises DataError if none of a split can be written."""
    if config.model.parallel is not None:
        text_checks.check_lengths(train, valid, config.model.parallel)
    text_checks.warn_of_known_pairs(train, valid, vocabulary, "validation")
    for pairs in () if config.model.features else of_test:  # features take long to read
        with contextlib.suppress(DataError):
            fingerprint, sources = corpus.fingerprint("test"), config.model.sources
            test = encode_corpus(pairs, vocabulary, None, fingerprint, sources=sources)
            text_checks.warn_of_known_pairs(train, test, vocabulary, "test")


def _masks(config: Config) -> Masks | None:
    data = config.data
    if not (data.masked_bands or data.masked_frames):
        return None
    return Masks(data.masked_bands, data.masked_frames, data.mel_bands, config.seed)


def _plan_training(
    pairs: EncodedPairs,
    train: TrainConfig,
    max_length: int,
    seed: int,
    weights: np.ndarray | None = None,
) -> tuple[RowPlan, BatchShape]:
    """The plan of the training rows, and the batch's shape that follows from their fill."""
    src_lengths = pairs.src_lengths()
    tgt_lengths = pairs.tgt_lengths()
    lengths = src_lengths, tgt_lengths, train.row_length, max_length
    alone = objective_of(loss_weights(train)).draws(train) > 0
    if alone:
        src_row_length, row_length = lengths_alone(*lengths)
    else:
        src_row_length, row_length = source_row_length(*lengths), train.row_length
    plan = plan_rows(
        src_lengths, tgt_lengths, src_row_length, row_length, seed, max_length, weights, alone
    )
    if skipped := plan.too_long + plan.empty:
        share = skipped / len(pairs)
        log.log(
            logging.WARNING if share > SKIPPED_SHARE else logging.INFO,
            "training skips %.1f %% of the pairs: %d with more than %d source or %d target "
            "positions (data.max_length; of targets train.row_length too), and %d with an empty "
            "side",
            100 * share,
            plan.too_long,
            max_length,
            min(max_length, row_length),
            plan.empty,
        )
    log.info(
        "packed %d pairs into %d rows of %d source (%.1f %% real) "
        "and %d target positions (%.1f %% real)",
        len(plan.pair_order),
        len(plan),
        src_row_length,
        100 * plan.src_fill,
        row_length,
        100 * plan.tgt_fill,
    )
    rows = rows_per_batch(train.tokens_per_batch, row_length, plan.tgt_fill, train.rows_multiple)
    if (tokens := rows * row_length * plan.tgt_fill) > 2 * train.tokens_per_batch:
        least = f"the smallest batch: {rows} rows with {tokens:.0f} target tokens"
        log.warning("train.tokens_per_batch=%d is less than %s", train.tokens_per_batch, least)
    if rows > len(plan):
        log.warning(
            "a batch has %d rows, and the text fills %d: updates see pairs more than once; see "
            "train.tokens_per_batch",
            rows,
            len(plan),
        )
    features = 0 if pairs.src_ids.ndim == 1 else pairs.src_ids.shape[1]
    has_links = pairs.links is not None
    return plan, BatchShape(rows, src_row_length, row_length, has_links, features)


def _plan_validation(valid: EncodedPairs, shape: BatchShape) -> tuple[RowPlan, BatchShape]:
    """The plan of the validation rows, and their batch's shape; `shape` is that of training.

    Rows are as long as the longest pair, up to a limit: without one, a line of 50,000 characters
    would need terabytes.
    """
    limit = VALID_STRETCH * max(shape.lengths)
    lengths = valid.src_lengths(), valid.tgt_lengths()
    chosen = select_pairs(*lengths, limit, limit).pairs
    if not len(chosen):
        raise DataError(
            f"No validation pair has text on both sides and at most {limit} subwords: "
            "see data.valid and train.row_length."
        )
    longest = (-(-int(own[chosen].max()) // LENGTH_MULTIPLE) * LENGTH_MULTIPLE for own in lengths)
    src_length, tgt_length = map(max, shape.lengths, longest)
    valid_shape = BatchShape(shape.rows, src_length, tgt_length, features=shape.features)
    plan = plan_rows(*lengths, *valid_shape.lengths, 0, limit)
    if plan.too_long + plan.empty:
        log.warning(
            "the validation loss leaves out %d pairs with more than %d subwords (%d times a "
            "training row) and %d with a blank side",
            plan.too_long,
            limit,
            VALID_STRETCH,
            plan.empty,
        )
    return plan, valid_shape


def _encode(
    config: Config,
    pairs: Sequence[Pair],
    vocabulary: Vocabulary,
    fingerprint: str,
    segmentations: Segmentations | None = None,
) -> EncodedPairs:
    """The first process encodes; the others read the result from the cache."""
    sources, data = config.model.sources, config.data
    read = FeatureReader(data, data.path) if config.model.features else None
    encoded = processes.first_goes_ahead(
        lambda: encode_corpus(pairs, vocabulary, None, fingerprint, segmentations, sources, read)
    )
    if config.data.src and encoded.src_lengths().max(initial=0) <= 1:
        raise DataError(
            f"None of {len(pairs)} pairs has a text of data.src={config.data.src!r}. Name the "
            "right files; for a language model, set data.src='' and model.encoder='none'."
        )
    return encoded


def _segmentations(config: Config, vocabulary: Vocabulary) -> Segmentations | None:
    """Random segmentations of the training text; None if each pair has one."""
    own = config.vocabulary
    if not own.dropout:
        return None
    if not vocabulary.is_bpe:
        raise ConfigError(
            f"vocabulary.dropout={own.dropout} skips merges, and this run's vocabulary, a unigram "
            "model, has none. Leave it out."
        )
    log.info("each pair is encoded in %d random segmentations: as many pairs", own.segmentations)
    return Segmentations(own.dropout, own.segmentations, config.seed)


def _check_positions(model: ModelConfig, *shapes: BatchShape) -> None:
    """Raises ConfigError if rows of this corpus are longer than the learned positions."""
    longest = max(length for shape in shapes for length in shape.lengths)
    limit = longest_of(model)
    if limit is not None and longest > limit:
        raise ConfigError(
            f"model.max_positions={limit} is too small for this corpus, whose rows "
            f"of training and validation have up to {longest} positions. Raise it to {longest}, "
            "or lower train.row_length and leave out longer validation pairs."
        )
