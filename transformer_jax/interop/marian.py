"""Reads a folder of a Marian model: weights in .npz, decoder.yml, SentencePiece models, vocabulary.

Marian writes its options into the .npz, as YAML in `special:model.yml`. A vocabulary is a .yml file
of pieces and ids, or a SentencePiece model (.spm) whose pieces have the model's own ids.
"""

import re
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import yaml

from transformer_jax.config.model import ModelConfig
from transformer_jax.errors import DataError, UserError
from transformer_jax.files import read_utf8
from transformer_jax.interop.block import ATTENTIONS, Weights
from transformer_jax.interop.imported import (
    Imported,
    Special,
    as_number,
    imported,
    name_unused,
    only_file,
    read_bytes,
    read_sentencepiece,
    unsupported,
    whole,
)
from transformer_jax.text.bundle import Bundle

OPTIONS = "special:model.yml"
EPSILON = 1e-6  # in the layer normalization of Marian's Transformer
EOS, UNKNOWN = "</s>", "<unk>"
# Options that must have one of these values, or our model cannot express them (None: no option).
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "type": ("transformer",),
    "transformer-decoder-autoreg": (None, "self-attention", "rnn"),
    "transformer-ffn-activation": ("relu", "swish"),
    "transformer-postprocess-emb": (None, "", "d"),
    "transformer-no-projection": (None, False),
    "transformer-no-bias": (None, False),
    "transformer-no-affine": (None, False),
    "transformer-rnn-projection": (None, False),
    "transformer-train-position-embeddings": (None, False),
    "transformer-ffn-depth": (None, 2),
    "transformer-decoder-ffn-depth": (None, 0, 2),
    "transformer-tied-layers": (None, []),
    "transformer-pool": (None, False),
    "transformer-depth-scaling": (None, False, True),  # changes only the initial weights
    "output-omit-bias": (None, False),
    "lemma-dim-emb": (None, 0),
    "lemma-dependency": (None, "", []),
    "factors-combine": (None, "sum"),
    "factors-dim-emb": (None, 0),
    "right-left": (None, False),
}
# The same for models with "transformer-decoder-autoreg: rnn".
STUDENT: dict[str, tuple[Any, ...]] = {
    "dec-cell": ("ssru",),
    "layer-normalization": (None, False),
}
# Of decoder.yml: what the import reads, and what changes the speed, or the log, alone.
READ_OR_OF_SPEED = frozenset(
    "models vocabs beam-size normalize relative-paths mini-batch mini-batch-words maxi-batch "
    "maxi-batch-sort workspace cpu-threads devices log log-level quiet quiet-translation "
    "skip-cost ignore-model-config version".split()
)
POST_NORM, PRE_NORM = ("", "dan", ""), ("n", "da", "n")
LETTERS = {"q": "q", "k": "k", "v": "v", "o": "out"}  # Marian's names of an attention's linear maps


def read_marian(folder: Path, languages: tuple[str, str]) -> Imported:
    """The model of a folder, with Marian's own wavelengths of sinusoids.

    Args:
      folder: the folder of an OPUS-MT release, for example.
      languages: of source and target, for the normalizer of punctuation.

    Raises:
      UserError: a file is missing or damaged, or the model has parts that ours cannot have.
    """
    model, vocabularies, decode = _read_search(folder)
    arrays = _read_npz(model)
    config = _config(model, _read_options(model, arrays))
    files = vocabularies[0], vocabularies[-1]
    source, target = [tuple(_pieces_of(file)) for file in files]
    if source != target and config.tie_embeddings:
        raise UserError(
            f"{files[0].name} and {files[1].name} are different vocabularies, and "
            "tied-embeddings-all needs one: are these files of one model?"
        )
    special = _special(source, files[0]), _special(target, files[1])
    if files[0].suffix == ".spm":  # Marian itself splits the line as it is
        languages = ("", "")
    bundle = Bundle(
        _sentencepiece_model(folder, "source", files[0]),
        _sentencepiece_model(folder, "target", files[1]),
        source,
        languages,
        target if source != target else None,
    )
    weights = transformers_names(arrays, config, str(model))
    return imported(weights, config, special, bundle, decode)


# Files -------------------------------------------------------------------------------------------


