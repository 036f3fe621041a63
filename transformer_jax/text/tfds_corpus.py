"""Reads and prepares `Translation` data sets of TensorFlow Datasets without TensorFlow.

Reading goes through TFDS's `as_data_source` over array_record files.
"""

import contextlib
import difflib
import hashlib
import itertools
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from transformer_jax.config.data import DataConfig
from transformer_jax.errors import ConfigError, DataError
from transformer_jax.text.by_position import ByPosition
from transformer_jax.text.folder_corpus import NO_ALIGNMENTS, AlignedWords, Pair, parts_of

PREPARE = "python -m transformer_jax prepare --config=CONFIG"
OPEN_FILES = 4_096  # limit of open files that `prepare` sets
SAMPLE = 1_000  # number of examples that the fingerprint of a split covers


class TfdsPairs(ByPosition[Pair]):
    """Serialized examples of TFDS and the languages to take from them, the target's last."""

    def __init__(self, records: Any, languages: Sequence[str]):
        self.records, self.languages = records, languages

    def __len__(self) -> int:
        return len(self.records)

    def items(self, indices: Sequence[int]) -> list[Pair]:
        """The pairs at these indices, read together; ten times as fast as TFDS's own decoding."""
        from tensorflow_datasets.proto import tf_example_pb2

        found = []
        for record in self.records.__getitems__(indices):
            feature = tf_example_pb2.Example.FromString(record).features.feature
            texts = [feature[name].bytes_list.value[0].decode() for name in self.languages]
            found.append(Pair.of(texts))
        return found


