"""`check` refuses a bad value and names the key, its value, what is allowed and the fix."""

import math
from typing import Any

import pytest

from transformer_jax.config.changes import with_values
from transformer_jax.config.checks import check
from transformer_jax.config.schema import KEYS, Config
from transformer_jax.errors import ConfigError

GOOD = {"data.source": "grammar"}  # the smallest change that makes the defaults valid

TWO = {"data.source": "files", "data.path": "x", "data.src": "en,fr"}  # source languages

# Each change, and what its error must contain: key, value, what is allowed or the fix.
REFUSED = "train.hard_attention='reinforce': "
BAD: list[tuple[dict[str, Any], tuple[str, ...]]] = [
    ({"model.num_layers": 0}, ("model.num_layers=0 is below 1", "default is 6")),
    ({"model.d_model": -8}, ("model.d_model=-8 is below 1", "default is 512")),
    ({"model.num_heads": 0}, ("model.num_heads=0 is below 1",)),
    ({"model.d_k": 0}, ("model.d_k=0 is below 1", "default is None")),
    (
        {"model.num_heads": 4, "model.num_key_heads": 3},
        ("model.num_key_heads=3 does not divide model.num_heads=4", "num_key_heads=None"),
    ),
    ({"model.d_v": -1}, ("model.d_v=-1 is below 1",)),
    (
        {"model.wait_k": 3, "model.cross_normalizer": "monotonic"},
        ("model.wait_k=3 and the normalizer 'monotonic'", "model.cross_normalizer='softmax'"),
    ),
    (
        {"model.attention_memory": "coverage", "model.normalizer": "sparsemax"},
        ("'coverage' has its own softmax", "model.cross_normalizer='softmax'"),
    ),
    ({"model.d_ff": -1}, ("model.d_ff=-1 is below 0",)),
    ({"model.dropout": 1.0}, ("model.dropout=1.0 is not in [0, 1)", "paper uses 0.1")),
    ({"model.dropout": -0.1}, ("model.dropout=-0.1 is not in [0, 1)",)),
    ({"model.dropout": math.nan}, ("model.dropout=nan is not in [0, 1)",)),
    ({"model.attention_dropout": 1.0}, ("model.attention_dropout=1.0 is not in [0, 1)",)),
    ({"model.activation_dropout": 1.0}, ("model.activation_dropout=1.0 is not in [0, 1)",)),
    ({"train.weight_decay": -0.1}, ("train.weight_decay=-0.1 is not in [0, 1)",)),
    ({"vocabulary.dropout": 1.0}, ("vocabulary.dropout=1.0 is not in [0, 1)",)),
    (
        {"train.consistency_weight": 5.0, "model.dropout": 0.0},
        ("train.consistency_weight=5.0 compares two dropout masks", "Set model.dropout"),
    ),
    (
        {"train.consistency_weight": 5.0, "model.output": "copy"},
        ("train.consistency_weight=5.0 has been tested with", "not with 'copy'"),
    ),
    (
        {"train.consistency_weight": 5.0, "model.wait_k": 2, "model.wait_k_max": 4},
        ("train.consistency_weight=5.0 compares two dropout masks", "model.wait_k_max=4 draws"),
    ),
    (
        {"model.relative_distance": 4},
        ("model.relative_distance=4 changes nothing", "Set model.positions='relative'"),
    ),
    (
        {"model.relative_values": False, "model.positions": "contextual"},
        ("model.relative_values=False changes nothing", "Set model.positions='relative'"),
    ),
    ({"model.attended_keys": 4}, ("model.attended_keys=4", "Set model.normalizer='top_k'")),
    (
        {"train.consistency_weight": 5.0, "train.hard_attention": "reinforce"},
        ("train.consistency_weight=5.0: train.hard_attention=", "Leave one of them out"),
    ),
    (
        {"train.consistency_weight": 5.0, "train.agreement_weight": 0.1},
        ("train.consistency_weight=5.0 does not go with it", "Leave one of them out"),
    ),
    (
        {"vocabulary.segmentations": 3},
        ("vocabulary.segmentations=3 changes nothing here. Set vocabulary.dropout, with which",),
    ),
    (
        {"vocabulary.dropout": 0.1, "vocabulary.kind": "unigram"},
        ("vocabulary.dropout=0.1 skips merges", "Use vocabulary.kind='bpe'"),
    ),
    (
        {"vocabulary.dropout": 0.1, "data.alignments": True},
        ("vocabulary.dropout=0.1 splits words anew", "Leave one of them out"),
    ),
    ({"model.norm": "pots"}, ("model.norm='pots'", "valid choices: 'post', 'pre'", "mean 'post'")),
    ({"model.positions": "rotatory"}, ("model.positions='rotatory'", "'sinusoidal', 'learned'")),
    ({"model.dtype": "float16"}, ("model.dtype='float16'", "'float32', 'bfloat16'")),
    ({"model.max_positions": 0}, ("model.max_positions=0 is below 1",)),
    ({"model.num_heads": 7}, ("model.d_model=512", "model.num_heads=7", "set model.d_k")),
    ({"model.d_model": 511, "model.d_k": 64}, ("model.d_model=511 is odd", "'learned'")),
    ({"model.activation": "silu"}, ("model.activation='silu'", "'relu', 'swish', 'gelu'")),
    ({"model.norm_epsilon": 0.0}, ("model.norm_epsilon=0.0 is not in (0, 3.4e+38)", "1e-06")),
    (
        {"model.positions": "sinusoidal_t2t", "model.d_model": 2, "model.num_heads": 1},
        ("model.d_model=2 is below 4", "model.positions='sinusoidal'"),
    ),
    (
        {"model.positions": "learned", "model.max_positions": 100},
        ("model.max_positions=100 is too small for data.max_length=128", "lower the second"),
    ),
    (
        {"model.positions": "learned", "model.max_positions": 200},
        (
            "model.max_positions=200 is too small for train.row_length=256",
            "model.max_positions=200 is too small for decode.max_length=512",
        ),
    ),
    ({"data.source": "file"}, ("data.source='file'", "valid choices", "mean 'files'")),
    ({"data.source": "files"}, ("data.path is not set", "--config.data.path=FOLDER")),
    ({"data.aligned_pairs": 5}, ("data.aligned_pairs=5 changes nothing", "Set data.alignments")),
    (
        {"train.agreement_weight": 0.0, "model.wait_k": 2, "data.alignments": True},
        ("train.agreement_weight=0.0", "model.wait_k=2 does not go", "data.alignments=True does"),
    ),
    (
        {
            "train.agreement_weight": 1,
            "train.patience": 3,
            "vocabulary.separate": True,
            "model.tie_embeddings": False,
        },
        ("train.patience=3 does not go", "vocabulary.separate=True does not go"),
    ),
    (
        {"train.agreement_weight": 0.1, "model.output": "copy"},
        ("model.output='softmax' only, not with 'copy'",),
    ),
    (
        {
            "train.alignment_context": "full",
            "model.window": 3,
            "model.wait_k": 2,
            "model.pattern": "strided",
        },
        (
            "changes nothing here. Set train.alignment_weight",
            "train.alignment_context='full': model.window=3 leaves out",
            "model.pattern=strided leaves out",
            "model.wait_k=2 leaves out",
        ),
    ),
    (
        {
            "train.alignment_context": "full",
            "train.alignment_weight": 1.0,
            "data.alignments": True,
            "model.decoder": "ssru",
        },
        ("a decoder of kind ssru has no self-attention that could see the whole target",),
    ),
    (
        {
            "train.alignment_context": "full",
            "train.alignment_weight": 1.0,
            "data.alignments": True,
            "model.positions": "t5",
        },
        ("model.positions='t5' has one bias for all target positions after the query",),
    ),
    ({"train.alignment_weight": 0.1}, ("train.alignment_weight=0.1 needs", "data.alignments=True")),
    ({"train.avoidance_weight": 0.1}, ("train.avoidance_weight=0.1 needs", "data.alignments=True")),
    (
        {"model.wait_k": 3, "train.alignment_weight": 0.1, "data.alignments": True},
        ("train.alignment_weight=0.1 with model.wait_k=3", "not yet read", "Leave one of them out"),
    ),
    ({"model.wait_k_max": 3}, ("model.wait_k_max=3", "model.wait_k=None is not", "from 1 to 3")),
    (
        {"model.wait_k": 4, "model.wait_k_max": 3},
        ("model.wait_k_max=3", "model.wait_k=4 is not", "from 1 to 3"),
    ),
    *(
        (
            {"model.wait_k": 3, "model.cross_normalizer": name},
            (f"model.wait_k=3 and the normalizer {name!r}", "Set model.wait_k=None"),
        )
        for name in ("chunkwise", "lookback")
    ),
    ({"model.window": 4}, ("model.window=4 is even", "Use 5")),
    (
        {"model.positions": "sinusoidal_t2t", "model.d_model": 511, "model.d_k": 64},
        ("model.d_model=511 is odd", "Use 512, or model.positions='learned'"),
    ),
    (
        {"model.positions": "rotary", "model.d_k": 63},
        ("'rotary' turns pairs of features, and d_k=63 is odd", "an even model.d_k"),
    ),
    (
        {"model.positions": "rotary", "model.score": "additive"},
        ("model.positions='rotary' with model.score='additive'", "Use model.score='scaled_dot'"),
    ),
    ({"decode.wait_k": 3}, ("decode.wait_k=3 changes nothing here", "Set model.wait_k")),
    ({"data.source": "parquet"}, ("data.source='parquet' needs", "--config.data.path=FOLDER")),
    ({"data.source": "tfds"}, ("data.name is not set", "--config.data.name=wmt14_translate")),
    ({"data.tgt": "fr"}, ("data.tgt='fr'", "'en' and 'de'", "data.source='files'")),
    ({"data.src": "de"}, ("data.src='de', data.tgt='de'",)),
    (
        {"data.source": "files", "data.path": "x", "data.tgt": ""},
        ("data.tgt='' must be two different suffixes",),
    ),
    (
        {"data.source": "files", "data.path": "x", "data.src": "de"},
        ("data.src='de', data.tgt='de' must be two different suffixes",),
    ),
    (
        {"data.source": "files", "data.path": "x", "data.src": ""},
        ("data.src=''", "such as 'en' and 'de'"),
    ),
    (TWO | {"data.src": "en,"}, ("data.src='en,'", "'de,fr' and 'en'")),
    (TWO | {"data.src": "en,en"}, ("data.src='en,en'", "must be two different")),
    (TWO | {"data.tgt": "fr"}, ("data.src='en,fr', data.tgt='fr' must be two different",)),
    (TWO | {"data.src": "en", "data.tgt": "de,fr"}, ("data.tgt='de,fr' must be two different",)),
    ({"data.src": "en,fr"}, ("data.src='en,fr'", "the built-in corpus is in 'en' and 'de'")),
    ({"model.sources": 2}, ("model.sources=2", "data.src='en' names 1", "Set model.sources=1")),
    (TWO | {"model.sources": 3}, ("model.sources=3", "Set model.sources=2")),
    (
        TWO | {"model.sources": 2, "model.wait_k": 2},
        ("model.wait_k=2 reads one source sentence", "model.sources=2. Leave one of them out"),
    ),
    (
        TWO | {"model.sources": 2, "model.cross_normalizer": "monotonic"},
        ("model.cross_normalizer='monotonic' reads one source sentence", "model.sources=2"),
    ),
    (
        TWO
        | {"model.sources": 2, "model.combination": "parallel", "model.attention_memory": "markov"},
        ("model.attention_memory='markov' has one softmax", "Use model.combination='flat'"),
    ),
    ({"model.combination": "parallel"}, ("model.combination='parallel' changes nothing",)),
    (TWO | {"train.agreement_weight": 0.0}, ("train.agreement_weight=0.0 do not go together",)),
    (
        TWO | {"data.alignments": True, "train.alignment_weight": 1.0},
        ("data.src='en,fr' and data.alignments=True do not go together", "Leave one of them out"),
    ),
    ({"data.train": ()}, ("data.train is empty", "('train',)")),
    (
        {"data.source": "grammar", "data.train": ("train[:9]",)},
        ("data.train=('train[:9]',) changes nothing", "Set data.source='files'"),
    ),
    ({"data.test": ("x",)}, ("data.test=('x',) changes nothing",)),
    ({"model.kernel_width": 5}, ("model.kernel_width=5 changes nothing here",)),
    ({"model.d_hidden": 64}, ("model.d_hidden=64 changes nothing here",)),
    (
        {"data.alignments": True},
        ("data.alignments=True changes nothing here. Set train.alignment_weight",),
    ),
    ({"data.path": "x"}, ("data.path='x' changes nothing here", "Set data.source='files'")),
    ({"data.name": "x"}, ("data.name='x' changes nothing here", "Set data.source='tfds'")),
    (
        {"data.source": "files", "data.path": "x", "data.pairs": 9},
        ("data.pairs=9 changes nothing here", "Set data.source='grammar'"),
    ),
    (
        {"train.peak_learning_rate": 1e-300},
        ("train.peak_learning_rate=1e-300 counts as 0 in float32",),
    ),
    ({"decode.top_p": 1e-40, "decode.method": "sample"}, ("decode.top_p=1e-40 counts as 0",)),
    ({"decode.length_penalty": 100.0}, ("decode.length_penalty=100.0 is not in [0, 10)",)),
    ({"decode.beam_size": 10**9}, ("decode.beam_size=1000000000 is above 1000",)),
    (
        {"data.source": "files", "data.path": "x", "data.valid": ("train[:9]",)},
        ("data.train='train' and the validation text 'train[:9]' share pairs",),
    ),
    (
        {
            "data.source": "files",
            "data.path": "x",
            "data.train": ("a", "b[:9]"),
            "data.valid": ("b[8:]",),
        },
        ("data.train='b[:9]' and the validation text 'b[8:]' share pairs",),
    ),
    (
        {"data.source": "files", "data.path": "x", "data.train": ("train", "valid")},
        ("data.train='valid' and the validation text 'valid' share pairs", "data.valid"),
    ),
    ({"train.decay_steps": 9}, ("train.decay_steps=9 changes", "Set train.schedule='linear'")),
    ({"decode.top_p": 0.5}, ("decode.top_p=0.5 changes nothing", "Set decode.method='sample'")),
    ({"decode.samples": 5, "decode.method": "sample"}, ("decode.samples=5", "method='mbr'")),
    ({"decode.beam_size": 5, "decode.method": "mbr"}, ("decode.beam_size=5", "method='beam'")),
    ({"decode.diversity": 1.0}, ("decode.diversity=1.0 changes nothing", "Set decode.groups")),
    ({"model.global_every": 2}, ("model.global_every=2", "without model.window all layers")),
    ({"model.window": 3, "model.global_every": 1}, ("model.global_every=1 is below 2",)),
    (
        {"model.window": 3, "model.global_every": 4, "model.num_layers": 3},
        (
            "model.global_every=4 changes nothing",
            "the stacks with self-attention have fewer layers",
        ),
    ),
    ({"data.train": ("a,b",)}, ("data.train holds 'a,b'", "--config.data.train=A,B")),
    ({"data.valid": ("",)}, ("data.valid holds ''",)),
    ({"data.test": ("a,b",)}, ("data.test holds 'a,b'", "--config.data.test=A,B")),
    ({"data.train": ("train[:9]", "valid")}, ("data.train='valid' and the validation text",)),
    ({"data.pairs": 0}, ("data.pairs=0 is below 1",)),
    ({"data.invented_names": 101}, ("data.invented_names=101 is above 100",)),
    (
        {"data.source": "files", "data.path": "x", "data.invented_names": 5},
        ("data.invented_names=5 changes nothing", "Set data.source='grammar'"),
    ),
    ({"data.max_length": 1}, ("data.max_length=1 is below 2",)),
    ({"data.max_length": 257}, ("data.max_length=257 is above train.row_length=256", "Lower")),
    ({"vocabulary.size": 260}, ("vocabulary.size=260 is below 261", "256 bytes")),
    (
        {"vocabulary.separate": True},
        ("vocabulary.separate=True", "Set model.tie_embeddings=False", "model.tie_output=True"),
    ),
    (
        {"vocabulary.separate": True, "model.tie_embeddings": False, "model.output": "copy"},
        ("vocabulary.separate=True has", "model.output='copy' needs one", "Use another output"),
    ),
    *(
        ({"train.hard_attention": "reinforce", "model.decoder": decoder}, (REFUSED, "no heads"))
        for decoder in ("recurrent", "convolutional")
    ),
    *(
        ({"train.hard_attention": "reinforce", "model.output": output}, (REFUSED, repr(output)))
        for output in ("copy", "history", "marginal")
    ),
    *(
        (
            {"train.hard_attention": "reinforce", "model.cross_normalizer": name},
            (REFUSED, f"the normalizer {name!r} of", "Set model.cross_normalizer='softmax'"),
        )
        for name in ("gumbel", "monotonic", "chunkwise", "lookback")
    ),
    (
        {"train.hard_attention": "reinforce", "model.normalizer": "sink"},
        (REFUSED, "the normalizer 'sink' may not sum to 1", "='softmax'"),
    ),
    (
        {"model.normalizer": "differential", "model.num_heads": 7, "model.d_k": 64},
        ("'differential' subtracts in pairs of heads, and model.num_heads=7 is odd", "Use 8"),
    ),
    (
        {"model.cross_normalizer": "differential", "model.num_key_heads": 4},
        ("model.num_key_heads=4 they would have the same values", "Use model.num_key_heads=None"),
    ),
    *(
        (
            {"model.output": output, "model.cross_normalizer": name},
            (f"model.output={output!r} reads attention as probabilities", f"{name!r} may {why}"),
        )
        for output, name, why in (
            ("copy", "sink", "not sum to 1"),
            ("copy", "differential", "be negative"),
            ("copy", "talking_heads", "be negative"),
            ("marginal", "differential", "be negative"),
        )
    ),
    *(
        (
            {"model.normalizer": "differential", "data.alignments": True, name: 0.1},
            (f"{name}=0.1: weights of the normalizer 'differential' may be negative",),
        )
        for name in (
            "train.coverage_weight",
            "train.alignment_weight",
            "train.avoidance_weight",
            "train.fertility_weight",
            "decode.coverage_penalty",
        )
    ),
    (
        {"model.normalizer": "differential", "train.agreement_weight": 0.1},
        ("train.agreement_weight=0.1: weights of the normalizer 'differential' may be negative",),
    ),
    *(
        (
            {"train.hard_attention": "reinforce", "model.attention_memory": memory},
            (REFUSED, f"model.attention_memory={memory!r} would remember", "Use model."),
        )
        for memory in ("coverage", "coverage_gru", "coverage_embedding", "markov")
    ),
    (
        {"train.hard_attention": "reinforce", "train.agreement_weight": 0.1},
        ("train.hard_attention=reinforce does not go with it", "Leave one of them out"),
    ),
    (
        {
            "train.hard_attention": "reinforce",
            "train.alignment_context": "full",
            "train.alignment_weight": 1.0,
            "data.alignments": True,
        },
        (REFUSED, "train.alignment_context='full' predicts nothing", "Leave one of them out"),
    ),
    ({"train.hard_attention": "gumbel"}, ("'gumbel' is not known", "'reinforce'")),
    ({"model.tie_output": True}, ("model.tie_output=True changes nothing", "Leave one out")),
    ({"vocabulary.kind": "word"}, ("vocabulary.kind='word'", "'bpe', 'unigram'")),
    ({"vocabulary.normalization": "nfc"}, ("vocabulary.normalization='nfc'", "'identity'")),
    ({"vocabulary.max_lines": 0}, ("vocabulary.max_lines=0 is below 1",)),
    ({"train.steps": 0}, ("train.steps=0 is below 1", "100000 (base)")),
    ({"train.tokens_per_batch": 0}, ("train.tokens_per_batch=0 is below 1",)),
    ({"train.row_length": 1}, ("train.row_length=1 is below 2",)),
    ({"train.rows_multiple": 0}, ("train.rows_multiple=0 is below 1",)),
    ({"train.label_smoothing": 1.0}, ("train.label_smoothing=1.0 is not in [0, 1)", "0.1")),
    ({"train.schedule": "cosin"}, ("train.schedule='cosin'", "mean 'cosine'")),
    ({"train.peak_learning_rate": 0.0}, ("train.peak_learning_rate=0.0 is not in (0, 3.4e+38)",)),
    ({"train.peak_learning_rate": math.inf}, ("train.peak_learning_rate=inf",)),
    ({"train.warmup_steps": 0}, ("train.warmup_steps=0", "at least 1")),
    ({"train.warmup_steps": 0, "train.peak_learning_rate": 1e-3}, ("train.warmup_steps=0",)),
    (
        {"train.warmup_steps": 0, "train.schedule": "linear", "train.decay_steps": 9},
        ("train.warmup_steps=0", "or set train.peak_learning_rate"),
    ),
    ({"train.warmup_steps": -1}, ("train.warmup_steps=-1 is below 0",)),
    ({"train.schedule": "linear"}, ("train.decay_steps=None", "usually to train.steps=100000")),
    (
        {"train.schedule": "cosine", "train.decay_steps": 4_000},
        ("train.decay_steps=4000 must be above train.warmup_steps=4000", "'cosine'"),
    ),
    ({"train.adam_b1": 1.0}, ("train.adam_b1=1.0 is not in [0, 1)", "0.9")),
    ({"train.adam_b2": 1.5}, ("train.adam_b2=1.5 is not in [0, 1)", "0.98")),
    ({"train.adam_epsilon": 0.0}, ("train.adam_epsilon=0.0 is not in (0, 3.4e+38)",)),
    ({"train.clip_norm": 0.0}, ("train.clip_norm=0.0 is not in (0, 3.4e+38)", "None turns")),
    ({"train.accumulate_steps": 0}, ("train.accumulate_steps=0 is below 1",)),
    ({"train.max_skipped": 0}, ("train.max_skipped=0 is below 1",)),
    ({"train.init_from": ""}, ("train.init_from=''", "a run's folder")),
    ({"train.wandb_project": ""}, ("train.wandb_project=''", "Give its name, or None")),
    ({"train.log_every": 0}, ("train.log_every=0 is below 1",)),
    ({"train.valid_every": 0}, ("train.valid_every=0 is below 1",)),
    ({"train.checkpoint_every": 0}, ("train.checkpoint_every=0 is below 1",)),
    ({"train.keep_last": 0}, ("train.keep_last=0 is below 1",)),
    ({"train.data_workers": -1}, ("train.data_workers=-1 is below 0",)),
    ({"mesh.data": 0}, ("mesh.data=0", "at least 1, or -1")),
    ({"mesh.tensor": -2}, ("mesh.tensor=-2", "at least 1, or -1")),
    ({"mesh.fsdp": -1}, ("mesh.data and mesh.fsdp are both -1", "only one")),
    ({"decode.beam_size": 0}, ("decode.beam_size=0 is below 1", "greedy")),
    ({"decode.length_penalty": -0.5}, ("decode.length_penalty=-0.5 is not in [0, 10)",)),
    ({"decode.penalty": "pow"}, ("decode.penalty='pow'", "'gnmt', 'power'")),
    ({"decode.max_extra_length": -1}, ("decode.max_extra_length=-1 is below 0",)),
    ({"decode.max_length": 1}, ("decode.max_length=1 is below 2",)),
    ({"decode.tokens_per_batch": 511}, ("decode.tokens_per_batch=511 is below decode.max_length",)),
    ({"seed": -1}, ("seed=-1 is below 0",)),
    ({"seed": 2**32}, ("seed=4294967296 is above 4294967295",)),
]

