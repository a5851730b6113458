"""What makes a plan legal for a model: rules as data, applied to one row, a grid, or every stage of a plan.

Each rule is a predicate over columns and, for the row that breaks it, the sentence with value, rule and remedy.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from meshwright.errors import Problem, unknown_name
from meshwright.estimate.away_rules import strategy_problems
from meshwright.estimate.overlap_rules import overlap_problems
from meshwright.estimate.stages import recompute_problem, refusal
from meshwright.schedules import schedule_named
from meshwright.schedules.plan_rows import schedule_of
from meshwright.specs.model import ModelSpec
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.specs.strategy import LayerStrategy
from meshwright.specs.workload import batch_problem
from meshwright.strategies import CONTEXTS, TENSORS
from meshwright.strategies.base import DegreeRule, Degrees


def model_rules(model: ModelSpec, seq_len: int, tensor: str = "1d") -> tuple[DegreeRule, ...]:
    """The rules a model and sequence length set, in the order they are reported.

    Args:
        model: the model.
        seq_len: tokens of a sequence.
        tensor: strategy of the tensor groups.

    Returns:
        Rules over columns of degrees.
    """
    strategy = TENSORS[tensor]
    rules = []
    towers = {stream.name for stream in model.streams if stream.tower}
    own = [layer for layer in model.kinds() if layer.stream not in towers]
    kinds = (*own, *((model.mtp_kind,) if model.mtp_layers else ()))
    mixers = [mixer for layer in kinds for mixer in (layer.attention, layer.cross) if mixer is not None]
    for name, heads in dict.fromkeys(units for mixer in mixers for units in mixer.divided):
        rules += [
            DegreeRule(
                "heads",
                lambda d, heads=heads: heads % strategy.head_ranks(d["tp"]) == 0,  # type: ignore[misc]
                f"tp must divide the {heads} {name}",
                f"use a divisor of {heads}",
                "tp",
            ),
            DegreeRule(
                "a2a heads",
                lambda d, heads=heads: np.maximum(heads // strategy.head_ranks(d["tp"]), 1) % d["cp_heads"] == 0,  # type: ignore[misc]
                f"the all-to-all level of cp must divide the {heads} {_short(name)} / tp that a rank holds",
                "lower the a2a degree or use p2p",
                "cp",
            ),
        ]
    for name, kv_heads in dict.fromkeys(units for mixer in mixers for units in mixer.replicated):
        rules.append(
            DegreeRule(
                name,
                lambda d, kv=kv_heads: (kv % (t := strategy.head_ranks(d["tp"])) == 0) | (t % kv == 0),  # type: ignore[misc]
                f"tp must divide the {kv_heads} {name}{_OR_MULTIPLE}",
                f"use a divisor or a multiple of {kv_heads}",
                "tp",
            )
        )
    widths = (layer.mlp.tensor_width for layer in kinds)
    for width in dict.fromkeys(width for width in widths if width):
        rules.append(
            DegreeRule(
                "ffn",
                lambda d, width=width: width % strategy.head_ranks(d["tp"]) == 0,  # type: ignore[misc]
                f"tp must divide the feed-forward width {width}",
                f"use a divisor of {width}",
                "tp",
            )
        )
    cuts = [rule for rule in strategy.rules(model, seq_len) if rule.name != "sequence" or not model.pooled]
    rules += [
        *cuts,
        DegreeRule(
            "zigzag",
            lambda d: (d["cp"] == d["cp_heads"]) | (seq_len % d["cp"] != 0) | (seq_len % (2 * d["cp"]) == 0),
            f"the zigzag layout cuts the {seq_len} tokens of a sequence into 2 cp equal parts",
            "lower cp or pad the sequence",
            "cp",
        ),
        DegreeRule(
            "context",
            lambda d: seq_len % d["cp"] == 0,
            f"cp must divide the {seq_len} tokens of a sequence",
            "lower cp or pad the sequence",
            "cp",
        ),
        DegreeRule(
            "layers",
            lambda d: d["pp"] * d["vpp"] <= model.most_stages,
            f"every one of pp x vpp virtual stages holds at least one of {model.most_stages} layers",
            f"keep pp x vpp at {model.most_stages} or less",
            "pp",
        ),
    ]
    return (*rules, *_encoder_rules(model), *_expert_rules(model))


def _encoder_rules(model: ModelSpec) -> Iterator[DegreeRule]:
    """What the sequences of encoders ask, which context and sequence parallelism cut as they cut the text's."""
    for stream in model.streams:
        if stream.tower or stream.images:
            continue
        length = stream.tokens.length
        yield DegreeRule(
            "encoder",
            lambda d, length=length: length % (d["cp"] * np.where(d["sp"] > 0, d["tp"], 1)) == 0,  # type: ignore[misc]
            f"cp x tp with sequence parallelism cuts the {length} tokens of the {stream.name} into equal parts",
            "lower cp or tp, use nosp, or pad them",
            "cp",
        )


