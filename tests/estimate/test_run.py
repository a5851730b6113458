"""What is alive in a pipeline: counted along a short step, it is that of a long one whose order repeats."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.estimate.run import _live, _makes, live
from meshwright.schedules import SCHEDULES

REPEATED = [
    name
    for name, schedule in SCHEDULES.items()
    if _makes(schedule) and schedule.period(4, schedule.fewest_chunks(4, 64)) is not None
]


@pytest.mark.parametrize("name", REPEATED)
@pytest.mark.parametrize(("p", "m"), [(2, 31), (4, 64), (4, 97), (8, 120)])
def test_a_long_step_that_repeats_keeps_as_much_alive_as_a_short_one(name: str, p: int, m: int) -> None:
    schedule = SCHEDULES[name]
    v = schedule.fewest_chunks(p, m)
    m = next(legal for legal in range(m, m + 2 * p) if not schedule.problems(p, legal, v))
    short, whole = live(schedule, p, m, v), _live(schedule, p, m, v)
    for side in ("kept", "made"):
        for counted, known in zip(getattr(whole, side), getattr(short, side), strict=True):
            np.testing.assert_array_equal(known, counted)


def test_schedules_that_make_activations_again_are_among_those_that_repeat() -> None:
    assert {"zb-h1", "zb-v", "v-min", "mario", "dualpipev"} <= {*REPEATED}
    # Nothing is counted twice: a longer step is the same short one.
    assert live(SCHEDULES["zb-h1"], 8, 480, 1) is live(SCHEDULES["zb-h1"], 8, 960, 1)
