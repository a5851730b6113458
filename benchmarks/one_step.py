"""One row of a source given, its other rows predicted: what one measured step is worth.

    python -m benchmarks.one_step throughput.csv

Starts from the numbers in force: the package's, or those of the folder that MESHWRIGHT_LIBRARY names.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.app.calibrate import measured_step
from meshwright.calibrate.fit import MeasuredStep
from meshwright.calibrate.observed import StepOn
from meshwright.calibrate.one_step import Learned, doubt_of, learn
from meshwright.calibrate.parameters import fitted_quantities
from meshwright.formats.measured import read_rows
from meshwright.library.calibration import calibration
from meshwright.specs.calibration import pace_name

MOST_ROWS = 20
"""Of a source, evenly spread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rest:
    """The rows of a source but the given one: ln(predicted / measured) and ln(measured)."""

    before: np.ndarray
    after: np.ndarray
    measured: np.ndarray


def step_on(step: MeasuredStep) -> StepOn:
    """A measured row as a step that can be timed under any numbers."""
    run = step.chosen.run
    doubt = doubt_of(step.chosen.estimate, run.model, calibration())
    return StepOn(group=run.cluster.groups[0], workload=run.workload, time_s=step.chosen.step_time_s, doubt=doubt)


def predicted_s(step: StepOn, learned: Learned) -> float:
    """Seconds of another step under what was learned."""
    found = dict(learned.numbers)
    parameters = fitted_quantities(*((owner,) for owner in step.owners))
    values = {parameter: found[parameter.name].value for parameter in parameters if parameter.name in found}
    pace = found.get(pace_name(*step.owners))
    return step.under(values, pace.value if pace else 1.0)


def rests(steps: list[MeasuredStep]) -> Iterator[Rest]:
    """The first row of a source given, one of each third, the last."""
    chosen = steps[:: -(-len(steps) // MOST_ROWS)]
    on = [step_on(step) for step in chosen]
    measured = np.array([step.measured_s for step in chosen])
    before = np.array([step.under({}) for step in on])
    for given in sorted({0, len(chosen) // 3, 2 * len(chosen) // 3, len(chosen) - 1}):
        learned = learn(on[given], measured[given], calibration())
        after = np.array([predicted_s(step, learned) for step in on])
        rest = np.arange(len(chosen)) != given
        yield Rest(
            before=np.log(before / measured)[rest],
            after=np.log(after / measured)[rest],
            measured=np.log(measured)[rest],
        )


def in_order(errors: np.ndarray, measured: np.ndarray) -> list[bool]:
    """For each pair of rows with different times, whether the predictions are in the same order."""
    predicted = errors + measured
    pairs = itertools.combinations(range(len(measured)), 2)
    return [
        (predicted[one] - predicted[two]) * (measured[one] - measured[two]) > 0
        for one, two in pairs
        if not math.isclose(measured[one], measured[two], abs_tol=1e-9)
    ]


def main(path: str) -> None:
    """Print errors and pair order before and after."""
    steps = [step for record in read_rows(path) if isinstance(step := measured_step(record), MeasuredStep)]
    sources = [[step for step in steps if step.source == name] for name in dict.fromkeys(s.source for s in steps)]
    found = [rest for source in sources if len(source) > 1 for rest in rests(source)]
    for name in ("before", "after"):
        errors = np.abs(np.expm1(np.concatenate([getattr(rest, name) for rest in found])))
        order = [right for rest in found for right in in_order(getattr(rest, name), rest.measured)]
        median, p90 = np.quantile(errors, [0.5, 0.9])
        print(f"{name:6}  rows {len(errors)}  median {median:.1%}  p90 {p90:.1%}  pairs in order {np.mean(order):.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
