"""The keys of the vocabulary."""

import dataclasses

from transformer_jax.config.keys import key

BYTE_PIECES = "The 256 bytes and 4 control pieces count."
NORMALIZATIONS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")  # SentencePiece's
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
