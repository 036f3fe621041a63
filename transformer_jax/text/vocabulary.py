"""The vocabulary: one SentencePiece model for both sides, or two with tables of their pieces."""

import functools
import hashlib
import itertools
import logging
import os
import re
from collections.abc import Callable, Container, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import sentencepiece

from transformer_jax.errors import DataError
from transformer_jax.files import is_stream, write_atomically
from transformer_jax.text.bundle import MAGIC, Bundle, packed, unpacked

log = logging.getLogger(__name__)

PAD, EOS, BOS, UNK = 0, 1, 2, 3
LANGUAGE = re.compile(r"\s*(>>[^<\s]*<<)")  # a language code or tag, which may begin a source line
SPACE = "\u2581"  # SentencePiece's symbol for a space; in a text it is treated as a space


class Sizes(NamedTuple):
    """The numbers of pieces of the source's and the target's vocabulary."""

    source: int
    target: int


class MergeDropout(NamedTuple):
    """BPE-dropout of some lines (Provilkov et al. 2020): each merge is skipped at random."""

    rate: float  # probability that a merge is skipped
    seed: int


def both_sides(sizes: Sizes | int) -> Sizes:
    """The sizes of both sides; a number is the size of one vocabulary for both."""
    return Sizes(sizes, sizes) if isinstance(sizes, int) else sizes


