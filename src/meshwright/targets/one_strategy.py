"""What targets share whose files say one strategy for all layers: what they refuse, and their files and notes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from meshwright.errors import Problem, UnsupportedError
from meshwright.estimate.result import StepEstimate
from meshwright.specs.job import Job
from meshwright.targets.contract import Target, TargetFiles, target_files
from meshwright.targets.sayable import Plan, Rule, Says, refusals


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What a target does a little differently, and of which plans that is to be said."""

    text: str
    when: Callable[[Plan], bool] = lambda plan: True


def overlaps(text: str) -> Note:
    """Collectives run beside computation, whatever the plan says."""
    return Note(text=text, when=lambda plan: not plan.strategy.data.overlap)


ADAM_IS_ADAMW = Note(text="its optimizer is AdamW", when=lambda plan: plan.workload.optimizer == "adam")


@dataclass(frozen=True, slots=True, kw_only=True)
class OneStrategyTarget(Target):
    """A target whose files say plans of equal pipelines whose layers are alike."""

    says: Mapping[str, Says]
    rules: tuple[Rule, ...]
    beyond: Callable[[Plan], Iterable[Problem]] = lambda plan: ()
    """What it cannot run whatever the settings, such as models it has not."""
    write: Callable[[Plan], tuple[tuple[str, str], ...]]
    """Name and content of its files, of a plan that it can run."""
    start: Callable[[Plan], str]
    notes: tuple[Note, ...] = ()

    def refused(self, job: Job) -> tuple[Problem, ...]:
        """What the target cannot run of a plan."""
        return self._said(job)[1]

    def files(self, job: Job, estimate: StepEstimate) -> TargetFiles:
        """The plan in the words of the target."""
        plan, problems = self._said(job)
        if problems or plan is None:
            raise UnsupportedError(problems, code="MW420")
        notes = tuple(note.text for note in self.notes if note.when(plan))
        return target_files(job, self.write(plan), notes=notes, start=self.start(plan))

    def _said(self, job: Job) -> tuple[Plan | None, tuple[Problem, ...]]:
        plan, problems = refusals(self.title, job, self.says, self.rules)
        return plan, (*problems, *self.beyond(plan)) if plan else problems
