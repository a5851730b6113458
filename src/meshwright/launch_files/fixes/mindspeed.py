"""Plans that a script of MindSpeed-LLM can have: its options are those of an earlier Megatron-LM, with some of its own.

Source: mindspeed_llm/training/arguments.py of MindSpeed-LLM (2025), https://gitcode.com/Ascend/MindSpeed-LLM. It stands
on Megatron-LM core 0.12: stages are equal, and exchanges are hidden by MindSpeed's own options alone.
"""

from __future__ import annotations

from dataclasses import replace

from meshwright.errors import Problem
from meshwright.formats.launch_file import LaunchFile, even_stages
from meshwright.planning.repair.of_target import JobRule
from meshwright.schedules.plan_rows import plan_of, row_of
from meshwright.specs.job import Job
from meshwright.specs.row import PlanRow

_AS_THEY_ARE = (
    *("tensor", "tp_overlap", "dispatcher", "ep_overlap", "hot_experts", "ep_chunks", "drop_duplicates"),
    *("stash_collectives", "prioritised", "offload", "optimizer_tile", "data_words"),
)
"""Parts of a plan that no option of it says, or only one of its own."""
_BY_HAND = ("--noop-layers", "--num-layer-list", "--schedules-method")
"""Options by which stages are as a script has them."""


def refused(rule: JobRule | None, now: LaunchFile, job: Job) -> tuple[Problem, ...]:
    """Why a script of MindSpeed-LLM does not have a plan; nothing where it can.

    Args:
        rule: what Megatron-LM refuses.
        now: what was read of the script.
        job: the plan with its job.
    """
    row = row_of(job.plan, job.model)
    if row is None or now.row is None or not _says(now, now.row, row, job.model.num_layers):
        why = "MindSpeed-LLM has equal stages, recomputes whole layers, and hides exchanges by options of its own"
        return (Problem(what="the script cannot say this plan", why=why, field="plan"),)
    return () if rule is None else rule(job)


def _says(now: LaunchFile, own: PlanRow, row: PlanRow, layers: int) -> bool:
    as_it_is = all(getattr(own, name) == getattr(row, name) for name in _AS_THEY_ARE)
    again = (own.recompute, own.recompute_modules) == (row.recompute, row.recompute_modules)
    said = {one.option: one.value for one in (*now.said, *now.unpriced)}
    context = said.get("--cp-comm-type", "p2p")
    stages = (own.pp, own.vpp, own.schedule) == (row.pp, row.vpp, row.schedule)
    free = row.schedule in ("1f1b", "interleaved") and layers % (row.pp * row.vpp) == 0
    return (
        as_it_is
        and (again or row.recompute in ("none", "full", "block", "uni"))
        and row.sharding in ("z0", "z1", own.sharding)
        and len(row.cp) < 2
        and {kind for kind, _ in row.cp} <= {context}
        and (stages or (free and not said.keys() & {*_BY_HAND}))
    )


def with_equal_stages(job: Job) -> Job:
    """A job whose stages hold as many layers each, where they can; the job as it is otherwise.

    Args:
        job: with a plan that a row says.
    """
    row, layers = row_of(job.plan, job.model), job.model.num_layers
    if row is None or layers % (row.pp * row.vpp):
        return job
    return replace(job, plan=plan_of(row, even_stages(layers, stages=row.pp * row.vpp)))
