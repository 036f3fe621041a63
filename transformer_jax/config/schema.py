"""The config's schema: frozen dataclasses that hold every key, its default, unit and meaning.

A config file is a diff against these defaults. A key is *identity* (a later `train` on the same
folder that contradicts it is refused) unless it is declared with `free(...)`.
"""

import dataclasses
import difflib
import json
import os
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

from ml_collections import ConfigDict, config_dict

from transformer_jax.errors import ConfigError


def free(default: Any) -> Any:
    """A key that may change between two `train` calls on one folder."""
    return dataclasses.field(default=default, metadata={"free": True})


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """The Transformer (Vaswani et al. 2017, sections 3, 5.4); the defaults are its base model.

    A recurrent encoder or decoder (Bahdanau et al. 2015) has one layer, and of these keys it uses
    d_model, d_hidden, dropout and dtype.
    """

    encoder: str = "transformer"  # or "recurrent"
    decoder: str = "transformer"  # or "recurrent"
    num_layers: int = 6  # N, of the encoder and of the decoder
    num_encoder_layers: int | None = None  # None: num_layers
    num_decoder_layers: int | None = None  # None: num_layers
    d_model: int = 512
    num_heads: int = 8  # h
    d_k: int | None = None  # per head; None: d_model / num_heads
    d_v: int | None = None  # per head; None: d_k
    d_ff: int = 2048
    d_hidden: int | None = None  # recurrent only: units a layer and direction; None: d_model
    dropout: float = 0.1  # P_drop, 0 <= p < 1
    norm: str = "post"  # "post" (the paper: LayerNorm(x + sublayer(x))) or "pre"
    score: str = "scaled_dot"  # of a query and a key: "scaled_dot", "dot" or "additive"
    cross_score: str | None = None  # in encoder-decoder attention; None: score
    window: int | None = None  # positions that self-attention sees, odd; None: all of the sentence
    attention_memory: str | None = None  # "coverage": encoder-decoder weights depend on past ones
    positions: str = "sinusoidal"  # "sinusoidal", "learned", "rotary", "alibi" or "none"
    max_positions: int = 512  # learned positions only: subwords of a sentence, end sign included
    tie_embeddings: bool = True  # one matrix for source, target and output (section 3.4)
    dtype: str = "float32"  # of matrix products: "float32", "bfloat16"; parameters stay float32
    # The decoder's layer whose encoder-decoder weights other parts may ask for, such as search's
    # coverage penalty; below 0: counted from the last, and at least the first.
    watched_layer: int = -2
    watched_heads: int | None = None  # the first heads, whose mean is taken; None: all

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

    source: str = "files"  # "files", "tfds" or "grammar" (the built-in corpus)
    path: str | None = free(None)  # folder of the text files, or of the TFDS data sets
    name: str | None = None  # TFDS builder, such as "wmt14_translate/de-en"
    src: str = "en"  # suffix of the files, or TFDS language
    tgt: str = "de"
    train: tuple[str, ...] = ("train",)  # file stems (STEM.en or STEM.en.gz), or TFDS split names
    valid: tuple[str, ...] = free(("valid",))
    test: tuple[str, ...] = free(("test",))
    pairs: int = 20_000  # the built-in corpus only: training pairs to write
    max_length: int = 128  # subwords a side, end sign included; training skips, and counts, pairs
    # that are longer, or whose source is longer than a packed source row


