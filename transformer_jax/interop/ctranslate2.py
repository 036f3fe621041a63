"""Reads a CTranslate2 folder: model.bin, config.json, vocabularies. It does not need the engine.

The engine adds a table of positions to its input. A table of sinusoids is recognized, whether its
features are in halves or interleaved; any other one becomes learned positions. A file without a
table means OpenNMT-tf's sinusoids, which begin at position 1, so they become learned ones too.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from transformer_jax.config.model import ModelConfig
from transformer_jax.errors import DataError, UserError
from transformer_jax.files import read_json
from transformer_jax.interop.block import POSITIONS, Weights, halves_first
from transformer_jax.interop.ctranslate2_vocabulary import bundle_of, read_tokens, special_ids
from transformer_jax.interop.exported import LEAST_POSITIONS
from transformer_jax.interop.huggingface import NORMALIZES
from transformer_jax.interop.imported import Imported, imported
from transformer_jax.interop.model_bin import ModelBin, read_model_bin
from transformer_jax.model.positions.choices import paper_wavelengths, sinusoids, t2t_wavelengths

FILE, CONFIG = "model.bin", "config.json"
SIDES = {"encoder": "source", "decoder": "target"}
# Heads by the name of the specification, for files that do not give their number.
HEADS = {"TransformerSpec": 8, "TransformerBase": 8, "TransformerBig": 16}
ACTIVATIONS = {"relu": 0, "swish": 2, "gelu": 3}  # the engine's numbers
# The engine's parts of a layer, and ours; a linear map there joins one, two or three of ours.
PARTS = {
    "self_attention/linear_0": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attention/linear_1": ("self_attn.out_proj",),
    "self_attention/layer_norm": ("self_attn_layer_norm",),
    "attention/linear_0": ("encoder_attn.q_proj",),
    "attention/linear_1": ("encoder_attn.k_proj", "encoder_attn.v_proj"),
    "attention/linear_2": ("encoder_attn.out_proj",),
    "attention/layer_norm": ("encoder_attn_layer_norm",),
    "ffn/linear_0": ("fc1",),
    "ffn/linear_1": ("fc2",),
    "ffn/layer_norm": ("final_layer_norm",),
}
NORM = "layer_norm"
EPSILON, BEAMS = 1e-5, 2  # the engine's defaults
LAYER = re.compile(r"(encoder|decoder)/layer_(\d+)/")
NO_EFFECT = ("decoder/alibi_use_positive_positions", "decoder/scale_alibi")  # without alibi
SIMILAR = 1e-3  # allows for a table of positions in float16


class Tables(NamedTuple):
    """The matrices with a row for each token, and the output's bias."""

    source: np.ndarray
    target: np.ndarray
    output: np.ndarray
    bias: np.ndarray | None


class Unread:
    """The parts of a foreign model that nothing has read yet: in the end, what ours cannot have.

    Switches that are off, and settings that are null, have no effect and do not count.
    """

    def __init__(self, parts: Mapping[str, Any]) -> None:
        """Takes arrays, attributes and settings by name."""
        self.parts = dict(parts)
        self.wrong: list[str] = []  # parts that were read, with values that ours cannot have

    def take(self, name: str, otherwise: Any = None) -> Any:
        """Removes and returns a part; `otherwise` if there is none."""
        return self.parts.pop(name, otherwise)

    def number(self, name: str, otherwise: Any = None) -> Any:
        """Removes and returns an attribute or a setting, as a Python number."""
        return np.asarray(self.take(name, otherwise)).item()

    def array(self, *names: str) -> np.ndarray:
        """Removes and returns the first of these arrays. Raises DataError if there is none."""
        for name in names:
            if name in self.parts:
                return np.asarray(self.parts.pop(name), np.float32)
        raise DataError(
            f"{FILE} has no {' or '.join(names)}: it is not complete, or of a model that ours "
            "cannot be."
        )

    def of_both(self, name: str, otherwise: Any) -> Any:
        """An attribute that both sides have to share; in old files the model has it."""
        common = self.take(name, otherwise)
        encoder, decoder = (self.number(f"{side}/{name}", common) for side in SIDES)
        if encoder != decoder:
            self.wrong.append(f"encoder/{name}={encoder} beside decoder/{name}={decoder}")
        return encoder

    def remaining(self) -> list[str]:
        """What ours cannot have; settings with their values."""
        found = list(self.wrong)
        for name, x in sorted(self.parts.items()):
            if np.ndim(x):
                found.append(name)
            elif np.asarray(x).item() and name not in NO_EFFECT:
                found.append(f"{name}={np.asarray(x).item()!r}")
        return found


