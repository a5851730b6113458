"""The chunks of a plan's workers as counts of items, and whether its schedule places and recomputes them so."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace

import numpy as np

from meshwright.errors import Problem
from meshwright.estimate.items import NONE, Item
from meshwright.estimate.pipeline import StageCounts, needs_bare
from meshwright.schedules import PLAN_SCHEDULES, Schedule, schedule_named
from meshwright.shapes import Float
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, Worker
from meshwright.specs.strategy import Recompute


def pipeline_schedule(pipeline: Pipeline) -> Schedule:
    """The schedule of a pipeline with the parameters it gives; what `schedule_problems` finds must be empty.

    Raises:
        UnsupportedError: nobody knows its name.
    """
    said = dict(pipeline.schedule.parameters)
    schedule = schedule_named(pipeline.schedule.name)
    own = {item.name for item in fields(schedule)}
    return replace(schedule, **{name: value for name, value in said.items() if name in own})


def schedule_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """What keeps a pipeline from being priced because of its schedule.

    Args:
        pipeline: of a plan.
    """
    schedule = pipeline_schedule(pipeline)
    own = {item.name for item in fields(schedule)}
    if schedule.not_in_plans:
        yield refusal(schedule)
    if pipeline.schedule.orders:
        why = "plans are priced by the order of a named schedule"
        yield Problem(what=f"schedule {schedule.name!r} with an order of its own", why=why, field="schedule")
    for name, value in pipeline.schedule.parameters:
        if name not in own and (name, value) != ("warmup", "pa"):
            why = f"{schedule.name} has no such parameter"
            yield Problem(what=f"schedule parameter {name} = {value!r}", why=why, fix="leave it out", field="schedule")
    if schedule.not_in_plans:
        return
    p = len(pipeline.workers)
    stages = [sum(chunk.copy == "primary" for chunk in worker.chunks) for worker in pipeline.workers]
    if p > 1 and not schedule.problems(p, pipeline.num_micro_batches, stages[0]):
        yield from _misplaced(schedule, pipeline, stages[0])


def refusal(schedule: Schedule) -> Problem:
    """Why plans cannot run a schedule."""
    return Problem(
        what=f"schedule {schedule.name!r} in a plan",
        why=schedule.not_in_plans,
        fix=f"use one of {', '.join(PLAN_SCHEDULES)}",
        field="schedule",
    )


def recompute_problem(schedule: Schedule, kinds: set[str]) -> Problem | None:
    """Schedules whose tasks are recomputations need layers that are recomputed in full.

    Args:
        schedule: of the pipeline.
        kinds: of recompute of the plan's layers, as `Recompute.kind` says them.
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


def stage_counts(
    plan: ExecutionPlan, pipeline: Pipeline, schedule: Schedule, model: ModelSpec, number: dict[Item, int]
) -> StageCounts:
    """How often each item of each strategy stands in every chunk.

    Args:
        plan: the plan.
        pipeline: one of its pipelines.
        schedule: of the pipeline.
        model: has the layers.
        number: of each item.

    Returns:
        Counts with strategies x items flattened, strategies as `strategies_of` orders them.
    """
    used = strategies_of(pipeline)
    workers = [computed(worker) for worker in pipeline.workers]
    shape = (len(workers), max(len(chunks) for chunks in workers), len(used), len(number))
    work, bare, shadow = np.zeros(shape), np.zeros(shape), np.zeros((len(workers), len(used), len(number)))
    again = needs_bare(schedule)

    def add(
        counts: Float[np.ndarray, "strategies items"], worker: Worker, chunk: Chunk, mode: Recompute | None
    ) -> None:
        edge = chunk.runs[-1].strategy if chunk.head and chunk.runs else plan.strategy_index(pipeline, worker, chunk)
        _count_layers(counts, plan, chunk, used, model, number, mode)
        _count_edges(counts[used.index(edge)], chunk, number, mode or plan.strategies[edge].recompute, model)

    for place, worker in enumerate(pipeline.workers):
        own = used.index(plan.strategy_index(pipeline, worker))
        for slot, chunk in enumerate(workers[place]):
            add(work[place, slot], worker, chunk, None)
            if again:
                add(bare[place, slot], worker, chunk, NONE)
        for chunk in worker.chunks:
            if chunk.copy == "redundant":
                add(shadow[place], worker, chunk, None)
        for counts in (work, bare) if again else (work,):
            _share_tables(counts[place], own, number, model)
    flat = (len(workers), shape[1], -1)
    return StageCounts(
        work=work.reshape(flat),
        bare=bare.reshape(flat) if again else None,
        shadow=shadow.reshape(len(workers), -1) if schedule.shadows else None,
    )


def strategies_of(pipeline: Pipeline) -> list[int]:
    """Indices of the strategies that a pipeline uses, ascending."""
    return sorted({run.strategy for chunk in pipeline.chunks() for run in chunk.runs})


def _count_layers(
    counts: Float[np.ndarray, "strategies items"],
    plan: ExecutionPlan,
    chunk: Chunk,
    used: list[int],
    model: ModelSpec,
    number: dict[Item, int],
    mode: Recompute | None,
) -> None:
    layers = list(model.layers())
    held = [layer for first, last in chunk.layers for layer in range(first, last + 1)]
    rows = [run.strategy for run in chunk.runs for _ in range(run.layers)]
    for layer, row in zip(held, rows, strict=True):
        item = Item("layer", layers[layer], mode or plan.strategies[row].recompute)
        counts[used.index(row), number[item]] += 1


def _count_edges(
    counts: Float[np.ndarray, " items"], chunk: Chunk, number: dict[Item, int], mode: Recompute, model: ModelSpec
) -> None:
    if chunk.embedding:
        counts[number[Item("embedding")]] += 1
    if chunk.head:
        counts[number[Item("head")]] += 1
        if model.mtp_layers:
            counts[number[Item("mtp", model.last_layer(), mode)]] += model.mtp_layers


def _share_tables(
    counts: Float[np.ndarray, "chunks strategies items"], row: int, number: dict[Item, int], model: ModelSpec
) -> None:
    """A worker with both ends holds a tied table once; a prediction module away from the embedding needs one more."""
    held = counts.sum(axis=(0, 1))
    embedding, head = held[number[Item("embedding")]], held[number[Item("head")]]
    if model.tied_embeddings and embedding and head:
        counts[-1, row, number[Item("tie")]] += 1
    elif head and not embedding and model.mtp_layers and not model.tied_embeddings:
        slot = int(np.flatnonzero(counts[:, :, number[Item("head")]].any(axis=1))[0])
        counts[slot, row, number[Item("copy")]] += 1
