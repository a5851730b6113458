"""A plan whose pipelines train replicas of the model apart: each takes its own step, then is pulled to a reference.

Source: Chen et al., "Elastic Averaging for Efficient Pipelined DNN Training", PPoPP 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.errors import UnsupportedError
from meshwright.runtime.compiled import CompiledStep
from meshwright.runtime.parallelize import ParallelizedStep
from meshwright.runtime.training.ranks import RankedStep
from meshwright.runtime.training.run import Training
from meshwright.schedules import schedule_named
from meshwright.schedules.named.avgpipe import AvgPipe
from meshwright.zoo.training import State


@dataclass(frozen=True, slots=True, kw_only=True)
class AveragedTraining(Training):
    """N replicas on the same devices, each with 1/N of the batch, and a reference model.

    Behind each step the reference moves by the mean of what the replicas moved, and each replica goes 1/N of the way
    to it:

        reference <- reference + mean over n of (after_n - before_n)
        replica_n <- after_n - (after_n - reference) / N

    Replicas keep moments of their own. Their steps are handed to the devices one behind the other without waiting, so
    that one fills while the one before drains.
    """

    def __post_init__(self) -> None:
        Training.__post_init__(self)
        if self.backend != "local":
            what = f"{self.row.schedule} does not run with backend {self.backend}"
            why = "its replicas are pulled together in this process"
            raise UnsupportedError(what=what, why=why, fix="use local", field="backend", code="MW411")

    @property
    def replicas(self) -> int:
        """Models that are trained apart."""
        return self._schedule.pipelines

    @property
    def of_one(self) -> Training:
        """The training of one replica: its share of the batch in a pipeline of its own."""
        row = replace(self.row, gbs=self.row.gbs // self.replicas, schedule=self._schedule.of_one.token)
        shared = {
            name: getattr(self, name) for name in ("spec", "seq_len", "hidden", "compute", "seed", "stage_layers")
        }
        return Training(row=row, **shared)

    def initial(self) -> State:
        """The state before the first step; `weights` are those of the reference."""
        one = self.of_one.initial()
        return {"weights": one["weights"], "replicas": [one] * self.replicas, "step": jnp.zeros((), jnp.int32)}

    def step(self, devices: Sequence[Any], *, gradients_too: bool = False) -> Any:
        """The step under the plan, as `AveragedStep`.

        Args:
            devices: the devices, at least as many as the plan has.
            gradients_too: whether it returns the mean gradients of the replicas behind state and loss.
        """
        return AveragedStep(self.of_one.step(devices, gradients_too=True), gradients_too=gradients_too)

    def alone(self) -> Callable[[State, Any], tuple[State, jax.Array, Any]]:
        """The same replicas on one device, one behind the other."""
        return partial(_averaged, self.of_one.alone())

    @property
    def _schedule(self) -> AvgPipe:
        schedule = schedule_named(self.row.schedule)
        assert isinstance(schedule, AvgPipe)
        return schedule


class AveragedStep(RankedStep):
    """The steps of all replicas, and how they are pulled together."""

    def __init__(self, of_one: ParallelizedStep, *, gradients_too: bool) -> None:
        """Nothing is compiled before the first call.

        Args:
            of_one: the step of one replica, which returns its gradients too.
            gradients_too: whether calls return the mean gradients as well.
        """
        self._of_one, self._gradients_too = of_one, gradients_too

    def __call__(self, state: Any, batch: Any) -> tuple[Any, ...]:
        """Run the step on the devices.

        Args:
            state: the state as `AveragedTraining.initial` makes it.
            batch: the batch of all replicas, one behind the other.
        """
        made = _averaged(self._of_one, state, batch)
        return made if self._gradients_too else made[:2]

    def lower(self, state: Any, batch: Any) -> CompiledStep:
        """What is run for each replica.

        Args:
            state: the state before the step.
            batch: the batch of all replicas.
        """
        replicas = state["replicas"]
        compiled: CompiledStep = self._of_one.lower(replicas[0], next(_shares(batch, len(replicas))))
        return compiled

    def close(self) -> None:
        """End the pipeline."""
        self._of_one.close()


def _averaged(of_one: Callable[[Any, Any], Any], state: State, batch: Any) -> tuple[State, jax.Array, Any]:
    """A step of every replica, and of the reference.

    Args:
        of_one: the step of one: its next state, loss and gradients.
        state: the state before it.
        batch: the batch of all.
    """
    before = state["replicas"]
    made = [of_one(one, part) for one, part in zip(before, _shares(batch, len(before)), strict=True)]
    after, losses, gradients = ([one[place] for one in made] for place in range(3))
    reference, pulled = _pulled(state["weights"], [one["weights"] for one in before], [one["weights"] for one in after])
    replicas = [one | {"weights": weights} for one, weights in zip(after, pulled, strict=True)]
    loss = jnp.mean(jnp.stack([jnp.asarray(np.asarray(one)) for one in losses]))
    mean = jax.tree.map(lambda *leaves: jax.jit(_mean)(leaves), *gradients)
    return {"weights": reference, "replicas": replicas, "step": state["step"] + 1}, loss, mean


def _shares(batch: Any, count: int) -> Any:
    """The samples of each replica."""
    size = len(jax.tree.leaves(batch)[0]) // count
    for first in range(0, count * size, size):
        yield jax.tree.map(lambda leaf: leaf[first : first + size], batch)  # noqa: B023 (read at once)


def _pulled(reference: Any, before: Sequence[Any], after: Sequence[Any]) -> tuple[Any, list[Any]]:
    """Reference and replicas, each weight where its stage holds it."""
    leaves, tree = jax.tree.flatten(reference)
    own = [zip(*(jax.tree.leaves(one) for one in side), strict=True) for side in (before, after)]
    moved = [jax.jit(_pulled_weight)(leaf, *both) for leaf, *both in zip(leaves, *own, strict=True)]
    new, replicas = zip(*moved, strict=True)
    return tree.unflatten(new), [tree.unflatten(column) for column in zip(*replicas, strict=True)]


def _pulled_weight(
    reference: jax.Array, before: tuple[jax.Array, ...], after: tuple[jax.Array, ...]
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    moves = [new - old for new, old in zip(after, before, strict=True)]
    moved = reference + _mean(moves)
    return moved, tuple(new - (new - moved) / len(after) for new in after)


def _mean(leaves: Sequence[jax.Array]) -> jax.Array:
    total = sum(leaves[1:], leaves[0])
    return total / len(leaves)
