"""What must not stay so in a plan or in the options of a launch script."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.errors import Problem
from meshwright.estimate.result import StepPrice
from meshwright.records import Record
from meshwright.units import gib, of_capacity

MOST_STAGES = 8
"""Stages too large for their devices that are listed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation(Record):
    """One thing that must not stay so."""

    code: str
    """`ASK`, `LEGAL`, `MEM_STAGE`, `MODEL` or `OPTIONS`."""
    what: str
    why: str = ""
    fix: str = ""
    field: str = ""
    place: str = ""
    """`train.sh:12`, where a file says what it is about."""
    stage: int | None = None
    need_bytes: float | None = None
    have_bytes: float | None = None

    @classmethod
    def of(cls, code: str, problem: Problem) -> Violation:
        """A problem of a plan or a script as a violation."""
        return cls(code=code, what=problem.what, why=problem.why, fix=problem.fix, field=problem.field)


def too_large(estimate: StepPrice) -> Iterator[Violation]:
    """Stages that need more than their devices have, each with what takes the most."""
    over = [stage for stage in estimate.stages if stage.peak_memory_bytes > stage.capacity_bytes]
    for stage in over[:MOST_STAGES]:
        kinds = sorted(stage.memory_bytes, key=lambda kind: -kind[1])[:3]
        largest = ", ".join(f"{kind.replace('_', ' ')} {gib(size)}" for kind, size in kinds)
        yield Violation(
            code="MEM_STAGE",
            what=f"{estimate.place(stage)} needs {of_capacity(stage.peak_memory_bytes, stage.capacity_bytes)}",
            why=f"at its peak ({stage.peak_moment}): {largest}",
            field="memory",
            stage=stage.stage,
            need_bytes=stage.peak_memory_bytes,
            have_bytes=stage.capacity_bytes,
        )
