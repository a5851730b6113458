"""A tuner's study: its answer is dropped on a live page, and read there."""

from __future__ import annotations

from typing import Any

from meshwright.report.page.source import PageSource, PlanOnPage


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """The command that makes a study of what is on show."""
    model, cluster = source.document["inputs"]["model"]["name"], source.document["inputs"]["cluster"]["name"]
    return {"command": f"meshwright tune {model} --gpus {cluster} --json > study.json"}


def file_data(plan: PlanOnPage, source: PageSource) -> None:
    """A file has no place to drop another one."""
