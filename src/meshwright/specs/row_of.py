"""Homogeneous plans taken apart, and as a row of degrees where one says all of it.

A plan is homogeneous when it is one pipeline of equal workers with one strategy, apart from layers recomputed at the
head of each chunk. How many layers each chunk holds is free; a row does not say it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any

from meshwright.errors import Problem
from meshwright.specs.plan import ExecutionPlan, Pipeline
from meshwright.specs.row import PlanRow, hot_experts_of, offload_token
from meshwright.specs.shardings import sharding_of
from meshwright.specs.strategy import DataParallel, LayerStrategy, Recompute, Tensor1D


@dataclass(frozen=True, slots=True, kw_only=True)
class Homogeneous:
    """What a homogeneous plan consists of."""

    strategy: LayerStrategy
    """Strategy of every layer; its recompute is that of the layers behind the block."""
    block: int
    """First layers of each chunk recomputed in full; 0 where `strategy.recompute` holds for all."""
    pp: int
    vpp: int
    layers: tuple[int, ...]
    """Layers of each virtual stage, in order."""
    held: tuple[tuple[tuple[int, str], ...], ...]
    """Virtual stages that each worker holds, chunk by chunk, each with the kind of copy."""
    pipeline: Pipeline


def row_from(found: Homogeneous, *, gbs: int) -> PlanRow | None:
    """The row of a homogeneous plan; None where a row's fields do not say all of it."""
    if found.pipeline.shapes or found.pipeline.schedule.orders:
        return None
    if found.block and found.strategy.recompute != Recompute():
        return None
    row = strategy_row(found.strategy)
    if row is None:
        return None
    block = {"recompute": "block", "recompute_layers": found.block} if found.block else {}
    pipeline = found.pipeline
    batch = {"mbs": pipeline.micro_batch, "gbs": gbs, "schedule": pipeline.schedule.token}
    return replace(row, pp=found.pp, vpp=found.vpp, **batch, **block)  # type: ignore[arg-type]


def strategy_row(strategy: LayerStrategy) -> PlanRow | None:
    """The row of layers of one strategy, whose pipeline and batch are not said; None where a row's fields lack some."""
    strategy = effective(strategy)
    one = strategy.tensor if isinstance(strategy.tensor, Tensor1D) else Tensor1D()
    if one.overlap == "none" or (strategy.recompute.kind == "selective" and not strategy.recompute.modules):
        return None
    recompute, count = _recompute_fields(strategy.recompute)
    sharding = sharding_of(strategy.data)
    row = PlanRow(
        tp=strategy.tp,
        tensor=strategy.tensor.name,
        sp=one.sequence_parallel,
        tp_overlap=one.overlap,
        cp=tuple((level.name, level.degree) for level in strategy.context),
        ep=strategy.expert.ep,
        etp=strategy.expert.etp,
        dispatcher=strategy.expert.dispatcher,
        ep_overlap=strategy.expert.overlap,
        hot_experts=hot_experts_of(strategy.expert),
        ep_chunks=strategy.expert.overlap_degree if strategy.expert.overlap_degree in (2, 4, 8) else 1,
        drop_duplicates=strategy.expert.drop_duplicates,
        stash_collectives=strategy.expert.stash_collectives,
        prioritised=strategy.expert.prioritised,
        dp=strategy.dp,
        sharding=sharding.name,
        shard_group=strategy.data.shard * strategy.cp if sharding.grouped else 0,
        recompute=recompute,
        recompute_layers=count,
        recompute_modules=strategy.recompute.modules if recompute == "sel" else ("core_attn",),
        offload=offload_token(strategy.offload),
        dp_overlap=strategy.data.overlap,
        optimizer_tile=strategy.optimizer_tile,
        data_words=_data_words(strategy.data),
    )
    return row if row.strategy(recomputed=False) == strategy else None


def _data_words(data: DataParallel) -> tuple[str, ...]:
    if not data.sends_otherwise:
        return ()
    from meshwright.specs.data_words import data_words_of  # few plans have any

    return data_words_of(data)


def _recompute_fields(recompute: Recompute) -> tuple[str, int]:
    if recompute.kind == "grouped":
        return "uni", recompute.group
    return {"none": "none", "full": "full", "selective": "sel"}.get(recompute.kind, "none"), 0


def effective(strategy: LayerStrategy) -> LayerStrategy:
    """The strategy without settings that have no effect: those of a tensor degree of 1, context levels of 1."""
    tensor = Tensor1D() if strategy.tp == 1 else strategy.tensor
    return replace(strategy, tensor=tensor, context=tuple(level for level in strategy.context if level.degree > 1))


