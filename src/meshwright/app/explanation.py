"""A plan explained, as data: the rungs up to it, what is one change away, what it is sensitive to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meshwright.app.answer import Answer
from meshwright.estimate.result import StepPrice
from meshwright.formats.plan_json import PlannedJob
from meshwright.planning.sensitivity import Effect
from meshwright.records import plain
from meshwright.report.words.explanation import Step, effect_line
from meshwright.report.words.titles import planned_title

if TYPE_CHECKING:
    pass


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
    """Numbers of devices and links, the one that moves the step most first."""
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, object]:
        """As data: `meshwright.explanation/1`."""
        return {
            "schema": "meshwright.explanation/1",
            "name": self.job.name,
            "title": planned_title(self.job),
            "text": self.text,
            "estimate": self.estimate.to_dict(),
            "ladder": plain(self.ladder),
            "neighbours": plain(self.neighbours),
            "sensitivity": [effect.to_dict() | {"text": self._line(effect)} for effect in self.sensitivity],
            "notes": list(self.notes),
        }

    def _line(self, effect: Effect) -> str:
        return effect_line(effect, self.estimate.step_time_s)

    def __repr__(self) -> str:
        return f"Explanation({self.job.name}: {len(self.ladder)} steps, {len(self.neighbours)} alternatives)"

    def __str__(self) -> str:
        lines = [self.text, *(f"{step.change}: {step.text}" for step in self.ladder)]
        lines += [f"instead {step.change}: {step.text}" for step in self.neighbours]
        return "\n".join([*lines, *map(self._line, self.sensitivity)])
