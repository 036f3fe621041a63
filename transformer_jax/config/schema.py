"""The config's schema: frozen dataclasses that hold every key, its default, range and meaning.

A config file is a diff against these defaults. A key is immutable unless it says `mutable=True`: a
later `train` on the same folder that contradicts an immutable key is refused.
"""

import dataclasses
from typing import Any

from transformer_jax.config.keys import Key, key, keys_of

PAPER_STEPS = "The paper uses 100000 (base) and 300000 (big)."
PAPER_DROPOUT = "The paper uses 0.1 (base) and 0.3 (big)."
PAPER_SMOOTHING = "The paper uses 0.1; 0 turns it off."
PAPER_PENALTY = "The paper uses 0.6; 0 turns it off."
DEFAULT_PEAK = "None gives the paper's (d_model * warmup_steps)^-0.5."
BYTE_PIECES = "The 256 bytes and 4 control pieces count."
SCORES = "transformer_jax.model.scores:SCORES"
WIDEST = 1_000_000
MOST_LAYERS = 1_000  # layers are compiled one by one
NORMALIZATIONS = ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity")  # SentencePiece's


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The Transformer (Vaswani et al. 2017, sections 3, 5.4); the defaults are its base model.

    A recurrent encoder or decoder (Bahdanau et al. 2015) has one layer, and of these keys it uses
    d_model, d_hidden, dropout and dtype.
    """

    encoder: str = key("transformer", choices_of="transformer_jax.model.encoder_decoder:ENCODERS")
    decoder: str = key("transformer", choices_of="transformer_jax.model.encoder_decoder:DECODERS")
    # N, of the encoder and of the decoder.
    num_layers: int = key(6, at_least=1, at_most=MOST_LAYERS)
    num_encoder_layers: int | None = key(None, at_least=1, at_most=MOST_LAYERS)  # None: num_layers
    num_decoder_layers: int | None = key(None, at_least=1, at_most=MOST_LAYERS)  # None: num_layers
    d_model: int = key(512, at_least=1, at_most=WIDEST)
    num_heads: int = key(8, at_least=1, at_most=WIDEST)  # h
    d_k: int | None = key(None, at_least=1, at_most=WIDEST)  # per head; None: d_model / num_heads
    d_v: int | None = key(None, at_least=1, at_most=WIDEST)  # per head; None: d_k
    d_ff: int = key(2048, at_least=1, at_most=WIDEST)
    d_hidden: int | None = key(
        None, at_least=1, at_most=WIDEST
    )  # recurrent: units per direction; None: d_model
    dropout: float = key(0.1, at_least=0, below=1, hint=PAPER_DROPOUT)  # P_drop
    norm: str = key("post", choices=("post", "pre"))  # "post" is the paper's LayerNorm(x + f(x))
    score: str = key("scaled_dot", choices_of=SCORES)  # of a query and a key
    cross_score: str | None = key(None, choices_of=SCORES)  # encoder-decoder attention; None: score
    # Positions that self-attention sees: around the query in the encoder, up to it in the decoder.
    window: int | None = key(None, at_least=1)  # odd; None: the whole sentence
    # A state that encoder-decoder attention carries from one target position to the next.
    attention_memory: str | None = key(
        None, choices_of="transformer_jax.model.normalizers:ATTENTION_MEMORIES"
    )
    positions: str = key("sinusoidal", choices_of="transformer_jax.model.positions:POSITIONS")
    max_positions: int = key(512, at_least=1)  # learned: subwords of a sentence, end sign included
    tie_embeddings: bool = True  # one matrix for source, target and output (section 3.4)
    dtype: str = key("float32", choices=("float32", "bfloat16"))  # parameters stay float32
    # The decoder's layer whose encoder-decoder weights other parts may use, such as the coverage
    # penalty of search. From 0; below 0: counted from the last layer. Clipped to the layers.
    watched_layer: int = key(-2, at_least=-1_000)
    watched_heads: int | None = key(None, at_least=1)  # the first heads, averaged; None: all

    @property
    def encoder_depth(self) -> int:
        """Layers of the encoder."""
        return self.num_layers if self.num_encoder_layers is None else self.num_encoder_layers

    @property
    def decoder_depth(self) -> int:
        """Layers of the decoder."""
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers

    @property
    def head_sizes(self) -> tuple[int, int]:
        """(d_k, d_v) per head."""
        d_k = self.d_model // self.num_heads if self.d_k is None else self.d_k
        return d_k, d_k if self.d_v is None else self.d_v


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where the sentence pairs come from."""

    source: str = key("files", choices=("files", "tfds", "grammar"))  # grammar: the built-in corpus
    path: str | None = key(None, mutable=True)  # folder of the text files, or of the TFDS data sets
    name: str | None = None  # TFDS builder, such as "wmt14_translate/de-en"
    src: str = "en"  # suffix of the files, or TFDS language
    tgt: str = "de"
    train: tuple[str, ...] = ("train",)  # file stems (STEM.en or STEM.en.gz), or TFDS split names
    valid: tuple[str, ...] = key(("valid",), mutable=True)
    test: tuple[str, ...] = key(("test",), mutable=True)
    pairs: int = key(20_000, at_least=1)  # the built-in corpus only: training pairs to write
    # Subwords per side, end sign included (so at least 2). Training skips, and counts, pairs that
    # are longer, or whose source is longer than a packed source row.
    max_length: int = key(128, at_least=2)


