"""Plans of unequal pipelines on unequal devices that the tests of estimates share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from meshwright.estimate.price import estimate_plan
from meshwright.estimate.result import StepEstimate
from meshwright.library.clusters import resolve_gpus
from meshwright.specs import (
    ClusterSpec,
    ModelSpec,
    Workload,
)
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, StrategyRun, Worker
from meshwright.specs.precision import precision
from meshwright.specs.strategy import (
    ContextParallel,
    DataParallel,
    ExpertParallel,
    LayerStrategy,
    Recompute,
    Tensor1D,
)
from tests.estimate.cases import MODELS

CLUSTER = resolve_gpus("16xH100,16xA100-80,8xV100-32")
WORKLOAD_SEQ = 4096


@dataclass(frozen=True, slots=True)
class Stage:
    """One worker: where it starts, how it is spread, how many layers it holds."""

    first: int
    strategy: LayerStrategy
    layers: int


def plan_of(*pipelines: tuple[Sequence[Stage], int, int]) -> ExecutionPlan:
    """Pipelines of stages, sequences of a micro-batch, and micro-batches."""
    strategies: dict[LayerStrategy, int] = {}
    made = []
    for stages, micro_batch, count in pipelines:
        workers, first = [], 0
        for place, stage in enumerate(stages):
            index = strategies.setdefault(stage.strategy, len(strategies))
            chunk = Chunk(
                virtual_stage=place,
                layers=((first, first + stage.layers - 1),),
                runs=(StrategyRun(layers=stage.layers, strategy=index),),
                embedding=place == 0,
                head=place == len(stages) - 1,
            )
            held = ((stage.first, stage.first + stage.strategy.devices - 1),)
            workers.append(Worker(devices=held, chunks=(chunk,)))
            first += stage.layers
        made.append(Pipeline(micro_batch=micro_batch, num_micro_batches=count, workers=tuple(workers)))
    return ExecutionPlan(strategies=tuple(strategies), pipelines=tuple(made))


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class MixedCase:
    """All that an estimate needs."""

    model: ModelSpec
    plan: ExecutionPlan
    cluster: ClusterSpec = CLUSTER

    def __repr__(self) -> str:
        """Short enough for a failure report."""
        stages = [
            [(w.devices[0], w.chunks[0].num_layers, w.chunks[0].runs[0].strategy) for w in pipeline.workers]
            for pipeline in self.plan.pipelines
        ]
        return f"<{self.model.name}, {stages}>"

    def _repr_pretty_(self, printer: object, cycle: bool) -> None:
        """What hypothesis prints."""
        printer.text(repr(self))

    @property
    def workload(self) -> Workload:
        """Of the plan's batch, in a format that all devices compute in."""
        return Workload(seq_len=WORKLOAD_SEQ, global_batch=self.plan.global_batch, precision=precision("fp16"))

    def estimate(self) -> StepEstimate:
        """Price it."""
        return estimate_plan(self.plan, self.model, self.cluster, self.workload)


@st.composite
def mixed_cases(draw: st.DrawFn) -> MixedCase:
    """One to three pipelines of one to three stages, each on free devices of some group."""
    model = draw(st.sampled_from(MODELS))
    free = [0, 16, 32]
    ends = [16, 32, 40]
    pipelines = []
    for _ in range(draw(st.integers(1, 3))):
        left, stages = model.num_layers, []
        count = draw(st.integers(1, 3))
        for place in range(count):
            layers = left if place == count - 1 else draw(st.integers(1, left - (count - 1 - place)))
            strategy = draw(_strategies(model.is_moe))
            group = draw(st.sampled_from(range(3)))
            if free[group] + strategy.devices > ends[group]:
                group = next((g for g in range(3) if free[g] + strategy.devices <= ends[g]), -1)
            if group < 0:
                strategy = LayerStrategy()
                group = next(g for g in range(3) if free[g] < ends[g])
            stages.append(Stage(free[group], strategy, layers))
            free[group] += strategy.devices
            left -= layers
        pipelines.append((stages, draw(st.sampled_from([2, 4])), draw(st.integers(1, 6))))
    return MixedCase(model=model, plan=plan_of(*pipelines))


@st.composite
def _strategies(draw: st.DrawFn, experts: bool) -> LayerStrategy:
    tp, cp, dp = (draw(st.sampled_from([1, 2])) for _ in range(3))
    ep = draw(st.sampled_from([e for e in (1, 2, 4) if (tp * cp * dp) % e == 0])) if experts else 1
    zero = draw(st.sampled_from([0, 1, 2, 3]))
    data = DataParallel(replicate=dp) if zero == 0 else DataParallel(shard=dp, zero=zero)
    return LayerStrategy(
        tensor=Tensor1D(degree=tp, sequence_parallel=experts or draw(st.booleans())),
        context=(ContextParallel(kind="p2p", degree=2),) if cp > 1 else (),
        expert=ExpertParallel(ep=ep),
        data=data,
        recompute=Recompute(kind=draw(st.sampled_from(["none", "full"]))),
    )
