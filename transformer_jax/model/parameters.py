"""Initial parameters, what is known of each, and their number."""

import dataclasses
import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import DTypeLike

from transformer_jax.model.axes import FEATURES, VOCABULARY, is_box, names_of, unboxed
from transformer_jax.model.encoder_decoder import EncoderDecoder
from transformer_jax.model.ensemble import Ensemble, Predictor
from transformer_jax.model.interfaces import Params
from transformer_jax.model.layers.residuals import constants_of, with_beta
from transformer_jax.model.stacked_params import STACKS, key_of, stacked, unstacked
from transformer_jax.text.batches import Packed


def init_params(model: EncoderDecoder, key: Array) -> Params:
    """The model's initial parameters, a pure function of the key."""
    return unstacked(init_stacked_params(model, key))


def init_stacked_params(model: EncoderDecoder, key: Array) -> Params:
    """The same, stacked by layer as training holds them.

    The layers of a stack are drawn together, since compiling each layer's draws takes seconds.
    """
    return unboxed(_boxed_params(model, key))


def axis_names(model: EncoderDecoder) -> Any:
    """The tree of parameters with a PartitionSpec of axis names instead of each array."""
    return names_of(_abstract_boxes(_of_parameters(model)))


def abstract_params(model: EncoderDecoder) -> Params:
    """Shapes and types of the model's parameters."""
    return unboxed(_abstract_boxes(_of_parameters(model)))


def product_axes(model: EncoderDecoder) -> Any:
    """How products read each parameter, as training holds it, stacked by layer.

    It is a pair: the axes that are summed over, and those of the output. For a parameter that has
    another use it is None.
    """

    def axes(box: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        all_axes = tuple(range(len(box.names)))
        return (all_axes[: box.summed], all_axes[box.summed :]) if box.summed else None

    boxes = _abstract_boxes(_of_parameters(model))
    # In a stack, the axis of layers comes first.
    return stacked(jax.tree.map(axes, boxes, is_leaf=is_box), lambda *layers: layers[0] + 1)


def narrowed(model: Predictor, params: Params, dtype: DTypeLike) -> Params:
    """The parameters, with the matrices of products in another type, such as bfloat16.

    `product` then multiplies in that type. What is looked up or added keeps its type.
    """
    boxes = [_abstract_boxes(_of_parameters(member)) for member in model.members]
    own = Ensemble.joined(boxes) if isinstance(model, Ensemble) else boxes[0]

    def cast(box: Any, x: Array) -> Array:
        return x.astype(dtype) if box.summed else x

    return jax.tree.map(cast, own, params, is_leaf=is_box)


def in_int8(model: EncoderDecoder, params: Params) -> tuple[Params, Params]:
    """The parameters with matrices in int8, and their scales: a matrix is its int8 times its scale.

    Each output of a product has a scale of its own, the largest absolute value / 127, and so has
    each subword of a table of embeddings. Everything else keeps its type.

    Returns:
      NumPy arrays in the same tree, and the same tree of their scales, float32. The scale of an
      int8 matrix has the matrix's axes; those that a product sums over have size 1. Every other
      scale is the number 1, which has no axes.

    Source: Jacob et al. 2018 (symmetric, without a zero point), a scale for each channel as in
    Krishnamoorthi 2018, section 3.2.
    """

    def scale_of(box: Any, x: Array) -> np.ndarray:
        """The scale of one parameter."""
        is_table = box.names == (VOCABULARY, FEATURES)
        axes = (1,) if is_table else tuple(range(box.summed))
        if not axes:
            return np.ones((), np.float32)
        largest = np.abs(np.asarray(x, np.float32)).max(axes, keepdims=True)
        return np.where(largest > 0, largest, 1) / np.float32(127)

    def narrow(x: Array, scale: np.ndarray) -> np.ndarray:
        """A parameter in int8, or as it is if its scale has no axes."""
        array = np.asarray(x)
        return np.rint(array / scale).astype(np.int8) if scale.ndim else array

    boxes = _abstract_boxes(_of_parameters(model))
    scales = jax.tree.map(scale_of, boxes, params, is_leaf=is_box)
    return jax.tree.map(narrow, params, scales), scales


def _of_parameters(model: EncoderDecoder) -> EncoderDecoder:
    """The model without the settings that its parameters do not depend on."""
    config = dataclasses.replace(model.config, attention_kernel="plain")
    return model.clone(config=config, remat=False, watch=False)


@functools.lru_cache(maxsize=128)  # tracing takes 0.2 s; tests have 100 models
def _abstract_boxes(model: EncoderDecoder) -> Any:
    return jax.eval_shape(lambda: unstacked(_boxed_params(model, jax.random.key(0))))


def _boxed_params(model: EncoderDecoder, key: Array) -> Any:
    """Stacked by layer, each array in a box; the names of its axes leave out that of layers."""
    stacks = model.stacks()
    other_key, *stack_keys = jax.random.split(key, 3) if stacks else (key,)
    ones = jnp.ones((1, 2), jnp.int32)
    side = Packed(ones, ones, ones)  # shapes do not depend on the batch's
    features = model.config.features
    source = side._replace(features=jnp.ones((1, 2, features))) if features else side
    without_layers = model.clone(
        config=dataclasses.replace(model.config, num_encoder_layers=0, num_decoder_layers=0)
    )
    params: Params = without_layers.init(other_key, source, side)["params"]
    for name, stack_key in zip(STACKS, stack_keys, strict=False):
        if name in stacks:
            layer, depth = stacks[name]
            beta = constants_of(model.config, is_decoder=name == "decoder").beta
            params[key_of(name)] = _drawn_together(layer, jax.random.split(stack_key, depth), beta)
    return params


def _drawn_together(layer: Any, keys: Array, beta: float) -> Params:
    """The parameters of layers 0, 1, ..., stacked; there is one key for each layer.

    `beta` multiplies some initial values (residuals.py).
    """
    x, context = layer.example()
    return jax.vmap(lambda key: with_beta(layer.init(key, x, context)["params"], beta))(keys)


@functools.lru_cache(maxsize=16)
def axis_sizes(model: Predictor) -> dict[str, set[int]]:
    """By axis name, the sizes of such axes in the parameters of the model or of all its members."""
    sizes: dict[str, set[int]] = {}
    for member in model.members:
        leaves = jax.tree.leaves(abstract_params(member)), jax.tree.leaves(axis_names(member))
        for x, names in zip(*leaves, strict=True):
            for name, size in zip(names, x.shape, strict=True):
                sizes.setdefault(name, set()).add(size)
    return sizes


def parameter_count(model: EncoderDecoder) -> int:
    """The number of trained parameters, without the vocabulary's padding."""
    unpadded = abstract_params(model.clone(vocabulary_multiple=1))
    return sum(math.prod(x.shape) for x in jax.tree.leaves(unpadded))
