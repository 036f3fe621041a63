"""The keys `model.*`: what the model is made of."""

import dataclasses

from transformer_jax.config.decode import PARALLEL
from transformer_jax.config.keys import any_size, key, layers, option, rate, size

UNTESTED = "they have not been tested together"
PAPER_DROPOUT = "The paper uses 0.1 (base) and 0.3 (big)."
SCORES = "transformer_jax.model.attention.scores:SCORES"
NORMALIZERS = "transformer_jax.model.attention.normalizers:NORMALIZERS"
CROSS_NORMALIZERS = "transformer_jax.model.attention.cross_normalizers:CROSS_NORMALIZERS"
# What reads some of the keys.
RECURRENT = ("model.encoder=recurrent", "model.decoder=recurrent")
CONVOLUTIONAL = ("model.encoder=convolutional", "model.decoder=convolutional")
# Attention that reads the source from left to right (monotonic.py).
MONOTONIC = [f"model.cross_normalizer={name}" for name in ("monotonic", "chunkwise", "lookback")]
WHOLE = "the source is read as a whole"
PREFIX = dict.fromkeys(("model.encoder=prefix", "model.encoder=causal_prefix"), UNTESTED)
IN_DECODER = PREFIX | {"model.sources": "each sentence begins with a word", "model.wait_k": WHOLE}
IN_DECODER["vocabulary.separate"] = "codes are subwords of the source"
UNSEEN = ("decode.coverage_penalty", "train.fertility_weight")
IN_DECODER |= dict.fromkeys(UNSEEN, "nothing attends to that subword")
OTHERS = "model.sources model.code_in_decoder model.encoder=none model.window model.pattern "
OTHERS += "model.output model.wait_k train.objective train.agreement_weight train.teacher "
OTHERS += "train.consistency_weight train.hard_attention"
ONE_BY_ONE = PREFIX | dict.fromkeys(OTHERS.split(), UNTESTED)  # not if all is written at once


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The Transformer (Vaswani et al. 2017, sections 3, 5.4); the defaults are its base model.

    A recurrent encoder or decoder (Bahdanau et al. 2015) has one layer; of the keys of layers it
    uses only d_model, d_hidden, dropout and dtype. A convolutional one (Gehring et al. 2017) uses
    the number of layers, positions and kernel_width too. Embeddings and outputs are the same.
    """

    encoder: str = key(
        "transformer",
        "what reads the source; recurrent: that of Bahdanau et al. 2015; convolutional: of Gehring "
        "et al. 2017; synthesizer: a transformer with weights from the query alone in place of "
        "self-attention (Tay et al. 2020); prefix: the decoder, whose text the source begins (Wang "
        "et al. 2021); causal_prefix: and nothing sees what is later; none: nothing (data.src='')",
        choices_of="transformer_jax.model.sides.choices:ENCODERS",
    )
    decoder: str = key(
        "transformer",
        "what writes the translation; average, ssru and linear: a transformer whose self-attention "
        "is replaced (Zhang et al. 2018; Kim et al. 2019; Katharopoulos et al. 2020); recurrent "
        "and convolutional as above",
        choices_of="transformer_jax.model.sides.choices:DECODERS",
    )
    num_layers: int = layers(6, "N: layers of the encoder and of the decoder")
    num_encoder_layers: int | None = layers(None, "layers of the encoder; None: num_layers")
    num_decoder_layers: int | None = layers(None, "layers of the decoder; None: num_layers")
    d_model: int = size(512, "width of every layer's input and output")
    num_heads: int = size(8, "h: heads of each attention sub-layer")
    num_key_heads: int | None = size(
        None,
        "heads of keys and values; with fewer than num_heads, several heads of queries use the "
        "same keys, and search reads less (1: multi-query attention, Shazeer 2019; more: "
        "grouped-query attention, Ainslie et al. 2023); None: num_heads",
    )
    d_k: int | None = size(None, "size of keys per head; None: d_model / num_heads")
    d_v: int | None = size(None, "size of values per head; None: d_k")
    d_ff: int = any_size(2048, "hidden units of the feed-forward network; 0: layers without it")
    d_hidden: int | None = size(
        None,
        "recurrent: hidden units per direction; convolutional: of a layer; None: d_model",
        read_with=RECURRENT + CONVOLUTIONAL,
    )
    kernel_width: int = size(
        3,
        "convolutional: positions that a layer sees, an odd number",
        at_least=3,
        read_with=CONVOLUTIONAL,
    )
    activation: str = key(
        "relu",
        "f of the feed-forward network f(x W1) W2; glu, reglu, geglu and swiglu: "
        "(f(x W1) * (x V)) W2 with the sigmoid, relu, gelu or swish as f; to keep the number of "
        "parameters, lower d_ff by a third (Shazeer 2020)",
        choices_of="transformer_jax.model.layers.feed_forward:ACTIVATIONS",
    )
    dropout: float = rate(
        0.1, "P_drop, on the embedding sum and on every sub-layer's output", hint=PAPER_DROPOUT
    )
    attention_dropout: float = rate(
        0.0, "dropout of attention's weights, before they multiply values; the paper has none"
    )
    activation_dropout: float = rate(
        0.0, "dropout of the feed-forward network's hidden units; the paper has none"
    )
    norm: str = key(
        "post",
        "post: the paper's LayerNorm(x + f(x)); pre: x + f(LayerNorm(x)); deep: DeepNorm, "
        "LayerNorm(alpha x + f(x)), where alpha and the initial values depend on the depth (Wang "
        "et al. 2022); rezero: x + a f(x), with a learned number a that is 0 at first (Bachlechner "
        "et al. 2020)",
        choices_of="transformer_jax.model.layers.residuals:RESIDUALS",
    )
    norm_kind: str = key(
        "layer",
        "layer: zero mean, unit variance, gain and bias; rms: RMSNorm, a mean square of 1 and a "
        "gain (Zhang and Sennrich 2019); scale: ScaleNorm, all vectors get one learned length "
        "(Nguyen and Salazar 2019)",
        choices_of="transformer_jax.model.layers.norms:NORMS",
    )
    norm_epsilon: float = key(
        1e-6,
        "epsilon of norm_kind and qk_norm; layer: added to the variance; rms: added to the mean "
        "square; scale: a vector shorter than epsilon is divided by epsilon",
        above=0,
    )
    fix_norm: bool = key(
        False, "FixNorm: embeddings of length 1, as input and for logits (Nguyen and Salazar 2019)"
    )
    score: str = key(
        "scaled_dot",
        "how well a query matches a key; scaled_dot: equation 1's; dot: without the 1 / sqrt(d_k), "
        "bilinear: q W k (both Luong et al. 2015); additive: v . tanh(q + k) (Bahdanau et al. "
        "2015); cosine: the cosine of their angle, times a learned gain (Henry et al. 2020)",
        choices_of=SCORES,
    )
    cross_score: str | None = key(
        None, "the same for encoder-decoder attention; None: score", choices_of=SCORES
    )
    normalizer: str = key(
        "softmax",
        "scores to weights, in self-attention; sparsemax: many weights are exactly 0 (Martins and "
        "Astudillo 2016); top_k: the softmax over the highest scores (Zhao et al. 2019); sink: a "
        "softmax with a score for attending to nothing (Miller 2023; learned: OpenAI 2025); "
        "talking_heads: heads mix their scores, and then their weights (Shazeer et al. 2020); "
        "differential: of two heads, one softmax minus a learned multiple of the other, and a norm "
        "of their outputs (Ye et al. 2024)",
        choices_of=NORMALIZERS,
    )
    cross_normalizer: str | None = key(
        None,
        "the same for encoder-decoder attention; gumbel: one source position, drawn in training "
        "(Jang et al. 2017); monotonic: the one where a head that reads from left to right stops "
        "(Raffel et al. 2017), chunkwise: MoChA, a few up to that one (Chiu and Raffel 2018), "
        "lookback: MILk, all up to that one (Arivazhagan et al. 2019); None: normalizer",
        choices_of=CROSS_NORMALIZERS,
    )
    attended_keys: int = size(
        8,
        "normalizer top_k: keys that a query attends to; with 1 its weight is always 1, so the "
        "matrices of queries and keys learn nothing",
        read_with=("model.normalizer=top_k", "model.cross_normalizer=top_k"),
        in_weights=False,
    )
    chunk_width: int = option(
        4,
        "normalizer chunkwise: source positions that a head attends to, up to where it stops; with "
        "1 it is monotonic, and the matrix of keys learns nothing",
        at_least=1,
        at_most=64,  # each is an operation of the compiled program
        read_with=("model.cross_normalizer=chunkwise",),
    )
    attention_bias: bool = key(
        False, "biases of the projections of queries, keys and values, and of the joined heads"
    )
    attention_gate: bool = key(
        False,
        "each head's output is multiplied by sigmoid(x W), where x is what queries are computed "
        "from (Qiu et al. 2025)",
    )
    qk_norm: bool = key(
        False,
        "RMSNorm of each head's queries and keys, in self- and encoder-decoder attention, with a "
        "gain for each feature (Yang et al. 2025)",
    )
    window: int | None = option(
        None,
        "positions that self-attention sees, an odd number: around the query in the encoder, up to "
        "it in the decoder; None: the whole sentence",
        at_least=1,
    )
    global_every: int | None = option(
        None,
        "with a window: each n-th layer of a stack, counted from 1, sees the whole sentence (Gemma "
        "Team 2024, where n is 2); None: all layers have the window",
        at_least=2,
    )
    pattern: str = option(
        "all",
        "positions that self-attention sees in the sentence, or in the window; all: each one; "
        "strided: those fewer than stride positions away, and each stride-th (Child et al. 2019)",
        choices_of="transformer_jax.model.attention.patterns:SELF_PATTERNS",
    )
    stride: int = size(
        8,
        "pattern strided: the stride",
        at_least=2,
        in_weights=False,
        read_with=("model.pattern=strided",),
    )
    wait_k: int | None = size(
        None,
        "target subword t sees the first k + t - 1 source subwords, EOS included, and the "
        "encoder sees nothing later, as if the model translated while it read (Ma et al. 2019); "
        "None: the whole source",
        in_weights=False,
        excludes={
            "model.sources": "it reads one source sentence as it arrives",
            **dict.fromkeys(MONOTONIC, "both decide how far the source is read"),
        },
    )
    wait_k_max: int | None = size(
        None,
        "one model for several k (Elbayad et al. 2020): training draws each row's k, in each step, "
        "from model.wait_k to this one, and decode.wait_k chooses one; None: always model.wait_k",
        in_weights=False,
    )
    attention_memory: str | None = key(
        None,
        "what encoder-decoder attention knows of earlier target positions; coverage: the sum of "
        "its weights, divided by a fertility, coverage_gru: a vector of a recurrent unit (both Tu "
        "et al. 2016), coverage_embedding: one that starts from the source word (Mi et al. 2016), "
        "markov: the last weights around each position (Cohn et al. 2016); None: nothing",
        choices_of="transformer_jax.model.attention.memories:ATTENTION_MEMORIES",
    )
    positions: str = key(
        "sinusoidal",
        "how the model knows the order of subwords; sinusoidal: the paper's vectors, added to the "
        "embeddings; sinusoidal_t2t: with the wavelengths of tensor2tensor and Marian; learned: a "
        "vector of each position; index: the position's number times a learned vector; rotary: "
        "RoPE, turns queries and keys (Su et al. 2021); alibi: a penalty for distance (Press et "
        "al. 2022); t5: a learned bias for ranges of distances (Raffel et al. 2020); kerple: a "
        "learned penalty that grows with the logarithm of the distance (Chi et al. 2022); "
        "relative: learned vectors of distances (Shaw et al. 2018); contextual: CoPE, a query "
        "decides which keys its distances count (Golovneva et al. 2024); none: it does not",
        choices_of="transformer_jax.model.positions.choices:POSITIONS",
    )
    max_positions: int = size(
        512,
        "learned positions, encoder synthesizer: subwords of a sentence, EOS included",
        read_with=("model.positions=learned", "model.encoder=synthesizer"),
    )
    relative_distance: int = size(
        16,
        "positions relative and contextual: k, the largest distance with a vector of its own; keys "
        "that are farther away use the vector of distance k",
        read_with=("model.positions=relative", "model.positions=contextual"),
    )
    relative_values: bool = key(
        True,
        "relative positions: vectors are added to the values too, not only to the keys",
        read_with=("model.positions=relative",),
    )
    features: int = any_size(
        0,
        "numbers at each source position, from recordings or pictures (data.src_kind), which one "
        "matrix turns into vectors in place of an embedding; 0: the source is subwords",
        excludes={
            "model.encoder=none": "nothing reads the source",
            "model.sources": "several sources are text",
            "model.wait_k": WHOLE,
            "model.source_eos": "recordings and pictures have no EOS",
            "model.output=copy": "subwords of the source are copied",
        },
    )
    sources: int = key(
        1,
        "source sentences of a pair, one for each language in data.src: each is encoded by itself, "
        "and encoder-decoder attention reads them all (combination). With 1, the sentences of "
        "several languages are read as one, end to end (Dabre et al. 2017)",
        at_least=1,
        at_most=64,
        excludes=dict.fromkeys(MONOTONIC, "it reads one source sentence from left to right"),
    )
    combination: str = option(
        "flat",
        "how encoder-decoder attention reads several source sentences; flat: with one softmax over "
        "all (Libovicky and Helcl 2017); parallel: the sum of attention to each sentence alone, "
        "with the same matrices; serial: a sub-layer for each sentence, one after the other; "
        "hierarchical: attention to each sentence alone, then attention to the results "
        "(Libovicky et al. 2018); gated: attention to the first sentence, mixed by a gate with "
        "that to the others (Miculicich et al. 2018). The weights that other parts use and plots "
        "show sum to 1 over all sentences",
        choices_of="transformer_jax.model.attention.combinations:COMBINATIONS",
        excludes={
            "model.attention_memory": "the one has a softmax for each source sentence, and the "
            "other one over the whole source",
            "train.hard_attention": "a draw is one position of the whole source",
        },
    )
    code_in_decoder: bool = key(
        False,
        "the subword of the target language, which begins a source line (data.directions), is the "
        "decoder's first input in place of BOS, and the encoder does not see it",
        excludes=IN_DECODER,
        read_with=("data.directions",),
    )
    source_eos: bool = option(
        True,
        "whether the model sees EOS, which ends every source; False: it is hidden like padding, as "
        "in models that read sources without EOS (OpenNMT)",
    )
    tie_embeddings: bool = key(
        True,
        "one matrix for source, target and output embeddings (section 3.4)",
        excludes={"model.encoder=none": "there are no vectors of a source to keep apart"},
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
        choices_of="transformer_jax.model.outputs.choices:OUTPUTS",
    )
    parallel: str | None = key(
        None,
        "how all subwords are written at once; mask_predict: masked ones are filled in, for a "
        "length that is predicted (Ghazvininejad et al. 2019); ctc: a subword, or none, for each "
        "of 3 states of a source position (Libovicky and Helcl 2018); None: from left to right",
        choices=PARALLEL,
        excludes=ONE_BY_ONE,
    )
    marginal_positions: int = size(
        5,
        "output marginal: k, source positions that are summed over",
        read_with=("model.output=marginal",),
        in_weights=False,
    )
    output_bias: bool = key(False, "a bias of every subword's logit")
    dtype: str = option(
        "float32", "of activations; parameters stay float32", choices=("float32", "bfloat16")
    )
    residual_dtype: str = option(
        "float32",
        "of the sums x + f(x), from layer to layer; norms compute in float32",
        choices=("float32", "bfloat16"),
    )
    attention_kernel: str = key(
        "auto",
        "plain: equation 1 step by step; fused: training computes it in one kernel where score, "
        "positions and normalizer allow it, and the sum and norm of a post-norm residual in "
        "another; auto: fused on an NVIDIA GPU with dtype bfloat16 and sizes that fit",
        choices=("auto", "plain", "fused"),
        mutable=True,
    )
    watched_layer: int = option(
        -2,
        "the decoder's layer whose encoder-decoder weights other parts may use, such as the "
        "coverage penalty of search; from 0; below 0: counted from the last layer; clipped to the "
        "layers",
        at_least=-1_000,
    )
    watched_heads: int | None = option(
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
    def axis_sizes(self) -> dict[str, int]:
        """Sizes of the axes of a layer's parameters, by name."""
        d_k, d_v = self.head_sizes
        return {
            "heads": self.num_heads,
            "key_heads": self.key_heads,
            "d_k": d_k,
            "d_v": d_v,
            "d_model": self.d_model,
            "d_ff": self.d_ff,
        }

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.num_heads if self.num_key_heads is None else self.num_key_heads

    @property
    def head_sizes(self) -> tuple[int, int]:
        """(d_k, d_v) per head."""
        d_k = self.d_model // self.num_heads if self.d_k is None else self.d_k
        return d_k, d_k if self.d_v is None else self.d_v