def read_ctranslate2(folder: Path, languages: tuple[str, str]) -> Imported:
    """The model of a folder, in float32 whatever the type of its weights.

    Args:
      folder: what one of CTranslate2's converters wrote, or `export`.
      languages: of source and target, for the normalizer of punctuation; it is left out unless
        `export` wrote that the model was trained with it.

    Raises:
      UserError: a file is missing or damaged, or the model has parts that ours cannot have.
    """
    try:
        return _read(folder, languages)
    except (ValueError, TypeError, IndexError, AttributeError) as error:  # arrays have wrong shapes
        said = " ".join(str(error).split())[:200]
        raise DataError(f"{folder} cannot be imported, its parts do not fit: {said}.") from None


def _read(folder: Path, languages: tuple[str, str]) -> Imported:
    file = read_model_bin(folder / FILE)
    if file.spec not in HEADS or file.revision < 2:
        raise UserError(
            f"{folder} cannot be imported: it is a {file.spec} of revision {file.revision}. Known "
            f"are {', '.join(HEADS)} from revision 2."
        )
    settings = _settings(folder, file)
    parts = Unread({**file.arrays, **settings})
    tables = Tables(
        parts.array("encoder/embeddings_0/weight", "encoder/embeddings/weight"),
        parts.array("decoder/embeddings/weight"),
        parts.array("decoder/projection/weight"),
        parts.take("decoder/projection/bias"),
    )
    unknown, end = (parts.take(f"{CONFIG}: {name}_token") for name in ("unk", "eos"))
    start = parts.take(f"{CONFIG}: decoder_start_token")
    parts.take(f"{CONFIG}: bos_token")  # only for sources, which would be add_source_bos
    from_zero = bool(parts.take("decoder/start_from_zero_embedding"))
    if from_zero:
        start = None
    elif start is None:
        parts.wrong.append("decoder_start_token=None")
    tokens = [
        read_tokens(folder, side, unknown, len(table))
        for side, table in zip(SIDES.values(), tables[:2], strict=True)
    ]
    special = [special_ids(folder, own, unknown, end, start) for own in tokens]
    if start is not None and special[1].start is None:
        raise DataError(f"{folder}: its decoder_start_token, {start!r}, is not in its vocabulary.")
    config, weights, halves = _model(parts, tables, HEADS[file.spec], tokens[0] == tokens[1])
    if from_zero:  # MarianMT of transformers, whose tokenizer adds EOS if the engine does not
        config["source_eos"] = True
    elif start == end and not config["source_eos"]:
        parts.wrong.append("sources, to which its tokenizer adds tokens (add_source_eos=false)")
    if not special[1].are_ours:
        config["output_bias"] = True  # for subwords that only ours has
    if not parts.take(f"{CONFIG}: {NORMALIZES}"):
        languages = ("", "")
    if wrong := parts.remaining():
        more = f" and {len(wrong) - 5} others" if len(wrong) > 5 else ""
        raise UserError(
            f"{folder} cannot be imported: ours cannot have its {', '.join(wrong[:5])}{more}."
        )
    bundle = bundle_of(folder, tokens, special, languages)
    # The engine's own search, which never writes an empty translation.
    decode = {"penalty": "power", "length_penalty": 1.0, "beam_size": BEAMS, "min_length": 1}
    both = special[0], special[1]
    return imported(weights, ModelConfig(**config), both, bundle, decode, halves)


