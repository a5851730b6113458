"""What may run beside the exchange of tokens with their experts, by model, schedule and recompute, and which layers may
compute halves of a micro-batch."""

from __future__ import annotations

from meshwright.errors import Problem
from meshwright.schedules import Schedule
from meshwright.schedules.plan_rows import schedule_of
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.strategy import TENSOR_OVERLAPS, LayerStrategy, Tensor1D


def halves_problems(strategy: LayerStrategy, model: ModelSpec, micro_batch: int) -> list[Problem]:
    """What forbids a layer to compute its micro-batches in halves.

    Args:
        strategy: the strategy of layers.
        model: the model.
        micro_batch: sequences of a data rank in a micro-batch.
    """
    tensor = strategy.tensor
    if not isinstance(tensor, Tensor1D) or tensor.overlap != "halves":
        return []
    word = TENSOR_OVERLAPS["halves"]
    found = []
    if tensor.degree == 1:
        found.append((f"{word} without tp", "no tensor rank waits for another", "leave it out"))
    elif micro_batch % 2:
        why = "a micro-batch is cut into halves of whole sequences"
        found.append((f"{word} with mbs {micro_batch}", why, f"use mbs{micro_batch + 1}, or tpov"))
    if model.is_moe:
        why = f"experts of {model.name} take the tokens of whole micro-batches"
        found.append((f"{word} with experts", why, "use tpov"))
    return [Problem(what=what, why=why, fix=fix, field="tp_overlap") for what, why, fix in found]


def overlap_problems(
    strategy: LayerStrategy, model: ModelSpec, pipeline: tuple[Schedule, int, int, int]
) -> list[Problem]:
    """What forbids exchanges of experts to run beside what a strategy says.

    Args:
        strategy: the strategy of layers, recomputed ones where layers differ.
        model: the model.
        pipeline: schedule, workers, micro-batches and chunks per worker.
    """
    overlap, (schedule, p, m, v) = strategy.expert.overlap, pipeline
    found: list[Problem] = []

    def add(what: str, why: str, fix: str) -> None:
        found.append(Problem(what=f"{_WORDS[overlap]} with {what}", why=why, fix=fix, field="ep_overlap"))

    if overlap == "none" or strategy.expert.ep == 1:
        return found  # that nothing is exchanged is said of every such word
    if overlap == "shared":
        if not any(getattr(layer.mlp, "shared_ffn_hidden", 0) for layer in model.kinds()):
            add(model.name, "the model has no shared experts", "use epov, which needs none")
        return found
    if not schedule.problems(p, m, v) and schedule.unpaired(p, m, v) is None:
        why = f"{schedule.name} runs no forward together with a backward of another micro-batch"
        add(f"schedule {schedule.name} on pp {p}", why, "use vpp2 or more, pp 1, or schedule dualpipe")
    if strategy.recompute.kind in ("full", "grouped"):
        why = "recomputing a whole layer repeats its exchanges with nothing to overlap them"
        add(f"recompute {strategy.recompute.kind}", why, "use rc-sel, or rc-none")
    return found


def overlap_problems_of_plan(plan: ExecutionPlan, model: ModelSpec) -> list[Problem]:
    """What forbids exchanges of experts to run beside what the strategies of a plan say, pipeline by pipeline.

    Args:
        plan: the plan of any pipelines.
        model: the model.
    """
    found: list[Problem] = []
    if all(strategy.expert.overlap == "none" for strategy in plan.strategies):
        return found  # of most plans
    for pipeline in plan.pipelines:
        schedule = schedule_of(pipeline.schedule)
        chunks = max(len(worker.chunks) for worker in pipeline.workers) // schedule.chains
        shape = (schedule, len(pipeline.workers), pipeline.num_micro_batches, chunks)
        for index in dict.fromkeys(run.strategy for chunk in pipeline.chunks() for run in chunk.runs):
            found += overlap_problems(plan.strategies[index], model, shape)
    return found


_WORDS = {"shared": "epov-shared", "paired": "epov", "paired-wgrad": "epov-wgrad"}
"""Overlaps of exchanges as plans write them."""
