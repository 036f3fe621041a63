"""The config's schema: frozen dataclasses that hold every key, its default, range and meaning.

A config file is a diff against these defaults. A key is immutable unless it has `mutable=True`: a
later `train` on the same folder that contradicts an immutable key is refused.
"""

import dataclasses
from typing import Any

from transformer_jax.config.data import DataConfig, VocabularyConfig
from transformer_jax.config.decode import DecodeConfig
from transformer_jax.config.keys import Key, key, keys_of

PAPER_STEPS = "The paper uses 100000 (base) and 300000 (big)."
PAPER_DROPOUT = "The paper uses 0.1 (base) and 0.3 (big)."
PAPER_SMOOTHING = "The paper uses 0.1; 0 turns it off."
DEFAULT_PEAK = "None gives the paper's (d_model * warmup_steps)^-0.5."
NO_CLIPPING = "None turns clipping off."
SCORES = "transformer_jax.model.scores:SCORES"
NORMALIZERS = "transformer_jax.model.normalizers:NORMALIZERS"
CROSS_NORMALIZERS = "transformer_jax.model.cross_normalizers:CROSS_NORMALIZERS"
WIDEST = 1_000_000
MOST_LAYERS = 1_000  # layers are compiled one by one
NORMS = ("post", "pre")


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The Transformer (Vaswani et al. 2017, sections 3, 5.4); the defaults are its base model.

    A recurrent encoder or decoder (Bahdanau et al. 2015) has one layer, and of these keys it uses
    d_model, d_hidden, dropout and dtype. A convolutional one (Gehring et al. 2017) uses the number
    of layers, positions and kernel_width too.
    """

    encoder: str = key(
        "transformer",
        "what reads the source; recurrent is that of Bahdanau et al. 2015, convolutional that of "
        "Gehring et al. 2017",
        choices_of="transformer_jax.model.sides:ENCODERS",
    )
    decoder: str = key(
        "transformer",
        "what writes the translation; average and ssru: a transformer whose self-attention is "
        "replaced (Zhang et al. 2018; Kim et al. 2019); recurrent and convolutional as above",
        choices_of="transformer_jax.model.sides:DECODERS",
    )
    num_layers: int = key(
        6, "N: layers of the encoder and of the decoder", at_least=1, at_most=MOST_LAYERS
    )
    num_encoder_layers: int | None = key(
        None, "layers of the encoder; None: num_layers", at_least=1, at_most=MOST_LAYERS
    )
    num_decoder_layers: int | None = key(
        None, "layers of the decoder; None: num_layers", at_least=1, at_most=MOST_LAYERS
    )
    d_model: int = key(512, "width of every layer's input and output", at_least=1, at_most=WIDEST)
    num_heads: int = key(8, "h: heads of each attention sub-layer", at_least=1, at_most=WIDEST)
    d_k: int | None = key(
        None, "size of keys per head; None: d_model / num_heads", at_least=1, at_most=WIDEST
    )
    d_v: int | None = key(None, "size of values per head; None: d_k", at_least=1, at_most=WIDEST)
    d_ff: int = key(
        2048,
        "hidden units of the feed-forward network; 0: layers without it",
        at_least=0,
        at_most=WIDEST,
    )
    d_hidden: int | None = key(
        None,
        "recurrent: hidden units per direction; convolutional: of a layer; None: d_model",
        at_least=1,
        at_most=WIDEST,
    )
    kernel_width: int = key(
        3, "convolutional: positions that a layer sees, an odd number", at_least=3, at_most=WIDEST
    )
    activation: str = key(
        "relu",
        "of the feed-forward network",
        choices_of="transformer_jax.model.feed_forward:ACTIVATIONS",
    )
    dropout: float = key(
        0.1,
        "P_drop, on the embedding sum and on every sub-layer's output",
        at_least=0,
        below=1,
        hint=PAPER_DROPOUT,
    )
    norm: str = key(
        "post", "post: the paper's LayerNorm(x + f(x)); pre: x + f(LayerNorm(x))", choices=NORMS
    )
    norm_kind: str = key(
        "layer",
        "layer: zero mean, unit variance, gain and bias; scale: a learned length",
        choices_of="transformer_jax.model.norms:NORMS",
    )
    norm_epsilon: float = key(
        1e-6, "added to the variance by layer normalization; the shortest length of scale", above=0
    )
    fix_norm: bool = key(
        False, "embeddings of length 1, as input and for logits (Nguyen and Salazar 2019)"
    )
    score: str = key("scaled_dot", "how well a query matches a key", choices_of=SCORES)
    cross_score: str | None = key(
        None, "the same for encoder-decoder attention; None: score", choices_of=SCORES
    )
    normalizer: str = key("softmax", "scores to weights, in self-attention", choices_of=NORMALIZERS)
    cross_normalizer: str | None = key(
        None,
        "the same for encoder-decoder attention; gumbel: one source position, drawn in training "
        "(Jang et al. 2017); monotonic: the one where a head that reads from left to right stops "
        "(Raffel et al. 2017), chunkwise: a few up to that one (Chiu and Raffel 2018), lookback: "
        "all up to that one (Arivazhagan et al. 2019); None: normalizer",
        choices_of=CROSS_NORMALIZERS,
    )
    attended_keys: int = key(
        8, "normalizer top_k: keys that a query attends to", at_least=1, at_most=WIDEST
    )
    chunk_width: int = key(
        4,
        "normalizer chunkwise: source positions that a head attends to, up to where it stops",
        at_least=1,
        at_most=64,  # each is an operation of the compiled program
    )
    attention_bias: bool = key(
        False, "biases of the projections of queries, keys and values, and of the joined heads"
    )
    window: int | None = key(
        None,
        "positions that self-attention sees, an odd number: around the query in the encoder, up to "
        "it in the decoder; None: the whole sentence",
        at_least=1,
    )
    wait_k: int | None = key(
        None,
        "target subword t sees the first k + t - 1 source subwords, EOS included, and the "
        "encoder sees nothing later, as if the model translated while it read (Ma et al. 2019); "
        "None: the whole source",
        at_least=1,
        at_most=WIDEST,
    )
    wait_k_max: int | None = key(
        None,
        "one model for several k (Elbayad et al. 2020): training draws each row's k, in each step, "
        "from model.wait_k to this one, and decode.wait_k chooses one; None: always model.wait_k",
        at_least=1,
        at_most=WIDEST,
    )
    attention_memory: str | None = key(
        None,
        "what encoder-decoder attention knows of earlier target positions; coverage: the sum of "
        "weights over a fertility, coverage_gru: a vector of a recurrent unit (both Tu et al. "
        "2016), coverage_embedding: one that starts from the source word (Mi et al. 2016), markov: "
        "the last weights around each position (Cohn et al. 2016); None: nothing",
        choices_of="transformer_jax.model.attention_memories:ATTENTION_MEMORIES",
    )
    positions: str = key(
        "sinusoidal",
        "how the model knows the order of subwords",
        choices_of="transformer_jax.model.positions:POSITIONS",
    )
    max_positions: int = key(
        512, "learned positions: subwords of a sentence, EOS included", at_least=1
    )
    relative_distance: int = key(
        16,
        "relative positions: k, the largest distance with a vector of its own; keys that are "
        "farther away use the vector of distance k",
        at_least=1,
        at_most=WIDEST,
    )
    relative_values: bool = key(
        True, "relative positions: vectors are added to the values too, not only to the keys"
    )
    tie_embeddings: bool = key(
        True, "one matrix for source, target and output embeddings (section 3.4)"
    )
    tie_output: bool = key(
        False,
        "one matrix for target and output embeddings, and another for the source's "
        "(Press and Wolf 2017); needs tie_embeddings=False",
    )
    output: str = key(
        "softmax",
        "from the decoder's output to probabilities; softmax: over the vocabulary; copy: that and "
        "the source's subwords, each with its attention in model.watched_layer (See et al. 2017); "
        "history: the subwords of the translation so far (Merity et al. 2016); marginal: hard "
        "attention, summed over the positions to which model.watched_layer attends most (Shankar "
        "et al. 2018)",
        choices_of="transformer_jax.model.outputs:OUTPUTS",
    )
    marginal_positions: int = key(
        5, "output marginal: k, source positions that are summed over", at_least=1, at_most=WIDEST
    )
    output_bias: bool = key(False, "a bias of every subword's logit")
    dtype: str = key(
        "float32", "of activations; parameters stay float32", choices=("float32", "bfloat16")
    )
    residual_dtype: str = key(
        "float32",
        "of the sums x + f(x), from layer to layer; norms compute in float32",
        choices=("float32", "bfloat16"),
    )
    attention_kernel: str = key(
        "auto",
        "plain: equation 1 step by step; fused: training computes it in one kernel where score, "
        "positions and normalizer allow it; auto: fused on an NVIDIA GPU with dtype bfloat16",
        choices=("auto", "plain", "fused"),
        mutable=True,
    )
    watched_layer: int = key(
        -2,
        "the decoder's layer whose encoder-decoder weights other parts may use, such as the "
        "coverage penalty of search; from 0; below 0: counted from the last layer; clipped to the "
        "layers",
        at_least=-1_000,
    )
    watched_heads: int | None = key(
        None, "the first heads of that layer, averaged; None: all", at_least=1
    )

    @property
    def encoder_depth(self) -> int:
        """Layers of the encoder."""
        return self.num_layers if self.num_encoder_layers is None else self.num_encoder_layers

    @property
    def decoder_depth(self) -> int:
        """Layers of the decoder."""
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers

    @property
    def hidden_units(self) -> int:
        """Hidden units of recurrent and convolutional layers."""
        return self.d_model if self.d_hidden is None else self.d_hidden

    @property
    def head_sizes(self) -> tuple[int, int]:
        """(d_k, d_v) per head."""
        d_k = self.d_model // self.num_heads if self.d_k is None else self.d_k
        return d_k, d_k if self.d_v is None else self.d_v


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Batches, optimizer, schedule and intervals; the defaults are the paper's (section 5)."""

    steps: int = key(100_000, "updates, one batch each", mutable=True, at_least=1, hint=PAPER_STEPS)
    tokens_per_batch: int = key(
        25_000, "nominal target tokens per update, over all devices", at_least=1
    )
    row_length: int = key(256, "target subwords of a packed row", at_least=2)
    rows_multiple: int = key(8, "the rows of a batch are a multiple of this", at_least=1)
    label_smoothing: float = key(0.1, "epsilon_ls", at_least=0, below=1, hint=PAPER_SMOOTHING)
    coverage_weight: float = key(
        0.0,
        "weight of the coverage loss (See et al. 2017, equation 13) on model.watched_layer; the "
        "paper has 1",
        at_least=0,
    )
    alignment_weight: float = key(
        0.0,
        "weight of the cross-entropy between links and the attention of model.watched_layer (Mi et "
        "al. 2016; Garg et al. 2019, where it is 0.05); needs data.alignments=True",
        at_least=0,
    )
    alignment_context: str = key(
        "past",
        "what the decoder sees of the translation where train.alignment_weight trains attention; "
        "past: the subwords before, as in translation; full: all of it, in a second pass that only "
        "learns to align, and that `align` uses (Garg et al. 2019, section 4.3)",
        choices=("past", "full"),
    )
    avoidance_weight: float = key(
        0.0,
        "weight of -log(1 - the attention of model.watched_layer to linked subwords) (Pruthi et "
        "al. 2020): trains attention not to explain the translation; needs data.alignments=True",
        at_least=0,
    )
    fertility_weight: float = key(
        0.0,
        "weight of (1 - a source subword's attention on model.watched_layer)^2 (Cohn et al. 2016)",
        at_least=0,
    )
    agreement_weight: float | None = key(
        None,
        "trains the other direction of translation too, on the same batches with swapped sides, as "
        "a run of its own in WORKDIR/reverse; the weight of a bonus for attentions that agree on "
        "model.watched_layer (Cohn et al. 2016, section 3.4; 0: no bonus); None: one direction",
        at_least=0,
    )
    hard_attention: str | None = key(
        None,
        "reinforce: training draws what model.watched_layer reads (Xu et al. 2015); None: no draws",
        choices=("reinforce",),
    )
    schedule: str = key(
        "rsqrt",
        "learning rate after the warm-up; rsqrt is equation 3",
        choices_of="transformer_jax.training.optimizer:SCHEDULES",
    )
    peak_learning_rate: float | None = key(
        None,
        "learning rate at the end of the warm-up; None: (d_model * warmup_steps)^-0.5",
        above=0,
        hint=DEFAULT_PEAK,
    )
    warmup_steps: int = key(4_000, "updates of linear warm-up", at_least=0)
    decay_steps: int | None = key(None, "updates after which linear and cosine reach 0", at_least=1)
    adam_b1: float = key(0.9, "beta_1 of Adam", at_least=0, below=1)
    adam_b2: float = key(0.98, "beta_2 of Adam", at_least=0, below=1)
    adam_epsilon: float = key(1e-9, "epsilon of Adam", above=0)
    clip_norm: float | None = key(
        None, "largest global norm of the gradient; None: not clipped", above=0, hint=NO_CLIPPING
    )
    accumulate_steps: int = key(1, "micro-batches per update", mutable=True, at_least=1)
    remat: bool = key(
        False, "recompute each layer in the backward pass, which saves memory", mutable=True
    )
    loss_block: int | None = key(
        None,
        "target positions per device whose logits are in memory at once; None: 8,192 on a GPU, "
        "otherwise 2,048",
        mutable=True,
        at_least=1,
    )
    max_skipped: int = key(
        10, "non-finite updates in a row after which training stops", mutable=True, at_least=1
    )
    init_from: str | None = key(
        None, "folder of a run whose weights a new run starts from", mutable=True
    )
    log_every: int = key(100, "steps between two lines of metrics", mutable=True, at_least=1)
    wandb_project: str | None = key(
        None, "project of Weights & Biases (pip install wandb); None: off", mutable=True
    )
    valid_every: int = key(1_000, "steps between two validations", mutable=True, at_least=1)
    valid_bleu: bool = key(
        False, "greedy BLEU of the validation split too; it then decides the best checkpoint"
    )
    patience: int | None = key(
        None,
        "validations in a row without a better score after which training ends; None: it never "
        "ends early",
        mutable=True,
        at_least=1,
    )
    checkpoint_every: int = key(1_000, "steps between two checkpoints", mutable=True, at_least=1)
    keep_last: int = key(20, "checkpoints kept, beside the best", mutable=True, at_least=1)
    on_save_error: str = key(
        "stop",
        "what training does if a checkpoint cannot be written",
        mutable=True,
        choices=("stop", "continue"),
    )
    data_workers: int = key(
        0, "processes that prepare batches; 0: a thread of the trainer", mutable=True, at_least=0
    )


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis; -1: all that the other axes leave over."""

    data: int = key(
        -1, "devices that divide the rows of a batch; -1: all that remain", mutable=True
    )
    fsdp: int = key(1, "devices that divide rows, parameters and optimizer state", mutable=True)
    tensor: int = key(1, "devices that divide heads, hidden units and vocabulary", mutable=True)


@dataclasses.dataclass(frozen=True)
class Config:
    """Every key of a run."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    vocabulary: VocabularyConfig = VocabularyConfig()
    train: TrainConfig = TrainConfig()
    mesh: MeshConfig = MeshConfig()
    decode: DecodeConfig = DecodeConfig()
    seed: int = key(
        0,
        "of parameters, dropout, vocabulary and the order of batches",
        at_least=0,
        at_most=2**32 - 1,  # SentencePiece's largest
    )


KEYS: dict[str, Key] = {one.name: one for one in keys_of(Config)}
SECTIONS = {name.split(".")[0] for name in KEYS if "." in name}


def value_at(config: Config, name: str) -> Any:
    """The value of a dotted key."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value
