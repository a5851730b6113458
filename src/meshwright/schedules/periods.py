"""Where the steps of a table repeat themselves: one code per step, and the stretches in which codes come again."""

from __future__ import annotations

import numpy as np

from meshwright.shapes import Bool, Int

PERIOD_LEVELS = 16
"""Short periods are joined until they have about this many levels: looking for a return costs as much as a few."""
FEWEST_PERIODS = 4
"""Periods of the shortest phase, each of `PERIOD_LEVELS` nodes at least."""
MOST_CODES = 2**63
"""Numbers that a code may take: it is a 64-bit integer."""


def step_codes(*columns: Int[np.ndarray, " nodes"] | Bool[np.ndarray, " nodes"]) -> Int[np.ndarray, " nodes"]:
    """One number per node that says all of these: equal where all columns are.

    Args:
        columns: the columns of numbers from 0.
    """
    code, values = np.zeros(len(columns[0]), np.int64), 1
    for column in columns:
        own = int(column.max()) + 1
        if values * own >= MOST_CODES:  # sorting takes longer than all else, and few tables need it
            code, column = (np.unique(numbers, return_inverse=True)[1].reshape(-1) for numbers in (code, column))
            values, own = int(code.max()) + 1, int(column.max()) + 1
        code, values = code * own + column, values * own
    return code


def phases(
    code: Int[np.ndarray, " nodes"], bounds: Int[np.ndarray, " levels_plus_1"], known: int = 0
) -> list[tuple[int, int, int]]:
    """Stretches in which the codes repeat at least `FEWEST_PERIODS` times.

    A stretch is searched from the middle of what is left: there a steady phase is, if there is one.

    Args:
        code: says all that the step of a node depends on, in level order.
        bounds: first node of every level, and the number of nodes.
        known: nodes of one period of the only stretch that is wanted; 0 for all stretches.

    Returns:
        First node, nodes of a period and periods of each stretch, in order.
    """
    found = []
    spans = [(0, len(code))]
    while spans:
        low, high = spans.pop()
        if high - low < FEWEST_PERIODS * PERIOD_LEVELS:
            continue
        middle = int(bounds[np.searchsorted(bounds, (low + high) // 2)])
        period = known or (_period(code, middle, high) if middle < high else 0)
        if not period:
            if high - low > len(code) // 8:
                spans += [(low, middle), (middle, high)]
            continue
        differs = np.nonzero(code[low : high - period] != code[low + period : high])[0] + low
        split = np.searchsorted(differs, middle)
        start = int(differs[split - 1]) + 1 if split else low
        stop = (int(differs[split]) if split < len(differs) else high - period) + period
        start = int(bounds[np.searchsorted(bounds, start)])
        periods = (stop - start) // period
        # The last level of the last period may have more nodes than those before it.
        periods -= int(start + periods * period not in bounds)
        if periods < FEWEST_PERIODS:
            continue
        found.append((start, period, periods))
        if known:
            break
        spans += [(low, start), (start + periods * period, high)]
    return sorted(found)


def _period(code: Int[np.ndarray, " nodes"], middle: int, high: int) -> int:
    """Shortest distance at which the codes from `middle` on repeat, 0 if none does before `high`."""
    again = np.nonzero(code[middle + 1 : middle + 1 + (high - middle) // 2] == code[middle])[0] + 1
    for period in again[:256].tolist():
        if np.array_equal(code[middle : middle + period], code[middle + period : middle + 2 * period]):
            return int(period)
    return 0
