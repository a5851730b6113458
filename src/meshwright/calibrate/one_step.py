"""One measured step of a machine: what it says about every number at once, by Bayes' rule on logarithms.

ln(predicted / measured) = J dx + noise with dx ~ N(0, S), so dx = -S J' (J S J' + N)^-1 ln(predicted / measured) and
S is left at S - S J' (J S J' + N)^-1 J S.

N holds what is the plan's own: nothing that other plans of the machine share. A step is one number: it moves every
other by its part of the doubt about the step, and tells none of them apart. The pace of the machine, a factor on
everything that takes time, is one of them; what is left is kept as a factor of the very plan that was measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from meshwright.calibrate.fit import STEP
from meshwright.calibrate.parameters import Parameter, hardware_with, parameters_of
from meshwright.estimate.hardware import Hardware, at_pace
from meshwright.estimate.result import StepEstimate
from meshwright.library.software import software
from meshwright.shapes import Float
from meshwright.specs.calibration import Z90, Calibration, Fitted, pace_name
from meshwright.specs.cluster import NodeGroup
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload

Numbers = Float[np.ndarray, "numbers"]

NOISE = 0.015
"""Of a median of steady steps, as the standard deviation of its logarithm."""
OWN_SPREAD = 0.07
"""Of what one plan is off by and others of its machine are not, where the calibration does not say (`Ranges.own`)."""
PACE_SPREAD = 0.04
"""Of the pace before any step. With the doubt about the other numbers, about 0.06 of a step, it makes 0.07: the prior
under which one row brings the others of its source nearest, be the source in the fit or left out. A wider one follows
the noise of the row."""
ROUNDS = 2
"""Of linearisation: steps are nearly linear in the logarithms."""
VISIBLE = 0.01
"""A number is said to be moved where it changes the step by this or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOn:
    """A plan's step, to be timed under any numbers."""

    group: NodeGroup
    workload: Workload
    time_s: Callable[[Hardware], float]
    doubt: float = 1.0
    """How much further off than plain plans ones of its kind are by themselves (`doubt_of`): such a step says less."""

    @property
    def owners(self) -> tuple[str, str]:
        """Architecture generation and framework."""
        return self.group.device.efficiency.generation, self.workload.software.partition("@")[0]

    def under(self, values: dict[Parameter, float], pace: float = 1.0) -> float:
        """Seconds with other numbers, at a pace over the present one."""
        return self.time_s(at_pace(hardware_with(values, self.group, self.workload), pace))


@dataclass(frozen=True, slots=True, kw_only=True)
class Learned:
    """What one step said."""

    numbers: tuple[tuple[str, Fitted], ...]
    """Every number the step depends on, the pace last."""
    predicted_s: float
    """Before."""
    moved_s: float
    """Under the moved numbers."""
    own: float
    """Measured over that: the plan's own."""
    effects: tuple[tuple[str, float], ...]
    """What each number changed the step by, as a logarithm, the largest first."""
    deviation_before: float
    """Of the logarithm of any step like it, from the doubt about the numbers it shares."""
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


