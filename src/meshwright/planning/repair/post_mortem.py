"""Why a run ran out of memory: its own numbers beside the predicted ones, term by term, and which was low."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.estimate.result import StageEstimate, StepEstimate
from meshwright.formats.logs.out_of_memory import OutOfMemory, read_out_of_memory
from meshwright.library.software import software
from meshwright.planning.pricing import Pricer
from meshwright.planning.repair.changes import neighbours
from meshwright.records import Record
from meshwright.specs.job import Job
from meshwright.specs.layers.core_attention import AttentionMixer
from meshwright.specs.plan import ExecutionPlan
from meshwright.specs.row import PlanRow
from meshwright.units import MIB

_SAME = 0.01
"""Sizes this close are taken for the same tensor's."""
_NEAR = 0.08
_UNSEEN = ("mbs", "sharding", "recompute", "sp", "offload", "schedule")
"""Levers whose change leaves every rank on its stage."""
MOST_ALIKE = 3
NOTHING_BYTES = 16 * MIB
"""Differences below this are none: messages round several sizes to 0.01 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Term(Record):
    """One part of a device's memory."""

    name: str
    """`tensors`, `fragmentation` or `outside the allocator`."""
    predicted_bytes: float
    measured_bytes: float
    """Measured bytes; for tensors, those alive and the one that was asked for, so at least this much."""

    @property
    def short_bytes(self) -> float:
        """Measured over predicted; negative where the prediction was high."""
        return self.measured_bytes - self.predicted_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PostMortem:
    """A message of a run beside the prediction of the same stage."""

    message: OutOfMemory
    stage: StageEstimate
    stage_known: bool
    """Whether the message says which rank it is of; else this is the fullest stage."""
    terms: tuple[Term, ...]
    """Empty where the message has no sizes but the one asked for."""
    asked_for: str
    """Tensors of this stage that are as large as what was asked for."""
    alike: tuple[str, ...]
    """Single changes of the plan under which as much is predicted for tensors as the run took: what it may have run."""

    @property
    def low(self) -> Term | None:
        """The term that was low by the most; None where none was by more than the message's rounding."""
        worst = max(self.terms, key=lambda term: term.short_bytes, default=None)
        return worst if worst is not None and worst.short_bytes > NOTHING_BYTES else None

    @property
    def short_bytes(self) -> float:
        """What the whole prediction was low by, at least."""
        return max(0.0, sum(term.short_bytes for term in self.terms))

    def to_dict(self) -> dict[str, object]:
        """As data."""
        low, message = self.low, self.message
        return {
            **{
                name: getattr(message, name) for name in ("rank", "line", "tried_bytes", "capacity_bytes", "steps_done")
            },
            "stage": self.stage.stage,
            "stage_known": self.stage_known,
            "asked_for": self.asked_for,
            "terms": [term.to_dict() for term in self.terms],
            "alike": list(self.alike),
            "low": low.name if low else None,
            "low_by_bytes": low.short_bytes if low else 0.0,
        }


def post_mortem(
    log: str | os.PathLike[str], job: Job, estimate: StepEstimate, row: PlanRow | None = None
) -> PostMortem:
    """The message of a log that tells the most, beside the prediction.

    Args:
        log: the log of one or of all ranks.
        job: what the run was, or was meant to be.
        estimate: the estimate of its plan.
        row: the plan, where it is one row; with it, plans are looked for that the run may have run instead.

    Raises:
        InputError: the log cannot be read, or no rank in it runs out of memory.
    """
    messages = read_out_of_memory(os.fspath(log))
    found = max(messages, key=lambda one: (one.reserved_bytes is not None, one.rank is not None))
    place = _stage_of(found.rank, job.plan, estimate)
    stage = estimate.fullest if place is None else estimate.stages[place]
    terms = tuple(_terms(found, stage, job))
    low = max(terms, key=lambda term: term.short_bytes, default=None)
    may_differ = row is not None and low is not None and low.name == "tensors" and low.short_bytes > 0
    return PostMortem(
        message=found,
        stage=stage,
        stage_known=place is not None,
        terms=terms,
        alike=tuple(_alike(row, low.measured_bytes, place, job))[:MOST_ALIKE] if may_differ and row and low else (),
        asked_for=", or ".join(_as_large(found.tried_bytes, stage, job)),
    )


