"""Columns of numbers as a few characters: what a page holds of a step with a hundred thousand tasks."""

from __future__ import annotations

import zlib
from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np

from meshwright.shapes import Float, Int

LEVEL = 1
"""zlib's effort: what is packed repeats itself, which the lowest finds in a third of the time."""
TICKS = 2.0**31
"""Ticks in the length of a step: moments are whole numbers of them, half a nanosecond where a step takes one second."""


def deflated(columns: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """Columns one behind the other, deflated: `assets/packed.js` takes them apart.

    Args:
        columns: the columns by name, of `i1`, `u1`, `i2`, `u2`, `i4`, `f4` or `f8`.
    """
    whole = b"".join(_little(column).tobytes() for column in columns.values())
    return {
        "columns": [[name, column.dtype.str[1:], len(column)] for name, column in columns.items()],
        "deflated": b64encode(zlib.compress(whole, LEVEL)).decode(),
    }


def gaps_and_durations(
    start_s: Float[np.ndarray, " tasks"],
    end_s: Float[np.ndarray, " tasks"],
    usual_s: Float[np.ndarray, " tasks"],
    worker: Int[np.ndarray, " tasks"],
    tick_s: float,
) -> tuple[Int[np.ndarray, " tasks"], Int[np.ndarray, " tasks"]]:
    """Tasks as what lies before each on its worker and by how much it differs from the usual length, in ticks.

    Almost all are 0, which deflates to nothing. Rounding does not add up: each task is counted from where the one
    before it ends once it is read again.

    Args:
        start_s: the start in seconds of each task, worker after worker in order.
        end_s: the end in seconds of each task.
        usual_s: length of tasks of its kind.
        worker: the worker of each task.
        tick_s: length of a tick.

    Returns:
        Ticks before each task, and ticks it lasts beyond the usual.
    """
    lasting = np.rint((end_s - start_s - usual_s) / tick_s).astype(np.int64)
    lengths_s = usual_s + lasting * tick_s
    # Gaps are whole ticks: those up to a task follow from its start and the lengths before it, with one rounding.
    before_s = np.cumsum(lengths_s) - lengths_s
    opens = np.searchsorted(worker, worker)
    so_far = np.rint((start_s - before_s + before_s[opens]) / tick_s).astype(np.int64)
    gap = np.diff(so_far, prepend=0)
    own = np.unique(opens)
    gap[own] = so_far[own]
    return gap, lasting


def _little(column: np.ndarray) -> np.ndarray:
    return column.astype(column.dtype.newbyteorder("<"))
