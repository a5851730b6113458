"""Measured runs as points: each beside its prediction, with the row it comes from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from meshwright.app.validate import METRICS, Prediction, compared_rows, predict
from meshwright.errors import InputError, Problem
from meshwright.formats.measured import read_rows
from meshwright.report.score_table import score_by_group

MOST_ROWS = 2000
"""Most rows of a file that the page predicts: a click away from an answer, not a study."""
UNITS = {"time": "s", "memory": "GiB"}


def accuracy_points(path: Path) -> dict[str, Any]:
    """Every row of a file of measured runs, predicted.

    Args:
        path: the file, as `validate` reads it.

    Returns:
        The score of each metric over all rows and its points, each with the number of its row; and all rows with what
        was assumed of them, or why there is no prediction.

    Raises:
        InputError: the file is no such file, or has too many rows.
    """
    records = read_rows(path)
    if len(records) > MOST_ROWS:
        problem = Problem(
            what=f"{len(records):,} rows",
            why=f"at most {MOST_ROWS:,} are shown",
            fix="score all of them with meshwright validate",
            field="measured",
        )
        raise InputError(problem, code="MW240")
    predictions = [predict(record) for record in records]
    return {
        "metrics": {metric: found for metric in METRICS if (found := _metric(records, predictions, metric))},
        "rows": [_row(record, one) for record, one in zip(records, predictions, strict=True)],
    }


def _metric(records: Sequence[dict[str, str]], predictions: Sequence[Prediction], metric: str) -> dict[str, Any] | None:
    """Points of one metric; None where nothing measured of it was predicted."""
    points, compared = [], []
    for number, (record, prediction) in enumerate(zip(records, predictions, strict=True)):
        for run in compared_rows([record], [prediction], metric, "source"):
            compared.append(run)
            if run.predicted is not None:
                point = {"measured": run.measured, "predicted": run.predicted, "low": run.low, "high": run.high}
                points.append({"row": number, "group": run.group, **point})
    if not points:
        return None
    return {"unit": UNITS[metric], "score": score_by_group(compared)[0].to_dict(), "points": points}


def _row(record: dict[str, str], found: Prediction) -> dict[str, Any]:
    """What is shown of a row: its cells, and what was made of them."""
    return {
        "id": found.id,
        "plan": found.plan,
        "why_not": found.why_not,
        "assumptions": list(found.assumptions),
        "cells": {name: value for name, value in record.items() if name and value},
    }
