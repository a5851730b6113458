"""Times and memory of pipeline stages from a table: CSV, or JSON with a list of the same rows.

One row per worker, or per worker and chunk where there is a column `chunk`; rows are in the order of the workers, or
say which one they mean in a column `worker`.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.errors import InputError, Problem, unknown_name
from meshwright.formats.files import read_text
from meshwright.shapes import Float

REQUIRED = ("forward_s", "input_s", "weight_s")
OPTIONAL = ("recompute_s", "transfer_s", "activation_bytes", "capacity_bytes", "weight_bytes", "released_by_input")
SHARES = ("released_by_input",)
PLACES = ("worker", "chunk")
MOST_PLACES, MOST_SECONDS, MOST_BYTES = 1e15, 1e9, 1e18
"""No stage takes thirty years or holds an exabyte: the numbers are in another unit, or slips."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StageTimes:
    """What the columns say, by worker and chunk; None for an optional column that is not there."""

    forward_s: Float[np.ndarray, "workers chunks"]
    input_s: Float[np.ndarray, "workers chunks"]
    weight_s: Float[np.ndarray, "workers chunks"]
    recompute_s: Float[np.ndarray, "workers chunks"] | None = None
    transfer_s: Float[np.ndarray, "workers chunks"] | None = None
    """Latency behind each stage."""
    activation_bytes: Float[np.ndarray, "workers chunks"] | None = None
    """Kept for one micro-batch from its forward to its backward."""
    capacity_bytes: Float[np.ndarray, "workers chunks"] | None = None
    """Memory of the worker, the same for all its chunks."""
    weight_bytes: Float[np.ndarray, "workers chunks"] | None = None
    """Weights, gradients and optimizer states."""
    released_by_input: Float[np.ndarray, "workers chunks"] | None = None
    """Share of the activation that the input gradient frees already; the weight gradient frees the rest."""


def read_stage_times(path: str | Path) -> StageTimes:
    """The stages of a file.

    Args:
        path: CSV with a header, or JSON.

    Raises:
        InputError: unreadable, unknown or missing columns, cells that are no numbers from 0, or places that are missing
            or doubled; everything at once.
    """
    rows = _rows(read_text(path, "file of stage times"), str(path))
    known = (*PLACES, *REQUIRED, *OPTIONAL)
    columns = list(dict.fromkeys(name for row in rows for name in row))
    problems = [unknown_name("column", name, known) for name in columns if name not in known]
    problems += [
        Problem(what=f"{str(path)!r} has no column {name}", why="every stage has it", field=name)
        for name in REQUIRED
        if name not in columns
    ]
    cells: dict[str, list[float]] = {name: [] for name in columns if name in known}
    for number, row in enumerate(rows, 1):
        for name, cell in cells.items():
            value = _number(row.get(name, ""))
            most = 1.0 if name in SHARES else MOST_PLACES if name in PLACES else MOST_BYTES
            most = MOST_SECONDS if name.endswith("_s") else most
            if value is None or value > most or (name in PLACES and value % 1):
                rule = "a whole number from 0" if name in PLACES else "a finite number, 0 or more"
                rule += f", at most {most:g}" if value is not None and value > most else ""
                what = f"row {number}: {name} is {str(row.get(name, ''))[:40]!r}"
                problems.append(Problem(what=what, why=f"it must be {rule}", field=name))
            cell.append(math.nan if value is None else value)
    if problems:
        raise InputError(problems, code="MW202")
    chunk = np.asarray(cells.pop("chunk", [0.0] * len(rows)), int)
    worker = np.asarray(cells.pop("worker", np.cumsum(chunk == 0) - 1), int)
    shape = int(worker.max()) + 1, int(chunk.max()) + 1
    places = np.zeros(shape if shape[0] * shape[1] <= 4 * len(rows) else (1, 1), int)
    if places.shape == shape:
        np.add.at(places, (worker, chunk), 1)
    if places.shape != shape or (places != 1).any():
        why = f"{len(rows)} rows for {shape[0]} workers x {shape[1]} chunks: each worker and chunk has one row"
        fix = "number workers and chunks from 0"
        raise InputError(what=f"{str(path)!r} misses or repeats a stage", why=why, fix=fix, field="worker")

    def column(name: str) -> Float[np.ndarray, "workers chunks"]:
        values = np.empty(shape)
        values[worker, chunk] = cells[name]
        return values

    given = {name: column(name) for name in OPTIONAL if name in cells}
    return StageTimes(forward_s=column("forward_s"), input_s=column("input_s"), weight_s=column("weight_s"), **given)


def _rows(text: str, path: str) -> list[Mapping[str, Any]]:
    def refuse(why: str) -> InputError:
        fix = "one row per worker with columns forward_s, input_s, weight_s"
        return InputError(what=f"{path!r} is no table of stages", why=why, fix=fix, code="MW202")

    if text.lstrip()[:1] in ("[", "{"):
        try:
            rows = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise refuse(f"it is not JSON: {error}") from None
        if not isinstance(rows, list) or not rows or not all(isinstance(row, dict) for row in rows):
            raise refuse("JSON holds a list of objects, one per row")
        return rows
    try:
        rows = [
            {str(name).strip(): value for name, value in row.items() if name is not None}
            for row in csv.DictReader(io.StringIO(text))
        ]
    except csv.Error as error:
        raise refuse(f"it is not CSV: {error}") from None
    if not rows:
        raise refuse("it ends after its header")
    return rows


def _number(cell: object) -> float | None:
    if isinstance(cell, bool) or not isinstance(cell, (str, int, float)):
        return None
    try:
        value = float(cell)
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) and value >= 0 else None
