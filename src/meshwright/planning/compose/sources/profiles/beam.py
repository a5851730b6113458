"""Which shapes together, and how many pipelines of each: a beam over growing pipeline sets.

A pipeline set of parts x_k times shape k with rates r_k, lost sequences f_k and D pipelines in all is ranked by

    (batch + sum x_k f_k) / sum x_k r_k  +  2 (D - 1) / D  x gradient bytes / bandwidth

and at each step the most promising ones take one more shape, in any of several counts up to all that fit. The devices
still free are counted at their worth, so that a part of a good pipeline set ranks as well as the whole.

Source: own design; the worth is the dual price of the program that composes fractions of shapes (`pruning`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from meshwright.planning.compose.sources.profiles.columns import ShapeColumns
from meshwright.planning.compose.sources.profiles.costs import ELEMENT_BYTES, ProfileCosts
from meshwright.planning.compose.sources.profiles.pruning import Prices
from meshwright.shapes import Float, Int
from meshwright.units import GIGA, MEGA

FEW = 4
"""Pipeline sets kept after each step from a start that is whole but for what rounding left."""
BLOCK = 256
"""Pipeline sets extended at once."""
OWN_SHARE = 0.7
"""Share of its gradients' time at its own tensor degree that a ring is assumed to take at least."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Grown:
    """Pipeline sets on the way, one row each."""

    rows: Int[np.ndarray, "sets parts"]
    counts: Int[np.ndarray, "sets parts"]
    free: Int[np.ndarray, "sets devices"]
    rate: Float[np.ndarray, "sets"]
    lost: Float[np.ndarray, "sets"]
    pipelines: Float[np.ndarray, "sets"]
    parameters: Float[np.ndarray, "sets"]
    """Parameters of the fullest stage of any part."""
    least_tp: Float[np.ndarray, "sets"]
    sharded: Float[np.ndarray, "sets"]
    """Parameters of the fullest stage over its own tensor degree, the most of any part."""

    def __len__(self) -> int:
        return len(self.rate)

    def take(self, kept: Int[np.ndarray, "kept"] | slice) -> Grown:
        """Some of the pipeline sets."""
        return Grown(**{name: getattr(self, name)[kept] for name in Grown.__slots__})

    def join(self, other: Grown) -> Grown:
        """Both, of as many parts."""
        return Grown(**{name: np.concatenate([getattr(self, name), getattr(other, name)]) for name in Grown.__slots__})


def grow(
    columns: ShapeColumns,
    costs: ProfileCosts,
    prices: Prices,
    counts: Int[np.ndarray, "devices"],
    global_batch: int,
    *,
    starts: Sequence[Sequence[tuple[int, int]]],
    steps: int,
    width: int,
    shares: int,
) -> list[tuple[tuple[int, int], ...]]:
    """Promising pipeline sets as (row, pipelines) pairs, the most promising first.

    Args:
        columns: shapes.
        costs: the model on the cluster.
        prices: what free devices are worth.
        counts: devices of each kind.
        global_batch: sequences per step.
        starts: pipeline sets to extend beside every shape by itself.
        steps: parts of a pipeline set.
        width: pipeline sets kept after each step, by each of four estimates.
        shares: counts tried of each shape by itself, spread evenly up to the most that fit.
    """
    promise = _Promise(prices.worth, global_batch, sum(ring_gb_s(costs)) / 2)
    promised_s: dict[tuple[tuple[int, int], ...], float] = {}
    begun = [promise.best(_singles(columns, counts, shares), 2 * width)]
    begun += [_grown(columns, counts, start) for start in starts]
    for number, state in enumerate(begun):
        for step in range(steps):
            if step:
                state = _extended(state, columns, promise, FEW if number else width)
            if not len(state):
                break
            # Without the free devices, since nothing is added to these.
            time_s = promise.estimates(promise.totals(state))[3].tolist()
            for rows, numbers, one_s in zip(state.rows.tolist(), state.counts.tolist(), time_s, strict=True):
                promised_s[tuple(sorted(zip(rows, numbers, strict=True)))] = one_s
    return sorted(promised_s, key=lambda one: promised_s[one])


def _grown(columns: ShapeColumns, counts: Int[np.ndarray, "devices"], start: Sequence[tuple[int, int]]) -> Grown:
    """One pipeline set."""
    rows, numbers = np.array(start).T
    return Grown(
        rows=rows[None],
        counts=numbers[None],
        free=(counts - numbers @ columns.used[rows])[None],
        rate=np.array([numbers @ columns.sequences_per_s[rows]]),
        lost=np.array([numbers @ columns.lost_sequences[rows]]),
        pipelines=np.array([float(numbers @ columns.most_replicas[rows])]),
        parameters=np.array([columns.parameters[rows].max()]),
        least_tp=np.array([float(columns.least_tp[rows].min())]),
        sharded=np.array([(columns.parameters[rows] / columns.least_tp[rows]).max()]),
    )


