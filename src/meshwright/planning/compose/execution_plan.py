"""Pipelines of stages on numbered devices as the one plan, whichever source they come from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, StrategyRun, Worker
from meshwright.specs.strategy import LayerStrategy


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLayers:
    """Layers that stand together on one worker, the first of them and which strategies they have."""

    virtual_stage: int
    first: int
    strategies: Sequence[LayerStrategy]
    runs: Sequence[StrategyRun]
    """Runs of layers with their strategies, by number above; none where the stage holds an end of the model alone."""


@dataclass(frozen=True, slots=True)
class PlanBuilder:
    """Strategies of a plan, numbered as they are met, and the workers and pipelines that have them."""

    strategies: dict[LayerStrategy, int] = field(default_factory=dict)

    def worker(self, first_device: int, devices: int, held: Iterable[StageLayers], stages: int) -> Worker:
        """A worker on consecutive devices.

        Args:
            first_device: the first device by number in the cluster.
            devices: the number of devices of the worker.
            held: its chunks in order.
            stages: virtual stages of the pipeline, of which the first has the embedding and the last the head.
        """
        return Worker(
            devices=((first_device, first_device + devices - 1),),
            chunks=tuple(self._chunk(layers, stages) for layers in held),
        )

    def _chunk(self, held: StageLayers, stages: int) -> Chunk:
        number = [self.strategies.setdefault(strategy, len(self.strategies)) for strategy in held.strategies]
        count = sum(run.layers for run in held.runs)
        return Chunk(
            virtual_stage=held.virtual_stage,
            layers=((held.first, held.first + count - 1),) if count else (),
            runs=tuple(StrategyRun(layers=run.layers, strategy=number[run.strategy]) for run in held.runs),
            embedding=held.virtual_stage == 0,
            head=held.virtual_stage == stages - 1,
        )

    def plan(self, pipelines: Iterable[Pipeline]) -> ExecutionPlan:
        """The plan of these pipelines, made of workers of this builder."""
        made = tuple(pipelines)
        return ExecutionPlan(strategies=tuple(self.strategies), pipelines=made)