def _read_search(folder: Path) -> tuple[Path, list[Path], dict[str, Any]]:
    """The files of the model and its vocabularies, and keys of decode, by decoder.yml."""
    file = folder / "decoder.yml"
    options: Any = _yaml(read_bytes(file), str(file)) if file.is_file() else {}
    if not isinstance(options, dict):
        raise DataError(f"{file} is not a list of options.")
    models = _inside(folder, options.get("models"), f"{file}: models")
    vocabularies = _inside(folder, options.get("vocabs"), f"{file}: vocabs")
    if len(models) > 1:
        raise UserError(f"{file} names an ensemble of {len(models)} models; leave one in `models`.")
    model = models[0] if models else only_file(folder, "weights", "*best*.npz", "*.npz")
    if not vocabularies:
        sides = [sorted(folder.glob(f"*{side}.vocab.*")) for side in ("src", "trg")]
        vocabularies = (
            [side[0] for side in sides]
            if all(len(side) == 1 for side in sides)
            else [only_file(folder, "vocabulary", "vocab.yml", "*vocab*.yml", "*vocab*.spm")]
        )
    if model.suffix == ".bin":
        raise UserError(f"{model} is packed for Marian's decoder. Import the .npz that it is from.")
    alpha = as_number(float, options.get("normalize") or 0.0, f"{file}: normalize")
    decode = {"penalty": "power", "length_penalty": alpha}
    if options.get("beam-size") is not None:
        decode["beam_size"] = as_number(int, options["beam-size"], f"{file}: beam-size")
    usual = {"allow-unk": False, "max-length": 1_000, "max-length-crop": False}  # Marian's
    others = {
        str(name): value
        for name, value in options.items()
        if name not in READ_OR_OF_SPEED and (name not in usual or value != usual[name])
    }
    name_unused(str(file), others)
    return model, vocabularies, decode


def _inside(folder: Path, names: Any, what: str) -> list[Path]:
    """The files that decoder.yml names, in this folder: the paths may be of another machine."""
    if not isinstance(names, list | None):
        raise DataError(f"{what}={names!r} is not a list of files.")
    return [folder / Path(str(name)).name for name in names or []]


def _read_npz(path: Path) -> dict[str, np.ndarray]:
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except OSError as error:
        raise DataError(f"{path}: {error.strerror or 'it is not a .npz file'}.") from None
    except Exception as error:  # zipfile and NumPy raise many types on damaged files
        wrong = error if zipfile.is_zipfile(path) else "it is no zip archive"
        raise DataError(f"{path} is not a .npz file of arrays: {wrong}.") from None


def _read_options(path: Path, arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    if OPTIONS not in arrays:
        raise DataError(f"{path} has no {OPTIONS}: it is not a model that Marian wrote.")
    content = arrays[OPTIONS].astype(np.uint8, copy=False).tobytes().rstrip(b"\0")
    options = _yaml(content, f"{path}, {OPTIONS}")
    if not isinstance(options, dict):
        raise DataError(f"{path}: {OPTIONS} is not a list of options.")
    return options


def _yaml(content: bytes, name: str) -> Any:
    try:
        if any(isinstance(token, yaml.AliasToken) for token in yaml.scan(content)):
            raise DataError(f"{name} has aliases, which could expand to any size.")
        return yaml.safe_load(content)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError, ValueError) as error:
        raise DataError(f"{name} is not YAML: {' '.join(str(error).split())[:200]}.") from None


def _sentencepiece_model(folder: Path, side: str, own: Path) -> bytes:
    if own.suffix == ".spm":
        return read_sentencepiece(own)
    for name in (f"{side}.bpe", f"{side}.tcmodel"):
        if (folder / name).exists() and not (folder / f"{side}.spm").exists():
            raise UserError(
                f"{folder / name}: a model of the time before SentencePiece, whose text is split "
                "by preprocess.sh, cannot be imported. Look for a newer release."
            )
    return read_sentencepiece(
        only_file(folder, f"SentencePiece model of the {side}", f"{side}.spm")
    )


# Options -----------------------------------------------------------------------------------------


