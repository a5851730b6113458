"""What if, of a plan whose stages differ: settings of the stages on one group, and of all its pipelines.

A setting of a group is named `H100: tp`. A stage keeps its devices and layers; its data degree is what the other
degrees leave of the devices, and the sequences of a micro-batch stay as they are.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from math import gcd
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.estimate.rules.legality import plan_problems
from meshwright.fields.kinds import Choice, Count, Whole
from meshwright.planning.setting import Setting, Value, near, with_own
from meshwright.schedules import PLAN_SCHEDULES, schedule_named
from meshwright.schedules.plan_rows import schedule_of, spec_of, stages_held
from meshwright.search.axes import is_recompute, selective_words
from meshwright.search.table import divisors
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.plan import ExecutionPlan, Pipeline, StrategyRun, Worker
from meshwright.specs.row import recompute_of
from meshwright.specs.shardings import SHARDINGS, plain_shardings, sharding_of
from meshwright.specs.strategy import ContextParallel, DataParallel, LayerStrategy, Tensor, TensorPerOperator

DEGREES = ("tp", "cp", "ep")
STAGE_AXES = (*DEGREES, "recompute", "sharding")
"""Settings that the stages of a group have."""
PLAN_AXES = ("mbs", "schedule")
"""Settings that all stages share."""
MOST_DEGREE = 64
_OF_DATA = ("replicate", "shard", "zero", "family", "reshard", "passing")
"""What a word of sharding says of the data ranks; the rest of a strategy stays."""


def stage_names(job: Job) -> dict[str, tuple[str, str]]:
    """Group and axis by the name of the setting, of groups that hold stages."""
    axes = STAGE_AXES if job.model.is_moe else tuple(axis for axis in STAGE_AXES if axis != "ep")
    return {f"{group}: {axis}": (group, axis) for group in _groups_in_use(job) for axis in axes}


def changed_stages(job: Job, asked: Mapping[str, Any], seq_len: int, batch: int | None = None) -> ExecutionPlan:
    """The plan with settings of its stages changed.

    Args:
        job: the plan.
        asked: the changes asked for, by the names of `stage_names` and `PLAN_AXES`.
        seq_len: tokens of a sequence.
        batch: sequences of a step; None for as many as before.

    Raises:
        InputError: a value breaks its rule, or the settings do not go together.
    """
    plan, names = job.plan, stage_names(job)
    by_group: dict[str, dict[str, Any]] = {}
    for name in asked:
        if name in names:
            group, axis = names[name]
            by_group.setdefault(group, {})[axis] = _read(name, axis, asked[name])
    table = list(plan.strategies)
    before = sum(_sequences(plan, pipeline) * pipeline.num_micro_batches for pipeline in plan.pipelines)
    pipelines = tuple(
        _with_batch(_with_stages(job, pipeline, by_group, asked, table), plan, pipeline, asked, before, batch, table)
        for pipeline in plan.pipelines
    )
    used = sorted({run.strategy for one in pipelines for chunk in one.chunks() for run in chunk.runs})
    found = ExecutionPlan(
        strategies=tuple(table[index] for index in used),
        pipelines=tuple(
            replace(one, workers=tuple(_renumbered(worker, used) for worker in one.workers)) for one in pipelines
        ),
    )
    problems = plan_problems(found, job.model, seq_len)
    if problems:
        raise InputError(problems, code="MW231")
    return found


def stage_values(job: Job) -> dict[str, int | str]:
    """What every setting is now; `mixed` where stages of a group, or pipelines, differ."""
    found: dict[str, int | str] = {}
    for name, (group, axis) in stage_names(job).items():
        found[name] = _one_of({_value(strategy, axis, job) for strategy in _strategies_on(job, group)})
    pipelines = job.plan.pipelines
    found["mbs"] = _one_of({pipeline.micro_batch for pipeline in pipelines})
    found["schedule"] = _one_of({schedule_of(pipeline.schedule).token for pipeline in pipelines})
    return found


def stage_settings(job: Job) -> tuple[Setting, ...]:
    """Every setting with the values near its own, each with the rule that it breaks."""
    return tuple(
        Setting(name=name, value=own, values=tuple(_tried(job, name, own, value) for value in _values(job, name, own)))
        for name, own in stage_values(job).items()
    )


def _tried(job: Job, name: str, own: int | str, value: int | str) -> Value:
    if value == own:
        return Value(value=value)
    try:
        changed_stages(job, {name: value}, job.workload.seq_len)
    except InputError as error:
        return Value(value=value, problem=error.problems[0])
    return Value(value=value)


def _values(job: Job, name: str, own: int | str) -> list[int | str]:
    if name == "schedule":
        return with_own(own, flushing_schedules())
    if name == "mbs":
        sequences = [one.micro_batch * one.num_micro_batches for one in job.plan.pipelines]
        return _numbers(own, divisors(gcd(*sequences)))
    group, axis = stage_names(job)[name]
    if axis == "recompute":
        return with_own(own, ("none", selective_words(job.model)[0], "full"))
    if axis == "sharding":
        return with_own(own, plain_shardings())
    devices = gcd(*(worker.num_devices for worker in _workers_on(job, group)))
    return _numbers(own, (degree for degree in divisors(devices) if degree <= MOST_DEGREE))


def flushing_schedules() -> tuple[str, ...]:
    """Schedules that leave the training as it is: those without a flush update with old weights."""
    return tuple(name for name in PLAN_SCHEDULES if schedule_named(name).flushes)


def _numbers(own: int | str, numbers: Any) -> list[int | str]:
    """Numbers near a plan's own; all of the smallest where its stages differ."""
    return near(own, numbers) if isinstance(own, int) else [own, *near(1, numbers)]


