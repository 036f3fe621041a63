"""The vocabulary of a run: its own, one that it is given, or a new one."""

import base64
import logging
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import sentencepiece

from transformer_jax.config.changes import immutable_differences
from transformer_jax.config.checks import apart_problems
from transformer_jax.config.schema import KEYS, Config
from transformer_jax.errors import ConfigError, RunError
from transformer_jax.files import kept
from transformer_jax.model.outputs.back_translation import BACK_TRANSLATION
from transformer_jax.parallel import processes
from transformer_jax.runs.checkpoints import committed_steps
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.text.corpora import Corpus
from transformer_jax.text.features import how_read
from transformer_jax.text.folder_corpus import Pair
from transformer_jax.text.mixture import Mixed
from transformer_jax.text.sources import TAB
from transformer_jax.text.vocabulary import Vocabulary, load_vocabulary, made_of, split_codes
from transformer_jax.text.vocabulary_training import train_vocabularies, train_vocabulary

log = logging.getLogger(__name__)


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
    if how_read(origin.read_config().data) != how_read(config.data):
        log.warning(
            "train.init_from=%s reads its recordings or pictures otherwise: see data.sample_rate, "
            "data.mel_bands, data.stacked_frames and the size of patches",
            origin.path,
        )
    return load_vocabulary(origin.vocabulary_file)


def given_vocabulary(config: Config) -> Vocabulary | None:
    """That of train.init_from or train.teacher, else vocabulary.path, else None.

    Raises:
      UserError: the vocabulary cannot be read, or train.init_from is a run of another model.
    """
    if config.train.init_from is not None:
        return _vocabulary_of_origin(config, RunFolder(config.train.init_from))
    if config.train.teacher is not None:
        return load_vocabulary(RunFolder(config.train.teacher).vocabulary_file)
    if (path := config.vocabulary.path) is None:
        return None
    vocabulary, what = load_vocabulary(path), f"vocabulary.path={path}"
    if vocabulary.is_shared and config.vocabulary.separate:
        raise ConfigError(f"vocabulary.separate=True: {what} has one for both sides. Leave it out.")
    if not vocabulary.is_shared:
        for problem in apart_problems(config.model, what):
            raise ConfigError(problem)
        if config.train.objective == BACK_TRANSLATION:
            raise ConfigError(
                f"{what} has a vocabulary for each side; {BACK_TRANSLATION} needs one."
            )
    return vocabulary


def run_vocabulary(config: Config, run: RunFolder, corpus: Corpus, fingerprint: str) -> Vocabulary:
    """The run's vocabulary, or another run's, else vocabulary.path, else a new one."""
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
    known = given_vocabulary(config)
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
        of_each = "a vocabulary of each side" if own.separate else "a vocabulary"
        log.info("training %s of %d pieces", of_each, own.size)
        if own.separate:
            return train_vocabularies(lines(pairs, 0), lines(pairs, 1), own, seed, codes).model
        sides = (0, 1) if config.data.src_kind == "text" else (1,)
        return train_vocabulary(lines(pairs, *sides), own, seed, codes).model

    def lines(pairs: Sequence[Pair], *sides: int) -> Iterator[str]:
        """The sentences of these sides, in the shares that an epoch has, without codes.

        Of a pair's source, several sentences or one (sources.py).
        """
        several, codes = len(config.data.sources) > 1, config.data.codes
        last = 1 if config.data.context else None  # the others come as themselves
        weights = pairs.pair_weights() if isinstance(pairs, Mixed) else None
        if weights is not None:  # only their ratios count where all are small, or all are large
            weights = weights / np.clip(1.0, weights.min(), weights.max())
        draw = random.Random(config.data.seed).random
        for number, pair in enumerate(pairs):
            times = 1 if weights is None else int(weights[number] + draw())
            for text in (pair[side] for _ in range(times) for side in sides):
                text = split_codes(text, codes)[1] if codes else text
                yield from text.split(TAB)[:last] if several else (text,)

    name = f"{sentencepiece.__version__} {fingerprint} {config.vocabulary} {config.data.seed}"
    name += f" {len(config.data.sources)} sources"
    if isinstance(mixed := corpus.split("train"), Mixed):
        name += f" {config.data.codes} {mixed.weights}"
    model = processes.first_does(
        lambda: base64.b64encode(kept("vocabularies", name, train_one)).decode()
    )
    return made_of(base64.b64decode(model), "the trained vocabulary")
