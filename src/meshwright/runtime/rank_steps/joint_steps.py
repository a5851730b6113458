"""One ZeRO group whose ranks take unequal shares of the batch: each passes its own samples, states lie in parts.

Every rank runs the pass of its pipeline, of as many samples as that has and with its recompute, chosen on the rank
itself, so that no rank computes what another has more of. Gathers and scatters are those of all ranks, of gradients
summed over samples and divided by those of the whole batch.

Source: Rajbhandari et al. 2020, ZeRO (arXiv 1910.02054), sections 5 and 7; Zhang et al. 2024, Poplar (arXiv
2408.12596), for the shares.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.runtime.rank_steps.rank_steps import INNER, State
from meshwright.runtime.rank_steps.shard_steps import EVERY, ShardedStep, shaped
from meshwright.zoo.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What every rank of a pipeline does of a micro-batch."""

    model: Model
    """The model as the pipeline runs it."""
    samples: int
    ranks: int
    pass_s: float = 0.0
    """Seconds that every pass of a micro-batch rests, to emulate a slower device."""
    behind_s: float = 0.0
    """Seconds behind its last one, likewise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointStep(ShardedStep):
    """One optimizer step of a rank with its parts, and its share of each micro-batch."""

    shares: tuple[Share, ...]
    zero: int
    """What is in parts: 2 gradients and moments, 3 weights too."""
    keeps: bool = False
    """Whether weights are gathered once for all micro-batches, with zero 3."""
    update_s: float = 0.0
    """Seconds that all rest once gradients are summed, to emulate slower devices."""

    @property
    def samples(self) -> int:
        """Samples of a step, over all ranks."""
        return self.micro_batches * sum(share.samples * share.ranks for share in self.shares)

    def initial(self, weights: Any) -> State:
        """What ranks hold, an axis for them in front of what is in parts.

        Args:
            weights: the weights of the model.
        """
        parts = jax.tree.map(self._parts, weights)
        held = parts if self.zero == 3 else weights
        return {"weights": held, "moments": self.optimizer.init(parts), "step": jnp.zeros((), jnp.int32)}

    def own(self, state: State) -> dict[str, tuple[str, ...]]:
        """Every rank has its parts for itself.

        Args:
            state: any.
        """
        apart = {"moments"} | ({"weights"} if self.zero == 3 else set())
        return {name: EVERY if name in apart else () for name in state}

    def rank(self, state: State, batch: Any) -> tuple[State, jax.Array, Any]:
        """One step on one rank; as `RankStep.rank`.

        Args:
            state: the state as `initial` makes it.
            batch: [micro-batches x samples of the fullest rank, ...]; what is behind this rank's own is not read.
        """
        key = jax.random.fold_in(jax.random.key(self.seed), state["step"])
        split = jax.tree.map(lambda leaf: leaf.reshape(self.micro_batches, -1, *leaf.shape[1:]), batch)
        place = jax.lax.axis_index(INNER)
        kind = jnp.repeat(
            jnp.arange(len(self.shares)), jnp.array([one.ranks for one in self.shares]), total_repeat_length=self.inner
        )[place]
        passes = [partial(self._passed, share) for share in self.shares]
        once = self._whole(state) if self.zero < 3 or self.keeps else None

        def added(total: Any, part: Any) -> tuple[Any, None]:
            weights = self._whole(state) if once is None else once
            value, gradients = jax.lax.switch(kind, passes, weights, part, key)
            return jax.tree.map(jnp.add, total, (value, jax.tree.map(self._cut, gradients))), None

        like = self._shapes()
        parts = state["moments"]["mean"]
        begun = jax.tree.map(jnp.zeros_like, parts)
        first = jax.tree.leaves(parts)[0]
        (loss, gradients), _ = jax.lax.scan(added, (jnp.zeros((), first.dtype), begun), split)
        mine = (
            state["weights"]
            if self.zero == 3
            else jax.tree.map(lambda leaf: self._parts(leaf)[place], state["weights"])
        )
        squares = sum(((leaf**2).sum() for leaf in jax.tree.leaves(gradients)), jnp.zeros((), first.dtype))
        squares = jax.lax.switch(kind, [partial(_rested, seconds=one.behind_s) for one in self.shares], squares)
        size = _rested(jnp.sqrt(jax.lax.psum(squares, EVERY)), self.update_s)
        clip = self.optimizer.clip
        factor = 1.0 if clip is None else jnp.minimum(1.0, clip / jnp.maximum(size, 1e-12))
        clipped = jax.tree.map(lambda leaf: leaf * factor, gradients)
        moved, moments = type(self.optimizer)(clip=None).update(mine, state["moments"], clipped, state["step"])
        weights = moved if self.zero == 3 else jax.tree.map(self._joined, moved, like)
        after = {"weights": weights, "moments": moments, "step": state["step"] + 1}
        return after, jax.lax.psum(loss, EVERY), jax.tree.map(self._all, gradients)

    def joined(self, state: State) -> State:
        """A state with all weights and moments whole.

        Args:
            state: the state as `initial` makes it.
        """
        weights = self.whole(state["weights"]) if self.zero == 3 else state["weights"]
        moments = {name: self.whole(parts) for name, parts in state["moments"].items()}
        return {"weights": weights, "moments": moments, "step": state["step"]}

    def parted(self, state: State) -> State:
        """The other way round.

        Args:
            state: the state as `joined` makes it.
        """
        weights = self.cut(state["weights"]) if self.zero == 3 else state["weights"]
        moments = {name: self.cut(whole) for name, whole in state["moments"].items()}
        return {"weights": weights, "moments": moments, "step": state["step"]}

    def whole(self, parts: Any) -> Any:
        """What all ranks hold in parts, as one.

        Args:
            parts: the parts with an axis for the ranks in front.
        """
        return jax.tree.map(lambda part, like: shaped(part.ravel(), like), parts, self._shapes())

    def cut(self, whole: Any) -> Any:
        """The other way round.

        Args:
            whole: like weights of the model.
        """
        return jax.tree.map(self._parts, whole)

    def _shapes(self) -> Any:
        return jax.eval_shape(self.model.init, jax.random.key(0))

    def _whole(self, state: State) -> Any:
        """Weights as passes take them."""
        return jax.tree.map(self._joined, state["weights"], self._shapes()) if self.zero == 3 else state["weights"]

    def _joined(self, part: jax.Array, like: Any) -> jax.Array:
        return shaped(self._all(part).ravel(), like)

    def _passed(self, share: Share, weights: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        """Loss and gradients of a rank's own samples, each at its weight in the whole batch."""
        own = jax.tree.map(lambda leaf: leaf[: share.samples], batch)
        weight = share.samples / self.samples
        both = jax.value_and_grad(share.model.loss)
        if share.pass_s:
            value, gradients = _no_sooner(lambda given: both(weights, given, key), own, share.pass_s)
        else:
            value, gradients = both(weights, own, key)
        return value * weight, jax.tree.map(lambda leaf: leaf * weight, gradients)

    def _cut(self, gradient: jax.Array) -> jax.Array:
        """The sum over ranks of the part of a gradient that belongs to this rank."""
        return self._summed(self._parts(gradient))


