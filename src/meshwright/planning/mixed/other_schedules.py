"""Plans of several kinds of device under the schedules that are named.

Stage sequences are composed by closed forms of 1F1B and its interleaved form. Any other schedule of one chain takes the
quickest of them: every worker keeps its devices and its number of layers, cut into the chunks that the schedule places
on it, and the plan is priced in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate, islice

from meshwright.formats.cluster import Assumption
from meshwright.planning.compose.execution_plan import PlanBuilder, StageLayers
from meshwright.planning.compose.sources.native.stage_sequences import MOST_CHUNKS
from meshwright.planning.mixed.source import PricedPlan
from meshwright.planning.one_kind import Refusals
from meshwright.schedules import Schedule, schedule_named
from meshwright.schedules.plan_rows import spec_of, stages_held
from meshwright.search.space import Space
from meshwright.specs.job import Job
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, StrategyRun

RESCHEDULED = 64
"""Plans priced in full for all schedules together, each of the quickest stages that there are."""
FITTING = 2
"""Plans of one schedule that are enough."""


def under_named_schedules(
    found: list[PricedPlan],
    space: Space,
    priced: Callable[[ExecutionPlan], PricedPlan | None],
    refuses: Refusals = lambda job: (),
) -> list[PricedPlan]:
    """The plans that have a named schedule, and the quickest of all under each schedule that they were not made for.

    Args:
        found: plans of 1F1B and its interleaved form, or of a single stage.
        space: what is pinned of schedules; nothing for those that are tried unasked.
        priced: prices a plan in full; None where it does not fit.
        refuses: what a framework refuses of a job.

    Returns:
        The plans, the quickest first; as they were found where no schedule is named.
    """
    pinned = space.pinned("schedule")
    if pinned is None:
        return found
    names = tuple(map(str, pinned))
    distinct = {one.plan: one for one in sorted(found, key=lambda one: one.step_time_s)}
    kept = {plan: one for plan, one in distinct.items() if all(_named(pipeline, names) for pipeline in plan.pipelines)}
    wanted = [one for one in map(schedule_named, names) if through_several_kinds(one) and one.token != "1f1b"]
    most = max(FITTING, RESCHEDULED // max(1, len(wanted)))
    for schedule in wanted:
        others = (rescheduled(plan, schedule) for plan in [*distinct][:most])
        fitting = (one for plan in others if plan is not None and (one := priced(plan)) is not None)
        started = (one for one in fitting if isinstance(one.job, Job) and not refuses(one.job))
        kept.update((one.plan, one) for one in islice(started, FITTING))
    return sorted(kept.values(), key=lambda one: one.step_time_s)


def through_several_kinds(schedule: Schedule) -> bool:
    """Whether pipelines through several kinds of device can have a schedule: each stage stands on one worker alone.

    Args:
        schedule: the schedule.
    """
    return schedule.chains == 1 and not schedule.shadows


def schedules_apart(space: Space) -> Iterator[Assumption]:
    """The named schedules that only pipelines on one kind of device are planned with.

    Args:
        space: what is pinned of schedules.
    """
    apart = [
        str(name) for name in space.pinned("schedule") or () if not through_several_kinds(schedule_named(str(name)))
    ]
    if apart:
        why = "two chains meet on every worker, or a worker also holds the next one's layers"
        value = f"{', '.join(apart)} on one kind of device alone: {why}"
        yield Assumption(name="schedules apart", value=value, basis="assumed")


def _named(pipeline: Pipeline, names: Sequence[str]) -> bool:
    return len(pipeline.workers) == 1 or pipeline.schedule.name in names or pipeline.schedule.token in names


def rescheduled(plan: ExecutionPlan, schedule: Schedule) -> ExecutionPlan | None:
    """A plan under another schedule; None where it does not run the plan's stages.

    Args:
        plan: the plan, of 1F1B or its interleaved form.
        schedule: the other schedule.
    """
    builder = PlanBuilder({strategy: number for number, strategy in enumerate(plan.strategies)})
    made = [_pipeline(one, schedule, plan, builder) for one in plan.pipelines]
    able = [one for one in made if one is not None]
    return builder.plan(able) if len(able) == len(made) else None


def _pipeline(pipeline: Pipeline, named: Schedule, plan: ExecutionPlan, builder: PlanBuilder) -> Pipeline | None:
    workers, micro_batches = pipeline.workers, pipeline.num_micro_batches
    if len(workers) == 1:
        return pipeline
    schedule = named.settled(len(workers), micro_batches)
    chunks = _chunks(pipeline, schedule)
    if chunks is None:
        return None
    if len(workers[0].chunks) == chunks > 1:
        return replace(pipeline, schedule=spec_of(schedule))
    held = [[stage for stage, _ in own] for own in stages_held(schedule, len(workers), chunks)]
    runs = {
        stage: own
        for worker, stages in zip(workers, held, strict=True)
        for stage, own in zip(stages, _cut(worker.chunks[0].runs, len(stages)), strict=True)
    }
    firsts = [0, *accumulate(sum(run.layers for run in runs[stage]) for stage in range(len(runs)))]

    def chunks_of(stages: Sequence[int]) -> tuple[Chunk, ...]:
        own = (
            StageLayers(virtual_stage=stage, first=firsts[stage], strategies=plan.strategies, runs=runs[stage])
            for stage in stages
        )
        return builder.worker(0, 1, own, len(runs)).chunks

    moved = (replace(worker, chunks=chunks_of(stages)) for worker, stages in zip(workers, held, strict=True))
    return replace(pipeline, workers=tuple(moved), schedule=spec_of(schedule))


def _chunks(pipeline: Pipeline, schedule: Schedule) -> int | None:
    """The fewest chunks of each worker that a schedule runs; None where it runs none that the pipeline can have."""
    count, held = len(pipeline.workers), len(pipeline.workers[0].chunks)
    if held > 1:
        # Only settings differ: the layers of every chunk were chosen for this placement.
        able = schedule.name == pipeline.schedule.name
        tried = range(held, held + 1) if able else range(0)
    else:
        least = min(worker.chunks[0].num_layers for worker in pipeline.workers)
        tried = range(1, min(MOST_CHUNKS, least) + 1)
    return next((v for v in tried if not schedule.problems(count, pipeline.num_micro_batches, v)), None)


def _cut(runs: Sequence[StrategyRun], parts: int) -> Iterator[tuple[StrategyRun, ...]]:
    """The layers of a stage in as many parts, the first ones a layer larger where they are not equal."""
    left = [[run.layers, run.strategy] for run in runs]
    layers = sum(run.layers for run in runs)
    for number in range(parts):
        wanted, own = layers // parts + (number < layers % parts), []
        while wanted:
            taken = min(wanted, left[0][0])
            own.append(StrategyRun(layers=taken, strategy=left[0][1]))
            left[0][0] -= taken
            wanted -= taken
            if not left[0][0]:
                left.pop(0)
        yield tuple(own)
