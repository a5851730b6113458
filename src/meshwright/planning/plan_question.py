"""A plan with everything that is needed to price it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.errors import InputError, Problem
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.specs.job import Job
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow

if TYPE_CHECKING:
    from meshwright.planning.under_trainers import TrainerPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """A plan, legal or not, with everything needed to price it."""

    inputs: JobInputs
    row: PlanRow | None
    """None where the plan needs more than one row."""
    plan: ExecutionPlan | None
    """None where the row is not legal."""
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()
    trainer: str | None = None
    """The target that was chosen to run a plan of adapters, where the question names no framework."""
    trainers: tuple[TrainerPlan, ...] = ()
    """What each trainer makes of such a plan, or of one on few devices."""

    @property
    def of_trainers(self) -> tuple[str, ...]:
        """Assumptions on whose trainer prices the plan, and what another takes."""
        return tuple(note.value for note in self.inputs.assumptions if note.name == "trainer")

    @property
    def said(self) -> tuple[str, ...]:
        """The warnings, and whose trainer prices the plan, for answers that list no assumptions."""
        return (*self.warnings, *self.of_trainers)

    @property
    def job(self) -> Job:
        """The plan as a job.

        Raises:
            InputError: the row is not legal.
        """
        if self.plan is None:
            raise InputError(self.problems, code="MW231")
        found = self.inputs
        name = self.row.format() if self.row else None
        return Job(model=found.model, cluster=found.cluster, workload=found.workload, plan=self.plan, name=name)
