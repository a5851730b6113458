"""Time against memory: the front that a search found, the plans of the answer, and what is one change away."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from meshwright.errors import UnsupportedError
from meshwright.fields.kinds import Choice
from meshwright.report.page.source import PageSource, PlanOnPage

FIRST_ALONE = True
"""Whether a file holds it for the first plan alone, as `why`, whose prices these are."""


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """Points beyond the plans of the answer, and what the search looked at."""
    neighbours = [one for one in plan.explanation()["neighbours"] if one["step_time_s"] is not None]
    names = ("name", "change", "outcome", "text", "step_time_s", "peak_memory_bytes")
    return {
        "front": list(source.document.get("pareto", ())),
        "neighbours": [{name: one[name] for name in names} for one in neighbours],
        "search": source.document.get("search"),
        "tells_excluded": source.excluded is not None,
    }


def live_data(plan: PlanOnPage, source: PageSource, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Plans that a rule of the search excluded, the quickest first.

    Args:
        plan: the plan on show.
        source: the answer.
        asked: `excluded`, for want of `memory` or of `time`.
    """
    reason = Choice(names=("memory", "time"), noun="reason").read("excluded", asked.get("excluded"))
    if source.excluded is None:
        why = "there are examples for searches on one kind of device, while their question is known"
        raise UnsupportedError(what="no example of an excluded plan", why=why, field="excluded")
    return {"excluded": source.excluded(reason)}
