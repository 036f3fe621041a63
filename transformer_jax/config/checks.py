"""What a config must satisfy. An error names the key, its value, what is allowed and the fix."""

import difflib
import importlib
from collections.abc import Collection, Iterator
from typing import Any

from transformer_jax.config.data import DataConfig
from transformer_jax.config.decode import PARALLEL, DecodeConfig
from transformer_jax.config.keys import Key
from transformer_jax.config.model import ModelConfig
from transformer_jax.config.schema import KEYS, Config, value_at
from transformer_jax.config.texts import Text
from transformer_jax.config.train import TrainConfig
from transformer_jax.errors import ConfigError
from transformer_jax.kinds import fits

MODEL, FEATURES = "transformer_jax.model.sides.choices", "transformer_jax.text.features"
WATCHING = ("coverage", "alignment", "avoidance", "fertility", "agreement")
# Functions of that module which say why the model is none for a key that has not its default.
ASKED = {
    "train.alignment_context": "full_context_problems",
    "train.hard_attention": "draw_problems",
    **dict.fromkeys((f"train.{loss}_weight" for loss in WATCHING), "watch_problems"),
    "decode.coverage_penalty": "watch_problems",
}
LARGEST_INT = 2**31 - 1  # int32 holds steps, lengths and sizes on a device
LARGEST_FLOAT, SMALLEST_FLOAT = 3.4e38, 1.2e-38  # in float32; smaller ones count as 0


def check(config: Config, given: Collection[str] = ()) -> None:
    """Raises ConfigError if the config is invalid. Its one line names everything that is wrong.

    Args:
      given: keys that a config file, a flag or a caller sets now. Each has to have an effect.
    """
    check_values(config)  # relations between keys mean something only if each key is valid
    problems = [
        *_of_the_model(config),
        *_unread(config, given),
        *_excluded(config),
        *_vocabularies(config),
        *config.data.problems(),
        *_training(config.train, config.data),
        *_dropout(config),
        *_lengths(config),
        *_mesh(config),
        *_search(config.decode),
        *_parallel(config),
        *_without_pairs(config),
        *_sources(config),
    ]
    if problems:
        raise ConfigError(" ".join(problems))


def check_values(config: Config) -> None:
    """Raises ConfigError if a key has a value that it cannot have, whatever the other keys are."""
    values = [(key, value_at(config, name)) for name, key in KEYS.items()]
    problems = [_problem(key, value) for key, value in values if value is not None]
    if any(problems):
        raise ConfigError(" ".join(filter(None, problems)))


def check_training(train: TrainConfig) -> None:
    """The same for the section `train` alone, for a program that made one without a config."""
    check_values(Config(train=train))
    if problems := [*_schedule(train)]:
        raise ConfigError(" ".join(problems))


def _vocabularies(config: Config) -> Iterator[str]:
    if config.vocabulary.separate and config.model.encoder == "none":
        yield "vocabulary.separate=True is for two sides: a language model has one. Leave it out."
    elif config.vocabulary.separate:
        yield from apart_problems(config.model, "vocabulary.separate=True")


def apart_problems(model: ModelConfig, what: str) -> Iterator[str]:
    """Why the model needs one vocabulary, and not a vocabulary for each side as `what` has."""
    needs_one = f"{what} has a vocabulary for each side, and model.%s needs one for both. %s"
    if model.tie_embeddings:
        fix = "Set model.tie_embeddings=False and, as usual, model.tie_output=True."
        yield needs_one % ("tie_embeddings=True", fix)
    if model.output == "copy":
        yield needs_one % ("output='copy'", "Use another output.")
    if model.code_in_decoder:
        yield needs_one % ("code_in_decoder=True", "Leave it out.")


def _dropout(config: Config) -> Iterator[str]:
    """What needs dropout, or merges that it can skip, and does not have them."""
    vocabulary, model, weight = config.vocabulary, config.model, config.train.consistency_weight
    if vocabulary.dropout and vocabulary.kind != "bpe":
        yield (
            f"vocabulary.dropout={vocabulary.dropout} skips merges, and vocabulary.kind="
            f"{vocabulary.kind!r} has none. Use vocabulary.kind='bpe'."
        )
    if weight and not (model.dropout or model.attention_dropout or model.activation_dropout):
        yield (
            f"train.consistency_weight={weight} compares two dropout masks, and there is no "
            "dropout. Set model.dropout, or train.consistency_weight=0."
        )