@dataclasses.dataclass(frozen=True)
class VocabularyConfig:
    """One SentencePiece model, shared by source and target, with byte fallback."""

    size: int = key(37_000, at_least=261, hint=BYTE_PIECES)  # pieces, bytes and control included
    kind: str = key("bpe", choices=("bpe", "unigram"))
    normalization: str = key("nmt_nfkc", choices=NORMALIZATIONS)
    max_lines: int = key(5_000_000, at_least=1)  # size of the random sample that trains the model
    path: str | None = key(None, mutable=True)  # an existing .model file to use instead


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Batches, optimizer, schedule and intervals; the defaults are the paper's (section 5)."""

    steps: int = key(100_000, mutable=True, at_least=1, hint=PAPER_STEPS)  # batches to train on
    tokens_per_batch: int = key(25_000, at_least=1)  # nominal target tokens per update, all devices
    row_length: int = key(256, at_least=2)  # target subwords of a packed row
    rows_multiple: int = key(8, at_least=1)  # the rows of a batch are a multiple of this
    label_smoothing: float = key(0.1, at_least=0, below=1, hint=PAPER_SMOOTHING)  # epsilon_ls
    # Of the coverage loss (See et al. 2017, equation 13), on model.watched_layer; the paper has 1.
    coverage_weight: float = key(0.0, at_least=0)
    # After the warm-up; "rsqrt" is equation 3.
    schedule: str = key("rsqrt", choices=("rsqrt", "linear", "cosine", "constant"))
    peak_learning_rate: float | None = key(None, above=0, hint=DEFAULT_PEAK)
    warmup_steps: int = key(4_000, at_least=0)
    decay_steps: int | None = key(None, at_least=1)  # updates after which linear, cosine reach 0
    adam_b1: float = key(0.9, at_least=0, below=1)
    adam_b2: float = key(0.98, at_least=0, below=1)
    adam_epsilon: float = key(1e-9, above=0)
    clip_norm: float | None = key(None, above=0, hint="None turns clipping off.")  # global norm
    accumulate_steps: int = key(1, mutable=True, at_least=1)  # micro-batches per update
    remat: bool = key(False, mutable=True)  # recompute each layer in the backward pass
    # Target positions per device whose logits are in memory at once.
    loss_block: int = key(2_048, mutable=True, at_least=1)
    max_skipped: int = key(10, mutable=True, at_least=1)  # non-finite updates in a row
    init_from: str | None = key(None, mutable=True)  # a run whose weights a new run starts from
    log_every: int = key(100, mutable=True, at_least=1)  # steps
    valid_every: int = key(1_000, mutable=True, at_least=1)  # steps
    valid_bleu: bool = False  # greedy BLEU of the validation split too; it then decides the best
    checkpoint_every: int = key(1_000, mutable=True, at_least=1)  # steps
    keep_last: int = key(20, mutable=True, at_least=1)  # checkpoints kept, beside the best
    # What training does if a checkpoint cannot be written.
    on_save_error: str = key("stop", mutable=True, choices=("stop", "continue"))
    # Processes that prepare batches; 0: a thread of this one.
    data_workers: int = key(0, mutable=True, at_least=0)


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis; -1: all that the other axes leave over."""

    data: int = key(-1, mutable=True)
    fsdp: int = key(1, mutable=True)
    tensor: int = key(1, mutable=True)


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """Search (section 6.1); beam_size 1 is greedy search."""

    beam_size: int = key(4, mutable=True, at_least=1, hint="1 is greedy search.")
    # Alpha of ((5 + length) / 6)^alpha (Wu et al. 2016, equation 14).
    length_penalty: float = key(0.6, mutable=True, at_least=0, hint=PAPER_PENALTY)
    # Beta of the coverage penalty (Wu et al. 2016, equation 14); 0: none.
    coverage_penalty: float = key(0.0, mutable=True, at_least=0)
    # A translation has at most source length + this many subwords.
    max_extra_length: int = key(50, mutable=True, at_least=0)
    # Subwords of a source, end sign included; longer sources are cut.
    max_length: int = key(512, mutable=True, at_least=2)
    # Source subwords, padding included, that are searched together.
    tokens_per_batch: int = key(4_096, mutable=True, at_least=1)


@dataclasses.dataclass(frozen=True)
class Config:
    """Every key of a run."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    vocabulary: VocabularyConfig = VocabularyConfig()
    train: TrainConfig = TrainConfig()
    mesh: MeshConfig = MeshConfig()
    decode: DecodeConfig = DecodeConfig()
    seed: int = key(0, at_least=0, at_most=2**32 - 1)  # SentencePiece's largest


KEYS: dict[str, Key] = {one.name: one for one in keys_of(Config)}
SECTIONS = {name.split(".")[0] for name in KEYS if "." in name}


def value_at(config: Config, name: str) -> Any:
    """The value of a dotted key."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value
