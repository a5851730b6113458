"""The rows of a sweep of the Calculon model: one execution each, with its keys and all statistics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from meshwright.calculon.executions import COUNTS, FLAGS, KEYS, ExecutionColumns
from meshwright.calculon.inputs import CHOICES
from meshwright.calculon.statistics import STATISTICS
from meshwright.formats.sweep_file import parquet


def arrow_schema() -> Any:
    """Columns and their types."""
    arrow, _ = parquet()
    names = arrow.dictionary(arrow.int32(), arrow.string())
    types = {
        "design": arrow.int32(),
        "app": names,
        "system": names,
        "batch": arrow.int64(),
        "number": arrow.int64(),
        "rank": arrow.int32(),
        "on_front": arrow.bool_(),
    }
    for key in KEYS:
        types[key] = arrow.int32() if key in COUNTS else arrow.bool_() if key in FLAGS else names
    for name in STATISTICS:
        types[name] = arrow.float64()
    return arrow.schema([arrow.field(name, kind) for name, kind in types.items()])


def arrow_table(
    design: Mapping[str, Any],
    numbers: np.ndarray,
    columns: ExecutionColumns,
    values: Mapping[str, Any],
    rank: Mapping[int, int],
    front: frozenset[int],
) -> Any:
    """Rows as an Arrow table.

    Args:
        design: `design`, `app`, `system` and `batch`.
        numbers: positions in the design's space.
        columns: the executions.
        values: statistics by name.
        rank: the rank by position, of the best executions.
        front: positions on the front.
    """
    arrow, _ = parquet()
    schema = arrow_schema()
    rows = len(numbers)

    def named(codes: np.ndarray, names: tuple[str, ...]) -> Any:
        return arrow.DictionaryArray.from_arrays(arrow.array(codes.astype(np.int32)), list(names))

    same = np.zeros(rows, dtype=np.int32)
    arrays: dict[str, Any] = {
        "design": np.full(rows, design["design"]),
        "app": named(same, (design["app"],)),
        "system": named(same, (design["system"],)),
        "batch": np.full(rows, design["batch"]),
        "number": numbers,
        "rank": [rank.get(number) for number in numbers.tolist()],
        "on_front": [number in front for number in numbers.tolist()],
    }
    for key in KEYS:
        column = getattr(columns, key)
        arrays[key] = named(column, CHOICES[key]) if key in CHOICES else column
    for name in STATISTICS:
        arrays[name] = arrow.array(values[name].astype(np.float64), from_pandas=True)
    fields = [
        array if isinstance(array, arrow.Array) else arrow.array(array, type=schema.field(name).type)
        for name, array in arrays.items()
    ]
    return arrow.table(fields, schema=schema)
