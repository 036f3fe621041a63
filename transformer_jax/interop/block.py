"""Our parameters under the names and in the layout of MarianMTModel of Hugging Face's transformers.

Arrays in this form are called a block; other formats are converted from and to it. The layouts of
ours and theirs differ in
- linear maps: ours are `[in..., out...]` with heads as an axis of their own, theirs `[out, in]`;
- sinusoids: ours interleave sine and cosine as the paper's equation does, theirs have all sines and
  then all cosines. With `halves=True` every axis of size d_model is permuted;
- the vocabulary's padding, which they do not have;
- biases that a model of ours may lack: their format has zeros.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from transformer_jax.config.model import ModelConfig
from transformer_jax.errors import DataError
from transformer_jax.text.vocabulary import Sizes

Weights = dict[str, np.ndarray]
Tree = Mapping[str, Any]  # parameters by name

ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "out": "out_proj"}
# Which axes of one of our arrays have size d_model; None: none of them.
FIRST, LAST, BOTH = "first", "last", "both"
AXES = {FIRST: (0,), LAST: (-1,), BOTH: (0, 1), None: ()}
OUTPUT_BIAS = ("output_bias",)
POSITIONS = {  # learned vectors
    "src_positions": "model.encoder.embed_positions.weight",
    "tgt_positions": "model.decoder.embed_positions.weight",
}


class Entry(NamedTuple):
    """One array of parameters, in our tree and in transformers."""

    path: tuple[str, ...]  # in our tree of parameters
    name: str  # in transformers' MarianMTModel
    features: str | None  # a key of AXES
    linear: bool = False  # a linear map; ours is from d_model (FIRST), to it (LAST), or BOTH

    @property
    def side(self) -> int | None:
        """Whose vocabulary the first axis is: 0 source or both, 1 target, None: it is none."""
        if self.path[-1] not in ("table", "output_bias") or self.path[0] in POSITIONS:
            return None
        return int(self.path[0] != "embedding")


def entries(config: ModelConfig, tree: Tree) -> Iterator[Entry]:
    """Every array of a model that MarianMTModel can express; `tree`: its parameters, or shapes."""
    if config.tie_embeddings:
        yield Entry(("embedding", "table"), "model.shared.weight", LAST)
    else:
        yield Entry(("embedding", "table"), "model.encoder.embed_tokens.weight", LAST)
        yield Entry(("tgt_embedding", "table"), "model.decoder.embed_tokens.weight", LAST)
        if not config.tie_output:
            yield Entry(("output", "table"), "lm_head.weight", LAST)
    yield Entry(OUTPUT_BIAS, "final_logits_bias", None)
    for ours, theirs in POSITIONS.items():
        if ours in tree:
            yield Entry((ours, "table"), theirs, LAST)
    for side, depth in (("encoder", config.encoder_depth), ("decoder", config.decoder_depth)):
        for n in range(depth):
            here = f"{side}_{n}"
            yield from _of_layer(here, f"model.{side}.layers.{n}", tree[here])
        if f"{side}_norm" in tree:
            yield from _of_norm((f"{side}_norm",), f"model.{side}.layer_norm")


def _of_layer(here: str, there: str, layer: Tree) -> Iterator[Entry]:
    if "ssru" in layer:  # transformers has none; these names are our own
        for part in ("input", "forget"):
            yield Entry((here, "ssru", part), f"{there}.ssru.{part}.weight", BOTH, linear=True)
        yield Entry((here, "ssru", "forget_bias"), f"{there}.ssru.forget.bias", LAST)
        yield from _of_norm((here, "ssru_residual", "norm"), f"{there}.ssru_layer_norm")
    for sublayer, name in ATTENTIONS.items():
        if sublayer not in layer:
            continue
        for ours, theirs in PROJECTIONS.items():
            own = f"{there}.{name}.{theirs}"
            axis = LAST if ours == "out" else FIRST
            yield Entry((here, sublayer, ours), f"{own}.weight", axis, linear=True)
            bias_axis = LAST if ours == "out" else None
            yield Entry((here, sublayer, f"{ours}_bias"), f"{own}.bias", bias_axis)
        yield from _of_norm((here, f"{sublayer}_residual", "norm"), f"{there}.{name}_layer_norm")
    yield Entry((here, "feed_forward", "inner"), f"{there}.fc1.weight", FIRST, linear=True)
    yield Entry((here, "feed_forward", "inner_bias"), f"{there}.fc1.bias", None)
    yield Entry((here, "feed_forward", "outer"), f"{there}.fc2.weight", LAST, linear=True)
    yield Entry((here, "feed_forward", "outer_bias"), f"{there}.fc2.bias", LAST)
    yield from _of_norm((here, "feed_forward_residual", "norm"), f"{there}.final_layer_norm")


def _of_norm(here: tuple[str, ...], there: str) -> Iterator[Entry]:
    yield Entry((*here, "scale"), f"{there}.weight", LAST)
    yield Entry((*here, "bias"), f"{there}.bias", LAST)


def halves_first(x: np.ndarray, axis: int) -> np.ndarray:
    """Features 0, 2, 4, ... and then 1, 3, 5, ... of an axis: interleaved pairs as two halves."""
    return np.take(x, _halves(x.shape[axis]), axis)


def interleaved(x: np.ndarray, axis: int) -> np.ndarray:
    """The inverse of `halves_first`: feature 0 of each half, then feature 1 of each half, ..."""
    return np.take(x, np.argsort(_halves(x.shape[axis])), axis)


def _halves(features: int) -> np.ndarray:
    return np.concatenate([np.arange(0, features, 2), np.arange(1, features, 2)])


def _as_matrix(entry: Entry, shape: tuple[int, ...]) -> tuple[int, int]:
    """The shape `[in, out]` of a linear map of ours, whose heads are joined."""
    own = 1 if entry.features == FIRST else -1  # the axes before it are `in`
    return math.prod(shape[:own]), math.prod(shape[own:])


# Out ---------------------------------------------------------------------------------------------


def to_block(params: Tree, config: ModelConfig, sizes: Sizes, halves: bool) -> Weights:
    """Our parameters under transformers' names.

    Args:
      params: arrays as `load_params` restores them.
      config: the config of a model that MarianMTModel can express.
      sizes: sizes of the vocabularies, without padding; rows of padding are left out.
      halves: whether to permute axes of size d_model, for sinusoids in two halves.

    Returns:
      float32 arrays; a linear map's weight is `[out, in]`, `final_logits_bias` `[1, vocabulary]`.

    Raises:
      ValueError: there are parameters that MarianMTModel does not have.
    """
    weights: Weights = {}
    ours = flatten_dict(params)
    known = list(entries(config, params))
    if unknown := ours.keys() - {entry.path for entry in known}:
        raise ValueError(f"no place for these parameters: {sorted(unknown)}")
    for entry in known:
        if entry.path in ours:
            x = np.asarray(ours[entry.path])
            for axis in AXES[entry.features] if halves else ():
                x = halves_first(x, axis)
        elif entry.path == OUTPUT_BIAS:
            x = np.zeros(sizes.target, np.float32)
        else:  # the bias of a linear map whose weight comes before it
            weight = weights[entry.name.removesuffix("bias") + "weight"]
            x = np.zeros(len(weight), np.float32)
        if entry.side is not None:
            x = x[: sizes[entry.side]]
        if entry.linear:
            x = x.reshape(_as_matrix(entry, x.shape)).T
        elif entry.name.endswith(".bias"):
            x = x.reshape(-1)  # heads are joined
        if entry.path == OUTPUT_BIAS:
            x = x[None]
        weights[entry.name] = np.array(x, np.float32, order="C")
    return weights


# In ----------------------------------------------------------------------------------------------


def from_block(
    weights: Weights,
    config: ModelConfig,
    like: Tree,
    rows: tuple[np.ndarray, np.ndarray],
    halves: bool,
) -> Tree:
    """Our parameters, from arrays under transformers' names.

    Args:
      weights: a block; embeddings and `final_logits_bias` in the foreign order of subwords.
      config: the model's config; biases that it does not have are not read.
      like: shapes of our parameters.
      rows: for source and target, the row in `weights` of each of our subwords, int `[vocabulary]`.
      halves: whether sinusoids have all sines before all cosines, so that features are interleaved.

    Raises:
      DataError: an array is missing or has another shape than in the config.
    """
    ours = flatten_dict(like)
    found = {}
    for entry in entries(config, like):
        if entry.path not in ours:
            continue
        want = ours[entry.path].shape
        if entry.name not in weights:
            raise DataError(f"the weights have no {entry.name}: is the file complete?")
        x = np.asarray(weights[entry.name], np.float32)
        if entry.side is not None:
            x = x.reshape(-1) if entry.path == OUTPUT_BIAS else x
            x = x[rows[entry.side]]
            missing = want[0] - len(x)
            x = np.pad(x, [(0, missing)] + [(0, 0)] * (x.ndim - 1))
        x = x.T if entry.linear else x
        if x.size != math.prod(want) or (entry.linear and x.shape != _as_matrix(entry, want)):
            raise DataError(f"{entry.name} is {list(x.shape)}, but ours is {list(want)}.")
        x = x.reshape(want)
        for axis in AXES[entry.features] if halves else ():
            x = interleaved(x, axis)
        found[entry.path] = np.ascontiguousarray(x)
    return unflatten_dict(found)
