"""The fit: robust regression of ln(predicted / measured), a prior on every number, sources left out one by one.

minimise over ln x:  sum over runs of w soft_l1(r(x) / s) + sum over numbers of ((ln x - ln prior) / spread)^2

Where numbers are for machines that nobody has seen, r(x) + o replaces r(x), and the sum over sources of (o / b)^2 is
added: all runs of a source may be off by the machine they share, which then moves no number.

Steps of seconds are sums of parts that each number scales, so r is nearly linear in ln x: each round linearises it once
(finite differences, only the runs a number can touch) and solves the linear problem exactly.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from meshwright.calibrate.chosen import ChosenPlan
from meshwright.calibrate.parameters import QUANTITIES, Parameter, fitted_quantities, hardware_with
from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.estimate.ranges import kind_of_run
from meshwright.library.devices import kernel_efficiency
from meshwright.library.software import numbers_name, own_numbers, software
from meshwright.shapes import Float
from meshwright.specs.calibration import Calibration, KindOfRun
from meshwright.specs.device import DeviceSpec

if TYPE_CHECKING:
    from collections.abc import Callable

Runs = Float[np.ndarray, "runs"]
Numbers = Float[np.ndarray, "numbers"]
Machines = Float[np.ndarray, "runs sources"]

NOISE = 0.05
"""Scale of an ordinary residual of ln(predicted / measured): beyond it a run counts by its distance, not its square."""
SOURCE_POWER = 0.35
"""A source of n runs counts as n^(1 - 0.35) runs: its runs share their machine and its faults."""
STEP = 0.03
"""Step of the finite differences, of a logarithm."""
TRUST = 0.6
"""Most a number's logarithm moves in one round."""
TOLERANCE = 1e-6
"""Tolerance of a solution: far less than a number's standard deviation."""
BETWEEN = 0.05
"""Standard deviation of what a machine is off by, of a logarithm: as much as a run of it is from the next."""
ROUNDS = 2
"""Rounds of linearisation."""
FEWEST_RUNS = 20
MOST_RUNS = 40
"""Runs of one source that a fit looks at, evenly spread over its rows: more of one machine teach little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredStep:
    """One run with its measurement."""

    id: str
    source: str
    measured_s: float
    chosen: ChosenPlan

    @property
    def owners(self) -> tuple[str, str]:
        """Architecture generation, and the framework whose numbers it runs under."""
        run = self.chosen.run
        return run.cluster.groups[0].device.efficiency.generation, self.software.partition("@")[0]

    @property
    def software(self) -> str:
        """The generation of that framework."""
        return numbers_name(self.chosen.run.workload.software)

    @property
    def kind(self) -> KindOfRun:
        """What was known of it before it ran."""
        run, estimate = self.chosen.run, self.chosen.estimate
        step = dict(estimate.breakdown_s)["host"], estimate.step_time_s
        return kind_of_run(step, run.model, run.workload, run.cluster.groups[0].device)

    def residual(self, values: dict[Parameter, float]) -> float:
        """ln(predicted / measured)."""
        run = self.chosen.run
        hardware = hardware_with(values, run.cluster.groups[0], run.workload)
        return math.log(self.chosen.step_time_s(hardware) / self.measured_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What was found."""

    parameters: tuple[Parameter, ...]
    log_values: Numbers
    deviations: Numbers
    """Standard deviations of the logarithms."""
    before: Runs
    """ln(predicted / measured) under the priors."""
    after: Runs
    left_out: Runs
    """The same for each run with its source left out of the fit (on the last linearisation)."""
    slopes: Float[np.ndarray, "runs numbers"]
    """Slopes of the last linearisation: what a logarithm of a number changes that of a step by."""

    @property
    def improves(self) -> bool:
        """Whether runs of sources that were left out are predicted better than without a fit."""
        return bool(np.median(np.abs(self.left_out)) < np.median(np.abs(self.before)))