def ring_gb_s(costs: ProfileCosts) -> tuple[float, float]:
    """Slowest and fastest bandwidth of rings of gradients between any two kinds, at 4 to 250 MB."""
    names = list(costs.kinds)
    speeds = []
    for source, target in product(names, names):
        for payload in (4 * MEGA, 16 * MEGA, 64 * MEGA, 250 * MEGA):
            try:
                speeds.append(payload / GIGA / costs.transfer_s(payload, (source, 1), (target, 1)))
            except KeyError:
                continue
    return min(speeds, default=1.0), max(speeds, default=1.0)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Totals:
    """What the promise of a pipeline set depends on; arrays of one shape."""

    rate: Float[np.ndarray, "*rows"]
    worth: Float[np.ndarray, "*rows"]
    """Worth of the free devices."""
    lost: Float[np.ndarray, "*rows"]
    pipelines: Float[np.ndarray, "*rows"]
    parameters: Float[np.ndarray, "*rows"]
    least_tp: Float[np.ndarray, "*rows"]
    sharded: Float[np.ndarray, "*rows"]


@dataclass(frozen=True, slots=True)
class _Promise:
    """Ranks pipeline sets by the step they promise."""

    worth: Float[np.ndarray, "devices"]
    global_batch: int
    gb_s: float

    def estimates(self, one: _Totals) -> list[Float[np.ndarray, "*rows"]]:
        """Seconds with the free devices at their worth and without, with gradients at the smallest tensor degree of any
        part and at each part's own."""
        batch = self.global_batch + one.lost
        ring = 2 * ELEMENT_BYTES / (GIGA * self.gb_s) * (1 - 1 / one.pipelines)
        most_s, least_s = ring * one.parameters / one.least_tp, OWN_SHARE * ring * one.sharded
        together_s, alone_s = batch / (one.rate + one.worth), batch / one.rate
        return [together_s + most_s, together_s + least_s, alone_s + most_s, alone_s + least_s]

    def totals(self, grown: Grown) -> _Totals:
        """Totals of whole pipeline sets."""
        return _Totals(
            rate=grown.rate,
            worth=grown.free @ self.worth,
            lost=grown.lost,
            pipelines=grown.pipelines,
            parameters=grown.parameters,
            least_tp=grown.least_tp,
            sharded=grown.sharded,
        )

    def best(self, grown: Grown, width: int) -> Grown:
        """The best of each estimate."""
        if len(grown) <= width:
            return grown
        estimates = self.estimates(self.totals(grown))
        return grown.take(np.unique(np.concatenate([np.argpartition(one, width)[:width] for one in estimates])))


def _singles(columns: ShapeColumns, counts: Int[np.ndarray, "devices"], shares: int) -> Grown:
    """Every shape by itself, in several counts."""
    most = np.where(columns.used > 0, counts // np.maximum(columns.used, 1), np.iinfo(np.int64).max).min(axis=1)
    number = np.ceil(most[:, None] * (np.arange(1, shares + 1) / shares)).astype(np.int64)
    distinct = np.concatenate([number[:, :1] > 0, np.diff(number, axis=1) > 0], axis=1)
    row, option = np.nonzero(distinct)
    count = number[row, option]
    return Grown(
        rows=row[:, None],
        counts=count[:, None],
        free=counts - count[:, None] * columns.used[row],
        rate=count * columns.sequences_per_s[row],
        lost=count * columns.lost_sequences[row],
        pipelines=(count * columns.most_replicas[row]).astype(float),
        parameters=columns.parameters[row],
        least_tp=columns.least_tp[row].astype(float),
        sharded=columns.parameters[row] / columns.least_tp[row],
    )


def _extended(state: Grown, columns: ShapeColumns, promise: _Promise, width: int) -> Grown:
    """The best pipeline sets with one more part, in as many pipelines as the free devices hold."""
    best: Grown | None = None
    for start in range(0, len(state), BLOCK):
        block = state.take(slice(start, start + BLOCK))
        count = _most(block.free, columns.used)
        np.put_along_axis(count, block.rows[:, -1:], 0, axis=1)
        parent, row = np.nonzero(count)
        if not len(parent):
            continue
        number = count[parent, row].astype(np.int64)
        tp = columns.least_tp[row]
        grown = Grown(
            rows=np.column_stack([block.rows[parent], row]),
            counts=np.column_stack([block.counts[parent], number]),
            free=block.free[parent] - number[:, None] * columns.used[row],
            rate=block.rate[parent] + number * columns.sequences_per_s[row],
            lost=block.lost[parent] + number * columns.lost_sequences[row],
            pipelines=block.pipelines[parent] + number * columns.most_replicas[row],
            parameters=np.maximum(block.parameters[parent], columns.parameters[row]),
            least_tp=np.minimum(block.least_tp[parent], tp),
            sharded=np.maximum(block.sharded[parent], columns.parameters[row] / tp),
        )
        kept = promise.best(grown, width)
        best = promise.best(best.join(kept), width) if best else kept
    return best if best else state.take(slice(0, 0))


def _most(
    free: Int[np.ndarray, "sets devices"], used: Int[np.ndarray, "rows devices"]
) -> Float[np.ndarray, "sets rows"]:
    """Pipelines of each shape that the free devices of each pipeline set hold."""
    most = np.full((len(free), len(used)), np.inf, np.float32)
    for kind in range(free.shape[1]):
        wanted = np.flatnonzero(used[:, kind])
        # Quicker than whole numbers, and exact below 2^24: a quotient of whole numbers rounds to no larger one.
        fits = np.floor(free[:, kind, None].astype(np.float32) / used[wanted, kind].astype(np.float32))
        most[:, wanted] = np.minimum(most[:, wanted], fits)
    return most
