"""Every plan of a small mixed cluster, priced by `estimate` alone: what the planner's own search may miss.

A pipeline is any list of stages: sizes, groups in any order and as often as one likes, a tensor, context and data
degree, a sharding and a recompute mode of each, layers cut anywhere, any micro-batch. A plan is any number of them on
different devices with micro-batches that add up to the batch. Nothing is shared with the planner but `PlanPricer`:
no closed form, no table of strategies, no bound. Sets of several pipelines are priced in the order of the slower
member by itself, which no partner makes quicker; that is the only rule that leaves any out.

    python -m benchmarks.every_plan --draws 8
"""

from __future__ import annotations

import argparse
import itertools
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from meshwright.estimate.price import estimate_of
from meshwright.estimate.pricer import PlanPricer
from meshwright.fields.job import JobFields
from meshwright.planning.compose.execution_plan import PlanBuilder, StageLayers
from meshwright.planning.mixed.native import NativeSource
from meshwright.planning.mixed.search import mixed_plans
from meshwright.planning.question.job_inputs import JobInputs, job_inputs
from meshwright.schedules.plan_rows import plan_of
from meshwright.search.space import Space
from meshwright.specs.plan import ExecutionPlan, Pipeline, StrategyRun
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import LayerStrategy
from meshwright.units import percent, seconds

