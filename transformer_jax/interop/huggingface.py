"""Reads a Hugging Face folder of a MarianMTModel: config.json, model.safetensors and the tokenizer.

A pre-norm model is a PegasusForConditionalGeneration; it is read if its tokenizer is Marian's,
as `export` writes it. transformers gives Marian's weights the paper's wavelengths of sinusoids and
an epsilon of 1e-5, which is not what marian-decoder computes; the import follows transformers.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from transformer_jax.config.model import ModelConfig
from transformer_jax.errors import DataError, UserError
from transformer_jax.files import read_json
from transformer_jax.interop.block import Weights
from transformer_jax.interop.imported import (
    NEVER,
    Imported,
    Special,
    as_number,
    imported,
    name_unused,
    only_file,
    read_sentencepiece,
    unsupported,
    whole,
)
from transformer_jax.interop.safetensors import read_safetensors
from transformer_jax.text.bundle import Bundle

SIDES = ("source", "target")
EPSILON = 1e-5  # PyTorch's default, which MarianMTModel uses
ACTIVATIONS = {"relu": "relu", "swish": "swish", "silu": "swish", "gelu": "gelu"}
# The rates of dropout, for training that goes on from these weights; transformers' defaults.
DROPOUT = {"dropout": 0.1, "attention_dropout": 0.0, "activation_dropout": 0.0}
MARIAN, PEGASUS = "marian", "pegasus"  # post-norm, pre-norm
# Keys of config.json that the model needs with one of these values (None: no such key).
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "model_type": (MARIAN, PEGASUS),
    "activation_function": tuple(ACTIVATIONS),
    "scale_embedding": (True,),
    "share_encoder_decoder_embeddings": (None, True, False),
    "tie_word_embeddings": (None, True, False),
    "normalize_before": (None, False),
    "normalize_embedding": (None, False),
    "add_final_layer_norm": (None, False),
    "add_bias_logits": (None, False),
    "static_position_embeddings": (None, True),
}
# Of tokenizer_config.json, and of CTranslate2's config.json; only our export writes it.
NORMALIZES = "normalizes_punctuation"
# Settings of search that the run does not have; older folders have them in config.json.
SEARCH = (
    "encoder_no_repeat_ngram_size min_new_tokens "
    "forced_bos_token_id forced_eos_token_id suppress_tokens begin_suppress_tokens "
    "exponential_decay_length_penalty diversity_penalty do_sample temperature top_k top_p"
).split()
GENERATION = "generation_config.json"
USUAL_LENGTH = 512  # max_length of MarianMT models; decode.max_length is the same
IDS = ("eos_token_id", "decoder_start_token_id", "pad_token_id")
OF_SAMPLING = ("temperature", "top_k", "top_p", "typical_p")  # without effect in beam search
# Keys of generation_config.json that the import reads, or that say nothing about the result.
READ = frozenset(
    "num_beams length_penalty bad_words_ids min_length no_repeat_ngram_size "
    "pad_token_id eos_token_id bos_token_id decoder_start_token_id transformers_version "
    "_from_model_config use_cache renormalize_logits num_return_sequences".split()
)


def read_huggingface(folder: Path, languages: tuple[str, str]) -> Imported:
    """The model of a folder.

    Args:
      folder: what `save_pretrained` of model and tokenizer wrote.
      languages: of source and target, for the normalizer of punctuation; it is left out if the
        folder says that the model was trained without it.

    Raises:
      UserError: a file is missing or damaged, or the model has parts that ours cannot have.
    """
    options = read_json(folder / "config.json")
    config = _config(folder, options)
    weights = _read_weights(folder)
    source, special = _side(folder, "vocab.json", options, "vocab_size")
    target = None
    tgt_special = special
    tokenizer = tokenizer_options(folder)
    if tokenizer.get("separate_vocabs"):
        if config.tie_embeddings:
            raise UserError(
                f"{folder} has two vocabularies (separate_vocabs) and one matrix for both "
                "(share_encoder_decoder_embeddings): are these files of one model?"
            )
        target, tgt_special = _side(folder, "target_vocab.json", options, "decoder_vocab_size")
    elif options.get("decoder_vocab_size") not in (None, len(source)):
        raise UserError(
            f"{folder}: decoder_vocab_size={options['decoder_vocab_size']} is not vocab_size, and "
            "its tokenizer has one vocabulary (separate_vocabs)."
        )
    files = [
        only_file(folder, f"SentencePiece model of the {side}", f"{side}.spm") for side in SIDES
    ]
    models = [read_sentencepiece(file) for file in files]
    if (normalizes := tokenizer.get(NORMALIZES)) not in (None, True, False):
        path = folder / "tokenizer_config.json"
        raise DataError(f"{path}: {NORMALIZES}={normalizes!r} is not true or false.")
    if normalizes is False:
        languages = ("", "")
    bundle = Bundle(models[0], models[1], source, languages, target)
    _check_added_tokens(folder, tokenizer, {*source, *(target or source)})
    decode = _decode(folder, options, target or source)
    if (
        _read_optional(folder / GENERATION).get("renormalize_logits")
        and "final_logits_bias" in weights
    ):
        # What is banned takes no probability there; here only its bias can say so.
        bias = np.array(weights["final_logits_bias"], np.float32)
        bias[..., [(target or source).index(one) for one in decode["banned_subwords"]]] = NEVER
        weights = {**weights, "final_logits_bias": bias}
    return imported(weights, config, (special, tgt_special), bundle, decode)


def languages_of(folder: Path) -> tuple[str | None, str | None]:
    """The languages that tokenizer_config.json names."""
    options = tokenizer_options(folder)
    return options.get("source_lang"), options.get("target_lang")


def tokenizer_options(folder: Path) -> dict[str, Any]:
    """The content of tokenizer_config.json; empty if there is no such file."""
    return _read_optional(folder / "tokenizer_config.json")


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _config(folder: Path, options: Mapping[str, Any]) -> ModelConfig:
    wrong = unsupported(options, SUPPORTED)
    for what in ("ffn_dim", "attention_heads"):
        if options.get(f"encoder_{what}") != options.get(f"decoder_{what}"):
            wrong.append(f"encoder_{what} that is not decoder_{what}")
    is_shared = options.get("share_encoder_decoder_embeddings") is not False
    is_tied = options.get("tie_word_embeddings") is not False
    if is_shared and not is_tied:
        wrong.append("tie_word_embeddings=False beside share_encoder_decoder_embeddings")
    if wrong:
        raise UserError(
            f"{folder} cannot be imported: its {'; its '.join(wrong)}. Post-norm MarianMT models "
            f"(model_type='{MARIAN}') and pre-norm ones ('{PEGASUS}') can be."
        )
    try:
        rates: Any = {name: _rate(options, name, usual) for name, usual in DROPOUT.items()}
        return ModelConfig(
            norm="pre" if options["model_type"] == PEGASUS else "post",
            num_layers=whole(options, "encoder_layers"),
            num_decoder_layers=whole(options, "decoder_layers"),
            d_model=whole(options, "d_model"),
            num_heads=whole(options, "encoder_attention_heads"),
            d_ff=whole(options, "encoder_ffn_dim"),
            activation=ACTIVATIONS[options["activation_function"]],
            **rates,
            norm_epsilon=EPSILON,
            attention_bias=True,
            output_bias=True,
            tie_embeddings=is_shared,
            tie_output=is_tied and not is_shared,
        )
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder / 'config.json'}: a key is missing or wrong: {error}.") from None


def _rate(options: Mapping[str, Any], name: str, usual: float) -> float:
    try:
        return float(options.get(name, usual))
    except (TypeError, ValueError):
        raise TypeError(f"{name}={options[name]!r} is not a number") from None


def _read_weights(folder: Path) -> Weights:
    file = folder / "model.safetensors"
    if not file.is_file():
        if (folder / "pytorch_model.bin").exists():
            line = f"from transformers import MarianMTModel as M; M.from_pretrained('{folder}')"
            raise UserError(
                f"{folder / 'pytorch_model.bin'} is a pickle, which can run any code, and is never "
                "read. If you trust it, convert it where torch and transformers are installed: "
                f"python -c \"{line}.save_pretrained('{folder}')\""
            )
        raise DataError(f"{folder} has no model.safetensors.")
    return dict(read_safetensors(file))


def _side(
    folder: Path, file: str, options: Mapping[str, Any], size_key: str
) -> tuple[tuple[str, ...], Special]:
    """The pieces by id in one side's file, and its special ids."""
    size = options.get(size_key)
    if not isinstance(size, int) or size < 2:
        raise DataError(f"config.json has {size_key}={size!r}.")
    table = read_json(folder / file)
    if size > 2 * len(table) + 1_000:
        raise DataError(
            f"config.json has {size_key}={size}, and {file} {len(table)} pieces: are these files "
            "of one model?"
        )
    pieces = _pieces(folder / file, table, size)
    if "</s>" not in table:
        raise DataError(f"{folder / file} has no </s>.")
    if (end := options.get("eos_token_id")) not in (None, table["</s>"]):
        raise DataError(
            f"{folder / 'config.json'}: eos_token_id={end!r} is not {table['</s>']}, the id of "
            f"</s> in {file}."
        )
    start, pad = options.get("decoder_start_token_id"), options.get("pad_token_id")
    if not isinstance(start, int) or start < 0:
        raise DataError(f"{folder / 'config.json'}: decoder_start_token_id={start!r} is not an id.")
    return pieces, Special(
        pad=pad if isinstance(pad, int) and 0 <= pad < size else None,
        eos=table["</s>"],
        unk=table.get("<unk>"),
        start=start,
    )


