"""Plans beside each other: the settings of one, which the page holds against those of others."""

from __future__ import annotations

from typing import Any

from meshwright.report.page.source import PageSource, PlanOnPage
from meshwright.report.words.comparison import stated_settings, training_settings
from meshwright.targets import TARGETS


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """Settings by name, those that decide what is trained, and frameworks whose files can be compared.

    Times and bytes are in the entry of the plan.
    """
    training = list(training_settings(plan.job))
    return {"settings": dict(stated_settings(plan.job)), "training": training, "targets": list(TARGETS)}