def _problem(key: Key, value: Any) -> str:
    """What is wrong with the value, whatever the other keys are; empty if it is valid."""
    if not fits(value, key.kind):  # of a config that a program made
        return (
            f"{key.name}={value!r:.60} is of type {type(value).__name__}; expected "
            f"{key.kind.__name__}."
        )
    if key.kind is str:
        return _not_a_choice(key, value)
    given, hint = f"{key.name}={value}", key.hint or f"The default is {key.default}."
    if key.kind is int:
        largest = LARGEST_INT if key.at_most is None else key.at_most
        if key.at_least is not None and value < key.at_least:
            return f"{given} is below {key.at_least}. {hint}"
        return f"{given} is above {largest}. {hint}" if value > largest else ""
    if key.kind is float:
        high = LARGEST_FLOAT if key.below is None else key.below
        low = -LARGEST_FLOAT if key.at_least is None else key.at_least
        inside, interval = low <= value < high, f"[{low:g}, {high:g})"
        if key.above is not None:
            inside, interval = key.above < value < high, f"({key.above:g}, {high:g})"
        if inside and 0 < abs(value) < SMALLEST_FLOAT:
            return f"{given} counts as 0 in float32. {hint}"
        return "" if inside else f"{given} is not in {interval}. {hint}"
    return ""


def _not_a_choice(key: Key, value: str) -> str:
    if value == key.default:  # valid (tests/config/test_keys.py), without importing a registry
        return ""
    choices = key.valid_choices()
    if not choices or value in choices:
        return ""
    near = difflib.get_close_matches(value, choices, n=1)
    suggestion = f" Did you mean {near[0]!r}?" if near else ""
    valid = ", ".join(map(repr, choices))
    return f"{key.name}={value!r} is not known; valid choices: {valid}.{suggestion}"


def _of_the_model(config: Config) -> Iterator[str]:
    """Why the parts of the model do not fit each other, or what a key asks of them."""
    yield from _asked_of_the_model("problems", config.model) or ()
    for name, question in ASKED.items():
        value = value_at(config, name)
        if value and value != KEYS[name].default:
            for problem in _asked_of_the_model(question, config.model) or ():
                yield f"{name}={value!r}: {problem}"


def _excluded(config: Config) -> Iterator[str]:
    """Keys that exclude each other (`Key.excludes`)."""
    for name, key in KEYS.items():
        if not key.excludes or not holds(config, name):
            continue
        for setting, reason in key.excludes.items():
            other, _, _ = setting.partition("=")
            if holds(config, setting):
                yield (
                    f"{name}={value_at(config, name)!r} and {other}={value_at(config, other)!r} do "
                    f"not go together: {reason}. Leave one of them out."
                )


def _unread(config: Config, given: Collection[str]) -> Iterator[str]:
    """Given keys that nothing reads in this config. A default, or valid=valid, is no setting."""
    for name in given:
        key, value = KEYS[name], value_at(config, name)
        if not key.read_with or value in (key.default, (name.rpartition(".")[2],)):
            continue
        if not any(holds(config, setting) for setting in key.read_with):
            reader, has_value, wanted = key.read_with[0].partition("=")
            setting = f"{reader}={wanted!r}" if has_value else reader
            fix = f"Set {setting}, with which it is read, or leave it out"
            if reader == "decode.method" and (parallel := config.model.parallel) is not None:
                fix = f"With model.parallel={parallel!r} nothing reads it: leave it out"
            yield (
                f"{name}={value!r} changes nothing here. {fix} (of a preset: set its default, "
                f"{key.default!r})."
            )


def holds(config: Config, setting: str) -> bool:
    """Whether a config has a setting of `Key.read_with` or `Key.excludes`."""
    name, has_value, wanted = setting.partition("=")
    value = value_at(config, name)
    return value == wanted if has_value else value != KEYS[name].default


