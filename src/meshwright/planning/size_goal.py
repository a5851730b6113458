"""What devices must be enough for, and what a number of them reaches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from meshwright.estimate.sequences import tokens_of_step
from meshwright.planning.goodput import goodput
from meshwright.planning.objectives import Aim
from meshwright.records import Record
from meshwright.specs.workload import Workload
from meshwright.units import DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint(Record):
    """The best plan of one number of devices."""

    devices: int
    name: str | None = None
    """None where nothing fits."""
    step_time_s: float | None = None
    mfu: float | None = None
    days: float | None = None
    price: float | None = None
    meets: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal(Record):
    """What the devices must be enough for; None is no limit."""

    days: float | None = None
    step_time_s: float | None = None
    max_price: float | None = None

    @property
    def aim(self) -> Aim:
        """The quickest plan among those that meet it."""
        limits = {"max_step_time_s": self.step_time_s, "days": self.days, "max_price": self.max_price}
        return Aim(**{name: math.inf if limit is None else limit for name, limit in limits.items()})  # type: ignore[arg-type]

    def met(self, point: CurvePoint) -> bool:
        """Whether a plan is good enough."""
        limits = ((self.days, point.days), (self.step_time_s, point.step_time_s), (self.max_price, point.price))
        return all(limit is None or (value is not None and value <= limit) for limit, value in limits)

    def step_limit_s(self, workload: Workload) -> float | None:
        """Seconds of a step that keeps to the limits of time, however few are interrupted; None without any.

        Args:
            workload: the step, and the tokens of the run.
        """
        limits = [self.step_time_s] if self.step_time_s is not None else []
        if self.days is not None and workload.tokens is not None:
            # One device is interrupted least, so the limit forbids no count that could keep to it.
            share = goodput(1, workload.failures, 0.0).share
            limits.append(self.days * share * DAY_S / (workload.tokens / tokens_of_step(workload)))
        return min(limits) if limits else None