# Changes that are just inside the limits above.
FINE: list[dict[str, Any]] = [
    {},
    {"model.num_heads": 7, "model.d_k": 64},
    {"model.d_model": 511, "model.d_k": 64, "model.positions": "learned"},
    {"model.positions": "sinusoidal_t2t", "model.d_model": 4, "model.num_heads": 1},
    {"model.positions": "rotary", "model.d_k": 2, "model.cross_score": "additive"},
    {"model.wait_k": 3, "model.wait_k_max": 3},
    {"model.watched_heads": 8},
    {"model.attended_keys": 4, "model.cross_normalizer": "top_k"},
    {"model.relative_distance": 4, "model.positions": "contextual"},
    {"model.normalizer": "sink", "train.coverage_weight": 0.1},
    {"model.normalizer": "sink", "model.decoder": "recurrent", "model.output": "copy"},
    {"model.normalizer": "sink", "model.output": "marginal"},
    {
        "model.normalizer": "differential",
        "model.cross_normalizer": "softmax",
        "model.output": "copy",
        "decode.coverage_penalty": 0.1,
    },
    {"model.normalizer": "differential", "model.num_key_heads": 8},
    *(
        {
            "data.alignments": True,
            "train.alignment_weight": 0.1,
            "train.alignment_context": "full",
            "model.positions": positions,
        }
        for positions in ("alibi", "kerple", "rotary", "contextual")
    ),
    {"model.dropout": 0.0, "train.label_smoothing": 0.0, "decode.length_penalty": 0.0},
    *(
        {"model.dropout": 0.0, f"model.{name}_dropout": 0.1, "train.consistency_weight": 1.0}
        for name in ("attention", "activation")
    ),
    {
        "model.positions": "learned",
        "model.max_positions": 128,
        "train.row_length": 128,
        "decode.max_length": 128,
    },
    {"data.src": "de", "data.tgt": "en", "data.valid": ("valid",)},
    {
        "data.source": "files",
        "data.path": "x",
        "data.train": ("b[9:]",),
        "data.valid": ("b[:9]", "c"),
    },
    {"data.max_length": 256},
    {"vocabulary.size": 261, "seed": 2**32 - 1},
    {"train.schedule": "linear", "train.decay_steps": 4_001},
    {"train.schedule": "constant", "train.warmup_steps": 0, "train.peak_learning_rate": 1e-3},
    {"mesh.data": 1, "mesh.tensor": -1},
    {"decode.tokens_per_batch": 512, "decode.max_extra_length": 0, "decode.beam_size": 1},
]


