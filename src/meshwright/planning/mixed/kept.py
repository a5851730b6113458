"""Plans after a change that leave most of the state where it is.

    the same plan       idle or added nodes in place of the lost ones: what they held moves, and nothing else
    fewer pipelines     those that lost a device stand idle, the others share their part of the batch
    fewer ranks         stages that lost a device go on with the data ranks that are whole, as many as divide the
                        micro-batch; their layers stay where they are
    fewer stages        those that lost a device stand idle, their layers go to the stages around them

Of fewer stages several are tried: layers spread over one stage on either side, over two, four, and so on. The fewest
move the least, all of them balance the best.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from meshwright.planning.changed_cluster import ChangedCluster
from meshwright.schedules import schedule_named
from meshwright.schedules.plan_rows import spec_of
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, Schedule, StrategyRun, Worker
from meshwright.specs.strategy import LayerStrategy, Recompute

RECOMPUTED = (0.0, 0.25, 0.5, 1.0)
"""Shares of the layers of a stage with fewer ranks whose activations are made again."""


def kept_plans(job: Job, change: ChangedCluster) -> Iterator[ExecutionPlan]:
    """The earlier plan on what is left, with as little of it changed as each way needs.

    Args:
        job: the earlier plan.
        change: the change of its cluster.
    """
    yield from _kept(job, change)
    if change.broken:
        # No stage stands on whole nodes and on what is left of others at once.
        yield from _kept(job, change.on_whole_nodes)


def _kept(job: Job, change: ChangedCluster) -> Iterator[ExecutionPlan]:
    number = _with_substitutes(job, change)
    pipelines = [tuple(_renumbered(worker, number) for worker in pipeline.workers) for pipeline in job.plan.pipelines]
    hit = [[place for place, worker in enumerate(own) if worker is None] for own in pipelines]
    if not any(hit):
        yield _plan(job.plan, [(p, own) for p, own in zip(job.plan.pipelines, pipelines, strict=True)])
        return
    whole = [(p, own) for p, own, lost in zip(job.plan.pipelines, pipelines, hit, strict=True) if not lost]
    left = [pipeline for pipeline, _ in whole]
    shared = _sharing(job.plan, left, [1.0 / pipeline.num_micro_batches for pipeline in left])
    if shared is not None:
        yield _plan(job.plan, [(p, own) for p, (_, own) in zip(shared, whole, strict=True)])
    yield from _with_fewer_ranks(job.plan, pipelines, number)
    reach = 1
    most = max(len(pipeline.workers) for pipeline in job.plan.pipelines)
    while True:
        shorter = [
            _without_stages(p, own, lost, reach)
            for p, own, lost in zip(job.plan.pipelines, pipelines, hit, strict=True)
        ]
        if any(one is None for one in shorter):
            return
        yield job.plan.with_pipelines(one for one in shorter if one is not None)
        if reach >= most:
            return
        reach *= 2


def _plan(plan: ExecutionPlan, own: Sequence[tuple[Pipeline, Sequence[Worker | None]]]) -> ExecutionPlan:
    pipelines = (replace(p, workers=tuple(worker for worker in workers if worker is not None)) for p, workers in own)
    return plan.with_pipelines(pipelines)


def _with_substitutes(job: Job, change: ChangedCluster) -> dict[int, int]:
    """Later number of every device in use that stays or has an idle node of its group in its place."""
    used = [
        device
        for pipeline in job.plan.pipelines
        for worker in pipeline.workers
        for first, last in worker.devices
        for device in range(first, last + 1)
    ]
    number = {device: int(change.number_after[device]) for device in used if change.number_after[device] >= 0}
    if change.broken:
        return number  # what is left of a node and an idle one are no group
    taken = set(number.values())
    firsts = _firsts(change.cluster)
    before, start = job.cluster, 0
    for group in before.groups:
        each, lost = group.devices_per_node, dict[int, list[int]]()
        for device in used:
            if start <= device < start + group.devices and device not in number:
                lost.setdefault((device - start) // each, []).append(device)
        later = next((one for one in change.cluster.groups if one.name == group.name), None)
        if later is not None and later.devices_per_node == each:
            nodes = (firsts[later.name] + node * each for node in range(later.nodes))
            idle = (first for first in nodes if not taken & set(range(first, first + each)))
            for devices, first in zip(lost.values(), idle, strict=False):
                number |= {device: first + (device - start) % each for device in devices}
        start += group.devices
    return number


def _firsts(cluster: ClusterSpec) -> dict[str, int]:
    starts = accumulate((group.devices for group in cluster.groups), initial=0)
    return dict(zip((group.name for group in cluster.groups), starts, strict=False))


def _renumbered(worker: Worker, number: dict[int, int]) -> Worker | None:
    """The worker where its devices are later, ranks in the same order; None where it lost one."""
    devices = [device for first, last in worker.devices for device in range(first, last + 1)]
    if any(device not in number for device in devices):
        return None
    ranges: list[tuple[int, int]] = []
    for device in devices:
        later = number[device]
        if ranges and ranges[-1][1] + 1 == later:
            ranges[-1] = (ranges[-1][0], later)
        else:
            ranges.append((later, later))
    return replace(worker, devices=tuple(ranges))


def shared_again(plan: ExecutionPlan, pace_s: Sequence[float]) -> ExecutionPlan | None:
    """The plan with micro-batches shared so that its pipelines end together, which moves no state.

    Args:
        plan: the plan of several pipelines.
        pace_s: seconds of a micro-batch on the busiest stage of each.

    Returns:
        The plan; None where whole micro-batches do not add up to the batch.
    """
    pipelines = _sharing(plan, plan.pipelines, pace_s)
    return None if pipelines is None else replace(plan, pipelines=tuple(pipelines))


def _sharing(plan: ExecutionPlan, left: Sequence[Pipeline], pace_s: Sequence[float]) -> list[Pipeline] | None:
    """Pipelines with micro-batches for the whole batch, in proportion to their speed; None where none add up."""
    if not left or any(pipeline.shapes for pipeline in left):
        return None
    global_micro_batches = [pipeline.micro_batch * plan.data_degree(pipeline) for pipeline in left]
    each_s = plan.global_batch / sum(
        global_micro_batch / pace for global_micro_batch, pace in zip(global_micro_batches, pace_s, strict=True)
    )
    counts = [max(1, int(each_s / pace)) for pace in pace_s]
    rest = plan.global_batch - sum(
        n * global_micro_batch for n, global_micro_batch in zip(counts, global_micro_batches, strict=True)
    )
    for place in sorted(range(len(left)), key=lambda i: -global_micro_batches[i]):
        counts[place] += rest // global_micro_batches[place]
        rest %= global_micro_batches[place]
    if rest or min(counts) < 1 or (plan.joint_ranks and len(set(counts)) > 1):
        return None
    return [
        replace(one, num_micro_batches=n, schedule=_schedule(one.schedule, len(one.workers), n))
        for one, n in zip(left, counts, strict=True)
    ]


def _schedule(schedule: Schedule, stages: int, micro_batches: int) -> Schedule:
    """The same schedule for other numbers: groups of the interleaved one leave no short one over."""
    if schedule.name != "interleaved" or micro_batches < stages:
        return schedule
    return spec_of(schedule_named(schedule.name).settled(stages, micro_batches))


def _with_fewer_ranks(
    plan: ExecutionPlan, pipelines: Sequence[Sequence[Worker | None]], number: Mapping[int, int]
) -> Iterator[ExecutionPlan]:
    """Stages that lost a device on the data ranks that are whole: as they are, and with activations made again.

    Fewer ranks take more sequences each of a micro-batch and shard less; where that does not fit, recompute may.

    Args:
        plan: the earlier one.
        pipelines: workers where they are later; None where one lost a device.
        number: later number of every device that stays or is replaced.
    """
    for share in RECOMPUTED:
        numbers = {strategy: place for place, strategy in enumerate(plan.strategies)}
        made = []
        for pipeline, own in zip(plan.pipelines, pipelines, strict=True):
            global_micro_batch = pipeline.micro_batch * plan.data_degree(pipeline)
            workers = [
                worker or _fewer_ranks(plan, before, global_micro_batch, number, numbers, share)
                for before, worker in zip(pipeline.workers, own, strict=True)
            ]
            if pipeline.shapes or any(worker is None for worker in workers):
                return
            made.append((replace(pipeline, workers=tuple(w for w in workers if w is not None)), global_micro_batch))
        later = plan.with_pipelines((pipeline for pipeline, _ in made), tuple(numbers))
        counted = (
            replace(one, micro_batch=global_micro_batch // later.data_degree(one)) for one, global_micro_batch in made
        )
        yield replace(later, pipelines=tuple(counted))


def _fewer_ranks(
    plan: ExecutionPlan,
    worker: Worker,
    global_micro_batch: int,
    number: Mapping[int, int],
    numbers: dict[LayerStrategy, int],
    share: float,
) -> Worker | None:
    """The worker on its whole data ranks; None where its strategies differ in degrees or no rank is whole."""
    used = {run.strategy for chunk in worker.chunks for run in chunk.runs}
    shapes = {(plan.strategies[index].tp, plan.strategies[index].cp) for index in used}
    if len(shapes) != 1 or worker.rank_order != "tp-cp-ep-dp":
        return None
    ((tp, cp),) = shapes
    devices = [device for first, last in worker.devices for device in range(first, last + 1)]
    ranks = [devices[start : start + tp * cp] for start in range(0, len(devices), tp * cp)]
    whole = [rank for rank in ranks if all(device in number for device in rank)]
    dp = next((count for count in range(len(whole), 0, -1) if global_micro_batch % count == 0), 0)
    later: dict[int, tuple[int, int]] = {}
    for index in used:
        strategy = plan.strategies[index]
        if not dp or strategy.data.replicate != 1 or (dp * tp * cp) % (strategy.expert.ep * strategy.expert.etp):
            return None
        # Context ranks share shards with data ranks.
        shard = strategy.data.shard * dp // strategy.dp
        own = replace(strategy, data=replace(strategy.data, shard=shard))
        if own.dp != dp:
            return None
        both = (own, replace(own, recompute=Recompute(kind="full")))
        later[index] = tuple(numbers.setdefault(one, len(numbers)) for one in both)  # type: ignore[assignment]

    def again(run: StrategyRun) -> Iterator[StrategyRun]:
        plain, full = later[run.strategy]
        count = math.ceil(share * run.layers)
        if count:
            yield StrategyRun(layers=count, strategy=full)
        if count < run.layers:
            yield StrategyRun(layers=run.layers - count, strategy=plain)

    chunks = tuple(
        replace(chunk, runs=tuple(part for run in chunk.runs for part in again(run))) for chunk in worker.chunks
    )
    ranges = tuple((device, device) for rank in whole[:dp] for device in rank)
    return _renumbered(replace(worker, devices=ranges, chunks=chunks), dict(number))


def _without_stages(
    pipeline: Pipeline, workers: Sequence[Worker | None], lost: Sequence[int], reach: int
) -> Pipeline | None:
    """A pipeline whose hit stages are gone, their layers spread over so many stages on either side.

    Args:
        pipeline: the pipeline before.
        workers: its workers where they are later, None for a hit one.
        lost: places of those.
        reach: the reach, in virtual stages.

    Returns:
        The pipeline; None where no stage is left, or stages hold layers that are not one after the other.
    """
    kept = [worker for worker in workers if worker is not None]
    chunks = sorted(pipeline.chunks(), key=lambda chunk: chunk.virtual_stage)
    plain = all(chunk.copy == "primary" and len(chunk.layers) <= 1 and len(chunk.runs) <= 1 for chunk in chunks)
    if not kept or not plain or pipeline.schedule.orders:
        return None
    if not lost:
        return replace(pipeline, workers=tuple(kept))
    gone = {chunk.virtual_stage for place in lost for chunk in pipeline.workers[place].chunks}
    left = [chunk.virtual_stage for chunk in chunks if chunk.virtual_stage not in gone]
    layers = {chunk.virtual_stage: chunk.num_layers for chunk in chunks}
    for stage in sorted(gone):
        ahead, behind = [s for s in left if s < stage][-reach:], [s for s in left if s > stage][:reach]
        near = [*ahead, *behind]
        for one, count in zip(near, _spread([layers[s] for s in near], layers[stage]), strict=True):
            layers[one] = count
    firsts = dict(zip(left, accumulate((layers[s] for s in left), initial=0), strict=False))
    order = {stage: place for place, stage in enumerate(left)}

    def held(worker: Worker, chunk: Chunk) -> Chunk:
        stage = chunk.virtual_stage
        first, count = firsts[stage], layers[stage]
        runs = chunk.runs or next(other.runs for other in worker.chunks if other.runs)
        return replace(
            chunk,
            virtual_stage=order[stage],
            layers=((first, first + count - 1),) if count else (),
            runs=(StrategyRun(layers=count, strategy=runs[0].strategy),) if count else (),
            embedding=order[stage] == 0,
            head=order[stage] == len(left) - 1,
        )

    if any(not any(chunk.runs for chunk in worker.chunks) for worker in kept):
        return None  # a stage of embedding or head alone says no strategy for layers
    made = tuple(replace(worker, chunks=tuple(held(worker, chunk) for chunk in worker.chunks)) for worker in kept)
    schedule = _schedule(pipeline.schedule, len(made), pipeline.num_micro_batches)
    return replace(pipeline, workers=made, schedule=schedule)


def _spread(counts: Sequence[int], more: int) -> list[int]:
    """Layers of stages that get so many more together, in proportion to what they have."""
    total = sum(counts)
    if not total:
        return [more, *counts[1:]] if counts else []
    ends = [round(part * (total + more) / total) for part in accumulate(counts)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]
