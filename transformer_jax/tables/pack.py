"""Runs of a table on a machine without a network: what they need in parts, and the results back.

    python -m experiments.NAME --scale=SCALE --rows=ROW --pack=FOLDER      # here
    python -m experiments.NAME --packed=FOLDER --out=RESULTS               # there
    python -m experiments.NAME --scale=SCALE --merge=RESULTS/results.tgz   # here

FOLDER gets plan.json and parts of at most 45 MiB, which together are an archive of the compressed
text and the vocabularies. The other machine has this code already, for example a checkout without
its history. There results.tgz is written anew while runs train, so a machine that is taken away
leaves their metrics; finished runs leave their scores and translations too.
"""

import contextlib
import functools
import gzip
import hashlib
import io
import json
import logging
import lzma
import os
import shutil
import tarfile
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.errors import ConfigError, DataError, RunError
from transformer_jax.files import is_temporary, read_json, write_atomically
from transformer_jax.kinds import wrong_field
from transformer_jax.reporting.provenance import CODE, ROOT, revision
from transformer_jax.runs.run_folder import RunFolder
from transformer_jax.tables.experiment import Job
from transformer_jax.tables.pace import Pace, keep_pace, read_paces, with_pace
from transformer_jax.tables.records import FILE as RECORDS
from transformer_jax.tables.records import raw_records, write_record
from transformer_jax.tables.report import Output
from transformer_jax.tables.results import finished, read_results, write_results
from transformer_jax.text.corpora import TextCorpus, open_corpus
from transformer_jax.training.data import new_vocabulary

log = logging.getLogger(__name__)
PLAN, ARCHIVE, RESULTS = "plan.json", "part", "results.tgz"
PART_BYTES = 45 << 20
EVERY = 20.0  # seconds between two versions of results.tgz
# In a run's folder.
SMALL_FILES = ("config.json", "corpus.sha256", "metrics.jsonl", "evaluations")


class PackedJob(NamedTuple):
    """A run of a pack."""

    row: str
    seed: int
    config: str  # its digest
    text: str  # a folder in the archive
    vocabulary: str  # a file in the archive


class Plan(NamedTuple):
    """What a pack is for, and how its files are checked."""

    experiment: str
    scale: str
    minutes: float | None
    code: str  # digest of the code that made it
    revision: str
    overrides: dict[str, Any]  # keys that were given with --config, for every job
    jobs: list[PackedJob]
    paces: list[Pace]  # lines of pace.csv that rows have already
    parts: list[str]  # files of the archive, in order
    sha256: str  # the archive's SHA-256 sum

    def to_json(self) -> bytes:
        """The content of plan.json."""
        jobs, paces = ([one._asdict() for one in parts] for parts in (self.jobs, self.paces))
        content = self._asdict() | {"jobs": jobs, "paces": paces}
        return (json.dumps(content, indent=1) + "\n").encode()


