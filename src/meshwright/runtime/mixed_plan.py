"""A plan of unlike stages or of several pipelines as a method of `parallelize`; what does not run here is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from meshwright.errors import MeshwrightError, Problem, UnsupportedError
from meshwright.runtime.devices import require_devices
from meshwright.runtime.plan_method import check_runs, grid_of
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, Schedule, Worker
from meshwright.specs.row import PlanRow
from meshwright.specs.row_of import Homogeneous, effective, row_from
from meshwright.specs.shardings import SHARDINGS
from meshwright.specs.strategy import TENSOR_OVERLAPS, ExpertParallel, LayerStrategy, Recompute
from meshwright.strategies import CONTEXTS
from meshwright.targets.run.rules import module_refusals

if TYPE_CHECKING:
    from meshwright.compiler.grid import DeviceGrid
    from meshwright.compiler.instructions import StepProgram
    from meshwright.compiler.pipeline_set import PipelineSet
    from meshwright.zoo.decoder import Recompute as Again

RECOMPUTED = ("none", "selective", "full", "grouped")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelForm:
    """How one pipeline runs the layers of a model."""

    ends: frozenset[int]
    """Layers before the end of each virtual stage but the last."""
    recompute: tuple[tuple[int, Again], ...]
    grids: tuple[DeviceGrid | None, ...]
    """Grid of each layer."""
    experts: ExpertParallel
    """How tokens reach experts, on all stages that share them out; its degrees are those of one of them."""


def check_plan_runs(plan: ExecutionPlan, seq_len: int) -> None:
    """Whether this runtime runs what a plan of several pipelines or unlike stages says.

    Args:
        plan: the plan.
        seq_len: tokens of a sample.

    Raises:
        UnsupportedError: it does not, with every reason.
    """
    problems = list(dict.fromkeys(_refused(plan, seq_len)))
    if problems:
        raise UnsupportedError(problems, code="MW411")


def samples_of(plan: ExecutionPlan, pipeline: Pipeline) -> int:
    """Samples of one micro-batch of a pipeline, over all data ranks.

    Args:
        plan: the plan that holds it.
        pipeline: the pipeline of the plan.
    """
    return pipeline.micro_batch * plan.data_degree(pipeline)


def model_form(plan: ExecutionPlan, pipeline: Pipeline) -> ModelForm:
    """How a pipeline runs the layers of its model.

    Args:
        plan: the plan that holds it.
        pipeline: the pipeline of the plan.
    """
    chunks = sorted(pipeline.chunks(), key=lambda chunk: chunk.virtual_stage)
    grid = {id(chunk): grid_of(_row(plan, pipeline, worker)) for worker in pipeline.workers for chunk in worker.chunks}
    ends, recompute, grids, done = [], [], [], 0
    for chunk in chunks:
        done += chunk.num_layers
        ends.append(done)
        grids += [grid[id(chunk)]] * chunk.num_layers
        for run in chunk.runs:
            again = plan.strategies[run.strategy].recompute
            size = again.group if again.kind == "grouped" else 1
            whole, rest = divmod(run.layers, size)
            kept: Again = "none" if again.kind == "none" else again.modules if again.kind == "selective" else "full"
            recompute += [(part, kept) for part in (*[size] * whole, rest) if part]
    shared = [expert for expert in _experts(plan, pipeline) if expert.ep > 1]
    return ModelForm(
        ends=frozenset(ends[:-1]),
        recompute=tuple(recompute),
        grids=tuple(grids),
        experts=shared[0] if shared else ExpertParallel(),
    )


def _experts(plan: ExecutionPlan, pipeline: Pipeline) -> list[ExpertParallel]:
    return [plan.strategies[run.strategy].expert for chunk in pipeline.chunks() for run in chunk.runs]


def pipeline_set(
    plan: ExecutionPlan,
    devices: Sequence[Any],
    seq_len: int,
    steps: Sequence[Callable[..., Any]],
    paces: Callable[[StepProgram], Sequence[Sequence[float]]] | None = None,
) -> PipelineSet:
    """How `parallelize` runs a plan.

    Args:
        plan: the plan whose device numbers count from the first of `devices`.
        devices: the devices of JAX.
        seq_len: tokens of a sample.
        steps: the training step as each pipeline runs it.
        paces: least seconds of each instruction, to emulate slower devices.

    Raises:
        InputError: too few devices.
    """
    from meshwright.compiler.grid import GridSplit
    from meshwright.compiler.pipeline_set import PipelineSet, StageDevices, StagedPipeline
    from meshwright.compiler.shardings import DataSharding
    from meshwright.zoo.splits import split_axes

    numbers = used_devices(plan)
    require_devices(len(numbers), devices)
    place = {number: at for at, number in enumerate(numbers)}

    def stage(pipeline: Pipeline, worker: Worker) -> StageDevices:
        row = _row(plan, pipeline, worker)
        grid, sharding = grid_of(row), SHARDINGS[row.sharding]
        return StageDevices(
            devices=tuple(place[number] for first, last in worker.devices for number in range(first, last + 1)),
            data=DataSharding(stage=sharding.zero, keep=not sharding.reshard),
            split=None if grid is None else GridSplit(grid=grid, ranks_of=split_axes, length=seq_len),
        )

    return PipelineSet(
        devices=list(devices[: len(numbers)]),
        joint_states=plan.joint_ranks > 0,
        paces=paces,
        pipelines=tuple(
            StagedPipeline(
                workers=tuple(stage(pipeline, worker) for worker in pipeline.workers),
                samples=samples_of(plan, pipeline),
                micro_batches=pipeline.num_micro_batches,
                schedule=pipeline.schedule.token,
                chunks=len(pipeline.workers[0].chunks),
                step=step,
            )
            for pipeline, step in zip(plan.pipelines, steps, strict=True)
        ),
    )


def used_devices(plan: ExecutionPlan) -> list[int]:
    """Numbers of the devices that a plan uses, in the cluster's order.

    Args:
        plan: any.
    """
    return sorted(
        number
        for pipeline in plan.pipelines
        for worker in pipeline.workers
        for first, last in worker.devices
        for number in range(first, last + 1)
    )


def _strategy(plan: ExecutionPlan, pipeline: Pipeline, worker: Worker) -> LayerStrategy:
    """Strategy of a worker's layers, whatever is recomputed."""
    found = plan.strategies[plan.strategy_index(pipeline, worker)]
    # That all pipelines hold states together is said of the plan, whatever the row of one of them.
    return replace(effective(found), recompute=Recompute(), data=replace(found.data, across=0))


