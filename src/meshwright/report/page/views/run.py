"""A run's log beside its plan: dropped on a live page, named to `report`."""

from __future__ import annotations

from typing import Any

from meshwright.report.page.source import PageSource, PlanOnPage


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """Nothing is known before a log is there."""
    return {}


def file_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any] | None:
    """The first plan beside the run whose log was named; None without one."""
    return None if source.run is None or plan is not source.plans[0] else dict(source.run)
