"""What every schedule says of itself: passes without a partner, and steps that do not end empty."""

from __future__ import annotations

import pytest

from meshwright.schedules import SCHEDULES, schedule_named
from meshwright.schedules.base import Schedule


@pytest.mark.parametrize("p", [4, 6, 8])
@pytest.mark.parametrize("more", [0, 2, 14])
def test_forwards_without_a_partner_fill_and_empty_the_pipeline(p: int, more: int) -> None:
    """However many micro-batches there are: 3p/2 - 1 in DualPipe, 3p - 1 of half the layers in DualPipeV."""
    m = 2 * p + more
    assert schedule_named("dualpipe").unpaired(p, m, 1) == 3 * p // 2 - 1
    assert schedule_named("dualpipev").unpaired(p, m, 2) == 3 * p - 1


def test_passes_of_plain_schedules_have_no_partners_but_on_one_worker() -> None:
    assert [schedule_named(name).unpaired(4, 16, 1) for name in ("gpipe", "1f1b", "zb-h1")] == [None] * 3
    for schedule in SCHEDULES.values():
        # Alone, a worker runs each forward beside the backward before it; the first has none.
        assert [schedule.unpaired(1, m, 1) for m in (0, 1, 7)] == [0, 1, 1]


def test_asynchronous_schedules_do_not_flush() -> None:
    asynchronous = {"pipedream", "pipedream-2bw", "ftpipe"}
    assert {name for name, schedule in SCHEDULES.items() if not schedule.flushes} == asynchronous
    assert all(schedule.name in asynchronous for schedule in SCHEDULES.values() if schedule.updates_each)


def test_only_schedules_that_count_their_activations_by_formula_are_bound_by_one() -> None:
    """Searches bound the others on few workers alone: their counts take a whole table."""
    counted = {name for name, schedule in SCHEDULES.items() if type(schedule)._in_flight is not Schedule._in_flight}
    formulas = {name for name, schedule in SCHEDULES.items() if schedule.bound_by_formula}
    assert {"1f1b", "gpipe", "interleaved"} <= formulas < counted
