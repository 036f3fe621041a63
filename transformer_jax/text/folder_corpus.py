"""What corpora in a folder of files share: the files of a split, and a validation split cut off."""

import hashlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np

from transformer_jax.config.data import DataConfig
from transformer_jax.config.texts import SLICE, slice_of
from transformer_jax.errors import DataError
from transformer_jax.text.by_position import Joined, Selected, sample_indices
from transformer_jax.text.sources import in_one_line

# If there are no validation files: the share of the training pairs that is cut off for validation,
# and the largest number of such pairs.
VALID_SHARE = 0.05
VALID_MOST = 2_000
NO_ALIGNMENTS = (
    "data.alignments=True with data.source={!r}: links between words are read from text files "
    "(data.source='files', STEM.align) or come with the built-in corpus (data.source='grammar')."
)

T = TypeVar("T")
Links = tuple[tuple[int, int], ...]  # (source word, target word), each once, sorted


class Pair(NamedTuple):
    """A sentence and its translation, each without its line end."""

    src: str  # several source sentences with tabs between them (sources.py)
    tgt: str

    @classmethod
    def of(cls, texts: Sequence[str]) -> "Pair":
        """The pair of the texts in each source language and, last, in the target language."""
        return cls(in_one_line(texts[:-1]), texts[-1])


class AlignedWords(NamedTuple):
    """The words of a sentence pair, and the links between them."""

    src: Sequence[str]
    tgt: Sequence[str]
    links: Links


class FolderCorpus:
    """Files in one folder, which data.train, data.valid and data.test name by their stems.

    `train[:5000]` is the first 5,000 pairs of the stem `train`, `train[5000:]` the others.

    If data.valid is empty, the validation split is that of the stem `valid`, or, without such
    files, a random sample of the training pairs: 5 % of them, at least one and at most 2,000.
    The sampled positions depend on the number of pairs and data.seed only. The training split is
    the other pairs.
    """

    FILES: str  # what the files are called in messages
    VALID: str  # the name of a validation file, to be formatted with a language

    def __init__(self, data: DataConfig):
        if data.path is None:
            raise DataError(
                f"data.path is not set: with data.source={data.source!r} it names the folder of "
                f"the {self.FILES} (--config.data.path=FOLDER)."
            )
        self.data = data
        self.folder = Path(os.path.expanduser(data.path))
        if not self.folder.is_dir():
            raise DataError(
                f"data.path={data.path!r} is not a folder. Give the folder of the {self.FILES} "
                "with --config.data.path=FOLDER (for `evaluate`: --src=FILE --ref=FILE)."
            )
        self.cuts_valid = not data.valid and not self.has_valid()

    @abstractmethod
    def has_valid(self) -> bool:
        """Whether there is a file of the stem `valid`."""

    @abstractmethod
    def parts(self, stem: str) -> list[Sequence[Pair]]:
        """The pairs of each file of a stem, in order."""

    def aligned_parts(self, stem: str) -> list[Sequence[AlignedWords]]:
        """The words and links of `parts`. Raises DataError if there are none for such files."""
        raise DataError(NO_ALIGNMENTS.format(self.data.source))

    @abstractmethod
    def digests(self, stem: str) -> Iterator[bytes]:
        """Digests of the content of a stem's files."""

    def text_digests(self, stem: str) -> Iterator[bytes]:
        """Digests of a stem's text, without those of files that say where its documents begin."""
        return self.digests(stem)

    def aligned_digests(self, stem: str) -> Iterator[bytes]:
        """Digests of the files from which `aligned_parts` reads links."""
        return iter(())

    def split(self, name: str) -> Sequence[Pair]:
        """The pairs of the split's files, in the order of their stems."""
        return self._split(name, self.parts)

    def alignments(self, name: str) -> Sequence[AlignedWords]:
        """Words and links of each pair of `split`."""
        return self._split(name, self.aligned_parts)

    def _split(self, name: str, of_stem: Callable[[str], list[Sequence[T]]]) -> Sequence[T]:
        if name not in ("train", "valid") or not self.cuts_valid:
            return _of_stems(self._stems(name), of_stem)
        pairs = _of_stems(self.data.train, of_stem)
        if len(pairs) < 2:
            raise DataError(
                f"the training text in {self.folder} has one pair, too few to cut off a validation "
                f"split. Add pairs, or validation files: {', '.join(self._valid_files())}."
            )
        count = max(1, min(VALID_MOST, int(VALID_SHARE * len(pairs))))
        cut, rest = sample_indices(len(pairs), count, self.data.seed)
        return Selected(pairs, cut if name == "valid" else rest)

    def _stems(self, name: str) -> tuple[str, ...]:
        return parts_of(self.data, "train" if self.cuts_valid and name == "valid" else name)

    def fingerprint(self, name: str) -> str:
        """SHA-256 of the digests of the files' content; file names do not count."""
        digest = hashlib.sha256()
        for stem in self._stems(name):
            found = SLICE.fullmatch(stem)
            whole = found[1] if found else stem
            for one in self.digests(whole):
                digest.update(one)
            if self.data.alignments and name == "train":
                for one in self.aligned_digests(whole):
                    digest.update(one)
            if found:
                digest.update(f"[{found[2]}:{found[3]}]".encode())
        if self.cuts_valid and name in ("train", "valid"):
            digest.update(f"{name}, cut with seed {self.data.seed}".encode())
        return digest.hexdigest()

    def describe(self) -> str:
        """The folder, the direction of translation, and where validation pairs come from."""
        cut = f", no {self._valid_files()[0]}: validation pairs cut off the training text"
        about = f"{self.FILES} in {self.folder}, {self.data.direction}"
        return f"{about}{cut if self.cuts_valid else ''}"

    def _valid_files(self) -> list[str]:
        """The names of the validation files."""
        return list(dict.fromkeys(map(self.VALID.format, self.data.languages)))


def _of_stems(stems: Sequence[str], of_stem: Callable[[str], list[Sequence[T]]]) -> Sequence[T]:
    parts = [part for stem in stems for part in _of_slice(stem, of_stem)]
    return parts[0] if len(parts) == 1 else Joined(parts)


def _of_slice(stem: str, of_stem: Callable[[str], list[Sequence[T]]]) -> list[Sequence[T]]:
    """The parts of a stem, or of a slice of it."""
    whole, first, end = slice_of(stem)
    parts = of_stem(whole)
    if whole == stem:
        return parts
    pairs = parts[0] if len(parts) == 1 else Joined(parts)
    last = int(min(end, len(pairs)))
    if first >= last:
        raise DataError(f"{stem} has no pairs: {whole} has {len(pairs)}.")
    return [Selected(pairs, np.arange(first, last))]


def parts_of(data: DataConfig, name: str) -> tuple[str, ...]:
    """The file stems or TFDS splits that make up a split. Raises DataError if there are none."""
    configured = {"train": data.train, "valid": data.valid or ("valid",), "test": data.test}
    parts = configured.get(name, (name,))
    if not parts:
        raise DataError(f"data.{name} is empty: name at least one file stem or TFDS split.")
    return parts
