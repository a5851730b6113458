"""A model of the zoo under a plan of unlike stages or of several pipelines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from meshwright.compiler.instructions import StepProgram
from meshwright.errors import UnsupportedError
from meshwright.runtime.emulation import emulated_paces
from meshwright.runtime.mixed_plan import model_form, pipeline_set
from meshwright.runtime.parallelize import ParallelizedStep
from meshwright.runtime.training.job import JobTraining, held
from meshwright.specs.plan import Pipeline
from meshwright.zoo.decoder import Decoder
from meshwright.zoo.model import Model
from meshwright.zoo.training import Adam, train_step


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedTraining(JobTraining):
    """A plan on devices of several kinds, or of pipelines that differ."""

    @property
    def mesh_devices(self) -> tuple[tuple[int, ...], ...]:
        """Numbers of the devices of every worker, pipeline after pipeline."""
        return tuple(held(worker) for pipeline in self.job.plan.pipelines for worker in pipeline.workers)

    def model(self, pipeline: Pipeline) -> Model:
        """The model as a pipeline runs it.

        Args:
            pipeline: the pipeline of the plan.
        """
        form, plain = model_form(self.job.plan, pipeline), self.plain_model()
        assert isinstance(plain, Decoder)
        return replace(plain, recompute=form.recompute, grids=form.grids, ends=form.ends, experts=form.experts)

    @property
    def _paces(self) -> Callable[[StepProgram], list[list[float]]] | None:
        return partial(emulated_paces, self.planned_step, scale=self.emulate) if self.emulate else None

    def step(self, devices: Sequence[Any], *, gradients_too: bool = False) -> ParallelizedStep:
        """The step under the plan.

        Args:
            devices: the devices, at least as many as the plan has.
            gradients_too: whether it returns the gradients behind state and loss.
        """
        if self.scaling is not None:
            why = "an overflow in one pipeline would have to skip the update of all"
            what = f"{self.title} does not run in fp16"
            raise UnsupportedError(what=what, why=why, fix="use bf16", field="dtype", code="MW411")
        steps = [
            train_step(self.model(pipeline), Adam(), self.seed, gradients_too=gradients_too)
            for pipeline in self.job.plan.pipelines
        ]
        return self.parallelized(steps[0], pipeline_set(self.job.plan, devices, self.seq_len, steps, self._paces))
