"""results.csv, with one line per row and seed, and the other results of a finished run."""

import datetime
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from transformer_jax.config.checks import LARGEST_INT
from transformer_jax.config.data import DataConfig
from transformer_jax.config.schema import Config, value_at
from transformer_jax.errors import DataError, RunError
from transformer_jax.files import read_json, read_table, read_utf8, write_table
from transformer_jax.kinds import wrong_field
from transformer_jax.reporting.provenance import revision
from transformer_jax.runs.evaluations import find_evaluation, text_digest
from transformer_jax.runs.metrics import FILE, read_metrics
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.tables.digests import COUNTED
from transformer_jax.tables.experiment import Job
from transformer_jax.text.corpora import open_corpus
from transformer_jax.training import cost
from transformer_jax.training.data import nominal_shape

SAMPLES = 5  # number of translations kept of a run
# Scores that are kept of each test set.
OF_SETS = ("bleu", "paper_bleu", "chrf", "bleu_signature", "chrf_signature")
# Texts of a run, whose SHA-256 sums its record has; those of the first two are in its
# corpus.sha256, those of the scored split in its evaluation.
TRAIN, VALID = "training split", "validation split"
SOURCES, REFERENCES = "sources", "references"


class Line(NamedTuple):
    """The results of a finished row and seed."""

    row: str
    seed: int
    perplexity: float  # per subword, of the validation split, at the last step
    bleu: float  # sacreBLEU
    paper_bleu: float  # NaN if the target language has none
    chrf: float
    parameters: int
    training_flops: float  # counted from the matrix products of all steps with nominal batches
    train_seconds: float  # time of the training steps, without start, validation and checkpoints
    device_rate: float  # peak FLOP/s of all devices as the vendor gives it; NaN if unknown: a CPU
    steps: int
    config_digest: str
    revision: str
    device: str
    date: str
    signature: str  # sacreBLEU's signature of `bleu`


class Record(NamedTuple):
    """What is kept of a run beside its line of results: a line of records.jsonl."""

    row: str
    seed: int
    curve: list[dict[str, Any]]  # the lines of metrics.jsonl that make a curve
    samples: list[list[str]]  # source, reference and translation
    # Not in every record:
    sets: Mapping[str, Mapping[str, Any]] = MappingProxyType({})  # scores of several test sets
    translations: list[str] | None = None  # of the base row, to test other rows against
    text_sha256: Mapping[str, str] = MappingProxyType({})

    def validations(self) -> list[tuple[int, float]]:
        """Step and perplexity of each validation."""
        return [(m["step"], m["perplexity"]) for m in self.curve if m.get("kind") == "valid"]


# Columns where NaN, no value, is an empty cell; a language model has no scores of translations.
MAY_BE_EMPTY = ("bleu", "paper_bleu", "chrf", "device_rate")
RANGES: dict[str, tuple[float, float]] = {"seed": (0, 2**32 - 1), "steps": (1, LARGEST_INT)}
RANGES |= dict.fromkeys(("bleu", "paper_bleu", "chrf"), (0, 100.0001))


def counts(config: Config) -> tuple[int, float]:
    """The number of parameters, and the training FLOPs of all steps."""
    vocabulary = config.vocabulary.size
    shape = nominal_shape(config)
    flops = shape.rows * cost.step_flops(config.model, vocabulary, shape.lengths, config.train)
    return cost.parameter_count(config.model, vocabulary), float(flops * config.train.steps)


def read_results(path: Path) -> list[Line]:
    """The lines of a results.csv, which may not exist yet. Raises DataError if it is damaged."""
    lines = read_table(path, Line, MAY_BE_EMPTY, ranges=RANGES)
    for number, line in enumerate(lines, 2):
        if bool(line.signature) != math.isfinite(line.bleu + line.chrf):
            raise DataError(
                f"{path}, line {number}: one of bleu, chrf and signature is missing. Correct or "
                "remove that line."
            )
    return lines


def write_results(path: Path, lines: Sequence[Line]) -> None:
    """Writes all lines in the given order."""
    write_table(path, Line, lines, MAY_BE_EMPTY)


def finished(lines: Sequence[Line], jobs: Sequence[Job]) -> dict[tuple[str, int], Line]:
    """The recorded lines of these jobs, by row and seed.

    Raises:
      RunError: a line was recorded with another config than its row has now.
    """
    found = {(line.row, line.seed): line for line in lines}
    for job in jobs:
        line = found.get((job.row, job.seed))
        if line and line.config_digest != job.digest():
            steps, hint = job.config().train.steps, ""
            if line.steps != steps:
                hint = f"It took {line.steps} updates, not {steps}: if pace.csv has the number, "
                hint += "restore it. Otherwise: "
            raise RunError(
                f"{job.label} was recorded with another config (digest {line.config_digest}) than "
                f"the experiment has now. {hint}Remove that line of results.csv to run it again, "
                "or give another folder with --out."
            )
    wanted = {(job.row, job.seed) for job in jobs}
    return {key: line for key, line in found.items() if key in wanted}


