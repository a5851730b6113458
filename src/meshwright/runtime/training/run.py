"""A model of the zoo under a plan: the parallelized step, its state, and the same on one device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from meshwright.compiler.grid import DeviceGrid
from meshwright.errors import UnsupportedError
from meshwright.runtime.compiled import CompiledStep
from meshwright.runtime.local import LocalRuntime
from meshwright.runtime.model_grid import model_grid
from meshwright.runtime.parallelize import ParallelizedStep
from meshwright.runtime.plan_method import method_of, recompute_runs
from meshwright.runtime.profile import StepPrediction, predicted_step
from meshwright.runtime.training.planned import PlannedTraining
from meshwright.schedules import schedule_named
from meshwright.specs.row import PlanRow
from meshwright.zoo.catalogue import model_of
from meshwright.zoo.decoder import Decoder
from meshwright.zoo.model import Model
from meshwright.zoo.token_groups import GroupOfRank
from meshwright.zoo.training import train_step


@dataclass(frozen=True, slots=True, kw_only=True)
class Training(PlannedTraining):
    """A plan of equal stages."""

    row: PlanRow
    stage_layers: tuple[int, ...]
    """Layers of each virtual stage, as the planner splits them."""

    def __post_init__(self) -> None:
        schedule = schedule_named(self.row.schedule)
        if schedule.sections() == 1 or schedule.parts_samples or (self.spec is not None and not self.spec.is_moe):
            return
        name = "the perceptron" if self.spec is None else self.spec.name
        why = (
            "it has no tokens" if self.spec is None else "an expert's places are given to the tokens of whole sequences"
        )
        what = f"{self.row.schedule} does not run with {name}"
        raise UnsupportedError(what=what, why=why, fix="1f1b, or a dense model", field="plan", code="MW411")

    @property
    def title(self) -> str:
        """The plan in one line."""
        return self.row.format()

    @property
    def mesh_sizes(self) -> tuple[int, ...]:
        """Devices of every stage, all the same."""
        return (self.row.devices // self.row.pp,) * self.row.pp

    @property
    def shares(self) -> tuple[tuple[int, int], ...]:
        """All micro-batches go through the one pipeline."""
        return ((self.row.micro_batches, self.row.gbs // self.row.micro_batches),)

    def model(self, grid: DeviceGrid | None = None) -> Model:
        """The model with the plan's recomputation.

        Args:
            grid: the grid of a stage's devices; None for one device.
        """
        return model_of(
            self.spec,
            seq_len=self.seq_len,
            layers=sum(self.stage_layers),
            hidden=self.hidden,
            compute=self.compute,
            recompute=recompute_runs(self.row, self.stage_layers),
            grid=grid,
            experts=self.row.strategy().expert if grid else None,
        )

    def plain_model(self) -> Model:
        """The model with the plan's recomputation; its experts have places for the tokens of each rank of the plan."""
        model = self.model()
        if not isinstance(model, Decoder) or not model.spec.is_moe:
            return model
        grid = model_grid(self.row, model, self.seq_len)
        return model if GroupOfRank.of(grid) is None else replace(model, routed_on=grid)

    def step(self, devices: Sequence[Any], *, gradients_too: bool = False) -> ParallelizedStep:
        """The step under the plan.

        Args:
            devices: the devices, at least as many as the plan has.
            gradients_too: whether it returns the gradients behind state and loss.
        """
        grid = model_grid(self.row, self.plain_model(), self.seq_len)
        step = train_step(
            self.model(grid), self.updates_by, self.seed, gradients_too=gradients_too, scaling=self.scaling
        )
        return self.parallelized(step, method_of(self.row, devices, self.seq_len, grid))


def predict_step(compiled: CompiledStep) -> StepPrediction:
    """The step's time from executables run alone in this process, wherever the step itself runs.

    Args:
        compiled: the step.
    """
    runtime = compiled.runtime
    here = runtime if isinstance(runtime, LocalRuntime) else LocalRuntime(compiled.program, runtime.meshes)
    return predicted_step(compiled.program, here.executors)
