"""One row of a source given, its other rows predicted: what one measured step is worth.

    python -m benchmarks.one_step throughput.csv

Starts from the numbers in force: the package's, or those of the folder that MESHWRIGHT_LIBRARY names. What it is worth
on sources that the numbers have not seen, `python -m benchmarks.fit` prints after it has left each of them out.
"""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.app.calibrate import measured_step
from meshwright.calibrate.fit import Fit, MeasuredStep
from meshwright.calibrate.observed import PACE_SPREAD, StepOn, noise_of
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
    for given in given_rows(len(chosen)):
        learned = learn(on[given], measured[given], calibration())
        after = np.array([predicted_s(step, learned) for step in on])
        rest = np.arange(len(chosen)) != given
        yield Rest(
            before=np.log(before / measured)[rest],
            after=np.log(after / measured)[rest],
            measured=np.log(measured)[rest],
        )


def given_rows(rows: int) -> list[int]:
    """The first, one of each third, the last."""
    return sorted({0, rows // 3, 2 * rows // 3, rows - 1})


def on_left_out(found: Fit, steps: list[MeasuredStep]) -> Iterator[Rest]:
    """As `rests`, where the numbers had not seen the source: by the slopes of the fit instead of by pricing again.

    ln(predicted / measured) of a row r moves by -C[r, given] / (C[given, given] + N) times that of the given row, with
    C = J S J' + pace^2 and the noise N of the given row, as in `meshwright.calibrate.one_step`.

    Args:
        found: with errors of runs whose source was left out.
        steps: its runs.
    """
    known = calibration()
    for source in dict.fromkeys(step.source for step in steps):
        every = [row for row, step in enumerate(steps) if step.source == source]
        rows = np.array(every[:: -(-len(every) // MOST_ROWS)])
        shared = (found.slopes[rows] * found.deviations**2) @ found.slopes[rows].T + PACE_SPREAD**2
        errors, measured = found.left_out[rows], np.log([steps[row].measured_s for row in rows])
        for given in given_rows(len(rows)) if len(rows) > 1 else ():
            noise = noise_of(step_on(steps[rows[given]]), known)
            after = errors - shared[:, given] / (shared[given, given] + noise) * errors[given]
            rest = np.arange(len(rows)) != given
            yield Rest(before=errors[rest], after=after[rest], measured=measured[rest])


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
    """Give rows of a file's sources, and print what that is worth."""
    steps = [step for record in read_rows(path) if isinstance(step := measured_step(record), MeasuredStep)]
    sources = [[step for step in steps if step.source == name] for name in dict.fromkeys(s.source for s in steps)]
    tell([rest for source in sources if len(source) > 1 for rest in rests(source)])


def tell(found: list[Rest]) -> None:
    """Print errors and pair order before and after a row is given."""
    for name in ("before", "after"):
        errors = np.abs(np.expm1(np.concatenate([getattr(rest, name) for rest in found])))
        order = [right for rest in found for right in in_order(getattr(rest, name), rest.measured)]
        median, p90 = np.quantile(errors, [0.5, 0.9])
        print(f"{name:6}  rows {len(errors)}  median {median:.1%}  p90 {p90:.1%}  pairs in order {np.mean(order):.1%}")


if __name__ == "__main__":
    main(sys.argv[1])
