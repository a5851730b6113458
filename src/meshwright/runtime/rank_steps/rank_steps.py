"""Steps whose data ranks hold something of their own: errors of compressed gradients, or weights between averages.

The step of one rank is written once, with a named axis for the replicas and one for the ranks of each. `shard_map` runs
it on as many devices, `vmap` on one: the same mathematics, held against each other.

Source: Vogels et al. 2019 (arXiv 1905.13727); Tang et al. 2021, 1-bit Adam (arXiv 2102.02888); Stich 2019 (arXiv
1805.09767); Douillard et al. 2023, DiLoCo (arXiv 2311.08105), algorithm 1 with its outer rate 0.7 and momentum 0.9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.runtime.host_arrays import as_it_lies
from meshwright.runtime.host_runs import HOST
from meshwright.specs.strategy import DataParallel
from meshwright.strategies.compression import Chosen, chosen
from meshwright.zoo.compressed import as_matrix, mean_gradients, sign_bytes, signs
from meshwright.zoo.model import Model
from meshwright.zoo.training import Adam

REPLICAS, INNER = "replicas", "inner"
OUTER_RATE, OUTER_MOMENTUM = 0.7, 0.9
ROUNDED_AS_WRITTEN = {"xla_allow_excess_precision": False}
"""Options of XLA's compiler with which a value in 16 bits is rounded wherever the step says so. Without them a fused
loop keeps 32 bits between its operators, so that two programs of the same step, whose loops differ, round apart."""
State = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStep:
    """One optimizer step of every rank."""

    model: Model
    data: DataParallel
    micro_batches: int
    """Micro-batches of a rank."""
    optimizer: Adam = field(default_factory=Adam)
    seed: int = 0

    @property
    def compression(self) -> Chosen | None:
        """How gradients are made small."""
        return chosen(self.data.compression) if self.data.compression else None

    @property
    def replicas(self) -> int:
        """Groups that hold weights, or errors, of their own."""
        return self.data.replicate

    @property
    def inner(self) -> int:
        """Ranks of each."""
        return self.data.shard

    @property
    def host(self) -> frozenset[str]:
        """Parts of the state that wait in the host's memory."""
        return frozenset()

    @property
    def placed(self) -> bool:
        """Whether programs place them there; else they lie in the process between steps."""
        return False

    def initial(self, weights: Any) -> State:
        """The state before the first step; what replicas have of their own has an axis for them in front.

        Args:
            weights: the weights of the model.
        """

        def each(leaf: jax.Array) -> jax.Array:
            return jnp.broadcast_to(leaf, (self.replicas, *leaf.shape))

        moments, step = self.optimizer.init(weights), jnp.zeros((), jnp.int32)
        if self.data.averaging != "synchronous":
            own = jax.tree.map(each, {"weights": weights, "moments": moments})
            outer = {"weights": weights, "momentum": jax.tree.map(jnp.zeros_like, weights)}
            return own | {"outer": outer if self.data.averaging == "diloco" else {}, "step": step}
        if self.compression is None:
            return {"weights": weights, "moments": moments, "step": step}
        errors = {"sent": jax.tree.map(lambda leaf: each(jnp.zeros_like(leaf)), weights)}
        if self.compression is not None and self.compression.kind.name == "onebit":
            errors["summed"] = jax.tree.map(
                lambda leaf: jnp.zeros((self.replicas, sign_bytes(leaf.size, self.replicas)), leaf.dtype), weights
            )
        return {"weights": weights, "moments": moments, "errors": errors, "step": step}

    def own(self, state: State) -> dict[str, tuple[str, ...]]:
        """Axes of ranks along which parts of a state differ; they are one axis in front of it.

        Args:
            state: any.
        """
        drift = self.data.averaging != "synchronous"
        apart = {name for name in state if name == "errors" or (drift and name in ("weights", "moments"))}
        return {name: (REPLICAS,) if name in apart else () for name in state}

    def rank(self, state: State, batch: Any) -> tuple[State, jax.Array, Any]:
        """One step on one rank: its own parts of the state without the axis in front, its samples.

        Args:
            state: the state as `initial` makes it.
            batch: [samples, ...] of this rank.

        Returns:
            The next state, the mean loss of all ranks, and the mean gradients as the optimizer sees them.
        """
        key = jax.random.fold_in(jax.random.key(self.seed), state["step"])
        loss, gradients = self._gradients(state["weights"], batch, key)
        loss = jax.lax.pmean(loss, (REPLICAS, INNER))
        if self.data.averaging != "synchronous":
            return self._drifted(state, jax.lax.pmean(gradients, INNER), loss)
        if self.compression is None:
            mean = jax.lax.pmean(gradients, (REPLICAS, INNER))
            weights, moments = self.optimizer.update(state["weights"], state["moments"], mean, state["step"])
            return {"weights": weights, "moments": moments, "step": state["step"] + 1}, loss, mean
        name, setting = self.compression.kind.name, self.compression.setting
        if name == "onebit":
            return self._signed(state, gradients, loss, setting)
        mean, errors = mean_gradients(name, setting, gradients, state["errors"]["sent"], REPLICAS, key)
        weights, moments = self.optimizer.update(state["weights"], state["moments"], mean, state["step"])
        after = {"weights": weights, "moments": moments, "errors": {"sent": errors}, "step": state["step"] + 1}
        return after, loss, mean

    def _gradients(self, weights: Any, batch: Any, key: jax.Array) -> tuple[jax.Array, Any]:
        """Mean loss and gradients of a rank's micro-batches."""
        both = jax.value_and_grad(self.model.loss)
        split = jax.tree.map(lambda leaf: leaf.reshape(self.micro_batches, -1, *leaf.shape[1:]), batch)

        def added(total: Any, part: Any) -> tuple[Any, None]:
            return jax.tree.map(jnp.add, total, both(weights, part, key)), None

        begun = both(weights, jax.tree.map(lambda leaf: leaf[0], split), key)
        total, _ = jax.lax.scan(added, begun, jax.tree.map(lambda leaf: leaf[1:], split))
        loss, gradients = jax.tree.map(lambda leaf: leaf / self.micro_batches, total)
        return loss, gradients

    def _signed(self, state: State, gradients: Any, loss: jax.Array, warm_up: int) -> tuple[State, jax.Array, Any]:
        """Adam in full while the variance warms up; then its momentum is summed by signs."""
        adam, weights, moments = self.optimizer, state["weights"], state["moments"]
        mean = jax.lax.pmean(gradients, REPLICAS)

        def whole() -> tuple[Any, Any, Any]:
            moved, after = adam.update(weights, moments, mean, state["step"])
            return moved, after, state["errors"]

        def signed() -> tuple[Any, Any, Any]:
            share = 1.0 - adam.square_decay**warm_up
            leaves, tree = jax.tree.flatten(moments["mean"])
            errors = state["errors"]
            parts = zip(
                leaves, *(jax.tree.leaves(one) for one in (gradients, errors["sent"], errors["summed"])), strict=True
            )
            found = []
            for old, gradient, sent, summed in parts:
                momentum = adam.mean_decay * old + (1.0 - adam.mean_decay) * gradient + sent
                one, left, left_sum = signs(momentum.reshape(as_matrix(old.shape)), summed, REPLICAS)
                found.append((one.reshape(old.shape), left.reshape(old.shape), left_sum))
            momentum, left, left_sum = (jax.tree.unflatten(tree, column) for column in zip(*found, strict=True))
            moved = jax.tree.map(
                lambda weight, first, second: weight - adam.rate * first / (jnp.sqrt(second / share) + adam.epsilon),
                weights,
                momentum,
                moments["square"],
            )
            return moved, {"mean": momentum, "square": moments["square"]}, {"sent": left, "summed": left_sum}

        moved, after, errors = jax.lax.cond(state["step"] < warm_up, whole, signed)
        return {"weights": moved, "moments": after, "errors": errors, "step": state["step"] + 1}, loss, mean

    def _drifted(self, state: State, gradients: Any, loss: jax.Array) -> tuple[State, jax.Array, Any]:
        """A step of this replica alone, and at the end of a round the average of all."""
        weights, moments = self.optimizer.update(state["weights"], state["moments"], gradients, state["step"])
        ends = (state["step"] + 1) % self.data.averaging_steps == 0
        outer = state["outer"]
        if self.data.averaging == "local":
            # Moments are averaged with the weights, so that replicas are alike after a round.
            weights, moments = jax.lax.cond(
                ends, lambda one: jax.lax.pmean(one, REPLICAS), lambda one: one, (weights, moments)
            )
        else:
            weights, outer = jax.lax.cond(ends, self._outer, lambda own, before: (own, before), weights, outer)
        after = {"weights": weights, "moments": moments, "outer": outer, "step": state["step"] + 1}
        return after, loss, jax.lax.pmean(gradients, REPLICAS)

    def _outer(self, weights: Any, outer: State) -> tuple[Any, State]:
        """Nesterov's step along the mean way of the replicas; each goes on from where it ends."""
        mean = jax.lax.pmean(weights, REPLICAS)
        way = jax.tree.map(jnp.subtract, outer["weights"], mean)
        momentum = jax.tree.map(lambda old, new: OUTER_MOMENTUM * old + new, outer["momentum"], way)
        moved = jax.tree.map(
            lambda weight, old, new: weight - OUTER_RATE * (OUTER_MOMENTUM * old + new), outer["weights"], momentum, way
        )
        return moved, {"weights": moved, "momentum": momentum}

    def alone(self) -> Callable[[State, Any], tuple[State, jax.Array, Any]]:
        """All ranks on one device, side by side."""

        def step(state: State, batch: Any) -> tuple[State, jax.Array, Any]:
            own = self.own(state)
            ranks = (self.replicas, self.inner)
            samples = jax.tree.map(lambda leaf: leaf.reshape(*ranks, -1, *leaf.shape[1:]), batch)
            given = {
                name: jax.tree.map(lambda leaf: leaf.reshape(*ranks, *leaf.shape[1:]), part)
                if INNER in own[name]
                else part
                for name, part in state.items()
            }
            outside = {name: 0 if REPLICAS in axes else None for name, axes in own.items()}
            inside = {name: 0 if INNER in axes else None for name, axes in own.items()}
            inner = jax.vmap(self.rank, in_axes=(inside, 0), axis_name=INNER)
            after, loss, gradients = jax.vmap(inner, in_axes=(outside, 0), axis_name=REPLICAS)(given, samples)
            kept = {name: _in_front(part, own[name]) for name, part in after.items()}
            return kept, loss[0, 0], _in_front(gradients, ())

        return jax.jit(step, compiler_options=ROUNDED_AS_WRITTEN)

    def on(self, devices: Sequence[Any], *, gradients_too: bool = True) -> RanksOnDevices:
        """One rank to a device.

        Args:
            devices: the devices, as many as ranks.
            gradients_too: whether it returns the mean gradients behind state and loss.
        """
        mesh = Mesh(np.array(devices).reshape(self.replicas, self.inner), (REPLICAS, INNER))
        return RanksOnDevices(rank=self, mesh=mesh, gradients_too=gradients_too)