def _stage_of(rank: int | None, plan: ExecutionPlan, estimate: StepEstimate) -> int | None:
    """Place among the estimate's stages of the worker that has a rank, ranks counted through the plan's devices."""
    if rank is None:
        return None
    workers = [worker for pipeline in plan.pipelines for worker in pipeline.workers]
    for place, worker in enumerate(workers[: len(estimate.stages)]):
        if any(first <= rank <= last for first, last in worker.devices):
            return place
    return None


def _terms(found: OutOfMemory, stage: StageEstimate, job: Job) -> Iterator[Term]:
    if found.allocated_bytes is None:
        return
    parts = dict(stage.memory_bytes)
    tensors = _tensors(stage)
    lost = software(job.workload.software, job.workload.calibration).fragmentation * tensors
    yield Term(name="tensors", predicted_bytes=tensors, measured_bytes=found.allocated_bytes + found.tried_bytes)
    if found.unused_bytes is not None:
        yield Term(name="fragmentation", predicted_bytes=lost, measured_bytes=found.unused_bytes)
    if found.outside_bytes is not None:
        outside = parts["comm_buffers"] + parts["overhead"] - lost
        yield Term(name="outside the allocator", predicted_bytes=outside, measured_bytes=found.outside_bytes)


def _tensors(stage: StageEstimate) -> float:
    parts = dict(stage.memory_bytes)
    return stage.peak_memory_bytes - parts["comm_buffers"] - parts["overhead"]


def _alike(row: PlanRow, measured_bytes: float, place: int | None, job: Job) -> Iterator[str]:
    """Changes that need no other number of stages, nearest first."""
    pricer = Pricer.of(job)
    near = []
    changes = [change for change in neighbours(row, job.model, job.plan.devices) if change.lever in _UNSEEN]
    for change, priced in zip(changes, pricer.price_all([change.row for change in changes]), strict=True):
        if priced.estimate is None:
            continue
        stage = priced.estimate.fullest if place is None else priced.estimate.stages[place]
        off = abs(_tensors(stage) / measured_bytes - 1)
        if off <= _NEAR:
            near.append((off, change.text))
    yield from (text for _, text in sorted(near))


def _as_large(size: float, stage: StageEstimate, job: Job) -> Iterator[str]:
    """Tensors of a stage that have a size."""
    model, workload = job.model, job.workload
    tokens = stage.mbs * workload.seq_len / stage.cp
    vocab, words = model.vocab / stage.tp, model.predicted / stage.tp
    wide = workload.precision.bytes_of("activations")
    shapes = [
        ("the logits in 32 bits", tokens * words * 4.0, f"{tokens:,.0f} tokens x {words:,.0f}"),
        (f"the logits in {8 * wide:.0f} bits", tokens * words * wide, f"{tokens:,.0f} tokens x {words:,.0f}"),
        ("the embedding's gradient in 32 bits", vocab * model.hidden * 4.0, f"{vocab:,.0f} x {model.hidden:,}"),
        ("a micro-batch's activations", tokens * model.hidden * wide, f"{tokens:,.0f} tokens x {model.hidden:,}"),
    ]
    heads = {layer.attention.heads for layer in model.kinds() if isinstance(layer.attention, AttentionMixer)}
    for count in sorted(heads):
        square = stage.mbs * count / stage.tp * (workload.seq_len / stage.cp) * workload.seq_len
        shapes.append(
            ("the attention scores of a layer", square * wide, f"{count / stage.tp:g} heads, the whole square")
        )
    memory = dict(stage.memory_bytes)
    for kind in ("weights", "gradients", "optimizer"):
        shapes.append((f"all {kind} of the stage", memory[kind], "one flat buffer"))
    for name, amount, how in shapes:
        if amount > 0 and abs(size / amount - 1) <= _SAME:
            yield f"{name} ({how})"
