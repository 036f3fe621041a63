"""What is kept of a finished run, from its folder."""

import contextlib
import dataclasses
import datetime
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from transformer_jax.config.schema import Config, MeshConfig, value_at
from transformer_jax.errors import DataError, RunError, UserError
from transformer_jax.files import read_json, read_utf8
from transformer_jax.kinds import wrong_field
from transformer_jax.reporting.provenance import revision
from transformer_jax.runs.evaluations import find_evaluation
from transformer_jax.runs.metrics import FILE, read_metrics
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.tables.digests import COUNTED
from transformer_jax.tables.experiment import Job
from transformer_jax.tables.results import Line
from transformer_jax.tables.texts import REFERENCES, SOURCES, trained_on
from transformer_jax.text.corpora import open_corpus
from transformer_jax.text.vocabulary import Sizes
from transformer_jax.training import cost
from transformer_jax.training.data import nominal_shape
from transformer_jax.training.vocabulary import given_vocabulary

SAMPLES = 5  # number of translations kept of a run
# Scores that are kept of each test set.
OF_SETS = ("bleu", "paper_bleu", "chrf", "bleu_signature", "chrf_signature")


def counts(config: Config) -> tuple[int, float]:
    """The number of parameters, and the training FLOPs of all steps."""
    vocabulary: Sizes | int = config.vocabulary.size
    with contextlib.suppress(UserError):  # what it names may be gone
        if (given := given_vocabulary(config)) is not None:
            vocabulary = given.sizes
    shape = nominal_shape(config)
    flops = shape.rows * cost.step_flops(config.model, vocabulary, shape.lengths, config.train)
    return cost.parameter_count(config.model, vocabulary), float(flops * config.train.steps)


def collect(job: Job) -> Line:
    """The results of a finished run.

    Raises:
      RunError: the run's folder lacks files that its commands should have written.
    """
    config = job.config()
    metrics = read_metrics(job.folder)
    evaluation = read_evaluation(job)
    if evaluation is None:
        raise RunError(f"{job.folder} holds no evaluation of {job.scale.split}.")
    paper_bleu = evaluation.paper_bleu
    valid = [m for m in metrics if m["kind"] == "valid" and m["step"] == config.train.steps]
    if not valid:
        raise RunError(
            f"{job.folder} has no validation at step {config.train.steps}: a "
            "row is trained to its last step, without train.patience."
        )
    parameters, flops = counts(config)
    curve: list[dict[str, Any]] = [
        {key: m[key] for key in ("step", "kind", "perplexity", "nats_per_token") if key in m}
        for m in metrics
    ]
    return Line(
        row=job.row,
        seed=job.seed,
        perplexity=valid[-1]["perplexity"],
        bleu=evaluation.bleu,
        paper_bleu=math.nan if paper_bleu is None else paper_bleu,
        chrf=evaluation.chrf,
        parameters=parameters,
        training_flops=flops,
        train_seconds=training_seconds(metrics),
        device_rate=device_rate(
            evaluation.device, _devices(config.mesh, evaluation.devices or 1), config.model.dtype
        ),
        steps=config.train.steps,
        config_digest=job.digest(),
        revision=revision(),
        device=evaluation.device,
        date=datetime.date.today().isoformat(),
        signature=evaluation.bleu_signature,
        scored=job.scored,
        sets=scores_of_sets(job),
        curve=curve,
        samples=samples(job),
        text_sha256=trained_on(job)
        | {SOURCES: evaluation.src_sha256 or "", REFERENCES: evaluation.ref_sha256 or ""},
    )


def _devices(mesh: MeshConfig, all_devices: int) -> int:
    """How many devices a mesh has. An axis of -1 takes all that the others leave."""
    sizes = [getattr(mesh, field.name) for field in dataclasses.fields(mesh)]
    return all_devices if -1 in sizes else math.prod(sizes)


def device_rate(kind: str, count: int, dtype: str) -> float:
    """Peak FLOP/s of `count` devices of a kind; NaN if it is not known."""
    peak = cost.peak_of(kind, dtype)
    return math.nan if peak is None else count * peak


def training_seconds(metrics: Sequence[Mapping[str, Any]]) -> float:
    """Seconds of the training steps, without interruptions: the sum of tokens / token rate.

    Steps whose line is lost count as if they were as fast as those of the next line, and lines
    without an update (train.max_skipped) as all others.
    """
    before, skipped, timed = 0, 0, 0
    seconds = 0.0
    for m in metrics:
        if m["kind"] != "train":
            continue
        steps, in_all = m["step"] - before, m.get("skipped_updates", 0)
        if (rate := m["target_tokens_per_second"]) > 0:
            seconds += m["target_tokens_per_step"] * (steps - in_all + skipped) / rate
            timed += steps
        before, skipped = m["step"], in_all
    return seconds * before / timed if timed else math.nan