def code_digest() -> str:
    """A digest of the package, the presets and the experiments."""
    digest = hashlib.sha256()
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(f"{path.relative_to(ROOT)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def pack(
    jobs: Sequence[Job],
    values: Mapping[str, Any],
    paces: Mapping[str, Pace],
    folder: Path,
) -> Plan:
    """Writes plan and parts of the archive for these jobs; trains missing vocabularies.

    The jobs are those before `with_pace`, and `values` those of the flags.

    Raises:
      ConfigError: a corpus is not text files, the folder is not empty, or nothing is missing.
      DataError: a text cannot be read.
    """
    if not jobs:
        raise ConfigError("--pack: every run that you ask for is recorded already.")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--pack={folder} is not empty. Name a new folder.")
    members = dict[str, bytes | Path]()
    packed = []
    for job in jobs:
        config = job.config()
        corpus = open_corpus(config.data)
        if not isinstance(corpus, TextCorpus):
            raise ConfigError(f"--pack: {job.label} has data.source={config.data.source!r}.")
        text = f"text/{corpus.folder.name}"
        for path in _text_files(corpus):
            # A stem may lead to a folder beside the corpus's.
            name = os.path.normpath(f"{text}/{path.relative_to(corpus.folder)}")
            name = f"{name.removesuffix('.gz')}.xz"
            if members.setdefault(name, path) != path:
                raise ConfigError(
                    f"--pack: {path} would replace another file. Pack its rows alone."
                )
        vocabulary = new_vocabulary(config, corpus, corpus.fingerprint("train"))
        own = f"vocabulary/{vocabulary.digest[:12]}.model"
        members[own] = vocabulary.model
        packed.append(PackedJob(job.row, job.seed, job.digest(), text, own))
    archive = _archive(members)
    names = [f"{ARCHIVE}{n}" for n in range(-(-len(archive) // PART_BYTES))]
    for n, name in enumerate(names):
        part = archive[n * PART_BYTES : (n + 1) * PART_BYTES]
        write_atomically(folder / name, part)
    digest = hashlib.sha256(archive).hexdigest()
    code = code_digest(), revision()
    known = [pace for row, pace in paces.items() if row in {job.row for job in jobs}]
    flags = values["minutes"], *code, values["overrides"]
    plan = Plan(jobs[0].experiment, values["scale"], *flags, packed, known, names, digest)
    write_atomically(folder / PLAN, plan.to_json())
    return plan


def _text_files(corpus: TextCorpus) -> Iterator[Path]:
    data = corpus.data
    valid = () if corpus.cuts_valid else data.valid or ("valid",)
    for stem in (*data.train, *valid, *data.test):
        yield from corpus.files(stem.partition("[")[0])


def _archive(members: Mapping[str, bytes | Path]) -> bytes:
    """A tar file of these files; those of a path are compressed, all cores together."""

    def content(source: bytes | Path) -> bytes:
        if isinstance(source, bytes):
            return source
        read = gzip.open if source.suffix == ".gz" else open
        with read(source, "rb") as file:
            return lzma.compress(file.read())

    written = io.BytesIO()
    with ThreadPoolExecutor() as pool, tarfile.open(fileobj=written, mode="w") as tar:
        for name, data in zip(members, pool.map(content, members.values()), strict=True):
            _add(tar, name, data)
    return written.getvalue()


def _extract(tar: tarfile.TarFile, to: Path, source: Path) -> None:
    """Writes the files of the archive that `source` holds below `to`.

    Raises:
      DataError: one of them is no file, or would be elsewhere.
    """
    for member in tar:
        path = (to / member.name).resolve()
        content = tar.extractfile(member) if member.isfile() else None
        if content is None or not path.is_relative_to(to.resolve()):
            raise DataError(f"{source}: {member.name!r} is not a file below its folder.")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.read())


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def read_plan(folder: Path) -> Plan:
    """The plan of a pack, or of results. Raises DataError: there is none."""
    content = read_json(folder / PLAN)
    lists = {"jobs": PackedJob, "paces": Pace}
    try:
        parts = {name: [kind(**one) for one in content[name]] for name, kind in lists.items()}
        plan = Plan(**content | parts)
    except (KeyError, TypeError):
        raise DataError(f"{folder / PLAN} is not the plan of a pack.") from None
    if any(wrong := [wrong_field(one) for one in (plan, *plan.jobs, *plan.paces)]):
        raise DataError(f"{folder / PLAN} is not the plan of a pack: {max(wrong)}.")
    keys = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in plan.overrides.items()
    }
    return plan._replace(overrides=keys)


def unpack(folder: Path, to: Path, output: Output) -> Plan:
    """Checks a pack, extracts its text and vocabularies into `to`, and records known paces.

    Raises:
      DataError: a part is missing or damaged.
      RunError: the pack was made by other code than this.
    """
    plan = read_plan(folder)
    if plan.code != code_digest():
        raise RunError(
            f"{folder} was packed by other code (revision {plan.revision}, digest {plan.code}) "
            f"than this ({code_digest()}). Take that revision, or pack again."
        )
    missing = [name for name in plan.parts if not (folder / name).exists()]
    if missing:
        raise DataError(f"{folder} lacks {', '.join(missing)} of {len(plan.parts)} parts.")
    archive = b"".join((folder / name).read_bytes() for name in plan.parts)
    if hashlib.sha256(archive).hexdigest() != plan.sha256:
        raise DataError(f"{folder}: its parts are damaged. Copy them again.")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        _extract(tar, to, folder)
    compressed = [*to.rglob("*.xz")]
    with ThreadPoolExecutor() as pool:
        for path, text in zip(compressed, pool.map(_decompressed, compressed), strict=True):
            path.with_suffix("").write_bytes(text)
            path.unlink()
    for one in plan.paces:
        keep_pace(output.paces, one)
    return plan


def _decompressed(path: Path) -> bytes:
    return lzma.decompress(path.read_bytes())


def unpacked_jobs(jobs: Sequence[Job], plan: Plan, folder: Path) -> list[Job]:
    """The plan's jobs of these, which read text and vocabulary from the extracted files.

    Raises:
      RunError: a job has another config than when it was packed.
    """
    packed = {(one.row, one.seed): one for one in plan.jobs}
    found = []
    for job in [job for job in jobs if (job.row, job.seed) in packed]:
        own = packed[job.row, job.seed]
        if own.config != job.digest():
            raise RunError(
                f"{job.label} was packed for another config (digest {own.config}) than the "
                "experiment has now. Pack it again."
            )
        inside = {"data.path": folder / own.text, "vocabulary.path": folder / own.vocabulary}
        for name, path in inside.items():
            if not path.resolve().is_relative_to(folder.resolve()):
                raise DataError(f"{PLAN}: {name} of {job.label} is not in the pack: {path}.")
        paths = {name: str(path.absolute()) for name, path in inside.items()}
        found.append(job._replace(overrides={**job.overrides, **paths}))
    return found


@contextlib.contextmanager
def results_kept(folder: Path, jobs: Sequence[Job], plan: Plan | None) -> Iterator[None]:
    """Writes results.tgz into the folder of results, again and again until the block ends.

    Without a plan it does nothing.
    """
    if plan is None:
        yield
        return
    stop = threading.Event()
    write = functools.partial(_write_results, folder, jobs, plan)

    def keep() -> None:
        while not stop.wait(EVERY):
            write()

    writer = threading.Thread(target=keep, daemon=True)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join()
        write()


def _write_results(folder: Path, jobs: Sequence[Job], plan: Plan) -> None:
    """One version of results.tgz; a file that is being written is left for the next one."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as tar:
        _add(tar, PLAN, plan.to_json())
        for path in (*folder.glob("*.csv"), *folder.glob(RECORDS)):
            _add(tar, str(path.relative_to(folder)), path.read_bytes())
        for job in jobs:
            for name in SMALL_FILES:
                for path in sorted((job.folder / name).rglob("*")) or [job.folder / name]:
                    if path.is_file() and not is_temporary(path):
                        inside = _there(Path(), job) / path.relative_to(job.folder)
                        _add(tar, str(inside), path.read_bytes())
    write_atomically(folder / RESULTS, written.getvalue())


def extract_results(file: Path, to: Path) -> Plan:
    """Extracts a results.tgz and returns its plan. Raises DataError: it is none."""
    try:
        with tarfile.open(file) as tar:
            _extract(tar, to, file)
    except (OSError, EOFError, tarfile.TarError, lzma.LZMAError) as error:
        raise DataError(f"--merge={file} is not a results.tgz ({error}).") from None
    if not (to / PLAN).is_file():
        raise DataError(f"--merge={file} is not a results.tgz: it has no {PLAN}.")
    return read_plan(to)


def merge(file: Path, jobs: Sequence[Job], output: Output, minutes: float | None) -> None:
    """Adds the finished runs of a results.tgz to the recorded results.

    The jobs are those before `with_pace`. If anything does not fit, nothing is written.

    Raises:
      DataError: the file is no results.tgz.
      RunError: a run is of another config, of another training text, or recorded already.
    """
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        plan = extract_results(file, folder)
        if plan.minutes != minutes:
            raise RunError(
                f"--merge={file}: each row trained for {_time(plan.minutes)} there, and gets "
                f"{_time(minutes)} here. Give that number with --minutes, or another --out."
            )
        paces = read_paces(folder / output.paces.name, plan.minutes)
        lines = read_results(folder / output.results.name)
        records = raw_records(folder)
        own = {(job.row, job.seed): with_pace(job, paces.get(job.row)) for job in jobs}
        known = {(line.row, line.seed) for line in read_results(output.results)}
        here = read_paces(output.paces, minutes)
        for line in lines:
            job = own.get((line.row, line.seed))
            if job is None:
                raise RunError(f"--merge={file}: this table has no {line.row!r}, seed {line.seed}.")
            finished([line], [job])
            if (line.row, line.seed) in known:
                raise RunError(f"{job.label} is in {output.results} already. Remove that line.")
            if paces.get(line.row) != here.get(line.row, paces.get(line.row)):
                raise RunError(f"{job.label}: {output.paces} has another number of updates.")
            there = _there(folder, job)
            lacking = [name for name in SMALL_FILES if not (there / name).exists()]
            if lacking or (line.row, line.seed) not in records:
                missing = f"runs/{there.name}/{lacking[0]}" if lacking else RECORDS
                raise DataError(f"--merge={file}: {job.label} is not in {missing}: damaged.")
            corpus = open_corpus(job.config().data)
            RunFolder(there).check_corpus(corpus.fingerprint("train"))
        for line in lines:
            job = own[line.row, line.seed]
            if not job.folder.exists():
                shutil.copytree(_there(folder, job), job.folder)
            if line.row in paces:
                keep_pace(output.paces, paces[line.row])
            write_record(output.folder, records[line.row, line.seed])
            named = line._replace(revision=plan.revision)
            write_results(output.results, [*read_results(output.results), named])
        log.info("%s: %d finished runs", file, len(lines))


def _time(minutes: float | None) -> str:
    return "no fixed time" if minutes is None else f"{minutes:g} minutes"


def _there(folder: Path, job: Job) -> Path:
    """The small files of a job's run in an extracted results.tgz."""
    return folder / "runs" / Path(*job.folder.parts[-2:])


def packed_text(plan: Plan) -> str:
    """What a pack holds, and the commands that use it."""
    runs = ", ".join(f"{one.row} (seed {one.seed})" for one in plan.jobs)
    start = f"python -m experiments.{plan.experiment}"
    return (
        f"{len(plan.parts)} parts for {runs}\n"
        f"there: {start} --packed=FOLDER --out=RESULTS\n"
        f"here: {start} --scale={plan.scale} --merge=RESULTS/{RESULTS}\n"
    )
