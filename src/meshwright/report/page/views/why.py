"""Why this plan: the ladder up to it, plans one change away, what it is sensitive to, as `explain` prices them."""

from __future__ import annotations

from typing import Any

from meshwright.report.page.source import PageSource, PlanOnPage

FIRST_ALONE = True
"""Whether a file holds it for the first plan alone: some hundred plans are priced for it."""


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """The `meshwright.explanation/1`."""
    return dict(plan.explanation())
