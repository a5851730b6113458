"""A plan whose pipeline is not drained between updates: steps that overlap run as one call, on weights of versions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.compiler.grid import DeviceGrid
from meshwright.compiler.marking import value_and_grad
from meshwright.errors import Problem, UnsupportedError
from meshwright.runtime.compiled import CompiledStep
from meshwright.runtime.parallelize import ParallelizedStep
from meshwright.runtime.plan_method import grid_of, method_of
from meshwright.runtime.training.run import Training
from meshwright.schedules import schedule_named
from meshwright.schedules.kinds import Kind
from meshwright.shapes import Int
from meshwright.zoo.decoder import Decoder
from meshwright.zoo.model import Model
from meshwright.zoo.perceptron import Perceptron
from meshwright.zoo.training import Adam, State

MOST_MICRO_BATCHES = 128
"""Most micro-batches in one call, whose instruction lists grow with them."""
FIX = "1f1b or another schedule with one version of the weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionedTraining(Training):
    """A plan of equal stages that update by themselves, without a flush.

    Stage k runs micro-batch i, forward and backward, on the version of its weights that the schedule says. The pipeline
    is filled when a call begins and drained when it ends: the first micro-batches of a call lack fewer updates.
    Gradients are not clipped, since their norm would make every stage wait for all. Dropout is drawn by sample alone.
    """

    def __post_init__(self) -> None:
        Training.__post_init__(self)
        name, problems = self.row.schedule, []
        if self.scaling is not None:
            problems.append(
                Problem(
                    what=f"{name} does not run in fp16",
                    fix="use bf16",
                    field="dtype",
                    why="an overflow in one stage would have to skip the update of all",
                )
            )
        if self.spec is not None and self.spec.tied_embeddings:
            why = "the first and the last stage share the embedding, and stages update by themselves"
            problems.append(
                Problem(
                    what=f"{name} does not run with {self.spec.name}",
                    why=why,
                    fix=f"a model with untied embeddings such as llama-tiny, or {FIX}",
                    field="model",
                )
            )
        if problems:
            raise UnsupportedError(problems, code="MW411")

    @property
    def updates_per_step(self) -> int:
        """One, or one behind each micro-batch."""
        return self.row.micro_batches if schedule_named(self.row.schedule).updates_each else 1

    @property
    def most_steps_at_once(self) -> int:
        """Most steps that the lists of one call hold."""
        return max(1, MOST_MICRO_BATCHES // self.row.micro_batches)

    def versions(self, steps: int) -> Int[np.ndarray, "stages micro_batches"]:
        """Updates that the weights of each stage have seen in a call when they run each micro-batch.

        Args:
            steps: the number of steps in the call.
        """
        row, count = self.row, steps * self.row.micro_batches
        table = schedule_named(row.schedule).updates(row.pp, count, row.vpp, steps * self.updates_per_step).table
        assert table.version is not None
        return np.asarray(table.version[table.at[Kind.F][: table.placement.stages, :count]])

    def model(self, grid: DeviceGrid | None = None) -> Model:
        """The model cut where the plan says, so that it is known which stage updates which weight.

        Args:
            grid: the grid of a stage's devices; None for one device.
        """
        plain = Training.model(self, grid)
        assert isinstance(plain, Decoder | Perceptron)
        return replace(plain, ends=frozenset(accumulate(self.stage_layers[:-1])))

    def step(self, devices: Sequence[Any], *, gradients_too: bool = False) -> Any:
        """The step under the plan, as `VersionedStep`.

        Args:
            devices: the devices, at least as many as the plan has.
            gradients_too: whether it returns the mean of gradients that Adam keeps behind state and losses.
        """
        return VersionedStep(self, devices, gradients_too=gradients_too)

    def of_steps(self, devices: Sequence[Any], steps: int) -> ParallelizedStep:
        """Some steps as one call.

        Args:
            devices: the devices, at least as many as the plan has.
            steps: the number of steps in the call.
        """
        method = method_of(self.row, devices, self.seq_len)
        several = replace(
            method,
            num_micro_batches=steps * self.row.micro_batches,
            updates=steps * self.updates_per_step,
            results_apart=True,
        )
        return self.parallelized(_step(self.model(grid_of(self.row)), self.optimizer, self.seed), several)

    @property
    def optimizer(self) -> Adam:
        """Adam without clipping."""
        return Adam(clip=None)

    def alone(self) -> Callable[[State, Any], tuple[State, jax.Array, Any]]:
        """The same on one device: each micro-batch's gradient at the version of every stage's weights that it sees.

        Returns:
            A function of state and the batch of one or more steps: the next state, the loss of each step, and the mean
            of gradients that Adam keeps.
        """
        model, optimizer, key = self.plain_model(), self.optimizer, jax.random.key(self.seed)
        gradient = jax.jit(jax.value_and_grad(model.loss))
        renewed = jax.jit(
            lambda state, total, each: _updated(optimizer, state, jax.tree.map(lambda leaf: leaf / each, total))
        )
        count, each = self.row.micro_batches, self.row.micro_batches // self.updates_per_step

        def steps(state: State, batch: Any) -> tuple[State, jax.Array, Any]:
            parts = list(self._parts(batch))
            versions, homes = self.versions(len(parts) // count), self.homes(state["weights"])
            made, oldest = deque([state]), 0
            values, total = [], None
            for unit, part in enumerate(parts):
                seen = versions[:, unit]
                while oldest < versions[:, unit:].min():
                    made.popleft()
                    oldest += 1
                weights = jax.tree.map(
                    lambda stage, *leaves: leaves[seen[stage] - oldest],  # noqa: B023 (read at once)
                    homes,
                    *(one["weights"] for one in made),
                )
                value, found = gradient(weights, part, key)
                values.append(value)
                total = found if total is None else jax.tree.map(jnp.add, total, found)
                if unit % each == each - 1:
                    made.append(renewed(made[-1], total, each))
                    total = None
            return made[-1], jnp.stack(values).reshape(-1, count).mean(axis=1), made[-1]["moments"]["mean"]

        return steps

    def homes(self, weights: Any) -> Any:
        """Stage of each weight: the embedding is in the first, the head in the last.

        Args:
            weights: the weights of the model.
        """
        stage_of = np.repeat(np.arange(len(self.stage_layers)), self.stage_layers).tolist()

        def alike(tree: Any, stage: int) -> Any:
            return jax.tree.map(lambda _: stage, tree)

        def layers(trees: Sequence[Any]) -> list[Any]:
            return [alike(tree, stage) for tree, stage in zip(trees, stage_of, strict=True)]

        if isinstance(weights, list):
            return layers(weights)
        last = len(self.stage_layers) - 1
        return {
            name: layers(part) if name == "layers" else alike(part, 0 if name == "embedding" else last)
            for name, part in weights.items()
        }

    def _parts(self, batch: Any) -> Iterator[Any]:
        """The micro-batches of a batch."""
        size = self.row.gbs // self.row.micro_batches
        for first in range(0, len(jax.tree.leaves(batch)[0]), size):
            yield jax.tree.map(lambda leaf: leaf[first : first + size], batch)  # noqa: B023 (read at once)


class VersionedStep:
    """Calls of one or more steps each, compiled for every number of steps that comes."""

    def __init__(self, training: VersionedTraining, devices: Sequence[Any], *, gradients_too: bool) -> None:
        """Nothing is compiled before the first call.

        Args:
            training: the training that takes these steps.
            devices: the devices, at least as many as the plan has.
            gradients_too: whether calls return the mean of gradients as well.
        """
        self._training, self._gradients_too = training, gradients_too
        self._of_steps = cache(lambda steps: training.of_steps(devices, steps))
        self._made: list[ParallelizedStep] = []

    def __call__(self, state: Any, batch: Any) -> tuple[Any, ...]:
        """Run the steps of a batch on the devices.

        Args:
            state: the state before them.
            batch: the batch of one or more steps, one behind the other.

        Returns:
            The next state, the loss of each step, and the mean of gradients where asked.
        """
        step, steps = self._for(batch)
        state, values = step(state, batch)
        losses = np.asarray(values).reshape(steps, -1).mean(axis=1)
        return (state, losses, state["moments"]["mean"]) if self._gradients_too else (state, losses)

    def lower(self, state: Any, batch: Any) -> CompiledStep:
        """What is run for the steps of a batch.

        Args:
            state: the state before them.
            batch: the batch of one or more steps.
        """
        return self._for(batch)[0].lower(state, batch)

    def close(self) -> None:
        """End its workers."""
        for step in self._made:
            step.close()

    def _for(self, batch: Any) -> tuple[ParallelizedStep, int]:
        """What runs the steps of a batch, and how many they are."""
        steps = len(jax.tree.leaves(batch)[0]) // self._training.global_batch
        step = self._of_steps(steps)
        if step not in self._made:
            self._made.append(step)
        return step, steps


def _step(model: Model, optimizer: Adam, seed: int) -> Callable[[State, Any], tuple[State, jax.Array]]:
    """One update of a stage's state."""

    def step(state: State, batch: Any) -> tuple[State, jax.Array]:
        value, gradients = value_and_grad(model.loss)(state["weights"], batch, jax.random.key(seed))
        return _updated(optimizer, state, gradients), value

    return step


def _updated(optimizer: Adam, state: State, gradients: Any) -> State:
    weights, moments = optimizer.update(state["weights"], state["moments"], gradients, state["step"])
    return {"weights": weights, "moments": moments, "step": state["step"] + 1}
