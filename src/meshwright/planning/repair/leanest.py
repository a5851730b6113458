"""The plans of a space that need the least memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.budget import spent
from meshwright.errors import InputError
from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.layout import expand
from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.rules.legality import row_problems
from meshwright.schedules import Schedule
from meshwright.search.away import offload_spaces, tensor_spaces
from meshwright.search.bound import RowBounds
from meshwright.search.geometry import ShapeFactory
from meshwright.search.grid import Grid
from meshwright.search.legal_rows import build_grid
from meshwright.search.shardings import Sharding, keeps_order, shardings_for
from meshwright.search.space import Space
from meshwright.shapes import Int
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.row import PlanRow, recompute_fields
from meshwright.specs.workload import Workload

LEANEST_ROWS = 48
"""Rows of the lowest memory bounds that are priced to find the plan that needs the least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leanest:
    """The plan that needs the least memory."""

    row: PlanRow
    estimate: StepEstimate

    @property
    def over_bytes(self) -> float:
        """Missing on the fullest stage; negative if it fits."""
        return self.estimate.fullest.peak_memory_bytes - self.estimate.fullest.capacity_bytes

    @property
    def length_bytes(self) -> float:
        """What shorter sequences could save at most on the fullest stage."""
        kinds = dict(self.estimate.fullest.memory_bytes)
        return kinds["activations"] + kinds["transient"]


Priced = Callable[[PlanRow, ModelSpec, ClusterSpec, Workload], Leanest | None]
"""The plan of a row; None where its degrees are not legal."""


def leanest(
    model: ModelSpec, cluster: ClusterSpec, workload: Workload, space: Space, priced: Priced | None = None
) -> list[Leanest]:
    """The plans of a space with the lowest memory bounds, the one that needs the least memory first.

    Args:
        model: the model.
        cluster: decides the degrees.
        workload: the step.
        space: pinned axes hold here too; of several values of what is away, the one that moves the most.
        priced: `priced_row`, or the same that keeps what it has priced.
    """
    priced = priced or priced_row
    try:
        space = offload_spaces(tensor_spaces(space)[0], cluster, workload)[-1]
    except InputError:
        return []
    grid = build_grid(model, workload, cluster.devices, space)
    grid = grid.take(grid.mbs == grid.mbs.min()) if grid.rows else grid
    if not grid.rows:
        return []
    bounds = RowBounds(grid, model, hardware_of(cluster.groups[0], workload), workload)
    factory = ShapeFactory.of(model, workload, space)
    found: list[Leanest] = []
    # Traffic that is hidden needs no more memory, and takes less time.
    order = np.lexsort((-grid.overlap, -grid.cp, bounds.peak_bytes))
    names = space.pinned("schedule")
    by_count = names is not None and not any(schedule.steady_alive for schedule in factory.schedules)
    for index in _one_a_shape(grid, order, by_count=by_count)[:LEANEST_ROWS]:
        plain = grid.plan_row(index, pp=int(grid.pp[index]), gbs=workload.global_batch, offload=grid.offload)
        for row in _lean_settings(plain, space, factory):
            if found and spent():
                break
            lean = priced(row, model, cluster, workload)
            if lean:
                found.append(lean)
    return sorted(found, key=lambda lean: lean.over_bytes)


def _one_a_shape(grid: Grid, order: Int[np.ndarray, "rows"], *, by_count: bool) -> list[int]:
    """The first row of each (tp, pp): within one, context and expert degrees change little.

    `by_count` keeps one of each number of micro-batches too, for schedules that keep them all alive.
    """
    first: dict[tuple[int, int, int], int] = {}
    for index in order:
        first.setdefault((int(grid.tp[index]), int(grid.pp[index]), int(grid.m[index]) if by_count else 0), int(index))
    return list(first.values())


def _lean_settings(row: PlanRow, space: Space, factory: ShapeFactory) -> Iterator[PlanRow]:
    """The settings of the space that may need the least memory."""
    shardings = shardings_for(row.dp, row.cp_degree, space)
    lean = _lean_shardings([one for one in shardings if keeps_order(one.name) or not row.prioritised])
    for schedule, chunks in _lean_pipelines(factory.pipelines(row.pp, row.micro_batches)):
        for recompute, layers in _lean_recomputes(factory.recomputes(row.pp, chunks)):
            for sharding in lean:
                yield replace(
                    row,
                    schedule=schedule.token,
                    vpp=chunks,
                    **recompute_fields(recompute),
                    recompute_layers=layers,
                    **sharding.settings(row.cp_degree),
                )


def _lean_pipelines(found: list[tuple[Schedule, int]]) -> list[tuple[Schedule, int]]:
    """The one of a default search that keeps the least alive; else the fewest and the most chunks of each schedule."""
    lean = [(one, v) for one, v in found if one.searched_by_default and one.steady_alive and v == 1]
    if lean:
        return lean
    chunks: dict[str, list[tuple[Schedule, int]]] = {}
    for schedule, count in sorted(found, key=lambda pair: pair[1]):
        chunks.setdefault(schedule.token, []).append((schedule, count))
    return [pair for pairs in chunks.values() for pair in dict.fromkeys((pairs[0], pairs[-1]))]


def _lean_recomputes(found: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """All recomputed, else whatever there is."""
    return [option for option in found if option[0] == "full"] or found[-2:]


def _lean_shardings(found: Sequence[Sharding]) -> list[Sharding]:
    """Everything sharded over all ranks, else whatever there is with the largest groups."""
    whole = [sharding for sharding in found if sharding.kind.shards_all]
    return whole or [*(sharding for sharding in found if not sharding.kind.grouped), *found[-1:]]


def priced_row(row: PlanRow, model: ModelSpec, cluster: ClusterSpec, workload: Workload) -> Leanest | None:
    """A row with its estimate; None if it is not legal."""
    if row_problems(row, model, workload.seq_len, cluster.devices):
        return None
    plan = expand(row, model, workload.seq_len)
    return Leanest(row=row, estimate=estimate_plan(plan, model, cluster, workload))
