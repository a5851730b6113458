"""Whether a plan can be priced: it fits its model, cluster and workload, and asks for nothing that has no price.

A setting that is priced like its neutral value would be an answer to another question: it is refused at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.estimate.rules.away import away_problems, update_problems
from meshwright.estimate.stages import paging_problems, recompute_problem, schedule_problems, strategies_of
from meshwright.schedules.plan_rows import schedule_of
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan, Pipeline, Worker
from meshwright.specs.strategy import COLLECTIVE, ExpertParallel, LayerStrategy
from meshwright.specs.workload import Workload
from meshwright.strategies import CONTEXTS, PASSINGS, TENSORS


@dataclass(frozen=True, slots=True)
class Unpriced:
    """A field of a record, where it has it, and the values of it that are priced."""

    field: str
    """Dotted path from the record."""
    priced: tuple[object, ...]
    why: str
    fix: str

    def problem(self, record: object, where: str) -> Problem | None:
        """The refusal of a record that states another value, None of one that does not."""
        parent, _, name = self.field.rpartition(".")
        value = getattr(attrgetter(parent)(record) if parent else record, name, self.priced[0])
        if value in self.priced:
            return None
        path = f"{where}.{self.field}"
        return Problem(what=f"{path} is {value!r}", why=self.why, fix=self.fix, field=path)


OF_STRATEGY = (
    Unpriced("tensor.parameters", ((),), "no tensor strategy of the catalogue has parameters", "leave them out"),
    Unpriced(
        "expert.expert_shards",
        (1,),
        "experts' parameters are sharded as the data strategy says, by no degree of their own",
        "use 1, and zero 3 to shard experts over their data ranks",
    ),
    Unpriced(
        "expert.placement",
        ((),),
        "experts are placed in blocks, or by the load of each layer",
        "leave it out, or use placed_by_load with a load of experts",
    ),
    Unpriced(
        "data.averaging",
        ("synchronous", "local", "diloco"),
        "the exchange with a reference copy of the weights has no rule",
        "use synchronous, local or diloco",
    ),
    Unpriced("recompute.reference", ("",), "tables of recomputed operators are not read", "name modules instead"),
    Unpriced(
        "recompute.kind",
        ("none", "selective", "full", "grouped"),
        "which operators are recomputed is in a table that is not read",
        "use selective with the modules that are computed again, or full",
    ),
)


def unpriced(plan: ExecutionPlan, workload: Workload) -> tuple[Problem, ...]:
    """Every setting of a plan and a workload that has no price, together.

    Args:
        plan: only strategies that a layer uses count.
        workload: the workload of the plan.

    Returns:
        Problems, none where everything that is stated is priced.
    """
    found: list[Problem | None] = []
    for index in sorted({index for pipeline in plan.pipelines for index in strategies_of(pipeline)}):
        strategy, where = plan.strategies[index], f"strategies[{index}]"
        found += [entry.problem(strategy, where) for entry in OF_STRATEGY]
        found += _of_precision(strategy, workload, where)
        found += _of_tiles(strategy, workload, where)
        found += update_problems(strategy.offload, workload)
        if workload.update.layerwise:
            found += _of_layerwise(strategy, workload, where)
        if strategy.data.sends_otherwise:
            from meshwright.estimate.rules.sums import sum_problems, sums_of_job  # few plans need it

            layers = sum(chunk.num_layers for chunk in plan.pipelines[0].chunks())
            found += (*sum_problems(strategy, layers), *sums_of_job(strategy, workload, len(plan.pipelines)))
        found += _of_passing(strategy, plan, where)
        found += (*_of_tensor(strategy, where), *_of_layout(strategy, where))
        if strategy.data.across and workload.sequence_lengths:
            why = "how long the ranks of unlike devices wait for each other's longest sequences has no rule"
            fix = "leave --lengths out, or let each pipeline hold its own states"
            path = f"{where}.data.across"
            found.append(Problem(what=f"{path} with sequences of several lengths", why=why, fix=fix, field=path))
    if workload.update.layerwise and any(pipeline.num_micro_batches > 1 for pipeline in plan.pipelines):
        why = "each layer is updated by the gradient of one micro-batch, which is freed then"
        fix = "use a batch of one micro-batch on every rank, or leave layerwise out"
        counts = ", ".join(str(pipeline.num_micro_batches) for pipeline in plan.pipelines)
        what = f"a step has {counts} micro-batches with {workload.optimizer}"
        found.append(Problem(what=what, why=why, fix=fix, field="gbs"))
    for number, pipeline in enumerate(plan.pipelines):
        for place, worker in enumerate(pipeline.workers):
            found += _of_order(worker, f"pipelines[{number}].workers[{place}]")
    return tuple(problem for problem in found if problem is not None)


def _of_precision(strategy: LayerStrategy, workload: Workload, where: str) -> Iterator[Problem]:
    """A layer in other formats than the workload's."""
    if strategy.precision not in (None, workload.precision):
        yield Problem(
            what=f"{where}.precision is {strategy.precision.name!r}, the workload's {workload.precision.name!r}",
            why="formats are stated once, for the workload; a layer of the model says alone whether it is wide",
            fix="leave it out and give the workload that precision; bf16_first and bf16_last keep layers in 16 bits",
            field=f"{where}.precision",
        )


