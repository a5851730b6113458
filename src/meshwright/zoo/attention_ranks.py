"""Attention of queries, keys and values whose tokens are spread over ranks, as one of them sees it.

`GatheredRanks` brings all keys and values to every rank; `TreeRanks` brings all queries, and sums what each finds for
them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AbstractMesh, PartitionSpec

from meshwright.compiler.grid import Axes
from meshwright.shapes import Int
from meshwright.specs.layers.attention import Attention
from meshwright.zoo.scores import (
    QueryParts,
    Sums,
    dense_attention,
    log_total,
    outputs,
    part_gradients,
    part_sums,
    slope_means,
)

Kept = tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]
"""Queries, keys, values, outputs and `QueryParts.log_total` of a rank."""
Seen = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""What queries see of keys and values."""
OF_HEADS = 3
"""Axis of the queries in arrays that are grouped by heads."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class RankAttention(ABC):
    """What a rank's queries see of the keys of all ranks."""

    spec: Attention
    axes: Axes
    """Along which the ranks lie."""
    places: Int[np.ndarray, "ranks pieces tokens"]
    """Place in the sequence of each token, as ranks hold them in pieces."""

    @abstractmethod
    def over(self, mesh: AbstractMesh, split: PartitionSpec) -> Seen:
        """Attention of all ranks, of [samples, length, heads, head_dim].

        Args:
            mesh: the mesh of the devices.
            split: the split of queries, keys and values.
        """

    @abstractmethod
    def on_rank(self) -> Seen:
        """Attention of one rank, of its part of the same arrays."""

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return int(self.places.shape[0])

    @property
    def rank(self) -> jax.Array:
        """The one that computes."""
        return jax.lax.axis_index(self.axes)

    @property
    def own(self) -> jax.Array:
        """Places of the rank's tokens."""
        return jnp.asarray(self.places.reshape(self.ranks, -1))[self.rank]

    def all_of(self, x: jax.Array, axis: int = 1) -> jax.Array:
        """What all ranks have, one after the other."""
        gathered: jax.Array = jax.lax.all_gather(x, self.axes, axis=axis, tiled=True)
        return gathered

    def summed(self, x: jax.Array, axis: int = 1) -> jax.Array:
        """The rank's part of the sums over all ranks."""
        scattered: jax.Array = jax.lax.psum_scatter(x, self.axes, scatter_dimension=axis, tiled=True)
        return scattered


class GatheredRanks(RankAttention):
    """Keys and values of all ranks at once; their gradients are summed where they came from."""

    def over(self, mesh: AbstractMesh, split: PartitionSpec) -> Seen:
        """Attention by a gather of keys and values."""
        return jax.shard_map(self.on_rank(), mesh=mesh, in_specs=(split,) * 3, out_specs=split)

    def on_rank(self) -> Seen:
        """Attention by a gather of keys and values."""

        def seen(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return dense_attention(
                self.spec, q, self.all_of(k), self.all_of(v), self.own, jnp.asarray(self.places.ravel())
            )

        return seen


class WithBackward(RankAttention):
    """Attention whose backward sends again what forward has sent, and says what it sends besides."""

    def over(self, mesh: AbstractMesh, split: PartitionSpec) -> Seen:
        """Attention with the backward of its kind."""
        samples, tokens, heads = split
        kept = (*(split,) * 4, PartitionSpec(samples, heads, None, tokens))
        # A trace of either takes a tenth of a second; layers alike take the same one.
        forward = jax.jit(
            jax.shard_map(self.forward, mesh=mesh, in_specs=(split,) * 3, out_specs=(split, kept)), inline=True
        )
        backward = jax.jit(
            jax.shard_map(self.backward, mesh=mesh, in_specs=(kept, split), out_specs=(split,) * 3), inline=True
        )

        return _with_backward(forward, backward)

    def on_rank(self) -> Seen:
        """Attention with the backward of its kind."""
        return _with_backward(jax.jit(self.forward, inline=True), jax.jit(self.backward, inline=True))

    @abstractmethod
    def forward(self, q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Kept]:
        """What one rank's queries see, [samples, tokens, heads, head_dim], and what its backward needs.

        Args:
            q: [samples, tokens, heads, head_dim].
            k: [samples, tokens, kv_heads, head_dim].
            v: [samples, tokens, kv_heads, head_dim].
        """

    @abstractmethod
    def backward(self, kept: Kept, slope: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Gradients of one rank's queries, keys and values.

        Args:
            kept: what its forward has kept.
            slope: the gradient of what its queries have seen.
        """


def _with_backward(forward: Callable[..., tuple[jax.Array, Kept]], backward: Callable[..., Any]) -> Seen:
    seen = jax.custom_vjp(lambda *given: forward(*given)[0])
    # Operands of backward stay apart from forward's, so that what is sent again is not kept instead. XLA for CPUs does
    # not mind where one program has both.
    seen.defvjp(forward, lambda *given: backward(*jax.lax.optimization_barrier(given)))
    found: Seen = seen
    return found


class TreeRanks(WithBackward):
    """Queries of all ranks at once, whose sums over each rank's keys are joined; source: Shyam et al. 2024
    (Tree Attention, arXiv 2408.04093), algorithm 3."""

    def forward(self, q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Kept]:
        """Sums over the keys of each rank, joined over ranks."""
        part = part_sums(self.spec, self.all_of(q), k, v, jnp.asarray(self.places.ravel()), self.own)
        best = jax.lax.pmax(part.best, self.axes)
        scale = jnp.exp(part.best - best)
        total = self.summed(part.total * scale, OF_HEADS)
        values = self.summed((part.values * scale).astype(q.dtype), OF_HEADS)
        first = self.rank * q.shape[1]
        sums = Sums(jax.lax.dynamic_slice_in_dim(best, first, q.shape[1], OF_HEADS), total, values)
        out = outputs(sums, q)
        return out, (q, k, v, out, log_total(sums))

    def backward(self, kept: Kept, slope: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Gradients, for which queries are gathered again, with the gradients of what they have seen."""
        q, k, v, out, logs = kept
        means = slope_means(out, slope, k.shape[2])
        every = QueryParts(self.all_of(q), self.all_of(slope), *(self.all_of(one, OF_HEADS) for one in (logs, means)))
        found = part_gradients(self.spec, every, k, v, jnp.asarray(self.places.ravel()), self.own)
        of_queries, of_keys, of_values = (one.astype(q.dtype) for one in found)
        return self.summed(of_queries), of_keys, of_values
