"""Homogeneous plans both ways: from a row of degrees to the execution plan, and back where a plan is one row.

A plan is homogeneous when it is one pipeline of equal workers with one strategy, apart from layers recomputed at the
head of each chunk. How many layers each chunk holds is free; a row does not say it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from meshwright.errors import InputError, Problem
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import Chunk, ExecutionPlan, Pipeline, Schedule, StrategyRun, Worker
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import DataParallel, LayerStrategy, Recompute, Tensor1D

ZIGZAG_SCHEDULES = ("zb-v", "v-half", "v-min", "dualpipev", "hanayo")
"""Chunks run down the workers and up again, so that a turn needs no transfer (V and wave placement)."""
TWO_WAY_SCHEDULES = ("chimera", "mixpipe", "dualpipe")
"""Each worker also holds the mirrored stage of a second copy of the weights."""
SHADOWED_SCHEDULES = ("bamboo",)
"""Each worker also keeps its successor's stage against failures."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Homogeneous:
    """What a homogeneous plan consists of."""

    strategy: LayerStrategy
    """Of every layer, its recompute that of the layers behind the block."""
    block: int
    """First layers of each chunk recomputed in full; 0 where `strategy.recompute` holds for all."""
    pp: int
    vpp: int
    layers: tuple[int, ...]
    """Layers of each virtual stage, in order."""
    pipeline: Pipeline


def virtual_stages(schedule: str, pp: int, vpp: int, worker: int) -> tuple[int, ...]:
    """Virtual stages a worker holds, chunk by chunk: k pp + r in a loop; every second chunk mirrored in a zigzag.

    Source: Narayanan et al. 2021 (interleaved), section 2.2; Qi et al. 2024 (V placement); Liu et al. 2023 (waves).
    """
    zigzag = schedule in ZIGZAG_SCHEDULES
    return tuple(k * pp + (pp - 1 - worker if zigzag and k % 2 else worker) for k in range(vpp))


def _extra_stages(schedule: str, pp: int, vpp: int, worker: int) -> Iterator[tuple[int, str]]:
    """Virtual stages of further copies, with the kind of copy."""
    if schedule in TWO_WAY_SCHEDULES:
        yield from ((stage, "replica") for stage in virtual_stages(schedule, pp, vpp, pp - 1 - worker))
    elif schedule in SHADOWED_SCHEDULES and pp > 1:
        yield from ((stage, "redundant") for stage in virtual_stages(schedule, pp, vpp, (worker + 1) % pp))


def plan_of(row: PlanRow, layers: Sequence[int]) -> ExecutionPlan:
    """The execution plan of a row whose virtual stages hold these layers.

    Args:
        row: degrees and settings.
        layers: layers of each of the pp x vpp virtual stages, in order.

    Returns:
        One pipeline of pp workers; ranks are numbered tensor first, pipeline last.

    Raises:
        InputError: if the counts do not fit the row, or its batch is no whole number of micro-batches.
    """
    problems = []
    if len(layers) != row.pp * row.vpp:
        problems.append(
            Problem(
                what=f"layers: {len(layers)} counts are given",
                why=f"there are pp {row.pp} x vpp {row.vpp} = {row.pp * row.vpp} virtual stages",
                fix="give one count for each virtual stage",
                field="layers",
            )
        )
    if row.micro_batches * row.dp * row.mbs != row.gbs or row.gbs < 1:
        problems.append(
            Problem(
                what=f"gbs is {row.gbs}",
                why=f"it must be a multiple of dp {row.dp} x mbs {row.mbs} = {row.dp * row.mbs}",
                field="gbs",
            )
        )
    if problems:
        raise InputError(problems, code="MW211")
    strategies: list[LayerStrategy] = []

    def index(strategy: LayerStrategy) -> int:
        if strategy not in strategies:
            strategies.append(strategy)
        return strategies.index(strategy)

    starts = [sum(layers[:stage]) for stage in range(len(layers))]

    def chunk(stage: int, copy: Any = "primary") -> Chunk:
        held = layers[stage]
        head = min(row.recompute_layers, held) if row.recompute == "block" else 0
        parts = [(head, True), (held - head, False)]
        return Chunk(
            virtual_stage=stage,
            layers=((starts[stage], starts[stage] + held - 1),) if held else (),
            runs=tuple(
                StrategyRun(layers=part, strategy=index(row.strategy(recomputed=recomputed)))
                for part, recomputed in parts
                if part
            ),
            embedding=stage == 0,
            head=stage == len(layers) - 1,
            copy=copy,
        )

    per_worker = row.tp * row.cp_degree * row.dp
    workers = []
    for number in range(row.pp):
        own = [chunk(stage) for stage in virtual_stages(row.schedule, row.pp, row.vpp, number)]
        own += [chunk(stage, copy) for stage, copy in _extra_stages(row.schedule, row.pp, row.vpp, number)]
        devices = ((number * per_worker, (number + 1) * per_worker - 1),)
        workers.append(Worker(devices=devices, chunks=tuple(own)))
    pipeline = Pipeline(
        micro_batch=row.mbs,
        num_micro_batches=row.micro_batches,
        workers=tuple(workers),
        schedule=Schedule(name=row.schedule),
    )
    return ExecutionPlan(strategies=tuple(strategies), pipelines=(pipeline,))


