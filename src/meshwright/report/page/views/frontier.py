"""Time against memory: the front that a search found, the plans of the answer, and what is one change away."""

from __future__ import annotations

from typing import Any

from meshwright.report.page.source import PageSource, PlanOnPage

FIRST_ALONE = True
"""In a file, as `why`, whose prices these are."""


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """Points beyond the plans of the answer, and what the search looked at."""
    neighbours = [one for one in plan.explanation()["neighbours"] if one["step_time_s"] is not None]
    names = ("name", "change", "outcome", "text", "step_time_s", "peak_memory_bytes")
    return {
        "front": list(source.document.get("pareto", ())),
        "neighbours": [{name: one[name] for name in names} for one in neighbours],
        "search": source.document.get("search"),
    }
