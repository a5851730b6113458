"""Plans of one job priced one after the other: rows, links and whole pipelines that return are not priced again.

    step = max over workers of all pipelines of (end of its last backward + exposed gradient sum)
           + the slowest optimizer + gather

Pipelines run side by side, each by its own schedule; gradients are summed when the last one has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from meshwright.errors import UnsupportedError
from meshwright.estimate.data.network import DataGroups, Partners
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.holdings import Holding, beside, counts_of_rows, holding, layouts, updates_of
from meshwright.estimate.hops import HopLinks, HopSide, PipelineHops, with_hops
from meshwright.estimate.layout import ModelLayout
from meshwright.estimate.pipeline import BoundaryColumns, PricedItems, StageCounts, pipeline_columns
from meshwright.estimate.rows import RowKey, Rows, sharding_of
from meshwright.estimate.run import PipelineColumns
from meshwright.estimate.site import Site, Sites
from meshwright.estimate.stages import StageRows, computed, edge_strategy, stage_counts
from meshwright.estimate.step import RunPipeline, StepColumns, Workers, run_pipeline, step_of
from meshwright.estimate.uneven_delay import uneven_delay
from meshwright.schedules import Schedule
from meshwright.schedules.plan_rows import schedule_of
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan, Pipeline, Worker
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import Workload
from meshwright.strategies.data import ShardingColumns, whole_between


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RunPlan:
    """All pipelines of a plan and what follows them; workers of all pipelines side by side."""

    pipelines: tuple[RunPipeline, ...]
    stages: tuple[tuple[Site, ...], ...]
    workers: Workers
    step: StepColumns


class PlanPricer:
    """Prices plans of one model on one cluster."""

    def __init__(
        self,
        model: ModelSpec,
        cluster: ClusterSpec,
        workload: Workload,
        hardware: Hardware | None = None,
        *,
        transfers_apart: bool = True,
    ) -> None:
        """Price nothing yet.

        Args:
            model: the model of all plans.
            cluster: any groups.
            workload: the workload of all plans.
            hardware: instead of the library's, for a cluster of one group.
            transfers_apart: run pipelines once more without transfers, so that `pp` and `bubble` are told apart.
        """
        self._transfers_apart = transfers_apart
        self.model, self.cluster, self.workload, self.hardware = model, cluster, workload, hardware
        self.layout = ModelLayout.of(model, workload.seq_len)
        self.sites = Sites(cluster, workload, hardware)
        self.rows = Rows(model, workload, self.sites)
        self.links = HopLinks(self.rows)
        self._pipelines: dict[object, RunPipeline] = {}
        self._partners: dict[object, list[Partners]] = {}

    def step_time_s(self, plan: ExecutionPlan) -> float:
        """Seconds of one step of a checked plan."""
        return float(self.run(plan).step.step_time_s[0])

    def run(self, plan: ExecutionPlan) -> RunPlan:
        """Every pipeline to its end, gradients summed, weights updated.

        Args:
            plan: checked.
        """
        stages = self.stages(plan)
        pipelines = tuple(
            self._pipeline(plan, pipeline, own) for pipeline, own in zip(plan.pipelines, stages, strict=True)
        )
        flat = [site for own in stages for site in own]
        workers = Workers(
            views=self.sites.views,
            view=np.array([site.view for site in flat]),
            devices=np.array([site.devices for site in flat], dtype=float),
            # Where pipelines hold states together, what is summed in the group is summed over all of them.
            partners=self._rings(plan, stages) if len(stages) > 1 and not plan.joint_ranks else None,
        )
        return RunPlan(
            pipelines=pipelines, stages=stages, workers=workers, step=step_of(pipelines, workers, self.workload)
        )

    def stages(self, plan: ExecutionPlan) -> tuple[tuple[Site, ...], ...]:
        """Where the workers of each pipeline stand; with the links of one group where they hold states together.

        Args:
            plan: checked.
        """
        stages = tuple(tuple(self.sites.of(worker) for worker in pipeline.workers) for pipeline in plan.pipelines)
        return self.sites.joined(stages) if plan.joint_ranks else stages

    def price_rows(self, plans: Sequence[ExecutionPlan]) -> None:
        """Price what the layers of several checked plans cost together, which is quicker than plan after plan."""
        self.rows.price(
            key
            for plan in plans
            for pipeline, stages in zip(plan.pipelines, self.stages(plan), strict=True)
            for key in self._row_keys(
                plan,
                pipeline,
                stages,
                [strategy_of_worker(plan, pipeline, worker) for worker in pipeline.workers],
            ).values()
        )

    def _rings(self, plan: ExecutionPlan, stages: tuple[tuple[Site, ...], ...]) -> list[Partners]:
        """Who sums gradients with whom, or the same as for a plan with as many layers in the same places."""
        from meshwright.estimate.data.partners import holders, partners_of, weights_of  # most plans have one pipeline

        held = [holders(pipeline, self.model.num_layers) for pipeline in plan.pipelines]
        key = (stages, b"".join(place.tobytes() for place in held))
        if key not in self._partners:
            self._partners[key] = partners_of(stages, held, weights_of(self.layout), self.sites)
        return self._partners[key]

    def _whole(self, pipeline: Pipeline, stages: Sequence[Site]) -> int:
        """What FSDP keeps whole between the micro-batches of a pipeline."""
        keeps = self.sites.views[stages[0].view].software.whole_gradients
        found = whole_between(keeps, np.array(pipeline.num_micro_batches), np.array(len(stages)))
        return 0 if found is None else int(found)

    def _pipeline(self, plan: ExecutionPlan, pipeline: Pipeline, stages: Sequence[Site]) -> RunPipeline:
        """A pipeline run to its end, or one like it that was: the same stages, links and batch."""
        whole = self._whole(pipeline, stages)
        numbers = [self.rows.number(strategy, whole) for strategy in plan.strategies]
        edges = [strategy_of_worker(plan, pipeline, worker) for worker in pipeline.workers]
        hops, tied_s = self._hops(plan, pipeline, stages, edges)
        key = (
            pipeline.schedule,
            pipeline.micro_batch,
            pipeline.num_micro_batches,
            plan.data_degree(pipeline),
            tuple(numbers[index] for index in edges),
            tuple(_seen(worker, site, numbers) for worker, site in zip(pipeline.workers, stages, strict=True)),
            (hops.transfer_s.tobytes(), hops.forward_s.tobytes(), hops.backward_s.tobytes(), tied_s),
            _apart(stages),
        )
        if key not in self._pipelines:
            columns, held = self._columns(plan, pipeline, stages, edges, hops, tied_s)
            self._pipelines[key] = run_pipeline(columns, held, transfers_apart=self._transfers_apart)
        return self._pipelines[key]

    def _columns(
        self,
        plan: ExecutionPlan,
        pipeline: Pipeline,
        stages: Sequence[Site],
        edges: Sequence[int],
        hops: PipelineHops,
        tied_s: float,
    ) -> tuple[PipelineColumns, tuple[Holding, ...]]:
        """One pipeline, ready to run: its rows, counts of them in every chunk, and what passes between workers."""
        schedule = schedule_of(pipeline.schedule)
        _require_one_group(schedule, stages)
        rows, whole = self._row_keys(plan, pipeline, stages, edges), self._whole(pipeline, stages)
        keys = {key: number for number, key in enumerate(dict.fromkeys(rows.values()))}
        counted = {cell: keys[key] for cell, key in rows.items()}
        self.rows.price(keys)
        costs, sync = self.rows.costs(list(keys))
        places = self.rows.places
        counts = stage_counts(
            plan, pipeline, schedule, StageRows(layout=self.layout, places=places, number=counted, edge=edges)
        )

        shape = (len(stages), pipeline.num_micro_batches, counts.work.shape[1] // schedule.chains)

        def columns_of(counts: StageCounts, own: Sequence[LayerStrategy]) -> PipelineColumns:
            return pipeline_columns(
                schedule=schedule,
                micro_batches=pipeline.num_micro_batches,
                counts=counts,
                items=PricedItems(
                    costs=costs,
                    sync=sync,
                    whole=np.tile(places.whole, len(keys)),
                    edges=np.tile(places.edges, len(keys)),
                    uneven_delay=uneven_delay(schedule, shape, np.array([float(pipeline.micro_batch)]), self.workload),
                ),
                boundary=BoundaryColumns(
                    transfer_s=hops.transfer_s[None],
                    sent_bytes=np.array([hops.sent_bytes]),
                    devices_apart=np.array([_apart(stages)]),
                    tied_s=np.array([tied_s]),
                    communicators=np.array([[_communicators(s, len(stages), self.model.is_moe) for s in own]]),
                ),
                sharding=self._shardings(own, whole),
                groups=DataGroups(
                    dense_stride=np.array([[s.tp for s in own]]),
                    expert_stride=np.array([[s.expert.ep * s.expert.etp for s in own]]),
                ),
                offload_weights=np.array([[s.offload.weights for s in own]]),
            )

        found = [layouts(plan, worker, edge) for worker, edge in zip(pipeline.workers, edges, strict=True)]
        columns = with_hops(columns_of(counts, [plan.strategies[groups[0][0]] for groups in found]), hops)
        if schedule.pages:
            from meshwright.estimate.paging import with_pages  # few plans page their stages

            hosts = [self.sites.views[site.view].host_bytes_per_s for site in stages]
            columns = with_pages(columns, counts, costs, np.array(hosts), self.workload.precision)
        if all(len(groups) == 1 for groups in found):
            return columns, (holding(columns, updates_of(columns), np.arange(columns.p)),)
        held = []
        for number in range(max(len(groups) for groups in found)):
            own = [groups[min(number, len(groups) - 1)] for groups in found]
            kept = np.zeros((columns.p, len(keys)), dtype=bool)
            for place, group in enumerate(own):
                kept[place, [counted[place, index] for index in group]] = True
            part = columns_of(counts_of_rows(counts, kept), [plan.strategies[group[0]] for group in own])
            having = np.array([place for place, groups in enumerate(found) if number < len(groups)])
            held.append(holding(part, updates_of(part), having))
        return columns, tuple(held)

    def _row_keys(
        self, plan: ExecutionPlan, pipeline: Pipeline, stages: Sequence[Site], edges: Sequence[int]
    ) -> dict[tuple[int, int], RowKey]:
        """The row that each strategy of each worker is priced as."""
        schedule = schedule_of(pipeline.schedule)
        sections = schedule.sections()
        sequences, whole = pipeline.micro_batch * plan.data_degree(pipeline), self._whole(pipeline, stages)
        found: dict[tuple[int, int], RowKey] = {}
        for place, (worker, site) in enumerate(zip(pipeline.workers, stages, strict=True)):
            used = {run.strategy for chunk in worker.chunks for run in chunk.runs} | {edges[place]}
            for index in sorted(used):
                strategy = plan.strategies[index]
                if schedule.pages:
                    # Its weights come stage by stage, not layer by layer.
                    strategy = replace(strategy, offload=replace(strategy.offload, weights=0.0))
                found[place, index] = (
                    site.view,
                    self.rows.number(strategy, whole),
                    _shared(sequences, strategy) / sections,
                )
        return found

    def _hops(
        self, plan: ExecutionPlan, pipeline: Pipeline, stages: Sequence[Site], edges: Sequence[int]
    ) -> tuple[PipelineHops, float]:
        """What passes between workers, and the sum of a shared embedding's gradients."""
        schedule = schedule_of(pipeline.schedule)
        sequences = pipeline.micro_batch * plan.data_degree(pipeline)
        known: dict[int, HopSide] = {}

        def side(index: int) -> HopSide:
            if index not in known:
                strategy = plan.strategies[index]
                known[index] = HopSide.of(strategy, _shared(sequences, strategy) / schedule.sections())
            return known[index]

        sides = [
            [
                [side(run.strategy) for run in chunk.runs] or [side(edge_strategy(chunk, edge))]
                for chunk in computed(worker)
            ]
            for worker, edge in zip(pipeline.workers, edges, strict=True)
        ]
        chunks = max(len(chunks) for chunks in sides)
        placement = schedule.placement(len(stages), chunks // schedule.chains)
        hops = self.links.hops(stages, sides, placement)
        return hops, self.links.tied_s(stages, sides[0][0][0], sides[-1][-1][-1])

    def _shardings(self, strategies: Sequence[LayerStrategy], whole: int) -> ShardingColumns:
        """Data-parallel choices of workers, one row."""
        if all(strategy is strategies[0] for strategy in strategies):
            return sharding_of(strategies[0], whole, len(strategies))
        known = {id(strategy): sharding_of(strategy, whole) for strategy in strategies}
        found = [known[id(strategy)] for strategy in strategies]
        return ShardingColumns(
            **{f.name: beside([getattr(one, f.name) for one in found]) for f in fields(ShardingColumns)}
        )


def micro_batch_of(plan: ExecutionPlan, pipeline: Pipeline, strategy: LayerStrategy) -> int:
    """Sequences of a micro-batch on the fullest data rank of a strategy: those of the first layer's ranks, shared."""
    return _shared(pipeline.micro_batch * plan.data_degree(pipeline), strategy)


def _shared(sequences: int, strategy: LayerStrategy) -> int:
    return -(-sequences // strategy.dp)


def strategy_of_worker(plan: ExecutionPlan, pipeline: Pipeline, worker: Worker) -> int:
    """The strategy of a worker; of another one with as many devices where it holds no layers."""
    if any(chunk.runs for chunk in worker.chunks):
        return plan.strategy_index(pipeline, worker)
    near = (run.strategy for chunk in pipeline.chunks() for run in chunk.runs)
    candidates = (*near, *range(len(plan.strategies)))
    devices = worker.num_devices
    return next((index for index in candidates if plan.strategies[index].devices == devices), candidates[0])


def _require_one_group(schedule: Schedule, stages: Sequence[Site]) -> None:
    """Refuse pipelines in both directions over several groups.

    Raises:
        UnsupportedError: the two copies of a stage stand on different kinds of device.
    """
    groups = list(dict.fromkeys(site.group.name for site in stages))
    if len(groups) > 1 and schedule.chains > 1:
        raise UnsupportedError(
            what=f"schedule {schedule.name} over the groups {' and '.join(groups)}",
            why="its workers hold a stage of each direction, and the two copies of a stage would differ in speed",
            fix="use a schedule of one direction, such as 1f1b or zb-h1",
            field="schedule",
            code="MW407",
        )


def _seen(worker: Worker, site: Site, numbers: Sequence[int]) -> object:
    """All of a worker that its pipeline's time depends on, strategies by their numbers."""
    chunks = tuple(
        (
            chunk.virtual_stage,
            chunk.layers,
            tuple((run.layers, numbers[run.strategy]) for run in chunk.runs),
            (chunk.embedding, chunk.head, chunk.copy),
        )
        for chunk in worker.chunks
    )
    return (site.view, site.devices, chunks)


def _apart(stages: Sequence[Site]) -> int:
    """Devices between the first and the last worker."""
    return max(abs(stages[-1].first - stages[0].first), stages[0].devices)


def _communicators(strategy: LayerStrategy, workers: int, experts: bool) -> float:
    """Process groups with more than one rank."""
    degrees = [strategy.tp, strategy.cp, strategy.cp * strategy.dp, workers]
    if experts:
        inside = strategy.expert.ep * strategy.expert.etp
        degrees += [strategy.expert.ep, strategy.expert.etp, max(strategy.devices // inside, 1)]
    return float(sum(degree > 1 for degree in degrees))
