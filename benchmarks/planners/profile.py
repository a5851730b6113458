"""What every planner here starts from: our prices of layers, where the papers measure, and one form of its plans.

stage     layers first .. end - 1 on some devices, each layer by a row of the table of those devices
seconds   of a micro-batch forward and backward: sum over the stage's parts (layer kinds, embedding, head)
bytes     fixed + largest transient + sum over parts of (state + in flight x kept)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import Protocol

import numpy as np

from meshwright.errors import MeshwrightError
from meshwright.estimate.hardware import hardware_of
from meshwright.estimate.memory import TIGHT_SHARE
from meshwright.estimate.price import estimate_of
from meshwright.estimate.pricer import PlanPricer
from meshwright.estimate.result import StepEstimate
from meshwright.estimate.rules.plan_checks import check_plan
from meshwright.planning.compose.execution_plan import PlanBuilder, StageLayers
from meshwright.planning.compose.links import hop_s, link_between
from meshwright.planning.compose.sources.native.stages import RECOMPUTES, StageOptions, stage_options
from meshwright.planning.question.job_inputs import JobInputs
from meshwright.search.space import Space
from meshwright.search.table import divisors
from meshwright.shapes import Float
from meshwright.specs.plan import ExecutionPlan, Pipeline, StrategyRun
from meshwright.specs.strategy import LayerStrategy

NONE, FULL = 0, len(RECOMPUTES) - 1
"""Recompute of a row, by its number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """Consecutive layers on some devices."""

    first: int
    devices: int
    rows: tuple[int, ...]
    """Of each layer, in the table of these devices and the plan's global micro-batch."""

    @property
    def end(self) -> int:
        """The layer behind its last."""
        return self.first + len(self.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan as a planner sees it."""

    stages: tuple[PlannedStage, ...]
    global_micro_batch: int
    """Sequences of a micro-batch over all data ranks of a stage."""
    step_s: float
    """Of its own model of time."""


class Planner(Protocol):
    """A planner of the literature."""

    name: str
    source: str
    space: Space
    """What its stages may be."""
    searches: str
    """Its search, in a line."""
    leaves_out: str
    """What of the paper's is not here."""

    def proposals(self, profile: Profile) -> Iterator[Proposal]:
        """Its plans, in any order; the quickest by its own model of time that fits by ours is its answer."""
        ...


@dataclass(slots=True)
class Profile:
    """Prices of one job on devices of one kind."""

    inputs: JobInputs
    space: Space
    _tables: dict[tuple[int, int], StageOptions | None] = field(default_factory=dict)

    @property
    def layers(self) -> int:
        """Of the model."""
        return self.inputs.model.num_layers

    @property
    def devices(self) -> int:
        """Of the cluster."""
        return self.inputs.cluster.devices

    @property
    def node(self) -> int:
        """Devices of a node."""
        return self.inputs.cluster.groups[0].devices_per_node

    @property
    def global_micro_batches(self) -> list[int]:
        """Sequences of a micro-batch that planners try: powers of two that divide the batch."""
        return [
            global_micro_batch
            for global_micro_batch in divisors(self.inputs.workload.global_batch)
            if global_micro_batch & (global_micro_batch - 1) == 0
        ]

    @property
    def sizes(self) -> list[int]:
        """Devices of a stage that planners try: powers of two."""
        return [1 << power for power in range(self.devices.bit_length()) if 1 << power <= self.devices]

    @property
    def room_bytes(self) -> float:
        """Memory of a device that a plan may fill."""
        return self.inputs.cluster.groups[0].device.memory_bytes * (1.0 - TIGHT_SHARE)

    def micro_batches(self, global_micro_batch: int) -> int:
        """Of a step.

        Args:
            global_micro_batch: sequences of one.
        """
        return self.inputs.workload.global_batch // global_micro_batch

    def table(self, devices: int, global_micro_batch: int) -> StageOptions | None:
        """Every strategy of the planner's space for a stage of so many devices; None where none is legal.

        Args:
            devices: of the stage.
            global_micro_batch: sequences of a micro-batch.
        """
        key = devices, global_micro_batch
        if key not in self._tables:
            group = self.inputs.cluster.groups[0]
            found = stage_options(
                self.inputs.model,
                self.inputs.workload,
                [hardware_of(group, self.inputs.workload)],
                sizes=[devices],
                global_micro_batches=[global_micro_batch],
                most_tensor=max(group.devices_per_node, group.domains[0].size),
                space=self.space,
                layers_per_device=self.layers / self.devices,
            )
            self._tables[key] = found[0] if found and len(found[0]) else None
        return self._tables[key]

    def counts(self, first: int, end: int) -> Float[np.ndarray, " parts"]:
        """How often each part of a table stands in the layers first .. end - 1.

        Args:
            first: layer.
            end: behind the last layer.
        """
        kinds = self.inputs.model.kinds()
        own = [kinds.index(kind) for kind in self.inputs.model.layers()][first:end]
        edges = [float(first == 0), float(end == self.layers)]
        return np.concatenate([np.bincount(own, minlength=len(kinds)).astype(float), edges])

    def bytes_of(
        self, table: StageOptions, counts: Float[np.ndarray, " parts"], in_flight: float
    ) -> Float[np.ndarray, " rows"]:
        """Bytes of a device of a stage whose layers all have one row, for every row.

        Args:
            table: of its devices.
            counts: of its parts.
            in_flight: micro-batches that it keeps.
        """
        transient = np.where(counts > 0, table.transient_bytes, 0.0).max(axis=1)
        return np.asarray(table.fixed_bytes + transient + (table.state_bytes + in_flight * table.kept_bytes) @ counts)

    def equal_stages(self) -> Iterator[tuple[int, int, StageOptions]]:
        """Numbers of equal stages with each micro-batch, in sequences of it, and the strategies of such a stage."""
        for stages in self.sizes:
            if self.devices % stages or stages > self.layers:
                continue
            for global_micro_batch in self.global_micro_batches:
                table = self.table(self.devices // stages, global_micro_batch)
                if table is not None:
                    yield stages, global_micro_batch, table

    def hop_s(self, devices: int, global_micro_batch: int) -> float:
        """One boundary tensor from a stage to the next, forward and backward.

        Args:
            devices: of the smaller of the two.
            global_micro_batch: sequences of a micro-batch.
        """
        width = self.inputs.workload.precision.bytes_of("activations")
        part = global_micro_batch * self.inputs.workload.seq_len / devices * self.inputs.model.hidden * width
        return 2 * hop_s(part, link_between(self.inputs.cluster, 0, 0))

    def plan(self, proposal: Proposal) -> ExecutionPlan:
        """A proposal on numbered devices, under 1F1B.

        Args:
            proposal: of this job.
        """
        builder, number = PlanBuilder(), len(proposal.stages)
        starts = [0, *accumulate(stage.devices for stage in proposal.stages)]
        held = [self._held(stage, place, proposal.global_micro_batch) for place, stage in enumerate(proposal.stages)]
        workers = [
            builder.worker(start, stage.devices, [layers], number)
            for start, stage, layers in zip(starts, proposal.stages, held, strict=False)
        ]
        ranks = held[0].strategies[held[0].runs[0].strategy].dp
        pipeline = Pipeline(
            micro_batch=proposal.global_micro_batch // ranks,
            num_micro_batches=self.micro_batches(proposal.global_micro_batch),
            workers=tuple(workers),
        )
        return builder.plan([pipeline])

    def _held(self, stage: PlannedStage, place: int, global_micro_batch: int) -> StageLayers:
        table = self.table(stage.devices, global_micro_batch)
        assert table is not None, "it was made of rows of this table"
        used: dict[LayerStrategy, int] = {}
        runs = []
        for row, same in groupby(stage.rows):
            strategy = table.plan_row(row, 1).strategy()
            runs.append(StrategyRun(layers=len(list(same)), strategy=used.setdefault(strategy, len(used))))
        return StageLayers(virtual_stage=place, first=stage.first, strategies=tuple(used), runs=tuple(runs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A planner's answer, priced in full."""

    plan: ExecutionPlan
    estimate: StepEstimate
    claimed_s: float
    """The step by the planner's own model of time."""
    seen: int
    """Proposals before it and with it that were priced in full."""


def priced(profile: Profile, proposal: Proposal, pricer: PlanPricer) -> Found | None:
    """A proposal priced in full; None where it cannot run.

    Args:
        profile: of the job.
        proposal: of a planner.
        pricer: of the job.
    """
    plan = profile.plan(proposal)
    try:
        check_plan(plan, profile.inputs.model, profile.inputs.cluster, profile.inputs.workload)
        estimate = estimate_of(plan, pricer)
    except MeshwrightError:
        return None
    return Found(plan=plan, estimate=estimate, claimed_s=proposal.step_s, seen=1)


MOST_PRICED = 64
"""Proposals that are priced in full until one fits."""


def answer(planner: Planner, inputs: JobInputs) -> Found | None:
    """The quickest proposal by the planner's own model that fits by ours; None where none of the first ones does.

    Args:
        planner: of the literature.
        inputs: of the job.
    """
    profile = Profile(inputs, planner.space)
    pricer = PlanPricer(inputs.model, inputs.cluster, inputs.workload, transfers_apart=False)
    ordered = sorted(planner.proposals(profile), key=lambda proposal: proposal.step_s)
    for number, proposal in enumerate(ordered[:MOST_PRICED], start=1):
        found = priced(profile, proposal, pricer)
        if found is not None and found.estimate.fits == "yes":
            return Found(plan=found.plan, estimate=found.estimate, claimed_s=found.claimed_s, seen=number)
    return None