class TfdsCorpus:
    """A `Translation` data set of TFDS, prepared on this machine."""

    def __init__(self, data: DataConfig):
        """Raises DataError: TFDS does not know name or language, or the set is not prepared."""
        from tensorflow_datasets.core.file_adapters import FileFormat

        self.data = data
        self.builder = builder = _find_builder(data)
        languages = list(builder.info.features)
        for key, language in (*(("src", one) for one in data.sources), ("tgt", data.tgt)):
            if language not in languages:
                raise DataError(
                    f"data.{key}={language!r} is not in {data.name}, which has "
                    f"{', '.join(languages)}."
                )
        if not builder.info.splits:
            raise DataError(
                f"{data.name} is not prepared in {builder.data_path}: set data.path to the TFDS "
                f"folder that has it, or run {PREPARE}"
            )
        if not builder.info.available_file_formats() & set(FileFormat.with_random_access()):
            raise DataError(
                f"{builder.data_path} holds {builder.info.file_format.value} files, which only "
                f"TensorFlow reads: set another data.path and run {PREPARE}"
            )

    def split(self, name: str) -> Sequence[Pair]:
        """The pairs of the TFDS splits, in the order of the shards."""
        return TfdsPairs(self._records(parts_of(self.data, name)), self.data.languages)

    def alignments(self, name: str) -> Sequence[AlignedWords]:
        """Raises DataError: a TFDS data set has no word links."""
        raise DataError(NO_ALIGNMENTS.format("tfds"))

    def fingerprint(self, name: str) -> str:
        """SHA-256 of name, version, sizes, a thousand evenly spaced examples, and the direction.

        It does not cover the shards' bytes, since compression may differ between two preparations.
        """
        splits = parts_of(self.data, name)
        info = self.builder.info
        records = self._records(splits)
        sizes = [int(info.splits[split].num_bytes) for split in splits]
        content = hashlib.sha256(f"{info.full_name} {sizes}".encode())
        indices = sorted({len(records) * i // SAMPLE for i in range(SAMPLE)} | {len(records) - 1})
        for record in records.__getitems__(indices):
            content.update(hashlib.sha256(record).digest())
        directed = f"{content.hexdigest()} {self.data.src} {self.data.tgt}"
        return hashlib.sha256(directed.encode()).hexdigest()

    def describe(self) -> str:
        """The data set, its version, its folder and the direction."""
        name, folder = self.builder.info.full_name, self.builder.data_path
        return f"TFDS {name} in {folder}, {self.data.direction}"

    def _records(self, splits: Sequence[str]) -> Any:
        """The serialized examples of TFDS splits, joined: `len`, `__getitems__([i, ...])`.

        Raises:
          DataError: a split does not exist or is empty, or its files are missing or damaged.
        """
        import tensorflow_datasets as tfds

        builder = self.builder
        known, full_name = builder.info.splits, builder.info.full_name
        for split in splits:
            try:
                count = known[split].num_examples
            except (KeyError, ValueError):
                there = ", ".join(known)
                raise DataError(f"{full_name} has no split {split!r}, only {there}.") from None
            if count == 0:
                raise DataError(f"split {split!r} of {full_name} has no examples.")
        joined = "+".join(splits)
        raw = tfds.decode.DeserializeMethod.RAW_BYTES
        records = builder.as_data_source(joined, deserialize_method=raw)
        ends = itertools.accumulate(s.take for s in builder.info.splits[joined].file_instructions)
        try:
            # A truncated shard gives an error or empty records.
            whole = all(records.__getitems__([end - 1 for end in ends]))
            reason = "examples are missing"
        except RuntimeError as error:
            whole = False
            reason = str(error).splitlines()[0]
        if not whole:
            raise DataError(
                f"{builder.data_path} is damaged ({reason}): delete it and run {PREPARE}"
            )
        return records


def prepare(data: DataConfig) -> str:
    """Downloads the config's TFDS data set and writes it as array_record.

    Archives that are already in TFDS's folder for manual downloads are not downloaded again. If the
    data set is already prepared, this does nothing.

    Returns:
      The folder of the data set.

    Raises:
      ConfigError: the config's corpus does not come from TFDS.
      DataError: TFDS could not fetch, check or unpack what it needs.
    """
    if data.source != "tfds":
        raise ConfigError(
            f"data.source={data.source!r} needs no preparation: `prepare` is for 'tfds'."
        )
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.download import download_manager, extractor

    builder = _find_builder(data)
    _stand_in_for_tensorflow()
    try:
        # TFDS prints its progress to standard output, which is reserved for results.
        with contextlib.redirect_stdout(sys.stderr):
            builder.download_and_prepare(file_format="array_record")
    except (
        AssertionError,  # archives that must be downloaded by hand
        OSError,  # requests' errors too
        download_manager.NonMatchingChecksumError,
        extractor.ExtractError,
        tfds.download.DownloadError,
    ) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        manual = Path(builder.data_dir_root) / "downloads" / "manual"
        raise DataError(
            f"{data.name} could not be prepared: {reason}. You can also download the archives by "
            f"hand into {manual}, under the names of their URLs."
        ) from error
    return str(TfdsCorpus(data).builder.data_path)


def _find_builder(data: DataConfig) -> Any:
    """The builder of data.name, prepared or not."""
    import tensorflow_datasets as tfds
    import tensorflow_datasets.translate  # noqa: F401  registers the WMT builders

    if data.name is None:
        raise DataError(
            "data.name is not set: with data.source='tfds' it names a TFDS data set, such as "
            "wmt14_translate/de-en."
        )
    try:
        folder = data.path and os.path.expanduser(data.path)  # may be gs://...
        return tfds.builder(data.name, data_dir=folder)
    except (AssertionError, ImportError, ValueError):
        name = data.name.partition("/")[0].partition(":")[0]
        known = tfds.list_builders(with_community_datasets=False)
        if name not in known:
            close = ", ".join(difflib.get_close_matches(name, known)) or "wmt14_translate"
            raise DataError(
                f"data.name={data.name!r}: TFDS {tfds.__version__} has no {name!r}, but {close}."
            ) from None
        builder = tfds.builder_cls(name)
        configs = ", ".join(
            f"{config.name}:{config.version or builder.VERSION}"
            for config in builder.builder_configs.values()
        )
        raise DataError(
            f"data.name={data.name!r}: TFDS has {name}/{configs or builder.VERSION}, not this."
        ) from None


def _stand_in_for_tensorflow() -> None:
    """Gives TFDS's preparation the file functions that it takes from TensorFlow.

    TFDS uses them to unpack archives and to sort splits over 1 GB on disk. For local files Python's
    own functions do the same. Preparing WMT needs nothing else from TensorFlow. The substitutes are
    never removed: after one download fails, TFDS's threads still work on the others.
    """
    import resource

    from tensorflow_datasets.core import shuffle
    from tensorflow_datasets.core.download import extractor

    gfile = SimpleNamespace(GFile=open, exists=os.path.exists, remove=os.remove)
    extractor.tf = shuffle.tf = SimpleNamespace(
        compat=SimpleNamespace(as_text=os.fsdecode),
        errors=SimpleNamespace(ResourceExhaustedError=()),  # catches nothing
        io=SimpleNamespace(gfile=gfile),
    )
    # The sorting keeps 1,000 files open at once.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < enough:
        resource.setrlimit(resource.RLIMIT_NOFILE, (enough, hard))
