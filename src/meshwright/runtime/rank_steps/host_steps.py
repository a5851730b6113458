"""States that live in host memory between uses: an optimizer that runs there, weights that wait there (ZeRO-Offload).

Every rank keeps its part of the main weights and of the moments in the host's memory. Parts of gradients go there, with
`gradients` as each micro-batch makes them; the host updates its part, and the device takes the new weights. Values are
placed by JAX's kinds of memory where the backend has them, and lie in the process between steps otherwise. Activations
leave in the middle of a step, and need a backend that has them.

Source: Ren et al. 2021, ZeRO-Offload (arXiv 2101.06840), sections 4 and 5; Rajbhandari et al. 2021, ZeRO-Infinity
(arXiv 2104.07857), for weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.compute_on import compute_on

from meshwright.errors import UnsupportedError
from meshwright.runtime.host_runs import HOST
from meshwright.runtime.rank_steps.rank_steps import RanksOnDevices, RankStep, State
from meshwright.runtime.rank_steps.shard_steps import EVERY, ShardedStep, shaped
from meshwright.specs.strategy import Offload
from meshwright.zoo.decoder import Decoder
from meshwright.zoo.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class SwappedStep(RankStep):
    """One optimizer step of a rank with whole states, whose activations wait on the host."""

    def on(self, devices: Sequence[Any], *, gradients_too: bool = True) -> RanksOnDevices:
        """One rank to a device; as `HostStep.on`."""
        return RankStep.on(
            replace(self, model=swapped_model(self.model, devices)), devices, gradients_too=gradients_too
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostStep(ShardedStep):
    """One optimizer step of a rank whose optimizer is on the host, with weights in zero 1, 2 or 3."""

    offload: Offload
    placed: bool = False
    """Whether programs place values in the host's memory: the mathematics are the same."""

    def alone(self) -> Callable[[State, Any], tuple[State, jax.Array, Any]]:
        """All ranks on one device, side by side."""
        return ShardedStep.alone(replace(self, placed=False))

    def on(self, devices: Sequence[Any], *, gradients_too: bool = True) -> RanksOnDevices:
        """One rank to a device.

        Args:
            devices: the devices, as many as ranks.
            gradients_too: whether it returns the mean gradients behind state and loss.
        """
        placed = HOST in _memories(devices)
        model = swapped_model(self.model, devices) if self.offload.activations else self.model
        return ShardedStep.on(replace(self, placed=placed, model=model), devices, gradients_too=gradients_too)

    @property
    def host(self) -> frozenset[str]:
        """Parts of the state that wait in the host's memory."""
        if not self.offload.optimizer:
            return frozenset()
        return frozenset({"main", "moments", "late"} | ({"weights"} if self.offload.weights else set()))

    def initial(self, weights: Any) -> State:
        """Main weights and moments in parts, an axis for ranks in front; weights in parts under zero 3, else whole.

        Args:
            weights: the weights of the model.
        """
        parts = jax.tree.map(self._parts, weights)
        state = {
            "weights": parts if self.data.zero == 3 else weights,
            "main": parts,
            "moments": self.optimizer.init(parts),
            "step": jnp.zeros((), jnp.int32),
        }
        return state | ({"late": jax.tree.map(jnp.zeros_like, parts)} if self.offload.delayed_update else {})

    def own(self, state: State) -> dict[str, tuple[str, ...]]:
        """Every rank has its parts for itself; whole weights are alike.

        Args:
            state: any.
        """
        alike = {"step"} | (set() if self.data.zero == 3 else {"weights"})
        return {name: () if name in alike else EVERY for name in state}

    def rank(self, state: State, batch: Any) -> tuple[State, jax.Array, Any]:
        """One step on one rank; as `RankStep.rank`."""
        key = jax.random.fold_in(jax.random.key(self.seed), state["step"])
        weights = self._to_device(state["weights"]) if self.offload.weights else state["weights"]
        loss, gradients = self._parts_of_gradients(weights, batch, key)
        clipped = self._clipped(gradients)
        step, used = state["step"], clipped
        if self.offload.delayed_update:
            step, used = step - 1, state["late"]
        main, moments = self._updated(state["main"], state["moments"], used, step)
        fresh = self._to_device(main)
        if self.data.zero < 3:
            fresh = jax.tree.map(lambda part, like: shaped(self._all(part).ravel(), like), fresh, weights)
        elif self.offload.weights:
            fresh = main
        after = {"weights": fresh, "main": main, "moments": moments, "step": state["step"] + 1}
        if self.offload.delayed_update:
            after["late"] = clipped
        return after, jax.lax.pmean(loss, EVERY), jax.tree.map(self._all, self._to_device(gradients))

    def _parts_of_gradients(self, weights: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        """Loss of a rank, and the mean gradients of its parts: in the host's memory."""
        split = jax.tree.map(lambda leaf: leaf.reshape(self.micro_batches, -1, *leaf.shape[1:]), batch)
        loss: Any = 0.0
        total: Any = None
        for number in range(self.micro_batches):
            samples = jax.tree.map(lambda leaf: leaf[number], split)  # noqa: B023
            if self.data.zero == 3:
                value, found = self._both(weights, samples, key)
            else:
                value, found = jax.value_and_grad(self.model.loss)(weights, samples, key)
            if self.data.zero == 2:
                found = jax.tree.map(self._scattered, found)
            if self.offload.gradients:
                found = self._to_host(found)
            loss = loss + value / self.micro_batches
            total = found if total is None else self._on_host(_added, total, found, here=not self.offload.gradients)
        if self.data.zero < 2:
            total = jax.tree.map(self._scattered, total)
        return loss, self._on_host(_scaled, self._to_host(total), self._to_host(jnp.asarray(1 / self.micro_batches)))

    def _clipped(self, gradients: Any) -> Any:
        """Gradients by the global norm, which is all that the host needs from the others."""
        clip = self.optimizer.clip
        if clip is None:
            return gradients
        square = self._to_device(self._on_host(_square, gradients))
        size = jnp.sqrt(jax.lax.psum(square, EVERY))
        return self._on_host(_scaled, gradients, self._to_host(jnp.minimum(1.0, clip / jnp.maximum(size, 1e-12))))

    def _updated(self, main: Any, moments: Any, gradients: Any, step: jax.Array) -> tuple[Any, Any]:
        """Adam on the host; a delayed one has nothing to do in the first step."""
        unclipped = type(self.optimizer)(clip=None)

        def update(main: Any, moments: Any, gradients: Any, step: jax.Array) -> tuple[Any, Any]:
            found = unclipped.update(main, moments, gradients, jnp.maximum(step, 0))
            return jax.tree.map(lambda new, old: jnp.where(step >= 0, new, old), found, (main, moments))

        made: tuple[Any, Any] = self._on_host(update, main, moments, gradients, self._to_host(step))
        return made

    def _on_host(self, function: Callable[..., Any], *given: Any, here: bool = False) -> Any:
        """What a function makes of values in the host's memory, computed there."""
        if here or not (self.placed and self.host):
            return function(*given)
        with compute_on("device_host"):
            return function(*given)

    def _to_host(self, values: Any) -> Any:
        return jax.device_put(values, jax.memory.Space.Host) if self.placed and self.host else values

    def _to_device(self, values: Any) -> Any:
        return jax.device_put(values, jax.memory.Space.Device) if self.placed and self.host else values


def swapped_model(model: Model, devices: Sequence[Any]) -> Decoder:
    """A decoder whose layers send what they keep to the host's memory.

    Args:
        model: the decoder; other models are refused before.
        devices: the devices that run it.

    Raises:
        UnsupportedError: the backend has no such memory.
    """
    kinds = _memories(devices)
    if HOST not in kinds:
        why = f"{devices[0].platform} has {', '.join(kinds)}, and activations leave in the middle of a step"
        raise UnsupportedError(what="off-a without memory of the host", why=why, fix="use rc-full", field="plan")
    assert isinstance(model, Decoder), "other models are refused before"
    return replace(model, swapped=True)


def _memories(devices: Sequence[Any]) -> list[str]:
    return sorted(memory.kind for memory in devices[0].addressable_memories())


def _added(total: Any, found: Any) -> Any:
    return jax.tree.map(jnp.add, total, found)


def _scaled(values: Any, factor: jax.Array) -> Any:
    return jax.tree.map(lambda leaf: (leaf * factor).astype(leaf.dtype), values)


def _square(values: Any) -> jax.Array:
    squares = [(leaf**2).sum() for leaf in jax.tree.leaves(values)]
    return sum(squares[1:], squares[0])
