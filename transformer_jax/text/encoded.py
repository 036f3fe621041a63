"""Encoded corpora: flat arrays of subword ids, cached on disk and read through memory maps.

A cache entry is a file NAME.json. It names a folder with {src,tgt}_{ids,offsets}.npy, and holds the
size and CRC-32 of each. NAME is a digest of the content of corpus and vocabulary, so an entry never
becomes stale. NAME.json is written last and atomically, so no process sees half an entry, and no
lock is needed.
"""

import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeGuard

import numpy as np

from transformer_jax.errors import DataError
from transformer_jax.files import cache_folder
from transformer_jax.text.sources import encode_sources
from transformer_jax.text.vocabulary import EOS, MergeDropout, Vocabulary

logger = logging.getLogger(__name__)

FORMAT = 3  # version of the cache format and of normalization; part of the name of an entry
ARRAYS = ("src_ids", "src_offsets", "tgt_ids", "tgt_offsets")
CHUNK_PAIRS = 20_000  # pairs encoded at a time: bounds the memory and keeps the threads busy
CHUNK_FILES = 500  # the same for recordings and pictures
CHECK_BYTES = 1 << 24
LIKELIEST = 8  # subwords that a teacher predicts at a position (Tan et al. 2019, section 3.3)


Side = tuple[np.ndarray, np.ndarray]  # ids or numbers [tokens, ...], and lengths [lines]
# (lines, the first one's number) -> what the files have that they name, float32 [length, features]
Reader = Callable[[Sequence[str], int], list[np.ndarray]]


class Segmentations(NamedTuple):
    """Random segmentations of each pair by BPE-dropout."""

    rate: float  # probability that a merge is skipped
    number: int  # segmentations of a pair
    seed: int

    def dropout(self, *entropy: int) -> MergeDropout:
        """The dropout of some lines, which these numbers identify."""
        (seed,) = np.random.SeedSequence([self.seed, *entropy]).generate_state(1)
        return MergeDropout(self.rate, int(seed))


class EncodedLinks(NamedTuple):
    """Links between the subwords of each pair: those of pair i are offsets[i] to offsets[i + 1]."""

    src: np.ndarray  # int32 [links], position in the source sentence, from 0
    tgt: np.ndarray  # int32 [links], position in the target sentence
    offsets: np.ndarray  # int64 [pairs + 1]


class Taught(NamedTuple):
    """What a teacher predicts at each target subword: its K likeliest subwords."""

    ids: Any  # uint16 or int32 [tokens, K]; in a batch int32 [R, L, K]
    probabilities: Any  # float16 [tokens, K], their sum is 1; in a batch float32 [R, L, K]


@dataclass(frozen=True, eq=False)
class EncodedPairs:
    """Sentence pairs as subword ids, each sentence ending in EOS.

    Source sentence i is src_ids[src_offsets[i] : src_offsets[i + 1]]; the target arrays have the
    same form. Recordings and pictures have numbers in place of ids, and no EOS (features.py).
    """

    src_ids: np.ndarray  # uint16 or int32 [src_tokens], or float16 [src_tokens, features]
    src_offsets: np.ndarray  # int64 [pairs + 1]
    tgt_ids: np.ndarray  # uint16 or int32 [tgt_tokens]
    tgt_offsets: np.ndarray  # int64 [pairs + 1]
    folder: Path | None = None  # folder from which the arrays are mapped; None: they are in memory
    links: EncodedLinks | None = None  # with data.alignments
    taught: Taught | None = None  # with train.teacher

    def __len__(self) -> int:
        return len(self.src_offsets) - 1

    def src(self, i: int) -> np.ndarray:
        """Source sentence i, EOS included: int32 [length], or float32 [length, features]."""
        return _sentence(self.src_ids, self.src_offsets, i)

    def tgt(self, i: int) -> np.ndarray:
        """Target sentence i, EOS included: int32 [length]."""
        return _sentence(self.tgt_ids, self.tgt_offsets, i)

    def src_lengths(self) -> np.ndarray:
        """Subwords of each source sentence, EOS included: int64 [pairs]."""
        return np.diff(self.src_offsets)

    def tgt_lengths(self) -> np.ndarray:
        """Subwords of each target sentence, EOS included: int64 [pairs]."""
        return np.diff(self.tgt_offsets)

    def swapped(self) -> "EncodedPairs":
        """The pairs of the other direction of translation, without links and teacher."""
        return EncodedPairs(self.tgt_ids, self.tgt_offsets, self.src_ids, self.src_offsets)


