"""The keys of search and sampling, which may all change between two calls of `train`."""

import dataclasses
import functools

from transformer_jax.config import keys
from transformer_jax.config.keys import WIDEST

key = functools.partial(keys.key, mutable=True)

# What reads some of the keys.
BEAM = ("decode.method=beam",)
DRAWN = ("decode.method=sample", "decode.method=mbr")
PARALLEL = ("mask_predict", "ctc")  # ways of model.parallel, which names the same
FILLED = ("decode.method=mask_predict",)


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """Search (section 6.1); beam_size 1 is greedy search."""

    method: str = key(
        "beam",
        "beam: beam search; sample: draws translations from the model; mbr: draws decode.samples "
        "and takes the one most like the others (minimum Bayes risk); mask_predict and ctc: as a "
        "model with that model.parallel writes, all subwords at once",
        choices_of="transformer_jax.decoding.generators:GENERATORS",
    )
    beam_size: int = key(
        4,
        "hypotheses per sentence",
        at_least=1,
        at_most=1_000,
        hint="1 is greedy search.",
        read_with=BEAM,
    )
    groups: int = key(
        1,
        "groups of beams; a group avoids the subwords of the groups before it (diverse beam "
        "search); decode.beam_size is a multiple of it",
        read_with=BEAM,
        at_least=1,
    )
    diversity: float = key(
        0.5,
        "with several groups: nats that a subword loses for each hypothesis of an earlier group "
        "that has just chosen it (Vijayakumar et al. 2018)",
        read_with=("decode.groups",),
        at_least=0,
        below=1_000,
    )
    iterations: int = key(
        10,
        "mask_predict: how often masked subwords are filled in; after each time, fewer of the "
        "least sure ones are masked again",
        read_with=FILLED,
        at_least=1,
        at_most=1_000,
    )
    lengths: int = key(
        5,
        "mask_predict: the likeliest lengths that are tried; the translation with the highest mean "
        "log probability is taken",
        read_with=FILLED,
        at_least=1,
        at_most=100,
    )
    penalty: str = key(
        "gnmt",
        "what divides a log probability; gnmt: ((5 + length) / 6)^alpha (Wu et al. 2016, equation "
        "14); power: length^alpha",
        choices_of="transformer_jax.decoding.penalties:PENALTIES",
        read_with=BEAM + DRAWN,
    )
    length_penalty: float = key(
        0.6,
        "alpha of decode.penalty",
        at_least=0,
        below=10,
        hint="The paper uses 0.6; 0 turns it off.",
        read_with=BEAM + DRAWN,
    )
    coverage_penalty: float = key(
        0.0, "beta of the coverage penalty (Wu et al. 2016, equation 14); 0: none", at_least=0
    )
    to: str | None = key(
        None,
        "target language of a model that knows several: source lines without its code get it, "
        "such as >>de<<; None: each line begins with one",
    )
    banned_subwords: tuple[str, ...] = key(
        (),
        "pieces of the vocabulary that are never generated, such as ('<pad>', '<unk>'); their "
        "probability is not given to others",
    )
    min_length: int = key(
        0,
        "no translation ends with fewer subwords, EOS not counted, unless its limit is reached",
        at_least=0,
        at_most=WIDEST,
        read_with=BEAM + DRAWN,
    )
    no_repeat: int = key(
        0,
        "no sequence of this many subwords comes twice in a translation; 0: any may",
        at_least=0,
        at_most=1_000,
        read_with=BEAM + DRAWN,
    )
    max_extra_length: int = key(
        50,
        "a translation has at most source length + this many subwords",
        at_least=0,
        at_most=WIDEST,
        read_with=BEAM + DRAWN + FILLED,
    )
    max_length: int = key(
        512, "subwords of a source, EOS included; longer sources are cut", at_least=2
    )
    tokens_per_batch: int = key(
        4_096,
        "source subwords, padding included, that are searched together",
        at_least=1,
        at_most=WIDEST,
    )
    wait_k: int | None = key(
        None,
        "k of a model with model.wait_k, whatever k it was trained for; None: model.wait_k",
        read_with=("model.wait_k",),
        at_least=1,
        at_most=WIDEST,
    )
    dtype: str | None = key(
        None,
        "type of the operands of matrix products in search; None: model.dtype",
        choices=("float32", "bfloat16"),
    )
    weights: str | None = key(
        None,
        "type in which search keeps the matrices of products; bfloat16: products take operands of "
        "this type, and all else uses decode.dtype; None: decode.dtype. int8 gains nothing on CPUs "
        "(docs/speed.md), and `quantize` keeps it on disk",
        choices=("bfloat16",),
        read_with=BEAM + DRAWN,
    )
    temperature: float = key(
        1.0,
        "of sampling: logits are divided by it; 0: the likeliest subword",
        read_with=DRAWN,
        at_least=0,
        below=1_000,
    )
    top_k: int | None = key(
        None,
        "sampling draws from the k likeliest subwords (Fan et al. 2018); None: from all",
        read_with=DRAWN,
        at_least=1,
    )
    top_p: float | None = key(
        None,
        "sampling draws from the likeliest subwords whose probabilities sum to this (Holtzman et "
        "al. 2020); None: from all",
        read_with=DRAWN,
        above=0,
        below=1,
    )
    seed: int = key(0, "of sampling", at_least=0, at_most=2**32 - 1, read_with=DRAWN)
    samples: int = key(
        64,
        "translations that mbr draws and chooses from",
        at_least=1,
        at_most=1_000,
        read_with=("decode.method=mbr",),
    )
    utility: str = key(
        "chrf",
        "how mbr compares a sample with the others",
        choices_of="transformer_jax.decoding.generators:UTILITIES",
        read_with=("decode.method=mbr",),
    )
