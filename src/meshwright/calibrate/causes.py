"""What explains the difference between a predicted and a measured step: which numbers, in which of their ranges.

    ln(measured / predicted) = J dx + e,  dx ~ N(0, S),  e ~ N(0, N)
    dx = S J' (J S J' + N)^-1 ln(measured / predicted)

with a row for the step and one for each group of its parts that the run reports apart. What a number explains of the
step is its slope times its dx; what is left is the plan's own, or of what is not modelled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.calibrate.fit import STEP
from meshwright.calibrate.one_step import StepOn, doubts_of, noise_of
from meshwright.calibrate.parameters import hardware_with
from meshwright.estimate.hardware import Hardware, at_pace
from meshwright.records import Record
from meshwright.specs.calibration import Z90, Calibration

TERM_NOISE = 0.15
"""Of a part of a step alone, as the standard deviation of its logarithm: ranks differ, and timers hold other things."""
LEAST_TERM = 0.01
"""Share of the step below which a part says nothing: its timer measures other things."""
LEAST_EFFECT = 0.005
"""Of the step: numbers that explain less of it are not named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause(Record):
    """One number behind a prediction, and what of the difference it explains."""

    name: str
    """`device.hopper.gemm_fraction`, or a pace."""
    value: float
    """That the prediction uses."""
    low: float
    """Of its central 90 %."""
    high: float
    needed: float | None
    """With which alone the prediction would be the measurement; None where none within its bounds would."""
    effect_s: float
    """Of the difference, most likely."""

    @property
    def within(self) -> bool:
        """Whether it could be the whole reason."""
        return self.needed is not None and self.low <= self.needed <= self.high

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return Record.to_dict(self) | {"within": self.within}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPart:
    """Parts of a step that were measured together."""

    parts: tuple[str, ...]
    measured_s: float


def causes(
    step: StepOn,
    parts_s: Callable[[Hardware], Mapping[str, float]],
    measured_s: float,
    measured_parts: Sequence[MeasuredPart],
    known: Calibration,
) -> tuple[Cause, ...]:
    """The numbers that explain the difference, the one that explains most of it first.

    Args:
        step: the plan that ran.
        parts_s: its predicted breakdown on any hardware.
        measured_s: seconds of its step.
        measured_parts: what the run reports apart.
        known: values and doubt of the numbers.
    """
    doubts = doubts_of(step, known)

    def at(x: np.ndarray) -> np.ndarray:
        values = {one: math.exp(value) for one, value in zip(doubts.parameters, x[:-1], strict=True)}
        found = parts_s(at_pace(hardware_with(values, step.group, step.workload), math.exp(x[-1])))
        groups = [sum(found[name] for name in one.parts) for one in told]
        return np.log([sum(found.values()), *groups])

    now = parts_s(hardware_with({}, step.group, step.workload))
    predicted_s = sum(now.values())
    told = [
        one
        for one in measured_parts
        if min(one.measured_s, sum(now[name] for name in one.parts)) >= LEAST_TERM * predicted_s
    ]
    base = at(doubts.x0)
    by = np.where(doubts.x0 + STEP <= doubts.high, STEP, -STEP)
    slopes = np.array([(at(doubts.x0 + by[i] * row) - base) / by[i] for i, row in enumerate(np.eye(len(by)))]).T
    gaps = np.log([measured_s, *(one.measured_s for one in told)]) - base
    noise = np.diag([noise_of(step, known), *([TERM_NOISE**2] * len(told))])
    shared = slopes * doubts.spread**2
    moved = shared.T @ np.linalg.solve(shared @ slopes.T + noise, gaps)
    found = []
    for i, name in enumerate(doubts.names):
        effect_s = predicted_s * math.expm1(slopes[0, i] * moved[i])
        if abs(effect_s) < LEAST_EFFECT * predicted_s or effect_s * gaps[0] <= 0:
            continue
        alone = doubts.x0[i] + gaps[0] / slopes[0, i]
        value, deviation = math.exp(doubts.x0[i]), Z90 * doubts.spread[i]
        found.append(
            Cause(
                name=name,
                value=value,
                low=math.exp(max(doubts.x0[i] - deviation, doubts.low[i])),
                high=math.exp(min(doubts.x0[i] + deviation, doubts.high[i])),
                needed=math.exp(alone) if doubts.low[i] <= alone <= doubts.high[i] else None,
                effect_s=effect_s,
            )
        )
    return tuple(sorted(found, key=lambda cause: -abs(cause.effect_s)))
