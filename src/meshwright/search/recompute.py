"""Which layers to recompute: chosen per layer, not per plan, by dynamic programming on every worker.

The pipeline gets no slower when a worker gets quicker, so every worker on its own spends as little time on recomputing
as its memory allows. On one worker this is a knapsack: each layer takes one option (time, bytes); states that another
one beats in both are dropped, so the answer is exact. With several chunks per worker, each chunk is counted at its own
peak, which may ask for a little more recompute than needed.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise

import numpy as np

from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layers.item_costs import item_costs
from meshwright.estimate.layers.items import FULL, NONE, SELECTIVE, Item
from meshwright.estimate.layout import ModelLayout, expand
from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.estimate.price import estimate_plans, strategy_columns
from meshwright.estimate.result import StepEstimate
from meshwright.library.software import software
from meshwright.schedules import schedule_named
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import LayerSpec, ModelSpec
from meshwright.specs.plan import ExecutionPlan, StrategyRun
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import LayerStrategy, Recompute
from meshwright.specs.workload import Workload

ROUNDED = 1e-9
"""Times that are closer than this share are equal."""
NORMS = Recompute(kind="selective", modules=("core_attn", "layernorm"))
DENSE = Recompute(kind="selective", modules=("core_attn", "layernorm", "mlp"))
EXPERTS = Recompute(kind="selective", modules=("core_attn", "layernorm", "moe_act"))


def options_of(layer: LayerSpec) -> tuple[Recompute, ...]:
    """What a layer may recompute, from nothing to all of it."""
    return (NONE, SELECTIVE, NORMS, EXPERTS if layer.mlp.routed_experts else DENSE, FULL)


@dataclass(frozen=True, slots=True)
class RecomputeOption:
    """One layer's option."""

    recompute: Recompute
    time_s: float
    kept_bytes: float
    """Summed over what is in flight at the worker's peak."""
    transient_bytes: float = 0.0
    """Working memory of its backward."""


@dataclass(frozen=True, slots=True)
class _State:
    time_s: float
    kept_bytes: float
    picked: tuple[int, ...]


def cheapest_choices(layers: list[tuple[RecomputeOption, ...]], budget_bytes: float) -> tuple[int, ...] | None:
    """The option of each layer that costs the least time within a budget of bytes.

    Args:
        layers: options of each layer.
        budget_bytes: the budget in bytes for all together.

    Returns:
        Index of each layer's option, None if not even the smallest fit.
    """
    least_left = [0.0]
    for options in reversed(layers):
        least_left.append(least_left[-1] + min(option.kept_bytes for option in options))
    least_left.reverse()
    relaxed = _Relaxed.of(layers)
    limit_s = relaxed.reachable_s(budget_bytes) * (1.0 + ROUNDED)
    return _cheapest(layers, budget_bytes, least_left, relaxed, limit_s) or _cheapest(
        layers, budget_bytes, least_left, relaxed, math.inf
    )


def _cheapest(
    layers: list[tuple[RecomputeOption, ...]],
    budget_bytes: float,
    least_left: list[float],
    relaxed: _Relaxed,
    limit_s: float,
) -> tuple[int, ...] | None:
    """The cheapest choices that take no longer than a limit; None where there are none."""
    states = [_State(0.0, 0.0, ())]
    for number, options in enumerate(layers):
        room = budget_bytes - least_left[number + 1]
        grown = [
            _State(state.time_s + option.time_s, state.kept_bytes + option.kept_bytes, (*state.picked, index))
            for state in states
            for index, option in enumerate(options)
            if state.kept_bytes + option.kept_bytes <= room
        ]
        states = [
            state
            for state in _undominated(grown)
            if state.time_s + relaxed.least_s(number + 1, budget_bytes - state.kept_bytes) <= limit_s
        ]
        if not states:
            return None
    return states[0].picked


