"""The longest chain of products in a traced program: each product needs the one before it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

PRODUCTS = ("dot_general", "conv_general_dilated")


def longest_chain(function: Callable[..., Any], *arguments: Any) -> int:
    """Number of products in the longest chain; it follows every step of a scan.

    Args:
      function: a function of arrays without `cond` and `while`, because a jaxpr does not show how
        often a `while` runs or which branch a `cond` takes.
      arguments: arrays or their shapes; nothing is computed.
    """
    jaxpr = jax.make_jaxpr(function)(*arguments).jaxpr
    return max(_depths(jaxpr, [0] * len(jaxpr.invars)))


def _depths(jaxpr: Jaxpr, depths: Sequence[int]) -> list[int]:
    """The longest chain up to each output, given those up to the inputs."""
    known: dict[Var, int] = dict(zip(jaxpr.invars, depths, strict=True))

    def depth(atom: Var | Literal) -> int:
        return 0 if isinstance(atom, Literal) else known.get(atom, 0)  # 0: a constant

    for equation in jaxpr.eqns:
        results = _equation_depths(equation, [depth(atom) for atom in equation.invars])
        known.update(zip(equation.outvars, results, strict=True))
    return [depth(atom) for atom in jaxpr.outvars]


def _equation_depths(equation: JaxprEqn, depths: list[int]) -> list[int]:
    inner = equation.params.get("jaxpr") or equation.params.get("call_jaxpr")
    if inner is None:
        own = equation.primitive.name in PRODUCTS
        return [max(depths, default=0) + own] * len(equation.outvars)
    body = getattr(inner, "jaxpr", inner)  # a ClosedJaxpr or a Jaxpr
    if equation.primitive.name != "scan":
        return _depths(body, depths)
    # The operands are constants, carry and sliced arrays; a sliced array has one more axis outside
    # than inside. The scan's parameters have their numbers too, but JAX changes the names.
    sliced = _with_one_axis_more(equation.invars, body.invars)
    stacked = [0] * _with_one_axis_more(equation.outvars, body.outvars)
    last = len(depths) - sliced
    first = last - (len(equation.outvars) - len(stacked))
    carry = depths[first:last]
    slices = depths[last:]
    for _ in range(equation.params["length"]):
        results = _depths(body, [*depths[:first], *carry, *slices])
        carry = results[: len(carry)]
        stacked = list(map(max, stacked, results[len(carry) :]))
    return [*carry, *stacked]


def _with_one_axis_more(outside: Sequence[Any], inside: Sequence[Any]) -> int:
    return sum(o.aval.ndim > i.aval.ndim for o, i in zip(outside, inside, strict=True))
