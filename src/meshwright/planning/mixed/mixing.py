"""What several kinds of device are worth together: the best plan against parts of the cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import accumulate, groupby

from meshwright.estimate.result import StageEstimate, StepPrice
from meshwright.formats.plan_json import PlannedJob
from meshwright.planning.mixed.devices_used import counted_devices, devices_used
from meshwright.planning.mixed.joinable import strangers
from meshwright.planning.mixed.search import MixedPlans, offer_of
from meshwright.planning.mixed.source import PricedPlan, SearchRecord
from meshwright.planning.objectives import Aim
from meshwright.planning.objectives.base import Objective
from meshwright.records import Record
from meshwright.specs.cluster import AND, ClusterSpec
from meshwright.specs.strategy import LayerStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Subset(Record):
    """The best plan on a part of the cluster."""

    devices: str
    """The part, in words: `64 H100`."""
    step_time_s: float | None
    """Seconds; None where nothing fits."""
    price_per_step: float | None = None
    """USD; None where a price is not known."""
    kept: float = 1.0
    """Share of the time that preemptions of its spot nodes leave."""
    amount: float | None = None
    """Seconds, USD or joules of a step with what preemptions take, whichever is asked for; None where nothing fits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlacement(Record):
    """Neighbouring stages of a pipeline on one group."""

    group: str
    pipeline: int
    stages: tuple[int, int]
    """First and last stage."""
    nodes: tuple[int, int]
    """First and last node, counted in the group."""
    layers: int
    """Layers of these stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldLayers:
    """Layers of neighbouring stages on one group, the same in each of some pipelines."""

    pipelines: tuple[int, int]
    """First and last pipeline."""
    group: str
    devices: int
    """Devices of each stage."""
    layers: tuple[int, ...]
    """Layers of each stage."""
    strategy: LayerStrategy
    micro_batches: int
    mbs: int
    """Sequences of a rank's micro-batch."""
    schedule: str = "1f1b"
    """Schedule of the pipeline, with its settings."""
    chunks: int = 1
    """Chunks of layers that each stage holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bottleneck:
    """The busiest stage."""

    pipeline: int
    stage: int
    group: str
    busy_s: float
    above_mean: float
    """Share by which it is busy longer than the mean stage of its pipeline."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleDevices:
    """Devices of a group that the best plan leaves out."""

    group: str
    idle: int
    devices: int
    """Devices of the whole group."""
    rented: bool
    """Whether they are left out for their price."""
    strangers: tuple[str, str] | None = None
    """Collective library of these devices and that of the devices in use, where the two share no communicator."""
    preempted: bool = False
    """Whether a plan that uses them takes less time a step, and more once preemptions are counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EqualRanks:
    """Groups whose ranks all get the same work, whatever they stand on."""

    groups: tuple[str, ...]
    device: str
    """The slowest of them, at whose pace all work."""
    memory_bytes: float
    """Memory of a device with the least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchedPlan:
    """The quickest plan found that a framework starts."""

    target: str
    """The framework."""
    step_time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixing:
    """What the best plan gains from every kind of device, and what it depends on."""

    step_time_s: float
    used: int
    """Groups that hold any worker."""
    alone: tuple[Subset, ...]
    """Each kind without the others."""
    without: tuple[tuple[str, Subset], ...]
    """All kinds but the named one."""
    held: tuple[HeldLayers, ...]
    slowest: Bottleneck
    doubts: tuple[tuple[str, float], ...]
    """Numbers made worse, and the share by which the step gets longer."""
    frameworks: tuple[tuple[str, str], ...]
    """Names, and why each cannot run the plan; no reason where it can."""
    idle: tuple[IdleDevices, ...]
    places: tuple[StagePlacement, ...]
    """Which nodes hold which stages."""
    searched: SearchRecord
    equal: tuple[EqualRanks, ...] = ()
    """Groups that the plan takes for one."""
    passed_over_s: float | None = None
    """Step of the plan that is hardly quicker, and that the framework of `launched` does not start."""
    launched: LaunchedPlan | None = None
    """None where a target is asked for, and where none was found."""
    kinds: int = 2
    """Kinds of device among the groups: 1 where they differ in their nodes alone."""
    per_step: float | None = None
    """Price of a step in USD, where fewer devices were looked for because they cost less."""
    by: Objective
    """What is compared."""
    amount: float
    """Amount of the best plan, in what is compared."""
    kept: float
    """Share of the time that preemptions of spot nodes leave to the best plan."""

    @property
    def best_alone(self) -> Subset | None:
        """The best kind by itself."""
        able = [subset for subset in self.alone if subset.amount is not None]
        return min(able, key=lambda one: one.amount or 0.0, default=None)

    @property
    def gain(self) -> float | None:
        """Share of what is compared that mixing saves over the best kind alone; None where none can do it."""
        best = self.best_alone
        return None if best is None or not best.amount else 1.0 - self.amount / best.amount

    @property
    def preempted(self) -> bool:
        """Whether preemptions count in what is compared."""
        best = self.best_alone
        return min(self.kept, best.kept if best else 1.0) < 1.0