class Vocabulary:
    """Converts lines to subword ids and back.

    It is one SentencePiece model. With byte fallback no character is unknown. Its control pieces
    after UNK are codes of languages and tags, such as >>de<<, that source lines may begin with.
    """

    def __init__(self, model: bytes, name: str = "vocabulary"):
        """Raises DataError, naming `name`, if the bytes are not a model with the expected ids."""
        self.model = model
        self._processor = _processor(model, name)
        own = self._processor
        found = (own.pad_id(), own.eos_id(), own.bos_id(), own.unk_id())
        has_bytes = own.is_byte(own.piece_to_id("<0x00>"))
        if found != (PAD, EOS, BOS, UNK) or not has_bytes:
            raise DataError(
                f"{name} has pad, eos, bos, unk = {found} and {'' if has_bytes else 'no '}byte "
                "fallback; train it with --pad_id=0 --eos_id=1 --bos_id=2 --unk_id=3 "
                "--byte_fallback."
            )

    @property
    def target(self) -> "Vocabulary":
        """The vocabulary that encodes target lines and decodes translations; this one."""
        return self

    @property
    def size(self) -> int:
        """The number of pieces, control pieces and bytes included."""
        return self._processor.vocab_size()

    @property
    def sizes(self) -> Sizes:
        """The numbers of pieces of both sides."""
        return Sizes(self.size, self.target.size)

    @property
    def is_shared(self) -> bool:
        """Whether an id is the same piece on both sides."""
        return True

    @property
    def normalizes_punctuation(self) -> bool:
        """Whether Moses' rules rewrite punctuation, so that words change with their neighbors."""
        return False

    @property
    def digest(self) -> str:
        """SHA-256 of the model's bytes, in hex."""
        return hashlib.sha256(self.model).hexdigest()

    def encode(self, line: str) -> list[int]:
        """Subword ids of a line, without EOS; [] for a blank one."""
        return self.encode_lines([line])[0].tolist()

    @property
    def is_bpe(self) -> bool:
        """Whether subwords come from merges, which MergeDropout can skip."""
        try:
            self._processor.nbest_encode_as_ids("a", nbest_size=1)
        except RuntimeError:  # only unigram models list n-best segmentations
            return True
        return False

    def encode_lines(
        self, lines: Sequence[str], dropout: MergeDropout | None = None
    ) -> list[np.ndarray]:
        """Subword ids of each line, without EOS, as int32 [length] arrays.

        Without dropout, all cores are used. With dropout the result depends on the lines and
        their order, and on the seed, alone.
        """
        if not self.reads_codes:
            return self._ids_of_texts([self._cleaned(line) for line in lines], dropout)
        codes, rests = zip(*map(self._split, lines), strict=True) if lines else ((), ())
        texts = [self._cleaned(rest) for rest in rests]
        return [
            np.array([*code, *ids], np.int32) if code and len(ids) else ids
            for code, ids in zip(codes, self._ids_of_texts(texts, dropout), strict=True)
        ]

    @functools.cached_property
    def codes(self) -> dict[str, int]:
        """The codes that source lines may begin with, and their ids."""
        ids = itertools.takewhile(self._processor.is_control, range(UNK + 1, self.size))
        return {self.pieces([i])[0]: i for i in ids}

    @property
    def reads_codes(self) -> bool:
        """Whether a code that begins a source line is one subword."""
        return bool(self.codes)

    @property
    def reads_unknown_codes(self) -> bool:
        """Whether a code that is not in the vocabulary is one unknown subword, and not text."""
        return False

    def check_codes(self, codes: Iterable[str]) -> None:
        """Raises DataError if one of the codes is not in the vocabulary."""
        if missing := [one for one in codes if one not in self.codes]:
            known = ", ".join(sorted(one.strip("<>") for one in self.codes)) or "none"
            raise DataError(
                f"The vocabulary has no subword {missing[0]}, so a model with it cannot be told of "
                f"{missing[0].strip('<>')}. Languages and tags that it knows: {known}."
            )

    def _split(self, line: str) -> tuple[list[int], str]:
        """The ids of the known codes that a line begins with, and the rest of the line."""
        found, rest = split_codes(line, self.codes)
        return [self.codes[one] for one in found], rest

    def _ids_of_texts(
        self, texts: Sequence[bytes], dropout: MergeDropout | None
    ) -> list[np.ndarray]:
        return self._processor.encode(texts, return_type="numpy", **_options(dropout))

    def decode(self, ids: Iterable[int]) -> str:
        """The text of subword ids; control ids (PAD, EOS, BOS, UNK) are skipped.

        Raises:
          IndexError: an id is not below `size`.
        """
        return self._processor.decode([int(i) for i in ids if i > UNK])

    def ids_of(self, pieces: Iterable[str]) -> dict[str, int | None]:
        """The id of each piece; None if the vocabulary has no such piece."""
        found = {piece: self._processor.piece_to_id(piece) for piece in pieces}
        return {piece: i if self.pieces([i]) == [piece] else None for piece, i in found.items()}

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The subwords as SentencePiece writes them: U+2581 for a space, "</s>" for EOS."""
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def normalize(self, line: str) -> str:
        """The line as SentencePiece normalizes it, which is also `decode(encode(line))`."""
        normalized = self._processor.normalize(self._cleaned(line)).decode()
        return normalized.replace(SPACE, " ").removeprefix(" ")

    def _cleaned(self, line: str) -> bytes:
        return as_utf8(line)

    def save(self, path: str | Path) -> None:
        """Writes the .model file atomically."""
        write_atomically(Path(path), self.model)


class TableVocabulary(Vocabulary):
    """Two SentencePiece models, and tables of their pieces by id (text/bundle.py).

    This object is the source's vocabulary; `target` is the target's. A Marian model has one table
    for both sides or two; vocabulary.separate makes two. A piece that is not in the table is UNK. A
    source line may begin with language codes such as >>deu<<, which are one piece each.
    If the bundle names languages, punctuation is normalized first, as in the scripts with which
    OPUS-MT's models were trained.
    """

    def __init__(self, model: bytes, name: str = "vocabulary", is_target: bool = False):
        """Raises DataError, naming `name`, if the bytes are not a bundle."""
        self.model, self.is_target = model, is_target
        self.bundle = unpacked(model, name)
        self._table = self.bundle.tables[is_target]
        if len(self._table) <= UNK:
            raise DataError(f"{name} has {len(self._table)} pieces; 4 are control pieces.")
        models = self.bundle.source, self.bundle.target
        self._processor = [_processor(content, name) for content in models][is_target]
        self._ids = {piece: i for i, piece in reversed(list(enumerate(self._table)))}
        self._unknown_codes: set[str] = set()  # that a warning has named
        self._normalize = _punctuation_normalizer(self.bundle.languages[is_target])

    @functools.cached_property
    def target(self) -> Vocabulary:
        """The target's table and SentencePiece model."""
        return self if self.is_target else TableVocabulary(self.model, is_target=True)

    @property
    def size(self) -> int:
        """The number of pieces in this side's table."""
        return len(self._table)

    @property
    def normalizes_punctuation(self) -> bool:
        """Whether Moses' rules rewrite punctuation, which removes spaces before it."""
        return bool(self.bundle.languages[self.is_target])

    @functools.cached_property
    def reads_codes(self) -> bool:
        """Whether a language code at the start of a source line is one piece.

        It is in models that others trained, even if the table lacks this code. Here a vocabulary
        learns codes as ordinary text, unless the config names them (data.directions).
        """
        return not self.is_target and (self.normalizes_punctuation or bool(self.codes))

    @property
    def is_shared(self) -> bool:
        """Whether both sides have one table."""
        return self.bundle.target_pieces is None

    @functools.cached_property
    def codes(self) -> dict[str, int]:
        """The codes in the table, and their ids; of the target's side none."""
        own = {} if self.is_target else self._ids
        return {piece: i for piece, i in own.items() if LANGUAGE.fullmatch(piece)}

    @property
    def reads_unknown_codes(self) -> bool:
        """It is so in models that others trained."""
        return self.reads_codes

    def _split(self, line: str) -> tuple[list[int], str]:
        """As in `Vocabulary`; a first code that is not in the table is unknown, with a warning."""
        ids, rest = super()._split(line)
        if not ids and (found := LANGUAGE.match(line)):
            if found[1] not in self._unknown_codes:
                self._unknown_codes.add(found[1])
                told = "the vocabulary has no %s, so the model is not told this language"
                log.warning(told, found[1])
            return [UNK], line[found.end() :]
        return ids, rest

    def _ids_of_texts(
        self, texts: Sequence[bytes], dropout: MergeDropout | None
    ) -> list[np.ndarray]:
        encoded = self._processor.encode(texts, out_type=str, **_options(dropout))
        return [
            np.array([i for piece in pieces for i in self._ids_of(piece)], np.int32)
            for pieces in encoded
        ]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of this side's subword ids; control ids (PAD, EOS, BOS, UNK) are skipped.

        A table for both sides has pieces of the source that the target's SentencePiece model does
        not have. It copies them, with U+2581 for a space.

        Raises:
          IndexError: an id is not below `size`.
        """
        text: str = self._processor.decode_pieces(self.pieces(i for i in ids if i > UNK))
        return text.replace(SPACE, " ").strip() if SPACE in text else text

    def ids_of(self, pieces: Iterable[str]) -> dict[str, int | None]:
        """The id of each piece; None if the table has no such piece."""
        return {piece: self._ids.get(piece) for piece in pieces}

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """The subwords as they are in the table."""
        return [self._table[int(i)] for i in ids]

    def _cleaned(self, line: str) -> bytes:
        """The line after the Moses normalizer of punctuation, if the bundle names languages."""
        return as_utf8(self._normalize(line) if line else line)

    def _ids_of(self, piece: str) -> list[int]:
        """The id of a piece. Several unknown words are one piece, and UNK for each word."""
        known = self._ids.get(piece)
        return [UNK] * max(1, piece.count(SPACE)) if known is None else [known]


def split_codes(line: str, known: Container[str]) -> tuple[list[str], str]:
    """The known codes that a source line begins with, and the rest of the line."""
    codes = list[str]()
    while (found := LANGUAGE.match(line)) and found[1] in known:
        codes.append(found[1])
        line = line[found.end() :].lstrip(" ")
    return codes, line


def _punctuation_normalizer(language: str) -> Callable[[str], str]:
    if not language:
        return str
    from sacremoses import MosesPunctNormalizer  # takes 0.1 s, and few vocabularies need it

    return MosesPunctNormalizer(language, pre_replace_unicode_punct=True).normalize


def made_of(content: bytes, name: str) -> Vocabulary:
    """The vocabulary in a file's bytes. Raises DataError, naming `name`, if there is none."""
    kind = TableVocabulary if content.startswith(MAGIC) else Vocabulary
    return kind(content, name)