def fit(
    steps: Sequence[MeasuredStep],
    rounds: int | None = None,
    parameters: Sequence[Parameter] | None = None,
    start: Mapping[str, float] | None = None,
    tell: Callable[[str], None] = lambda line: None,
    between: float = 0.0,
) -> Fit:
    """Fit every number these runs can touch.

    Args:
        steps: runs with measurements.
        rounds: the number of rounds of linearisation; ROUNDS by default. With 0 the numbers stay at `start`: sources
            are left out there.
        parameters: the parameters that may move; every one of the runs' devices and frameworks by default.
        start: values to linearise at first, by name; the priors for the rest. Numbers of an earlier fit save rounds.
        tell: takes a line about each round.
        between: standard deviation of what all runs of a source are off by together; 0 where the numbers are to say
            what the runs' own machines do.

    Returns:
        Values, uncertainty, and the errors before, after, and with sources left out.

    Raises:
        InputError: too few runs to fit anything.
        UnsupportedError: scipy is missing.
    """
    if len(steps) < FEWEST_RUNS:
        raise InputError(
            Problem(
                what=f"{len(steps)} runs can be priced",
                why=f"a fit needs at least {FEWEST_RUNS}",
                fix="give a file with more runs, or calibrate one plan with --from-log",
            )
        )
    if parameters is None:
        parameters = fitted_quantities((step.owners[0] for step in steps), (step.software for step in steps))
    x = np.log([parameter.prior for parameter in parameters])
    weights, machines = source_weights(steps), _machines(steps, between)
    before = after = residuals(steps, parameters, x)
    if start:
        x = np.log([start.get(parameter.name, parameter.prior) for parameter in parameters])
        after = residuals(steps, parameters, x)
    slopes = np.zeros((len(steps), len(parameters)))
    rounds = ROUNDS if rounds is None else rounds
    for round_number in range(rounds):
        slopes = jacobian(steps, parameters, x, after)
        moved = solve(after, slopes, x, parameters, weights, machines)
        x = x + np.clip(moved - x, -TRUST, TRUST)
        after = residuals(steps, parameters, x)
        tell(f"round {round_number + 1} of {rounds}: median error {np.median(np.abs(np.expm1(after))):.1%}")
    if not rounds:
        slopes = jacobian(steps, parameters, x, after)
    return Fit(
        parameters=tuple(parameters),
        log_values=x,
        deviations=deviations(after, slopes, parameters, weights),
        before=before,
        after=after,
        left_out=_left_out(steps, after, slopes, x, parameters, weights, machines),
        slopes=slopes,
    )


