"""Restricted self-attention, block by block (Vaswani et al. 2017, section 4).

Time and memory are O(r n) for a window of r positions and a row of n. The row is cut into blocks of
queries. A block attends to its own positions and to as many on each side as the window reaches; no
array has an entry for each pair of positions of the row.

    row      0 1 2 3 | 4 5 6 7 | 8 9 . .        . = padding
    block 1        3 | 4 5 6 7 | 8              its keys, for a window of 3 around the query

To equation 1, blocks are rows of a larger batch. Without a window, a row is one block.

Dimension key
  B batch   L row length   N blocks   Q queries of a block   M keys of a block
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from transformer_jax.config.model import ModelConfig
from transformer_jax.model.attention.patterns import Pattern, mask_of, reach
from transformer_jax.model.interfaces import Place

SHORTEST_BLOCK = 16  # queries; products of shorter blocks are not faster


class Blocks(NamedTuple):
    """How a row is cut; numbers, not arrays."""

    length: int  # positions of the row
    queries: int  # Q
    behind: int = 0  # keys before the first query
    ahead: int = 0  # keys after the last query

    @property
    def keys(self) -> int:
        """M, the keys of a block."""
        return self.behind + self.queries + self.ahead

    @property
    def number(self) -> int:
        """N, the blocks of a row; the last one may end in padding."""
        return -(-self.length // self.queries)

    @property
    def is_row(self) -> bool:
        """Whether the row is one block, with nothing around it."""
        return self.keys == self.queries == self.length

    def distance(self) -> Array:
        """Position of the key minus that of the query, the same in each block: int `[Q, M]`."""
        return jnp.arange(-self.behind, self.keys - self.behind) - jnp.arange(self.queries)[:, None]

    def of_queries(self, x_BL: Array) -> Array:
        """`[batch, length, ...]` cut into blocks `[batch * N, Q, ...]`."""
        return x_BL if self.is_row else self._rows(self._cut(x_BL))

    def of_rows(self, rows_B: Array | None) -> Array | None:
        """A number for each block `[batch * N]`, from those of the rows in the global batch."""
        if rows_B is None or self.is_row:
            return rows_B
        return (rows_B[:, None] * self.number + jnp.arange(self.number)).reshape(-1)

    def of_keys(self, x_BL: Array) -> Array:
        """The blocks with what is around them `[batch * N, M, ...]`; zeros outside the row."""
        if self.is_row:
            return x_BL
        x_BNQ = self._cut(x_BL)
        parts = [x_BNQ]
        none = ((0, 0),) * (x_BL.ndim - 1)
        if self.behind:
            last = x_BNQ[:, :-1, self.queries - self.behind :]
            parts.insert(0, jnp.pad(last, ((0, 0), (1, 0), *none)))
        if self.ahead:
            first = x_BNQ[:, 1:, : self.ahead]
            parts.append(jnp.pad(first, ((0, 0), (0, 1), *none)))
        return self._rows(jnp.concatenate(parts, axis=2))

    def joined(self, x: Array) -> Array:
        """The inverse of `of_queries`."""
        if self.is_row:
            return x
        x_BL = x.reshape(-1, self.number * self.queries, *x.shape[2:])
        return x_BL[:, : self.length]

    def mask(self, patterns: tuple[Pattern, ...], place: Place) -> Array:
        """Booleans `[batch * N, 1, Q, M]`; all that is outside the row is padding."""
        query, key = jax.tree.map(self.of_queries, place), jax.tree.map(self.of_keys, place)
        return mask_of(patterns, query, key)

    def _cut(self, x_BL: Array) -> Array:
        padding = self.number * self.queries - self.length
        x_BL = jnp.pad(x_BL, ((0, 0), (0, padding), *((0, 0),) * (x_BL.ndim - 2)))
        return x_BL.reshape(x_BL.shape[0], self.number, self.queries, *x_BL.shape[2:])

    def _rows(self, x_BNQ: Array) -> Array:
        return x_BNQ.reshape(-1, *x_BNQ.shape[2:])


def blocks_of(config: ModelConfig, length: int, is_decoder: bool) -> Blocks:
    """The blocks in which self-attention is computed; one block if that is no more work."""
    whole = Blocks(length, length)
    if config.window is None:
        return whole
    behind, ahead = reach(config, is_decoder)
    blocks = Blocks(length, max(behind, ahead, SHORTEST_BLOCK), behind, ahead)
    return blocks if blocks.keys < length else whole