def _pieces(path: Path, table: Mapping[str, Any], size: int) -> tuple[str, ...]:
    """The pieces by id; ids without a piece get a name of their own."""
    if not all(isinstance(i, int) and 0 <= i < size for i in table.values()):
        raise DataError(f"{path}: its ids are not 0 to {size - 1}.")
    found = {i: piece for piece, i in table.items()}
    if len(found) < len(table):
        one, other = next((p, found[i]) for p, i in table.items() if found[i] != p)
        raise DataError(f"{path}: {one!r} and {other!r} have the same id.")
    return tuple(found.get(i, f"<unused {i}>") for i in range(size))


def _check_added_tokens(folder: Path, tokenizer: Mapping[str, Any], pieces: set[str]) -> None:
    """Raises UserError if a user added tokens, which are no pieces of the SentencePiece models."""
    added = set(_read_optional(folder / "added_tokens.json"))
    listed = tokenizer.get("added_tokens_decoder") or {}
    if not isinstance(listed, dict):
        raise DataError(f"{folder}: added_tokens_decoder in tokenizer_config.json is no object.")
    added |= {str(one.get("content")) for one in listed.values() if isinstance(one, dict)}
    if left := sorted(added - pieces):
        raise UserError(
            f"{folder} has tokens that were added to its tokenizer, such as {left[0]!r} "
            "(added_tokens.json, added_tokens_decoder): the import cannot read them in a text."
        )


