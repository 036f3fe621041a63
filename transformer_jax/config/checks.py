"""Values that a config cannot have. An error names key, value, what is allowed and the mend."""

import difflib
from collections.abc import Iterator
from typing import Any

from transformer_jax.config.schema import (
    KEYS,
    Config,
    DataConfig,
    ModelConfig,
    TrainConfig,
    value_at,
)
from transformer_jax.errors import ConfigError

CHOICES: dict[str, tuple[str, ...]] = {
    "model.kind": ("transformer", "recurrent"),
    "model.norm": ("post", "pre"),
    "model.positions": ("sinusoidal", "learned", "none"),
    "model.dtype": ("float32", "bfloat16"),
    "data.source": ("files", "tfds", "grammar"),
    "vocabulary.kind": ("bpe", "unigram"),
    "vocabulary.normalization": ("nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "identity"),
    "train.on_save_error": ("stop", "continue"),
    "train.schedule": ("rsqrt", "linear", "cosine", "constant"),
}

# Smallest value of the whole numbers.
AT_LEAST: dict[str, int] = {
    "model.num_layers": 1,
    "model.d_model": 1,
    "model.num_heads": 1,
    "model.d_k": 1,
    "model.d_v": 1,
    "model.d_ff": 1,
    "model.d_hidden": 1,
    "model.max_positions": 1,
    "data.pairs": 1,
    "data.max_length": 2,  # a subword and the end sign
    "vocabulary.size": 261,  # 256 bytes, 4 control pieces and one more
    "vocabulary.max_lines": 1,
    "train.steps": 1,
    "train.tokens_per_batch": 1,
    "train.row_length": 2,
    "train.rows_multiple": 1,
    "train.warmup_steps": 0,
    "train.decay_steps": 1,
    "train.accumulate_steps": 1,
    "train.loss_block": 1,
    "train.max_skipped": 1,
    "train.log_every": 1,
    "train.valid_every": 1,
    "train.checkpoint_every": 1,
    "train.keep_last": 1,
    "train.data_workers": 0,
    "decode.beam_size": 1,
    "decode.max_extra_length": 0,
    "decode.max_length": 2,
    "decode.tokens_per_batch": 1,
    "seed": 0,
}

LARGEST_REAL = 3.4e38  # of float32
# Intervals of the real numbers: (low, low itself is allowed, high), high never allowed.
INTERVALS: dict[str, tuple[float, bool, float]] = {
    "model.dropout": (0.0, True, 1.0),
    "train.label_smoothing": (0.0, True, 1.0),
    "train.peak_learning_rate": (0.0, False, LARGEST_REAL),
    "train.adam_b1": (0.0, True, 1.0),
    "train.adam_b2": (0.0, True, 1.0),
    "train.adam_epsilon": (0.0, False, LARGEST_REAL),
    "train.clip_norm": (0.0, False, LARGEST_REAL),
    "decode.length_penalty": (0.0, True, LARGEST_REAL),
}

HINTS: dict[str, str] = {
    "model.dropout": "The paper uses 0.1 (base) and 0.3 (big).",
    "train.label_smoothing": "The paper uses 0.1; 0 turns it off.",
    "train.clip_norm": "None turns clipping off.",
    "train.peak_learning_rate": "None gives the paper's (d_model * warmup_steps)^-0.5.",
    "vocabulary.size": "The 256 bytes and 4 control pieces count.",
    "decode.beam_size": "1 is greedy search.",
    "decode.length_penalty": "The paper uses 0.6; 0 turns it off.",
    "train.steps": "The paper uses 100000 (base) and 300000 (big).",
}

LARGEST = 2**31 - 1  # what int32 holds: steps, lengths and sizes on a device
LARGEST_SEED = 2**32 - 1  # SentencePiece's


def check(config: Config) -> None:
    """Raises ConfigError, with all that is wrong in one line, where the config cannot be."""
    problems = list(_single_values(config))
    if not problems:  # relations between keys mean something once each key does
        problems = [
            *_model(config.model),
            *_data(config.data),
            *_training(config.train, config.data),
            *_lengths(config),
            *_mesh(config),
        ]
    if problems:
        raise ConfigError(" ".join(problems))


def _single_values(config: Config) -> Iterator[str]:
    for name in KEYS:
        value = value_at(config, name)
        if value is None:
            continue
        problem = _choice(name, value) or _range(name, value)
        if problem:
            yield problem
    if config.seed > LARGEST_SEED:
        yield f"seed={config.seed} is above {LARGEST_SEED}. Choose a smaller one."


def _choice(name: str, value: Any) -> str:
    if name not in CHOICES or value in CHOICES[name]:
        return ""
    valid = ", ".join(map(repr, CHOICES[name]))
    near = difflib.get_close_matches(value, CHOICES[name], n=1)
    mend = f" Did you mean {near[0]!r}?" if near else ""
    return f"{name}={value!r} is not known; valid choices: {valid}.{mend}"


def _range(name: str, value: Any) -> str:
    if type(value) is int and value > LARGEST and name != "seed":
        problem = f"{name}={value} is above {LARGEST}."
    elif name in AT_LEAST and value < AT_LEAST[name]:
        problem = f"{name}={value} is below {AT_LEAST[name]}."
    elif name in INTERVALS and not _inside(value, *INTERVALS[name]):
        low, closed, high = INTERVALS[name]
        problem = f"{name}={value} is not in {'[' if closed else '('}{low:g}, {high:g})."
    else:
        return ""
    return f"{problem} {HINTS.get(name, f'The default is {KEYS[name].default}.')}"


def _inside(value: float, low: float, closed: bool, high: float) -> bool:
    return (low <= value if closed else low < value) and value < high  # false for NaN


def _model(model: ModelConfig) -> Iterator[str]:
    if model.kind != "transformer":
        return
    if model.d_k is None and model.d_model % model.num_heads:
        yield (
            f"model.d_model={model.d_model} is not divisible by model.num_heads={model.num_heads}, "
            "and model.d_k is not set. Change one of them, or set model.d_k."
        )
    if model.positions == "sinusoidal" and model.d_model % 2:
        yield (
            f"model.d_model={model.d_model} is odd: sinusoidal positions pair sines with cosines. "
            f"Use {model.d_model + 1}, or model.positions='learned'."
        )


def _data(data: DataConfig) -> Iterator[str]:
    if data.source == "files" and not data.path:
        yield (
            "data.path is not set, and data.source='files' needs the folder of the text files: "
            "add --config.data.path=FOLDER."
        )
    if data.source == "tfds" and not data.name:
        yield (
            "data.name is not set, and data.source='tfds' needs a data set: "
            "add --config.data.name=wmt14_translate/de-en, for example."
        )
    if data.source == "grammar" and {data.src, data.tgt} != {"en", "de"}:
        yield (
            f"data.src={data.src!r}, data.tgt={data.tgt!r}: the built-in corpus is in 'en' and "
            "'de'. Use these, or data.source='files'."
        )
    elif not data.src or data.src == data.tgt:
        yield (
            f"data.src={data.src!r}, data.tgt={data.tgt!r} must be two different suffixes, "
            "such as 'en' and 'de'."
        )
    for name in ("train", "valid"):  # a run without a test split is no mistake
        if not getattr(data, name):
            yield f"data.{name} is empty: name a split or file stem, such as ('{name}',)."
    for name in ("train", "valid", "test"):
        for stem in getattr(data, name):
            if not stem or "," in stem:
                yield (
                    f"data.{name} holds {stem!r}, which names no split or file. For several, "
                    f"repeat the flag: --config.data.{name}=A --config.data.{name}=B."
                )


def _training(train: TrainConfig, data: DataConfig) -> Iterator[str]:
    if train.warmup_steps < 1 and (train.schedule == "rsqrt" or train.peak_learning_rate is None):
        yield (
            f"train.warmup_steps={train.warmup_steps} leaves the learning rate undefined. Use at "
            "least 1, or set train.peak_learning_rate and another train.schedule than 'rsqrt'."
        )
    if train.schedule in ("linear", "cosine"):
        decay = train.decay_steps
        if decay is None or decay <= train.warmup_steps:
            yield (
                f"train.decay_steps={decay} must be above train.warmup_steps={train.warmup_steps} "
                f"with train.schedule={train.schedule!r}: it is where the learning rate reaches 0, "
                f"often train.steps={train.steps}."
            )
    if data.max_length > train.row_length:
        yield (
            f"data.max_length={data.max_length} is above train.row_length={train.row_length}: a "
            "pair must fit into a row. Lower the first or raise the second."
        )
    if train.init_from == "":
        yield "train.init_from='' names no run. Give a run's folder, or None."


def _lengths(config: Config) -> Iterator[str]:
    positions = config.model.max_positions
    if config.model.positions == "learned":
        for name in ("data.max_length", "train.row_length", "decode.max_length"):
            length = value_at(config, name)
            if length > positions:
                yield (
                    f"model.max_positions={positions} is too small for {name}={length}: learned "
                    f"positions end there. Raise the first or lower the second."
                )
    if config.decode.tokens_per_batch < config.decode.max_length:
        yield (
            f"decode.tokens_per_batch={config.decode.tokens_per_batch} is below decode.max_length="
            f"{config.decode.max_length}: the longest sentence must fit. Raise it or lower that."
        )


def _mesh(config: Config) -> Iterator[str]:
    sizes = {name: value_at(config, name) for name in KEYS if name.startswith("mesh.")}
    for name, size in sizes.items():
        if size < 1 and size != -1:
            yield f"{name}={size} must be at least 1, or -1 for the devices that are left over."
    left_over = [name for name, size in sizes.items() if size == -1]
    if len(left_over) > 1:
        yield f"{' and '.join(left_over)} are both -1: only one axis can take what is left over."