def mixing_of(
    found: MixedPlans,
    best: PricedPlan,
    *,
    cluster: ClusterSpec,
    doubts: tuple[tuple[str, float], ...],
    frameworks: tuple[tuple[str, str], ...],
    searched: SearchRecord,
    aim: Aim,
) -> Mixing:
    """The facts about the best plan.

    Args:
        found: the plan, and what it is compared with.
        best: the plan.
        cluster: the cluster that was asked about; groups of it may count as one in the plan.
        doubts: the doubts, as the source of its costs has them.
        frameworks: names and refusals.
        searched: what was looked at.
        aim: what is compared, and whether fewer devices were looked for because they cost less.
    """
    job, estimate, offer = best.job, best.estimate, offer_of(best)
    groups = cluster.groups

    def subset(numbers: list[int], one: PricedPlan | None) -> Subset:
        own = offer_of(one) if one else None
        return Subset(
            devices=" + ".join(f"{groups[n].devices:,} {groups[n].name}" for n in numbers),
            step_time_s=one.step_time_s if one else None,
            price_per_step=one.estimate.price_per_step if one else None,
            kept=own.kept if own else 1.0,
            amount=aim.by.compared(own) if own else None,
        )

    every = list(range(len(groups)))
    return Mixing(
        step_time_s=estimate.step_time_s,
        used=len(devices_used(cluster, estimate)),
        alone=tuple(subset([n], one) for n, one in found.alone.items()),
        without=tuple((groups[n].name, subset([k for k in every if k != n], one)) for n, one in found.without.items()),
        held=tuple(_held(job, estimate)),
        slowest=_slowest(estimate),
        doubts=doubts,
        frameworks=frameworks,
        idle=tuple(idle_devices(cluster, estimate, rented=aim.rents)),
        places=tuple(_places(cluster, job, estimate)),
        equal=tuple(_equal(cluster, job)),
        searched=searched,
        passed_over_s=found.passed_over.step_time_s if found.passed_over else None,
        launched=found.launched and LaunchedPlan(target=found.launched[0], step_time_s=found.launched[1].step_time_s),
        kinds=len({group.device.name for group in groups}),
        per_step=estimate.price_per_step if aim.rents else None,
        by=aim.by,
        amount=aim.by.compared(offer),
        kept=offer.kept,
    )


def idle_devices(
    cluster: ClusterSpec, estimate: StepPrice, *, rented: bool, preempted: Collection[str] = ()
) -> Iterator[IdleDevices]:
    """Devices of each group that a plan leaves out.

    Args:
        cluster: the cluster that was asked about.
        estimate: the estimate of the plan.
        rented: whether fewer devices were looked for because they cost less.
        preempted: groups of the quickest step, which preemptions put behind this plan.
    """
    in_use = devices_used(cluster, estimate)
    for group in cluster.groups:
        used = in_use[group.name]
        if used < group.devices:
            yield IdleDevices(
                group=group.name,
                idle=group.devices - used,
                devices=group.devices,
                rented=rented,
                strangers=None if used else strangers(cluster, group.name, tuple(in_use)),
                preempted=group.name in preempted,
            )