def _config(path: Path, options: Mapping[str, Any]) -> ModelConfig:
    """Our config. Raises UserError that names each option that it cannot express."""
    get = options.get
    same: dict[str, tuple[Any, ...]] = {
        "transformer-decoder-dim-ffn": (None, 0, get("transformer-dim-ffn"))
    }
    is_recurrent = get("transformer-decoder-autoreg") == "rnn"
    wrong = unsupported(options, SUPPORTED | same | (STUDENT if is_recurrent else {}))
    norms = tuple(
        get(f"transformer-{name}") or ""
        for name in ("preprocess", "postprocess", "postprocess-top")
    )
    if norms not in (POST_NORM, PRE_NORM):
        wrong.append(
            "transformer-preprocess, -postprocess, -postprocess-top="
            + ", ".join(map(repr, norms))
            + f" (known: {POST_NORM} and {PRE_NORM})"
        )
    if wrong:
        raise UserError(f"{path} cannot be imported: its {'; its '.join(wrong)}.")
    aligning = str(get("transformer-guided-alignment-layer") or "last")  # by its first head
    try:
        return ModelConfig(
            decoder="ssru" if is_recurrent else "transformer",
            watched_layer=-1 if aligning == "last" else int(aligning) - 1,
            watched_heads=1,
            num_layers=whole(options, "enc-depth"),
            num_decoder_layers=whole(options, "dec-depth"),
            d_model=whole(options, "dim-emb"),
            num_heads=whole(options, "transformer-heads"),
            d_ff=whole(options, "transformer-dim-ffn"),
            activation=options["transformer-ffn-activation"],
            norm="post" if norms == POST_NORM else "pre",
            norm_epsilon=EPSILON,
            attention_bias=True,
            output_bias=True,
            positions="sinusoidal_t2t",
            tie_embeddings=bool(get("tied-embeddings-all")),
            tie_output=bool(get("tied-embeddings")) and not get("tied-embeddings-all"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: an option of {OPTIONS} is missing or wrong: {error}.") from None


# The vocabulary ----------------------------------------------------------------------------------


def _pieces_of(path: Path) -> list[str]:
    """The pieces by id."""
    if path.suffix == ".spm":
        model = sentencepiece.SentencePieceProcessor(model_proto=read_sentencepiece(path))
        return [model.id_to_piece(i) for i in range(model.vocab_size())]
    if ".fsv" in path.suffixes:
        raise UserError(f"{path} is a factored vocabulary, which cannot be imported.")
    return read_vocabulary_yml(path)


def _special(pieces: Sequence[str], path: Path) -> Special:
    for piece in (EOS, UNKNOWN):
        if piece not in pieces:
            raise DataError(f"{path} has no {piece}: it is not a vocabulary of Marian.")
    pad = pieces.index("<pad>") if "<pad>" in pieces else None
    return Special(pad, pieces.index(EOS), pieces.index(UNKNOWN), start=None)


def read_vocabulary_yml(path: Path) -> list[str]:
    """The pieces of a vocabulary by id.

    A line is `PIECE: ID` with a plain, 'single' or "double" quoted piece, or it is two lines,
    `? PIECE` and `: ID`. This is not a YAML parser: PyYAML refuses characters that YAML 1.1 forbids
    or takes for line ends, and its C parser dies of nested brackets.

    Raises:
      DataError: a line is none of these, or the ids are not 0, 1, 2, ...
    """
    pieces: dict[int, str] = {}
    waiting: str | None = None
    for number, line in enumerate(read_utf8(path).split("\n"), 1):
        line = line.removesuffix("\r")
        if not line.strip() or line in ("---", "..."):
            continue
        if waiting is None and line.startswith("? "):
            waiting = line[2:]
            continue
        piece, _, i = line.rpartition(":")
        piece = piece if waiting is None else waiting
        waiting = None
        if not i.strip().isdecimal():
            raise DataError(f"{path}, line {number}: {line!r} is not PIECE: ID.")
        if int(i) in pieces:
            raise DataError(f"{path}, line {number}: an earlier line has the id {int(i)} too.")
        pieces[int(i)] = unquoted(piece)
    if sorted(pieces) != list(range(len(pieces))):
        raise DataError(f"{path}: the ids of its {len(pieces)} pieces are not 0, 1, 2, ...")
    return [pieces[i] for i in range(len(pieces))]


# YAML 1.1, section 5.7; a backslash before any other character is dropped.
ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "a": "\a", "b": "\b", "e": "\x1b"}
ESCAPES |= {"v": "\v", "f": "\f", "N": "\x85", "_": "\xa0", "L": "\u2028", "P": "\u2029"}
ESCAPED = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(.))")


def unquoted(piece: str) -> str:
    """A YAML scalar without its quotation marks and escapes."""
    if len(piece) > 1 and piece[0] == piece[-1] == "'":
        return piece[1:-1].replace("''", "'")
    if not (len(piece) > 1 and piece[0] == piece[-1] == '"'):
        return piece

    def plain(match: re.Match) -> str:
        code = match[1] or match[2] or match[3]
        return chr(int(code, 16)) if code else ESCAPES.get(match[4], match[4])

    return ESCAPED.sub(plain, piece[1:-1])


