"""The keys of search and sampling."""

import dataclasses

from transformer_jax.config.keys import key

PAPER_PENALTY = "The paper uses 0.6; 0 turns it off."
WIDEST = 1_000_000
# What reads some of the keys.
BEAM = ("decode.method=beam",)
DRAWN = ("decode.method=sample", "decode.method=mbr")
UTILITIES = "transformer_jax.decoding.generators:UTILITIES"


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """Search (section 6.1); beam_size 1 is greedy search."""

    method: str = key(
        "beam",
        "beam: beam search; sample: draws translations from the model; mbr: draws decode.samples "
        "and takes the one most like the others (minimum Bayes risk)",
        mutable=True,
        choices_of="transformer_jax.decoding.generators:GENERATORS",
    )
    beam_size: int = key(
        4,
        "hypotheses per sentence",
        mutable=True,
        at_least=1,
        at_most=1_000,
        hint="1 is greedy search.",
        read_with=BEAM,
    )
    groups: int = key(
        1,
        "groups of beams; a group avoids the subwords of the groups before it (diverse beam "
        "search); decode.beam_size is a multiple of it",
        mutable=True,
        read_with=BEAM,
        at_least=1,
    )
    diversity: float = key(
        0.5,
        "with several groups: nats that a subword loses for each hypothesis of an earlier group "
        "that has just chosen it (Vijayakumar et al. 2018)",
        mutable=True,
        read_with=("decode.groups",),
        at_least=0,
        below=1_000,
    )
    penalty: str = key(
        "gnmt",
        "what divides a log probability; gnmt: ((5 + length) / 6)^alpha (Wu et al. 2016, equation "
        "14); power: length^alpha",
        mutable=True,
        choices_of="transformer_jax.decoding.penalties:PENALTIES",
    )
    length_penalty: float = key(
        0.6, "alpha of decode.penalty", mutable=True, at_least=0, below=10, hint=PAPER_PENALTY
    )
    coverage_penalty: float = key(
        0.0,
        "beta of the coverage penalty (Wu et al. 2016, equation 14); 0: none",
        mutable=True,
        at_least=0,
    )
    banned_subwords: tuple[str, ...] = key(
        (),
        "pieces of the vocabulary that are never generated, such as ('<pad>', '<unk>'); their "
        "probability is not given to others",
        mutable=True,
    )
    min_length: int = key(
        0,
        "no translation ends with fewer subwords, EOS not counted, unless its limit is reached",
        mutable=True,
        at_least=0,
        at_most=WIDEST,
    )
    no_repeat: int = key(
        0,
        "no sequence of this many subwords comes twice in a translation; 0: any may",
        mutable=True,
        at_least=0,
        at_most=1_000,
    )
    max_extra_length: int = key(
        50,
        "a translation has at most source length + this many subwords",
        mutable=True,
        at_least=0,
        at_most=WIDEST,
    )
    max_length: int = key(
        512,
        "subwords of a source, EOS included; longer sources are cut",
        mutable=True,
        at_least=2,
    )
    tokens_per_batch: int = key(
        4_096,
        "source subwords, padding included, that are searched together",
        mutable=True,
        at_least=1,
        at_most=WIDEST,
    )
    wait_k: int | None = key(
        None,
        "k of a model with model.wait_k, whatever k it was trained for; None: model.wait_k",
        mutable=True,
        read_with=("model.wait_k",),
        at_least=1,
        at_most=WIDEST,
    )
    dtype: str | None = key(
        None,
        "type of the operands of matrix products in search; None: model.dtype",
        mutable=True,
        choices=("float32", "bfloat16"),
    )
    weights: str | None = key(
        None,
        "type in which search keeps the matrices of products; bfloat16: products take operands of "
        "this type, and all else uses decode.dtype (docs/speed.md); None: decode.dtype",
        mutable=True,
        choices=("bfloat16",),
    )
    temperature: float = key(
        1.0,
        "of sampling: logits are divided by it; 0: the likeliest subword",
        mutable=True,
        read_with=DRAWN,
        at_least=0,
        below=1_000,
    )
    top_k: int | None = key(
        None,
        "sampling draws from the k likeliest subwords (Fan et al. 2018); None: from all",
        mutable=True,
        read_with=DRAWN,
        at_least=1,
    )
    top_p: float | None = key(
        None,
        "sampling draws from the likeliest subwords whose probabilities sum to this (Holtzman et "
        "al. 2020); None: from all",
        mutable=True,
        read_with=DRAWN,
        above=0,
        below=1,
    )
    seed: int = key(0, "of sampling", mutable=True, at_least=0, at_most=2**32 - 1, read_with=DRAWN)
    samples: int = key(
        64,
        "translations that mbr draws and chooses from",
        mutable=True,
        at_least=1,
        at_most=1_000,
        read_with=("decode.method=mbr",),
    )
    utility: str = key(
        "chrf",
        "how mbr compares a sample with the others",
        mutable=True,
        choices_of=UTILITIES,
        read_with=("decode.method=mbr",),
    )