@dataclasses.dataclass(frozen=True)
class VocabularyConfig:
    """One SentencePiece model, shared by source and target, with byte fallback."""

    size: int = 37_000  # pieces, the 256 bytes and the 4 control pieces included
    kind: str = "bpe"  # "bpe" or "unigram"
    normalization: str = "nmt_nfkc"  # or nfkc, nmt_nfkc_cf, nfkc_cf, identity (SentencePiece's)
    max_lines: int = 5_000_000  # a random sample of this many lines trains the model
    path: str | None = free(None)  # an existing .model file to use instead of training one


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    """Batches, optimizer, schedule and intervals; the defaults are the paper's (section 5)."""

    steps: int = free(100_000)  # batches to consume
    tokens_per_batch: int = 25_000  # nominal target tokens of one update, over all devices
    row_length: int = 256  # target subwords a packed row
    rows_multiple: int = 8  # rows a batch are rounded to a multiple of this
    label_smoothing: float = 0.1  # epsilon_ls, 0 <= e < 1
    schedule: str = (
        "rsqrt"  # after the warm-up: "rsqrt" (equation 3), "linear", "cosine", "constant"
    )
    peak_learning_rate: float | None = None  # None: (d_model * warmup_steps)^-0.5
    warmup_steps: int = 4_000
    decay_steps: int | None = None  # updates at which "linear" and "cosine" reach 0
    adam_b1: float = 0.9
    adam_b2: float = 0.98
    adam_epsilon: float = 1e-9
    clip_norm: float | None = None  # global norm of the gradient; None: no clipping
    accumulate_steps: int = free(1)  # micro-batches an update
    remat: bool = free(False)  # recompute each layer in the backward pass
    loss_block: int = free(2_048)  # target positions a device whose logits are held at once
    max_skipped: int = free(10)  # stop after so many non-finite updates in a row
    init_from: str | None = free(None)  # a run whose weights a new run starts from
    log_every: int = free(100)  # steps
    valid_every: int = free(1_000)  # steps
    valid_bleu: bool = False  # greedy BLEU of the validation split too; it then decides the best
    checkpoint_every: int = free(1_000)  # steps
    keep_last: int = free(20)  # checkpoints kept, beside the best
    on_save_error: str = free("stop")  # a checkpoint that cannot be written: "stop", "continue"
    data_workers: int = free(0)  # processes that prepare batches; 0: a thread of this one


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    """Devices along each axis; -1: what is left over."""

    data: int = free(-1)
    fsdp: int = free(1)
    tensor: int = free(1)


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """Search (section 6.1); beam_size 1 is greedy search."""

    beam_size: int = free(4)
    length_penalty: float = free(0.6)  # alpha of ((5 + length) / 6)^alpha (Wu et al. 2016, eq. 14)
    max_extra_length: int = free(50)  # a translation has at most source length + this many subwords
    coverage_penalty: float = free(0.0)  # beta of Wu et al. 2016, equation 14; 0: none
    max_length: int = free(512)  # subwords of a source, end sign included; longer ones are cut
    tokens_per_batch: int = free(4_096)  # source subwords, padding included, searched together


