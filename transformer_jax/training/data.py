"""Prepares what training reads: vocabulary, encoded splits and the plan of packed rows."""

import base64
import dataclasses
import logging
import random
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import sentencepiece

from transformer_jax.config.changes import immutable_differences
from transformer_jax.config.checks import apart_problems
from transformer_jax.config.data import code
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import KEYS, Config
from transformer_jax.config.train import TrainConfig
from transformer_jax.errors import ConfigError, DataError, RunError
from transformer_jax.files import kept
from transformer_jax.model.sides.choices import longest as longest_of
from transformer_jax.parallel import processes
from transformer_jax.runs.checkpoints import committed_steps
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.batches import (
    Batch,
    TrainSource,
    packed_batch,
    rows_per_batch,
    train_batches,
)
from transformer_jax.text.corpora import Corpus, open_corpus
from transformer_jax.text.encoded import EncodedPairs, Segmentations, encode_corpus
from transformer_jax.text.folder_corpus import Pair
from transformer_jax.text.links import encode_links
from transformer_jax.text.mixture import Mixed
from transformer_jax.text.packing import RowPlan, plan_rows, select_pairs, source_row_length
from transformer_jax.text.sources import TAB
from transformer_jax.text.vocabulary import Vocabulary, load_vocabulary, made_of, split_codes
from transformer_jax.text.vocabulary_training import train_vocabularies, train_vocabulary
from transformer_jax.training import text_checks
from transformer_jax.training.program import BatchShape

log = logging.getLogger(__name__)
SKIPPED_SHARE = 0.01  # a warning, if this share of the pairs is skipped

NOMINAL_FILL = 0.97  # fill of the target side in a dry run, which has no corpus to measure
LENGTH_MULTIPLE = 8  # the length of validation rows is a multiple of this number
VALID_STRETCH = 8  # a validation row is at most this many times as long as a training row


class TrainingData(NamedTuple):
    """Everything from which batches are made."""

    vocabulary: Vocabulary
    corpus: Corpus
    fingerprints: tuple[str, str]  # the text of the training and of the validation split
    train: EncodedPairs
    plan: RowPlan
    valid: EncodedPairs
    valid_plan: RowPlan
    shape: BatchShape  # a training batch's
    valid_shape: BatchShape  # a validation batch's, with rows for every pair
    seed: int  # decides the order of each epoch's rows

    @property
    def steps_per_epoch(self) -> float:
        """Training steps of an epoch, in which each pair is seen as often as its weight says."""
        return self.plan.epoch_rows / self.shape.rows

    def train_batches(
        self, own_rows: np.ndarray | None, start_batch: int, num_workers: int
    ) -> Generator[Batch, None, None]:
        """Batches start_batch, start_batch + 1, ... without end; see `text.batches.train_batches`.

        Args:
          own_rows: numbers of a batch's rows that this process needs, int [own]; None: all.
          start_batch: number of the first batch, from 0.
          num_workers: number of processes that make batches; 0: a thread of this process.
        """
        source = TrainSource(self.train, self.plan, self.shape.rows, self.seed, own_rows)
        return train_batches(source, start_batch, num_workers)

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
        return self._replace(
            corpus=corpus,
            fingerprints=(corpus.fingerprint("train"), corpus.fingerprint("valid")),
            train=self.train.swapped(),
            plan=self.plan.swapped(),
            valid=self.valid.swapped(),
            valid_plan=self.valid_plan.swapped(),
            shape=self.shape.swapped(),
            valid_shape=self.valid_shape.swapped(),
        )

    def valid_batches(self, own_rows: np.ndarray) -> Iterator[Batch]:
        """Every validation pair once, packed; the last batch is filled up with empty rows.

        Args:
          own_rows: numbers of a batch's rows that this process needs, int [own].
        """
        rows, plan = self.valid_shape.rows, self.valid_plan
        for first in range(0, len(plan), rows):
            batch = packed_batch(self.valid, plan, np.arange(first, min(first + rows, len(plan))))
            missing = rows - len(batch.src.ids)
            padding = ((0, missing), (0, 0))
            yield batch.map(lambda x: np.pad(x, padding)[own_rows])  # noqa: B023