def collect(job: Job) -> tuple[Line, Record]:
    """The line of a finished run, and its record of curves and samples.

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
    line = Line(
        row=job.row,
        seed=job.seed,
        perplexity=valid[-1]["perplexity"],
        bleu=evaluation.bleu,
        paper_bleu=math.nan if paper_bleu is None else paper_bleu,
        chrf=evaluation.chrf,
        parameters=parameters,
        training_flops=flops,
        train_seconds=training_seconds(metrics, config.train.log_every),
        device_rate=device_rate(evaluation.device, evaluation.devices or 1, config.model.dtype),
        steps=config.train.steps,
        config_digest=job.digest(),
        revision=revision(),
        device=evaluation.device,
        date=datetime.date.today().isoformat(),
        signature=evaluation.bleu_signature,
    )
    curve: list[dict[str, Any]] = [
        {key: m[key] for key in ("step", "kind", "perplexity", "nats_per_token") if key in m}
        for m in metrics
    ]
    sums = trained_on(job) | {REFERENCES: evaluation.ref_sha256 or ""}
    sets = scores_of_sets(job)
    return line, Record(job.row, job.seed, curve, samples(job), sets, text_sha256=sums)


def device_rate(kind: str, count: int, dtype: str) -> float:
    """Peak FLOP/s of `count` devices of a kind; NaN if it is not known."""
    peak = cost.peak_of(kind, dtype)
    return math.nan if peak is None else count * peak


def training_seconds(metrics: Sequence[Mapping[str, Any]], log_every: int) -> float:
    """Seconds of the training steps, without interruptions: the sum of tokens / token rate."""
    before = 0
    seconds = 0.0
    for m in metrics:
        if m["kind"] != "train":
            continue
        steps = min(m["step"] - before, log_every)
        rate = m["target_tokens_per_second"]
        seconds += m["target_tokens_per_step"] * steps / rate if rate > 0 else math.nan
        before = m["step"]
    return seconds


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
        lines = len(open_corpus(replace(config.data, **own)).split(split))
        if (path := evaluation_file(job, stem, {"sentences": lines})) is not None:
            scores = read_json(path)
            found[stem] = {name: scores.get(name) for name in OF_SETS}
    return found


def trained_on(job: Job) -> dict[str, str]:
    """SHA-256 sums of the texts that a run was trained on; empty if its folder is gone."""
    path = RunFolder(job.folder).corpus_file
    sums = (read_utf8(path).split() or [""]) if path.is_file() else []
    return dict(zip((TRAIN, VALID), sums, strict=False))


def text_sums(data: DataConfig, split: str) -> dict[str, str]:
    """SHA-256 sums of the texts here: of training, of validation, and of both sides of `split`."""
    corpus = open_corpus(data)
    pairs = corpus.split(split)
    return {
        TRAIN: corpus.fingerprint("train"),
        VALID: corpus.fingerprint("valid"),
        SOURCES: text_digest(pair.src for pair in pairs),
        REFERENCES: text_digest(pair.tgt for pair in pairs),
    }


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


def _is_trained(job: Job) -> bool:
    """Whether a run was validated at its last step."""
    last = job.config().train.steps
    lines = read_metrics(job.folder) if (job.folder / FILE).exists() else []
    return any(line["kind"] == "valid" and line["step"] == last for line in lines)


def read_evaluation(job: Job) -> Evaluation | None:
    """The scores and translations of a run; None if its folder does not have them.

    Those of a language model are NO_TRANSLATIONS, once it is trained.

    Raises:
      DataError: a score is missing, or the translations are not as many as were scored.
    """
    if not job.config().data.sources:
        return NO_TRANSLATIONS if _is_trained(job) else None
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
        config = replace(config, data=here)
    pairs = open_corpus(config.data).split(job.scale.split)
    return [pair.src for pair in pairs], [pair.tgt for pair in pairs]


def samples(job: Job) -> list[list[str]]:
    """A few evenly spaced samples: source, reference and translation."""
    if not (found := hypotheses(job)):
        return []
    sources, wanted = references(job)
    step = max(1, len(found) // SAMPLES)
    return [[sources[i], wanted[i], found[i]] for i in range(0, len(found), step)][:SAMPLES]
