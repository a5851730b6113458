"""Pipelines beside each other: each runs as it does alone."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.schedules import SCHEDULES, Times, simulate
from meshwright.schedules.beside import side_by_side


@pytest.mark.parametrize(
    ("one", "other"),
    [("1f1b", "1f1b"), ("interleaved", "gpipe"), ("chimera", "zb-h1"), ("bamboo", "seq1f1b")],
)
def test_each_ends_when_it_does_alone(one: str, other: str) -> None:
    alone, parts = [], []
    for name, p, m in ((one, 4, 8), (other, 2, 6)):
        schedule = SCHEDULES[name]
        v = 2 if schedule.problems(p, m, 1) else 1
        table = schedule.table(p, m, v)
        rng = np.random.default_rng(len(parts))
        forward, backward = rng.uniform(1, 2, (table.p, table.v)), rng.uniform(2, 4, (table.p, table.v))
        times = Times(
            forward_s=forward,
            backward_s=backward,
            transfer_s=np.full(forward.shape, 0.1),
            weight_s=backward / 3,
            recompute_s=forward / 2,
        )
        parts.append((table, times))
        alone.append(simulate(table, times))
    tables = [table for table, _ in parts]
    both = side_by_side(tables)
    chunks = max(table.v for table in tables)

    def stacked(name: str) -> np.ndarray:
        columns = [getattr(times, name) for _, times in parts]
        return np.concatenate([np.pad(c, ((0, 0), (0, chunks - c.shape[1]))) for c in columns])

    names = ("forward_s", "backward_s", "transfer_s", "weight_s", "recompute_s")
    found = simulate(both, Times(**{name: stacked(name) for name in names}))
    assert both.tasks == sum(table.tasks for table in tables)
    assert found.start_s == pytest.approx(np.concatenate([timeline.start_s for timeline in alone]))
    assert found.worker_end_s == pytest.approx(np.concatenate([timeline.worker_end_s for timeline in alone]))
    assert len(found.transfers().start_s) == sum(len(timeline.transfers().start_s) for timeline in alone)


def test_one_stays_as_it_is() -> None:
    table = SCHEDULES["1f1b"].table(3, 4)
    assert side_by_side([table]) is table
