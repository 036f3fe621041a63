"""CTranslate2's files written obviously: a model.bin of each version, and a folder.

From CTranslate2: python/ctranslate2/specs/model_spec.py (its writer, version 6) and
src/models/model.cc (its reader, which knows how older files differ).
"""

import json
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.interop import marian_by_hand as marian

Arrays = dict[str, Any]
TYPES = ["float32", "int8", "int16", "int32", "float16", ml_dtypes.bfloat16]
SETTINGS = {
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "decoder_start_token": "</s>",
    "add_source_bos": False,
    "add_source_eos": True,
    "layer_norm_epsilon": marian.EPSILON,
}


def model_bin(
    arrays: Arrays,
    version: int = 6,
    aliases: dict[str, str] | None = None,
    spec: str = "TransformerSpec",
    revision: int = 7,
) -> bytes:
    """The bytes of a model.bin."""

    def string(text: str) -> bytes:
        return struct.pack("<H", len(text) + 1) + text.encode() + b"\0"

    parts = [struct.pack("<I", version), string(spec), struct.pack("<II", revision, len(arrays))]
    for name, value in arrays.items():
        x = np.asarray(value)
        parts += [string(name), struct.pack(f"<B{x.ndim}I", x.ndim, *x.shape)]
        kind = [np.dtype(one) for one in TYPES].index(x.dtype)
        if version >= 4:
            parts.append(struct.pack("<BI", kind, x.nbytes))
        else:
            parts.append(struct.pack("<BI", x.itemsize, x.size))
        parts.append(x.tobytes())
    if version >= 3:
        parts.append(struct.pack("<I", len(aliases or {})))
        parts += [string(text) for pair in (aliases or {}).items() for text in pair]
    return b"".join(parts)


def from_marian(arrays: marian.Arrays, options: dict) -> Arrays:
    """The arrays and attributes into which CTranslate2's own converter turns a Marian model."""
    d_model = options["dim-emb"]
    is_pre = "n" in options["transformer-preprocess"]
    before = "_pre" if is_pre else ""
    number = {"relu": 0, "swish": 2}[options["transformer-ffn-activation"]]
    found: Arrays = {"decoder/start_from_zero_embedding": np.int8(1)}

    def norm(there: str, here: str, suffix: str = before) -> None:
        for ours, theirs in (("scale", "gamma"), ("bias", "beta")):
            found[f"{there}/{theirs}"] = arrays[f"{here}_{ours}{suffix}"].reshape(-1)

    def linear(there: str, here: Sequence[tuple[str, str]]) -> None:
        found[f"{there}/weight"] = np.concatenate([arrays[w].T for w, _ in here])
        found[f"{there}/bias"] = np.concatenate([arrays[b].reshape(-1) for _, b in here])

    for side, depth in (("encoder", options["enc-depth"]), ("decoder", options["dec-depth"])):
        found[f"{side}/num_heads"] = np.int16(options["transformer-heads"])
        found[f"{side}/pre_norm"] = np.int8(is_pre)
        found[f"{side}/activation"] = np.int8(number)
        found[f"{side}/scale_embeddings"] = np.int8(1)
        table = marian.positions(64, d_model).astype(np.float32)
        found[f"{side}/position_encodings/encodings"] = table
        for n in range(depth):
            here, there = f"{side}_l{n + 1}", f"{side}/layer_{n}"
            kinds = {"self": ("self_attention", ["qkv", "o"])}
            if side == "decoder":
                kinds["context"] = ("attention", ["q", "kv", "o"])
            for kind, (name, groups) in kinds.items():
                for i, letters in enumerate(groups):
                    own = f"{here}_{kind}"
                    pairs = [(f"{own}_W{letter}", f"{own}_b{letter}") for letter in letters]
                    linear(f"{there}/{name}/linear_{i}", pairs)
                norm(f"{there}/{name}/layer_norm", f"{here}_{kind}_Wo_ln")
            for i in range(2):
                names = f"{here}_ffn_W{i + 1}", f"{here}_ffn_b{i + 1}"
                linear(f"{there}/ffn/linear_{i}", [names])
            norm(f"{there}/ffn/layer_norm", f"{here}_ffn_ffn_ln")
        if is_pre:
            norm(f"{side}/layer_norm", f"{side}_top_ln", "")
    shared = arrays.get("Wemb")
    source, target = (
        arrays[f"{side}_Wemb"] if shared is None else shared for side in ("encoder", "decoder")
    )
    output = arrays.get("decoder_ff_logit_out_W")
    found["encoder/embeddings_0/weight"] = source
    found["decoder/embeddings/weight"] = target
    found["decoder/projection/weight"] = target if output is None else output.T
    found["decoder/projection/bias"] = arrays["decoder_ff_logit_out_b"].reshape(-1)
    return found


def write_folder(
    folder: Path, content: bytes, tables: Sequence[Sequence[str]], **settings: Any
) -> Path:
    """A folder without SentencePiece models; one table is the vocabulary of both sides."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.bin").write_bytes(content)
    names = ["shared"] if len(tables) == 1 else ["source", "target"]
    for name, tokens in zip(names, tables, strict=True):
        (folder / f"{name}_vocabulary.json").write_text(json.dumps(list(tokens)))
    (folder / "config.json").write_text(json.dumps({**SETTINGS, **settings}))
    return folder
