"""The overview: where the step goes, why this plan, what else was found. All of it is in the answer itself."""

from __future__ import annotations

from typing import Any

from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.report.words.titles import assumption_name
from meshwright.report.words.trainers import trainer_lines


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """Reasons, trainers and assumptions of the answer; the page has the rest."""
    document = source.document
    return {
        "why": list(document["verdict"]["why"]) if plan.entry["rank"] == 1 else [],
        "trainers": trainer_lines(document.get("trainers", ())),
        "assumptions": [{**one, "name": assumption_name(one["name"])} for one in document["inputs"]["assumptions"]],
    }
