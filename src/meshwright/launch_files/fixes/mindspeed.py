"""Plans that a script of MindSpeed-LLM can have: its options are those of an earlier Megatron-LM, with some of its own.

Source: mindspeed_llm/training/arguments.py of MindSpeed-LLM (2025), https://gitcode.com/Ascend/MindSpeed-LLM. It stands
on Megatron-LM core 0.12: stages are equal, and exchanges are hidden by MindSpeed's own options alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile, even_stages
from meshwright.launch_files.fixes.base import OptionChange
from meshwright.planning.repair.of_target import JobRule
from meshwright.schedules.plan_rows import plan_of, row_of
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow

_AS_THEY_ARE = {
    "tensor": "tensor.kind",
    "tp_overlap": "tensor.overlap",
    "ep_overlap": "expert.overlap",
    "hot_experts": "expert.shadowed",
    "prioritised": "expert.prioritised",
    "ep_chunks": "expert.chunks",
    "drop_duplicates": "expert.drop_duplicates",
    "stash_collectives": "recompute.collectives",
    "offload": "offload",
    "optimizer_tile": "offload.tile",
    "data_words": "data",
}
"""Parts of a plan that no option of it says, or only one of its own, each with the field of what is refused."""
_EMPTY, _LAYERS = "--noop-layers", "--num-layers"
_BY_HAND = (_EMPTY, "--num-layer-list", "--schedules-method")
"""Options by which stages are as a script has them."""


def refused(rule: JobRule | None, now: LaunchFile, job: Job) -> tuple[Problem, ...]:
    """Why a script of MindSpeed-LLM does not have a plan; nothing where it can.

    Args:
        rule: what Megatron-LM refuses.
        now: what was read of the script.
        job: the plan with its job.
    """
    row = row_of(job.plan, job.model)
    fields = () if row is None or now.row is None else tuple(_refused(now, now.row, row))
    why = "MindSpeed-LLM says it by an option of its own, or not at all"
    own = tuple(Problem(what=f"plan: {field}", why=why, field=field) for field in fields)
    return own or (() if rule is None else rule(job))


def _refused(now: LaunchFile, own: PlanRow, row: PlanRow) -> Iterator[str]:
    """Fields of a plan that the script cannot say."""
    yield from (field for name, field in _AS_THEY_ARE.items() if getattr(own, name) != getattr(row, name))
    if row.ep > 1 and row.dispatcher not in ("alltoall", "allgather", own.dispatcher):
        yield "expert.dispatcher"
    again = (own.recompute, own.recompute_modules) == (row.recompute, row.recompute_modules)
    if not again and row.recompute not in ("none", "full", "block", "uni"):
        yield "recompute"
    context = _said(now).get("--cp-comm-type", "p2p")
    if any(kind != context for kind, _ in row.cp) or len(row.cp) > 1:
        yield "context.kinds"
    if row.sharding not in ("z0", "z1", own.sharding):
        yield "data.family"
    if row.schedule not in ("1f1b", "interleaved", own.schedule):
        yield "schedule"


def says(now: LaunchFile, row: PlanRow) -> bool:
    """Whether stages can be cut as a plan has them: equally many layers each, or as the script lays them by hand.

    Args:
        now: what was read of the script.
        row: the plan.
    """
    own, layers = now.row, now.model.get("num_layers")
    if own is not None and (own.pp, own.vpp, own.schedule) == (row.pp, row.vpp, row.schedule):
        return True
    even = not isinstance(layers, int) or layers % (row.pp * row.vpp) == 0
    return even and _said(now).keys() & {*_BY_HAND} <= {_EMPTY}


def without_empty_layers(now: LaunchFile, row: PlanRow) -> list[OptionChange]:
    """Changes of a script whose stages empty layers make even, for a plan with other stages: it has none.

    Args:
        now: what was read of the script.
        row: the plan.
    """
    own, said = now.row, {one.option: one for one in now.said}
    if _EMPTY not in said or own is None or (own.pp, own.vpp, own.schedule) == (row.pp, row.vpp, row.schedule):
        return []
    values = {_EMPTY: None, _LAYERS: str(now.model.get("num_layers"))}
    return [
        OptionChange(option=name, old=said[name].value, new=new, place=said[name].place) for name, new in values.items()
    ]


def _said(now: LaunchFile) -> dict[str, str]:
    return {one.option: one.value for one in (*now.said, *now.unpriced)}


def with_equal_stages(job: Job) -> Job:
    """A job whose stages hold as many layers each, where they can; the job as it is otherwise.

    Args:
        job: the job with a plan that a row says.
    """
    row, layers = row_of(job.plan, job.model), job.model.num_layers
    if row is None or layers % (row.pp * row.vpp):
        return job
    return replace(job, plan=plan_of(row, even_stages(layers, stages=row.pp * row.vpp)))
