"""What must not stay so in a plan or in the options of a launch script."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.records import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation(Record):
    """One thing that must not stay so."""

    code: str
    """`LEGAL`, `MEM_STAGE`, `MODEL` or `OPTIONS`."""
    what: str
    why: str = ""
    fix: str = ""
    field: str = ""
    stage: int | None = None
    need_bytes: float | None = None
    have_bytes: float | None = None
