"""The chunks of a plan's workers as counts of items, and whether its schedule places and recomputes them so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.errors import Problem
from meshwright.estimate.layout import ModelLayout
from meshwright.estimate.pipeline import StageCounts, needs_bare
from meshwright.estimate.rows import ItemPlaces
from meshwright.schedules import PLAN_SCHEDULES, Schedule
from meshwright.schedules.plan_rows import parameter_problems, schedule_of
from meshwright.shapes import Float
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, Worker
from meshwright.specs.strategy import LayerStrategy


def schedule_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """What keeps a pipeline from being priced because of its schedule.

    Args:
        pipeline: the pipeline of a plan.
    """
    schedule = schedule_of(pipeline.schedule)
    if pipeline.schedule.orders:
        why = "plans are priced by the order of a named schedule"
        yield Problem(what=f"schedule {schedule.name!r} with a custom order of tasks", why=why, field="schedule")
    yield from parameter_problems(pipeline.schedule)
    p = len(pipeline.workers)
    stages = [sum(chunk.copy == "primary" for chunk in worker.chunks) for worker in pipeline.workers]
    if p > 1 and not schedule.problems(p, pipeline.num_micro_batches, stages[0]):
        yield from _misplaced(schedule, pipeline, stages[0])


def refusal(schedule: Schedule) -> Problem:
    """Why searches do not try a schedule."""
    return Problem(
        what=f"schedule {schedule.token!r} in a search",
        why=schedule.not_searched,
        fix=f"use one of {', '.join(PLAN_SCHEDULES)}, or price a plan with it: estimate --plan",
        field="schedule",
    )


def paging_problems(schedule: Schedule, strategy: LayerStrategy) -> Iterator[Problem]:
    """What keeps the stages of a schedule from taking turns on the device, where it has them do so.

    Args:
        schedule: the schedule of the pipeline.
        strategy: the strategy of layers of it.
    """
    if not schedule.pages:
        return
    ranks = strategy.dp * strategy.cp
    if strategy.offload.weights < 1:
        what, why = f"schedule {schedule.name} with weights on the device", "its stages are paged from host memory"
        yield Problem(what=what, why=why, fix="use off-wog", field="offload")
    if ranks > 1:
        why, fix = "each stage is uploaded to one model-parallel rank", "use dp1 and cp1, with more pp or tp"
        yield Problem(what=f"schedule {schedule.name} with {ranks} data ranks", why=why, fix=fix, field="dp")


def recompute_problem(schedule: Schedule, kinds: set[str]) -> Problem | None:
    """Schedules whose tasks are recomputations need layers that are recomputed in full.

    Args:
        schedule: the schedule of the pipeline.
        kinds: the kinds of recompute of the plan's layers, as `Recompute.kind` says them.
    """
    if not schedule.recomputes_in_tasks or kinds == {"full"}:
        return None
    return Problem(
        what=f"schedule {schedule.name} with recompute {', '.join(sorted(kinds))}",
        why="its recomputations are tasks of their own, which make all activations of a stage again",
        fix="use rc-full",
        field="recompute",
    )


def _misplaced(schedule: Schedule, pipeline: Pipeline, chunks: int) -> Iterator[Problem]:
    """Workers that hold other virtual stages than the schedule runs there."""
    placement = schedule.placement(len(pipeline.workers), chunks)
    per_chain = placement.stages // placement.chains
    for number, worker in enumerate(pipeline.workers):
        runs = (np.flatnonzero(placement.worker == number) % per_chain).tolist()
        held = [chunk.virtual_stage for chunk in computed(worker)]
        if held != runs:
            yield Problem(
                what=f"worker {number} holds the virtual stages {held}",
                why=f"{schedule.name} runs {runs} there",
                fix="place them so, or name another schedule",
                field=f"workers[{number}].chunks",
            )


def computed(worker: Worker) -> list[Chunk]:
    """The chunks whose tasks a worker runs: all but those kept against failures."""
    return [chunk for chunk in worker.chunks if chunk.copy != "redundant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRows:
    """The rows of the cost table that a pipeline is counted in."""

    layout: ModelLayout
    places: ItemPlaces
    number: Mapping[tuple[int, int], int]
    """Row of the cost table for a worker and a strategy, by place and index in the plan."""
    edge: Sequence[int]
    """Strategy of each worker's embedding, head and tables where no layer of theirs says it."""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return max(self.number.values()) + 1


