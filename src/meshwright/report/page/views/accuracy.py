"""Measured runs beside predictions: a file that is dropped or named; before that, how far off the release is."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from meshwright.formats.files import read_table
from meshwright.library.calibration import PACKAGED
from meshwright.report.page.source import PageSource, PlanOnPage


def view_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any]:
    """How far off the calibration of this release is, before any file is there."""
    return _of_the_release()


@cache
def _of_the_release() -> dict[str, Any]:
    """Errors of the fit that comes with the package, on its own runs and on sources it was fitted without."""
    found: Mapping[str, Any] = read_table(PACKAGED, "calibration")
    left_out = found["ranges"]["left_out"]
    return {
        "date": found["date"],
        "runs": found["runs"],
        "errors": {name: dict(found["errors"][name]) for name in ("after", "left_out")},
        "inside": left_out["inside"],
        "sources": [
            {"source": source, "runs": left_out["runs"][source], "inside": inside}
            for source, inside in left_out["sources"].items()
        ],
    }


def file_data(plan: PlanOnPage, source: PageSource) -> dict[str, Any] | None:
    """The points of the file that was named, beside the first plan; None without one."""
    return None if source.accuracy is None or plan is not source.plans[0] else dict(source.accuracy)
