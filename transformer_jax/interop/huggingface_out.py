"""Writes a folder for Hugging Face's transformers, without torch.

A post-norm model is a MarianMTModel. A pre-norm model is a PegasusForConditionalGeneration, which
has the same arrays, with norms before the sub-layers and one more after the last layer. Their
positions have all sines and then all cosines, which the paper interleaves, so every axis of size
d_model is permuted (block.py).
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformer_jax.config.texts import code
from transformer_jax.errors import UserError
from transformer_jax.interop.block import to_block
from transformer_jax.interop.exported import Exported, require_supported
from transformer_jax.interop.huggingface import NORMALIZES
from transformer_jax.interop.safetensors import safetensors_bytes
from transformer_jax.text.vocabulary import BOS, EOS, PAD, UNK

log = logging.getLogger(__name__)

FORMAT = "Hugging Face's MarianMT and Pegasus"
EPSILON = 1e-5  # fixed in their code
SUPPORTED: dict[str, tuple[Any, ...]] = {
    "norm": ("post", "pre"),
    "cross_score": (None, "scaled_dot"),
    "cross_normalizer": (None, "softmax"),
    "activation": ("relu", "swish", "gelu"),  # their names too
}


def write_huggingface(model: Exported, folder: Path, about: Mapping[str, str]) -> None:
    """Writes config, weights, tokenizer, generation config and a model card.

    Args:
      model: the run's model.
      folder: created if it is missing; files of the same names are overwritten.
      about: facts for the model card, by name.

    Raises:
      UserError: the model has parts that the format cannot express.
    """
    require_supported(model.config, SUPPORTED, FORMAT)
    config = model.config.model
    if model.is_pre_norm and not config.tie_embeddings:
        raise UserError(
            "A pre-norm model becomes Hugging Face's Pegasus, which cannot express "
            "model.tie_embeddings=False."
        )
    d_k = config.head_sizes[0]
    if d_k * config.num_heads != config.d_model:
        raise UserError(
            f"{FORMAT} cannot express model.d_k={d_k}: it is d_model / num_heads there."
        )
    arrays = to_block(model.params, config, model.vocabulary.sizes, halves=True)
    content = {
        "config.json": _config(model),
        "generation_config.json": _generation(model),
        "tokenizer_config.json": _tokenizer(model),
    }
    tables = ("vocab.json",) if model.vocabulary.is_shared else ("vocab.json", "target_vocab.json")
    for name, pieces in zip(tables, model.pieces, strict=False):  # shared: the same pieces twice
        content[name] = {piece: i for i, piece in enumerate(pieces)}
    spelled = " ".join(model.pieces[0])
    if ">>" in spelled and "<<" in spelled and not model.before_subwords["language_codes"]:
        log.warning(
            "this vocabulary has subwords of language codes such as >>deu<<, which MarianTokenizer "
            "takes for one token that is not there: lines with a code cannot be translated there"
        )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(safetensors_bytes(arrays))
    for name, values in content.items():
        text = json.dumps(values, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(text, encoding="utf-8")
    model.write_sentencepiece(folder)
    (folder / "README.md").write_text(_card(model, about), encoding="utf-8")


SPECIAL = {
    "pad_token_id": PAD,
    "eos_token_id": EOS,
    "bos_token_id": BOS,
    "decoder_start_token_id": BOS,
    "forced_eos_token_id": None,  # the default, 0, would end long outputs with padding
}


def _config(model: Exported) -> dict[str, Any]:
    config = model.config.model
    is_pre = model.is_pre_norm
    sides = {
        f"{side}_{name}": value
        for side, depth in (("encoder", config.encoder_depth), ("decoder", config.decoder_depth))
        for name, value in (
            ("layers", depth),
            ("attention_heads", config.num_heads),
            ("ffn_dim", config.d_ff),
            ("layerdrop", 0.0),
        )
    }
    sizes = model.vocabulary.sizes
    marian = {
        "share_encoder_decoder_embeddings": config.tie_embeddings,
        "decoder_vocab_size": sizes.target,
    }
    return {
        "architectures": ["PegasusForConditionalGeneration" if is_pre else "MarianMTModel"],
        "model_type": "pegasus" if is_pre else "marian",
        "is_encoder_decoder": True,
        "vocab_size": sizes.source,
        "d_model": config.d_model,
        **sides,
        "activation_function": config.activation,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
        "activation_dropout": config.activation_dropout,
        "scale_embedding": True,
        "static_position_embeddings": True,
        "max_position_embeddings": model.positions,
        "tie_word_embeddings": config.tie_embeddings or config.tie_output,
        **({} if is_pre else marian),
        **SPECIAL,
        "dtype": "float32",
    }


def _generation(model: Exported) -> dict[str, Any]:
    decode = model.config.decode
    # There the length counts the token that begins a translation too.
    kept: dict[str, Any] = {
        "bad_words_ids": [[i] for i in model.banned],
        "min_length": decode.min_length and decode.min_length + 1,
        "no_repeat_ngram_size": decode.no_repeat,
    }
    return {
        **SPECIAL,
        "num_beams": decode.beam_size,
        "length_penalty": decode.length_penalty,
        "max_length": model.positions,
        **{name: value for name, value in kept.items() if value},
    }


def _tokenizer(model: Exported) -> dict[str, Any]:
    data = model.config.data
    _, pieces = model.pieces
    return {
        "tokenizer_class": "MarianTokenizer",
        "source_lang": data.between()[0],
        "target_lang": data.between()[1],
        "pad_token": pieces[PAD],
        "eos_token": pieces[EOS],
        "unk_token": pieces[UNK],
        "model_max_length": model.config.decode.max_length,
        "clean_up_tokenization_spaces": False,  # before version 4.45 the default is true
        "separate_vocabs": not model.vocabulary.is_shared,
        # Not an option of theirs: our import reads it.
        NORMALIZES: model.vocabulary.normalizes_punctuation,
    }


CARD = """\
---
library_name: transformers
pipeline_tag: translation
language:
{languages}
---