def evaluation_file(
    job: Job, stem: str | None = None, about: Mapping[str, Any] = MappingProxyType({})
) -> Path | None:
    """The newest file of scores that the job's `evaluate` wrote; None: there is none.

    Args:
      job: a run.
      stem: one of the test sets that the split joins; None: the whole split.
      about: other values that the file must have.
    """
    config = job.config()
    which = f"{config.train.steps}" + (f"-last{job.average}" if job.average else "")
    counted = [name for name in COUNTED if name.startswith("decode.")]
    decode = {name.removeprefix("decode."): value_at(config, name) for name in counted}
    return find_evaluation(
        RunFolder(job.folder).evaluations, stem or job.scale.split, which, {**decode, **about}
    )


def scores_of_sets(job: Job) -> dict[str, dict[str, Any]]:
    """The scores of each test set that the job's split joins, by its stem; empty if it is one."""
    config, split = job.config(), job.scale.split
    stems: Sequence[str] = getattr(config.data, split, ())
    found = dict[str, dict[str, Any]]()
    for stem in stems if len(stems) > 1 else ():
        own: Any = {split: (stem,)}
        # A set may have the split's name; then its number of lines tells it from the whole.
        lines = len(open_corpus(dataclasses.replace(config.data, **own)).split(split))
        if (path := evaluation_file(job, stem, {"sentences": lines})) is not None:
            scores = read_json(path)
            found[stem] = {name: scores.get(name) for name in OF_SETS}
    return found


class Evaluation(NamedTuple):
    """What `evaluate` wrote of a run; None: an earlier version did not write that value."""

    hypotheses: list[str]
    bleu: float
    chrf: float
    bleu_signature: str
    device: str
    paper_bleu: float | None  # or None: the target language has none
    devices: int | None
    sentences: int | None
    src_sha256: str | None  # of the sources
    ref_sha256: str | None  # of the references


NO_TRANSLATIONS = Evaluation([], math.nan, math.nan, "", "", None, None, None, None, None)


def read_evaluation(job: Job) -> Evaluation | None:
    """The scores and translations of a run; None if its folder does not have them.

    Those of a language model are NO_TRANSLATIONS, once it is trained.

    Raises:
      DataError: a score is missing, or the translations are not as many as were scored.
    """
    if not job.config().data.sources:
        metrics = read_metrics(job.folder) if (job.folder / FILE).exists() else []
        steps = [m["step"] for m in metrics if m["kind"] == "valid"]
        return NO_TRANSLATIONS if job.config().train.steps in steps else None
    path = evaluation_file(job)
    if path is None:
        return None
    scores, text = read_json(path), path.with_suffix(".txt")
    lines = read_utf8(text).split("\n")[:-1]
    values: Any = [scores.get(name) for name in Evaluation._fields[1:]]
    found = Evaluation(lines, *values)
    if wrong := wrong_field(found):
        raise DataError(f"{path}: {wrong}. Restore the file, or run `evaluate` again.")
    if found.sentences not in (None, len(lines)):
        raise DataError(
            f"{text} has {len(lines)} lines, and {path.name} the scores of {found.sentences}. "
            "Restore the file, or run `evaluate` again."
        )
    return found


def hypotheses(job: Job) -> list[str] | None:
    """The translations; None if the run's folder does not have them."""
    found = read_evaluation(job)
    return found and found.hypotheses


def translations_of(line: Line, job: Job) -> tuple[list[str], str] | None:
    """The translations of a recorded run, and the SHA-256 sum of the references or "".

    None if its folder is gone or holds another run.
    """
    found = read_evaluation(job)
    if found is None or found.bleu != line.bleu:
        return None
    return found.hypotheses, found.ref_sha256 or ""


def references(job: Job) -> tuple[list[str], list[str]]:
    """The sources and references of the job's split."""
    config = RunFolder(job.folder).read_config()
    here = job.config().data
    if here.path and Path(here.path).is_dir():  # the run may come from another machine
        config = dataclasses.replace(config, data=here)
    pairs = open_corpus(config.data).split(job.scale.split)
    return [pair.src for pair in pairs], [pair.tgt for pair in pairs]


def samples(job: Job) -> list[list[str]]:
    """A few evenly spaced samples: source, reference and translation."""
    if not (found := hypotheses(job)):
        return []
    sources, wanted = references(job)
    step = max(1, len(found) // SAMPLES)
    return [[sources[i], wanted[i], found[i]] for i in range(0, len(found), step)][:SAMPLES]
