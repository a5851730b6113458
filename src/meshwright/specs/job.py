"""A plan together with what it is a plan for: what a plan file holds and what verbs that take only a plan need."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.specs.check import Check
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One step of a model on a cluster, executed as planned."""

    model: ModelSpec
    cluster: ClusterSpec
    workload: Workload
    plan: ExecutionPlan
    name: str | None = None
    """The plan's one-line form; None where it needs more than one line."""

    def __post_init__(self) -> None:
        check = Check("job")
        check.that(
            self.plan.num_layers == self.model.num_layers,
            "plan.num_layers",
            self.plan.num_layers,
            f"must be the {self.model.num_layers} layers of {self.model.name}",
        )
        last = max(last for p in self.plan.pipelines for worker in p.workers for _, last in worker.devices)
        check.that(
            last < self.cluster.devices,
            "plan.devices",
            last,
            f"device numbers must be below the {self.cluster.devices} devices of {self.cluster.name}",
        )
        check.that(
            self.plan.global_batch == self.workload.global_batch,
            "plan.global_batch",
            self.plan.global_batch,
            f"must be the workload's global batch of {self.workload.global_batch} sequences",
            "change the number of micro-batches or the workload",
        )
        check.done()