# Translation, {src} to {tgt}

{facts}

{notes}

```python
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer, model = (c.from_pretrained("FOLDER") for c in (AutoTokenizer, AutoModelForSeq2SeqLM))
batch = tokenizer(["{code}A sentence."], return_tensors="pt", padding=True)
print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))
```
"""


def _card(model: Exported, about: Mapping[str, str]) -> str:
    """README.md: what the model is, its scores, and what the format changes."""
    data, decode, config = model.config.data, model.config.decode, model.config.model
    notes = []
    if config.norm_epsilon != EPSILON:
        notes.append(
            f"Layer normalization has an epsilon of {config.norm_epsilon:g} in training and "
            f"{EPSILON:g} in transformers, which moves logits by about as much."
        )
    if decode.penalty == "gnmt" and decode.length_penalty:
        notes.append(
            "The run's search divides scores by GNMT's length penalty, transformers by "
            f"length^{decode.length_penalty:g} instead. At length_penalty=0.0 both are the same."
        )
    if model.vocabulary.normalizes_punctuation:
        notes.append("Normalize punctuation before the tokenizer: `tokenizer.normalize(line)`.")
    src, tgt = data.between()
    languages = dict.fromkeys(f"{src}+{tgt}".split("+"))
    to = decode.to or next(iter(data.targets), None)
    first = f"{code(to)} " if to else ""
    if data.targets and len(data.codes) > len(data.targets):
        notes.append("MarianTokenizer reads one code: of a line with a tag too, the tag is text.")
    facts = {"languages": f"{src} to {tgt}", **about}
    listed = "\n".join(f"- {name}: {value}" for name, value in facts.items())
    return CARD.format(
        src=src,
        tgt=tgt,
        languages="\n".join(f"- {one}" for one in languages),
        code=first,
        facts=listed,
        notes="\n".join(notes),
    )
