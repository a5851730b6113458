"""Work on many rows in parts that fit a core's cache, on all cores."""

from __future__ import annotations

import os
from collections.abc import Callable

PART_ROWS = 1 << 16
"""Rows at a time: steps on them are long beside handing Python's lock over, and their columns stay in the cache that
cores share."""

FEW_PARTS = 2
"""Fewer parts are not worth a second thread."""


def threads() -> int:
    """Threads worth using: numpy computes outside Python's lock, but calls start inside it."""
    available = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(available, 8)


def in_parts(count: int, one: Callable[[slice], None]) -> None:
    """Call with every part of `range(count)`, in any order."""
    parts = [slice(start, min(start + PART_ROWS, count)) for start in range(0, count, PART_ROWS)]
    workers = threads() if len(parts) >= FEW_PARTS else 1
    if workers == 1:
        for part in parts:
            one(part)
        return
    # Few rows need no pool, and its import takes longer than they do.
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(one, parts):
            pass
