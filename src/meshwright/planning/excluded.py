"""Plans that a search left out, priced in full: the quickest of those that do not fit, and of those that are slower."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from meshwright.estimate.hardware import hardware_of
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.planning.repair.leanest import Leanest, priced_row
from meshwright.search.bound import RowBounds
from meshwright.search.geometry import ShapeFactory
from meshwright.search.grid import Grid
from meshwright.search.legal_rows import build_grid
from meshwright.search.shardings import shardings_for
from meshwright.search.space import Space
from meshwright.shapes import Int
from meshwright.specs.row import PlanRow, recompute_fields

Reason = Literal["memory", "time"]
MOST_PRICED = 240
"""Plans that are priced to find examples: half a second of them."""
PRICED_OF_A_ROW = 4
ROWS_OF_A_LAYOUT = 3
MOST_SHOWN = 6


def excluded_plans(inputs: JobInputs, space: Space, best_s: float, reason: Reason) -> tuple[Leanest, ...]:
    """Examples of what a search excluded, one a layout of degrees, the quickest first.

    Args:
        inputs: the question, on one kind of device.
        space: the space that was searched.
        best_s: step of its best plan.
        reason: `memory` for plans that do not fit, `time` for plans that fit and take longer.
    """
    model, cluster, workload = inputs.model, inputs.cluster, inputs.workload
    grid = build_grid(model, workload, cluster.devices, space)
    if not grid.rows:
        return ()
    hardware = hardware_of(cluster.groups[0], workload)
    bounds = RowBounds(grid, model, hardware, workload)
    # Large micro-batches need so much more that nobody would think that they fit.
    near = grid.mbs == grid.mbs.min() if reason == "memory" else bounds.peak_bytes <= hardware.memory_bytes
    order = np.argsort(np.where(near, bounds.time_s, np.inf), kind="stable")[: int(near.sum())]
    found: dict[tuple[int, ...], Leanest] = {}
    for row in _rows(grid, _spread(grid, order), space, ShapeFactory.of(model, workload, space), inputs):
        layout = (row.tp, row.pp, row.ep)
        if layout in found or len(found) >= MOST_SHOWN:
            continue
        one = priced_row(row, model, cluster, workload)
        if one is not None and _is_out(one, best_s, reason):
            found[layout] = one
    return tuple(sorted(found.values(), key=lambda one: one.estimate.step_time_s))


def _spread(grid: Grid, order: Int[np.ndarray, "rows"]) -> list[int]:
    """The first few rows of each (tp, pp, ep), in order: beside them the other degrees change little."""
    seen = Counter[tuple[int, int, int]]()
    kept = []
    for index in order:
        key = (int(grid.tp[index]), int(grid.pp[index]), int(grid.ep[index]))
        seen[key] += 1
        if seen[key] <= ROWS_OF_A_LAYOUT:
            kept.append(int(index))
    return kept[: MOST_PRICED // PRICED_OF_A_ROW]


def _is_out(one: Leanest, best_s: float, reason: Reason) -> bool:
    fits = one.estimate.fits != "no"
    return not fits if reason == "memory" else fits and one.estimate.step_time_s > best_s


def _rows(
    grid: Grid, order: Sequence[int], space: Space, factory: ShapeFactory, inputs: JobInputs
) -> Iterator[PlanRow]:
    """Rows in order, each with the settings that keep the most and the least memory."""
    for at in order:
        plain = grid.plan_row(at, pp=int(grid.pp[at]), gbs=inputs.workload.global_batch, offload=grid.offload)
        pipelines = factory.pipelines(plain.pp, plain.micro_batches)
        shardings = shardings_for(plain.dp, plain.cp_degree, space)
        if not pipelines or not shardings:
            continue
        schedule, chunks = min(pipelines, key=lambda pair: (not pair[0].steady_alive, pair[1]))
        recomputes = factory.recomputes(plain.pp, chunks)
        for recompute, layers in (recomputes[0], recomputes[-1]):
            for sharding in dict.fromkeys((shardings[0], shardings[-1])):
                yield replace(
                    plain,
                    schedule=schedule.token,
                    vpp=chunks,
                    **recompute_fields(recompute),
                    recompute_layers=layers,
                    **sharding.settings(plain.cp_degree),
                )