def _read(name: str, axis: str, value: Any) -> int | str:
    if axis in DEGREES:
        return int(Whole().read(name, value))
    if axis == "sharding":
        return str(Choice(names=tuple(SHARDINGS), noun="sharding").read(name, str(value)))
    if not is_recompute(str(value)):
        Choice(names=("none", "sel", "full"), noun="recompute").read(name, str(value))
    return str(value)


def _with_stages(
    job: Job,
    pipeline: Pipeline,
    by_group: Mapping[str, Mapping[str, Any]],
    asked: Mapping[str, Any],
    table: list[LayerStrategy],
) -> Pipeline:
    """A pipeline with the strategies of its stages, and its schedule, changed; the table grows by what is new."""
    workers = []
    for worker in pipeline.workers:
        wanted = by_group.get(_group_of(job.cluster, worker), {})
        workers.append(_changed_worker(worker, wanted, table) if wanted else worker)
    found = replace(pipeline, workers=tuple(workers))
    if "schedule" not in asked:
        return found
    before, after = schedule_of(pipeline.schedule), schedule_named(str(asked["schedule"]))
    stages, chunks = len(workers), max(len(worker.chunks) for worker in workers)
    problems = after.problems(stages, pipeline.num_micro_batches, max(chunks // after.chains, 1))
    if problems:
        raise InputError(problems, code="MW231")
    held = [stages_held(one, stages, max(chunks // one.chains, 1)) for one in (before, after)]
    if held[0] != held[1]:
        what, why = f"schedule {after.token} of these stages", "it places the layers of a pipeline otherwise"
        raise InputError(Problem(what=what, why=why, fix="plan again with --schedule", field="schedule"), code="MW231")
    return replace(found, schedule=spec_of(after))


def _changed_worker(worker: Worker, wanted: Mapping[str, Any], table: list[LayerStrategy]) -> Worker:
    def run_of(run: StrategyRun) -> StrategyRun:
        changed = _changed_strategy(table[run.strategy], wanted, worker.num_devices)
        if changed not in table:
            table.append(changed)
        return replace(run, strategy=table.index(changed))

    chunks = (replace(chunk, runs=tuple(run_of(run) for run in chunk.runs)) for chunk in worker.chunks)
    return replace(worker, chunks=tuple(chunks))


def _changed_strategy(strategy: LayerStrategy, wanted: Mapping[str, Any], devices: int) -> LayerStrategy:
    tp, cp = wanted.get("tp", strategy.tp), wanted.get("cp", strategy.cp)
    if tp < 1 or cp < 1 or devices % (tp * cp):
        problem = Problem(
            what=f"tp {tp} x cp {cp} on a stage of {devices} devices",
            why="the degrees of a stage divide its devices",
            fix=f"tp x cp of one of {', '.join(map(str, divisors(devices)))}",
            field="tp",
        )
        raise InputError(problem, code="MW231")
    context = strategy.context
    if cp != strategy.cp:
        kind = context[0].name if context else "p2p"
        context = (ContextParallel.of(kind, cp),) if cp > 1 else ()
    expert = replace(strategy.expert, ep=wanted.get("ep", strategy.expert.ep))
    kind_of_data = SHARDINGS[wanted["sharding"]] if "sharding" in wanted else sharding_of(strategy.data)
    more = {name: getattr(strategy.data, name) for name in DataParallel.__dataclass_fields__ if name not in _OF_DATA}
    data = kind_of_data.data(devices // (tp * cp), cp, strategy.data.shard * strategy.cp, more)
    recompute = recompute_of(wanted["recompute"]) if "recompute" in wanted else strategy.recompute
    tensor = _of_degree(strategy.tensor, tp)
    return replace(strategy, tensor=tensor, context=context, expert=expert, data=data, recompute=recompute)


def _of_degree(tensor: Tensor, degree: int) -> Tensor:
    if degree == tensor.degree:
        return tensor
    if isinstance(tensor, TensorPerOperator):
        what, why = f"tp {degree} of layers that are sharded operator by operator", "their table says the degree"
        raise InputError(Problem(what=what, why=why, fix="plan again", field="tp"), code="MW231")
    return replace(tensor, degree=degree)


def _with_batch(
    changed: Pipeline,
    plan: ExecutionPlan,
    before: Pipeline,
    asked: Mapping[str, Any],
    batch_before: int,
    batch: int | None,
    table: list[LayerStrategy],
) -> Pipeline:
    """The pipeline with the micro-batches that hold its share of the batch."""
    first = next(run for chunk in _in_order(changed) for run in chunk.runs)
    dp, sequences = table[first.strategy].dp, _sequences(plan, before)
    if "mbs" in asked:
        sequences = int(Count(whole=True, example="1").read("mbs", asked["mbs"])) * dp
    if sequences % dp:
        what, why = f"dp {dp} for {sequences} sequences of a micro-batch", "data ranks share each micro-batch evenly"
        raise InputError(Problem(what=what, why=why, fix="use larger micro-batches", field="mbs"), code="MW231")
    share = _sequences(plan, before) * before.num_micro_batches * (batch or batch_before)
    unit = sequences * batch_before
    if share % unit or share == 0:
        least = unit // gcd(unit, share // (batch or batch_before))
        problem = Problem(
            what=f"{batch or batch_before:,} sequences in micro-batches of {sequences:,}",
            why="every pipeline runs whole micro-batches, and keeps its share of the batch",
            fix=f"a batch of a multiple of {least:,}, or smaller micro-batches",
            field="global_batch" if batch else "mbs",
        )
        raise InputError(problem, code="MW231")
    count = share // unit
    if before.shapes and count != before.num_micro_batches:
        what, why = "another number of micro-batches", "this plan says the length of each"
        raise InputError(Problem(what=what, why=why, fix="plan again", field="global_batch"), code="MW231")
    return replace(changed, micro_batch=sequences // dp, num_micro_batches=count)


def _in_order(pipeline: Pipeline) -> list[Any]:
    return sorted((chunk for chunk in pipeline.chunks() if chunk.runs), key=lambda chunk: chunk.virtual_stage)


def _renumbered(worker: Worker, used: list[int]) -> Worker:
    chunks = (
        replace(chunk, runs=tuple(replace(run, strategy=used.index(run.strategy)) for run in chunk.runs))
        for chunk in worker.chunks
    )
    return replace(worker, chunks=tuple(chunks))


def _sequences(plan: ExecutionPlan, pipeline: Pipeline) -> int:
    return pipeline.micro_batch * plan.data_degree(pipeline)


def _value(strategy: LayerStrategy, axis: str, job: Job) -> int | str:
    if axis == "recompute":
        words = ("none", selective_words(job.model)[0], "full")
        return next((word for word in words if recompute_of(word) == strategy.recompute), strategy.recompute.kind)
    if axis == "sharding":
        return sharding_of(strategy.data).name
    return strategy.expert.ep if axis == "ep" else int(getattr(strategy, axis))


def _one_of(values: set[Any]) -> int | str:
    found: int | str = next(iter(values)) if len(values) == 1 else "mixed"
    return found


def _groups_in_use(job: Job) -> list[str]:
    used = {_group_of(job.cluster, worker) for one in job.plan.pipelines for worker in one.workers}
    return [group.name for group in job.cluster.groups if group.name in used]


def _group_of(cluster: ClusterSpec, worker: Worker) -> str:
    """The group of a worker's first device."""
    starts = list(accumulate((group.devices for group in cluster.groups), initial=0))
    return cluster.groups[bisect_right(starts, worker.devices[0][0]) - 1].name


def _workers_on(job: Job, group: str) -> Iterator[Worker]:
    for pipeline in job.plan.pipelines:
        yield from (worker for worker in pipeline.workers if _group_of(job.cluster, worker) == group)


def _strategies_on(job: Job, group: str) -> Iterator[LayerStrategy]:
    runs = (run for worker in _workers_on(job, group) for chunk in worker.chunks for run in chunk.runs)
    return (job.plan.strategies[index] for index in dict.fromkeys(run.strategy for run in runs))
