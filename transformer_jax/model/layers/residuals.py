"""Residuals: how the input x and the output y of a sub-layer are joined, and what is normalized.

A new kind is its function, if it adds x and y in its own way, and its line in `RESIDUALS`, which
makes it a value of model.norm.

Dimension key
  B batch   L length   D d_model   N layers of the encoder   M layers of the decoder
"""

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.linen as nn
import jax
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.axes import Parameter, is_box
from transformer_jax.model.interfaces import Params

# The matrices whose initial values `Constants.beta` multiplies. Of a gated feed-forward network it
# is one of the two inner ones, so that the product is scaled as without a gate.
SCALED = frozenset({"inner", "outer", "value", "out"})


class Constants(NamedTuple):
    """Numbers that depend on the depths of the stacks."""

    alpha: float = 1.0  # multiplies x in each residual
    beta: float = 1.0  # multiplies the initial values of the matrices in SCALED


def no_constants(config: ModelConfig, is_decoder: bool) -> Constants:
    """Neither x nor initial values are multiplied."""
    return Constants()


def deep_constants(config: ModelConfig, is_decoder: bool) -> Constants:
    """alpha and beta of an encoder of N layers and a decoder of M layers.

    Encoder: alpha = 0.81 (N^4 M)^(1/16), beta = 0.87 (N^4 M)^(-1/16).
    Decoder: alpha = (3 M)^(1/4), beta = (12 M)^(-1/4).

    Source: Wang et al. 2022, figure 2.
    """
    n, m = config.encoder_depth, config.decoder_depth
    if is_decoder:
        return Constants((3 * m) ** 0.25, (12 * m) ** -0.25)
    return Constants(0.81 * (n**4 * m) ** (1 / 16), 0.87 * (n**4 * m) ** (-1 / 16))


def plain_sum(params: Params, alpha: float, x_BLD: Array, y_BLD: Array) -> Array:
    """x + y (Vaswani et al. 2017, section 3.1)."""
    return x_BLD + y_BLD


def scaled_sum(params: Params, alpha: float, x_BLD: Array, y_BLD: Array) -> Array:
    """alpha x + y, in the type of y (Wang et al. 2022, section 4.1)."""
    return alpha * x_BLD.astype(y_BLD.dtype) + y_BLD


def weighted_sum(params: Params, alpha: float, x_BLD: Array, y_BLD: Array) -> Array:
    """x + a y with a learned number a, 0 at first.

    The paper's Transformer has one a for both sub-layers of a layer; here each has its own.

    Source: Bachlechner et al. 2020, equation 1.
    """
    return x_BLD + params["weight"] * y_BLD


class ResidualKind(NamedTuple):
    """An entry of the registry."""

    # What the norm is applied to. "sum": the joined x and y. "input": the sub-layer's input, and
    # the output of a stack once. None: nothing.
    normalizes: str | None
    join: Callable[[Params, float, Array, Array], Array] = plain_sum  # (params, alpha, x, y)
    parameters: Mapping[str, Parameter] = MappingProxyType({})  # each residual has its own
    constants: Callable[[ModelConfig, bool], Constants] = no_constants


_WEIGHT = Parameter(nn.initializers.zeros, ())
RESIDUALS: dict[str, ResidualKind] = {
    "post": ResidualKind("sum"),
    "pre": ResidualKind("input"),
    "deep": ResidualKind("sum", scaled_sum, constants=deep_constants),
    "rezero": ResidualKind(None, weighted_sum, {"weight": _WEIGHT}),
}


def constants_of(config: ModelConfig, is_decoder: bool) -> Constants:
    """Those of the kind that the config names."""
    return RESIDUALS[config.norm].constants(config, is_decoder)


def ends_with_norm(config: ModelConfig) -> bool:
    """Whether a stack normalizes its output: the sum of all residuals, which is not normalized."""
    return RESIDUALS[config.norm].normalizes == "input"


def with_beta(params: Any, beta: float) -> Any:
    """A layer's boxed initial parameters, with the matrices of SCALED multiplied by beta."""

    def scaled(path: tuple[Any, ...], box: Any) -> Any:
        return box.replace_boxed(box.value * beta) if path[-1].key in SCALED else box

    if beta == 1.0:
        return params
    return jax.tree_util.tree_map_with_path(scaled, params, is_leaf=is_box)


def problems(config: ModelConfig, are_transformers: bool) -> Iterator[str]:
    """Why this kind of residual does not fit the model, with the fix; empty if it fits."""
    kind = RESIDUALS[config.norm]
    if not are_transformers and kind.constants is not no_constants:
        yield (
            f"model.norm={config.norm!r} has constants for a Transformer's encoder and decoder, "
            f"not for an encoder of kind {config.encoder} with a decoder of kind {config.decoder}. "
            "Use model.norm='post' or 'pre'."
        )