@dataclass(frozen=True, slots=True, eq=False)
class _Relaxed:
    """The least time of the layers from each on where a part of a layer may take another option than the rest of it.

    Every layer takes its quickest option, and bytes are saved where they cost the fewest seconds first. No choice of
    whole layers is quicker; one that saves whole steps is at most one step slower.
    """

    rates: list[float]
    """Seconds per byte saved by each kind of step from one option to the next smaller, ascending."""
    steps: list[tuple[float, float]]
    """Bytes and seconds of one such step of one layer."""
    saved: list[list[float]]
    """Bytes saved by all steps up to each, of the layers from each on."""
    added: list[list[float]]
    """Seconds that these add."""
    quickest: list[tuple[float, float]]
    """Seconds and bytes with the quickest options, of the layers from each on."""

    @staticmethod
    def of(layers: list[tuple[RecomputeOption, ...]]) -> _Relaxed:
        """The relaxation for layers with their options; equal layers share their steps."""
        hulls = [_hull(options) for options in layers]
        places: dict[tuple[tuple[float, float], ...], int] = {}
        for hull in hulls:
            places.setdefault(hull, len(places))
        steps = sorted(
            ((more_s - less_s) / (large - small), place, large - small, more_s - less_s)
            for hull, place in places.items()
            for (less_s, large), (more_s, small) in pairwise(hull)
        )
        counts = [0] * len(places)
        quickest, saved, added = [(0.0, 0.0)], [[0.0] * len(steps)], [[0.0] * len(steps)]
        for hull in reversed(hulls):
            counts[places[hull]] += 1
            quickest.append((quickest[-1][0] + hull[0][0], quickest[-1][1] + hull[0][1]))
            saved.append(list(accumulate(counts[place] * size for _, place, size, _ in steps)))
            added.append(list(accumulate(counts[place] * time_s for _, place, _, time_s in steps)))
        return _Relaxed(
            rates=[rate for rate, *_ in steps],
            steps=[(size, time_s) for *_, size, time_s in steps],
            saved=saved[::-1],
            added=added[::-1],
            quickest=quickest[::-1],
        )

    def least_s(self, number: int, room_bytes: float) -> float:
        """No choice of the layers from a number on takes less within so many bytes."""
        time_s, size = self.quickest[number]
        over = size - room_bytes
        if over <= 0:
            return time_s
        saved, added = self.saved[number], self.added[number]
        place = bisect_left(saved, over)
        if place == len(saved):
            return time_s + (added[-1] if added else 0.0)
        before, before_s = (saved[place - 1], added[place - 1]) if place else (0.0, 0.0)
        return time_s + before_s + (over - before) * self.rates[place]

    def reachable_s(self, room_bytes: float) -> float:
        """Time of a choice that is possible: whole steps until it fits; infinite where none is found."""
        time_s, size = self.quickest[0]
        over = size - room_bytes
        if over <= 0:
            return time_s
        saved, added = self.saved[0], self.added[0]
        place = bisect_left(saved, over)
        if place == len(saved):
            return math.inf
        before, before_s = (saved[place - 1], added[place - 1]) if place else (0.0, 0.0)
        step, step_s = self.steps[place]
        return time_s + before_s + math.ceil((over - before) / step) * step_s


def _hull(options: tuple[RecomputeOption, ...]) -> tuple[tuple[float, float], ...]:
    """Seconds and bytes of the options that no mixture of others beats, the quickest first."""
    points = sorted({(option.time_s, option.kept_bytes) for option in options})
    hull = [points[0]]
    while smaller := [point for point in points if point[1] < hull[-1][1]]:
        last = hull[-1]
        hull.append(min(smaller, key=lambda point: ((point[0] - last[0]) / (last[1] - point[1]), point[1])))
    return tuple(hull)


def _undominated(states: list[_State]) -> list[_State]:
    """States no other one beats in time and bytes, quickest first."""
    kept: list[_State] = []
    for state in sorted(states, key=lambda s: (s.time_s, s.kept_bytes)):
        if not kept or state.kept_bytes < kept[-1].kept_bytes * (1.0 - 1e-12):
            kept.append(state)
    return kept


