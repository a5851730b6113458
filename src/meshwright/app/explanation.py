"""A plan explained, as data: the rungs up to it, what is one change away, what it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.app.answer import Answer
from meshwright.estimate.result import StepPrice
from meshwright.formats.plan_json import PlannedJob
from meshwright.planning.sensitivity import Effect
from meshwright.records import Record
from meshwright.report.words.measured import planned_title

if TYPE_CHECKING:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Step(Record):
    """One rung of the ladder, or one neighbour."""

    change: str
    """`add tp4`, `tp 4 -> 8 (dp 4 -> 2)`."""
    name: str
    outcome: str
    """`fits`, `tight`, `no` or `not legal`."""
    text: str
    """What became of it, in words."""
    step_time_s: float | None = None
    peak_memory_bytes: float | None = None
    capacity_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Explanation(Answer):
    """A plan explained."""

    job: PlannedJob
    estimate: StepPrice
    text: str
    """The verdict on the plan itself."""
    ladder: tuple[Step, ...]
    """From plain data parallelism, or from even layers and shares, to the plan, one lever a rung."""
    neighbours: tuple[Step, ...]
    """One change away: quickest that fit first, then what does not fit, then what is not legal."""
    sensitivity: tuple[Effect, ...]
    """Assumed numbers, the one that moves the step most first."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """As data: `meshwright.explanation/1`."""
        return {
            "schema": "meshwright.explanation/1",
            "name": self.job.name,
            "title": planned_title(self.job),
            "text": self.text,
            "estimate": self.estimate.to_dict(),
            "ladder": [step.to_dict() for step in self.ladder],
            "neighbours": [step.to_dict() for step in self.neighbours],
            "sensitivity": [effect.to_dict() | {"text": effect.line()} for effect in self.sensitivity],
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        return f"Explanation({self.job.name}: {len(self.ladder)} steps, {len(self.neighbours)} alternatives)"

    def __str__(self) -> str:
        lines = [self.text, *(f"{step.change}: {step.text}" for step in self.ladder)]
        lines += [f"instead {step.change}: {step.text}" for step in self.neighbours]
        return "\n".join([*lines, *(effect.line() for effect in self.sensitivity)])
