"""What must not stay so in a plan or in the options of a launch script."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
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

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return {
            "code": self.code,
            "what": self.what,
            "why": self.why,
            "fix": self.fix,
            "field": self.field,
            "stage": self.stage,
            "need_bytes": self.need_bytes,
            "have_bytes": self.have_bytes,
        }