def _settings(folder: Path, file: ModelBin) -> dict[str, Any]:
    """config.json's values. Before version 6 they are arrays, which are removed there."""
    if file.version >= 6:
        return {f"{CONFIG}: {name}": x for name, x in read_json(folder / CONFIG).items()}
    found: dict[str, Any] = {}
    for name, usual in (("unk_token", "<unk>"), ("bos_token", "<s>"), ("eos_token", "</s>")):
        own = file.arrays.pop(name, None)
        found[name] = usual if own is None else own.tobytes().decode(errors="replace")
    for name in ("bos", "eos"):
        found[f"add_source_{name}"] = bool(file.arrays.pop(f"with_source_{name}", False))
    has_begin = bool(file.arrays.pop("with_target_bos", True))
    found["decoder_start_token"] = found["bos_token" if has_begin else "eos_token"]
    return {f"{CONFIG}: {name}": x for name, x in found.items()}


def _model(
    parts: Unread, tables: Tables, usual_heads: int, one_vocabulary: bool
) -> tuple[dict[str, Any], Weights, bool]:
    """Our keys of the model, a block (block.py), and whether sinusoids are in halves."""
    d_model = tables.target.shape[-1]
    if d_model % 2 or d_model < 4:
        raise DataError(f"{FILE} has vectors of {d_model} features: it cannot be right.")
    weights, tying = _ends(tables, one_vocabulary)
    has_bias = any("attention/linear_" in name and "bias" in name for name in parts.parts)
    found = [LAYER.match(name) for name in parts.parts]
    depths = [len({one[2] for one in found if one and one[1] == side}) for side in SIDES]
    is_pre = bool(parts.of_both("pre_norm", True))
    for side, depth in zip(SIDES, depths, strict=True):
        for n in range(depth):
            _layer(parts, weights, side, n)
        if is_pre:
            _norm(parts, weights, f"{side}/{NORM}", f"model.{side}.layer_norm")
        _check_scale(parts, side, d_model)
    heads = parts.of_both("num_heads", usual_heads)
    own, halves = _positions(parts, weights, d_model)
    return (
        {
            **tying,
            **own,
            "num_encoder_layers": depths[0],
            "num_decoder_layers": depths[1],
            "d_model": d_model,
            "num_heads": heads,
            "d_k": _head_size(parts),
            "d_ff": len(weights["model.encoder.layers.0.fc1.bias"]) if depths[0] else 0,
            "activation": _activation(parts),
            "norm": "pre" if is_pre else "post",
            "norm_epsilon": parts.number(f"{CONFIG}: layer_norm_epsilon") or EPSILON,
            "attention_bias": has_bias,
            "source_eos": bool(parts.take(f"{CONFIG}: add_source_eos")),
            "watched_layer": _alignment(parts, "layer", -1),
            "watched_heads": _alignment(parts, "heads", 1) or None,
        },
        weights,
        halves,
    )


def _ends(tables: Tables, one_vocabulary: bool) -> tuple[Weights, dict[str, bool]]:
    """Embeddings and output under transformers' names, and which of them are one matrix."""
    is_tied = np.array_equal(tables.target, tables.output)
    is_one = is_tied and one_vocabulary and np.array_equal(tables.source, tables.target)
    bias = np.zeros(len(tables.target), np.float32) if tables.bias is None else tables.bias
    weights: Weights = {"final_logits_bias": bias}
    if is_one:
        weights["model.shared.weight"] = tables.target
    else:
        weights["model.encoder.embed_tokens.weight"] = tables.source
        weights["model.decoder.embed_tokens.weight"] = tables.target
        weights["lm_head.weight"] = tables.output
    return weights, {
        "tie_embeddings": is_one,
        "tie_output": is_tied and not is_one,
        "output_bias": tables.bias is not None,
    }


def _check_scale(parts: Unread, side: str, d_model: int) -> None:
    """Embeddings are multiplied by the root of d_model: a switch says so, or the factor itself."""
    old = parts.take(f"{side}/embeddings/multiply_by_sqrt_depth", np.int8(1))
    scale = np.asarray(parts.take(f"{side}/scale_embeddings", old))
    is_on = bool(scale) if scale.dtype == np.int8 else np.isclose(scale, d_model**0.5)
    if not is_on:
        parts.wrong.append(f"{side}/scale_embeddings={scale.item()!r}")


