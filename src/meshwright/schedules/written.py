"""An order that somebody wrote down: one table, as a schedule that can be simulated and drawn like the named ones."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.schedules.base import Schedule
from meshwright.schedules.table import Placement, ScheduleTable


@dataclass(frozen=True, kw_only=True)
class Written(Schedule):
    """Exactly this table, for its own workers, micro-batches and chunks.

    It has no formula; its bound is the generic one of its table.
    Source: the file it was read from.
    """

    given: ScheduleTable

    name = "written"
    title = "an order from a file"
    source = "the file it was read from"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """None: no formula is known."""
        return None

    @property
    def chains(self) -> int:
        """Chains, as the table says."""
        return self.given.placement.chains

    def placement(self, p: int, v: int = 1) -> Placement:
        """Placement, as the table says."""
        return self.given.placement

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        own = {"p": self.given.p, "m": self.given.micro_batches[0], "v": self.given.v}
        return [
            Problem(
                what=f"{self.name}: {field} = {said}",
                why=f"the order is written for {field} = {own[field]}",
                fix=f"{field} = {own[field]}",
                field=field,
            )
            for field, said in (("p", p), ("m", m), ("v", v))
            if said != own[field]
        ]

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        return self.given
