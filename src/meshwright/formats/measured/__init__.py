"""Files of published training runs, one run per row.

read_rows   a CSV file -> its rows as text
read_run    one row    -> model, cluster, workload and plans, or why it cannot be priced
"""

from __future__ import annotations

import csv
import io
from pathlib import Path

from meshwright.errors import InputError, Problem, nearest
from meshwright.formats.files import read_text
from meshwright.formats.measured.model import ModelLookup, model_or_none
from meshwright.formats.measured.plans import PossiblePlan
from meshwright.formats.measured.record import REQUIRED, campaign, contradiction, in_reach
from meshwright.formats.measured.run import DeviceLookup, MeasuredRun, read_run

__all__ = [
    "REQUIRED",
    "DeviceLookup",
    "MeasuredRun",
    "ModelLookup",
    "PossiblePlan",
    "campaign",
    "contradiction",
    "in_reach",
    "model_or_none",
    "read_rows",
    "read_run",
]


def read_rows(path: str | Path) -> list[dict[str, str]]:
    """The rows of a measured-runs file.

    Args:
        path: a CSV file with a header.

    Returns:
        Column to text, row by row; missing cells are empty, cells beyond the header are dropped.

    Raises:
        InputError: the file cannot be read, is not CSV, lacks columns that every such file has, or holds no row.
    """
    text = read_text(path, "file of measured runs", max_bytes=256 * 1024**2)
    reader = csv.DictReader(io.StringIO(text))
    try:
        columns = reader.fieldnames or []
        rows = [{name: value or "" for name, value in row.items() if isinstance(name, str)} for row in reader]
    except csv.Error as error:
        raise InputError(
            what=f"{str(path)!r} is not CSV: {error}", fix="save it as comma-separated text", code="MW202"
        ) from None
    missing = [name for name in REQUIRED if name not in columns]
    if missing:
        problems = []
        for name in missing:
            close = nearest(name, [column for column in columns if column not in REQUIRED], 1)
            problems.append(
                Problem(
                    what=f"{str(path)!r} has no column {name}",
                    why="every file of measured runs has it",
                    fix=f"did you mean {close[0]}?" if close else "see the columns in the documentation",
                    field=name,
                )
            )
        raise InputError(problems, code="MW202")
    if not rows:
        raise InputError(what=f"{str(path)!r} holds no run", why="it ends after its header", code="MW202")
    return rows
