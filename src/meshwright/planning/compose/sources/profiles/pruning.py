"""Rules that drop pipeline shapes before they are composed, each counted.

dominated   another shape of the same devices is as quick, fills as quickly, synchronises as cheaply
            and has no larger micro-batch
bound       even with all other devices at their best together, no pipeline set with this shape beats one already known
narrowed    beyond the shapes with the least bounds that are composed at all; the only rule that may lose the best
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from meshwright.planning.compose.sources.profiles.columns import ShapeColumns
from meshwright.planning.compose.sources.profiles.costs import ELEMENT_BYTES
from meshwright.shapes import Bool, Float, Int
from meshwright.units import GIGA

_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Prices:
    """What a device of each kind is worth in sequences per second: no shape yields more than its devices' worth."""

    worth: Float[np.ndarray, "devices"]

    def of(self, used: Int[np.ndarray, "rows devices"]) -> Float[np.ndarray, "rows"]:
        """Worth of the devices of each row."""
        return used @ self.worth


def undominated_shapes(columns: ShapeColumns) -> Bool[np.ndarray, "rows"]:
    """Rows that no other row of the same devices and smallest tensor degree beats.

    What counts: the rate, filling, the parameters of the fullest stage, and the micro-batch, since whole micro-batches
    share the batch and small ones share it evenly.
    """
    keys = np.column_stack([columns.used, columns.least_tp]).tolist()
    # Sorted by rate, a row is beaten by an earlier one that is no worse in the others.
    order = np.lexsort((columns.micro_batch, columns.parameters, columns.lost_sequences, -columns.sequences_per_s))
    criteria = np.column_stack([columns.lost_sequences - _ROUNDING, columns.parameters, columns.micro_batch]).tolist()
    fronts: dict[tuple[int, ...], list[list[float]]] = {}
    keep = np.zeros(len(columns), bool)
    for row in order.tolist():
        front = fronts.setdefault(tuple(keys[row]), [])
        lost, parameters, micro_batch = criteria[row]
        lost += _ROUNDING
        for other in front:
            if other[0] <= lost and other[1] <= parameters and other[2] <= micro_batch:
                break
        else:
            front.append(criteria[row])
            keep[row] = True
    return keep


def device_prices(columns: ShapeColumns, counts: Int[np.ndarray, "devices"]) -> Prices:
    """Prices under which all devices together are worth as little as possible.

        min sum_k count_k w_k  over  w >= 0  with  sum_k used_ik w_k >= rate_i  for every shape i

    The dual of the linear program that composes fractions of shapes. Any prices that satisfy the constraints give a
    valid bound; these come from coordinate search over their ratios, scaled until they do.
    """
    kinds = len(counts)
    ratio = np.ones(kinds)
    for k in range(kinds):
        alone = columns.used[:, k] == columns.used.sum(axis=1)
        per_device = columns.sequences_per_s[alone] / columns.used[alone, k]
        ratio[k] = per_device.max() if alone.any() else np.nan
    ratio = np.where(np.isnan(ratio), np.nanmin(ratio) if not np.isnan(ratio).all() else 1.0, ratio)

    def scaled(candidate: Float[np.ndarray, "devices"]) -> Float[np.ndarray, "devices"]:
        return candidate * (columns.sequences_per_s / (columns.used @ candidate)).max()

    best = scaled(ratio)
    step = 2.0
    while step > 1.001:
        better = best
        for k in range(kinds):
            for factor in (step, 1 / step):
                tried = best.copy()
                tried[k] *= factor
                tried = scaled(tried)
                if tried @ counts < better @ counts * (1 - 1e-12):
                    better = tried
        if better is best:
            step = step**0.5
        best = better
    return Prices(best)


def least_times(
    columns: ShapeColumns,
    prices: Prices,
    counts: Int[np.ndarray, "devices"],
    global_batch: int,
    fastest_gb_s: float,
) -> Float[np.ndarray, "rows"]:
    """No pipeline set that holds a row takes less.

        alone   (batch + lost_i) / rate_i
        or with others   (batch + lost_i) / (worth of all devices - (worth of its devices - its rate))
                         + 2 (D - 1) / D x gradient bytes of its fullest stage / bandwidth,  D >= 2

    Args:
        columns: shapes.
        prices: the prices of devices.
        counts: devices of each kind.
        global_batch: sequences per step.
        fastest_gb_s: the fastest GB/s that no ring of gradients exceeds.
    """
    slack = prices.of(columns.used) - columns.sequences_per_s
    batch = global_batch + columns.lost_sequences
    ring_s = ELEMENT_BYTES * columns.parameters / columns.most_tp / (GIGA * fastest_gb_s)
    together = batch / (prices.worth @ counts - slack) + ring_s
    single = columns.most_replicas == 1
    return np.where(single, np.minimum(together, batch / columns.sequences_per_s), together)