SHARDINGS = ("z0", "z1", "z2", "fsdp")
MODELS = ("llama-3.2-1b", "llama-3.2-3b", "qwen3-8b")
KINDS = ("H100", "A100-80", "L40S", "H200")
CLUSTERS = ((1, 1), (2, 1), (1, 2), (2, 2), (3, 1))
BATCHES = (2, 3, 4, 6, 8, 16)
LAYERS = 4
LEAST = 1e-6
"""Share of the step that counts as quicker."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What a stage may be."""

    tensor: tuple[int, ...] = (1, 2, 4)
    context: tuple[int, ...] = (1, 2, 4)
    context_kinds: tuple[str, ...] = ("p2p", "ulysses")
    shardings: tuple[str, ...] = SHARDINGS
    recomputes: tuple[str, ...] = ("none",)

    def strategies(self, devices: int) -> list[LayerStrategy]:
        """Of a stage of so many devices."""
        return [
            _strategy(tp, ((kind, cp),) if cp > 1 else (), devices // (tp * cp), sharding, recompute)
            for tp in self.tensor
            for cp in self.context
            if devices % (tp * cp) == 0
            for kind in (self.context_kinds if cp > 1 else ("",))
            for sharding in (self.shardings if devices > tp else ("z0",))
            for recompute in self.recomputes
        ]


@dataclass(frozen=True, slots=True)
class Staged:
    """A pipeline before it is placed on numbered devices."""

    stages: tuple[tuple[int, int, LayerStrategy], ...]
    """Group, devices and strategy of each."""
    layers: tuple[int, ...]
    global_micro_batch: int
    """Sequences of a micro-batch over the data ranks of a stage."""

    def used(self, groups: int) -> tuple[int, ...]:
        """Devices of each group."""
        return tuple(sum(size for group, size, _ in self.stages if group == number) for number in range(groups))


class EveryPlan:
    """All plans of a job on few devices."""

    def __init__(self, inputs: JobInputs, axes: Axes = Axes()) -> None:
        self.inputs, self.axes = inputs, axes
        self.pricer = PlanPricer(inputs.model, inputs.cluster, inputs.workload, transfers_apart=False)
        self.counts = tuple(group.devices for group in inputs.cluster.groups)
        self.priced = 0

    @property
    def batch(self) -> int:
        """Sequences of a step."""
        return self.inputs.workload.global_batch

    @cached_property
    def pipelines(self) -> dict[tuple[int, ...], list[Staged]]:
        """All pipelines by the devices of each group that they use."""
        found: dict[tuple[int, ...], list[Staged]] = {}
        for stages in self._stage_lists(self.counts, self.inputs.model.num_layers):
            for layers in _compositions(self.inputs.model.num_layers, len(stages)):
                for global_micro_batch in range(1, self.batch + 1):
                    if all(global_micro_batch % strategy.dp == 0 for _, _, strategy in stages):
                        one = Staged(stages, layers, global_micro_batch)
                        found.setdefault(one.used(len(self.counts)), []).append(one)
        return found

    def _stage_lists(self, left: tuple[int, ...], most: int) -> Iterator[tuple[tuple[int, int, LayerStrategy], ...]]:
        for group, size in ((g, n) for g, free in enumerate(left) for n in range(1, free + 1)):
            rest = tuple(free - size * (number == group) for number, free in enumerate(left))
            for strategy in self.axes.strategies(size):
                here = (group, size, strategy)
                yield (here,)
                if most > 1:
                    yield from ((here, *behind) for behind in self._stage_lists(rest, most - 1))

    def plan(self, pipelines: Iterable[tuple[Staged, int]]) -> ExecutionPlan:
        """The pipelines with their micro-batches on the first free devices of their groups."""
        builder = PlanBuilder()
        free = [sum(self.counts[:number]) for number in range(len(self.counts))]
        made = []
        for one, micro_batches in pipelines:
            workers, first = [], 0
            for place, ((group, size, strategy), layers) in enumerate(zip(one.stages, one.layers, strict=True)):
                runs = (StrategyRun(layers=layers, strategy=0),)
                held = StageLayers(virtual_stage=place, first=first, strategies=(strategy,), runs=runs)
                workers.append(builder.worker(free[group], size, [held], len(one.stages)))
                free[group] += size
                first += layers
            each = one.global_micro_batch // one.stages[0][2].dp
            made.append(Pipeline(micro_batch=each, num_micro_batches=micro_batches, workers=tuple(workers)))
        return builder.plan(made)

    def step_s(self, pipelines: Sequence[tuple[Staged, int]]) -> float:
        """By `estimate`."""
        self.priced += 1
        return self.pricer.step_time_s(self.plan(pipelines))

    def fits(self, pipelines: Sequence[tuple[Staged, int]]) -> bool:
        """Whether it leaves enough of the memory of every device."""
        return estimate_of(self.plan(pipelines), self.pricer).fits == "yes"

    def best(self, below_s: float = math.inf) -> tuple[float, ExecutionPlan | None]:
        """The quickest plan that fits.

        Args:
            below_s: slower plans nobody wants to know.

        Returns:
            Its seconds and the plan; the limit and None where there is none.
        """
        alone: dict[tuple[int, ...], list[tuple[float, Staged, int]]] = {}
        for used, pipelines in self.pipelines.items():
            own = [
                (self.step_s([(one, count)]), one, count)
                for one in pipelines
                for count in range(1, self.batch // one.global_micro_batch + 1)
            ]
            alone[used] = sorted(own, key=lambda each: each[0])
        found: list[tuple[float, ExecutionPlan | None]] = [(below_s, None)]
        for uses in self._divisions(self.counts, sorted(alone)):
            for step_s, chosen in self._sets([alone[used] for used in uses], lambda: found[-1][0]):
                if step_s < found[-1][0] and self.fits(chosen):
                    found.append((step_s, self.plan(chosen)))
        return found[-1]

    def _divisions(self, left: tuple[int, ...], uses: list[tuple[int, ...]]) -> Iterator[tuple[tuple[int, ...], ...]]:
        for number, used in enumerate(uses):
            rest = tuple(free - taken for free, taken in zip(left, used, strict=True))
            if min(rest) >= 0:
                yield (used,)
                yield from ((used, *others) for others in self._divisions(rest, uses[number:]))

    def _sets(
        self, choices: list[list[tuple[float, Staged, int]]], limit_s: Callable[[], float]
    ) -> Iterator[tuple[float, list[tuple[Staged, int]]]]:
        """One pipeline of each list, batch shared out, as long as none by itself is slower than the best."""

        def grow(number: int, left: int) -> Iterator[list[tuple[Staged, int]]]:
            if number == len(choices):
                if left == 0:
                    yield []
                return
            for step_s, one, count in choices[number]:
                if step_s >= limit_s():  # the best gets better meanwhile
                    return
                done = one.global_micro_batch * count
                fewest = len(choices) - number - 1
                if (done == left) if not fewest else (done <= left - fewest):
                    yield from ([(one, count), *rest] for rest in grow(number + 1, left - done))

        for chosen in grow(0, self.batch):
            yield self.step_s(chosen), chosen


def few_layers(inputs: JobInputs, layers: int) -> JobInputs:
    """The job of a model of so many layers."""
    (run,) = inputs.model.runs
    return replace(inputs, model=replace(inputs.model, runs=(replace(run, repeats=layers),)))


def small_job(model: str, gpus: str, batch: int, seq_len: int = 2048) -> JobInputs:
    """A job of few layers on few devices."""
    return few_layers(job_inputs(JobFields(model=model, gpus=gpus, seq_len=seq_len, global_batch=batch)), LAYERS)


def _strategy(tp: int, cp: tuple[tuple[str, int], ...], dp: int, sharding: str, recompute: str) -> LayerStrategy:
    row = PlanRow(tp=tp, cp=cp, dp=dp, sharding=sharding, mbs=1, gbs=dp, recompute=recompute)
    return plan_of(row, (1,)).strategies[0]


def _compositions(total: int, parts: int) -> Iterator[tuple[int, ...]]:
    for cuts in itertools.combinations(range(1, total), parts - 1):
        yield tuple(b - a for a, b in itertools.pairwise((0, *cuts, total)))


def compared(model: str, gpus: str, batch: int) -> str:
    """One line: what the planner finds, and what every plan holds.

    Args:
        model: of the library, all its layers alike.
        gpus: two kinds of device, few of each.
        batch: sequences of a step.
    """
    inputs = small_job(model, gpus, batch)
    started = time.process_time()
    own_s = mixed_plans(NativeSource(inputs, lambda part: Space())).quickest.step_time_s
    planned_s, started = time.process_time() - started, time.process_time()
    every = EveryPlan(inputs)
    best_s, best = every.best(own_s * (1 - LEAST))
    found = f"{percent(own_s / best_s - 1)} quicker: {seconds(best_s)}" if best else "nothing quicker"
    return (
        f"{model} of {LAYERS} layers, {gpus}, batch {batch}: planner {seconds(own_s)} in {planned_s:.1f} s; all: "
        f"{found}, {every.priced:,} priced in {time.process_time() - started:.0f} s"
    )


def main() -> None:
    """Draw small clusters and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw = random.Random(options.seed)
    for _ in range(options.draws):
        counts, kinds = draw.choice(CLUSTERS), draw.sample(KINDS, 2)
        gpus = ",".join(f"{count}x{kind}" for count, kind in zip(counts, kinds, strict=True))
        print(compared(draw.choice(MODELS), gpus, draw.choice(BATCHES)), flush=True)


if __name__ == "__main__":
    main()
