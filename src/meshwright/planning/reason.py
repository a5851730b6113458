"""A reason of an answer as data: its kind, and the numbers and names of it. `report.words.reasons` says it in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from meshwright.records import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a plan is the answer, why another is not, or what it keeps to."""

    kind: str
    """A key of `report.words.reasons.SENTENCES`."""
    facts: Mapping[str, Any]

    @classmethod
    def of(cls, kind: str, **facts: Any) -> Reason:
        """A reason of a kind with its facts by name."""
        return cls(kind=kind, facts=facts)

    def to_dict(self) -> dict[str, Any]:
        """As data: the kind, then its facts."""
        return {"kind": self.kind, **plain(self.facts)}


def idle_reason(
    used: int, devices: int, why: str, *, of: str = "devices", rented: bool = False, **facts: Any
) -> Reason:
    """Why a plan uses fewer devices than there are.

    Args:
        used: devices in use.
        devices: the number of devices that there are.
        why: a key of `report.words.reasons.IDLE`.
        of: what the devices are called: a group, or all of them.
        rented: idle devices are not paid for.
        facts: the facts of the reason.
    """
    return Reason.of("idle", used=used, devices=devices, of=of, why=why, rented=rented, **facts)