def _said(plan: ExecutionPlan, pipeline: Pipeline, worker: Worker) -> PlanRow | None:
    """The degrees and settings of a worker as a plan of one stage says them; None where no such plan says them all."""
    alone = Homogeneous(
        strategy=_strategy(plan, pipeline, worker),
        block=0,
        pp=1,
        vpp=1,
        layers=(),
        held=(),
        pipeline=replace(pipeline, shapes=(), schedule=Schedule()),
    )
    return row_from(alone, gbs=plan.global_batch)


def _row(plan: ExecutionPlan, pipeline: Pipeline, worker: Worker) -> PlanRow:
    row = _said(plan, pipeline, worker)
    assert row is not None, "checked by check_plan_runs"
    return row


def _refused(plan: ExecutionPlan, seq_len: int) -> Iterator[Problem]:
    for number, pipeline in enumerate(plan.pipelines):
        yield from _of_pipeline(plan, number, pipeline)
        for at, worker in enumerate(pipeline.workers):
            yield from _of_worker(plan, pipeline, worker, f"stage {at} of pipeline {number}", seq_len)


def _of_pipeline(plan: ExecutionPlan, number: int, pipeline: Pipeline) -> Iterator[Problem]:
    where = f"pipeline {number}"
    if pipeline.shapes:
        yield Problem(
            what=f"{where} has micro-batches that differ in size",
            field="plan",
            why="the micro-batches of one pipeline run one program",
            fix="a plan from data sheets",
        )
    if pipeline.schedule.orders:
        yield Problem(
            what=f"{where} has a custom order of tasks",
            field="plan",
            why="the orders of named schedules run here",
            fix="1f1b or interleaved",
        )
    if len({len(worker.chunks) for worker in pipeline.workers}) > 1:
        yield Problem(
            what=f"{where} has workers of different numbers of chunks",
            field="plan",
            why="a schedule gives all workers the same number",
            fix="another plan of the set",
        )
    if any(chunk.copy != "primary" or len(chunk.layers) > 1 for chunk in pipeline.chunks()):
        yield Problem(
            what=f"{where} holds layers twice, or scattered ones",
            field="plan",
            why="a virtual stage is one run of layers, held once",
            fix="1f1b or interleaved",
        )
    exchanges = {replace(expert, ep=1, etp=1) for expert in _experts(plan, pipeline) if expert.ep > 1}
    if len(exchanges) > 1:
        yield Problem(
            what=f"stages of {where} with unlike expert dispatchers",
            field="plan",
            why="a model exchanges tokens one way",
            fix="another plan of the set",
        )
    split = {plan.strategies[run.strategy].dp for chunk in pipeline.chunks() for run in chunk.runs}
    samples = samples_of(plan, pipeline)
    if odd := sorted(degree for degree in split if samples % degree):
        yield Problem(
            what=f"micro-batches of {samples} samples on {odd[0]} data ranks in {where}",
            field="plan",
            why="data ranks share the samples of a micro-batch evenly",
            fix="another plan of the set",
        )


