"""A model of the zoo under a plan: the parallelized step, its state, and the same on one device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from meshwright.compiler.grid import DeviceGrid
from meshwright.runtime.backends import TIMEOUT_S
from meshwright.runtime.compiled import CompiledStep
from meshwright.runtime.local import LocalRuntime
from meshwright.runtime.parallelize import ParallelizedStep, parallelize
from meshwright.runtime.plan_method import grid_of, method_of, recompute_runs
from meshwright.runtime.profile import StepPrediction, predicted_step
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow
from meshwright.zoo.catalogue import model_of
from meshwright.zoo.decoder import Decoder
from meshwright.zoo.model import Model
from meshwright.zoo.parts import sample_keys
from meshwright.zoo.training import Adam, State, initial_state, train_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What is trained, and how."""

    spec: ModelSpec | None
    """None for the perceptron."""
    row: PlanRow
    stage_layers: tuple[int, ...]
    """Layers of each virtual stage, as the planner splits them."""
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

    def model(self, grid: DeviceGrid | None = None) -> Model:
        """The model with the plan's recomputation.

        Args:
            grid: of a stage's devices; None for one device.
        """
        return model_of(self.spec, seq_len=self.seq_len, layers=sum(self.stage_layers), hidden=self.hidden,
                        compute=self.compute, recompute=recompute_runs(self.row, self.stage_layers),
                        grid=grid)  # fmt: skip

    def step(self, devices: Sequence[Any], *, gradients_too: bool = False) -> ParallelizedStep:
        """The step under the plan.

        Args:
            devices: at least as many as the plan has.
            gradients_too: whether it returns the gradients behind state and loss.
        """
        made: ParallelizedStep = parallelize(
            train_step(self.model(grid_of(self.row)), Adam(), self.seed, gradients_too=gradients_too),
            method=method_of(self.row, devices, self.seq_len),
            loss="mean",
            backend=self.backend,
            ray=self.ray,
            timeout_s=self.timeout_s,
            hosts_per_mesh=self.hosts_per_mesh,
        )
        return made

    def alone(self) -> Callable[[State, Any], tuple[State, jax.Array, Any]]:
        """The same step on one device, with the gradients of its micro-batches added one after the other.

        Returns:
            A function of state and batch; its third result is the gradients.
        """
        model, update, parts = self.model(), Adam().update, self.row.micro_batches

        def step(state: State, batch: Any) -> tuple[State, jax.Array, Any]:
            key = jax.random.fold_in(jax.random.key(self.seed), state["step"])
            both = jax.value_and_grad(model.loss)

            def added(total: Any, part: Any) -> tuple[Any, None]:
                return jax.tree.map(jax.numpy.add, total, both(state["weights"], part, key)), None

            split = jax.tree.map(lambda leaf: leaf.reshape(parts, leaf.shape[0] // parts, *leaf.shape[1:]), batch)
            first = both(state["weights"], jax.tree.map(lambda leaf: leaf[0], split), key)
            total, _ = jax.lax.scan(added, first, jax.tree.map(lambda leaf: leaf[1:], split))
            value, gradients = jax.tree.map(lambda leaf: leaf / parts, total)
            weights, moments = update(state["weights"], state["moments"], gradients, state["step"])
            return {"weights": weights, "moments": moments, "step": state["step"] + 1}, value, gradients

        return jax.jit(step)

    def initial(self) -> State:
        """The state before the first step."""
        return initial_state(self.model(), Adam(), self.seed)

    def routes(self, weights: Any) -> np.ndarray | None:
        """Experts that weights choose for the tokens of the first step; None for a model without experts.

        Args:
            weights: of the model.
        """
        model = self.model()
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
        return self.model().batch(step, self.row.gbs, self.seed)


def predict_step(compiled: CompiledStep) -> StepPrediction:
    """The step's time from executables run alone in this process, wherever the step itself runs.

    Args:
        compiled: the step.
    """
    runtime = compiled.runtime
    here = runtime if isinstance(runtime, LocalRuntime) else LocalRuntime(compiled.program, runtime.meshes)
    return predicted_step(compiled.program, here.executors)
