"""Measured runs beside predictions: dropped on a live page as a file, named to `report`."""

from __future__ import annotations

from typing import Any

from meshwright.report.page.source import PageSource, PlanOnPage


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """Nothing is known before a file is there."""
    return {}


def file_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any] | None:
    """The points of the file that was named, beside the first plan; None without one."""
    return None if source.accuracy is None or plan is not source.plans[0] else dict(source.accuracy)
