"""Plans of unlike stages and several pipelines for tiny models on eight devices, written by hand."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from meshwright.library.clusters import resolve_gpus
from meshwright.runtime.training.mixed import MixedTraining
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, Schedule, StrategyRun, Worker
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import Workload
from meshwright.zoo.tiny import TINY, scaled_model

LENGTH = 8
GPUS = "4xA100-80,2xL40S,2xA100-40"


@dataclass(frozen=True, slots=True)
class Stage:
    """Layers of the chunks of one worker, and how its devices share them."""

    layers: tuple[int, ...]
    row: PlanRow


def stage(*layers: int, **degrees: object) -> Stage:
    return Stage(layers, PlanRow(**degrees))


@dataclass(frozen=True, slots=True)
class Line:
    """One pipeline: sequences of a micro-batch on a rank of its first stage, micro-batches, stages."""

    micro_batch: int
    count: int
    stages: tuple[Stage, ...]
    schedule: str = "1f1b"


def plan_of(*lines: Line) -> ExecutionPlan:
    """Devices are numbered in the order of the stages."""
    strategies: list[LayerStrategy] = []
    pipelines, device = [], 0
    for line in lines:
        workers = []
        depth = len(line.stages)
        chunks = len(line.stages[0].layers)
        held = [line.stages[virtual % depth].layers[virtual // depth] for virtual in range(depth * chunks)]
        first = [0, *accumulate(held)]
        for number, one in enumerate(line.stages):
            strategy = one.row.strategy(recomputed=one.row.recompute == "block")
            if strategy not in strategies:
                strategies.append(strategy)
            own = [number + depth * chunk for chunk in range(chunks)]
            workers.append(
                Worker(
                    devices=((device, device + strategy.devices - 1),),
                    chunks=tuple(
                        Chunk(
                            virtual_stage=at,
                            layers=((first[at], first[at + 1] - 1),) if held[at] else (),
                            runs=(StrategyRun(layers=held[at], strategy=strategies.index(strategy)),)
                            if held[at]
                            else (),
                            embedding=at == 0,
                            head=at == depth * chunks - 1,
                        )
                        for at in own
                    ),
                )
            )
            device += strategy.devices
        pipelines.append(
            Pipeline(
                micro_batch=line.micro_batch,
                num_micro_batches=line.count,
                workers=tuple(workers),
                schedule=Schedule(name=line.schedule),
            )
        )
    return ExecutionPlan(strategies=tuple(strategies), pipelines=tuple(pipelines))


def spec_of(plan: ExecutionPlan, model: str) -> ModelSpec:
    """The model with as many layers as the plan has."""
    layers = sum(run.layers for chunk in plan.pipelines[0].chunks() for run in chunk.runs)
    spec = TINY[model]
    return spec if layers == spec.num_layers else scaled_model(spec, layers=layers)


def job_of(plan: ExecutionPlan, model: str = "llama-tiny") -> Job:
    spec = spec_of(plan, model)
    workload = Workload(seq_len=LENGTH, global_batch=plan.global_batch, precision=PRECISIONS["fp32"])
    return Job(model=spec, cluster=resolve_gpus(GPUS), workload=workload, plan=plan)


def training_of(plan: ExecutionPlan, model: str = "llama-tiny", backend: str = "local") -> MixedTraining:
    job = job_of(plan, model)
    return MixedTraining(spec=job.model, seq_len=LENGTH, job=job, name="drawn", backend=backend, timeout_s=120.0)


CASES: dict[str, tuple[ExecutionPlan, str]] = {
    "4+2+2 devices": (
        plan_of(Line(1, 3, (stage(2, dp=4, sharding="z1"), stage(1, dp=2), stage(1, dp=2, sharding="fsdp")))),
        "gpt-tiny",
    ),
    "tensor 1, 2, 4": (
        plan_of(Line(2, 2, (stage(1, dp=2), stage(2, tp=2), stage(1, tp=4)))),
        "llama-tiny",
    ),
    "two pipelines, micro-batches of 6 and 2 samples": (
        plan_of(
            Line(3, 2, (stage(2, dp=2, sharding="z2"), stage(1, tp=2))),
            Line(2, 3, (stage(1), stage(1, tp=2), stage(1))),
        ),
        "gpt-tiny",
    ),
    "three pipelines, one stage each": (
        plan_of(
            Line(1, 2, (stage(4, dp=4),)),
            Line(3, 1, (stage(4, tp=2, recompute="full"),)),
            Line(1, 3, (stage(4, dp=2),)),
        ),
        "llama-tiny",
    ),
    "interleaved on unlike workers": (
        plan_of(Line(2, 4, (stage(1, 1, dp=2), stage(1, 1, tp=2)), schedule="interleaved")),
        "llama-tiny",
    ),
    "experts and context ranks": (
        plan_of(
            Line(2, 2, (stage(2, dp=2, ep=2), stage(2, cp=(("p2p", 2),)))),
            Line(2, 1, (stage(4, tp=2, dp=2),)),
        ),
        "moe-tiny",
    ),
    "a stage of the embedding, one of the head": (
        plan_of(Line(1, 3, (stage(0), stage(4), stage(0)))),
        "llama-tiny",
    ),
}  # fmt: skip
"""By what is unlike in them."""