@lru_cache(maxsize=512)  # every framework that is asked about a plan takes it apart
def homogeneous(plan: ExecutionPlan, *, unevenly: bool = False) -> tuple[Homogeneous | None, tuple[Problem, ...]]:
    """A plan taken apart as a homogeneous one.

    Args:
        plan: the plan.
        unevenly: whether its virtual stages may be spread unevenly over its workers.

    Returns:
        The parts, or None with every reason why the plan is not homogeneous: field, value and rule of each.
    """
    if len(plan.pipelines) != 1:
        return None, (_problem("pipelines", len(plan.pipelines), "there must be one pipeline"),)
    pipeline = plan.pipelines[0]
    problems = list(_worker_problems(pipeline, unevenly=unevenly))
    layers, layer_problems = _virtual_layers(pipeline)
    problems += layer_problems
    strategy, block, strategy_problems = _common_strategy(plan)
    problems += strategy_problems
    if problems or strategy is None:
        return None, tuple(problems)
    pp = len(pipeline.workers)
    found = Homogeneous(
        strategy=strategy,
        block=block,
        pp=pp,
        vpp=max(_chunks_held(pipeline)),
        layers=tuple(layers),
        held=tuple(tuple((chunk.virtual_stage, chunk.copy) for chunk in worker.chunks) for worker in pipeline.workers),
        pipeline=pipeline,
    )
    return found, ()


OF_THE_TARGET = "let `plan --target` find the best plan that the framework can run"


def _problem(field: str, value: object, rule: str, fix: str = "") -> Problem:
    return Problem(what=f"plan: {field} is {value!r}", why=rule, fix=fix, field=field)


def _worker_problems(pipeline: Pipeline, *, unevenly: bool) -> Iterator[Problem]:
    """Workers that differ in devices, order of ranks or number of chunks."""
    first = pipeline.workers[0].num_devices
    alike = all(worker.num_devices == first for worker in pipeline.workers)
    counts = _chunks_held(pipeline)
    if not any(counts) or (len(set(counts)) > 1 and not unevenly):
        yield _problem("chunks", sum(counts), f"must be spread evenly over the {len(counts)} workers")
    for number, worker in enumerate(pipeline.workers):
        here = f"pipelines[0].workers[{number}]"
        if worker.num_devices != first:
            noun = "device" if first == 1 else "devices"
            why = f"every worker must have {first} {noun}, as the first has"
            yield _problem(f"{here}.devices", worker.num_devices, why, OF_THE_TARGET)
        elif alike and _merged(worker.devices) != [(number * first, (number + 1) * first - 1)]:
            held = ", ".join(f"{low}-{high}" for low, high in _merged(worker.devices))
            why = f"devices must be numbered stage by stage: {number * first}-{(number + 1) * first - 1} here"
            yield Problem(what=f"plan: {here} has devices {held}", why=why, fix=OF_THE_TARGET, field=f"{here}.devices")
        if worker.rank_order != "tp-cp-ep-dp":
            yield _problem(f"{here}.rank_order", worker.rank_order, "must be tp-cp-ep-dp, innermost first")


def _chunks_held(pipeline: Pipeline) -> list[int]:
    """Primary chunks of each worker; replicas and copies against failures are not counted."""
    return [sum(chunk.copy == "primary" for chunk in worker.chunks) for worker in pipeline.workers]


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
    stripped = [effective(strategy) for strategy in plan.strategies]
    chunks = tuple(plan.pipelines[0].chunks())
    used = list(dict.fromkeys(stripped[run.strategy] for chunk in chunks for run in chunk.runs if run.layers))
    if not used:
        return None, 0, [_problem("strategies", [], "a plan needs at least one layer with a strategy")]
    if len(used) == 1:
        return used[0], 0, []
    kept = next((s for s in used if s.recompute == Recompute()), None)
    if kept is not None and set(used) == {kept, replace(kept, recompute=Recompute(kind="full"))}:
        held = [[stripped[run.strategy] for run in chunk.runs for _ in range(run.layers)] for chunk in chunks]
        heads = [(_prefix(layers, kept), len(layers)) for layers in held]
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
        texts = list(dict.fromkeys(_shown(value) for value in values))
        problems.append(
            Problem(
                what=f"plan: {name} differs between layers: {', '.join(texts)}",
                why="every layer must have one strategy",
                fix=f"use {texts[0]} everywhere",
                field=f"strategies.{name}",
            )
        )
    return None, 0, problems


def _shown(value: object) -> str:
    """A setting in words: `2`, `ring`, `degree 4 kind p2p layout zigzag`; `none` where there is nothing."""
    if is_dataclass(value):
        return " ".join(f"{item.name} {_shown(getattr(value, item.name))}" for item in fields(value))
    if isinstance(value, tuple):
        return " x ".join(map(_shown, value)) or "none"
    return str(value)


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
