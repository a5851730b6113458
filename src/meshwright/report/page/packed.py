"""Columns of numbers as a few characters: what a page holds of a step with a hundred thousand tasks."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshwright.shapes import Float, Int

TICKS = 2.0**31
"""Ticks in the length of a step: moments are whole numbers of them, half a nanosecond where a step takes one second."""


def deflated(columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Columns one behind the other, deflated: `assets/packed.js` takes them apart.

    Args:
        columns: by name, of `i1`, `u1`, `i2`, `u2`, `i4`, `f4` or `f8`.
    """
    whole = b"".join(_little(column).tobytes() for column in columns.values())
    return {
        "columns": [[name, column.dtype.str[1:], len(column)] for name, column in columns.items()],
        "deflated": b64encode(zlib.compress(whole, 9)).decode(),
    }


def gaps_and_durations(
    start_s: Float[np.ndarray, " tasks"],
    end_s: Float[np.ndarray, " tasks"],
    usual_s: Float[np.ndarray, " tasks"],
    tick_s: float,
) -> tuple[Int[np.ndarray, " tasks"], Int[np.ndarray, " tasks"]]:
    """Tasks of one worker as what lies before each and by how much it differs from the usual length, in ticks.

    Almost all are 0, which deflates to nothing. Rounding does not add up: each task is counted from where the one
    before it ends once it is read again.

    Args:
        start_s: of each task, in order.
        end_s: of each task.
        usual_s: length of tasks of its kind.
        tick_s: length of a tick.

    Returns:
        Ticks before each task, and ticks it lasts beyond the usual.
    """
    lasting = np.rint((end_s - start_s - usual_s) / tick_s).astype(np.int64)
    lengths_s = usual_s + lasting * tick_s
    gaps = np.zeros(len(start_s), np.int64)
    at_s = 0.0
    for task, (start, length_s) in enumerate(zip(start_s.tolist(), lengths_s.tolist(), strict=True)):
        gap = round((start - at_s) / tick_s)
        gaps[task] = gap
        at_s += gap * tick_s + length_s
    return gaps, lasting


def _little(column: np.ndarray) -> np.ndarray:
    return column.astype(column.dtype.newbyteorder("<"))
