"""The training of a plan that no one line says: as pipelines, or as one group of ranks that hold states together."""

from __future__ import annotations

from typing import Any

from meshwright.runtime.training.job import JobTraining
from meshwright.runtime.training.joint import JointTraining
from meshwright.runtime.training.mixed import MixedTraining
from meshwright.specs.job import Job


def job_training(*, job: Job, **settings: Any) -> JobTraining:
    """A training under the plan of a job.

    Args:
        job: the plan, and what it was made for.
        settings: other fields of `JobTraining`.

    Raises:
        UnsupportedError: what trainings of its kind do not do.
    """
    return (JointTraining if job.plan.joint_ranks else MixedTraining)(job=job, **settings)
