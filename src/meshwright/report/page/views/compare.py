"""Plans beside each other: the settings of one, which the page holds against those of others."""

from __future__ import annotations

from typing import Any

from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.report.words.comparison import stated_settings
from meshwright.targets import TARGETS


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """Settings by name, and frameworks whose files can be compared; times and bytes are in the entry of the plan."""
    return {"settings": dict(stated_settings(plan.job)), "targets": list(TARGETS)}
