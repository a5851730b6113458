"""The plan file that `export` leaves beside the files it writes: it says what they leave to their reader."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.price import estimate_plan
from meshwright.fields.job import JobFields
from meshwright.fields.plan_file import is_one_plan
from meshwright.formats.plan_json import read_job
from meshwright.specs.job import Job
from meshwright.specs.measured import MeasuredJob
from meshwright.specs.model import ModelSpec
from meshwright.targets import TARGETS
from meshwright.targets.contract import PLAN_FILE


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBeside:
    """The plan of an export, among whose files a file is."""

    path: Path
    job: Job
    target: str
    names: tuple[str, ...]
    """Names of all files that the target writes for the plan."""

    @classmethod
    def of(cls, source: str | os.PathLike[str], among: Iterable[str] = TARGETS) -> PlanBeside | None:
        """The plan beside a file; None for text that is in no file, or where the file is none of an export.

        It is one where all that a target writes for the plan lies in its folder.

        Args:
            source: path, or text of several lines.
            among: targets that may have written it.

        Raises:
            InputError: the plan file is broken.
        """
        if (isinstance(source, str) and "\n" in source) or not os.path.isfile(source):
            return None
        path = Path(source).parent / PLAN_FILE
        planned = read_job(path).planned if is_one_plan(path) else None
        if planned is None or isinstance(planned, MeasuredJob):
            return None
        for target in among:
            names = _written(planned, target)
            if Path(source).name in names and all((path.parent / name).is_file() for name in names):
                return cls(path=path, job=planned, target=target, names=names)
        return None

    def on_its_cluster(self, asked: JobFields) -> tuple[JobFields, tuple[str, ...]]:
        """A question on the cluster of the plan where it names none, with the note that says so."""
        if asked.cluster is not None or asked.gpus is not None:
            return asked, ()
        note = f"the cluster is that of {self.path}: {self.job.cluster.name}"
        return replace(asked, cluster=self.job.cluster), (note,)

    def of_its_length(self, asked: JobFields) -> tuple[JobFields, str]:
        """A question with the sequences of the plan, of a file that states none, and the note that says so."""
        length = self.job.workload.seq_len
        note = f"the sequence length is that of {self.path}: {length:,} tokens"
        return replace(asked, seq_len=length), note

    @property
    def model(self) -> ModelSpec:
        """The model of the plan, whole: what of it is trained is for the launch file to say."""
        return replace(self.job.model, tuning=None)

    @property
    def of_the_model(self) -> str:
        """The note on a model that only the plan names."""
        return f"the model is that of {self.path}: {self.model.name}"


def _written(job: Job, target: str) -> tuple[str, ...]:
    """Names of the files of a plan for a target; none where it does not run it, or where the plan is not priced."""
    framework = TARGETS[target]
    run = framework.as_run(job)
    try:
        files = framework.written(job, estimate_plan(run.plan, run.model, run.cluster, run.workload)).files
    except (InputError, UnsupportedError):
        return ()
    return tuple(name for name, _ in files)
