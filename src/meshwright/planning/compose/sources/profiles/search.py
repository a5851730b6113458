"""The best pipeline set of pipelines for a job on several kinds of device, from measured profiles."""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from meshwright.planning.compose.sources.profiles.beam import grow, ring_gb_s
from meshwright.planning.compose.sources.profiles.bounds import shapes_bound_s
from meshwright.planning.compose.sources.profiles.columns import ShapeColumns, joined_columns, split_columns
from meshwright.planning.compose.sources.profiles.costs import ELEMENT_BYTES, ProfileCosts
from meshwright.planning.compose.sources.profiles.improve import best_improved, merged_set
from meshwright.planning.compose.sources.profiles.pipeline_set import EqualPipelines, ShapeSet
from meshwright.planning.compose.sources.profiles.pruning import Prices, device_prices, least_times, undominated_shapes
from meshwright.planning.compose.sources.profiles.seeds import seeds
from meshwright.planning.compose.sources.profiles.set_price import SetPricer, SetTime
from meshwright.planning.compose.sources.profiles.stage_kinds import StageKinds, stage_costs, stage_kinds
from meshwright.planning.compose.sources.profiles.stage_sequences import sequences
from meshwright.shapes import Float, Int
from meshwright.units import GIGA

USEFUL = 40
"""Pipeline sets whose shapes others may take over."""
FEW_KINDS = 3
"""Kinds of device beyond which more pipeline sets are priced."""
ALONE = 64
"""Pipeline sets of equal pipelines priced first."""
ALIKE = 6
"""Shapes of one device count that are composed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeEffort:
    """How far to look; more takes longer and never finds worse."""

    most_stages: int = 8
    most_replicas: int = 4
    parameter_limits: int = 8
    shapes: int = 800
    parts: int = 3
    width: int = 150
    shares: int = 8
    starts: int = 16
    """Pipeline sets that the fractional optimum suggests: its best rounded ones, and these filled up."""
    grown: int = 12
    """Starts that grow."""
    priced: int = 600
    improved: int = 14

    @property
    def in_part(self) -> ShapeEffort:
        """Where a part of the cluster is only compared with."""
        return replace(self, shapes=self.shapes // 2, width=self.width // 3, starts=8, priced=150, improved=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComposedShapes:
    """The best pipeline set and how it was found."""

    one_set: ShapeSet
    time: SetTime
    columns: int
    pruned: dict[str, int]
    priced: int


def compose(costs: ProfileCosts, global_batch: int, effort: ShapeEffort = ShapeEffort()) -> ComposedShapes | None:
    """The best pipeline set found; None where none fits.

    Args:
        costs: the model on the cluster's devices.
        global_batch: sequences per step.
        effort: how far to look.
    """
    return ShapeComposer(costs, global_batch, effort).best()


class ShapeComposer:
    """Finds the best pipeline sets of one job, on all kinds of device or on some; shapes are made and priced once."""

    def __init__(self, costs: ProfileCosts, global_batch: int, effort: ShapeEffort = ShapeEffort()) -> None:
        self.costs = costs
        self.effort = effort
        self.pricer = SetPricer(costs, global_batch)
        self._counts = np.array([kind.count for kind in costs.kinds.values()])
        self._kinds = stage_kinds(costs, effort.most_replicas)
        self._every = _columns(costs, self._kinds, self._counts, effort)
        self._kept = undominated_shapes(self._every) if self._every else None

    def bound_s(self) -> float:
        """Seconds below which no pipeline set of these shapes comes; infinite where nothing fits."""
        if self._every is None:
            return math.inf
        # Dominated ones too: what dominates them may have gradients of more bytes per rank.
        return shapes_bound_s(self._every, self.costs, self._counts, self.pricer.global_batch)

    def best(self, counts: Mapping[str, int] | None = None) -> ComposedShapes | None:
        """The best pipeline set found; None where none fits.

        Args:
            counts: most devices of each kind it may use, others none; all devices by default.
        """
        if self._every is None or self._kept is None:
            return None
        costs, effort, pricer, limits = self.costs, self.effort, self.pricer, self._counts
        if counts is not None:
            limits = np.minimum(limits, [counts.get(name, 0) for name in costs.kinds])
            effort, pricer = effort.in_part, pricer.limited(limits.tolist())
        inside = (self._every.used <= limits).all(axis=1)
        columns = self._every.take(np.flatnonzero(inside & self._kept))
        alone = _best_alone(columns, self._kinds, limits, pricer)
        if alone is None:
            return None
        prices = device_prices(columns, limits)
        least_s = least_times(columns, prices, limits, pricer.global_batch, ring_gb_s(costs)[1])
        quick = np.flatnonzero(least_s < alone[1])
        near = _promising(
            columns.take(quick), least_s[quick], prices, limits, pricer.global_batch, costs, effort.shapes
        )
        pruned = {
            "dominated": int(inside.sum()) - len(columns),
            "bound": len(columns) - len(quick),
            "narrowed": len(quick) - len(near),
        }
        starts, full = seeds(columns, costs, limits, pricer.global_batch, effort.starts)
        near = np.union1d(quick[near], [row for start in (*starts, *full) for row, _ in start]).astype(np.int64)
        place = {row: index for index, row in enumerate(near.tolist())}
        columns = columns.take(near)
        full = list(dict.fromkeys(tuple((place[row], number) for row, number in one) for one in full))
        grown = grow(
            columns,
            costs,
            prices,
            limits,
            pricer.global_batch,
            starts=[[(place[row], number) for row, number in start] for start in starts[: effort.grown]],
            steps=effort.parts,
            width=effort.width,
            shares=effort.shares,
        )[: effort.priced * max(1, int(np.count_nonzero(limits)) - FEW_KINDS)]
        shapes = {row: columns.shape(row, self._kinds) for rows in (*full, *grown) for row, _ in rows}
        sets = [alone[0], *(merged_set(EqualPipelines(shapes[row], n) for row, n in rows) for rows in (*full, *grown))]
        # Of both ways, since sets that grew are many and alike.
        both = {one: None for some in (sets[: 1 + len(full)], sets) for one in _quickest(pricer, some, USEFUL // 2)}
        ranked = _quickest(pricer, list(both), USEFUL)
        useful = list({part.shape: None for one in ranked for part in one.parts})
        best = best_improved(pricer, ranked[: effort.improved], useful)
        time = pricer.price(best)
        assert time is not None
        return ComposedShapes(one_set=best, time=time, columns=int(inside.sum()), pruned=pruned, priced=len(sets))


def _quickest(pricer: SetPricer, sets: list[ShapeSet], number: int) -> list[ShapeSet]:
    """The pipeline sets that take least, the quickest first."""
    best: list[tuple[float, int]] = []
    for index, one in enumerate(sets):
        time = pricer.price(one, best[-1][0] if len(best) == number else math.inf)
        if time is not None:
            insort(best, (time.step_time_s, index))
            del best[number:]
    return [sets[index] for _, index in best]


def _columns(
    costs: ProfileCosts, kinds: StageKinds, counts: Int[np.ndarray, "devices"], effort: ShapeEffort
) -> ShapeColumns | None:
    """All shapes: each sequence at each micro-batch under each limit of parameters per stage."""
    tables = sequences(kinds, counts, min(effort.most_stages, costs.num_layers))
    profiled = {b for s in kinds.shapes for b in costs.profile.micro_batches(costs.kinds[s.device].device, s.tp)}
    micro_batches = sorted({b * s.replicas for s in kinds.shapes for b in profiled})
    limits = np.linspace(1.0, 0.12, effort.parameter_limits) * float(costs.whole.parameters.sum())
    priced = {b: stage_costs(costs, kinds, b) for b in micro_batches}
    parts = []
    for micro_batch, table in product(micro_batches, tables):
        prices = priced[micro_batch]
        for limit in limits:
            part = split_columns(costs, kinds, prices, table, float(limit))
            if part is None:
                break
            parts.append(part)
            # A tighter limit changes only the splits that exceed it.
            table = part.stages[part.parameters > limits[limits < limit].max(initial=0.0)]
    return joined_columns(parts) if parts else None


def _promising(
    columns: ShapeColumns,
    least_s: Float[np.ndarray, "rows"],
    prices: Prices,
    counts: Int[np.ndarray, "devices"],
    global_batch: int,
    costs: ProfileCosts,
    most: int,
) -> Int[np.ndarray, "taken"]:
    """Half of the shapes by their bound, half by the step they promise in as many pipelines as fit."""
    number = _most_pipelines(columns, counts)
    free = counts - number[:, None] * columns.used
    rate = number * columns.sequences_per_s + prices.of(free)
    pipelines = number * columns.most_replicas
    ring = 2 * (pipelines - 1) / pipelines * ELEMENT_BYTES / (GIGA * np.mean(ring_gb_s(costs)))
    filled_s = (global_batch + number * columns.lost_sequences) / rate + ring * columns.parameters / columns.most_tp
    orders = [np.argsort(one, kind="stable") for one in (least_s, filled_s)]
    return np.unique(np.concatenate([_varied(columns.used, order)[: most // 2] for order in orders]))


def _varied(used: Int[np.ndarray, "rows devices"], order: Int[np.ndarray, "rows"]) -> Int[np.ndarray, "taken"]:
    """The first few rows of each device count, in order: shapes of one size are alike."""
    seen: dict[tuple[int, ...], int] = {}
    taken = []
    for row, key in zip(order.tolist(), map(tuple, used[order].tolist()), strict=True):
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= ALIKE:
            taken.append(row)
    return np.array(taken, dtype=np.int64)


def _most_pipelines(columns: ShapeColumns, counts: Int[np.ndarray, "devices"]) -> Int[np.ndarray, "rows"]:
    """Equal pipelines the cluster holds."""
    fits = np.where(columns.used > 0, counts // np.maximum(columns.used, 1), np.iinfo(np.int64).max)
    return fits.min(axis=1)


def _best_alone(
    columns: ShapeColumns, kinds: StageKinds, counts: Int[np.ndarray, "devices"], pricer: SetPricer
) -> tuple[ShapeSet, float] | None:
    """The quickest pipeline set of equal pipelines among the most promising."""
    number = _most_pipelines(columns, counts)
    order = np.argsort(-number * columns.sequences_per_s, kind="stable")[:ALONE]
    best: tuple[ShapeSet, float] | None = None
    for row in order:
        one_set = ShapeSet((EqualPipelines(columns.shape(int(row), kinds), int(number[row])),))
        time = pricer.price(one_set)
        if time is not None and (best is None or time.step_time_s < best[1]):
            best = one_set, time.step_time_s
    return best