def _rested(value: jax.Array, seconds: float) -> jax.Array:
    """A number, some seconds after it is there."""
    if not seconds:
        return value

    def wait(number: Any) -> Any:
        time.sleep(seconds)
        return number

    return jax.pure_callback(wait, jax.ShapeDtypeStruct(value.shape, value.dtype), value)


def _no_sooner(made: Callable[[Any], tuple[jax.Array, Any]], given: Any, seconds: float) -> tuple[jax.Array, Any]:
    """What is made of samples, so many seconds after they are there, or when it is made."""
    place, begun = jax.lax.axis_index(INNER), dict[int, float]()

    def begin(rank: Any, _: Any) -> Any:
        begun[int(rank)] = time.monotonic()
        return rank

    def end(rank: Any, number: Any) -> Any:
        time.sleep(max(begun[int(rank)] + seconds - time.monotonic(), 0.0))
        return number

    # What begins reads the samples, so that it is no constant of the loop over micro-batches.
    started = jax.pure_callback(begin, jax.ShapeDtypeStruct((), place.dtype), place, jax.tree.leaves(given)[0])
    given, started = jax.lax.optimization_barrier((given, started))
    value, gradients = jax.lax.optimization_barrier(made(given))
    value = jax.pure_callback(end, jax.ShapeDtypeStruct(value.shape, value.dtype), started, value)
    return jax.lax.optimization_barrier((value, gradients))


def of_whole(
    ranks: JointStep, step: Callable[[State, Any], tuple[State, jax.Array, Any]]
) -> Callable[[State, Any], tuple[State, jax.Array, Any]]:
    """A step of one device as one of the joint states.

    Args:
        ranks: what holds them.
        step: the step of whole weights and moments.
    """

    def alone(state: State, batch: Any) -> tuple[State, jax.Array, Any]:
        after, loss, gradients = step(ranks.joined(state), batch)
        return ranks.parted(after), loss, ranks.cut(gradients)

    return alone
