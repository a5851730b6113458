"""The one plan: pipelines of workers of chunks of layer runs. A homogeneous plan is one pipeline of equal workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from meshwright.specs.check import Check, HashedOnce, hashed_once
from meshwright.specs.strategy import LayerStrategy

ParameterValue = int | float | str | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """The order of a pipeline: a catalogue name with parameters, or an inline table."""

    name: str = "1f1b"
    parameters: tuple[tuple[str, ParameterValue], ...] = ()
    orders: tuple[tuple[str, ...], ...] = ()
    """One list of tasks such as `F0.3` per worker; empty for a named schedule."""

    @property
    def token(self) -> str:
        """Name and parameters as a plan's one line says them: `hanayo-waves2`, `v-half-raw`, `1f1b-pb`."""
        words = [self.name]
        for name, value in self.parameters:
            if isinstance(value, bool):
                words += [name] if value else []
            else:
                words.append(value if isinstance(value, str) else f"{name}{value}")
        return "-".join(words)


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRun:
    """Consecutive layers of a chunk under one strategy, by index into the plan's table."""

    layers: int
    strategy: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """One virtual stage: the layers that run between two transfers."""

    virtual_stage: int
    layers: tuple[tuple[int, int], ...]
    """Inclusive ranges; more than one where blocks are scattered (FTPipe)."""
    runs: tuple[StrategyRun, ...]
    embedding: bool = False
    head: bool = False
    """Final norm, projection and loss, and multi-token-prediction modules."""
    copy: Literal["primary", "replica", "redundant"] = "primary"
    """`replica`: a second full-right copy (bidirectional pipelines); `redundant`: kept against failures (Bamboo)."""

    @property
    def num_layers(self) -> int:
        """Layers of all ranges."""
        return sum(last - first + 1 for first, last in self.layers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The devices that hold one stage, all its data-parallel ranks together."""

    devices: tuple[tuple[int, int], ...]
    """Inclusive ranges of device numbers in the cluster's order."""
    chunks: tuple[Chunk, ...]
    rank_order: str = "tp-cp-ep-dp"
    """Innermost first."""

    @property
    def num_devices(self) -> int:
        """Devices of all ranges."""
        return sum(last - first + 1 for first, last in self.devices)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """One chain of workers that trains whole sequences."""

    micro_batch: int
    """Sequences per micro-batch and data-parallel rank of the first layer; layers of another data degree split the same
    sequences among their own ranks."""
    num_micro_batches: int
    workers: tuple[Worker, ...]
    schedule: Schedule = Schedule()
    shapes: tuple[tuple[int, int], ...] = ()
    """(sequences, padded length) of each micro-batch where they differ (DynaPipe); empty when all are alike."""

    def chunks(self) -> Iterator[Chunk]:
        """All chunks, worker by worker."""
        for worker in self.workers:
            yield from worker.chunks


@hashed_once
@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionPlan(HashedOnce):
    """How one step is executed, on any cluster."""

    strategies: tuple[LayerStrategy, ...]
    pipelines: tuple[Pipeline, ...]

    def __post_init__(self) -> None:
        check = Check("plan")
        check.that(bool(self.pipelines), "pipelines", [], "must hold at least one pipeline")
        counts = set()
        taken: list[tuple[int, int]] = []
        for number, pipeline in enumerate(self.pipelines):
            here = f"pipelines[{number}]"
            check.whole(f"{here}.micro_batch", pipeline.micro_batch)
            check.whole(f"{here}.num_micro_batches", pipeline.num_micro_batches)
            check.that(
                len(pipeline.shapes) in (0, pipeline.num_micro_batches),
                f"{here}.shapes",
                len(pipeline.shapes),
                f"must be empty or one for each of the {pipeline.num_micro_batches} micro-batches",
            )
            check.that(bool(pipeline.workers), f"{here}.workers", [], "must hold at least one worker")
            counts.add(self._check_layers(check, here, pipeline))
            for index, worker in enumerate(pipeline.workers):
                self._check_worker(check, f"{here}.workers[{index}]", worker)
                taken.extend(worker.devices)
        if any(strategy.data.across for strategy in self.strategies) and not check.problems:
            self._check_joint_states(check)
        check.that(len(counts) <= 1, "pipelines", sorted(counts), "all pipelines must hold the same number of layers")
        taken.sort()
        for (_, last), (first, _) in pairwise(taken):
            check.that(first > last, "devices", first, "a device belongs to one worker only")
        check.done()

    def _check_joint_states(self, check: Check) -> None:
        from meshwright.specs.joint_states import check_joint_states  # few plans have any

        runs = [run.strategy for pipeline in self.pipelines for chunk in pipeline.chunks() for run in chunk.runs]
        if used := [self.strategies[number] for number in dict.fromkeys(runs)]:
            chunks = [len(list(pipeline.chunks())) for pipeline in self.pipelines]
            counts = [pipeline.num_micro_batches for pipeline in self.pipelines]
            check_joint_states(check, used, self.devices, chunks, counts)

    def _check_layers(self, check: Check, here: str, pipeline: Pipeline) -> int:
        ranges = sorted(r for chunk in pipeline.chunks() if chunk.copy == "primary" for r in chunk.layers)
        expected = 0
        for first, last in ranges:
            if not check.that(
                first == expected and last >= first,
                f"{here}.layers",
                [first, last],
                f"the layers of the primary copies must be 0, 1, 2 ... once each; expected {expected} here",
            ):
                break
            expected = last + 1
        for chunk in pipeline.chunks():
            covered = sum(run.layers for run in chunk.runs)
            check.that(
                covered == chunk.num_layers,
                f"{here}.runs",
                covered,
                f"must cover the chunk's {chunk.num_layers} layers",
            )
        return expected

    def _check_worker(self, check: Check, here: str, worker: Worker) -> None:
        for first, last in worker.devices:
            check.that(0 <= first <= last, f"{here}.devices", [first, last], "must be a range first <= last from 0 on")
        for chunk in worker.chunks:
            for run in chunk.runs:
                known = 0 <= run.strategy < len(self.strategies)
                if not check.that(
                    known, f"{here}.strategy", run.strategy, f"must index {len(self.strategies)} strategies"
                ):
                    continue
                strategy = self.strategies[run.strategy]
                check.that(
                    strategy.devices == worker.num_devices,
                    f"{here}.devices",
                    worker.num_devices,
                    f"must be tp {strategy.tp} x cp {strategy.cp} x dp {strategy.dp} = {strategy.devices}",
                )
                expert = strategy.expert.ep * strategy.expert.etp
                check.that(
                    strategy.devices % expert == 0,
                    f"{here}.strategy.expert",
                    expert,
                    f"ep {strategy.expert.ep} x etp {strategy.expert.etp} must divide the {strategy.devices} devices",
                )

    def strategy_index(self, pipeline: Pipeline, worker: Worker, chunk: Chunk | None = None) -> int:
        """The strategy of a chunk's first layers; of the worker's, or the pipeline's, where it holds none itself."""
        near = [chunk] if chunk is not None else []
        for candidate in (*near, *worker.chunks, *pipeline.chunks()):
            if candidate.runs:
                return candidate.runs[0].strategy
        return 0

    @property
    def num_layers(self) -> int:
        """Layers every pipeline holds."""
        return sum(chunk.num_layers for chunk in self.pipelines[0].chunks() if chunk.copy == "primary")

    @property
    def devices(self) -> int:
        """Devices in use."""
        return sum(worker.num_devices for pipeline in self.pipelines for worker in pipeline.workers)

    @property
    def joint_ranks(self) -> int:
        """Data and context ranks that hold one copy of the sharded states, all pipelines together; 0 where each
        pipeline holds its own."""
        first = self.pipelines[0]
        return self.strategies[self.strategy_index(first, first.workers[0])].data.across

    def with_pipelines(
        self, pipelines: Iterable[Pipeline], strategies: Sequence[LayerStrategy] | None = None
    ) -> ExecutionPlan:
        """The plan with other pipelines; what all of them hold together is held by the ranks that they have now.

        Args:
            pipelines: the pipelines of the later plan.
            strategies: the strategies of the later plan; None for those of this one.
        """
        own, kept = tuple(pipelines), tuple(self.strategies if strategies is None else strategies)
        if not self.joint_ranks:
            return replace(self, strategies=kept, pipelines=own)
        devices = sum(worker.num_devices for pipeline in own for worker in pipeline.workers)

        def held(strategy: LayerStrategy) -> LayerStrategy:
            across = devices // strategy.tp if len(own) > 1 else 0
            return replace(strategy, data=replace(strategy.data, across=across))

        return replace(self, strategies=tuple(held(one) if one.data.across else one for one in kept), pipelines=own)

    @property
    def global_batch(self) -> int:
        """Sequences per step over all pipelines: micro-batch x micro-batches x data degree."""
        return sum(
            self.data_degree(p) * (sum(sequences for sequences, _ in p.shapes) or p.micro_batch * p.num_micro_batches)
            for p in self.pipelines
        )

    def data_degree(self, pipeline: Pipeline) -> int:
        """Data degree of a pipeline's first layer, by which its micro-batch is counted."""
        first = None
        for chunk in pipeline.chunks():
            if chunk.runs and (first is None or _first_layer(chunk) < _first_layer(first)):
                first = chunk
                if _first_layer(first) == _THE_FIRST:
                    break
        return 1 if first is None else self.strategies[first.runs[0].strategy].dp


def _first_layer(chunk: Chunk) -> tuple[bool, int]:
    """Sorts chunks by their first layer, primary copies before others."""
    return chunk.copy != "primary", chunk.layers[0][0] if chunk.layers else -1


_THE_FIRST = (False, 0)
"""Answer for a chunk before which no other with layers comes."""
