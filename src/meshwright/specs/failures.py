"""What interrupts a run: how often devices fail, what a failure costs, how often the state is saved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from meshwright.specs.check import Check


@dataclass(frozen=True, slots=True, kw_only=True)
class Failures:
    """Failures and checkpoints of a run; what is not stated is what public runs report, with the range they span."""

    rate_per_device_hour: float | None = None
    """Unexpected stops of the job, per device and hour; 0 for a run that nothing interrupts."""
    restart_s: float | None = None
    """Seconds from a failure until the job trains again from its last checkpoint: noticed, replaced, loaded, warmed
    up."""
    interval_s: float | None = None
    """Seconds between two checkpoints."""
    stall_s: float | None = None
    """Seconds that training stands still while a checkpoint is taken."""
    repair_s: float | None = None
    """Seconds until a failed node is back; None where another one always stands in at once."""
    spares: int = 0
    """Nodes that stand in for those in repair."""
    short: Literal["wait", "replan"] = "wait"
    """What the run does without enough nodes: stand still, or go on with fewer as `--replan-from` plans it."""

    def __post_init__(self) -> None:
        check = Check("failures")
        for name in ("rate_per_device_hour", "stall_s"):
            value = getattr(self, name)
            check.that(value is None or 0 <= value < float("inf"), name, value, "must be a finite number, at least 0")
        for name in ("restart_s", "interval_s"):
            value = getattr(self, name)
            if value is not None:
                check.positive(name, value)
        if self.repair_s is not None:
            check.positive("repair_s", self.repair_s)
        check.whole("spares", self.spares, low=0)
        stated = self.repair_s is not None or (self.spares == 0 and self.short == "wait")
        check.that(
            stated, "repair_s", self.repair_s, "says how long nodes are away for which spares stand in", "repair=24h"
        )
        check.one_of("short", self.short, ("wait", "replan"))
        check.done()


NEVER = Failures(rate_per_device_hour=0.0, stall_s=0.0)
"""A run that nothing interrupts and that saves nothing."""
