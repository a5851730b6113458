"""Attention over ranks that pass blocks round a ring, with backward passes of their own.

    forward                 keys and values go round
    backward, `RingRanks`   keys and values go round again, and their gradients behind them, which end at home
    backward, `BurstRanks`  queries, output gradients and two numbers a query go round, gradients of queries behind

A gradient begins at the first rank behind its home, which adds its own part when it is back: ranks - 1 sends of each.
Source: Liu et al. 2023 (arXiv 2310.01889); Sun et al. 2024 (BurstAttention, arXiv 2403.09347).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp

from meshwright.zoo.attention_ranks import OF_HEADS, Kept, WithBackward
from meshwright.zoo.scores import (
    QueryParts,
    Sums,
    log_total,
    nothing,
    outputs,
    part_gradients,
    part_sums,
    slope_means,
    wide,
)

Some = TypeVar("Some")
Index: TypeAlias = int | jax.Array


class RingRanks(WithBackward):
    """Keys and values that are passed from rank to rank."""

    def forward(self, q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, Kept]:
        """Attention, block after block of keys and values."""
        queries, around = self._pieces(q), (self._pieces(k), self._pieces(v))
        made = Sums(*map(jnp.stack, zip(*(nothing(piece, k.shape[2]) for piece in queries), strict=True)))
        for back in range(self.ranks):
            around = self._passed(around) if back else around
            source = self._source(back)
            for at, of in self._pairs(self.rank, source, own=not back):
                sight = self._sight(self.rank, at, source, of)
                found = part_sums(self.spec, _taken(queries, at), *_taken(around, of), *sight)
                made = _put(made, at, _taken(made, at).joined(found))
        parts = [_taken(made, at) for at in range(self._count)]
        out = jnp.concatenate([outputs(one, queries[at]) for at, one in enumerate(parts)], axis=1)
        return out, (q, k, v, out, jnp.concatenate([log_total(one) for one in parts], axis=OF_HEADS))

    def backward(self, kept: Kept, slope: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Gradients, of which those of keys and values go round behind these."""
        q, k, v, out, logs = kept
        queries = self._query_pieces(QueryParts(q, slope, logs, slope_means(out, slope, k.shape[2])))
        around = (self._pieces(k), self._pieces(v))
        of_queries, none = _zeros(queries.q), _zeros(around)
        home = behind = none
        for back in range(self.ranks):
            around = self._passed(around) if back else around
            source, here = self._source(back), none
            for at, of in self._pairs(self.rank, source, own=not back):
                sight = self._sight(self.rank, at, source, of)
                found = part_gradients(self.spec, _taken(queries, at), *_taken(around, of), *sight)
                of_queries, here = _added(of_queries, at, found[0]), _added(here, of, found[1:])
            home, behind = (here, none) if not back else (home, self._followed(behind, here, k.dtype, first=back == 1))
        of_keys, of_values = self._followed(behind, home, k.dtype, first=self.ranks == 1)
        return self._joined(of_queries, q), self._joined(of_keys, k), self._joined(of_values, v)

    def _followed(self, behind: Some, here: Some, dtype: jnp.dtype, *, first: bool) -> Some:
        """What the rank before had of gradients that go round, in the format of what they are of, with more added."""
        if first:
            return here
        sent = jax.tree.map(lambda one: one.astype(dtype), behind)
        added: Some = jax.tree.map(jnp.add, self._passed(sent), here)
        return added

    @property
    def _count(self) -> int:
        """Pieces of a rank that are seen whole or not at all; 1 where that is not said of them."""
        return int(self.places.shape[1]) if self.spec.causal else 1

    def _source(self, back: int) -> jax.Array:
        """The rank whose block is here after so many sends."""
        return (self.rank - back) % self.ranks

    def _passed(self, values: Some) -> Some:
        """What the rank before had."""
        around = [(rank, (rank + 1) % self.ranks) for rank in range(self.ranks)]
        passed: Some = jax.tree.map(lambda one: jax.lax.ppermute(one, self.axes, around), values)
        return passed

    def _pairs(self, queries: jax.Array, keys: jax.Array, *, own: bool) -> Sequence[tuple[Index, Index]]:
        """Pieces of a rank's queries and of a rank's keys that see each other; of two pieces as many for all ranks."""
        if self._count == 1:
            return [(0, 0)]
        if own:
            return [(0, 0), (1, 0), (1, 1)]
        both = jnp.where(keys < queries, 0, 1)
        return [(1, 0), (both, both)]

    def _sight(self, queries: jax.Array, at: Index, keys: jax.Array, of: Index) -> tuple[jax.Array, jax.Array]:
        """Places of a piece of a rank's queries and of one of a rank's keys."""
        places = jnp.asarray(self.places.reshape(self.ranks, self._count, -1))
        return places[queries, at], places[keys, of]

    def _pieces(self, x: jax.Array) -> jax.Array:
        """[samples, tokens, ...] as [pieces, samples, tokens of a piece, ...]."""
        return jnp.stack(jnp.split(x, self._count, axis=1))

    def _query_pieces(self, parts: QueryParts) -> QueryParts:
        """Parts of queries as pieces."""
        by_head = (jnp.stack(jnp.split(one, self._count, axis=OF_HEADS)) for one in (parts.log_total, parts.mean))
        return QueryParts(self._pieces(parts.q), self._pieces(parts.slope), *by_head)

    def _joined(self, x: jax.Array, like: jax.Array) -> jax.Array:
        """Pieces as the rank's tokens, in the format of another array."""
        return jnp.concatenate(list(x), axis=1).astype(like.dtype)


class BurstRanks(RingRanks):
    """A ring whose backward leaves keys and values where they are."""

    def backward(self, kept: Kept, slope: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Gradients, of which those of queries go round behind these."""
        q, k, v, out, logs = kept
        around = self._query_pieces(QueryParts(q, slope, logs, slope_means(out, slope, k.shape[2])))
        held = (self._pieces(k), self._pieces(v))
        of_held, none = _zeros(held), _zeros(around.q)
        home = behind = none
        for back in range(self.ranks):
            around = self._passed(around) if back else around
            source, here = self._source(back), none
            for at, of in self._pairs(source, self.rank, own=not back):
                sight = self._sight(source, at, self.rank, of)
                found = part_gradients(self.spec, _taken(around, at), *_taken(held, of), *sight)
                here, of_held = _added(here, at, found[0]), _added(of_held, of, found[1:])
            home, behind = (here, none) if not back else (home, self._followed(behind, here, q.dtype, first=back == 1))
        of_queries = self._followed(behind, home, q.dtype, first=self.ranks == 1)
        return self._joined(of_queries, q), self._joined(of_held[0], k), self._joined(of_held[1], v)


def _taken(values: Some, at: Index) -> Some:
    """A piece."""
    taken: Some = jax.tree.map(lambda one: jax.lax.dynamic_index_in_dim(one, at, keepdims=False), values)
    return taken


def _put(values: Some, at: Index, new: Some) -> Some:
    """Pieces with another in the place of one."""
    put: Some = jax.tree.map(lambda one, own: jax.lax.dynamic_update_index_in_dim(one, own, at, 0), values, new)
    return put


def _added(values: Some, at: Index, new: Some) -> Some:
    """Pieces with more added to one."""
    return _put(values, at, jax.tree.map(jnp.add, _taken(values, at), new))


def _zeros(values: Some) -> Some:
    """Gradients of values before any is added, in at least float32."""
    zeros: Some = jax.tree.map(lambda one: jnp.zeros_like(wide(one)), values)
    return zeros