def stage_counts(plan: ExecutionPlan, pipeline: Pipeline, schedule: Schedule, rows: StageRows) -> StageCounts:
    """How often each item of each row stands in every chunk.

    Args:
        plan: the plan.
        pipeline: one of its pipelines.
        schedule: the schedule of the pipeline.
        rows: what is counted.

    Returns:
        Counts with rows x items flattened.
    """
    workers = [computed(worker) for worker in pipeline.workers]
    shape = (len(workers), max(len(chunks) for chunks in workers), rows.rows, rows.places.items)
    work, bare, shadow = np.zeros(shape), np.zeros(shape), np.zeros((len(workers), *shape[2:]))
    again = needs_bare(schedule)
    model = rows.layout.model
    for place, worker in enumerate(pipeline.workers):
        for slot, chunk in enumerate(workers[place]):
            _count(work[place, slot], rows, place, chunk)
            if again:
                _count(bare[place, slot], rows, place, chunk, bare=True)
        for chunk in worker.chunks:
            if chunk.copy == "redundant":
                _count(shadow[place], rows, place, chunk)
        for counts in (work, bare) if again else (work,):
            _share_tables(counts[place], rows.number[place, rows.edge[place]], rows.places, model)
    flat = (len(workers), shape[1], -1)
    return StageCounts(
        work=work.reshape(flat),
        bare=bare.reshape(flat) if again else None,
        shadow=shadow.reshape(len(workers), -1) if schedule.shadows else None,
    )


def _count(
    counts: Float[np.ndarray, "rows items"], rows: StageRows, place: int, chunk: Chunk, *, bare: bool = False
) -> None:
    """Layers and edges of one chunk."""
    places, first = rows.places, rows.places.kinds * bare
    for strategy, low, behind in strategy_runs(chunk):
        kinds = rows.layout.kinds_before[behind] - rows.layout.kinds_before[low]
        counts[rows.number[place, strategy], first : first + places.kinds] += kinds
    edge = counts[rows.number[place, edge_strategy(chunk, rows.edge[place])]]
    if chunk.embedding:
        edge[places.embedding] += 1
    if chunk.head:
        edge[places.head] += 1
        if places.modules:
            edge[places.tail + bare] += rows.layout.model.mtp_layers


def strategy_runs(chunk: Chunk) -> Iterator[tuple[int, int, int]]:
    """Consecutive layers of a chunk under one strategy: its index, the first layer and the one behind the last."""
    runs = [(run.strategy, run.layers) for run in chunk.runs]
    for low, last in chunk.layers:
        while low <= last and runs:
            strategy, left = runs[0]
            behind = min(last + 1, low + left)
            yield strategy, low, behind
            runs[0] = (strategy, left - (behind - low))
            if runs[0][1] == 0:
                runs.pop(0)
            low = behind


def edge_strategy(chunk: Chunk, otherwise: int) -> int:
    """The strategy of a chunk's embedding or head: that of its nearest layers."""
    if not chunk.runs:
        return otherwise
    return chunk.runs[-1 if chunk.head else 0].strategy


def strategies_of(pipeline: Pipeline) -> list[int]:
    """Indices of the strategies that a pipeline uses, ascending."""
    return sorted({run.strategy for chunk in pipeline.chunks() for run in chunk.runs})


def _share_tables(
    counts: Float[np.ndarray, "chunks rows items"], row: int, places: ItemPlaces, model: ModelSpec
) -> None:
    """A worker with both ends holds a tied table once; a prediction module away from the embedding needs one more."""
    held = counts.sum(axis=(0, 1))
    embedding, head = held[places.embedding], held[places.head]
    if model.tied_embeddings and embedding and head:
        counts[-1, row, places.tie] += 1
    elif head and not embedding and model.mtp_layers and not model.tied_embeddings:
        slot = int(np.flatnonzero(counts[:, :, places.head].any(axis=1))[0])
        counts[slot, row, places.copy] += 1
