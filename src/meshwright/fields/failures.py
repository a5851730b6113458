"""`--failures` as text: `rate=2e-5/h,restart=10min,every=30min,stall=5s,spares=2,repair=24h,short=replan`, or `none`.

A rate names its time, so that a percentage and a fraction, a year and an hour, are told apart: `18%/year`, `0.18/year`
and `2.05e-5/h` are the same device.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any

from meshwright.errors import InputError, unknown_name
from meshwright.fields.gather import Gather
from meshwright.fields.kinds import Choice, Duration, FieldKind, Whole
from meshwright.specs.failures import NEVER, Failures

HOURS = {"h": 1.0, "hour": 1.0, "day": 24.0, "week": 168.0, "month": 730.5, "year": 8766.0}
MOST_OF_A_YEAR = 5.0
"""Failures of one device a year, eight times the worst of public runs (OPT-175B, 0.64): above it, percent are meant."""
_EXAMPLE = "for example rate=18%/year,restart=10min or rate=2e-5/h"
_RATE = re.compile(r"(\d+(?:\.\d+)?(?:e-?\d{1,2})?)\s*(%?)\s*(?:/|per)\s*([a-z]+)", re.IGNORECASE)
_FIELDS = {
    "rate": "rate_per_device_hour",
    "restart": "restart_s",
    "every": "interval_s",
    "stall": "stall_s",
    "repair": "repair_s",
    "spares": "spares",
    "short": "short",
}
_KINDS: dict[str, FieldKind] = {
    "spares": Whole(low=0, high=100_000),
    "short": Choice(names=("wait", "replan"), noun="way to go on without enough nodes"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSpec(FieldKind):
    """What interrupts a run, as text or as the record itself."""

    metavar: str = "SPEC"
    annotation: str = "str | Failures"

    def read(self, name: str, value: Any) -> Failures:
        """The failures that a text states; all problems of its parts together."""
        if isinstance(value, Failures):
            return value
        if not isinstance(value, str):
            raise self.wrong(name, value, "must be a text", _EXAMPLE)
        if value.strip().lower() == "none":
            return NEVER
        found: dict[str, Any] = {}
        gather = Gather()
        for part in value[:400].split(","):
            key, separator, text = (piece.strip() for piece in part.partition("="))
            field = _FIELDS.get(key)
            if not separator:
                gather.errors.append(self.wrong(name, part, "each part is name=value", _EXAMPLE))
            elif field is None:
                problem = unknown_name(f"part of {name}", key, tuple(_FIELDS))
                gather.errors.append(InputError(problem, code="MW206"))
            elif field in found:
                gather.errors.append(self.wrong(name, part, f"{key} is given twice", "state it once"))
            else:
                read = self._rate if key == "rate" else _KINDS.get(key, Duration(stated=True)).read
                found[field] = gather.attempt(partial(read, f"{name} {key}", text))
        gather.done()
        return Failures(**found)

    def _rate(self, name: str, text: str) -> float:
        """The rate per device and hour."""
        match = _RATE.fullmatch(text)
        unit = match[3].lower() if match else ""
        if match is None or unit not in HOURS:
            raise self.wrong(name, text, "must be failures of one device with their unit of time", _EXAMPLE)
        per_hour = float(match[1]) * (0.01 if match[2] else 1.0) / HOURS[unit]
        if not match[2] and float(match[1]) >= MOST_OF_A_YEAR and unit == "year":
            why = f"no public run reports {match[1]} failures per device and year; {match[1]}% is {match[1]}%/year"
            fix = f"rate={match[1]}%/year, or rate={per_hour:.2g}/h if that is meant"
            raise self.wrong(name, text, why, fix)
        if per_hour > 1:
            raise self.wrong(name, text, "a device that fails more than once an hour cannot train", _EXAMPLE)
        return per_hour
