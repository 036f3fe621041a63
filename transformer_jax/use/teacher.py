"""A trained run as the teacher of another one: what it predicts at each target subword.

Dimension key
  B rows, one pair each   L target length   K the likeliest subwords   V vocabulary, padded
"""

import dataclasses
import functools
import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from transformer_jax.config.schema import Config
from transformer_jax.decoding.scoring import logits_and_watched, of_pairs
from transformer_jax.errors import ConfigError
from transformer_jax.files import kept
from transformer_jax.model.ensemble import Predictor
from transformer_jax.model.interfaces import Params
from transformer_jax.parallel import processes
from transformer_jax.runs.run_folder import NO_TEACHER, TEACHER, RunFolder
from transformer_jax.text.batches import Packed
from transformer_jax.text.encoded import LIKELIEST, EncodedPairs, Taught
from transformer_jax.text.features import how_read
from transformer_jax.training.data import TrainingData
from transformer_jax.use.loading import LoadedModel, load_model

log = logging.getLogger(__name__)
PAIRS = 2_000  # whose predictions are on the device at once


def with_teacher(data: TrainingData, config: Config, run: RunFolder) -> TrainingData:
    """The data with what train.teacher predicts; the same data if the config has no teacher.

    Predictions are kept in the cache, since the rows of a table and a continued run share them.

    Raises:
      UserError: the teacher reads other subwords, or its weights have changed since the run began.
    """
    folder = config.train.teacher
    if folder is None:
        run.check_corpus(*data.fingerprints, NO_TEACHER)
        return data
    RunFolder(folder, TEACHER).read_config()  # to be blamed by its own name
    teacher = load_model(folder)
    _check_reads_the_same(teacher, data, config)
    weights = teacher.digest()
    fingerprints = (*data.fingerprints, weights)
    run.check_corpus(*fingerprints)
    encoded, pairs = data.train, np.sort(data.plan.pair_order)
    assert encoded.folder is not None
    limits = config.data.max_length, config.train.row_length
    name = f"{LIKELIEST} {weights} {encoded.folder.name.partition('.')[0]} {limits}"
    stored = processes.first_goes_ahead(
        lambda: kept("teachers", name, lambda: _predictions(teacher, encoded, pairs))
    )
    ids, probabilities = _empty(encoded)
    ids = np.frombuffer(stored[: ids.nbytes], ids.dtype).reshape(ids.shape)
    rest = np.frombuffer(stored[ids.nbytes :], probabilities.dtype)
    taught = Taught(ids, rest.reshape(probabilities.shape))
    # A teacher that knows the text by heart teaches what the text does.
    is_read = taught.probabilities[:, 0] > 0
    share = float(np.mean(taught.ids[is_read, 0] == encoded.tgt_ids[is_read]))
    log.info("the teacher's likeliest subword is the text's at %.1f %% of them", 100 * share)
    return data._replace(
        fingerprints=fingerprints,
        train=dataclasses.replace(encoded, taught=taught),
        shape=data.shape._replace(taught=LIKELIEST),
    )


def _check_reads_the_same(teacher: LoadedModel, data: TrainingData, config: Config) -> None:
    """Raises ConfigError if the teacher's batches are not those of the run."""
    folder = config.train.teacher
    if teacher.vocabulary.digest != data.vocabulary.digest:
        raise ConfigError(
            f"train.teacher={folder} has another vocabulary than this run, which learns what it "
            "predicts for each subword. Leave train.init_from out, and choose a new --workdir: "
            "the run then takes the teacher's vocabulary."
        )
    own, its = config.data, teacher.config.data
    sources = config.model.sources if own.src else 0
    if (sources, how_read(own), own.context) != (teacher.model.sources, how_read(its), its.context):
        raise ConfigError(
            f"train.teacher={folder} reads another source than this run: see model.sources, "
            "model.encoder, data.context and data.src_kind."
        )
    longest, row = teacher.model.longest(), max(data.shape.lengths)
    if longest is not None and longest < min(row, config.data.max_length):
        raise ConfigError(
            f"train.teacher={folder} has positions for {longest} subwords only. Set "
            f"data.max_length={longest}."
        )
    ways, known = ({*data.directions} or {f"{data.src}-{data.tgt}"} for data in (own, its))
    if bool(own.directions) != bool(its.directions) or not ways <= known:
        raise ConfigError(
            f"train.teacher={folder} translates {its.direction}, and this run {own.direction}: a "
            "teacher of several directions needs data.directions here too."
        )


def _predictions(teacher: LoadedModel, encoded: EncodedPairs, pairs: np.ndarray) -> bytes:
    """Ids and then probabilities of the target subwords of these pairs; of others they are 0."""
    taught = _empty(encoded)
    for start in range(0, len(pairs), PAIRS):
        numbers = pairs[start : start + PAIRS]
        sides: Any = [[read(i) for i in numbers] for read in (encoded.src, encoded.tgt)]
        found = of_pairs(_likeliest, teacher.translator, *sides)
        for i, target, (ids_LK, log_probs_LK) in zip(numbers, sides[1], found, strict=True):
            own = slice(*encoded.tgt_offsets[i : i + 2])
            exp = np.exp(log_probs_LK[: len(target)])
            taught.ids[own] = ids_LK[: len(target)]
            taught.probabilities[own] = exp / exp.sum(-1, keepdims=True)
        done = min(start + PAIRS, len(pairs))
        log.info("the teacher has read %d of %d pairs", done, len(pairs))
    return b"".join(x.tobytes() for x in taught)


def _empty(encoded: EncodedPairs) -> Taught:
    shape = len(encoded.tgt_ids), LIKELIEST
    return Taught(np.zeros(shape, encoded.tgt_ids.dtype), np.zeros(shape, np.float16))


@functools.partial(jax.jit, static_argnames="model")
def _likeliest(
    model: Predictor, params: Params, source: Packed, target: Packed
) -> tuple[Array, Array]:
    """The likeliest next subwords and their log probabilities, `[batch, tgt_len, K]`."""
    logits_BLV, _ = logits_and_watched(model, params, source, target)
    log_probs_BLV = jax.nn.log_softmax(logits_BLV.astype(jnp.float32))
    log_probs_BLK, ids_BLK = jax.lax.top_k(log_probs_BLV, LIKELIEST)
    return ids_BLK, log_probs_BLK