# Weights -----------------------------------------------------------------------------------------


def transformers_names(arrays: Mapping[str, np.ndarray], config: ModelConfig, path: str) -> Weights:
    """Marian's arrays under transformers' names, linear maps as `[out, in]`.

    Raises:
      DataError: an array is missing.
    """

    used = {OPTIONS}

    def get(*names: str) -> np.ndarray:
        for name in names:
            if name in arrays:
                used.add(name)
                return arrays[name]
        raise DataError(f"{path} has no array {' or '.join(names)}: is it complete?")

    weights: Weights = {"final_logits_bias": get("decoder_ff_logit_out_b")}
    if config.tie_embeddings:
        weights["model.shared.weight"] = get("Wemb", "decoder_Wemb", "encoder_Wemb")
    else:
        target = get("decoder_Wemb", "Wemb", "encoder_Wemb")
        weights["model.encoder.embed_tokens.weight"] = get("encoder_Wemb", "Wemb", "decoder_Wemb")
        weights["model.decoder.embed_tokens.weight"] = target
    if "decoder_ff_logit_out_W" in arrays:
        weights["lm_head.weight"] = get("decoder_ff_logit_out_W").T
    elif not (config.tie_embeddings or config.tie_output):
        own = "decoder_ff_logit_out_Wt" in arrays
        weights["lm_head.weight"] = get("decoder_ff_logit_out_Wt") if own else target
    for side, depth in (("encoder", config.encoder_depth), ("decoder", config.decoder_depth)):
        has_ssru = f"{side}_l1_rnn_W" in arrays
        attentions = {} if has_ssru else {"self": ATTENTIONS["self_attention"]}
        if side == "decoder":
            attentions["context"] = ATTENTIONS["cross_attention"]
        for n in range(depth):
            here = f"{side}_l{n + 1}"
            there = f"model.{side}.layers.{n}"
            if has_ssru:
                _ssru(weights, get, f"{here}_rnn", there)
            for theirs, name in attentions.items():
                for letter, part in LETTERS.items():
                    old = f"{here}_{theirs}"
                    new = f"{there}.{name}.{part}_proj"
                    weights[f"{new}.weight"] = get(f"{old}_W{letter}").T
                    weights[f"{new}.bias"] = get(f"{old}_b{letter}").reshape(-1)
                norm = f"{here}_{theirs}_Wo_ln"
                _norm(weights, get, norm, f"{there}.{name}_layer_norm")
            for number in "12":
                weights[f"{there}.fc{number}.weight"] = get(f"{here}_ffn_W{number}").T
                weights[f"{there}.fc{number}.bias"] = get(f"{here}_ffn_b{number}").reshape(-1)
            _norm(weights, get, f"{here}_ffn_ffn_ln", f"{there}.final_layer_norm")
        if f"{side}_top_ln_scale" in arrays:
            _norm(weights, get, f"{side}_top_ln", f"model.{side}.layer_norm")
    if left := sorted(arrays.keys() - used):
        raise UserError(
            f"{path} has {left[0]}, and its options know no such part: is the file of one model?"
        )
    return weights


def _ssru(weights: Weights, get: Any, here: str, there: str) -> None:
    for theirs, part in (("W", "input"), ("Wf", "forget")):
        weights[f"{there}.ssru.{part}.weight"] = get(f"{here}_{theirs}").T
    weights[f"{there}.ssru.forget.bias"] = get(f"{here}_bf").reshape(-1)
    # In a post-norm model the name has "_ffn", though the norm is not the feed-forward network's.
    for part, name in (("weight", "scale"), ("bias", "bias")):
        found = get(f"{here}_ffn_ln_{name}", f"{here}_ln_{name}_pre")
        weights[f"{there}.ssru_layer_norm.{part}"] = found.reshape(-1)


def _norm(weights: Weights, get: Any, here: str, there: str) -> None:
    # In a pre-norm model the names end in _pre, but not those of the norm before the output.
    weights[f"{there}.weight"] = get(f"{here}_scale", f"{here}_scale_pre").reshape(-1)
    weights[f"{there}.bias"] = get(f"{here}_bias", f"{here}_bias_pre").reshape(-1)
