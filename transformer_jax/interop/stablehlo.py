"""Writes a folder with StableHLO of the encoder and of one step of search, for any model.

Three functions, each with symbolic rows and the other sizes fixed:
    prepare(weights) -> prepared                                  once
    encode(weights, ids, lengths) -> memory                       once for each batch of sentences
    step(weights, prepared, memory, cache, position, newest, ancestors) -> logits, cache
Each is written twice: NAME.jax for `jax.export.deserialize`, and NAME.mlir, the same program as
portable StableHLO bytecode for other compilers. search.py of the folder is a beam search over them
in NumPy; it does not need this package.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, export

from transformer_jax.errors import UserError
from transformer_jax.interop import stablehlo_search
from transformer_jax.interop.exported import Exported
from transformer_jax.model.axes import unboxed
from transformer_jax.model.encoder_decoder import EncoderDecoder, make_model
from transformer_jax.model.interfaces import Cache, Now, SearchSizes
from transformer_jax.text.batches import Packed
from transformer_jax.text.vocabulary import BOS, EOS

PLATFORMS = ("cpu", "cuda", "tpu")
SEARCH = "search.py"


# A function to export, and the shapes of its arguments.
Function = tuple[Callable[..., Any], Sequence[Any]]


def write_stablehlo(model: Exported, folder: Path) -> None:
    """Writes the programs, the weights, a signature, the SentencePiece models and a search.

    Args:
      model: the run's model.
      folder: to create.

    Raises:
      UserError: a package is missing that writes `NAME.jax`, or the model reads several sources,
        or none of text.
    """
    try:
        import flatbuffers  # noqa: F401 (jax.export serializes with it)
    except ImportError:
        raise UserError("StableHLO needs flatbuffers: pip install flatbuffers.") from None
    plain = dataclasses.replace(model.config.model, attention_kernel="plain")
    decode = model.config.decode
    whole = make_model(plain, model.vocabulary.sizes)
    made = whole.for_search(None, watch=False, wait_k=decode.wait_k)
    size = decode.max_length + decode.max_extra_length
    sizes = SearchSizes(
        batch=1,
        beams=decode.beam_size,
        length=min(size, made.longest() or size),
        src_length=min(decode.max_length, made.longest() or decode.max_length),
    )
    paths = jax.tree_util.tree_leaves_with_path(model.params)
    names = ["/".join(key.key for key in path) for path, _ in paths]
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "weights.npz", **{name: x for name, (_, x) in zip(names, paths, strict=True)})
    cache = unboxed(jax.eval_shape(lambda: made.boxed_cache(sizes)))
    leaves, carried = jax.tree.leaves(cache), len(jax.tree.leaves(cache.carried))
    signature: dict[str, Any] = {
        "sizes": {"source": sizes.src_length, "target": sizes.length, "beams": sizes.beams},
        "special": {"bos": BOS, "eos": EOS, "banned": list(model.banned)},
        "max_extra_length": decode.max_extra_length,
        "pieces": dict(zip(("source", "target"), model.pieces, strict=True)),
        **model.before_subwords,
        "weights": names,
        "cache": [{"shape": list(x.shape[1:]), "dtype": x.dtype.name} for x in leaves],
        # Which of these arrays, without their rows, hypotheses carry: the last ones.
        "carried": list(range(len(leaves) - carried, len(leaves))),
    }
    for name, (function, arguments) in _functions(made, model.params, sizes).items():
        exported = export.export(jax.jit(function), platforms=PLATFORMS)(*arguments)
        (folder / f"{name}.jax").write_bytes(exported.serialize())
        (folder / f"{name}.mlir").write_bytes(exported.mlir_module_serialized)
        signature[name] = {
            "arguments": [_described(x) for x in exported.in_avals],
            "used": list(exported.module_kept_var_idx),  # NAME.mlir has no other arguments
            "results": [_described(x) for x in exported.out_avals],
        }
    text = json.dumps(signature, indent=1, ensure_ascii=False) + "\n"
    (folder / "signature.json").write_text(text, encoding="utf-8")
    model.write_sentencepiece(folder)
    source = Path(stablehlo_search.__file__).read_text(encoding="utf-8")
    (folder / SEARCH).write_text(source, encoding="utf-8")


def _described(x: Any) -> str:
    """For example "float32[rows,4,3000]"."""
    return f"{x.dtype.name}[{','.join(map(str, x.shape))}]"


def _functions(model: EncoderDecoder, params: Any, sizes: SearchSizes) -> dict[str, Function]:
    """The functions by name. They take and return lists of arrays, in the order of a tree."""
    (rows,) = export.symbolic_shape("rows")
    structure = jax.tree.structure(params)
    memory, cache = (
        unboxed(jax.eval_shape(lambda make=make: make(sizes)))
        for make in (model.boxed_memory, model.boxed_cache)
    )

    def apply(weights: list[Array], *arguments: Any, method: str) -> Any:
        variables = {"params": jax.tree.unflatten(structure, weights)}
        return model.apply(variables, *arguments, method=method)

    def prepare(weights: list[Array]) -> list[Array]:
        return jax.tree.leaves(apply(weights, method="prepare_output"))

    def encode(weights: list[Array], ids_BM: Array, lengths_B: Array) -> list[Array]:
        positions_M = jnp.arange(sizes.src_length)
        segments_BM = (positions_M < lengths_B[:, None]).astype(jnp.int32)
        source = Packed(ids_BM, segments_BM, jnp.broadcast_to(positions_M, ids_BM.shape))
        encoded_BME = apply(weights, source, method="encode")
        return jax.tree.leaves(apply(weights, encoded_BME, source, method="remember"))

    def step(
        weights: list[Array],
        prepared: list[Array],
        memory_leaves: list[Array],
        cache_leaves: list[Array],
        position_B: Array,
        newest_BK: Array,
        ancestors_BKT: Array,
    ) -> tuple[Array, list[Array]]:
        now = Now(position_B, newest_BK, ancestors_BKT)
        remembered = jax.tree.unflatten(jax.tree.structure(memory), memory_leaves)
        before: Cache = jax.tree.unflatten(jax.tree.structure(cache), cache_leaves)
        (table,) = prepared
        stepped = apply(weights, now, remembered, before, table, method="decode_step")
        return stepped.logits_BKV, jax.tree.leaves(stepped.cache)

    weights = _shapes(params)
    prepared = _shapes(jax.eval_shape(prepare, weights))
    of_beams = rows, sizes.beams
    now = (_whole(rows), _whole(*of_beams), _whole(*of_beams, sizes.length))
    return {
        "prepare": (prepare, (weights,)),
        "encode": (encode, (weights, _whole(rows, sizes.src_length), _whole(rows))),
        "step": (step, (weights, prepared, _shapes(memory, rows), _shapes(cache, rows), *now)),
    }


def _shapes(tree: Any, *first: Any) -> list[Any]:
    """The shapes of the tree's leaves; `first` replaces the axis of rows."""
    return [
        jax.ShapeDtypeStruct((*first, *x.shape[len(first) :]), x.dtype)
        for x in jax.tree.leaves(tree)
    ]


def _whole(*shape: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)