def row_of(plan: ExecutionPlan, model: ModelSpec) -> PlanRow | None:
    """The homogeneous row a plan equals, however its layers are split; None where no row says all of it."""
    found, _ = homogeneous(plan)
    if found is None or sum(found.layers) != model.num_layers:
        return None
    pipeline = found.pipeline
    if pipeline.shapes or pipeline.schedule != Schedule(name=pipeline.schedule.name):
        return None
    return row_from(found, gbs=plan.global_batch)


def row_from(found: Homogeneous, *, gbs: int) -> PlanRow | None:
    """The row of a homogeneous plan; None where its strategy needs more than a row's fields."""
    strategy = plain(found.strategy)
    if not isinstance(strategy.tensor, Tensor1D) or strategy.tensor.overlap == "none":
        return None
    recompute, count = _recompute_fields(strategy.recompute)
    if found.block:
        recompute, count = "block", found.block
    letters = (("w", strategy.offload.weights), ("a", strategy.offload.activations), ("o", strategy.offload.optimizer))
    sharding, group = _sharding_fields(strategy.data, strategy.cp)
    row = PlanRow(
        tp=strategy.tensor.degree,
        sp=strategy.tensor.sequence_parallel,
        tp_overlap=strategy.tensor.overlap,
        cp=tuple((level.kind, level.degree) for level in strategy.context),
        pp=found.pp,
        vpp=found.vpp,
        ep=strategy.expert.ep,
        etp=strategy.expert.etp,
        dp=strategy.dp,
        sharding=sharding,
        shard_group=group,
        mbs=found.pipeline.micro_batch,
        gbs=gbs,
        schedule=found.pipeline.schedule.name,
        recompute=recompute,
        recompute_layers=count,
        offload="".join(letter for letter, share in letters if share == 1),
        dp_overlap=strategy.data.overlap,
    )
    if len(row.cp) > 1 and tuple(kind for kind, _ in row.cp) != ("a2a", "p2p"):
        return None
    return row if row.strategy(recomputed=False) == strategy else None


def _recompute_fields(recompute: Recompute) -> tuple[str, int]:
    if recompute.kind == "grouped":
        return "uni", recompute.group
    return {"none": "none", "full": "full", "selective": "sel"}.get(recompute.kind, "none"), 0


def _sharding_fields(data: DataParallel, cp: int) -> tuple[str, int]:
    if data.family == "zero":
        return f"z{data.zero}", 0
    if data.replicate > 1:
        return "hsdp", data.shard * cp
    return ("fsdp" if data.reshard else "fsdp-keep"), 0


def plain(strategy: LayerStrategy) -> LayerStrategy:
    """The strategy without settings that have no effect: those of a tensor degree of 1, context levels of 1."""
    tensor = Tensor1D() if isinstance(strategy.tensor, Tensor1D) and strategy.tensor.degree == 1 else strategy.tensor
    return replace(strategy, tensor=tensor, context=tuple(level for level in strategy.context if level.degree > 1))


def homogeneous(plan: ExecutionPlan) -> tuple[Homogeneous | None, list[Problem]]:
    """A plan taken apart as a homogeneous one.

    Returns:
        The parts, or None with every reason why the plan is not homogeneous: field, value and rule of each.
    """
    if len(plan.pipelines) != 1:
        return None, [_problem("pipelines", len(plan.pipelines), "there must be one pipeline")]
    pipeline = plan.pipelines[0]
    problems = list(_worker_problems(pipeline))
    layers, layer_problems = _virtual_layers(pipeline)
    problems += layer_problems
    strategy, block, strategy_problems = _common_strategy(plan)
    problems += strategy_problems
    if problems or strategy is None:
        return None, problems
    pp = len(pipeline.workers)
    found = Homogeneous(
        strategy=strategy, block=block, pp=pp, vpp=len(layers) // pp, layers=tuple(layers), pipeline=pipeline
    )
    return found, []


def _problem(field: str, value: object, rule: str, fix: str = "") -> Problem:
    return Problem(what=f"plan: {field} is {value!r}", why=rule, fix=fix, field=field)


