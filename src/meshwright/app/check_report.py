"""What `check` says about a plan: violations, the changes that mend them, and a better plan."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meshwright.app.answer import Answer
from meshwright.errors import Problem, ViolationError
from meshwright.estimate.result import StepPrice
from meshwright.planning.job_inputs import JobInputs
from meshwright.planning.repair.of_plan import Repair
from meshwright.planning.repair.post_mortem import PostMortem
from meshwright.planning.violation import Violation
from meshwright.records import Record
from meshwright.specs.measured import MeasuredJob

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Better(Record):
    """The best plan of the same question, where it beats the one checked."""

    name: str
    step_time_s: float
    gain: float
    """Relative time saved."""
    because: str


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class CheckReport(Answer):
    """What is wrong with a plan and what would mend it."""

    name: str | None
    title: str
    text: str
    violations: tuple[Violation, ...]
    estimate: StepPrice | None
    """None where the plan is not legal."""
    better: Better | None
    mends: tuple[Repair, ...]
    """The smallest changes first, quickest first among equals."""
    warnings: tuple[str, ...]
    inputs: JobInputs | MeasuredJob
    post_mortem: PostMortem | None = None
    """Of a run of this plan that ran out of memory."""

    @property
    def legal(self) -> bool:
        """Whether all degrees go together with model, devices and batch."""
        return self.estimate is not None and not any(v.code == "LEGAL" for v in self.violations)

    @property
    def ok(self) -> bool:
        """No violations."""
        return not self.violations

    @property
    def exit_code(self) -> int:
        """0, or 5 where there are violations."""
        return 5 if self.violations else 0

    def raise_violations(self) -> None:
        """For callers that want an exception.

        Raises:
            ViolationError: if there are any.
        """
        if self.violations:
            raise ViolationError([Problem(what=v.what, why=v.why, fix=v.fix, field=v.field) for v in self.violations])

    def to_dict(self) -> dict[str, Any]:
        """As data: `meshwright.check/1`."""
        return {
            "schema": "meshwright.check/1",
            "name": self.name,
            "title": self.title,
            "text": self.text,
            "ok": self.ok,
            "exit_code": self.exit_code,
            "legal": self.legal,
            "fits": self.estimate.fits if self.estimate else None,
            "dominated_by": self.better.to_dict() if self.better else None,
            "violations": [violation.to_dict() for violation in self.violations],
            "mends": [mend.to_dict() | {"text": mend.line()} for mend in self.mends],
            "warnings": list(self.warnings),
            "post_mortem": self.post_mortem.to_dict() if self.post_mortem else None,
            "estimate": self.estimate.to_dict() if self.estimate else None,
            "inputs": _described(self.inputs),
        }


def _described(inputs: JobInputs | MeasuredJob) -> dict[str, object]:
    """The question as data."""
    if isinstance(inputs, MeasuredJob):
        return {
            "model": inputs.profile.describe(),
            "cluster": inputs.cluster.describe(),
            "workload": {"global_batch": inputs.global_batch, "dtype": "fp32", "sequence": "as profiled"},
            "assumptions": [],
        }
    return {
        "model": inputs.model.describe(),
        "cluster": inputs.cluster.describe(),
        "workload": inputs.workload.describe(),
        "assumptions": [{"name": a.name, "value": a.value, "basis": a.basis} for a in inputs.assumptions],
    }
