"""What the views of a page are made from: the answer as data, and what only the plan's own objects know."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from meshwright.estimate.result import StepPrice
from meshwright.formats.plan_json import PlannedJob
from meshwright.report.picture import Picture
from meshwright.specs.row import PlanRow


@dataclass(frozen=True, kw_only=True, eq=False)
class PlanOnPage:
    """One plan of the answer."""

    entry: Mapping[str, Any]
    """As data: an entry of `plans`, without the plan's file."""
    job: PlannedJob
    row: PlanRow | None
    """The plan as one row of degrees; None where it needs more."""
    estimate: StepPrice
    picture: Callable[[], Picture]
    """One step of it, simulated when it is asked for."""
    explanation: Callable[[], Mapping[str, Any]]
    """Why it is what it is, priced when it is asked for: a `meshwright.explanation/1`."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PageSource:
    """A whole answer."""

    document: Mapping[str, Any]
    """A `meshwright.plan-set/1`."""
    plans: tuple[PlanOnPage, ...]
    """Plans in the order of `plans`."""
    command: str = ""
    """Gives the same answer again on a command line."""
    asked: Mapping[str, str | bool] = field(default_factory=dict)
    """The question, as a form would have it: texts by the names of fields of `plan`."""
    unanswered: Mapping[str, Any] | None = None
    """Why nothing answers the question, a `meshwright.error/1`: the plans then are those that come nearest."""
    excluded: Callable[[str], list[dict[str, Any]]] | None = None
    """Examples of plans that the search excluded, for want of `memory` or of `time`; None where nothing tells them."""
    run: Mapping[str, Any] | None = None
    """The first plan beside its run, a `meshwright.run-comparison/1`; None without a log."""
    accuracy: Mapping[str, Any] | None = None
    """Measured runs as points; None without a file of them."""

    @property
    def made_by(self) -> Mapping[str, Any]:
        """Version, commit and calibration that made it, and the command."""
        return {**self.document["made_by"], **({"command": self.command} if self.command else {})}