def encode_corpus(
    pairs: Sequence[tuple[str, str]],
    vocabulary: Vocabulary,
    cache_dir: str | Path | None,
    key: str,
    segmentations: Segmentations | None = None,
    sources: int = 1,
    read: Reader | None = None,
) -> EncodedPairs:
    """Encodes a split once; later calls, in any process, map the cached arrays.

    With segmentations, the result has the whole split `segmentations.number` times, each time split
    into other subwords.

    Args:
      pairs: (source, target) lines.
      vocabulary: its digest is part of the entry's name.
      cache_dir: the cache folder; None: `cache_folder()`.
      key: the fingerprint of the pairs' content.
      segmentations: random segmentations of each pair; None: the usual one.
      sources: source sentences of each pair, which are in its source line with tabs between them.
      read: reads the files that source lines name (features.py); None: they are text.

    Raises:
      DataError: the cache folder cannot be written, a source line has not that many sentences, or
        its file cannot be read.
    """
    root = Path(cache_dir) if cache_dir is not None else cache_folder()
    # The same files may be other pairs: two sides, or two texts of a language model.
    content = f"{FORMAT}\n{key}\n{vocabulary.digest}\n{sources} sources of {len(pairs)} pairs"
    if segmentations is not None:
        content += f"\n{tuple(segmentations)}"
    name = hashlib.sha256(content.encode()).hexdigest()[:32]
    path = root / f"{name}.json"
    entry = _read_entry(path)
    if _is_sound(entry):
        return _map_arrays(entry.folder)
    if entry is not None:
        logger.warning("%s is damaged; writing it again", path)
    try:
        root.mkdir(parents=True, exist_ok=True)
        chunks = _encoded_chunks(pairs, vocabulary, sources, segmentations, read)
        folder = _make_entry(path, chunks)
        if entry is not None and entry.folder != folder:
            shutil.rmtree(entry.folder, ignore_errors=True)
        return _map_arrays(folder)
    except OSError as error:
        raise DataError(
            f"{root}: the encoded corpus cannot be cached ({error.strerror}); "
            "set TRANSFORMER_JAX_CACHE to a folder with space that you may write to."
        ) from None


def _sentence(ids: np.ndarray, offsets: np.ndarray, i: int) -> np.ndarray:
    count = len(offsets) - 1
    if not -count <= i < count:
        raise IndexError(f"pair {i} of {count}")
    i %= count
    return np.asarray(ids[offsets[i] : offsets[i + 1]], np.int32 if ids.ndim == 1 else np.float32)


def _offsets(lengths: list[np.ndarray]) -> np.ndarray:
    return np.cumsum(np.concatenate([[0], *lengths]), dtype=np.int64)


def _encoded_chunks(
    pairs: Sequence[tuple[str, str]],
    vocabulary: Vocabulary,
    sources: int,
    segmentations: Segmentations | None,
    read: Reader | None,
) -> Iterator[tuple[Side, Side]]:
    """Yields both sides of one chunk of pairs after the other."""
    # The smallest type that fits the ids of both sides.
    dtype = np.dtype(np.uint16 if max(vocabulary.sizes) <= 1 << 16 else np.int32)
    size = CHUNK_PAIRS if read is None else CHUNK_FILES
    for turn in range(segmentations.number if segmentations else 1):
        for start in range(0, len(pairs), size):
            chunk = pairs[start : start + size]
            src, tgt = ([pair[side] for pair in chunk] for side in (0, 1))
            drawn = [segmentations and segmentations.dropout(turn, start, side) for side in (0, 1)]
            yield (
                _flat(encode_sources(vocabulary, src, sources, drawn[0]), dtype)
                if read is None
                else _joined(read(src, start)),
                _flat(encode_sources(vocabulary.target, tgt, 1, drawn[1]), dtype),
            )


def _joined(files: Sequence[np.ndarray]) -> Side:
    """The numbers of files as one array."""
    lengths = np.fromiter(map(len, files), np.int64, len(files))
    return np.concatenate(files, dtype=np.float16, casting="same_kind"), lengths


def _flat(encoded: Sequence[np.ndarray], dtype: np.dtype) -> Side:
    """The subwords of lines as one array, in which each line ends in EOS."""
    lengths = np.fromiter(map(len, encoded), np.int64, len(encoded)) + 1
    ids = np.full(lengths.sum(), EOS, dtype)
    is_piece = np.ones(len(ids), bool)
    is_piece[np.cumsum(lengths) - 1] = False
    ids[is_piece] = np.concatenate(encoded)
    return ids, lengths


