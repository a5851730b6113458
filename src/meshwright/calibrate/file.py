"""A fit as a versioned file: values with their range, where they come from, and how good they are."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.calibrate.coverage import covering_ranges
from meshwright.calibrate.fit import Fit, MeasuredStep
from meshwright.formats.writing import write_file
from meshwright.library.calibration import SCHEMA
from meshwright.specs.calibration import Z90

INFORMED = 0.97
"""A number is kept where the runs narrowed its prior to this share or less."""
DIGITS = 4


def fit_record(fit: Fit, steps: Sequence[MeasuredStep], *, date: str, source: str) -> dict[str, Any]:
    """The content of a calibration file.

    Args:
        fit: what was found.
        steps: the runs it was fitted to.
        date: ISO, of the fit.
        source: the measured files, in words.

    Returns:
        `numbers`: value, low and high (central 90 %) and prior of every number the runs say something about;
        `errors`: of the runs before and after, and with their source left out; `spread`: what is left over, by device
        generation and framework, as the standard deviation of ln(predicted / measured) with sources left out;
        `ranges`: widths of ranges, and what they hold of sources that are left out.
    """
    numbers = {}
    for parameter, log_value, deviation in zip(fit.parameters, fit.log_values, fit.deviations, strict=True):
        if deviation > INFORMED * parameter.quantity.spread:
            continue
        low, high = parameter.bounds
        ends = np.clip([log_value - Z90 * deviation, log_value + Z90 * deviation], low, high)
        numbers[parameter.name] = {
            "value": _rounded(math.exp(log_value)),
            "low": _rounded(math.exp(min(ends[0], log_value))),
            "high": _rounded(math.exp(max(ends[1], log_value))),
            "prior": _rounded(parameter.prior),
        }
    return {
        "schema": SCHEMA,
        "date": date,
        "source": source,
        "runs": len(steps),
        "sources": sorted({step.source for step in steps}),
        "numbers": numbers,
        "errors": {name: error_summary(getattr(fit, name)) for name in ("before", "after", "left_out")},
        "spread": residual_spread(fit, steps),
        "ranges": covering_ranges(fit, steps).to_dict(steps),
    }


def error_summary(log_errors: np.ndarray) -> dict[str, float]:
    """Median and 90th percentile of |predicted / measured - 1|, and the median of the signed error."""
    errors = np.expm1(log_errors)
    return {
        "median": _rounded(float(np.median(np.abs(errors)))),
        "p90": _rounded(float(np.quantile(np.abs(errors), 0.9))),
        "bias": _rounded(float(np.median(errors))),
    }


def residual_spread(fit: Fit, steps: Sequence[MeasuredStep]) -> dict[str, float]:
    """Robust standard deviations of what is left over, 1.4826 median |r|: of all runs, and by owner."""
    owners = sorted({owner for step in steps for owner in step.owners})
    members = {"all": np.ones(len(steps), dtype=bool)}
    members |= {owner: np.array([owner in step.owners for step in steps]) for owner in owners}
    return {name: _rounded(1.4826 * float(np.median(np.abs(fit.left_out[own])))) for name, own in members.items()}


def write_calibration(record: dict[str, Any], path: str | Path) -> None:
    """The whole file or none.

    Raises:
        InputError: it cannot be written.
    """
    write_file(path, json.dumps(record, indent=1) + "\n")


def _rounded(number: float) -> float:
    return float(f"{number:.{DIGITS}g}")
