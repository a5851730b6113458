"""What no plan can beat: all layers computed at the cheapest rate of any device, without communication or memory."""

from __future__ import annotations

import numpy as np

from meshwright.hetero.profile_costs import ProfileCosts
from meshwright.shapes import Float, Int

_ROUNDS = 60


def compute_bound_s(costs: ProfileCosts, global_batch: int) -> float:
    """Seconds of a step below which no plan can come.

        max over w >= 0, sum_k count_k w_k = 1   of   batch x sum_l min_k w_k s_lk

    Args:
        costs: s_lk, the least device-seconds per sequence of layer l on kind k at any profiled point.
        global_batch: sequences per step.

    Returns:
        the dual of sharing every layer out among the kinds in any fractions. Any w gives a bound; this one comes from
        coordinate search over w.
    """
    seconds, counts = _cheapest(costs)

    def bound(worth: Float[np.ndarray, "kinds"]) -> float:
        scaled = worth / (worth @ counts)
        return float(global_batch * (scaled[:, None] * seconds).min(axis=0).sum())

    best = 1 / seconds.sum(axis=1)
    step = 2.0
    for _ in range(_ROUNDS):
        tried = [best * np.where(np.arange(len(best)) == k, f, 1) for k in range(len(best)) for f in (step, 1 / step)]
        better = max(tried, key=bound)
        if bound(better) > bound(best):
            best = better
        else:
            step = step**0.7
    return bound(best)


def _cheapest(costs: ProfileCosts) -> tuple[Float[np.ndarray, "kinds layers"], Int[np.ndarray, "kinds"]]:
    rows, counts = [], []
    for name, kind in costs.kinds.items():
        points = [
            np.diff(sums.seconds) * tp / micro_batch
            for tp in costs.tensor_degrees(name)
            for micro_batch in costs.profile.micro_batches(kind.device, tp)
            if (sums := costs.sums(name, tp, micro_batch)) is not None
        ]
        if points:
            rows.append(np.min(points, axis=0))
            counts.append(kind.count)
    return np.array(rows), np.array(counts)
