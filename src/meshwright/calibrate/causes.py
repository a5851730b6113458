"""What explains the difference between a predicted and a measured step: which numbers, in which of their ranges.

    ln(measured / predicted) = J dx + e,  dx ~ N(0, S),  e ~ N(0, N)
    dx = S J' (J S J' + N)^-1 ln(measured / predicted)

with a row for the step and one for each group of its parts that the run reports apart. What a number explains of the
step is its slope times its dx; what is left is the plan's own, or of what is not modelled.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.calibrate.observed import MeasuredPart, StepOn, doubted_numbers, observed
from meshwright.records import Record
from meshwright.specs.calibration import Z90, Calibration

LEAST_EFFECT = 0.005
"""Least share of the step for a number to be named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause(Record):
    """One number behind a prediction, and what of the difference it explains."""

    name: str
    """`device.hopper.gemm_fraction`, or a pace."""
    value: float
    """Value that the prediction uses."""
    low: float
    """Lower end of its central 90 %."""
    high: float
    needed: float | None
    """Value with which alone the prediction would be the measurement; None where none within its bounds would."""
    effect_s: float
    """Most likely part of the difference that the number explains."""

    @property
    def within(self) -> bool:
        """Whether it could be the whole reason."""
        return self.needed is not None and self.low <= self.needed <= self.high

    def to_dict(self) -> dict[str, object]:
        """As data."""
        return Record.to_dict(self) | {"within": self.within}


def causes(step: StepOn, measured_s: float, parts: Sequence[MeasuredPart], known: Calibration) -> tuple[Cause, ...]:
    """The numbers that explain the difference, the one that explains most of it first.

    Args:
        step: the plan that ran.
        measured_s: seconds of its step.
        parts: the parts of it that the run reports apart.
        known: values and doubt of the numbers.
    """
    doubts, says = doubted_numbers(step, known), observed(step, measured_s, known, parts)
    base = says.predicted(doubts.x0)
    slopes = says.slopes(doubts.x0, base, doubts.high)
    gaps, predicted_s = says.measured - base, math.exp(base[0])
    moved = says.gain(slopes, doubts.spread) @ gaps
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
