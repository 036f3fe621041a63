"""The largest entries along an axis, exact and fast on a CPU."""

import jax.numpy as jnp
from jax import Array, lax

CHUNK = 64  # entries; 32 to 128 are equally fast on a CPU


def top_k(x: Array, k: int) -> tuple[Array, Array]:
    """The `k` largest entries along the last axis, largest first; the result is exact.

    Of equal entries, the one with the lowest index comes first. `lax.top_k` alone is slow on a CPU.
    A row's best k entries are in the k chunks with the largest maxima, and finding these chunks is
    a plain reduction: 3 to 6 times faster at 8,000 to 37,000 entries.

    Args:
      x: float32 `[..., width]` without NaN; the result of a row with NaN is arbitrary.
      k: 1 <= k <= width.

    Returns:
      Values and int32 indices `[..., k]`.
    """
    width = x.shape[-1]
    if width < 2 * k * CHUNK:
        return _top_k_plain(x, k)
    x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, -width % CHUNK)], constant_values=-jnp.inf)
    chunks = x.reshape(*x.shape[:-1], -1, CHUNK)
    _, best = _top_k_plain(chunks.max(-1), k)
    best = jnp.sort(best)  # so that equal entries keep their order
    within = jnp.take_along_axis(chunks, best[..., None], axis=-2).reshape(*x.shape[:-1], k * CHUNK)
    values, index = _top_k_plain(within, k)
    return values, jnp.take_along_axis(best, index // CHUNK, axis=-1) * CHUNK + index % CHUNK


def _top_k_plain(x: Array, k: int) -> tuple[Array, Array]:
    if k == 1:  # two reductions suffice
        largest = x.max(-1, keepdims=True)
        index = jnp.arange(x.shape[-1])
        return largest, jnp.where(x == largest, index, len(index) - 1).min(-1, keepdims=True)
    # lax.top_k ranks 0.0 above -0.0; everywhere else they are equal.
    values, index = lax.top_k(jnp.where(x == 0, 0.0, x), k)
    # Without barriers a caller's slice joins the slice in lax.top_k, which XLA for a CPU then no
    # longer recognizes. It would sort whole rows: 11 ms instead of 0.2 ms in a step with beam 4.
    # One barrier for both would crash XLA on a mesh.
    return lax.optimization_barrier(values), lax.optimization_barrier(index)
