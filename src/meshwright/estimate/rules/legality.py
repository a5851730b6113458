"""What makes a plan legal for a model: rules as data, applied to one row or every stage of a plan."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import numpy as np

from meshwright.errors import Problem, unknown_name
from meshwright.estimate.rules.away import strategy_problems
from meshwright.estimate.rules.degrees import OR_MULTIPLE, model_rules
from meshwright.estimate.stages import paging_problems, recompute_problem
from meshwright.schedules import schedule_named
from meshwright.schedules.plan_rows import stages_of
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.shardings import SHARDINGS
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import batch_problem
from meshwright.strategies import CONTEXTS, PASSINGS, TENSORS
from meshwright.strategies.base import DegreeRule, Degrees


def row_degrees(row: PlanRow) -> Degrees:
    """One row as columns."""
    values = {
        "tp": row.tp,
        "sp": int(row.sp or row.tp == 1 or row.drop_duplicates),
        "cp": row.cp_degree,
        "cp_heads": math.prod(degree for kind, degree in row.cp if _swaps_heads(kind)),
        "cp_halves": math.prod(degree for kind, degree in row.cp if _has_halves(kind)),
        "pp": row.pp,
        "vpp": row.vpp,
        "ep": row.ep,
        "etp": row.etp,
        "dp": row.dp,
        "mbs": row.mbs,
    }
    return {name: np.array([value]) for name, value in values.items()}


def _swaps_heads(kind: str) -> bool:
    return kind in CONTEXTS and CONTEXTS[kind].swaps_heads


def _has_halves(kind: str) -> bool:
    return kind in CONTEXTS and CONTEXTS[kind].layout == "zigzag"


def _unknown_kinds(row: PlanRow) -> list[Problem]:
    """Names that no catalogue of strategies has."""
    found = []
    if row.tensor not in TENSORS:
        degree = re.match(r"(?:pp|cp|ep|dp|vpp|mbs|z)[0-9]", row.tensor)
        dotted = f"Dots join tokens: tp{row.tp}.{row.tensor.replace('-', '.')}" if degree else ""
        found.append(unknown_name("tensor strategy", row.tensor, TENSORS, remedy=dotted))
    return found + [unknown_name("kind of context", kind, CONTEXTS) for kind, _ in row.cp if kind not in CONTEXTS]


def row_problems(row: PlanRow, model: ModelSpec, seq_len: int, devices: int, *, bare: int = 0) -> tuple[Problem, ...]:
    """Everything that makes a row illegal on so many devices, together.

    Args:
        row: the degrees.
        model: the model.
        seq_len: tokens of a sequence.
        devices: devices of the cluster.
        bare: virtual stages that hold the embedding or the head alone.

    Returns:
        Problems, none if the row is legal.
    """
    problems = _unknown_kinds(row)
    if problems:
        return tuple(problems)
    if row.devices != devices:
        problems.append(
            Problem(
                what=f"{row.identity()}, but the cluster has {devices} device{'s' if devices != 1 else ''}",
                why="tp x cp x pp x dp must use every device",
                fix=_device_fix(row, devices),
                field="dp",
            )
        )
    degrees = row_degrees(row)
    for rule in model_rules(model, seq_len, row.tensor):
        if not bool(rule.holds(degrees)[0]) and not (
            rule.name == "layers" and stages_of(row) - bare <= model.most_stages  # some workers hold fewer than vpp
        ):
            value = degrees[rule.field][0] if rule.field in degrees else row.tensor
            problems.append(Problem(what=_what(rule, value), why=rule.why, fix=_fix(rule, degrees), field=rule.field))
    batch = batch_problem(row.gbs, row.dp, row.mbs)
    if batch:
        problems.append(batch)
    # A batch that does not divide leaves the number of micro-batches open, which other constraints do not ask for.
    problems += [problem for problem in _schedule_problems(row) if not (batch and problem.field == "m")]
    problems += _group_problems(row)
    if row.recompute in ("block", "uni") and not 1 <= row.recompute_layers <= model.num_layers:
        problems.append(
            Problem(
                what=f"rc-{row.recompute}{row.recompute_layers}",
                why=f"K counts layers, 1 to {model.num_layers}",
                fix="use rc-full to recompute all",
                field="recompute",
            )
        )
        row = replace(row, recompute="full", recompute_layers=0)
    problems += strategy_problems(row.strategy())
    if row.ep == 1 and row.expert_words():
        from meshwright.estimate.rules.experts import idle_words  # of plans that are refused

        problems += idle_words(row, model)
    if row.data_words:
        from meshwright.estimate.rules.sums import sum_problems  # few plans need it

        problems += sum_problems(row.strategy(), model.num_layers)
    if passing := PASSINGS.get(SHARDINGS[row.sharding].passing):
        problems += passing.problems(row.strategy(), layers=model.num_layers, workers=row.pp, experts=model.is_moe)
    if row.tp_overlap == "halves":
        from meshwright.estimate.rules.overlap import halves_problems  # of few plans

        problems += halves_problems(row.strategy(), model, row.mbs)
    if row.ep_overlap != "none":
        from meshwright.estimate.rules.overlap import overlap_problems  # of few plans

        pipeline = (schedule_named(row.schedule), row.pp, row.micro_batches, row.vpp)
        problems += overlap_problems(row.strategy(recomputed=True), model, pipeline)
    return tuple(dict.fromkeys(problems))


def _group_problems(row: PlanRow) -> list[Problem]:
    """Groups of ranks that share one copy of the states and do not hold whole data ranks."""
    if not SHARDINGS[row.sharding].grouped:
        return []
    shard = row.shard_group // row.cp_degree
    if shard and not row.shard_group % row.cp_degree and not row.dp % shard:
        return []
    return [
        Problem(
            what=f"{row.sharding_word} with cp {row.cp_degree} and dp {row.dp}",
            why="a shard group holds all context ranks of some data ranks, whose number divides dp",
            fix=f"use a divisor of {row.dp * row.cp_degree} that is a multiple of {row.cp_degree}",
            field=row.sharding,
        )
    ]


def plan_problems(plan: ExecutionPlan, model: ModelSpec, seq_len: int) -> tuple[Problem, ...]:
    """Everything that makes stages of a plan illegal for a model, together; each strategy once, where it first stands.

    Args:
        plan: the plan of any pipelines.
        model: the model.
        seq_len: tokens of a sequence.

    Returns:
        Problems, none if the plan is legal.
    """
    problems: list[Problem] = []
    seen: set[int] = set()
    for number, pipeline in enumerate(plan.pipelines):
        sequences = pipeline.micro_batch * plan.data_degree(pipeline)
        for place, worker in enumerate(pipeline.workers):
            here = f"pipeline {number} stage {place}: " if len(plan.pipelines) > 1 else f"stage {place}: "
            for index in dict.fromkeys(run.strategy for chunk in worker.chunks for run in chunk.runs):
                strategy = plan.strategies[index]
                if sequences % strategy.dp:
                    problems.append(_uneven_share(here, strategy.dp, sequences))
                if index in seen or strategy.tensor.name not in TENSORS:
                    continue
                seen.add(index)
                if getattr(strategy.tensor, "overlap", "") == "halves":
                    from meshwright.estimate.rules.overlap import halves_problems  # of few plans

                    problems += halves_problems(strategy, model, pipeline.micro_batch)
                degrees = _strategy_degrees(strategy, pipeline.micro_batch)
                for rule in model_rules(model, seq_len, strategy.tensor.name):
                    if not bool(rule.holds(degrees)[0]):
                        value = degrees[rule.field][0] if rule.field in degrees else strategy.tensor.name
                        what = here + _what(rule, value)
                        problems.append(Problem(what=what, why=rule.why, fix=_fix(rule, degrees), field=rule.field))
    if any(strategy.expert.overlap != "none" for strategy in plan.strategies):
        from meshwright.estimate.rules.overlap import overlap_problems_of_plan  # of few plans

        problems += overlap_problems_of_plan(plan, model)
    return tuple(dict.fromkeys(problems))


def _fix(rule: DegreeRule, degrees: Degrees) -> str:
    """The remedy of a rule for one row."""
    return rule.nearest({name: int(values[0]) for name, values in degrees.items()}) if rule.nearest else rule.fix


def _uneven_share(here: str, dp: int, sequences: int) -> Problem:
    return Problem(
        what=f"{here}dp {dp} does not divide the {sequences} sequences of a micro-batch",
        why="the data ranks of a stage share each micro-batch evenly",
        fix="use a data degree that divides them, or larger micro-batches",
        field="dp",
    )


def _strategy_degrees(strategy: LayerStrategy, micro_batch: int) -> Degrees:
    """One strategy as columns; what concerns whole pipelines is left at 1."""
    values = {
        "tp": strategy.tp,
        "sp": int(strategy.tensor.shards_sequence or strategy.tp == 1 or strategy.expert.drop_duplicates),
        "cp": strategy.cp,
        "cp_heads": math.prod(c.degree for c in strategy.context if _swaps_heads(c.name)),
        "cp_halves": math.prod(c.degree for c in strategy.context if _has_halves(c.name)),
        "pp": 1,
        "vpp": 1,
        "ep": strategy.expert.ep,
        "etp": strategy.expert.etp,
        "dp": strategy.dp,
        "mbs": micro_batch,
    }
    return {name: np.array([value]) for name, value in values.items()}


def _in_plan_words(problem: Problem, row: PlanRow) -> Problem:
    """The problem in the terms of a one-line plan: `vpp4` for `v = 4`; micro-batches by their global batch."""
    if problem.field == "m" and problem.fix.startswith("m = "):
        why = f"{problem.why}; gbs {row.gbs} / (dp {row.dp} x mbs {row.mbs}) = {row.micro_batches} micro-batches"
        counts = problem.fix.removeprefix("m = ").partition(", or ")[0]  # further options are of `schedule` alone
        near = re.sub(r"\d+", lambda count: str(int(count[0]) * row.dp * row.mbs), counts)
        return replace(problem, why=why, fix=f"use a global batch of {near}, or other degrees")
    return replace(problem, what=problem.what.replace(": v = ", ": vpp = "), fix=problem.fix.replace("v = ", "vpp"))


def _schedule_problems(row: PlanRow) -> list[Problem]:
    """What its schedule has against a row."""
    schedule = schedule_named(row.schedule)
    found = [*paging_problems(schedule, row.strategy())] if schedule.pages else []
    found += [_in_plan_words(problem, row) for problem in schedule.problems(row.pp, row.micro_batches, row.vpp)]
    kinds = {"sel": "selective", "uni": "grouped", "block": "none"}
    again = recompute_problem(schedule, {kinds.get(row.recompute, row.recompute)}) if row.pp > 1 else None
    return [*found, again] if again else found


_SUBJECTS = {
    "a2a heads": "the heads that a rank holds",
    "sequence": "the sequence length",
    "zigzag": "the sequence length",
    "encoder": "the length of an encoder",
    "layers": "the layers",
    "folding": "the devices of a stage",
    "token split": "experts",
    "experts": "the experts",
    "2d experts": "experts",
}


def _what(rule: DegreeRule, value: object) -> str:
    """`tp 128 does not divide the 64 attention heads`; the rule itself stands in the reason."""
    lead = f"{rule.field} must divide "
    if rule.why.endswith(OR_MULTIPLE):
        return f"{rule.field} {value} does not go with the {rule.name}"
    if rule.why.startswith(lead):
        return f"{rule.field} {value} does not divide {rule.why.removeprefix(lead)}"
    return f"{rule.field} {value} does not go with {_SUBJECTS.get(rule.name, 'the model')}"


def _device_fix(row: PlanRow, devices: int) -> str:
    model_parallel = row.tp * row.cp_degree * row.pp
    if devices % model_parallel == 0:
        return f"use dp{devices // model_parallel}"
    lower = devices // model_parallel * model_parallel
    if lower:
        return f"use {lower} devices (dp{lower // model_parallel}), or degrees whose product divides {devices}"
    return f"use at least {model_parallel} devices, or lower tp, cp or pp"