def _decode(folder: Path, options: Mapping[str, Any], pieces: Sequence[str]) -> dict[str, Any]:
    """The search of generation_config.json, and of config.json in older folders.

    Args:
      folder: of the model.
      options: the content of config.json.
      pieces: the target's, by foreign id.
    """

    def number(name: str, usual: int = 0) -> int:
        value = usual if both.get(name) is None else both[name]
        found: int = as_number(int, value, f"{folder}: {name}")
        return found

    path = folder / GENERATION
    own = _read_optional(path)
    # With `_from_model_config` transformers takes other values of config.json, if there are some.
    is_both = own.get("_from_model_config", not path.is_file())
    both = {**options, **own} if is_both else own
    alpha = both.get("length_penalty")
    alpha = 1.0 if alpha is None else alpha  # transformers' default, as is one beam
    bad = both.get("bad_words_ids") or []
    if not isinstance(bad, list):
        raise DataError(f"{folder}: bad_words_ids={bad!r} is not a list.")
    single = [ids[0] for ids in bad if isinstance(ids, list) and len(ids) == 1]
    known = [i for i in single if isinstance(i, int) and 0 <= i < len(pieces)]
    others = {name: both[name] for name in SEARCH if name in both} | {
        name: value for name, value in own.items() if name not in READ
    }
    # What changes nothing: forced EOS ends the longest translations, as ours does.
    usual: dict[str, Any] = {
        "repetition_penalty": 1,
        "encoder_repetition_penalty": 1,
        "num_beam_groups": 1,
        "forced_eos_token_id": own.get("eos_token_id", options.get("eos_token_id")),
        "max_length": USUAL_LENGTH,
    }
    if not both.get("do_sample"):
        usual |= {name: both.get(name) for name in OF_SAMPLING}
    others = {name: value for name, value in others.items() if value != usual.get(name, ())}
    # The ids of config.json are what our vocabulary is made of.
    others |= {x: own[x] for x in IDS if own.get(x) is not None and own[x] != options.get(x)}
    if len(known) < len(bad):
        others["bad_words_ids"] = [ids for ids in bad if ids not in [[i] for i in known]]
    for file, its_own in ((path, own.keys()), (folder / "config.json", others.keys() - own.keys())):
        name_unused(str(file), {name: others[name] for name in others if name in its_own})
    return {
        "penalty": "power",
        "length_penalty": as_number(float, alpha, f"{folder}: length_penalty"),
        "beam_size": number("num_beams", 1),
        "banned_subwords": tuple(pieces[i] for i in known),
        "min_length": max(0, number("min_length") - 1),  # there with the token that begins
        "no_repeat": max(0, number("no_repeat_ngram_size")),
    }
