"""A Marian model written obviously: float64 NumPy from the arrays of an .npz, and random folders.

From marian-dev: src/models/transformer.h, src/layers/generic.h (swish, layer normalization with
epsilon 1e-6), src/graph/node_initializers.cpp (sinusoids), src/rnn/cells.h (SSRU).
"""

import io
import json
from pathlib import Path

import numpy as np
import sentencepiece
import yaml

from tests.fixtures.references import dot_by_hand, norm_by_hand, softmax_by_hand, values_by_hand

Arrays = dict[str, np.ndarray]
EPSILON = 1e-6
ACTIVATIONS = {"relu": lambda x: np.maximum(x, 0), "swish": lambda x: x / (1 + np.exp(-x))}
TINY = {
    "type": "transformer",
    "enc-depth": 2,
    "dec-depth": 1,
    "dim-emb": 16,
    "transformer-heads": 4,
    "transformer-dim-ffn": 24,
    "transformer-ffn-activation": "swish",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-decoder-autoreg": "self-attention",
    "transformer-no-projection": False,
    "tied-embeddings-all": True,
    "transformer-guided-alignment-layer": "last",
}
PRE_NORM = {
    "transformer-preprocess": "n",
    "transformer-postprocess": "da",
    "transformer-postprocess-top": "n",
}


# The model ---------------------------------------------------------------------------------------


def logits_by_hand(arrays: Arrays, options: dict, src: list[int], tgt: list[int]) -> np.ndarray:
    """Logits of each subword of a target that ends in EOS: float64 [length, vocabulary]."""
    w = {name: x.astype(np.float64) for name, x in arrays.items() if not name.startswith("special")}
    is_tied = options["tied-embeddings-all"]
    source_table = w["Wemb"] if is_tied else w["encoder_Wemb"]
    target_table = w["Wemb"] if is_tied else w["decoder_Wemb"]
    root = np.sqrt(options["dim-emb"])
    x = source_table[src] * root + positions(len(src), options["dim-emb"])
    for n in range(options["enc-depth"]):
        name = f"encoder_l{n + 1}"
        x = sublayer(w, options, f"{name}_self_Wo", x, attention_to(w, options, f"{name}_self"))
        x = sublayer(w, options, f"{name}_ffn_ffn", x, lambda y, n=name: network(w, options, n, y))
    encoded = top(w, options, "encoder", x)
    shifted = np.concatenate([np.zeros((1, options["dim-emb"])), target_table[tgt[:-1]]])
    y = shifted * root + positions(len(tgt), options["dim-emb"])
    for n in range(options["dec-depth"]):
        name = f"decoder_l{n + 1}"
        if options["transformer-decoder-autoreg"] == "rnn":
            before = "n" in options["transformer-preprocess"]
            named = f"{name}_rnn" if before else f"{name}_rnn_ffn"
            y = sublayer(w, options, named, y, lambda x, n=f"{name}_rnn": ssru(w, n, x))
        else:
            past = attention_to(w, options, f"{name}_self", is_causal=True)
            y = sublayer(w, options, f"{name}_self_Wo", y, past)
        context = attention_to(w, options, f"{name}_context", encoded)
        y = sublayer(w, options, f"{name}_context_Wo", y, context)
        y = sublayer(w, options, f"{name}_ffn_ffn", y, lambda y, n=name: network(w, options, n, y))
    y = top(w, options, "decoder", y)
    output = target_table if is_tied or "decoder_ff_logit_out_W" not in w else None
    output = w["decoder_ff_logit_out_W"] if output is None else output.T
    return y @ output + w["decoder_ff_logit_out_b"]


def positions(length: int, features: int) -> np.ndarray:
    """initializers::sinusoidalPositionEmbeddings: sines, then cosines."""
    timescales = features // 2
    rate = np.log(10000.0) / (timescales - 1.0)
    table = np.zeros((length, features))
    for j in range(length):
        for i in range(timescales):
            value = j * np.exp(i * -rate)
            table[j, i] = np.sin(value)
            table[j, timescales + i] = np.cos(value)
    return table


def attention_to(w, options, name, memory=None, is_causal=False):
    heads = options["transformer-heads"]

    def attention(x):
        source = x if memory is None else memory
        query, key, value = (
            (y @ w[f"{name}_W{letter}"] + w[f"{name}_b{letter}"]).reshape(1, len(y), heads, -1)
            for letter, y in (("q", x), ("k", source), ("v", source))
        )
        scores_1HLM = dot_by_hand(query, key, query.shape[-1] ** -0.5)
        allowed = np.tri(len(x), dtype=bool) if is_causal else True
        weights_1HLM = softmax_by_hand(scores_1HLM, allowed)
        joined = values_by_hand(weights_1HLM, value)[0].reshape(len(x), -1)
        return joined @ w[f"{name}_Wo"] + w[f"{name}_bo"]

    return attention


def ssru(w, name, x):
    """Cell state c = f c + (1 - f) W x, and relu(c)."""
    c = np.zeros(x.shape[1])
    outputs = []
    for row in x:
        forget = 1 / (1 + np.exp(-(row @ w[f"{name}_Wf"] + w[f"{name}_bf"][0])))
        c = forget * c + (1 - forget) * (row @ w[f"{name}_W"])
        outputs.append(np.maximum(c, 0))
    return np.array(outputs)


def network(w, options, name, x):
    hidden = x @ w[f"{name}_ffn_W1"] + w[f"{name}_ffn_b1"]
    hidden = ACTIVATIONS[options["transformer-ffn-activation"]](hidden)
    return hidden @ w[f"{name}_ffn_W2"] + w[f"{name}_ffn_b2"]


