"""Pipeline sets to start from: the best fractions of pipelines, rounded down, and these with the rest filled.

Gradients couple pipelines by their number D and by the bytes of the fullest stage, so the fractions are found once for
each limit of those bytes (least tensor degree t, most parameters p), with what one more pipeline adds to the ring:

    value_i = rate_i T - lost_i - rate D-slope ranks_i        sequences of a pipeline by the time T
    T       the time by which the packed values are the batch

What rounding leaves free is packed again, until nothing more fits.

Source: own design; linearised around the fractions found before, a few times over. Rounding and packing again is diving
in a cutting-stock program: Vanderbeck 2000, Operations Research 48(1).
"""

from __future__ import annotations

from itertools import product

import numpy as np

from meshwright.planning.compose.sources.profiles.columns import ShapeColumns
from meshwright.planning.compose.sources.profiles.costs import ProfileCosts
from meshwright.planning.compose.sources.profiles.packing import ROUNDING, packed
from meshwright.shapes import Float, Int

_ROUNDS = 4
_LIMITS = 16
_SMALLEST_RING = 2

Start = tuple[tuple[int, int], ...]
"""Rows of shapes, and how many pipelines of each."""


def seeds(
    columns: ShapeColumns, costs: ProfileCosts, counts: Int[np.ndarray, "devices"], global_batch: int, most: int
) -> tuple[list[Start], list[Start]]:
    """Starts, the most promising first, and the same with what they leave free filled.

    Args:
        columns: shapes.
        costs: the model on the cluster.
        counts: devices of each kind.
        global_batch: sequences per step.
        most: starts.
    """
    found: dict[Start, tuple[float, Int[np.ndarray, "inside"]]] = {}
    limits = np.unique(np.quantile(columns.parameters, np.linspace(0, 1, _LIMITS)))
    for tp, limit in product(np.unique(columns.least_tp).tolist(), limits.tolist()):
        inside = np.flatnonzero((columns.least_tp >= tp) & (columns.parameters <= limit))
        if not len(inside):
            continue
        time_s, rows, amounts = _fractions(columns.take(inside), costs, counts, global_batch, limit, tp)
        whole = np.floor(amounts + ROUNDING).astype(np.int64)
        start = tuple(sorted((int(inside[row]), int(n)) for row, n in zip(rows, whole, strict=True) if n))
        if start and time_s < found.get(start, (np.inf, inside))[0]:
            found[start] = time_s, inside
    best = sorted(found, key=lambda one: found[one][0])[:most]
    return best, [_filled(columns, start, found[start][1], counts, global_batch) for start in best]


def _filled(
    columns: ShapeColumns,
    start: Start,
    allowed: Int[np.ndarray, "inside"],
    counts: Int[np.ndarray, "devices"],
    global_batch: int,
) -> Start:
    """A start with pipelines of allowed rows on the devices that it leaves free."""
    parts = dict(start)
    rows, numbers = np.array(start).T
    free = counts - numbers @ columns.used[rows]
    step_s = global_batch / float(numbers @ columns.sequences_per_s[rows])
    values, used = columns.sequences_per_s[allowed] * step_s - columns.lost_sequences[allowed], columns.used[allowed]
    while len(fitting := np.flatnonzero((used <= free).all(axis=1) & (values > 0))):
        packing = packed(values[fitting], used[fitting], free)
        if not len(packing.rows):
            break
        more = np.floor(packing.amounts + ROUNDING).astype(np.int64)
        if not more.any():
            more[np.argmax(packing.amounts * values[fitting][packing.rows])] = 1
        for place, number in zip(fitting[packing.rows].tolist(), more.tolist(), strict=True):
            row = int(allowed[place])
            parts[row] = parts.get(row, 0) + number
        free = free - more @ used[fitting[packing.rows]]
    return tuple(sorted((row, number) for row, number in parts.items() if number))


def _fractions(
    columns: ShapeColumns,
    costs: ProfileCosts,
    counts: Int[np.ndarray, "devices"],
    global_batch: int,
    parameters: float,
    tp: int,
) -> tuple[float, Int[np.ndarray, "basic"], Float[np.ndarray, "basic"]]:
    """The step that the best fractions promise, and the fractions."""
    packing = packed(columns.sequences_per_s, columns.used, counts)
    pairs = [(name, name) for name in costs.kinds]

    def ring_s(ranks: float) -> float:
        return costs.ring_s(parameters, tp, max(_SMALLEST_RING, round(ranks)), pairs)

    best = (np.inf, packing.rows, packing.amounts)
    for _ in range(_ROUNDS):
        rows, amounts = packing.rows, packing.amounts
        rate = float(columns.sequences_per_s[rows] @ amounts)
        if rate <= 0:
            break
        pipeline_s = (global_batch + float(columns.lost_sequences[rows] @ amounts)) / rate
        ranks = float(columns.most_replicas[rows] @ amounts)
        step_s = pipeline_s + ring_s(ranks)
        if step_s >= best[0] * (1 - 1e-6):
            break
        best = (step_s, rows, amounts)
        slope_s = (ring_s(1.25 * ranks + 1) - ring_s(0.8 * ranks)) / (0.45 * ranks + 1)
        values = columns.sequences_per_s * pipeline_s - columns.lost_sequences
        packing = packed(values - rate * slope_s * columns.most_replicas, columns.used, counts)
    return best