@dataclasses.dataclass(frozen=True)
class Config:
    """A run, whole."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    vocabulary: VocabularyConfig = VocabularyConfig()
    train: TrainConfig = TrainConfig()
    mesh: MeshConfig = MeshConfig()
    decode: DecodeConfig = DecodeConfig()
    seed: int = 0


class Key(typing.NamedTuple):
    """One key of the schema."""

    name: str  # dotted, such as "model.d_model"
    kind: type[Any]  # int, float, bool, str or tuple (of strings)
    optional: bool  # may be None
    free: bool  # may change between two `train` calls on one folder
    default: Any


def schema(section: type = Config, prefix: str = "") -> Iterator[Key]:
    """Every key, in the order in which the schema names them."""
    hints = typing.get_type_hints(section)
    for field in dataclasses.fields(section):
        hint, name = hints[field.name], prefix + field.name
        if dataclasses.is_dataclass(hint):
            yield from schema(typing.cast(type, hint), name + ".")
            continue
        optional = isinstance(hint, types.UnionType)  # `T | None` is the only union used
        kind = typing.get_args(hint)[0] if optional else typing.get_origin(hint) or hint
        yield Key(name, kind, optional, bool(field.metadata.get("free")), field.default)


KEYS: dict[str, Key] = {key.name: key for key in schema()}
SECTIONS = {name.split(".")[0] for name in KEYS if "." in name}


def value_at(config: Config, name: str) -> Any:
    """The value of a dotted key."""
    value: Any = config
    for part in name.split("."):
        value = getattr(value, part)
    return value


def with_values(config: Config, values: Mapping[str, Any]) -> Config:
    """The config with some dotted keys replaced. Raises ConfigError: unknown key or wrong type."""
    tree = to_dict(config)
    for name, value in values.items():
        known_key(name)
        *sections, last = name.split(".")
        (tree[sections[0]] if sections else tree)[last] = value
    return from_config_dict(tree)


def known_key(name: str) -> Key:
    """The key of that dotted name. Raises ConfigError, with the nearest, if there is none."""
    if name in KEYS:
        return KEYS[name]
    if name in SECTIONS:
        raise ConfigError(
            f"{name} is a section of the config: name a key in it, such as {_keys_in(name)}."
        )
    near = nearest_key(name)
    section = name.split(".")[0] if name.split(".")[0] in SECTIONS else ""
    mend = f"Did you mean {near}?" if near else f"Known keys: {_keys_in(section)}."
    raise ConfigError(f"{name} is not a key of the config. {mend}")


def nearest_key(name: str) -> str | None:
    """The key most like `name`: its last word elsewhere, misspelt in its section, or anywhere."""
    section, _, last = name.rpartition(".")
    lasts = {key.rpartition(".")[2]: key for key in KEYS}
    own = {key.rpartition(".")[2]: key for key in KEYS if key.startswith(section + ".")}
    for words, cutoff in ((own, 0.8), (lasts, 0.75), (own, 0.6)):
        if near := difflib.get_close_matches(last, words, n=1, cutoff=cutoff):
            return words[near[0]]
    return None


def _keys_in(section: str) -> str:
    if not section:
        return ", ".join(sorted(SECTIONS)) + ", seed"
    return ", ".join(name for name in KEYS if name.startswith(section + "."))


# Between the schema, ConfigDicts and JSON ------------------------------------------------------


def from_config_dict(raw: ConfigDict | Mapping[str, Any]) -> Config:
    """The config of a nested mapping; keys that it leaves out keep their defaults.

    Raises:
      ConfigError: an unknown key (the nearest known one is offered), or a value of the wrong type.
    """
    tree = raw.to_dict() if isinstance(raw, ConfigDict) else raw
    values: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    top: dict[str, Any] = {}
    for name, value in tree.items():
        if name not in SECTIONS:
            top[name] = _typed(known_key(str(name)), value)
        elif isinstance(value, Mapping):
            for inner, inner_value in value.items():
                values[name][inner] = _typed(known_key(f"{name}.{inner}"), inner_value)
        else:
            raise ConfigError(
                f"{name}={value!r} is not a section; expected a mapping with {_keys_in(name)}."
            )
    kinds = typing.get_type_hints(Config)
    return Config(**{section: kinds[section](**inner) for section, inner in values.items()}, **top)


def _typed(key: Key, value: Any) -> Any:
    """The value as the schema holds it: an int serves as a float, a list as a tuple."""
    if value is None and key.optional:
        return None
    if key.kind is tuple:
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return tuple(value)
    elif key.kind is float and type(value) is int:
        return float(value)
    elif type(value) is key.kind:  # exactly: a bool is no int
        return value
    expected = "a list of str" if key.kind is tuple else key.kind.__name__
    expected += " or None" if key.optional else ""
    raise ConfigError(
        f"{key.name}={value!r} is of type {type(value).__name__}; expected {expected}."
    )


def to_dict(config: Config) -> dict[str, Any]:
    """The config as nested dicts, which `from_config_dict` turns back into the same config."""
    return dataclasses.asdict(config)


def to_json(config: Config) -> str:
    """The config as JSON text, which `from_json` turns back into the same config."""
    return json.dumps(to_dict(config), indent=2) + "\n"


def from_json(text: str) -> Config:
    """The config that `to_json` wrote. Raises ConfigError: not JSON, or not a config."""
    try:
        tree = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"the config is not JSON (line {error.lineno}: {error.msg}).") from None
    except (ValueError, RecursionError) as error:  # a number of 5,000 digits, brackets 10,000 deep
        raise ConfigError(f"the config is no JSON of a config ({error}).") from None
    if not isinstance(tree, dict):
        raise ConfigError(f"the config is a JSON {type(tree).__name__}; expected an object.")
    return from_config_dict(tree)


def to_config_dict(config: Config) -> ConfigDict:
    """The config as a ConfigDict of every key, the unset optional ones as typed placeholders."""
    tree = ConfigDict(to_dict(config))
    for key in KEYS.values():
        *sections, last = key.name.split(".")
        holder = tree[sections[0]] if sections else tree
        if key.optional:
            field = config_dict.placeholder(key.kind)
            field.set(holder[last])
            holder[last] = field
    return tree


def default_config_dict() -> ConfigDict:
    """The schema's defaults, whole: what the `get_config` of a config file starts from."""
    return to_config_dict(Config())


def with_absolute_paths(config: Config) -> Config:
    """The config as it can be read from any working directory."""
    paths = {
        name: os.path.expanduser(value_at(config, name) or "")
        for name in ("data.path", "vocabulary.path", "train.init_from")
    }
    known = {name: path for name, path in paths.items() if path and path[0] != "~"}
    local = {name: os.path.abspath(path) for name, path in known.items() if "://" not in path}
    return with_values(config, local)


def identity_differences(old: Config, new: Config) -> list[str]:
    """One line for each identity key on which the two configs differ."""
    return [
        f"{name}: the run has {value_at(old, name)!r}, the config now says {value_at(new, name)!r}"
        for name, key in KEYS.items()
        if not key.free and value_at(old, name) != value_at(new, name)
    ]


def free_differences(old: Config, new: Config) -> list[str]:
    """`KEY is VALUE (was VALUE)` for each free key on which the two configs differ."""
    return [
        f"{name} is {value_at(new, name)!r} (was {value_at(old, name)!r})"
        for name, key in KEYS.items()
        if key.free and value_at(old, name) != value_at(new, name)
    ]
