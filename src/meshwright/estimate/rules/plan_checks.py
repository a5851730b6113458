"""Whether a plan can be priced: it fits its model, cluster and workload, and asks for nothing that has no price."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.estimate.rules.away import away_problems
from meshwright.estimate.rules.unpriced import unpriced
from meshwright.estimate.stages import paging_problems, recompute_problem, schedule_problems, strategies_of
from meshwright.schedules.plan_rows import schedule_of
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan, Pipeline
from meshwright.specs.strategy import ExpertParallel
from meshwright.specs.workload import Workload


def check_plan(plan: ExecutionPlan, model: ModelSpec, cluster: ClusterSpec, workload: Workload) -> None:
    """Refuse what cannot be priced; arguments as `estimate_plan`.

    Raises:
        InputError: plan, model, workload and cluster do not belong together.
        UnsupportedError: the plan needs something nobody prices yet.
    """
    problems = []
    if plan.num_layers != model.num_layers:
        problems.append(
            Problem(
                what=f"the plan holds {plan.num_layers} layers, {model.name} has {model.num_layers}",
                why="every layer belongs to exactly one stage",
                fix="give the model the plan was made for",
                field="layers",
            )
        )
    needed = 1 + max(last for pipeline in plan.pipelines for worker in pipeline.workers for _, last in worker.devices)
    if needed > cluster.devices:
        problems.append(
            Problem(
                what=f"the plan uses {needed} devices, the cluster has {cluster.devices}",
                fix=f"give a cluster of {needed} devices, or another plan",
                field="devices",
            )
        )
    if plan.global_batch != workload.global_batch:
        problems.append(
            Problem(
                what=f"the plan runs {plan.global_batch} sequences per step, the workload has {workload.global_batch}",
                fix=f"use --gbs {plan.global_batch}",
                field="gbs",
            )
        )
    problems += _cut_towers(plan, model)
    used = sorted({index for pipeline in plan.pipelines for index in strategies_of(pipeline)})
    if model.is_moe or any(plan.strategies[index].expert != ExpertParallel() for index in used):
        from meshwright.estimate.rules.experts import expert_problems  # dense models have none

        for index in used:
            problems += expert_problems(plan.strategies[index], model, workload, f"strategies[{index}]")
        if any(plan.strategies[index].expert.overlap.startswith("paired") for index in used):
            from meshwright.estimate.rules.overlap import overlap_problems_of_plan

            problems += overlap_problems_of_plan(plan, model)
    if problems:
        raise InputError(problems, code="MW230")
    unsupported = (*unpriced(plan, workload), *away_problems(plan, cluster))
    if unsupported:
        refused = [problem for pipeline in plan.pipelines for problem in schedule_problems(pipeline)]
        raise UnsupportedError((*unsupported, *refused), code="MW406")
    for pipeline in plan.pipelines:
        _check_pipeline(plan, pipeline, workload.seq_len)


def _cut_towers(plan: ExecutionPlan, model: ModelSpec) -> Iterator[Problem]:
    """Stages that end inside a tower, whose tokens have no price between stages."""
    towers = model.tower_layers
    for pipeline in plan.pipelines if towers else ():
        ends = [last for worker in pipeline.workers for chunk in worker.chunks for _, last in chunk.layers]
        if ends and min(ends) < towers:
            yield Problem(
                what=f"a stage ends after layer {min(ends)}",
                why=f"the first {towers} layers of {model.name} are towers, which belong whole to the first stage",
                fix=f"give the first stage at least {towers + 1} layers",
                field="layers",
            )


def _check_pipeline(plan: ExecutionPlan, pipeline: Pipeline, seq_len: int) -> None:
    """Check the schedule, the recompute and the micro-batches of a pipeline."""
    refused = tuple(schedule_problems(pipeline))
    if refused:
        raise UnsupportedError(refused, code="MW407")
    used = strategies_of(pipeline)
    schedule = schedule_of(pipeline.schedule)
    recomputes: set[str] = {plan.strategies[index].recompute.kind for index in used}
    wrong = recompute_problem(schedule, recomputes) if used and len(pipeline.workers) > 1 else None
    if wrong:
        raise InputError(wrong, code="MW230")
    if unpaged := list(dict.fromkeys(one for i in used for one in paging_problems(schedule, plan.strategies[i]))):
        raise InputError(unpaged, code="MW230")
    unlike = {shape for shape in pipeline.shapes if shape != (pipeline.micro_batch, seq_len)}
    if unlike:
        raise UnsupportedError(
            what=f"micro-batches of {len(set(pipeline.shapes))} shapes",
            why="a pipeline is priced with micro-batches of one size and length",
            fix="use equal micro-batches, or the planner that made them",
            field="shapes",
            code="MW407",
        )
