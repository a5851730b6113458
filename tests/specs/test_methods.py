"""The first test of the nouns: every method of the literature can be written as a plan and comes back from JSON."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from meshwright.formats.plan_json import read_job, write_job
from meshwright.schedules.plan_rows import plan_of
from meshwright.specs import Chunk, ExecutionPlan, LayerStrategy, Pipeline, PlanRow, Schedule, StrategyRun, Worker
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.strategy import (
    ContextParallel,
    DataParallel,
    ExpertParallel,
    Offload,
    Recompute,
    Tensor1D,
    TensorNamed,
    TensorPerOperator,
)
from tests.formats.jobs import MOE_LAYER, job

TABLE = Path(__file__).resolve().parents[2].parent / "shared" / "methods" / "table.csv"


def ddp(degree: int, **more: Any) -> DataParallel:
    """Plain replicas."""
    return DataParallel(replicate=degree, **more)


def flat(strategy: LayerStrategy, *, layers: int = 8, mbs: int = 1, m: int = 4) -> ExecutionPlan:
    """One stage, every layer alike."""
    return staged([(layers, strategy)], schedule="1f1b", mbs=mbs, m=m)


def staged(
    stages: list[tuple[int, LayerStrategy]],
    *,
    schedule: str | Schedule,
    mbs: int = 1,
    m: int = 8,
    first_device: int = 0,
) -> ExecutionPlan:
    """One chunk a worker, each stage with its own layers and strategy, and as many devices as that asks for."""
    workers = []
    layer, device = 0, first_device
    for number, (count, strategy) in enumerate(stages):
        chunk = Chunk(
            virtual_stage=number,
            layers=((layer, layer + count - 1),),
            runs=(StrategyRun(layers=count, strategy=number),),
            embedding=number == 0,
            head=number == len(stages) - 1,
        )
        workers.append(Worker(devices=((device, device + strategy.devices - 1),), chunks=(chunk,)))
        layer, device = layer + count, device + strategy.devices
    named = schedule if isinstance(schedule, Schedule) else Schedule(name=schedule)
    pipeline = Pipeline(micro_batch=mbs, num_micro_batches=m, workers=tuple(workers), schedule=named)
    return ExecutionPlan(strategies=tuple(strategy for _, strategy in stages), pipelines=(pipeline,))


def named(schedule: str, *, pp: int = 4, vpp: int = 1, m: int = 8, **more: Any) -> ExecutionPlan:
    """A homogeneous pipeline of a named schedule, its placement included."""
    row = PlanRow(pp=pp, vpp=vpp, gbs=m * more.get("dp", 1), schedule=schedule, **more)
    return plan_of(row, [2] * (pp * vpp))


def tuned(plan: ExecutionPlan, *parameters: tuple[str, Any]) -> ExecutionPlan:
    """The same plan with parameters of its schedule."""
    pipeline = plan.pipelines[0]
    schedule = replace(pipeline.schedule, parameters=parameters)
    return replace(plan, pipelines=(replace(pipeline, schedule=schedule),))


def experts(ep: int = 8, *, etp: int = 1, data: int = 8, tp: int = 1, cp: int = 1, **more: Any) -> LayerStrategy:
    """Data parallel attention, experts spread."""
    context = (ContextParallel(kind="p2p", degree=cp),) if cp > 1 else ()
    return LayerStrategy(
        tensor=Tensor1D(degree=tp), context=context, expert=ExpertParallel(ep=ep, etp=etp, **more), data=ddp(data)
    )


def tensor(kind: Any) -> ExecutionPlan:
    return flat(LayerStrategy(tensor=kind))


def sharded(**data: Any) -> ExecutionPlan:
    return flat(LayerStrategy(data=DataParallel(**data)))


def context(*levels: tuple[Any, int, Any]) -> ExecutionPlan:
    levels_ = tuple(ContextParallel(kind=kind, degree=degree, layout=layout) for kind, degree, layout in levels)
    return flat(LayerStrategy(context=levels_))


def remembered(recompute: Recompute) -> ExecutionPlan:
    return flat(LayerStrategy(recompute=recompute))


def avgpipe() -> ExecutionPlan:
    """Two pipelines on the same devices: each worker holds its stage twice, the copies are pulled to a reference."""
    plan = named("avgpipe")
    strategies = tuple(replace(s, data=replace(s.data, averaging="elastic")) for s in plan.strategies)
    pipeline = plan.pipelines[0]
    workers = tuple(
        replace(w, chunks=(*w.chunks, *(replace(chunk, copy="replica") for chunk in w.chunks)))
        for w in pipeline.workers
    )
    plan = ExecutionPlan(strategies=strategies, pipelines=(replace(pipeline, workers=workers),))
    return tuned(plan, ("extra", 1), ("pipelines", 2))


def dynapipe() -> ExecutionPlan:
    """Two replicas of one pipeline, each with micro-batches of its own sizes and lengths."""
    shapes = (((4, 512), (2, 1024), (1, 4096)), ((8, 256), (3, 2048)))
    pipelines = []
    for number, own in enumerate(shapes):
        plan = staged(
            [(4, LayerStrategy()), (4, LayerStrategy())], schedule="dynapipe", m=len(own), first_device=2 * number
        )
        pipelines.append(replace(plan.pipelines[0], shapes=own))
    return ExecutionPlan(strategies=plan.strategies, pipelines=tuple(pipelines))


def ftpipe() -> ExecutionPlan:
    """Blocks of equal work that are not adjacent on one worker: {0-1, 4, 6} and {2-3, 5, 7}."""
    spans = [(0, 1), (2, 3), (4, 4), (5, 5), (6, 6), (7, 7)]
    chunks = [
        Chunk(
            virtual_stage=stage,
            layers=((first, last),),
            runs=(StrategyRun(layers=last - first + 1, strategy=0),),
            embedding=stage == 0,
            head=stage == len(spans) - 1,
        )
        for stage, (first, last) in enumerate(spans)
    ]
    workers = tuple(Worker(devices=((r, r),), chunks=tuple(chunks[r::2])) for r in range(2))
    pipeline = Pipeline(micro_batch=1, num_micro_batches=8, workers=workers, schedule=Schedule(name="ftpipe"))
    return ExecutionPlan(strategies=(LayerStrategy(),), pipelines=(pipeline,))


def mobius() -> ExecutionPlan:
    """Eight stages paged through four devices; neighbours in time sit under different root complexes."""
    plan = named("mobius", vpp=2, recompute="full", offload="wo")
    pipeline = plan.pipelines[0]
    crossed = [0, 2, 1, 3]
    workers = tuple(replace(w, devices=((d, d),)) for w, d in zip(pipeline.workers, crossed, strict=True))
    return replace(plan, pipelines=(replace(pipeline, workers=workers),))


def pr_moe() -> ExecutionPlan:
    """Pyramid of experts: deeper layers have more experts and a wider expert degree; the two-level exchange."""
    shallow = experts(4, dispatcher="hierarchical")
    deep = experts(8, dispatcher="hierarchical")
    zero = DataParallel(shard=8, zero=2)
    strategies = (replace(shallow, data=zero), replace(deep, data=zero))
    chunk = Chunk(
        virtual_stage=0,
        layers=((0, 7),),
        runs=(StrategyRun(layers=4, strategy=0), StrategyRun(layers=4, strategy=1)),
        embedding=True,
        head=True,
    )
    worker = Worker(devices=((0, 7),), chunks=(chunk,))
    pipeline = Pipeline(micro_batch=1, num_micro_batches=2, workers=(worker,))
    return ExecutionPlan(strategies=strategies, pipelines=(pipeline,))


def galvatron() -> ExecutionPlan:
    """Layers of one stage under different degrees and sharding."""
    strategies = (
        LayerStrategy(tensor=Tensor1D(degree=8), recompute=Recompute(kind="full")),
        LayerStrategy(tensor=Tensor1D(degree=2), data=DataParallel(shard=4, zero=3)),
        LayerStrategy(tensor=Tensor1D(degree=2), data=ddp(4)),
        LayerStrategy(data=DataParallel(shard=8, zero=2)),
    )
    workers = []
    for number, runs in enumerate([((2, 0), (3, 1)), ((3, 2), (4, 3))]):
        count = sum(layers for layers, _ in runs)
        chunk = Chunk(
            virtual_stage=number,
            layers=((number * 5, number * 5 + count - 1),),
            runs=tuple(StrategyRun(layers=layers, strategy=index) for layers, index in runs),
            embedding=number == 0,
            head=number == 1,
        )
        workers.append(Worker(devices=((number * 8, number * 8 + 7),), chunks=(chunk,)))
    pipeline = Pipeline(micro_batch=8, num_micro_batches=4, workers=tuple(workers))
    return ExecutionPlan(strategies=strategies, pipelines=(pipeline,))


def alpa() -> ExecutionPlan:
    """Submeshes of unequal shape, operators sharded by a table each."""
    meshes = [((1, 2), "sha256:a1"), ((1, 2), "sha256:a2"), ((1, 4), "sha256:a3")]
    stages = [
        (layers, LayerStrategy(tensor=TensorPerOperator(mesh=mesh, reference=reference)))
        for layers, (mesh, reference) in zip((3, 3, 6), meshes, strict=True)
    ]
    return staged(stages, schedule="1f1b")


def aceso() -> ExecutionPlan:
    """Stages with degrees, and numbers of recomputed layers, of their own."""
    first = LayerStrategy(tensor=Tensor1D(degree=4))
    second = LayerStrategy(tensor=Tensor1D(degree=2), data=ddp(2))
    plan = staged([(3, first), (5, second)], schedule="1f1b", mbs=2)
    redone = replace(first, recompute=Recompute(kind="full"))
    pipeline = plan.pipelines[0]
    head, tail = pipeline.workers
    runs = (StrategyRun(layers=2, strategy=2), StrategyRun(layers=1, strategy=0))
    head = replace(head, chunks=(replace(head.chunks[0], runs=runs),))
    return ExecutionPlan(strategies=(first, second, redone), pipelines=(replace(pipeline, workers=(head, tail)),))


def nnscaler() -> ExecutionPlan:
    """Operators placed by a table, and an order of its own: three forwards to a backward."""
    stages = [(4, LayerStrategy(tensor=TensorPerOperator(mesh=(2,), reference=f"plan-{i}.json"))) for i in range(2)]
    orders = (("F0.0", "F0.1", "F0.2", "B0.0"), ("F0.0", "F0.1", "F0.2", "B0.0"))
    return staged(stages, schedule=Schedule(name="table", orders=orders), m=1)


def mist() -> ExecutionPlan:
    """Unequal stages that offload and recompute to different degrees."""
    stages = [
        (5, LayerStrategy(data=DataParallel(shard=4, zero=2), offload=Offload(optimizer=0.5, activations=0.25))),
        (7, LayerStrategy(tensor=Tensor1D(degree=2), data=DataParallel(shard=2, zero=1), offload=Offload(weights=0.1))),
    ]
    return staged(stages, schedule="1f1b")


def unequal_replicas(schedule: str) -> ExecutionPlan:
    """Stages replicated unequally, as the planners of PipeDream and DAPPLE do."""
    return staged([(7, LayerStrategy(data=ddp(3))), (1, LayerStrategy())], schedule=schedule, mbs=1)


METHODS: dict[str, Callable[[], ExecutionPlan]] = {
    "DDP": lambda: sharded(replicate=8),
    "ZeRO-1": lambda: sharded(shard=8, zero=1),
    "ZeRO-2": lambda: sharded(shard=8, zero=2),
    "ZeRO-3": lambda: sharded(shard=8, zero=3),
    "FSDP": lambda: sharded(shard=8, zero=3, family="fsdp"),
    "HSDP/MiCS": lambda: sharded(replicate=2, shard=4, zero=3, family="fsdp"),
    "ZeRO++": lambda: sharded(shard=16, zero=3, gather_dtype="int8", reduce_dtype="int4", secondary_shard=8),
    "Megatron 1D TP": lambda: tensor(Tensor1D(degree=8, sequence_parallel=False)),
    "Megatron SP": lambda: tensor(Tensor1D(degree=8)),
    "Optimus 2D": lambda: tensor(TensorNamed(name="2d", degree=4)),
    "Tesseract 2.5D": lambda: tensor(TensorNamed(name="2.5d", degree=8, parameters=(("depth", 2),))),
    "3D TP": lambda: tensor(TensorNamed(name="3d", degree=8)),
    "Ulysses": lambda: context(("a2a", 4, "contiguous")),
    "Ring attention": lambda: context(("p2p", 4, "contiguous")),
    "Megatron CP": lambda: context(("p2p", 4, "zigzag")),
    "USP": lambda: context(("a2a", 2, "zigzag"), ("p2p", 4, "zigzag")),
    "GPipe": lambda: named("gpipe"),
    "DAPPLE": lambda: named("1f1b"),
    "PipeDream": lambda: unequal_replicas("pipedream"),
    "PipeDream-2BW": lambda: named("pipedream-2bw"),
    "PipeDream-Flush": lambda: named("1f1b"),
    "Varuna": lambda: named("varuna", recompute="full"),
    "Interleaved 1F1B": lambda: named("interleaved", vpp=2),
    "Breadth-first": lambda: named("breadth-first", vpp=2, dp=2, sharding="fsdp"),
    "Chimera": lambda: named("chimera"),
    "Hanayo": lambda: tuned(named("hanayo", vpp=2), ("waves", 1)),
    "MixPipe": lambda: tuned(named("mixpipe"), ("inject", 3)),
    "AvgPipe": avgpipe,
    "DynaPipe": dynapipe,
    "BPipe": lambda: named("bpipe"),
    "Bamboo": lambda: named("bamboo"),
    "FTPipe": ftpipe,
    "Mobius": mobius,
    "ZB-H1": lambda: named("zb-h1"),
    "ZB-H2": lambda: named("zb-h2"),
    "ZB-V": lambda: named("zb-v", vpp=2),
    "V-Half": lambda: named("v-half", vpp=2),
    "V-Min": lambda: named("v-min", vpp=2),
    "Interleaved + W split": lambda: named("interleaved-zb", vpp=2),
    "DualPipe": lambda: named("dualpipe"),
    "DualPipeV": lambda: named("dualpipev", vpp=2),
    "Seq1F1B": lambda: tuned(named("seq1f1b"), ("segments", 4)),
    "GShard": lambda: flat(experts(capacity_factor=2.0)),
    "FastMoE": lambda: flat(experts()),
    "FasterMoE": lambda: flat(experts(shadowed=2, overlap_degree=4, locality=0.14)),
    "DeepSpeed-MoE": pr_moe,
    "SmartMoE": lambda: flat(experts(4, data=4, placement=(0, 1, 2, 3, 3, 2, 1, 0))),
    "DeepSpeed-TED": lambda: flat(
        replace(
            experts(4, etp=2, tp=2, data=4, drop_duplicates=True, stash_collectives=True),
            data=DataParallel(shard=4, zero=1),
            recompute=Recompute(kind="full"),
            optimizer_tile=1_800_000,
        )
    ),
    "Lina": lambda: flat(experts(4, prioritised=True, overlap_degree=4)),
    "Janus": lambda: flat(experts(dispatcher="move-experts")),
    "Tutel": lambda: flat(experts(2, expert_shards=4, dispatcher="hierarchical", overlap_degree=2)),
    "MoE parallel folding": lambda: flat(experts(32, tp=4, cp=2, data=4)),
    "DeepEP": lambda: flat(experts(dispatcher="deduplicated")),
    "ZeRO-Offload": lambda: flat(
        LayerStrategy(
            data=DataParallel(shard=8, zero=2), offload=Offload(optimizer=1.0, gradients=1.0, delayed_update=True)
        )
    ),
    "ZeRO-Infinity": lambda: flat(
        LayerStrategy(
            data=DataParallel(shard=8, zero=3), offload=Offload(weights=1.0, optimizer=1.0, gradients=1.0, tier="nvme")
        )
    ),
    "Swap/offload activations": lambda: flat(LayerStrategy(offload=Offload(activations=1.0))),
    "Mixed precision": lambda: flat(LayerStrategy(precision=PRECISIONS["fp16"])),
    "Full recompute": lambda: remembered(Recompute(kind="full")),
    "Selective recompute": lambda: remembered(Recompute(kind="selective", modules=("core_attn",))),
    "Checkmate": lambda: remembered(Recompute(kind="optimal", reference="sha256:0f3a")),
    "Alpa": alpa,
    "Galvatron": galvatron,
    "Aceso": aceso,
    "nnScaler": nnscaler,
    "Mist": mist,
}
SYNONYMS = {frozenset({"DAPPLE", "PipeDream-Flush"})}
"""One forward, one backward, flushed: the same schedule found twice."""


@pytest.mark.parametrize("name", METHODS)
def test_every_method_can_be_written_down_and_read_back(name: str) -> None:
    plan = METHODS[name]()
    written = write_job(job(plan, MOE_LAYER))
    read = read_job(written)
    assert read.job.plan == plan
    assert read.warnings == ()
    assert write_job(read.job) == written


def test_methods_that_differ_are_different_plans() -> None:
    plans = {name: build() for name, build in METHODS.items()}
    for one, other in itertools.combinations(plans, 2):
        same = plans[one] == plans[other]
        assert same == (frozenset({one, other}) in SYNONYMS), f"{one} and {other}"


def test_no_method_of_the_table_is_left_out() -> None:
    assert len(METHODS) == 65
    if not TABLE.exists():
        pytest.skip("the table of methods is not here")
    with TABLE.open(newline="") as file:
        assert {row["name"] for row in csv.DictReader(file)} == set(METHODS)


def test_two_copies_sit_on_mirrored_workers() -> None:
    (pipeline,) = METHODS["Chimera"]().pipelines
    held = [[(chunk.virtual_stage, chunk.copy) for chunk in worker.chunks] for worker in pipeline.workers]
    assert held == [[(r, "primary"), (3 - r, "replica")] for r in range(4)]


def test_a_wave_turns_without_a_transfer() -> None:
    (pipeline,) = METHODS["Hanayo"]().pipelines
    held = [[chunk.virtual_stage for chunk in worker.chunks] for worker in pipeline.workers]
    assert held == [[0, 7], [1, 6], [2, 5], [3, 4]]


def test_each_worker_shadows_its_successor() -> None:
    (pipeline,) = METHODS["Bamboo"]().pipelines
    shadows = [[chunk.virtual_stage for chunk in w.chunks if chunk.copy == "redundant"] for w in pipeline.workers]
    assert shadows == [[1], [2], [3], [0]]


def test_experts_fold_over_tensor_context_and_data_ranks() -> None:
    (strategy,) = METHODS["MoE parallel folding"]().strategies
    assert strategy.devices == strategy.tp * strategy.cp * strategy.dp == 32
    assert strategy.expert.ep == 32


def test_micro_batches_of_their_own_sizes_count_towards_the_batch() -> None:
    assert METHODS["DynaPipe"]().global_batch == (4 + 2 + 1) + (8 + 3)