def _short(name: str) -> str:
    """`heads`, where they are those of attention."""
    return name.removeprefix("attention ")


def _expert_rules(model: ModelSpec) -> tuple[DegreeRule, ...]:
    moes = [layer.mlp for layer in model.kinds() if layer.mlp.routed_experts]
    if not moes:
        return (
            DegreeRule(
                "experts",
                lambda d: (d["ep"] == 1) & (d["etp"] == 1),
                f"{model.name} has no experts",
                "leave ep and etp at 1",
                "ep",
            ),
        )
    rules = [
        DegreeRule(
            "folding",
            lambda d: (d["tp"] * d["cp"] * d["dp"]) % (d["ep"] * d["etp"]) == 0,
            "experts are spread over the tp x cp x dp devices of a stage, so ep x etp must divide them",
            "lower ep or etp, or raise dp",
            "ep",
        ),
        DegreeRule(
            "token split",
            lambda d: (d["tp"] == 1) | (d["sp"] == 1),
            "without sequence parallelism tensor ranks would send every token several times",
            "drop nosp",
            "sp",
        ),
    ]
    for count in dict.fromkeys(moe.routed_experts for moe in moes):
        rules.append(
            DegreeRule(
                "experts",
                lambda d, count=count: count % d["ep"] == 0,  # type: ignore[misc]
                f"ep must divide the {count} experts",
                f"use a divisor of {count}",
                "ep",
            )
        )
    for width in dict.fromkeys(moe.expert_width for moe in moes):
        rules.append(
            DegreeRule(
                "expert ffn",
                lambda d, width=width: width % d["etp"] == 0,  # type: ignore[misc]
                f"etp must divide the expert width {width}",
                f"use a divisor of {width}",
                "etp",
            )
        )
    return tuple(rules)


