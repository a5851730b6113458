"""One measured step of a machine: what it says about every number at once, by Bayes' rule on logarithms.

ln(predicted / measured) = J dx + noise with dx ~ N(0, S), so dx = -S J' (J S J' + N)^-1 ln(predicted / measured) and
S is left at S - S J' (J S J' + N)^-1 J S.

N holds what is the plan's own: nothing that other plans of the machine share. A step is one number: it moves every
other by its part of the doubt about the step, and tells none of them apart; parts of it that the run reports are rows
of their own, and do. The pace of the machine, a factor on everything that takes time, is one of the numbers; what is
left is kept as a factor of the very plan that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.calibrate.observed import MeasuredPart, StepOn, doubted_numbers, observed
from meshwright.estimate.result import StepEstimate
from meshwright.specs.calibration import Z90, Calibration, Fitted, pace_name
from meshwright.specs.model import ModelSpec

ROUNDS = 2
"""Rounds of linearisation: steps are nearly linear in the logarithms."""
VISIBLE = 0.01
"""A number is said to be moved where it changes the step by this or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What one step said."""

    numbers: tuple[tuple[str, Fitted], ...]
    """Every number the step depends on, the pace last."""
    predicted_s: float
    """Step as predicted before."""
    moved_s: float
    """Step as predicted under the moved numbers."""
    own: float
    """Measured over that: the plan's own."""
    effects: tuple[tuple[str, float], ...]
    """What each number changed the step by, as a logarithm, the largest first."""
    deviation_before: float
    """Standard deviation of the logarithm of any step like it, from the doubt about the numbers it shares."""
    deviation_after: float

    @property
    def not_told_apart(self) -> tuple[str, ...]:
        """Numbers that any of may be the reason."""
        return tuple(name for name, effect in self.effects if abs(effect) >= VISIBLE)


def doubt_of(estimate: StepEstimate, model: ModelSpec, known: Calibration) -> float:
    """How much further off than plain plans one of its kind is: with experts, or waiting for the host."""
    if known.ranges is None:
        return 1.0
    host_s = dict(estimate.breakdown_s)["host"]
    return known.ranges.doubt(host_share=host_s / estimate.step_time_s, experts=model.is_moe)


def learn(step: StepOn, measured_s: float, known: Calibration, parts: Sequence[MeasuredPart] = ()) -> Learned:
    """Move every number by what a measured step says about it.

    Args:
        step: the plan that ran.
        measured_s: seconds of its step.
        known: values and doubt before.
        parts: the parts of the step that the run reports apart, which tell numbers apart that the whole does not.

    Returns:
        Values and doubt after; under them, times `own`, the plan takes `measured_s`.
    """
    doubts, says = doubted_numbers(step, known), observed(step, measured_s, known, parts)
    x0, spread, low, high = doubts.x0, doubts.spread, doubts.low, doubts.high
    pace = known.pace(*step.owners)
    x, before = x0, says.predicted(x0)[0]
    slopes, gain = np.zeros((len(says.noise), len(x0))), np.zeros((len(x0), len(says.noise)))
    for _ in range(ROUNDS):
        at_x = says.predicted(x)
        slopes = says.slopes(x, at_x, high)
        gain = says.gain(slopes, spread)
        x = np.clip(x0 - gain @ (at_x - says.measured + slopes @ (x0 - x)), low, high)

    left = np.diag(spread**2) - gain @ (slopes * spread**2)
    deviations = np.sqrt(np.maximum(np.diag(left), 0.0))
    numbers = [
        (parameter.name, _fitted(x[i], deviations[i], (low[i], high[i]), math.exp(x0[i])))
        for i, parameter in enumerate(doubts.parameters)
        if slopes[:, i].any()
    ]
    before_pace = pace.value if pace else 1.0
    numbers.append(
        (pace_name(*step.owners), _fitted(x[-1] + math.log(before_pace), deviations[-1], (-np.inf, np.inf), 1.0))
    )
    moves = (slopes[0] * (x - x0)).tolist()
    effects = sorted(zip(doubts.names, moves, strict=True), key=lambda pair: -abs(pair[1]))
    after = says.predicted(x)[0]
    return Learned(
        numbers=tuple(numbers),
        predicted_s=math.exp(before),
        moved_s=math.exp(after),
        own=measured_s / math.exp(after),
        effects=tuple((name, effect) for name, effect in effects if effect),
        deviation_before=math.sqrt(slopes[0] ** 2 @ spread**2),
        deviation_after=math.sqrt(max(slopes[0] @ left @ slopes[0], 0.0)),
    )


def _fitted(log_value: float, deviation: float, bounds: tuple[float, float], prior: float) -> Fitted:
    ends = np.clip([log_value - Z90 * deviation, log_value + Z90 * deviation], *bounds)
    value = math.exp(log_value)
    return Fitted(value=value, low=min(math.exp(ends[0]), value), high=max(math.exp(ends[1]), value), prior=prior)