def spread_out(steps: Sequence[MeasuredStep]) -> list[MeasuredStep]:
    """At most MOST_RUNS steps of each source, every n-th."""
    sources = dict.fromkeys(step.source for step in steps)
    by_source = {source: [step for step in steps if step.source == source] for source in sources}
    return [step for runs in by_source.values() for step in runs[:: -(-len(runs) // MOST_RUNS)]]


def source_weights(steps: Sequence[MeasuredStep]) -> Runs:
    """n^-0.35 for a run of a source of n runs."""
    runs = Counter(step.source for step in steps)
    return np.array([runs[step.source] ** -SOURCE_POWER for step in steps])


def _machines(steps: Sequence[MeasuredStep], between: float) -> Machines | None:
    """What an offset of each source, in units of its deviation, adds to each run; None for no offsets."""
    if not between:
        return None
    sources = list(dict.fromkeys(step.source for step in steps))
    return between * np.array([[float(step.source == source) for source in sources] for step in steps])


def residuals(steps: Sequence[MeasuredStep], parameters: Sequence[Parameter], x: Numbers) -> Runs:
    """ln(predicted / measured) of every run."""
    return np.array([step.residual(_values(step, parameters, x)) for step in steps])


def jacobian(
    steps: Sequence[MeasuredStep], parameters: Sequence[Parameter], x: Numbers, at_x: Runs
) -> Float[np.ndarray, "runs numbers"]:
    """Slopes of the residuals by finite differences, inwards at an upper bound."""
    slopes = np.zeros((len(steps), len(parameters)))
    for row, step in enumerate(steps):
        values = _values(step, parameters, x)
        for column, parameter in enumerate(parameters):
            if parameter in values:
                by = STEP if x[column] + STEP <= parameter.bounds[1] else -STEP
                moved = {**values, parameter: math.exp(x[column] + by)}
                slopes[row, column] = (step.residual(moved) - at_x[row]) / by
    return slopes


def solve(
    at_x: Runs,
    slopes: Float[np.ndarray, "runs numbers"],
    x: Numbers,
    parameters: Sequence[Parameter],
    weights: Runs,
    machines: Machines | None = None,
) -> Numbers:
    """The minimum of the linearised problem within bounds; `machines` as `_machines` makes them."""
    least_squares = _optimizer("least_squares")
    prior = np.log([parameter.prior for parameter in parameters])
    spread = np.array([parameter.quantity.spread for parameter in parameters])
    low, high = np.array([parameter.bounds for parameter in parameters]).T
    numbers = len(x)
    if machines is not None:
        # An offset of each source in units of its deviation: a number more whose prior is none.
        offsets = machines.shape[1]
        slopes, x, prior = (
            np.hstack([slopes, machines]),
            np.append(x, np.zeros(offsets)),
            np.append(prior, [0] * offsets),
        )
        spread = np.append(spread, np.ones(offsets))
        low, high = np.append(low, np.full(offsets, -np.inf)), np.append(high, np.full(offsets, np.inf))

    def objective(moved: Numbers) -> np.ndarray:
        scaled = (at_x + slopes @ (moved - x)) * weights / NOISE
        # soft_l1 of the runs alone: least_squares would apply it to the priors too.
        soft = np.sign(scaled) * np.sqrt(2 * (np.sqrt(1 + scaled**2) - 1))
        return np.concatenate([soft, (moved - prior) / spread])

    def slope(moved: Numbers) -> np.ndarray:
        scaled = (at_x + slopes @ (moved - x)) * weights / NOISE
        length = np.sqrt(1 + scaled**2)
        # d soft / d scaled = |scaled| / (length |soft|), which is sqrt((1 + length) / 2) / length.
        falling = np.sqrt((1 + length) / 2) / length
        return np.vstack([slopes * (falling * weights / NOISE)[:, None], np.diag(1 / spread)])

    start = np.clip(x, low + 1e-9, high - 1e-9)
    near = dict.fromkeys(("ftol", "xtol", "gtol"), TOLERANCE)
    return np.asarray(least_squares(objective, start, jac=slope, bounds=(low, high), **near).x[:numbers])


def deviations(
    at_x: Runs, slopes: Float[np.ndarray, "runs numbers"], parameters: Sequence[Parameter], weights: Runs
) -> Numbers:
    """Standard deviations of the logarithms: root of the diagonal of (J' W J / s^2 + 1 / spread^2)^-1.

    s is the robust spread of what is left over, 1.4826 times the median of |r|.
    """
    spread = np.array([parameter.quantity.spread for parameter in parameters])
    left = max(NOISE, 1.4826 * float(np.median(np.abs(at_x))))
    scaled = slopes * (weights / left)[:, None]
    return np.sqrt(np.diag(np.linalg.inv(scaled.T @ scaled + np.diag(spread**-2.0))))


def _left_out(
    steps: Sequence[MeasuredStep],
    at_x: Runs,
    slopes: Float[np.ndarray, "runs numbers"],
    x: Numbers,
    parameters: Sequence[Parameter],
    weights: Runs,
    machines: Machines | None,
) -> Runs:
    found = at_x.copy()
    sources = np.array([step.source for step in steps])
    for source in dict.fromkeys(sources):
        out = sources == source
        others = None if machines is None else machines[~out]
        moved = solve(at_x[~out], slopes[~out], x, parameters, weights[~out], others)
        found[out] = at_x[out] + slopes[out] @ (moved - x)
    return found


def _values(step: MeasuredStep, parameters: Sequence[Parameter], x: Numbers) -> dict[Parameter, float]:
    """The numbers that can touch a run."""
    return {
        parameter: math.exp(value) for parameter, value in zip(parameters, x, strict=True) if touches(parameter, step)
    }


@lru_cache(maxsize=256)
def own_fields(device: DeviceSpec, calibration: Calibration | None) -> frozenset[str]:
    """Numbers that a device states for itself, as one of less power does: those of its generation do not reach it.

    Args:
        device: the device as the library gives it.
        calibration: the calibration that its generation's numbers are of; the library's own by default.
    """
    shared = kernel_efficiency(device.efficiency.generation, calibration)
    fields = (quantity.field for quantity in QUANTITIES if quantity.scope == "device")
    return frozenset(field for field in fields if getattr(device.efficiency, field) != getattr(shared, field))


def touches(parameter: Parameter, step: MeasuredStep) -> bool:
    """Whether a run depends on a number."""
    generation, framework = step.owners
    owners = {"device": generation, "software": framework, "generation": step.software}
    if parameter.owner != owners[parameter.quantity.scope]:
        return False
    run = step.chosen.run
    workload, device = run.workload, run.cluster.groups[0].device
    if parameter.quantity.scope == "device" and parameter.quantity.field in own_fields(device, workload.calibration):
        return False
    if parameter.quantity.scope == "software" and parameter.quantity.field in own_numbers(workload.software):
        return False
    narrow = workload.precision.bytes_of("compute")
    needed = {
        "gemm_fraction_fp8": narrow == 1,
        "gemm_fraction_fp4": narrow == 0.5,
        "cast_passes": narrow <= 1,
        "young_products": generation in software(step.software).young,
        "flash_forward_fraction": workload.attention_kernel == "flash",
        "flash_backward_fraction": workload.attention_kernel == "flash",
        "flash_fa1_share": workload.attention_kernel == "flash" and software(workload.software).flash == "fa1",
        "flash_fa2_share": workload.attention_kernel == "flash" and software(workload.software).flash == "fa2",
    }
    return needed.get(parameter.quantity.field, True)


def linear_program(
    costs: Numbers, equal: Float[np.ndarray, "rows numbers"], to: Float[np.ndarray, "rows"], bounds: Sequence[Any]
) -> Numbers:
    """The minimum of costs @ x where equal @ x = to.

    Raises:
        UnsupportedError: scipy is missing.
    """
    found = _optimizer("linprog")(costs, A_eq=equal, b_eq=to, bounds=bounds, method="highs")
    return np.asarray(found.x)


def _optimizer(name: str) -> Callable[..., Any]:
    try:
        from scipy import optimize
    except ImportError:
        raise UnsupportedError(
            Problem(
                what="calibrate needs scipy",
                why="the fit is its least_squares and linprog",
                fix="pip install 'meshwright[calibrate]'",
                field="calibrate",
            )
        ) from None
    found: Callable[..., Any] = getattr(optimize, name)
    return found