def _asked_of_the_model(question: str, config: ModelConfig) -> Any:
    """What the model package's function `question` returns; its import takes time.

    None, without that import, for the default model, which has no problems and no longest input.
    """
    if config == ModelConfig():
        return None
    return getattr(importlib.import_module(MODEL), question)(config)


def _sources(config: Config) -> Iterator[str]:
    """Several source languages need a model that reads as many, or one that reads them as one."""
    count, data = config.model.sources, config.data
    if data.src_kind != "text" or config.model.features:
        features = importlib.import_module(FEATURES).feature_count(data)
        if features != config.model.features:
            yield (
                f"model.features={config.model.features}, and a source position has {features} "
                f"numbers (data.src_kind={data.src_kind!r}; 0: subwords). Set "
                f"model.features={features}."
            )
    for name in ("masked_bands", "masked_frames"):
        if getattr(data, name) == 1:
            yield f"data.{name}=1 hides nothing: ranges have up to one less. Set 0, or 2 or more."
    if data.masked_bands > data.mel_bands:
        yield (
            f"data.masked_bands={data.masked_bands} is above data.mel_bands={data.mel_bands}: a "
            "range has no more bands than there are. Lower it."
        )
    if (config.model.encoder == "none") == bool(data.src or data.directions):
        given = "data.directions" if data.directions else f"data.src={data.src!r}"
        yield (
            f"model.encoder={config.model.encoder!r} and {given} do not go together: "
            "a language model has neither an encoder ('none') nor a source ('')."
        )
    elif count not in (1, len(data.sources)):
        yield (
            f"model.sources={count}, and the text has {len(data.sources)} source sentences "
            f"({', '.join(data.sources)}). Set model.sources={len(data.sources)}, name others in "
            "data.src, such as de,fr, or change data.context."
        )
    reasons = {
        "data.alignments": "links are those of one source sentence",
        "train.agreement_weight": "the other direction would translate into one sentence",
    }
    if data.codes and config.train.agreement_weight is not None:
        yield (
            f"train.agreement_weight={config.train.agreement_weight} trains both directions as two "
            f"models, and {data.codes[0]} begins source lines of one. Leave one of them out."
        )
    if not data.sources:
        reasons["train.valid_bleu"] = "nothing is translated"
    for name, reason in reasons.items():
        value = value_at(config, name)
        if len(data.sources) != 1 and value != KEYS[name].default:
            several = f"data.context={data.context}" if data.context else f"data.src={data.src!r}"
            yield f"{several} and {name}={value} do not go together: {reason}. Leave one out."


def _schedule(train: TrainConfig) -> Iterator[str]:
    if train.warmup_steps < 1 and (train.schedule == "rsqrt" or train.peak_learning_rate is None):
        yield (
            f"train.warmup_steps={train.warmup_steps} leaves the learning rate undefined. Use at "
            "least 1, or set train.peak_learning_rate and another train.schedule than 'rsqrt'."
        )
    if train.schedule in ("linear", "cosine"):
        decay = train.decay_steps
        if decay is None or decay <= train.warmup_steps:
            fits = train.steps > train.warmup_steps
            fix = f"Set it, usually to train.steps={train.steps}" if fits else "Warm up for less"
            yield (
                f"train.decay_steps={decay} must be above train.warmup_steps={train.warmup_steps} "
                f"with train.schedule={train.schedule!r}: the learning rate reaches 0 at "
                f"step train.decay_steps. {fix}."
            )


def _training(train: TrainConfig, data: DataConfig) -> Iterator[str]:
    yield from _schedule(train)
    # Of recordings and pictures, data.max_length limits the longer side, the source.
    if data.max_length > train.row_length and data.src_kind == "text":
        yield (
            f"data.max_length={data.max_length} is above train.row_length={train.row_length}: a "
            "pair must fit into a row. Lower the first or raise the second."
        )
    for name in ("alignment_weight", "avoidance_weight"):
        if (weight := getattr(train, name)) and not data.alignments:
            yield f"train.{name}={weight} needs links between words: set data.alignments=True."
    if train.wandb_project == "":
        yield "train.wandb_project='' names no project. Give its name, or None."
    for name in ("init_from", "teacher"):
        if getattr(train, name) == "":
            yield f"train.{name}='' names no run. Give a run's folder, or None."