def of_bundle(bundle: Bundle, name: str) -> Vocabulary:
    """A bundle's vocabulary; if it only holds one SentencePiece model, that model alone."""
    if (
        bundle.source == bundle.target
        and bundle.target_pieces is None
        and not any(bundle.languages)
    ):
        try:
            own = Vocabulary(bundle.source, name)
        except DataError:
            return TableVocabulary(packed(bundle), name)
        if own.pieces(range(own.size)) == list(bundle.pieces):
            return own
    return TableVocabulary(packed(bundle), name)


def load_vocabulary(path: str | Path) -> Vocabulary:
    """The vocabulary of a .model file. Raises DataError if it is missing or not a model."""
    if is_stream(Path(path)):
        raise DataError(f"{path} is a pipe or a device; name a SentencePiece .model file.")
    try:
        model = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; name a SentencePiece .model file.") from None
    return made_of(model, str(path))


def _options(dropout: MergeDropout | None) -> dict[str, Any]:
    """SentencePiece's options for encoding lines; sets the seed of its draws."""
    if dropout is None:
        return {"num_threads": len(os.sched_getaffinity(0))}
    sentencepiece.set_random_generator_seed(dropout.seed)
    # With several threads, each has draws of its own, and their number would matter.
    return {"enable_sampling": True, "alpha": dropout.rate, "nbest_size": -1, "num_threads": 1}


def as_utf8(line: str) -> bytes:
    """The line in UTF-8, with spaces for U+2581 and "?" for lone surrogates; white space is b""."""
    if not line.strip():  # SentencePiece does not know all white space, such as U+0085
        return b""
    return line.replace(SPACE, " ").encode("utf-8", "replace")


def _processor(model: bytes, name: str) -> Any:
    # With empty bytes the library fails only later, and writes to standard error.
    if model:
        try:
            return sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, OSError):
            pass
    raise DataError(f"{name} is not a SentencePiece model; name a .model file (not .vocab).")


def reads_code(vocabulary: Vocabulary, code: str) -> bool:
    """Whether a line may begin with this code: one that is known, or any if none need be known."""
    return vocabulary.reads_unknown_codes or not vocabulary.codes or code in vocabulary.codes