def name_of(case: object) -> str:
    return ",".join(f"{k}={v}" for k, v in case.items()) if isinstance(case, dict) else ""


@pytest.mark.parametrize(("diff", "words"), BAD, ids=name_of)
def test_check_names_key_value_and_fix(diff, words):
    with pytest.raises(ConfigError) as caught:
        check(with_values(Config(), GOOD | diff), KEYS)
    message = str(caught.value)
    assert all(word in message for word in words), message
    assert "\n" not in message


@pytest.mark.parametrize("diff", FINE, ids=name_of)
def test_check_allows_values_just_inside_the_limits(diff):
    check(with_values(Config(), GOOD | diff), KEYS)


def test_an_old_run_may_have_settings_that_nothing_reads():
    check(with_values(Config(), {"data.source": "grammar", "data.train": ("train[:9]",)}))
    check(with_values(Config(), GOOD | {"model.stride": 4}))


def test_what_reads_a_key_is_a_setting_that_there_is():
    readers = [reader for key in KEYS.values() for reader in key.read_with]
    assert len(readers) > 25
    for reader in readers:
        name, has_value, value = reader.partition("=")
        assert not has_value or value in KEYS[name].valid_choices()


def test_check_names_everything_that_is_wrong():
    with pytest.raises(ConfigError, match=r"model.dropout=2.0.*train.steps=0"):
        check(with_values(Config(), {"model.dropout": 2.0, "train.steps": 0}))