def refine_recompute(
    rows: Sequence[PlanRow], model: ModelSpec, cluster: ClusterSpec, workload: Workload
) -> list[tuple[ExecutionPlan, StepEstimate] | None]:
    """The plans of some rows with the recompute of every layer chosen anew.

    Args:
        rows: degrees, of one tensor strategy; their own recompute is replaced.
        model: the model.
        cluster: one group of equal nodes.
        workload: the step.

    Returns:
        Plan and estimate of each row; None if no choice fits, or if the row needs no recompute at all.
    """
    bare = [replace(row, recompute="none", recompute_layers=0) for row in rows]
    plans = [expand(row, model, workload.seq_len) for row in bare]
    estimates = estimate_plans(plans, model, cluster, workload)
    large = [number for number, estimate in enumerate(estimates) if estimate.fits != "yes"]
    lost = software(workload.software, workload.calibration).fragmentation
    limit_bytes = cluster.groups[0].device.memory_bytes * (1.0 - TIGHT_SHARE)
    refined: dict[int, ExecutionPlan] = {}
    for number, layers in zip(
        large, _options_of_layers([bare[n] for n in large], model, cluster, workload), strict=True
    ):
        picked = _picked(bare[number], plans[number], estimates[number], layers, limit_bytes, lost)
        if picked is not None:
            refined[number] = _with_recompute(plans[number], bare[number].strategy(), picked)
    priced = estimate_plans([*refined.values()], model, cluster, workload)
    found = dict(zip(refined, zip(refined.values(), priced, strict=True), strict=True))
    return [found.get(number) for number in range(len(rows))]


@dataclass(frozen=True, slots=True, eq=False)
class _LayerOptions:
    """What every layer of a plan may recompute, one micro-batch in flight, and what the edges need."""

    kinds: list[tuple[RecomputeOption, ...]]
    """Options by kind of layer."""
    kind: list[int]
    """Kind of each layer, by number."""
    embedding_bytes: float
    """Working memory."""
    head_bytes: float
    _alive: dict[tuple[int, int], tuple[RecomputeOption, ...]] = field(default_factory=dict)

    def of(self, layer: int, alive: int) -> tuple[RecomputeOption, ...]:
        """Options of a layer with so many micro-batches in flight; equal layers share them."""
        key = kind, _ = self.kind[layer], alive
        if key not in self._alive:
            self._alive[key] = tuple(replace(one, kept_bytes=alive * one.kept_bytes) for one in self.kinds[kind])
        return self._alive[key]


def _options_of_layers(
    rows: Sequence[PlanRow], model: ModelSpec, cluster: ClusterSpec, workload: Workload
) -> list[_LayerOptions]:
    """Options of each row, whose layers are priced together."""
    if not rows:
        return []
    layout = ModelLayout.of(model, workload.seq_len)
    options = [options_of(kind) for kind in layout.kinds]
    items = (
        *(Item("layer", kind, option) for kind, own in zip(layout.kinds, options, strict=True) for option in own),
        Item("embedding"),
        Item("head"),
    )
    columns = strategy_columns(
        [row.strategy() for row in rows], np.array([row.mbs for row in rows], dtype=float), workload
    )
    costs = item_costs(items, columns, model, hardware_of(cluster.groups[0], workload), workload)
    time_s = costs.forward_s + costs.backward_s
    first = [0, *accumulate(len(own) for own in options)]
    return [
        _LayerOptions(
            kinds=[
                tuple(
                    RecomputeOption(*one)
                    for one in zip(own, *(part[start:end] for part in parts), strict=True)
                    if one[0] != FULL or not row.ep_overlap.startswith("paired")  # it would repeat its exchanges
                )
                for own, start, end in zip(options, first, first[1:], strict=False)
            ],
            kind=np.diff(layout.kinds_before, axis=0).argmax(axis=1).tolist(),
            embedding_bytes=parts[2][-2],
            head_bytes=parts[2][-1],
        )
        for row, *parts in zip(
            rows, time_s.tolist(), costs.kept_bytes.tolist(), costs.transient_bytes.tolist(), strict=True
        )
    ]


