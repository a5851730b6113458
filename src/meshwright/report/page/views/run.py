"""A run's log beside its plan: the page of a file has none, so that only a live page draws it."""

from __future__ import annotations

from typing import Any

from meshwright.report.page.source import PageSource, PlanOnPage


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """Nothing is known before a log is there."""
    return {}
