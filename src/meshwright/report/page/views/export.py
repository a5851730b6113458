"""The files that start a framework with a plan: a live page asks for those of one framework."""

from __future__ import annotations

from typing import Any

from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.specs.job import Job
from meshwright.targets import TARGETS


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """Names of the frameworks, and of those that run the plan."""
    runs = [name for name in TARGETS if isinstance(plan.job, Job) and not TARGETS[name].problems(plan.job)]
    return {"targets": list(TARGETS), "runs": runs}


def file_data(plan: PlanOnPage, source: PageSource) -> None:
    """A file that is mailed says how the plan was found; what starts it is exported where it runs."""