def _picked(
    row: PlanRow, plan: ExecutionPlan, estimate: StepEstimate, layers: _LayerOptions, limit_bytes: float, lost: float
) -> dict[int, Recompute] | None:
    """What each layer recomputes; None if a worker has no room whatever its layers recompute.

    Args:
        row: the row of the plan.
        plan: the plan with nothing recomputed.
        estimate: the estimate of the plan.
        layers: their options.
        limit_bytes: the limit in bytes that a worker may use.
        lost: the share lost to fragmentation, over what is allocated.
    """
    chosen: dict[int, Recompute] = {}
    in_flight = schedule_named(row.schedule).in_flight(row.pp, row.micro_batches, row.vpp)
    for worker, stage, vectors in zip(plan.pipelines[0].workers, estimate.stages, in_flight, strict=True):
        alive = vectors.max(axis=0).tolist()
        held = [(slot, layer) for slot, chunk in enumerate(worker.chunks) for layer in _layers(chunk.layers)]
        table = [layers.of(layer, alive[slot]) for slot, layer in held]
        edges = (
            *(layers.embedding_bytes for chunk in worker.chunks if chunk.embedding),
            *(layers.head_bytes for chunk in worker.chunks if chunk.head),
        )
        picked = _cheapest_with_room(table, dict(stage.memory_bytes), limit_bytes, max(edges, default=0.0), lost)
        if picked is None:
            return None
        for (_, layer), options, option in zip(held, table, picked, strict=True):
            chosen[layer] = options[option].recompute
    return chosen


def _with_recompute(plan: ExecutionPlan, bare: LayerStrategy, chosen: dict[int, Recompute]) -> ExecutionPlan:
    """A plan of one pipeline whose layers recompute what is chosen for each."""
    strategies: dict[LayerStrategy, int] = {}
    workers = []
    for worker in plan.pipelines[0].workers:
        chunks = []
        for chunk in worker.chunks:
            runs: list[StrategyRun] = []
            for layer in _layers(chunk.layers):
                index = strategies.setdefault(replace(bare, recompute=chosen[layer]), len(strategies))
                if runs and runs[-1].strategy == index:
                    runs[-1] = StrategyRun(layers=runs[-1].layers + 1, strategy=index)
                else:
                    runs.append(StrategyRun(layers=1, strategy=index))
            chunks.append(replace(chunk, runs=tuple(runs)))
        workers.append(replace(worker, chunks=tuple(chunks)))
    pipeline = replace(plan.pipelines[0], workers=tuple(workers))
    return ExecutionPlan(strategies=tuple(strategies), pipelines=(pipeline,))


def _layers(ranges: tuple[tuple[int, int], ...]) -> list[int]:
    return [layer for first, last in ranges for layer in range(first, last + 1)]


def _cheapest_with_room(
    table: list[tuple[RecomputeOption, ...]],
    memory: dict[str, float],
    limit_bytes: float,
    edge_bytes: float,
    lost: float,
) -> tuple[int, ...] | None:
    """The cheapest choices of a worker, tried for every size its working memory may have.

    Args:
        table: options of each layer; the first is no recompute, as in `memory`.
        memory: bytes by kind of the worker without recompute.
        limit_bytes: the limit in bytes of the device.
        edge_bytes: working memory of the embedding or head, if the worker holds one.
        lost: the share lost to fragmentation, over what is allocated.
    """
    states = memory["weights"] + memory["gradients"] + memory["optimizer"]
    other = memory["activations"] - sum(options[0].kept_bytes for options in table)
    context = memory["overhead"] - lost * (states + memory["activations"] + memory["transient"])
    room = (limit_bytes - memory["comm_buffers"] - context) / (1.0 + lost) - states - other
    least = max(edge_bytes, max(options[0].transient_bytes for options in table))
    gathered = memory["transient"] - least
    best: tuple[float, tuple[int, ...]] | None = None
    for size in sorted({max(option.transient_bytes, least) for options in table for option in options}):
        allowed = [
            [index for index, option in enumerate(options) if option.transient_bytes <= size] for options in table
        ]
        narrowed = [tuple(options[i] for i in here) for options, here in zip(table, allowed, strict=True)]
        picked = cheapest_choices(narrowed, room - size - gathered)
        if picked is not None:
            indices = tuple(here[i] for here, i in zip(allowed, picked, strict=True))
            time_s = sum(options[i].time_s for options, i in zip(table, indices, strict=True))
            if best is None or time_s < best[0]:
                best = (time_s, indices)
    return None if best is None else best[1]