def learn(step: StepOn, measured_s: float, known: Calibration) -> Learned:
    """Move every number by what a measured step says about it.

    Args:
        step: the plan that ran.
        measured_s: seconds of its step.
        known: values and doubt before.

    Returns:
        Values and doubt after; under them, times `own`, the plan takes `measured_s`.
    """
    doubts = doubts_of(step, known)
    parameters, x0, spread, low, high = doubts.parameters, doubts.x0, doubts.spread, doubts.low, doubts.high
    pace = known.pace(*step.owners)

    def log_time(x: Numbers) -> float:
        values = {parameter: math.exp(value) for parameter, value in zip(parameters, x[:-1], strict=True)}
        return math.log(step.under(values, math.exp(x[-1])))

    x, before = x0, log_time(x0)
    noise = noise_of(step, known)
    slopes, gain = np.zeros_like(x0), np.zeros_like(x0)
    for _ in range(ROUNDS):
        at_x = log_time(x)
        slopes = _slopes(log_time, x, at_x, high)
        gain = spread**2 * slopes / (slopes**2 @ spread**2 + noise)
        x = np.clip(x0 - gain * (at_x - math.log(measured_s) + slopes @ (x0 - x)), low, high)

    deviations = np.sqrt(np.maximum(spread**2 * (1 - gain * slopes), 0.0))
    numbers = [
        (parameter.name, _fitted(x[i], deviations[i], (low[i], high[i]), math.exp(x0[i])))
        for i, parameter in enumerate(parameters)
        if slopes[i] != 0
    ]
    before_pace = pace.value if pace else 1.0
    numbers.append(
        (pace_name(*step.owners), _fitted(x[-1] + math.log(before_pace), deviations[-1], (-np.inf, np.inf), 1.0))
    )
    effects = sorted(zip(doubts.names, (slopes * (x - x0)).tolist(), strict=True), key=lambda pair: -abs(pair[1]))
    after, doubt = log_time(x), float(slopes**2 @ spread**2)
    return Learned(
        numbers=tuple(numbers),
        predicted_s=math.exp(before),
        moved_s=math.exp(after),
        own=measured_s / math.exp(after),
        effects=tuple((name, effect) for name, effect in effects if effect),
        deviation_before=math.sqrt(doubt),
        deviation_after=math.sqrt(doubt * noise / (doubt + noise)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubts:
    """The numbers that a step rests on, as logarithms: of now, their standard deviations and bounds; the pace last."""

    parameters: tuple[Parameter, ...]
    names: tuple[str, ...]
    x0: Numbers
    spread: Numbers
    low: Numbers
    high: Numbers


def doubts_of(step: StepOn, known: Calibration) -> Doubts:
    """The numbers of a step's device and framework, and how well they are known.

    Args:
        step: the plan that ran.
        known: values and doubt.
    """
    parameters = parameters_of(*((owner,) for owner in step.owners))
    pace = known.pace(*step.owners)
    x0 = np.array([*(math.log(_present(parameter, step)) for parameter in parameters), 0.0])
    low, high = np.array([*(parameter.bounds for parameter in parameters), (-np.inf, np.inf)]).T
    return Doubts(
        parameters=parameters,
        names=(*(parameter.name for parameter in parameters), pace_name(*step.owners)),
        x0=x0,
        spread=np.array([*(_doubt(p, known) for p in parameters), pace.log_deviation if pace else PACE_SPREAD]),
        low=np.minimum(low, x0),
        high=np.maximum(high, x0),
    )


def noise_of(step: StepOn, known: Calibration) -> float:
    """Variance of ln(measured) that no shared number explains: of the measurement, and the plan's own."""
    own = OWN_SPREAD if known.ranges is None else known.ranges.own
    return NOISE**2 + (own * step.doubt) ** 2


def _present(parameter: Parameter, step: StepOn) -> float:
    workload = step.workload
    if parameter.quantity.scope == "device":
        return float(getattr(step.group.device.efficiency, parameter.quantity.field))
    return float(getattr(software(workload.software, workload.calibration), parameter.quantity.field))


def _doubt(parameter: Parameter, known: Calibration) -> float:
    found = dict(known.numbers).get(parameter.name)
    return parameter.quantity.spread if found is None else found.log_deviation


def _slopes(log_time: Callable[[Numbers], float], x: Numbers, at_x: float, high: Numbers) -> Numbers:
    """d ln(step) / dx by finite differences, inwards at an upper bound."""
    by = np.where(x + STEP <= high, STEP, -STEP)
    return np.array([(log_time(x + by[i] * row) - at_x) / by[i] for i, row in enumerate(np.eye(len(x)))])


def _fitted(log_value: float, deviation: float, bounds: tuple[float, float], prior: float) -> Fitted:
    ends = np.clip([log_value - Z90 * deviation, log_value + Z90 * deviation], *bounds)
    value = math.exp(log_value)
    return Fitted(value=value, low=min(math.exp(ends[0]), value), high=max(math.exp(ends[1]), value), prior=prior)