def _make_entry(path: Path, chunks: Iterable[tuple[Side, Side]]) -> Path:
    """Encodes into a private folder and then publishes it; returns the entry's folder."""
    folder = Path(tempfile.mkdtemp(prefix=f"{path.stem}.", dir=path.parent))
    try:
        os.chmod(folder, 0o755)  # mkdtemp's 0o700 would lock out other users
        _write_arrays(folder, chunks)
        if _is_sound(earlier := _read_entry(path)):  # another process was faster
            shutil.rmtree(folder, ignore_errors=True)
            return earlier.folder
        files = {name: _measure(folder / f"{name}.npy") for name in ARRAYS}
        (folder / "entry.json").write_text(json.dumps({"folder": folder.name, "files": files}))
        os.replace(folder / "entry.json", path)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return folder


def _write_arrays(folder: Path, chunks: Iterable[tuple[Side, Side]]) -> None:
    """Writes the chunks' arrays, one after the other."""
    started = time.monotonic()
    lengths: tuple[list, list] = ([], [])
    like = [np.empty(0, np.uint16)] * 2  # what an empty split has
    with open(folder / "src_ids.npy", "wb") as src, open(folder / "tgt_ids.npy", "wb") as tgt:
        files = (src, tgt)
        for chunk in chunks:
            for side, (values, of_lines) in enumerate(chunk):
                if not lengths[side]:
                    like[side] = values[:0]
                    _write_npy_header(files[side], like[side], 0)
                files[side].write(values.tobytes())
                lengths[side].append(of_lines)
        offsets = (_offsets(lengths[0]), _offsets(lengths[1]))
        for side in (0, 1):
            _write_npy_header(files[side], like[side], int(offsets[side][-1]))
    np.save(folder / "src_offsets.npy", offsets[0])
    np.save(folder / "tgt_offsets.npy", offsets[1])
    tokens = int(offsets[0][-1] + offsets[1][-1])
    seconds = time.monotonic() - started
    pairs = len(offsets[0]) - 1
    logger.info("encoded %d pairs, %d subwords, in %.1f s", pairs, tokens, seconds)


def _write_npy_header(file: BinaryIO, like: np.ndarray, count: int) -> None:
    """Writes an .npy header; NumPy pads it, so the true count can later overwrite the first one."""
    file.seek(0)
    header = {"descr": np.lib.format.dtype_to_descr(like.dtype), "fortran_order": False}
    np.lib.format.write_array_header_1_0(file, header | {"shape": (count, *like.shape[1:])})


def _measure(path: Path) -> dict[str, int]:
    checksum = 0
    with open(path, "rb") as file:
        while block := file.read(CHECK_BYTES):
            checksum = zlib.crc32(block, checksum)
    return {"bytes": path.stat().st_size, "crc32": checksum}


class _Entry(NamedTuple):
    """The content of NAME.json."""

    folder: Path
    files: dict[str, dict[str, int]]  # from the array's name to the result of `_measure`


def _read_entry(path: Path) -> _Entry | None:
    """Reads an entry; None if there is none or it is malformed."""
    try:
        content = json.loads(path.read_text())
        folder = str(content["folder"])
        files = {name: content["files"][name] for name in ARRAYS}
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # The folder of a damaged entry is deleted later, so accept only a folder made for this entry.
    mine = folder.startswith(f"{path.stem}.") and Path(folder).name == folder
    return _Entry(path.parent / folder, files) if mine else None


def _is_sound(entry: _Entry | None) -> TypeGuard[_Entry]:
    """Whether each file has the size and the checksum that the entry states."""
    if entry is None:
        return False
    try:
        return all(
            _measure(entry.folder / f"{name}.npy") == sums for name, sums in entry.files.items()
        )
    except OSError:
        return False


def _map_arrays(folder: Path) -> EncodedPairs:
    try:
        src_ids, src_offsets, tgt_ids, tgt_offsets = (
            np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False) for name in ARRAYS
        )
    except FileNotFoundError:
        raise DataError(
            f"{folder} was removed from the cache while it was needed. Call the command again."
        ) from None
    return EncodedPairs(src_ids, src_offsets, tgt_ids, tgt_offsets, folder)
