"""What a run reports of its step, as logarithms: seconds of the whole and of its parts, and what they depend on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.calibrate.fit import STEP
from meshwright.calibrate.parameters import Parameter, fitted_quantities, hardware_with
from meshwright.estimate.hardware import Hardware, at_pace
from meshwright.library.software import software
from meshwright.shapes import Float, Rows
from meshwright.specs.calibration import Calibration, pace_name
from meshwright.specs.cluster import NodeGroup
from meshwright.specs.workload import Workload

Numbers = Float[np.ndarray, "numbers"]
Slopes = Float[np.ndarray, "rows numbers"]

NOISE = 0.015
"""Standard deviation of the logarithm of a median of steady steps."""
OWN_SPREAD = 0.07
"""Standard deviation of what one plan is off by and others of its machine are not, where the calibration does not say
(`Ranges.own`)."""
PACE_SPREAD = 0.04
"""Standard deviation of the pace before any step. With the doubt about the other numbers, about 0.06 of a step, it
makes 0.07: the prior under which one row brings the others of its source nearest, be the source in the fit or left out.
A wider one follows the noise of the row."""
PART_NOISE = 0.15
"""Standard deviation of the logarithm of a part of a step alone: ranks differ, and timers hold other things."""
LEAST_PART = 0.01
"""Share of the step below which a part says nothing: its timer measures other things."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOn:
    """A plan's step, to be timed under any numbers."""

    group: NodeGroup
    workload: Workload
    time_s: Callable[[Hardware], float]
    parts_s: Callable[[Hardware], Mapping[str, float]] | None = None
    """Breakdown of the step under any numbers, where parts of it were measured."""
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
class MeasuredPart:
    """Parts of a step that were measured together."""

    name: str
    """Name of the parts in the run's report."""
    parts: tuple[str, ...]
    measured_s: float

    def joined(self, other: MeasuredPart) -> MeasuredPart:
        """Both together."""
        parts = tuple(dict.fromkeys((*self.parts, *other.parts)))
        return MeasuredPart(
            name=f"{self.name}, {other.name}", parts=parts, measured_s=self.measured_s + other.measured_s
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


def doubted_numbers(step: StepOn, known: Calibration) -> Doubts:
    """The numbers of a step's device and framework, and how well they are known.

    Args:
        step: the plan that ran.
        known: values and doubt.
    """
    parameters = fitted_quantities(*((owner,) for owner in step.owners))
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Observed:
    """Logarithms of the step, first, and of parts of it that were measured apart."""

    predicted: Callable[[Numbers], Rows]
    """Predictions under logarithms of numbers."""
    measured: Rows
    noise: Rows
    """Variance that no shared number explains."""

    def slopes(self, x: Numbers, at_x: Rows, high: Numbers) -> Slopes:
        """Slopes by finite differences, inwards at an upper bound."""
        by = np.where(x + STEP <= high, STEP, -STEP)
        moved = [(self.predicted(x + by[i] * row) - at_x) / by[i] for i, row in enumerate(np.eye(len(x)))]
        return np.array(moved).T

    def gain(self, slopes: Slopes, spread: Numbers) -> Float[np.ndarray, "numbers rows"]:
        """S J' (J S J' + N)^-1: what numbers move by for each gap between measured and predicted."""
        shared = slopes * spread**2
        return np.linalg.solve(shared @ slopes.T + np.diag(self.noise), shared).T


def observed(step: StepOn, measured_s: float, known: Calibration, parts: Sequence[MeasuredPart] = ()) -> Observed:
    """What a measured step, and parts of it, say.

    Args:
        step: the plan that ran.
        measured_s: the measured seconds of the whole.
        known: what it is predicted by.
        parts: measured apart; those that are hardly any of the step say nothing.
    """
    parameters, parts_s = doubted_numbers(step, known).parameters, step.parts_s

    def hardware(x: Numbers) -> Hardware:
        values = {parameter: math.exp(value) for parameter, value in zip(parameters, x[:-1], strict=True)}
        return at_pace(hardware_with(values, step.group, step.workload), math.exp(x[-1]))

    known_parts: list[MeasuredPart] = []
    if parts and parts_s is not None:
        now = parts_s(at_pace(hardware_with({}, step.group, step.workload), 1.0))
        least_s = LEAST_PART * sum(now.values())
        known_parts = [one for one in parts if min(one.measured_s, sum(now[name] for name in one.parts)) >= least_s]

    def predicted(x: Numbers) -> Rows:
        if not known_parts or parts_s is None:
            return np.log([step.time_s(hardware(x))])
        found = parts_s(hardware(x))
        return np.log([sum(found.values()), *(sum(found[name] for name in one.parts) for one in known_parts)])

    return Observed(
        predicted=predicted,
        measured=np.log([measured_s, *(one.measured_s for one in known_parts)]),
        noise=np.array([noise_of(step, known), *([PART_NOISE**2] * len(known_parts))]),
    )