def _of_worker(plan: ExecutionPlan, pipeline: Pipeline, worker: Worker, where: str, seq_len: int) -> Iterator[Problem]:
    runs = [plan.strategies[run.strategy] for chunk in worker.chunks for run in chunk.runs]
    kinds = {strategy.recompute.kind for strategy in runs}
    if wrong := sorted(kinds - set(RECOMPUTED)):
        yield Problem(
            what=f"recompute {wrong[0]} in {where}",
            field="plan",
            why="layers are recomputed whole, in groups, or by modules",
            fix="rc-full",
        )
    yield from module_refusals(module for strategy in runs for module in strategy.recompute.modules)
    alike = [key for key, _ in groupby(replace(effective(strategy), recompute=Recompute()) for strategy in runs)]
    if len(alike) > 1:
        yield Problem(
            what=f"layers of {where} under unlike degrees",
            field="plan",
            why="the devices of a stage share all of its layers one way",
            fix="another plan of the set",
        )
    if plan.strategies[plan.strategy_index(pipeline, worker)].devices != worker.num_devices:
        yield Problem(
            what=f"{where} has {worker.num_devices} devices and no layers that say how they share work",
            why="a stage of embedding or head alone runs as the first layers do",
            field="plan",
            fix="another plan of the set",
        )
        return
    row = _said(plan, pipeline, worker)
    if row is None:
        yield Problem(
            what=f"{where} has settings that a one-line plan cannot express",
            field="plan",
            why="only such settings run here",
            fix="another plan of the set",
        )
        return
    if row.offload:
        why = "states of pipelines of unlike stages stay on their devices"
        yield Problem(what=f"off-{row.offload} does not run here", why=why, fix="leave it out", field="plan")
    try:
        check_runs(replace(row, offload=""))
        if row.data_words:
            said = ".".join(row.data_words)
            why = "compressed exchanges and averaged replicas run with data parallelism alone"
            yield Problem(what=f"{said} does not run here", why=why, fix="leave it out", field="plan")
    except MeshwrightError as error:
        yield from error.problems
    if row.tensor != "1d":
        yield Problem(
            what=f"tensor strategy {row.tensor} in {where}",
            field="plan",
            why="stages of unlike devices split matrices in one dimension",
            fix="use 1d there, or a plan of equal stages",
        )
    if row.tp_overlap == "halves":
        yield Problem(
            what=f"{TENSOR_OVERLAPS['halves']} in {where}",
            field="plan",
            why="layers of stages of unlike devices compute whole micro-batches",
            fix="leave it out, or a plan of equal stages",
        )
    parts = row.cp_degree * (2 if any(CONTEXTS[kind].layout == "zigzag" for kind, _ in row.cp) else 1)
    if seq_len % parts:
        yield Problem(
            what=f"{seq_len} tokens on {row.cp_degree} context ranks in {where}",
            field="seq_len",
            why=f"context ranks share the tokens of a sample in {parts} equal parts",
            fix=f"--seq {-(-seq_len // parts) * parts}",
        )


def stage_layers(pipeline: Pipeline) -> tuple[int, ...]:
    """Layers of each virtual stage of a pipeline.

    Args:
        pipeline: the pipeline of a plan.
    """
    chunks: list[Chunk] = sorted(pipeline.chunks(), key=lambda chunk: chunk.virtual_stage)
    return tuple(chunk.num_layers for chunk in chunks)