def _worker_problems(pipeline: Pipeline) -> Iterator[Problem]:
    """Workers that differ in devices, order of ranks or placement."""
    first = pipeline.workers[0].num_devices
    primary = [chunk for chunk in pipeline.chunks() if chunk.copy == "primary"]
    pp = len(pipeline.workers)
    vpp, rest = divmod(len(primary), pp)
    if rest or vpp == 0:
        yield _problem("chunks", len(primary), f"must be spread evenly over the {pp} workers")
    for number, worker in enumerate(pipeline.workers):
        here = f"pipelines[0].workers[{number}]"
        if worker.num_devices != first:
            yield _problem(
                f"{here}.devices", worker.num_devices, f"every worker must have {first} devices, as the first"
            )
        elif _merged(worker.devices) != [(number * first, (number + 1) * first - 1)]:
            span = [number * first, (number + 1) * first - 1]
            yield _problem(f"{here}.devices", worker.devices, f"devices must be numbered stage by stage: {span} here")
        if worker.rank_order != "tp-cp-ep-dp":
            yield _problem(f"{here}.rank_order", worker.rank_order, "must be tp-cp-ep-dp, innermost first")
        if rest or vpp == 0:
            continue
        expected = [(stage, "primary") for stage in virtual_stages(pipeline.schedule.name, pp, vpp, number)]
        expected += _extra_stages(pipeline.schedule.name, pp, vpp, number)
        held = [(chunk.virtual_stage, chunk.copy) for chunk in worker.chunks]
        if held != expected:
            rule = f"{pipeline.schedule.name} with {vpp} chunks a worker places {expected} here"
            yield _problem(f"{here}.chunks", held, rule)


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if merged and merged[-1][1] + 1 == first:
            merged[-1] = (merged[-1][0], last)
        else:
            merged.append((first, last))
    return merged


def _virtual_layers(pipeline: Pipeline) -> tuple[list[int], list[Problem]]:
    """Layers of each virtual stage, if they follow each other and carry embedding and head at the ends."""
    problems = []
    primary = sorted((c for c in pipeline.chunks() if c.copy == "primary"), key=lambda c: c.virtual_stage)
    if [chunk.virtual_stage for chunk in primary] != list(range(len(primary))):
        stages = [chunk.virtual_stage for chunk in primary]
        return [], [_problem("virtual_stage", stages, "must be 0, 1, 2 ... once each")]
    start = 0
    for chunk in primary:
        here = f"virtual stage {chunk.virtual_stage}"
        held = chunk.num_layers
        if held and _merged(chunk.layers) != [(start, start + held - 1)]:
            problems.append(_problem(f"layers of {here}", chunk.layers, f"must go on from layer {start} without a gap"))
        start += held
        ends = (chunk.virtual_stage == 0, chunk.virtual_stage == len(primary) - 1)
        if (chunk.embedding, chunk.head) != ends:
            problems.append(
                _problem(
                    f"embedding and head of {here}",
                    (chunk.embedding, chunk.head),
                    "the embedding belongs to the first virtual stage, the head to the last",
                )
            )
    by_stage = {chunk.virtual_stage: chunk for chunk in primary}
    for chunk in pipeline.chunks():
        twin = by_stage.get(chunk.virtual_stage)
        if twin is None or (chunk.layers, chunk.runs) != (twin.layers, twin.runs):
            problems.append(
                _problem(f"{chunk.copy} of virtual stage {chunk.virtual_stage}", chunk.layers, "must equal the primary")
            )
    return [chunk.num_layers for chunk in primary], problems


def _common_strategy(plan: ExecutionPlan) -> tuple[LayerStrategy | None, int, list[Problem]]:
    """The one strategy of all layers and the block of layers recomputed before it, or how strategies differ."""
    per_chunk = [
        (chunk, [plain(plan.strategies[run.strategy]) for run in chunk.runs for _ in range(run.layers)])
        for chunk in plan.pipelines[0].chunks()
    ]
    used = list(dict.fromkeys(strategy for _, layers in per_chunk for strategy in layers))
    if not used:
        return None, 0, [_problem("strategies", [], "a plan needs at least one layer with a strategy")]
    if len(used) == 1:
        return used[0], 0, []
    kept = next((s for s in used if s.recompute == Recompute()), None)
    if kept is not None and set(used) == {kept, replace(kept, recompute=Recompute(kind="full"))}:
        heads = [(_prefix(layers, kept), len(layers)) for _, layers in per_chunk]
        block = max((head for head, _ in heads if head is not None), default=0)
        if all(head == min(block, held) for head, held in heads):
            return kept, block, []
        rule = "layers recomputed in full must be the first layers of each chunk, equally many"
        return (
            None,
            0,
            [_problem("recompute", [head for head, _ in heads], rule, f"recompute block {block} everywhere")],
        )
    problems = []
    for name, values in _differences(used).items():
        shown = ", ".join(dict.fromkeys(repr(value) for value in values))
        problems.append(
            Problem(
                what=f"plan: {name} differs between layers: {shown}",
                why="every layer must have one strategy",
                fix=f"use {values[0]!r} everywhere",
                field=f"strategies.{name}",
            )
        )
    return None, 0, problems


def _prefix(layers: list[LayerStrategy], kept: LayerStrategy) -> int | None:
    """How many layers come before the first one kept, or None if a recomputed one follows it."""
    head = layers.index(kept) if kept in layers else len(layers)
    return head if all(strategy == kept for strategy in layers[head:]) else None


def _differences(values: Sequence[Any], path: str = "") -> dict[str, list[Any]]:
    """Dotted names of the fields in which records differ, with each record's value."""
    first = values[0]
    if not is_dataclass(first) or any(type(value) is not type(first) for value in values):
        return {} if all(value == first for value in values) else {path: list(values)}
    found: dict[str, list[Any]] = {}
    for item in fields(first):
        found |= _differences([getattr(v, item.name) for v in values], f"{path}.{item.name}" if path else item.name)
    return found
