"""Which pipelines are part of a space."""

from __future__ import annotations

import pytest

from meshwright.schedules import schedule_named
from meshwright.search.geometry import most_chunks


@pytest.mark.parametrize(
    ("schedule", "p", "m", "chunks"),
    [
        ("dualpipe", 16, 960, 4),  # its order repeats, so its table is short
        ("dualpipev", 16, 960, 4),
        ("chimera", 16, 960, 4),
        ("terapipe", 16, 960, 4),
        ("hanayo", 16, 64, 4),  # whole tables
        ("hanayo", 16, 128, 2),
        ("hanayo", 16, 960, 0),
        ("zb-auto", 8, 16, 1),
        ("zb-auto", 8, 17, 0),
    ],
)
def test_orders_that_repeat_are_tried_with_any_number_of_micro_batches(
    schedule: str, p: int, m: int, chunks: int
) -> None:
    assert most_chunks(schedule_named(schedule), p, m) == chunks