def nominal_shape(config: Config) -> BatchShape:
    """The batch's shape if no corpus was measured: source rows are as long as target rows."""
    train = config.train
    rows = rows_per_batch(
        train.tokens_per_batch, train.row_length, NOMINAL_FILL, train.rows_multiple
    )
    return BatchShape(rows, train.row_length, train.row_length, config.data.alignments)


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
    text_checks.warn_of_test_split(corpus, config.data, of_valid)
    if of_valid == fingerprint:
        raise DataError(
            f"data.valid={config.data.valid!r} is the training text. Name other text, which shows "
            "how well the model translates what it has not seen."
        )
    run.check_corpus(fingerprint, of_valid)
    vocabulary = _vocabulary(config, run, corpus, fingerprint)
    vocabulary.check_codes(config.data.codes)
    if config.decode.to is not None:
        vocabulary.check_codes([code(config.decode.to)])
    text_checks.warn_of_lost_characters(valid_pairs, vocabulary)
    segmentations = _segmentations(config, vocabulary)
    train = _encode(config, pairs, vocabulary, fingerprint, segmentations)
    if config.data.alignments:
        links = encode_links(
            corpus.alignments("train"), train, vocabulary, config.data.aligned_pairs
        )
        train = dataclasses.replace(train, links=links)
    valid = _encode(config, valid_pairs, vocabulary, of_valid)
    text_checks.warn_of_known_pairs(train, valid, vocabulary)
    if config.model.sources > 1 and not config.data.context:
        text_checks.warn_of_sources(train, config.data.sources)
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
    )


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
    row_length = train.row_length
    src_row_length = source_row_length(src_lengths, tgt_lengths, row_length, max_length)
    plan = plan_rows(
        src_lengths, tgt_lengths, src_row_length, row_length, seed, max_length, weights
    )
    if skipped := plan.too_long + plan.empty:
        share = skipped / len(pairs)
        log.log(
            logging.WARNING if share > SKIPPED_SHARE else logging.INFO,
            "training skips %.1f %% of the pairs: %d with more than %d subwords on a side (the "
            "smaller of data.max_length and train.row_length), and %d with an empty side",
            100 * share,
            plan.too_long,
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
    return plan, BatchShape(rows, src_row_length, row_length, pairs.links is not None)


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
    valid_shape = BatchShape(shape.rows, src_length, tgt_length)
    plan = plan_rows(*lengths, *valid_shape.lengths, 0, limit)
    if plan.too_long:
        log.warning(
            "the validation loss leaves out %d pairs with more than %d subwords (%d times a "
            "training row)",
            plan.too_long,
            limit,
            VALID_STRETCH,
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
    sources = config.model.sources
    encoded = processes.first_goes_ahead(
        lambda: encode_corpus(pairs, vocabulary, None, fingerprint, segmentations, sources)
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


def _vocabulary_of_origin(config: Config, origin: RunFolder) -> Vocabulary:
    """The vocabulary of `origin`'s weights. Raises RunError if it has none or another model."""
    differences = [
        difference
        for name, difference in immutable_differences(origin.read_config(), config).items()
        if name.startswith("model.") and KEYS[name].in_weights
    ]
    if differences:
        raise RunError(
            f"train.init_from={origin.path} is a run of another model: {'; '.join(differences)}."
        )
    if not committed_steps(origin.checkpoints):
        raise RunError(f"train.init_from={origin.path} has no checkpoint yet.")
    return load_vocabulary(origin.vocabulary_file)


def known_vocabulary(config: Config, run: RunFolder) -> Vocabulary | None:
    """The run's own vocabulary, else that of train.init_from, else vocabulary.path, else None.

    Raises:
      UserError: the vocabulary cannot be read, or train.init_from is a run of another model.
    """
    if run.vocabulary_file.exists():
        return load_vocabulary(run.vocabulary_file)
    if config.train.init_from is not None:
        return _vocabulary_of_origin(config, RunFolder(config.train.init_from))
    if (path := config.vocabulary.path) is None:
        return None
    vocabulary = load_vocabulary(path)
    if not vocabulary.is_shared:
        for problem in apart_problems(config.model, f"vocabulary.path={path}"):
            raise ConfigError(problem)
    return vocabulary


def _vocabulary(config: Config, run: RunFolder, corpus: Corpus, fingerprint: str) -> Vocabulary:
    """The run's vocabulary, else that of train.init_from, else vocabulary.path, else a new one."""
    given = config.vocabulary.path
    if run.vocabulary_file.exists():
        own = load_vocabulary(run.vocabulary_file)
        # If the file does not exist, the run was copied to another machine: its own one is enough.
        if given and not Path(given).exists():
            log.warning("vocabulary.path=%s is not there: the run's own vocabulary is used", given)
        elif given and load_vocabulary(given).digest != own.digest:
            raise RunError(
                f"{run.path} holds a run with another vocabulary than vocabulary.path={given}. "
                "Choose another --workdir, or leave that key out."
            )
        return own
    known = known_vocabulary(config, run)
    return new_vocabulary(config, corpus, fingerprint) if known is None else known


def new_vocabulary(config: Config, corpus: Corpus, fingerprint: str) -> Vocabulary:
    """A vocabulary of the training split, which has this fingerprint.

    It is kept in the cache, since the rows of a table and repeated runs share it.
    """

    def train_one() -> bytes:
        """The content of a vocabulary file, trained on the split."""
        pairs = corpus.split("train")
        own, seed = config.vocabulary, config.data.seed
        codes = config.data.codes
        sides = "a vocabulary of each side" if own.separate else "a vocabulary"
        log.info("training %s of %d pieces", sides, own.size)
        if own.separate:
            return train_vocabularies(lines(pairs, 0), lines(pairs, 1), own, seed, codes).model
        return train_vocabulary(lines(pairs, 0, 1), own, seed, codes).model

    def lines(pairs: Sequence[Pair], *sides: int) -> Iterator[str]:
        """The sentences of these sides, as often as an epoch has them, without codes.

        Of a pair's source, several sentences or one (sources.py).
        """
        several, codes = len(config.data.sources) > 1, config.data.codes
        last = 1 if config.data.context else None  # the others come as themselves
        weights = pairs.pair_weights() if isinstance(pairs, Mixed) else None
        draw = random.Random(config.data.seed).random
        for number, pair in enumerate(pairs):
            times = 1 if weights is None else int(weights[number] + draw())
            for text in (pair[side] for _ in range(times) for side in sides):
                text = split_codes(text, codes)[1] if codes else text
                yield from text.split(TAB)[:last] if several else (text,)

    name = f"{sentencepiece.__version__} {fingerprint} {config.vocabulary} {config.data.seed}"
    if isinstance(mixed := corpus.split("train"), Mixed):
        name += f" {config.data.codes} {mixed.weights}"
    model = processes.first_does(
        lambda: base64.b64encode(kept("vocabularies", name, train_one)).decode()
    )
    return made_of(base64.b64decode(model), "the trained vocabulary")
