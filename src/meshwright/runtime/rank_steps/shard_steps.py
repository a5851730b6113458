"""Zero 3 with fewer bits and fewer ranks on the way (ZeRO++): every rank holds a part of each weight and its moments.

Forward gathers weights over all ranks, in the plan's format; each keeps a piece of what came, from which backward
gathers among neighbours; parts of gradients go to the rank that has the weights, in the plan's format.

Source: Wang et al. 2023, ZeRO++ (arXiv 2306.10209), section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.runtime.rank_steps.rank_steps import INNER, REPLICAS, RankStep, State
from meshwright.zoo.quantised import padded, quantised, restored

EVERY = (REPLICAS, INNER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedStep(RankStep):
    """One optimizer step of a rank with its parts."""

    nested: bool = False
    """Ranks stand in two loops on one device, where a collective goes along one axis at a time."""

    def alone(self) -> Callable[[State, Any], tuple[State, jax.Array, Any]]:
        """All ranks on one device, side by side."""
        return RankStep.alone(replace(self, nested=True))

    @property
    def inner(self) -> int:
        """Neighbours that hold a second copy together; all ranks where there is none."""
        return self.data.secondary_shard or self.data.shard

    @property
    def replicas(self) -> int:
        """Groups of neighbours."""
        return self.data.shard // self.inner

    def initial(self, weights: Any) -> State:
        """Parts of all ranks, an axis for them in front.

        Args:
            weights: the weights of the model.
        """
        parts = jax.tree.map(self._parts, weights)
        return {"weights": parts, "moments": self.optimizer.init(parts), "step": jnp.zeros((), jnp.int32)}

    def own(self, state: State) -> dict[str, tuple[str, ...]]:
        """Every rank has its parts for itself.

        Args:
            state: any.
        """
        return {name: () if name == "step" else EVERY for name in state}

    def rank(self, state: State, batch: Any) -> tuple[State, jax.Array, Any]:
        """One step on one rank; as `RankStep.rank`."""
        key = jax.random.fold_in(jax.random.key(self.seed), state["step"])
        loss, gradients = self._gradients(state["weights"], batch, key)
        size = jnp.sqrt(jax.lax.psum(sum((leaf**2).sum() for leaf in jax.tree.leaves(gradients)), EVERY))
        clip = self.optimizer.clip
        factor = 1.0 if clip is None else jnp.minimum(1.0, clip / jnp.maximum(size, 1e-12))
        clipped = jax.tree.map(lambda leaf: leaf * factor, gradients)
        unclipped = type(self.optimizer)(clip=None)
        weights, moments = unclipped.update(state["weights"], state["moments"], clipped, state["step"])
        after = {"weights": weights, "moments": moments, "step": state["step"] + 1}
        return after, jax.lax.pmean(loss, EVERY), jax.tree.map(self._all, gradients)

    def _gradients(self, weights: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        """Mean loss of a rank's micro-batches, and the mean gradients of its parts."""
        split = jax.tree.map(lambda leaf: leaf.reshape(self.micro_batches, -1, *leaf.shape[1:]), batch)
        loss: Any = 0.0
        gradients: Any = None
        for number in range(self.micro_batches):
            value, found = self._both(weights, jax.tree.map(lambda leaf: leaf[number], split), key)  # noqa: B023
            loss = loss + value / self.micro_batches
            gradients = found if gradients is None else jax.tree.map(jnp.add, gradients, found)
        return loss, jax.tree.map(lambda leaf: leaf / self.micro_batches, gradients)

    def _both(self, parts: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        """Loss of a micro-batch, and the mean gradient of this rank's parts."""
        shapes = jax.eval_shape(self.model.init, jax.random.key(0))
        flat = jax.tree.map(self._gathered, parts)
        value = self.model.loss(jax.tree.map(shaped, flat, shapes), batch, key)
        if self.data.secondary_shard:
            flat = jax.tree.map(lambda leaf: jax.lax.all_gather(self._piece(leaf), INNER).ravel(), flat)
        whole = jax.tree.map(shaped, flat, shapes)
        gradients = jax.grad(self.model.loss)(whole, batch, key)
        return value, jax.tree.map(self._scattered, gradients)

    def _gathered(self, part: jax.Array) -> jax.Array:
        """A weight of all parts, flat."""
        dtype = self.data.gather_dtype
        if dtype is None:
            return self._all(part).ravel()
        sent = jax.tree.map(self._all, quantised(part, dtype))
        return restored(sent, dtype, part).ravel()

    def _piece(self, whole: jax.Array) -> jax.Array:
        """This rank's piece of a second copy."""
        return whole.reshape(self.inner, -1)[jax.lax.axis_index(INNER)]

    def _scattered(self, gradient: jax.Array) -> jax.Array:
        """The mean over ranks of the part of a gradient that belongs to this rank."""
        parts, dtype = self._parts(gradient), self.data.reduce_dtype
        if dtype is None:
            return self._summed(parts) / self.data.shard
        sent = jax.tree.map(self._exchanged, quantised(parts, dtype))
        return restored(sent, dtype, gradient).mean(0)

    def _all(self, part: jax.Array) -> jax.Array:
        """[ranks, ...] of what each has."""
        if not self.nested:
            return jax.lax.all_gather(part, EVERY)
        found = jax.lax.all_gather(jax.lax.all_gather(part, INNER), REPLICAS)
        return found.reshape(-1, *part.shape)

    def _summed(self, parts: jax.Array) -> jax.Array:
        """The sum of this rank's part of [ranks, ...]."""
        if not self.nested:
            return jax.lax.psum_scatter(parts, EVERY)
        mine = jax.lax.axis_index(REPLICAS) * self.inner + jax.lax.axis_index(INNER)
        return jax.lax.psum(parts, EVERY)[mine]

    def _exchanged(self, parts: jax.Array) -> jax.Array:
        """Parts of [ranks, ...] that the others have for this rank."""
        if not self.nested:
            return jax.lax.all_to_all(parts, EVERY, 0, 0, tiled=True)
        both = parts.reshape(self.replicas, self.inner, *parts.shape[1:])
        both = jax.lax.all_to_all(jax.lax.all_to_all(both, INNER, 1, 1), REPLICAS, 0, 0)
        return both.reshape(parts.shape)

    def _parts(self, whole: jax.Array) -> jax.Array:
        """A tensor as [ranks, part]."""
        part = padded(whole.size, self.data.shard)
        return jnp.pad(whole.ravel(), (0, self.data.shard * part - whole.size)).reshape(self.data.shard, part)


def shaped(flat: jax.Array, like: Any) -> jax.Array:
    """A tensor from all its parts behind one another.

    Args:
        flat: the flat with what pads the last part.
        like: an array of its shape.
    """
    return flat[: like.size].reshape(like.shape)
