"""The plan file that `export` leaves beside the files it writes: it says what they leave to their reader."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.fields.job import JobFields
from meshwright.fields.plan_file import is_one_plan
from meshwright.formats.plan_json import read_job
from meshwright.specs.job import Job
from meshwright.specs.measured import MeasuredJob
from meshwright.specs.model import ModelSpec
from meshwright.targets.contract import PLAN_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBeside:
    """The plan of an export, in whose folder a launch file lies."""

    path: Path
    job: Job

    @classmethod
    def of(cls, source: str | os.PathLike[str]) -> PlanBeside | None:
        """The plan beside a launch file; None where there is none, or no such file, or for text that is in none.

        Args:
            source: path, or text of several lines.

        Raises:
            InputError: the plan file is broken.
        """
        if (isinstance(source, str) and "\n" in source) or not os.path.isfile(source):
            return None
        path = Path(source).parent / PLAN_FILE
        if not is_one_plan(path):
            return None
        planned = read_job(path).planned
        return None if isinstance(planned, MeasuredJob) else cls(path=path, job=planned)

    def on_its_cluster(self, asked: JobFields) -> tuple[JobFields, tuple[str, ...]]:
        """A question on the cluster of the plan where it names none, with the note that says so."""
        if asked.cluster is not None or asked.gpus is not None:
            return asked, ()
        note = f"the cluster is that of {self.path}: {self.job.cluster.name}"
        return replace(asked, cluster=self.job.cluster), (note,)

    @property
    def model(self) -> ModelSpec:
        """The model of the plan, whole: what of it is trained is for the launch file to say."""
        return replace(self.job.model, tuning=None)

    @property
    def of_the_model(self) -> str:
        """The note on a model that only the plan names."""
        return f"the model is that of {self.path}: {self.model.name}"
