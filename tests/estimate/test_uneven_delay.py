"""Unequal micro-batches against simulations of many random steps."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.estimate.sequences import WHOLE, rows_of
from meshwright.estimate.uneven_delay import uneven_delay
from meshwright.schedules import Times, schedule_named
from meshwright.specs.workload import Workload

WORK = Workload(
    seq_len=8192,
    global_batch=64,
    sequence_lengths=((2048, 0.5), (4096, 0.3), (8192, 0.2)),
    packing="bins:2048,4096",
)


@pytest.mark.parametrize(
    ("name", "p", "m", "v"),
    [
        ("1f1b", 2, 8, 1),
        ("1f1b", 4, 8, 1),
        ("1f1b", 4, 32, 1),
        ("1f1b", 8, 4, 1),
        ("1f1b", 8, 16, 1),
        ("gpipe", 4, 16, 1),
        ("interleaved", 4, 16, 2),
        ("interleaved", 2, 64, 4),
    ],
)
def test_micro_batches_hold_each_other_up_as_in_simulations(name: str, p: int, m: int, v: int) -> None:
    schedule, rows = schedule_named(name), rows_of(WORK)
    assert rows is not None
    pairs = rows.each(WHOLE) / rows.pairs(WHOLE)
    took = np.random.default_rng(2).choice(pairs, p=rows.share, size=(400, 1, 1, m))
    own = np.broadcast_to(took, (400, p, v, m)) / v
    times = Times(forward_s=own / 3, backward_s=own * 2 / 3, by_micro_batch=True)
    ends = schedule.end_s(p, m, v, times).max(axis=-1)
    waits = uneven_delay(schedule, (p, m, v), np.array([1.0]), WORK)
    assert waits is not None
    assert m + (p - 1) / v + waits[0] == pytest.approx(ends.mean(), rel=0.05)


def test_micro_batches_of_more_rows_are_more_alike() -> None:
    waits = uneven_delay(schedule_named("1f1b"), (4, 16, 1), np.array([1.0, 4.0, 16.0]), WORK)
    assert waits is not None
    assert waits[0] > waits[1] > waits[2] > 0


def test_nothing_waits_without_a_pipeline_or_with_equal_rows() -> None:
    assert uneven_delay(schedule_named("1f1b"), (1, 16, 1), np.ones(1), WORK) is None
    assert uneven_delay(schedule_named("1f1b"), (4, 16, 1), np.ones(1), Workload(seq_len=8192, global_batch=64)) is None
