"""Answers as people read them: words, tables, figures, timelines."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

PAGES = {
    "meshwright.plan-set": "plan_tables:render_plan_set",
    "meshwright.check": "check_report:render_check",
    "meshwright.xray": "xray_report:render_xray",
    "meshwright.explanation": "explanation:render_explanation",
    "meshwright.comparison": "comparison:render_comparison",
    "meshwright.run-comparison": "measured_run:render_run_comparison",
    "meshwright.size": "size_curve:render_size",
    "meshwright.sweep": "sweep:render_sweep",
    "meshwright.tune": "tuning:render_tune",
    "meshwright.tune-comparison": "tuning:render_tuners",
    "meshwright.schedule-comparison": "schedule_comparison:render_schedules",
    "meshwright.models": "library_tables:model_list",
    "meshwright.model": "library_tables:model_card",
    "meshwright.model-added": "library_tables:model_added",
    "meshwright.gpus": "library_tables:gpu_list",
    "meshwright.gpu": "library_tables:gpu_card",
    "meshwright.gpu-added": "library_tables:gpu_added",
    "meshwright.cluster": "cluster_tables:cluster_card",
    "meshwright.doctor": "doctor_table:doctor_table",
    "meshwright.run": "run_table:render_run",
    "meshwright.verify": "run_table:render_verified",
    "meshwright.calculon-estimate": "calculon_estimate:render_estimate",
    "meshwright.calculon-search": "calculon_search:render_search",
    "meshwright.calculon-sweep": "calculon_sweep:render_sweep",
    "meshwright.calculon-what-if": "tornado:render_what_if",
}
"""Module of this folder and function, by schema without its version; imported when a page is shown."""


def page(document: Mapping[str, Any]) -> RenderableType:
    """A document as the terminal shows it.

    Args:
        document: an answer as data, with its `schema`.
    """
    module, _, function = PAGES[document["schema"].partition("/")[0]].partition(":")
    shown: RenderableType = getattr(import_module(f"meshwright.report.{module}"), function)(document)
    return shown
