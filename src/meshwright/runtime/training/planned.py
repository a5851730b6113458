"""What is trained under a plan, whatever the plan's form: its model, its data, and the same step on one device."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from meshwright.runtime.backends import TIMEOUT_S
from meshwright.runtime.parallelize import ParallelizedStep, parallelize
from meshwright.specs.model import ModelSpec
from meshwright.zoo.decoder import Decoder
from meshwright.zoo.model import Model
from meshwright.zoo.parts import sample_keys
from meshwright.zoo.training import ADAM, Adam, LossScaling, State, initial_state, of_step, scaled_loss, updated


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTraining(ABC):
    """What is trained, and how."""

    spec: ModelSpec | None
    """None for the perceptron."""
    seq_len: int
    hidden: int | None = None
    """Width of the perceptron."""
    compute: str | None = None
    """Format of products; None for that of the weights."""
    seed: int = 0
    backend: str = "local"
    ray: str | None = None
    timeout_s: float = TIMEOUT_S
    hosts_per_mesh: int = 1
    """Workers that share the devices of each mesh."""
    worker_devices: str | tuple[str, ...] = "cpu"
    """What workers in other processes own, for all or by mesh; "plan" names those of a plan of several kinds."""
    updates_by: Adam = ADAM
    """The optimizer."""

    @property
    @abstractmethod
    def title(self) -> str:
        """What the plan is called."""

    @property
    @abstractmethod
    def mesh_sizes(self) -> tuple[int, ...]:
        """Devices of each mesh."""

    @property
    @abstractmethod
    def shares(self) -> tuple[tuple[int, int], ...]:
        """Micro-batches and samples of each, of every pipeline in the order of their samples."""

    @abstractmethod
    def plain_model(self) -> Model:
        """The model as one device runs it."""

    @abstractmethod
    def step(self, devices: Sequence[Any], *, gradients_too: bool = False) -> ParallelizedStep:
        """The step under the plan.

        Args:
            devices: the devices, at least as many as the plan has.
            gradients_too: whether it returns the gradients behind state and loss.
        """

    @property
    def owned(self) -> str | tuple[str, ...]:
        """What workers in other processes own."""
        return self.worker_devices

    def parallelized(self, step: Callable[..., Any], method: Any) -> ParallelizedStep:
        """A training step of the mean of its samples, on the workers that are asked for.

        Args:
            step: the step of state and batch.
            method: how it is cut.
        """
        made: ParallelizedStep = parallelize(
            step,
            method=method,
            loss="mean",
            backend=self.backend,
            ray=self.ray,
            timeout_s=self.timeout_s,
            hosts_per_mesh=self.hosts_per_mesh,
            worker_devices=self.owned,
        )
        return made

    @property
    def scaling(self) -> LossScaling | None:
        """Scaling of the loss: products of fp16 need it."""
        return LossScaling() if self.compute == "float16" else None

    @property
    def devices(self) -> int:
        """Devices of the plan."""
        return sum(self.mesh_sizes)

    @property
    def global_batch(self) -> int:
        """Samples of a step."""
        return sum(count * samples for count, samples in self.shares)

    @property
    def updates_per_step(self) -> int:
        """Times that a step adds one to the state's count."""
        return 1

    @property
    def most_steps_at_once(self) -> int:
        """Steps that one call runs at most, where their pipelines are not drained in between."""
        return 1

    def alone(self) -> Callable[[State, Any], tuple[State, jax.Array, Any]]:
        """The same step on one device, with the gradients of its micro-batches added one after the other.

        Returns:
            A function of state and batch; its third result is the gradients.
        """
        whole, optimizer = self.global_batch, self.updates_by
        both = jax.value_and_grad(scaled_loss(self.plain_model(), self.scaling, optimizer))

        def step(state: State, batch: Any) -> tuple[State, jax.Array, Any]:
            key = of_step(state, self.seed)
            variables = optimizer.differentiated(state["weights"], state["moments"])

            def added(total: Any, part: Any) -> tuple[Any, None]:
                return jax.tree.map(jnp.add, total, both(variables, part, key)), None

            sums, first = [], 0
            for count, samples in self.shares:
                own = jax.tree.map(lambda leaf: leaf[first : first + count * samples], batch)  # noqa: B023 (read at once)
                split = jax.tree.map(lambda leaf: leaf.reshape(count, samples, *leaf.shape[1:]), own)  # noqa: B023
                # From zeros, and not from the first, so that loss and gradients are compiled once.
                shapes = jax.eval_shape(both, variables, jax.tree.map(lambda leaf: leaf[0], split), key)
                total, _ = jax.lax.scan(added, jax.tree.map(jnp.zeros_like, shapes), split)
                sums.append(jax.tree.map(lambda leaf: leaf * (samples / whole), total))  # noqa: B023
                first += count * samples
            value, gradients = jax.tree.map(lambda *parts: sum(parts[1:], parts[0]), *sums)
            return updated(optimizer, self.scaling, state, value, gradients)

        return jax.jit(step)

    def initial(self) -> State:
        """The state before the first step."""
        return initial_state(self.plain_model(), self.updates_by, self.seed, self.scaling)

    def saved(self, state: State) -> State:
        """A state as checkpoints have it, whatever the plan: weights and moments whole.

        Args:
            state: the state of this plan.
        """
        return state

    def resumed(self, saved: State) -> State:
        """The state of a checkpoint as this plan has it.

        Args:
            saved: the state as `saved` makes it.
        """
        return saved

    def routes(self, weights: Any) -> np.ndarray | None:
        """Experts that weights choose for the tokens of the first step; None for a model without experts.

        Args:
            weights: the weights of the model.
        """
        model = self.plain_model()
        if not isinstance(model, Decoder) or not model.spec.is_moe:
            return None
        batch = self.batch(0)
        keys = sample_keys(jax.random.key(self.seed), batch["sample"])
        return np.asarray(jax.jit(model.routes)(weights, batch["tokens"][:, :-1], keys))

    def batch(self, step: int) -> dict[str, np.ndarray]:
        """The samples of a step.

        Args:
            step: counted from 0.
        """
        return self.plain_model().batch(step, self.global_batch, self.seed)

    def batches(self, first: int, count: int) -> dict[str, np.ndarray]:
        """The samples of some steps, one behind the other.

        Args:
            first: step, counted from 0.
            count: the count of the steps.
        """
        return joined([self.batch(step) for step in range(first, first + count)])


def joined(batches: Sequence[Any]) -> Any:
    """Batches one behind the other.

    Args:
        batches: the batches, at least one.
    """
    return batches[0] if len(batches) == 1 else jax.tree.map(lambda *leaves: np.concatenate(leaves), *batches)