def _head_size(parts: Unread) -> int | None:
    """The size of every head, if the file says it."""
    names = [name for name in parts.parts if name.endswith("attention/head_dim")]
    sizes = {parts.number(name) for name in names}
    if len(sizes) > 1:
        parts.wrong.append(f"attention/head_dim of {sorted(sizes)}")
    return max(sizes, default=None)


def _alignment(parts: Unread, what: str, otherwise: int) -> int:
    """The layer whose attention aligns, or how many of its heads; in old files the model has it."""
    common = parts.take(f"alignment_{what}", otherwise)
    return int(parts.number(f"decoder/alignment_{what}", common))


def _activation(parts: Unread) -> str:
    number = parts.of_both("activation", ACTIVATIONS["relu"])
    names = {known: name for name, known in ACTIVATIONS.items()}
    if number not in names:
        parts.wrong.append(f"activation={number}")
    return names.get(number, "relu")


def parts_of(side: str) -> dict[str, tuple[str, ...]]:
    """PARTS of a layer of the encoder or of the decoder."""
    has_cross = side == "decoder"
    return {x: ours for x, ours in PARTS.items() if has_cross or not x.startswith("attention/")}


def _layer(parts: Unread, weights: Weights, side: str, n: int) -> None:
    """One layer of the engine under transformers' names, biases that it lacks as zeros."""
    for part, ours in parts_of(side).items():
        own, names = f"{side}/layer_{n}/{part}", [f"model.{side}.layers.{n}.{x}" for x in ours]
        if part.endswith(NORM):
            _norm(parts, weights, own, names[0])
            continue
        weight = parts.array(f"{own}/weight")
        bias = parts.take(f"{own}/bias")
        bias = np.zeros(len(weight), np.float32) if bias is None else bias
        if len(weight) % len(names):
            raise DataError(f"{own} has {len(weight)} rows for {len(names)} maps.")
        for kind, x in (("weight", weight), ("bias", bias)):
            pieces = np.split(x, len(names))
            weights |= {f"{name}.{kind}": x for name, x in zip(names, pieces, strict=True)}


def _norm(parts: Unread, weights: Weights, scope: str, name: str) -> None:
    weights[f"{name}.weight"] = parts.array(f"{scope}/gamma")
    weights[f"{name}.bias"] = parts.array(f"{scope}/beta")


def _positions(parts: Unread, weights: Weights, d_model: int) -> tuple[dict[str, Any], bool]:
    """Our keys of positions, and whether sinusoids are in halves; adds learned tables."""
    tables = []
    for side in SIDES:
        table = parts.take(f"{side}/position_encodings/encodings")
        if table is None:
            # OpenNMT-tf's sinusoids: tensor2tensor's in halves, but the first position is 1, not 0.
            ours = sinusoids(LEAST_POSITIONS + 1, d_model, t2t_wavelengths)
            table = halves_first(ours[1:], 1)
        tables.append(np.asarray(table, np.float32))
    kinds = {_kind(table) for table in tables}
    if len(kinds) == 1 and (kind := kinds.pop()) is not None:
        return {"positions": kind[0]}, kind[1]
    length = min(map(len, tables))
    for name, table in zip(POSITIONS.values(), tables, strict=True):
        weights[name] = table[:length]
    return {"positions": "learned", "max_positions": length}, False


def _kind(table: np.ndarray) -> tuple[str, bool] | None:
    """The kind of positions that has this table, and whether it is in halves; None: another."""
    if not table.any():
        return "none", False
    kinds = {"sinusoidal": paper_wavelengths, "sinusoidal_t2t": t2t_wavelengths}
    for kind, wavelengths in kinds.items():
        ours = sinusoids(len(table), table.shape[1], wavelengths)
        for halves in (False, True):
            if np.allclose(table, halves_first(ours, 1) if halves else ours, atol=SIMILAR, rtol=0):
                return kind, halves
    return None
