"""What no plan can beat.

compute_bound_s   all layers computed at the cheapest rate of any device, without communication or memory
shapes_bound_s    no pipeline set of the shapes looked at, with their memory, transfers and gradients
"""

from __future__ import annotations

import math
from itertools import product

import numpy as np

from meshwright.planning.compose.sources.profiles.columns import ShapeColumns
from meshwright.planning.compose.sources.profiles.costs import BUCKET_BYTES, ELEMENT_BYTES, ProfileCosts
from meshwright.planning.compose.sources.profiles.packing import packed
from meshwright.shapes import Float, Int

_ROUNDS = 60
_LIMITS = 32
"""Steps of gradient bytes, to which they are rounded down."""
_NUMBERS = 24
"""Steps of the number of pipelines, to which it is rounded down."""


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


def shapes_bound_s(
    columns: ShapeColumns, costs: ProfileCosts, counts: Int[np.ndarray, "devices"], global_batch: int
) -> float:
    """Seconds of a step below which no pipeline set of some shapes comes, transfers and gradients included.

        min over D and q of   batch / min(packed(q), D quickest(q))  +  2 (D - 1) t(q / D)

    Args:
        columns: shapes.
        costs: the model on the cluster.
        counts: devices of each kind.
        global_batch: sequences per step.

    Returns:
        D pipelines, of which the one with the largest gradients per rank has q bytes of them: their rate is at most the
        best fractions of shapes with no more, and D times the quickest of those; each of D ranks moves 2 (D - 1) / D of
        q over the quickest link. Micro-batches may be cut anywhere, filling costs nothing, and every middle layer is as
        quick as the quickest.
    """
    payload = ELEMENT_BYTES * columns.parameters / columns.most_tp
    limits = np.unique(np.quantile(payload, np.linspace(0, 1, _LIMITS)))
    best = global_batch / float(columns.most_sequences_per_s.max())
    for least, most in zip([payload.min(), *limits], limits, strict=False):
        inside = payload <= most
        rates, used = columns.most_sequences_per_s[inside], columns.used[inside]
        packing = packed(rates, used, counts)
        together = float(packing.worth @ counts)
        # Beyond this many, more pipelines only lengthen the ring.
        enough = max(2, math.ceil(together / float(rates.max())))
        numbers = np.unique(np.geomspace(2, enough, _NUMBERS).astype(np.int64)).tolist()
        for fewer, more in zip(numbers, [*numbers[1:], enough], strict=True):
            pipeline_s = global_batch / min(together, more * float(rates.max()))
            best = min(best, pipeline_s + _least_ring_s(costs, float(least), fewer))
    return best


def _least_ring_s(costs: ProfileCosts, payload_bytes: float, ranks: int) -> float:
    """Seconds of an all-reduce on the quickest link of the cluster."""
    full, rest = divmod(payload_bytes, BUCKET_BYTES)
    sizes = [(full, BUCKET_BYTES), (1.0, rest)]
    names = list(costs.kinds)
    times = [
        sum(number * costs.transfer_s(size / ranks, (a, 1), (b, 1)) for number, size in sizes if number and size)
        for a, b in product(names, names)
        if costs.joined_columns(a, b)
    ]
    return 2 * (ranks - 1) * min(times, default=0.0)