class RanksOnDevices:
    """The step of every rank as one program of all devices."""

    def __init__(self, *, rank: RankStep, mesh: Mesh, gradients_too: bool) -> None:
        """Nothing is compiled before the first call.

        Args:
            rank: the step.
            mesh: the mesh of its devices, replicas x inner.
            gradients_too: whether it returns the mean gradients.
        """
        self._rank, self.mesh, self._gradients_too = rank, mesh, gradients_too
        self.samples_spec = PartitionSpec((REPLICAS, INNER))
        self._hosts, self._places = rank.host, rank.placed
        self._step = jax.jit(self.together, compiler_options=ROUNDED_AS_WRITTEN)

    def __call__(self, state: State, batch: Any) -> tuple[Any, ...]:
        """Run the step.

        Args:
            state: the state as `RankStep.initial` makes it.
            batch: the batch of all ranks.
        """
        given = self._placed(state, batch)
        after, *more = self._jitted(state)(*given)
        if self._hosts and not self._places:
            after = {name: jax.device_get(part) if name in self._hosts else part for name, part in after.items()}
        return after, *more

    def specs(self, state: State) -> list[PartitionSpec]:
        """How the leaves of a state lie on the mesh.

        Args:
            state: the state as `RankStep.initial` makes it, or its shapes.
        """
        own = self._rank.own(state)
        return [_spec(own[name]) for name in sorted(state) for _ in jax.tree.leaves(state[name])]

    def close(self) -> None:
        """Nothing runs elsewhere."""

    def _jitted(self, state: State) -> Any:
        """The program; it leaves in the host's memory what came from there."""
        if not (self._hosts and self._places):
            return self._step
        whole = NamedSharding(self.mesh, PartitionSpec())
        made = ({name: self._sharding(name, axes) for name, axes in self._rank.own(state).items()}, whole, whole)
        return jax.jit(
            self.together, out_shardings=made[: 2 + self._gradients_too], compiler_options=ROUNDED_AS_WRITTEN
        )

    def _sharding(self, name: str, axes: tuple[str, ...]) -> NamedSharding:
        kind = HOST if name in self._hosts and self._places else None
        return NamedSharding(self.mesh, _spec(axes), memory_kind=kind)

    def compiled_text(self, state: State, batch: Any) -> str:
        """The program as XLA has compiled it.

        Args:
            state: the state as `RankStep.initial` makes it.
            batch: the batch of all ranks.
        """
        return str(self._jitted(state).lower(*self._placed(state, batch)).compile().as_text())

    def lowered_text(self, state: State, batch: Any, platform: str) -> str:
        """The program as XLA is given it, for these devices or others.

        Args:
            state: the state as `RankStep.initial` makes it.
            batch: the batch of all ranks.
            platform: what it is for, `cuda` for example.
        """
        traced = self._jitted(state).trace(*self._placed(state, batch))
        return str(traced.lower(lowering_platforms=(platform,)).as_text())

    def _placed(self, state: State, batch: Any) -> tuple[State, Any]:
        there = {
            name: jax.device_put(jax.tree.map(as_it_lies, state[name]), self._sharding(name, axes))
            for name, axes in self._rank.own(state).items()
        }
        return there, jax.device_put(batch, NamedSharding(self.mesh, self.samples_spec))

    def together(self, state: State, batch: Any) -> tuple[Any, ...]:
        """The step of all ranks, as JAX traces it.

        Args:
            state: the state as `RankStep.initial` makes it.
            batch: the batch of all ranks.
        """
        own, whole = self._rank.own(state), PartitionSpec()

        def ranks(state: State, batch: Any) -> tuple[Any, ...]:
            alone = {name: _first(part) if own[name] else part for name, part in state.items()}
            after, *more = self._rank.rank(alone, batch)
            back = {
                name: jax.tree.map(lambda leaf: leaf[None], part) if own[name] else part for name, part in after.items()
            }
            return back, *more[: 1 + self._gradients_too]

        held = {name: _spec(axes) for name, axes in own.items()}
        run = jax.shard_map(
            ranks,
            mesh=self.mesh,
            in_specs=(held, self.samples_spec),
            check_vma=False,
            out_specs=(held, whole, whole)[: 2 + self._gradients_too],
        )
        made: tuple[Any, ...] = run(state, batch)
        return made


def _spec(axes: tuple[str, ...]) -> PartitionSpec:
    return PartitionSpec(axes) if axes else PartitionSpec()


def _in_front(part: Any, axes: tuple[str, ...]) -> Any:
    """The part of [replicas, inner, ...] that differs along some axes, as one in front; ranks are equal on others."""
    if INNER in axes:
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), part)
    return jax.tree.map(lambda leaf: leaf[:, 0] if axes else leaf[0, 0], part)


def _first(part: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf[0], part)
