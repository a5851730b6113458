"""A model of the zoo under a whole plan of several pipelines or kinds of devices."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from meshwright.estimate.timeline import StepTimeline, step_timeline
from meshwright.runtime.mixed_plan import samples_of
from meshwright.runtime.training.planned import PlannedTraining
from meshwright.specs.job import Job
from meshwright.specs.plan import Worker
from meshwright.zoo.catalogue import model_of
from meshwright.zoo.model import Model


@dataclass(frozen=True, slots=True, kw_only=True)
class JobTraining(PlannedTraining):
    """A plan that no one line says, whose pipelines have shares of their own."""

    job: Job
    """The plan, and the model, devices and workload that it was made for; what runs may be a narrower model."""
    name: str
    """What the plan is called."""
    emulate: float = 0.0
    """Seconds of the run for each that the planned devices would take; 0 runs as quickly as this machine can."""

    @property
    def title(self) -> str:
        """What the plan is called."""
        return self.name

    @property
    def shares(self) -> tuple[tuple[int, int], ...]:
        """Micro-batches and samples of every pipeline."""
        plan = self.job.plan
        return tuple((pipeline.num_micro_batches, samples_of(plan, pipeline)) for pipeline in plan.pipelines)

    def plain_model(self) -> Model:
        """The model without recomputation, which changes no number."""
        return model_of(self.spec, seq_len=self.seq_len, compute=self.compute)

    @property
    @abstractmethod
    def mesh_devices(self) -> tuple[tuple[int, ...], ...]:
        """Numbers in the cluster of the devices of each mesh."""

    @property
    def mesh_sizes(self) -> tuple[int, ...]:
        """Devices of each mesh."""
        return tuple(map(len, self.mesh_devices))

    @property
    def owned(self) -> str | tuple[str, ...]:
        """What workers own: with "plan", the device that the plan has on each mesh."""
        if self.worker_devices != "plan":
            return self.worker_devices
        names = [
            group.device.name for group in self.job.cluster.groups for _ in range(group.nodes * group.devices_per_node)
        ]
        return tuple(names[devices[0]] for devices in self.mesh_devices)

    @property
    def planned_step(self) -> StepTimeline:
        """One step as the planner prices it."""
        job = self.job
        return step_timeline(job.plan, job.model, job.cluster, job.workload)


def held(worker: Worker) -> tuple[int, ...]:
    """Numbers of the devices of a worker.

    Args:
        worker: the worker of a plan.
    """
    return tuple(number for first, last in worker.devices for number in range(first, last + 1))