def _of_layerwise(strategy: LayerStrategy, workload: Workload, where: str) -> Iterator[Problem]:
    """Gradients that are summed over ranks, or leave for the host, at the end of a step."""
    data, offload = strategy.data, strategy.offload
    if strategy.cp * strategy.dp > 1 and data.zero < 3:
        why = "gradients that ranks sum at the end of a step are all there until then"
        fix = "use fsdp or z3, which sum them layer by layer, or one data rank"
        yield Problem(what=f"z{data.zero} with {workload.optimizer}", why=why, fix=fix, field=f"{where}.data")
    if offload.optimizer or offload.gradients:
        why, fix = "the update of a layer runs on the device as backward goes", "leave one of both out"
        what = f"states in host memory with {workload.optimizer}"
        yield Problem(what=what, why=why, fix=fix, field=f"{where}.offload")


def _of_tiles(strategy: LayerStrategy, workload: Workload, where: str) -> Iterator[Problem]:
    """Updates in tiles where there is no copy of gradients that tiles make smaller."""
    precision, path = workload.precision, f"{where}.optimizer_tile"
    if not strategy.optimizer_tile:
        return
    what = f"{path} is {strategy.optimizer_tile:,}"
    if not precision.copies_gradients:
        summed = "every micro-batch is added to the fp32 copy, which is whole until the update"
        why = summed if precision.sums_in_copy else "gradients are in the format of the update, with no copy in fp32"
        yield Problem(what=what, why=why, fix="use 0, or --dtype fp16", field=path)
    elif strategy.data.family == "fsdp":
        why = "the shard that is updated is in fp32, and so is its gradient"
        yield Problem(what=what, why=why, fix="use 0, or z1, z2 or z3", field=path)
    elif strategy.offload.optimizer:
        yield Problem(what=what, why="the host updates what it holds", fix="use 0, or leave off-o out", field=path)


def _of_passing(strategy: LayerStrategy, plan: ExecutionPlan, where: str) -> Iterator[Problem]:
    """Weights that travel in a way that is not in the catalogue, or beside what they cannot."""
    name, path = strategy.data.passing, f"{where}.data.passing"
    if name == COLLECTIVE:
        return
    if name not in PASSINGS:
        why, fix = (
            "weights and gradients get to other ranks in no such way",
            f"use one of {COLLECTIVE}, {', '.join(PASSINGS)}",
        )
        yield Problem(what=f"{path} is {name!r}", why=why, fix=fix, field=path)
        return
    pipeline = plan.pipelines[0]
    layers = sum(chunk.num_layers for chunk in pipeline.chunks())
    workers = max(len(pipeline.workers), len(plan.pipelines))
    yield from PASSINGS[name].problems(strategy, layers=layers, workers=workers, experts=strategy.expert.etp > 1)


def _of_tensor(strategy: LayerStrategy, where: str) -> Iterator[Problem]:
    """A tensor strategy that is not in the catalogue."""
    if strategy.tensor.name not in TENSORS:
        path, fix = f"{where}.tensor.name", f"use one of {', '.join(TENSORS)}"
        why = "no rule cuts operators this way"
        yield Problem(what=f"{path} is {strategy.tensor.name!r}", why=why, fix=fix, field=path)


def _of_layout(strategy: LayerStrategy, where: str) -> Iterator[Problem]:
    """Kinds that nobody knows, and ranks with shares of a sequence other than those of their kind.

    After an exchange of heads for sequence no rank has a share.
    """
    for number, level in enumerate(strategy.context):
        if level.kind not in CONTEXTS:
            path, fix = f"{where}.context[{number}].kind", f"use one of {', '.join(CONTEXTS)}"
            yield Problem(what=f"{path} is {level.kind!r}", why="no rule prices this kind", fix=fix, field=path)
        elif (layout := CONTEXTS[level.name].layout) and level.layout != layout and level.degree > 1:
            path = f"{where}.context[{number}].layout"
            why = f"ranks are taken to share the attended pairs evenly, as the {layout} layout does"
            yield Problem(what=f"{path} is {level.layout!r}", why=why, fix=f"use {layout}", field=path)


def _of_order(worker: Worker, where: str) -> Iterator[Problem]:
    """Ranks numbered in another order than that of the priced groups."""
    if worker.rank_order != "tp-cp-ep-dp":
        path, why = f"{where}.rank_order", "groups of ranks are priced in the order tp-cp-ep-dp, innermost first"
        yield Problem(what=f"{path} is {worker.rank_order!r}", why=why, fix="use tp-cp-ep-dp", field=path)


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
