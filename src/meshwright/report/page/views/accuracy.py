"""Measured runs beside predictions: a file of them is dropped on a live page, so that the page of a file has none."""

from __future__ import annotations

from typing import Any

from meshwright.report.page.source import PageSource, PlanOnPage


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """Nothing is known before a file is there."""
    return {}
