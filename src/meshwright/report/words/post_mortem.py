"""A run that ran out of memory, in words: what happened, term by term, and what to do."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.launch_files.violation import Violation
from meshwright.planning.repair.post_mortem import PostMortem
from meshwright.units import gib

REMEDIES = {
    "tensors": "predict with what the run does differently from the plan (recompute, kernels, sequence length), or "
    "apply one of the changes below",
    "fragmentation": "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, and keep the shapes of micro-batches equal",
    "outside the allocator": "look for other processes on the device; fewer process groups and NCCL channels take less",
}
"""Remedies by the term of the memory that was predicted too low."""


def event_text(died: PostMortem) -> str:
    """Who ran out of memory, when, and for what: `rank 3 (stage 0) ran out of memory after step 2, ...`."""
    found = died.message
    who = f"rank {found.rank}" if found.rank is not None else "an unnamed rank"
    place = f"stage {died.stage.stage}" if died.stage_known else f"assumed to be stage {died.stage.stage}, the fullest"
    when = f"after step {found.steps_done}" if found.steps_done is not None else "before the first logged step"
    where = f" in {found.where}" if found.where else ""
    return f"{who} ({place}) ran out of memory {when}, requesting {gib(found.tried_bytes)}{where}"


def post_mortem_lines(died: PostMortem) -> Iterator[str]:
    """What happened, measured beside predicted, and which plan the run may have run instead."""
    found, stage = died.message, died.stage
    yield event_text(died)
    if died.asked_for:
        yield f"the request has the size of {died.asked_for}"
    for term in died.terms:
        yield f"{term.name}: {gib(term.measured_bytes)}, predicted {gib(term.predicted_bytes)}"
    if not died.terms:
        yield "the message gives no other sizes, so the term predicted too low is unknown"
    elif died.low is None:
        yield f"no term was predicted too low: {gib(stage.peak_memory_bytes)} predicted for this stage"
    else:
        yield f"predicted too low: {died.low.name}, by {gib(died.low.short_bytes)}"
    for change in died.alike:
        yield f"the measured size matches the plan with {change}"
    if found.capacity_bytes is not None and found.capacity_bytes < 0.97 * stage.capacity_bytes:
        yield f"this device has {gib(found.capacity_bytes)}, the prediction is for {gib(stage.capacity_bytes)}"


def ran_out(died: PostMortem) -> Violation:
    """The run's end as a violation of its plan."""
    low, stage = died.low, died.stage
    return Violation(
        code="MEM_STAGE",
        what=event_text(died),
        why=f"{low.name} took {gib(low.short_bytes)} more than predicted" if low else "",
        fix=REMEDIES[low.name] if low else "",
        field="memory",
        stage=stage.stage,
        need_bytes=stage.peak_memory_bytes + died.short_bytes,
        have_bytes=died.message.capacity_bytes or stage.capacity_bytes,
    )