def sublayer(w, options, name, x, function):
    if "n" in options["transformer-preprocess"]:
        return x + function(norm(w, f"{name}_ln", "_pre", x))
    return norm(w, f"{name}_ln", "", x + function(x))


def top(w, options, side, x):
    return norm(w, f"{side}_top_ln", "", x) if options.get("transformer-postprocess-top") else x


def norm(w, name, suffix, x):
    return norm_by_hand(x, w[f"{name}_scale{suffix}"][0], w[f"{name}_bias{suffix}"][0], EPSILON)


# Folders -----------------------------------------------------------------------------------------


def random_arrays(
    options: dict, vocabulary: int, seed: int = 0, src_vocabulary: int | None = None
) -> Arrays:
    """Random weights under Marian's names; float32 numbers that are far from neutral values."""
    draw = np.random.default_rng(seed)
    d = options["dim-emb"]
    arrays: Arrays = {}

    def add(name: str, *shape: int) -> None:
        scale = 0.5 if shape[0] == 1 else shape[0] ** -0.5
        value = draw.normal(size=shape) * scale + ("_ln_scale" in name)
        arrays[name] = value.astype(np.float32)

    def add_norm(name: str, suffix: str) -> None:
        for part in ("scale", "bias"):
            add(f"{name}_ln_{part}{suffix}", 1, d)

    if options["tied-embeddings-all"]:
        add("Wemb", vocabulary, d)
        arrays["Wemb"] *= vocabulary**0.5 * d**-0.5
    else:
        sizes = {"encoder_Wemb": src_vocabulary or vocabulary, "decoder_Wemb": vocabulary}
        for name, size in sizes.items():
            add(name, size, d)
            arrays[name] *= size**0.5 * d**-0.5
        if not options.get("tied-embeddings"):
            add("decoder_ff_logit_out_W", d, vocabulary)
    add("decoder_ff_logit_out_b", 1, vocabulary)
    before = "_pre" if "n" in options["transformer-preprocess"] else ""
    for side, depth in (("encoder", options["enc-depth"]), ("decoder", options["dec-depth"])):
        for n in range(1, depth + 1):
            is_student = side == "decoder" and options["transformer-decoder-autoreg"] == "rnn"
            if is_student:
                for part, rows in (("W", d), ("Wf", d), ("bf", 1)):
                    add(f"{side}_l{n}_rnn_{part}", rows, d)
                add_norm(f"{side}_l{n}_rnn{'' if before else '_ffn'}", before)
            for kind in ("self", "context")[is_student : 1 + (side == "decoder")]:
                name = f"{side}_l{n}_{kind}"
                for letter in "qkvo":
                    add(f"{name}_W{letter}", d, d)
                    add(f"{name}_b{letter}", 1, d)
                add_norm(f"{name}_Wo", before)
            hidden = options["transformer-dim-ffn"]
            for number, shape in (("1", (d, hidden)), ("2", (hidden, d))):
                add(f"{side}_l{n}_ffn_W{number}", *shape)
                add(f"{side}_l{n}_ffn_b{number}", 1, shape[1])
            add_norm(f"{side}_l{n}_ffn_ffn", before)
        if options.get("transformer-postprocess-top"):
            add_norm(f"{side}_top", "")
    return arrays


def arrays_of(folder: Path) -> Arrays:
    """The arrays of a folder that `write_folder` wrote."""
    with np.load(folder / "opus.best-perplexity.npz") as file:
        return {name: file[name] for name in file.files}


def train_spm(lines: list[str], size: int) -> bytes:
    """A SentencePiece model as OPUS-MT has them: no padding, no byte fallback."""
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=written,
        vocab_size=size,
        model_type="unigram",
        minloglevel=3,
        hard_vocab_limit=False,
    )
    return written.getvalue()


def pieces_of(*models: bytes) -> list[str]:
    """One vocabulary of several SentencePiece models: EOS, unknown, then all pieces."""
    found = ["</s>", "<unk>"]
    for model in models:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        found += [processor.id_to_piece(i) for i in range(3, processor.vocab_size())]
    return list(dict.fromkeys(found))


def write_folder(
    folder: Path, arrays: Arrays, options: dict, models: tuple[bytes, bytes], *tables: list[str]
) -> Path:
    """A folder as an OPUS-MT release has it; `tables` are the pieces of one or two vocabularies."""
    folder.mkdir(parents=True)
    content = yaml.safe_dump(options).encode() + b"\0"
    special = {"special:model.yml": np.frombuffer(content, np.int8)}
    np.savez(folder / "opus.best-perplexity.npz", **arrays, **special)
    names = ["opus.vocab.yml"] if len(tables) == 1 else ["opus.src.vocab.yml", "opus.trg.vocab.yml"]
    for name, pieces in zip(names, tables, strict=True):
        written = [json.dumps(piece, ensure_ascii=False) for piece in pieces]
        lines = [f"{piece}: {i}\n" for i, piece in enumerate(written)]
        (folder / name).write_text("".join(lines), encoding="utf-8")
    for name, model in zip(("source.spm", "target.spm"), models, strict=True):
        (folder / name).write_bytes(model)
    search = {"models": ["opus.best-perplexity.npz"], "vocabs": [names[0], names[-1]]}
    search |= {"beam-size": 3, "normalize": 1}
    (folder / "decoder.yml").write_text(yaml.safe_dump(search))
    return folder
