"""Who planned which slice of a plan that parallelizers made parts of, and what their answers are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.planning.mixed.source import PricedPlan
from meshwright.specs.plan import StrategyRun
from meshwright.specs.strategy import LayerStrategy

MOST_SKIPS = 6
"""Reasons of skips that an error or a report names; all of them are in the data of an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSlice:
    """A stage of the best plan and whose it is."""

    pipeline: int
    stage: int
    layers: tuple[int, int]
    """First and last layer."""
    group: str
    devices: int
    parallelizer: str
    runs: tuple[StrategyRun, ...]
    strategies: tuple[LayerStrategy, ...]
    claimed_s: float
    """Forward and backward of a micro-batch, as its parallelizer says."""
    priced_s: float
    """Forward and backward of a micro-batch, as `estimate` says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """How the plans of an answer were composed of partial plans."""

    parallelizers: tuple[str, ...]
    step_time_s: float
    claimed_s: tuple[float, ...]
    """Step of each plan by what its parallelizers say of their slices."""
    slices: tuple[PlannedSlice, ...]
    """The planned slices of the best plan."""
    skips: tuple[str, ...]
    """What was not answered, or answered and not taken, and why."""
    own: str = ""
    """Title of the plan of our own search, nothing where it found none."""
    own_s: float | None = None
    """Step of the plan of our own search; None where it found none."""
    tight: bool = False
    """Whether the plans leave less memory free than those of our own search."""


def planned_slices(one: PricedPlan) -> Iterator[PlannedSlice]:
    """Every stage with its planner's seconds and those of `estimate`.

    Args:
        one: a plan made of partial plans.
    """
    assert one.slices is not None
    priced = {(stage.pipeline, stage.stage): stage for stage in one.estimate.stages}
    for number, pipeline in enumerate(one.slices.pipelines):
        for place, stage in enumerate(pipeline.stages):
            yield PlannedSlice(
                pipeline=number,
                stage=place,
                layers=(stage.first, stage.last),
                group=one.job.cluster.groups[stage.group].name,
                devices=stage.plan.devices,
                parallelizer=stage.parallelizer,
                runs=stage.plan.runs,
                strategies=stage.plan.strategies,
                claimed_s=stage.micro_batch_s,
                priced_s=priced[number, place].busy_s / one.plan.pipelines[number].num_micro_batches,
            )
