"""The keys of the corpus and of its vocabulary."""

import dataclasses
import itertools
import math
import re

from transformer_jax.config.keys import key

BYTE_PIECES = "The 256 bytes and 4 control pieces count."
NORMALIZATIONS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")  # SentencePiece's
# What reads some of the keys.
FOLDERS = ("data.source=files", "data.source=parquet", "data.source=tfds")
BUILT_IN = ("data.source=grammar",)
SLICE = re.compile(r"(.+)\[(\d*):(\d*)\]")  # some of a stem's pairs, as in TFDS: train[:5000]


def slice_of(stem: str) -> tuple[str, int, float]:
    """A stem without its slice, the first pair of the slice, and the one after its last."""
    found = SLICE.fullmatch(stem)
    if found is None:
        return stem, 0, math.inf
    return found[1], int(found[2] or 0), float(found[3]) if found[3] else math.inf


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where the sentence pairs come from."""

    source: str = key(
        "files",
        "text files, Parquet files with a column translation, TensorFlow Datasets, or the built-in "
        "corpus (grammar)",
        choices_of="transformer_jax.text.corpora:SOURCES",
    )
    path: str | None = key(
        None, "folder of the files, or of the TFDS data sets", mutable=True, read_with=FOLDERS
    )
    name: str | None = key(
        None, "TFDS builder, such as wmt14_translate/de-en", read_with=("data.source=tfds",)
    )
    src: str = key(
        "en",
        "source language: the text file's suffix, or its name in Parquet or TFDS; several, such as "
        "de,fr: a source sentence in each, which lines of text have with tabs between them "
        "(model.sources); empty: none, for a language model (model.encoder=none)",
    )
    tgt: str = key("de", "target language: the text file's suffix, or its name in Parquet or TFDS")
    train: tuple[str, ...] = key(
        ("train",),
        "training text: file stems (STEM.en or STEM.en.gz; STEM.parquet, STEM-*-of-*.parquet, also "
        "patterns), or TFDS split names; STEM[:5000] is the first 5,000 pairs",
        read_with=FOLDERS,
    )
    valid: tuple[str, ...] = key(
        (),
        "validation text, as in data.train; empty: valid.*, or, without such files, min(2000, 5 %) "
        "of the training pairs, which are then not trained on; TFDS: the split valid",
        mutable=True,
        read_with=FOLDERS,
    )
    test: tuple[str, ...] = key(
        ("test",),
        "test text, as in data.train; `evaluate` scores each part alone, and all together",
        mutable=True,
        read_with=FOLDERS,
    )
    pairs: int = key(
        20_000,
        "training pairs of the built-in corpus, which has 60,000",
        at_least=1,
        at_most=10_000_000,
        read_with=BUILT_IN,
    )
    invented_names: int = key(
        0,
        "of the built-in corpus's sentences with names, the percentage that get invented names, "
        "which differ between training, validation and test",
        at_least=0,
        at_most=100,
        read_with=BUILT_IN,
    )
    alignments: bool = key(
        False,
        "training reads links between words: STEM.align beside the text files, a line i-j i-j ... "
        "for each pair (source and target word, from 0), or those of the built-in corpus",
        read_with=("train.alignment_weight", "train.avoidance_weight"),
    )
    aligned_pairs: int | None = key(
        None,
        "only this many training pairs, the first, keep their links; None: all",
        at_least=1,
        read_with=("data.alignments",),
    )
    seed: int = key(
        0,
        "of a validation split that is cut off (data.valid), and of the lines that train the "
        "vocabulary, if not all do; runs with another `seed` share both, as an ensemble needs",
        at_least=0,
        at_most=2**32 - 1,  # SentencePiece's largest
    )
    max_length: int = key(
        128,
        "subwords per side, EOS included; training skips, and counts, pairs that are longer",
        at_least=2,
    )

    @property
    def sources(self) -> tuple[str, ...]:
        """The source languages, usually one; none for a language model."""
        return tuple(self.src.split(",")) if self.src else ()

    @property
    def languages(self) -> tuple[str, ...]:
        """The source languages, and then the target language."""
        return *self.sources, self.tgt

    @property
    def direction(self) -> str:
        """The languages in one word, for messages."""
        return f"{self.src}→{self.tgt}" if self.src else self.tgt

    def train_pairs_in(self, stems: tuple[str, ...]) -> tuple[str, str] | None:
        """The first stem of `train` and of `stems` that share pairs; None: there are none."""
        for pair in itertools.product(self.train, stems):
            (one, first, last), (other, start, end) = map(slice_of, pair)
            if one == other and max(first, start) < min(last, end):
                return pair
        return None


OF_TRAINING = {"vocabulary.path": "the file is a vocabulary that was trained"}


@dataclasses.dataclass(frozen=True)
class VocabularyConfig:
    """One SentencePiece model, shared by source and target, or one each; with byte fallback."""

    size: int = key(
        37_000, "subwords, with bytes and control pieces", at_least=261, hint=BYTE_PIECES
    )
    separate: bool = key(
        False, "a vocabulary of `size` subwords for each side; needs model.tie_embeddings=False"
    )
    kind: str = key(
        "bpe", "SentencePiece's algorithm", choices=("bpe", "unigram"), excludes=OF_TRAINING
    )
    dropout: float = key(
        0.0,
        "BPE-dropout (Provilkov et al. 2020): the probability that a merge is skipped where "
        "training text is split into subwords; there it is 0.1",
        at_least=0,
        below=1,
        excludes={"data.alignments": "links are those of one segmentation"},
    )
    segmentations: int = key(
        16,
        "with vocabulary.dropout: random segmentations of each training pair; training sees all "
        "of them before it sees one again, and the encoded corpus is as many times as large",
        at_least=1,
        at_most=1_000,
        read_with=("vocabulary.dropout",),
    )
    normalization: str = key(
        "nmt_nfkc",
        "SentencePiece's normalization of text",
        choices=NORMALIZATIONS,
        excludes=OF_TRAINING,
    )
    max_lines: int = key(
        5_000_000,
        "size of the random sample of lines that trains the vocabulary",
        at_least=1,
        excludes=OF_TRAINING,
    )
    path: str | None = key(
        None, "an existing .model file to use; None: train one on the training text", mutable=True
    )