def _lengths(config: Config) -> Iterator[str]:
    longest = _asked_of_the_model("longest", config.model)
    for name in ("data.max_length", "train.row_length", "decode.max_length") if longest else ():
        length = value_at(config, name)
        if length > longest:
            own = config.model.max_positions
            where = f", at {longest} source positions of 3 states each" if longest < own else ""
            yield (
                f"model.max_positions={own} is too small for {name}={length}: its tables (learned "
                f"positions, a synthesizer's) end there{where}. Raise the first or lower the "
                "second."
            )
    if config.decode.tokens_per_batch < config.decode.max_length:
        yield (
            f"decode.tokens_per_batch={config.decode.tokens_per_batch} is below decode.max_length="
            f"{config.decode.max_length}: the longest sentence must fit. Raise the "
            "first or lower the second."
        )


def _search(decode: DecodeConfig) -> Iterator[str]:
    for name in ("top_k", "top_p"):
        if decode.temperature == 0 and getattr(decode, name) is not None:
            yield f"decode.{name} changes nothing with decode.temperature=0: leave it out."
    if decode.beam_size % decode.groups:
        yield (
            f"decode.beam_size={decode.beam_size} is not a multiple of decode.groups="
            f"{decode.groups}: "
            "all groups have the same number of beams. Use --config.decode.beam_size="
            f"{2 * decode.groups}."
        )


def _parallel(config: Config) -> Iterator[str]:
    """The model and the search have to name the same way to write all subwords at once."""
    of_model, of_search = config.model.parallel, config.decode.method
    if of_model is None and of_search in PARALLEL:
        yield (
            f"decode.method={of_search!r} is for a model that was trained with model.parallel="
            f"{of_search!r}, and this one writes from left to right. Leave it out."
        )
    elif of_model not in (None, of_search):
        without = ", without --sample or --how" if of_search == "sample" else ""
        yield (
            f"model.parallel={of_model!r} writes all subwords at once, and decode.method="
            f"{of_search!r} does not. Set decode.method={of_model!r}{without}."
        )


def _without_pairs(config: Config) -> Iterator[str]:
    """Back-translation in training is between two languages, each with a code."""
    codes, model = config.data.codes, config.model
    if config.train.objective != "back_translation":
        return
    for key, texts in (("train", config.data.train), ("valid", config.data.valid)):
        without = [one for one in map(Text.of, texts) if not (one.tag or one.direction)]
        if len(codes) != 2 or (without and not config.data.directions):
            yield (
                "train.objective='back_translation' is between two languages, whose codes begin "
                f"the source lines of every text; data.{key}={','.join(texts)} has {len(without)} "
                f"texts without, and all texts have {len(codes)} codes. Name texts with a code "
                f"each, such as data.{key}=english@en,french@fr."
            )
            break
    longest, row = _asked_of_the_model("longest", model), config.train.row_length
    if longest is not None and longest <= row:
        yield (
            f"model.max_positions={model.max_positions}: train.objective='back_translation' makes "
            f"sources of targets with one more subword, so at least train.row_length + 1 = "
            f"{row + 1}."
        )
    if model.sources > 1 or model.code_in_decoder or config.vocabulary.separate:
        yield (
            "train.objective='back_translation' makes sources of targets: leave out "
            "model.sources, model.code_in_decoder and vocabulary.separate."
        )


def _mesh(config: Config) -> Iterator[str]:
    sizes = {name: value_at(config, name) for name in KEYS if name.startswith("mesh.")}
    for name, size in sizes.items():
        if size < 1 and size != -1:
            yield f"{name}={size} must be at least 1, or -1 for all remaining devices."
    left_over = [name for name, size in sizes.items() if size == -1]
    if len(left_over) > 1:
        both = " and ".join(left_over)
        yield f"{both} are both -1: only one axis can take all remaining devices."