def row_degrees(row: PlanRow) -> Degrees:
    """One row as columns."""
    values = {
        "tp": row.tp,
        "sp": int(row.sp or row.tp == 1 or row.drop_duplicates),
        "cp": row.cp_degree,
        "cp_heads": math.prod(degree for kind, degree in row.cp if _swaps_heads(kind)),
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


def _unknown_kinds(row: PlanRow) -> list[Problem]:
    """Names that no catalogue of strategies has."""
    found = []
    if row.tensor not in TENSORS:
        degree = re.match(r"(?:pp|cp|ep|dp|vpp|mbs|z)[0-9]", row.tensor)
        dotted = f"Dots join tokens: tp{row.tp}.{row.tensor.replace('-', '.')}" if degree else ""
        found.append(unknown_name("tensor strategy", row.tensor, TENSORS, remedy=dotted))
    return found + [unknown_name("kind of context", kind, CONTEXTS) for kind, _ in row.cp if kind not in CONTEXTS]


def row_problems(row: PlanRow, model: ModelSpec, seq_len: int, devices: int) -> tuple[Problem, ...]:
    """Everything that makes a row illegal on so many devices, together.

    Args:
        row: the degrees.
        model: the model.
        seq_len: tokens of a sequence.
        devices: devices of the cluster.

    Returns:
        Problems, none if the row is legal.
    """
    problems = _unknown_kinds(row)
    if problems:
        return tuple(problems)
    if row.devices != devices:
        problems.append(
            Problem(
                what=f"{row.identity()}, but the cluster has {devices} devices",
                why="tp x cp x pp x dp must use every device",
                fix=_device_fix(row, devices),
                field="dp",
            )
        )
    degrees = row_degrees(row)
    for rule in model_rules(model, seq_len, row.tensor):
        if not bool(rule.holds(degrees)[0]):
            value = degrees[rule.field][0] if rule.field in degrees else row.tensor
            problems.append(Problem(what=_what(rule, value), why=rule.why, fix=_fix(rule, degrees), field=rule.field))
    batch = batch_problem(row.gbs, row.dp, row.mbs)
    if batch:
        problems.append(batch)
    # A batch that does not divide leaves the number of micro-batches open, which other constraints do not ask for.
    problems += [problem for problem in _schedule_problems(row) if not (batch and problem.field == "m")]
    if row.sharding == "hsdp":
        shard = row.shard_group // row.cp_degree
        if row.shard_group % row.cp_degree or shard < 1 or row.dp % shard:
            problems.append(
                Problem(
                    what=f"hsdp{row.shard_group} with cp {row.cp_degree} and dp {row.dp}",
                    why="a shard group holds all context ranks of some data ranks, whose number divides dp",
                    fix=f"use a divisor of {row.dp * row.cp_degree} that is a multiple of {row.cp_degree}",
                    field="hsdp",
                )
            )
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
    if row.data_words:
        from meshwright.estimate.sum_rules import sum_problems  # few plans need it

        problems += sum_problems(row.strategy())
    schedule = schedule_named(row.schedule)
    pipeline = (schedule, row.pp, row.micro_batches, row.vpp)
    problems += overlap_problems(row.strategy(recomputed=True), model, pipeline)
    return tuple(dict.fromkeys(problems))


def plan_problems(plan: ExecutionPlan, model: ModelSpec, seq_len: int) -> tuple[Problem, ...]:
    """Everything that makes stages of a plan illegal for a model, together; each strategy once, where it first stands.

    Args:
        plan: of any pipelines.
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
                degrees = _strategy_degrees(strategy, pipeline.micro_batch)
                for rule in model_rules(model, seq_len, strategy.tensor.name):
                    if not bool(rule.holds(degrees)[0]):
                        value = degrees[rule.field][0] if rule.field in degrees else strategy.tensor.name
                        what = here + _what(rule, value)
                        problems.append(Problem(what=what, why=rule.why, fix=_fix(rule, degrees), field=rule.field))
                if strategy.expert.overlap != "none":
                    chunks = max(len(one.chunks) for one in pipeline.workers)
                    schedule = schedule_of(pipeline.schedule)
                    shape = (schedule, len(pipeline.workers), pipeline.num_micro_batches, chunks // schedule.chains)
                    problems += overlap_problems(strategy, model, shape)
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
        "cp_heads": math.prod(c.degree for c in strategy.context if _swaps_heads(c.kind)),
        "pp": 1,
        "vpp": 1,
        "ep": strategy.expert.ep,
        "etp": strategy.expert.etp,
        "dp": strategy.dp,
        "mbs": micro_batch,
    }
    return {name: np.array([value]) for name, value in values.items()}


def _in_plan_words(problem: Problem, row: PlanRow) -> Problem:
    """As the one-line form of a plan writes it: `vpp4` for `v = 4`; micro-batches by their global batch."""
    if problem.field == "m" and problem.fix.startswith("m = "):
        why = f"{problem.why}; gbs {row.gbs} / (dp {row.dp} x mbs {row.mbs}) = {row.micro_batches} micro-batches"
        counts = problem.fix.removeprefix("m = ").partition(", or ")[0]  # further options are of `schedule` alone
        near = re.sub(r"\d+", lambda count: str(int(count[0]) * row.dp * row.mbs), counts)
        return replace(problem, why=why, fix=f"use a global batch of {near}, or other degrees")
    return replace(problem, what=problem.what.replace(": v = ", ": vpp = "), fix=problem.fix.replace("v = ", "vpp"))


def _schedule_problems(row: PlanRow) -> list[Problem]:
    """What its schedule has against a row."""
    schedule = schedule_named(row.schedule)
    if schedule.not_in_plans:
        return [refusal(schedule)]
    found = [_in_plan_words(problem, row) for problem in schedule.problems(row.pp, row.micro_batches, row.vpp)]
    kinds = {"sel": "selective", "uni": "grouped", "block": "none"}
    again = recompute_problem(schedule, {kinds.get(row.recompute, row.recompute)}) if row.pp > 1 else None
    return [*found, again] if again else found


_OR_MULTIPLE = " or be a multiple of them"

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
    if rule.why.endswith(_OR_MULTIPLE):
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
