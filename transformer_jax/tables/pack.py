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
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from transformer_jax.config.schema import value_at
from transformer_jax.errors import ConfigError, DataError, RunError
from transformer_jax.files import is_temporary, read_json, write_atomically
from transformer_jax.kinds import wrong_field
from transformer_jax.reporting.provenance import CODE, ROOT, revision
from transformer_jax.tables.experiment import Experiment, Job, check_results
from transformer_jax.tables.pace import Pace, keep_pace
from transformer_jax.tables.report import Output
from transformer_jax.tables.results import FILE
from transformer_jax.text.corpora import TextCorpus, open_corpus
from transformer_jax.text.mixture import plain_corpora
from transformer_jax.training.vocabulary import given_vocabulary, new_vocabulary

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
    paces: list[Pace]  # lines of pace.csv: updates of rows that were timed, and their devices
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
        for path in sorted((ROOT / folder).rglob("[!.]*.py")):  # editors lock by hidden links
            digest.update(f"{path.relative_to(ROOT)}\n".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def check_packable(jobs: Sequence[Job]) -> None:
    """Raises ConfigError if a run needs another run, or what is no text: a pack holds neither."""
    for job in jobs:
        config = job.config()
        for name in ("train.init_from", "train.teacher"):
            if (run := value_at(config, name)) is not None:
                needs = f"{name}={run!r}, and a pack holds no runs. Leave that row out with --rows"
                raise ConfigError(f"--pack: {job.label} has {needs}, and run it here.")
        if config.data.src_kind != "text":
            raise ConfigError(f"--pack: {job.label} reads {config.data.src_kind}; a pack has text.")


def pack(
    jobs: Sequence[Job],
    values: Mapping[str, Any],
    paces: Mapping[str, Pace],
    folder: Path,
) -> Plan:
    """Writes plan and parts of the archive for packable jobs; trains missing vocabularies.

    The jobs are those before `with_pace`, and `values` those of the flags.

    Raises:
      ConfigError: a run needs what a pack cannot hold, the folder is not empty, or nothing is
        missing.
      DataError: a split cannot be read.
    """
    if not jobs:
        raise ConfigError("--pack: every run that you ask for is recorded already.")
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"--pack={folder} is not empty. Name a new folder.")
    check_results(jobs)
    code = code_digest(), revision()
    opened = functools.cache(open_corpus)  # rows may share their text
    files = functools.cache(lambda corpus, text: [*_text_files(corpus, text)])
    members = dict[str, bytes | Path]()
    packed = []
    for job in jobs:
        config = job.config()
        corpus = opened(config.data)
        texts = plain_corpora(corpus)
        if not all(isinstance(one, TextCorpus) for one in texts):
            raise ConfigError(f"--pack: {job.label} has data.source={config.data.source!r}.")
        text = f"text/{texts[0].folder.resolve().name}"
        for name, path in (found for one in texts for found in files(one, text)):
            if members.setdefault(name, path) != path:
                raise ConfigError(
                    f"--pack: {path} would replace another file. Pack its rows alone."
                )
        given = given_vocabulary(config)
        vocabulary = given or new_vocabulary(config, corpus, corpus.fingerprint("train"))
        own = f"vocabulary/{vocabulary.digest[:12]}.model"
        members[own] = vocabulary.model
        packed.append(PackedJob(job.row, job.seed, job.digest(), text, own))
    archive = _archive(members)
    names = [f"{ARCHIVE}{n}" for n in range(-(-len(archive) // PART_BYTES))]
    for n, name in enumerate(names):
        part = archive[n * PART_BYTES : (n + 1) * PART_BYTES]
        write_atomically(folder / name, part)
    digest = hashlib.sha256(archive).hexdigest()
    flags = values["scale"], values["minutes"], *code, values["overrides"]
    plan = Plan(jobs[0].experiment, *flags, packed, [*paces.values()], names, digest)
    write_atomically(folder / PLAN, plan.to_json())
    return plan


def _text_files(corpus: TextCorpus, text: str) -> Iterator[tuple[str, Path]]:
    """Each file of the splits with its name in the archive, where `text` is the corpus's folder.

    Raises:
      DataError: a split cannot be read.
      ConfigError: a stem leads out of the archive.
    """
    data = corpus.data
    for split in ("train", "valid", "test"):
        if split != "test" or data.test:
            corpus.split(split)
    if data.alignments:
        corpus.alignments("train")
    valid = () if corpus.cuts_valid else data.valid or ("valid",)
    for stem in (*data.train, *valid, *data.test):
        whole = stem.partition("[")[0]
        # A stem may lead to a folder beside the corpus's.
        inside = os.path.normpath(os.path.join(text, os.path.dirname(whole)))
        if not f"{inside}/".startswith("text/"):
            raise ConfigError(
                f"--pack: a pack cannot hold the stem {stem!r}: give one from {corpus.folder} on, "
                "with at most one '..'."
            )
        for path in (*corpus.files(whole), *corpus.files_beside(whole, stem in data.train)):
            yield f"{inside}/{path.name.removesuffix('.gz')}.xz", path


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


def extract(tar: tarfile.TarFile, to: Path, source: Path) -> None:
    """Writes the files of the archive that `source` holds below `to`.

    Raises:
      DataError: one of them is no file, or would be elsewhere.
    """
    for member in tar:
        if member.isdir():  # of an archive that was packed again
            continue
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
    if not plan.jobs:
        raise DataError(f"{folder / PLAN} has no jobs. Copy it again, or pack again.")
    keys = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in plan.overrides.items()
    }
    return plan._replace(overrides=keys)


def flags_of_pack(experiment: Experiment, values: dict[str, Any]) -> dict[str, Any]:
    """The flags, with scale, minutes, rows and seeds of the pack that --packed names.

    Raises ConfigError if the pack is of another experiment, or another flag says otherwise.
    """
    if not values["packed"]:
        return values
    plan = read_plan(Path(values["packed"]))
    if plan.experiment != experiment.name:
        raise ConfigError(f"--packed={values['packed']} is a pack of {plan.experiment}.")
    if values["out"] is None:
        raise ConfigError("--packed: give the folder of the results with --out=FOLDER.")
    own = {
        "rows": ";".join(dict.fromkeys(one.row for one in plan.jobs)),
        "seeds": ",".join(dict.fromkeys(str(one.seed) for one in plan.jobs)),
        "scale": plan.scale,
        "minutes": plan.minutes,
    }
    if plan.scale not in experiment.scales:
        raise ConfigError(
            f"--packed={values['packed']} is of {plan.scale!r}, and these flags make "
            f"{' or '.join(experiment.scales)}. Give the command that --pack printed."
        )
    for name, value in own.items():
        if values[name] not in (None, value):
            raise ConfigError(f"--{name}: the pack has its own. Leave it out with --packed.")
    return {**values, **own, "overrides": {**plan.overrides, **values["overrides"]}}


def unpack(folder: Path, to: Path, jobs: Sequence[Job], output: Output) -> tuple[Plan, list[Job]]:
    """Checks a pack, extracts text and vocabularies below `to`, and records known paces.

    Returns:
      its plan, and those of the jobs that are in it, which read the extracted files.

    Raises:
      DataError: a part is missing or damaged.
      RunError: the pack was made by other code than this, or for another config.
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
    to /= plan.sha256[:12]  # not among files of another pack, which would look like its own
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        extract(tar, to, folder)
    compressed = [*to.rglob("*.xz")]
    with ThreadPoolExecutor() as pool:
        texts = pool.map(lambda path: lzma.decompress(path.read_bytes()), compressed)
        for path, text in zip(compressed, texts, strict=True):
            path.with_suffix("").write_bytes(text)
            path.unlink()
    for one in plan.paces:
        keep_pace(output.paces, one)
    packed = {(one.row, one.seed): one for one in plan.jobs}
    found = []
    for job in [job for job in jobs if (job.row, job.seed) in packed]:
        own = packed[job.row, job.seed]
        if own.config != job.digest():
            raise RunError(
                f"{job.label} was packed for another config (digest {own.config}) than the "
                "experiment has now. Pack it again."
            )
        inside = {"data.path": to / own.text, "vocabulary.path": to / own.vocabulary}
        for name, path in inside.items():
            if not path.resolve().is_relative_to(to.resolve()):
                raise DataError(f"{PLAN}: {name} of {job.label} is not in the pack: {path}.")
        paths = {name: str(path.absolute()) for name, path in inside.items()}
        found.append(job._replace(overrides={**job.overrides, **paths}))
    return plan, found


@contextlib.contextmanager
def results_kept(folder: Path, jobs: Sequence[Job], plan: Plan | None) -> Iterator[None]:
    """Writes results.tgz into the folder of results, again and again until the block ends.

    Without a plan it does nothing.

    Raises:
      RunError: the last version cannot be written; if an earlier one cannot, it only warns.
    """
    if plan is None:
        yield
        return
    stop = threading.Event()

    def write() -> str:
        """Writes one version; why it cannot be written, or ""."""
        try:
            _write_results(folder, jobs, plan)
        except OSError as error:
            log.warning(wrong := f"cannot write {folder / RESULTS}: {error.strerror}")
            return wrong
        return ""

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
        wrong = write()
    if wrong:
        raise RunError(f"{wrong}. Make room for it, and give the same command again.")


def _write_results(folder: Path, jobs: Sequence[Job], plan: Plan) -> None:
    """One version of results.tgz; a file that is being written is left for the next one."""
    written = io.BytesIO()
    with tarfile.open(fileobj=written, mode="w:gz") as tar:
        _add(tar, PLAN, plan.to_json())
        for path in (*folder.glob("*.csv"), *folder.glob(FILE)):
            _add(tar, str(path.relative_to(folder)), path.read_bytes())
        for job in jobs:
            for name in SMALL_FILES:
                for path in sorted((job.folder / name).rglob("*")) or [job.folder / name]:
                    if path.is_file() and not is_temporary(path):
                        inside = run_files(Path(), job) / path.relative_to(job.folder)
                        _add(tar, str(inside), path.read_bytes())
    write_atomically(folder / RESULTS, written.getvalue())


def run_files(folder: Path, job: Job) -> Path:
    """The folder of the small files of a job's run in an extracted results.tgz."""
    return folder / "runs" / Path(*job.folder.parts[-2:])