def _runs(estimate: StepPrice) -> Iterator[tuple[StageEstimate, ...]]:
    """Neighbouring stages of a pipeline on one group."""
    for _, run in groupby(estimate.stages, key=lambda stage: (stage.pipeline, stage.group)):
        yield tuple(run)


def _layers(stage: StageEstimate) -> int:
    return sum(last - first + 1 for first, last in stage.layers)


def _held(job: PlannedJob, estimate: StepPrice) -> list[HeldLayers]:
    """Who holds which layers; neighbouring equal pipelines together."""
    of_pipeline: dict[int, list[HeldLayers]] = {}
    for run in _runs(estimate):
        number = run[0].pipeline
        pipeline = job.plan.pipelines[number]
        strategy = job.plan.strategies[job.plan.strategy_index(pipeline, pipeline.workers[run[0].stage])]
        one = HeldLayers(
            pipelines=(number, number),
            group=run[0].group,
            devices=run[0].devices,
            layers=tuple(map(_layers, run)),
            strategy=strategy,
            micro_batches=pipeline.num_micro_batches,
            mbs=run[0].mbs,
            schedule=pipeline.schedule.token,
            chunks=len(pipeline.workers[run[0].stage].chunks),
        )
        of_pipeline.setdefault(number, []).append(one)
    found: list[HeldLayers] = []
    for _, same in groupby(of_pipeline.values(), key=lambda own: [replace(one, pipelines=(0, 0)) for one in own]):
        alike = list(same)
        ends = alike[0][0].pipelines[0], alike[-1][0].pipelines[0]
        found += [replace(one, pipelines=ends) for one in alike[0]]
    return found


def _slowest(estimate: StepPrice) -> Bottleneck:
    """The bottleneck against the mean of the stages."""
    busiest = max(estimate.stages, key=lambda stage: stage.busy_s)
    own = [stage.busy_s for stage in estimate.stages if stage.pipeline == busiest.pipeline]
    return Bottleneck(
        pipeline=busiest.pipeline,
        stage=busiest.stage,
        group=busiest.group,
        busy_s=busiest.busy_s,
        above_mean=busiest.busy_s / (sum(own) / len(own)) - 1.0,
    )


def _equal(cluster: ClusterSpec, job: PlannedJob) -> Iterator[EqualRanks]:
    """The groups of unlike devices that a plan takes for one."""
    devices = {group.name: group.device.name for group in cluster.groups}
    for group in job.cluster.groups:
        if len({devices.get(name, name) for name in group.members}) > 1:
            device = group.device
            yield EqualRanks(groups=group.members, device=device.name, memory_bytes=device.memory_bytes)


def _places(cluster: ClusterSpec, job: PlannedJob, estimate: StepPrice) -> Iterator[StagePlacement]:
    """The nodes of every run of stages, those of groups that count as one group by group."""
    groups = {group.name: group for group in cluster.groups}
    ends = accumulate((group.devices for group in job.cluster.groups), initial=0)
    starts: Mapping[str, int] = dict(zip((group.name for group in job.cluster.groups), ends, strict=False))
    for run in _runs(estimate):
        workers = job.plan.pipelines[run[0].pipeline].workers
        devices = [device for stage in run for pair in workers[stage.stage].devices for device in pair]
        first, last = min(devices) - starts[run[0].group], max(devices) - starts[run[0].group]
        here = [run[0].group] if run[0].group in groups else run[0].group.split(AND)
        total = next(group.devices for group in job.cluster.groups if group.name == run[0].group)
        counted = counted_devices(cluster, here, total)
        for name in here:
            each = counted[name] // groups[name].nodes
            if first < counted[name] and last >= 0:
                low, high = max(first, 0), min(last, counted[name] - 1)
                yield StagePlacement(
                    group=name,
                    pipeline=run[0].pipeline,
                    stages=(run[0].stage, run[-1].stage),
                    nodes=(low // each, high // each),
                    layers=sum(map(_layers, run)),
                )
            first, last = first - counted[name], last - counted[name]
