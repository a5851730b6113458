"""The training of a plan that no one line says: as pipelines, or as one program of ranks that hold states together."""

from __future__ import annotations

from typing import Any

from meshwright.runtime.training.job import JobTraining
from meshwright.runtime.training.joint import JointTraining
from meshwright.runtime.training.mixed import MixedTraining
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan


def job_training(
    *, job: Job, spec: ModelSpec, backend: str = "local", emulate: float = 0.0, **settings: Any
) -> JobTraining:
    """A training under the plan of a job.

    Args:
        job: the plan, and what it was made for.
        spec: the model that runs.
        backend: where it runs.
        emulate: seconds of the run for each planned second; 0 emulates nothing.
        settings: other fields of `JobTraining`.

    Raises:
        UnsupportedError: what trainings of its kind do not do.
    """
    # Ranks of one program rest by calls into its process.
    here = backend == "local" or not emulate
    kind = JointTraining if _meets_in_passes(job.plan) and here and not spec.is_moe else MixedTraining
    return kind(job=job, spec=spec, backend=backend, emulate=emulate, **settings)


def _meets_in_passes(plan: ExecutionPlan) -> bool:
    """Whether single ranks gather weights or scatter gradients over all pipelines with every micro-batch.

    Pipelines that meet once a step, between their last backward and the update, run as other pipelines do; so do ranks
    that share samples, whose states then lie over all pipelines, tensor by tensor.
    """
    used = [plan.strategies[run.strategy] for one in plan.pipelines for chunk in one.chunks() for run in chunk.runs]
    return plan.joint_ranks > 0 and all(one.data.zero > 1 and one.tp == one.cp == 1 for one in used)
