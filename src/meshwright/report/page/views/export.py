"""The files that start a framework with a plan: a live page asks for those of one framework."""

from __future__ import annotations

from typing import Any

from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.targets import TARGETS


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """Names of the frameworks; whether one runs the plan is known when its files are written."""
    return {"targets": list(TARGETS)}


def file_data(plan: PlanOnPage, source: PageSource) -> None:
    """A file that is mailed says how the plan was found; what starts it is exported where it runs."""
