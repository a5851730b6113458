"""FTPipe: workers with blocks that are not neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.schedules import SCHEDULES, Kind
from meshwright.schedules.ftpipe import FTPipe
from meshwright.schedules.optimizer_step import live_versions


def test_one_stage_per_worker_is_1f1b() -> None:
    assert SCHEDULES["ftpipe"].table(4, 8).entries() == SCHEDULES["1f1b"].table(4, 8).entries()


def test_depth_limits_what_is_in_flight() -> None:
    table = FTPipe(blocks=(0, 1, 0, 1)).table(2, 12, 2)
    change = np.where(table.kind == Kind.F, 1, -1)
    for stage in range(4):
        assert np.cumsum(change[table.stage == stage]).max() <= 4 - stage


@pytest.mark.parametrize(
    ("schedule", "p", "m", "v"),
    [(FTPipe(), 4, 16, 1), (FTPipe(), 4, 2, 1), (FTPipe(), 4, 24, 2), (FTPipe(blocks=(0, 1, 0, 2, 1)), 3, 8, 2)],
)
def test_a_worker_stashes_no_more_versions_than_its_deepest_stage_has_micro_batches(
    schedule: FTPipe, p: int, m: int, v: int
) -> None:
    made = schedule.updates(p, m, v)
    found = live_versions(made.table).tolist()
    declared = schedule.worker_weight_copies(p, m, v)
    assert all(one <= most for one, most in zip(found, declared, strict=True))
    if v == 1:
        assert tuple(found) == declared == SCHEDULES["pipedream"].worker_weight_copies(p, m)
    version, forward = made.table.version, made.table.kind == Kind.F
    assert version is not None
    assert (made.table.micro_batch - version)[forward].max() <= made.lag


@pytest.mark.parametrize(
    ("blocks", "v", "field", "fix"),
    [
        ((0, 1, 0), 1, "v", "v = 2"),
        ((0, 0, 2), 2, "blocks", "name each of 0 to 1 and no other"),
        ((0, 0), 2, "blocks", "name each of 0 to 1 and no other"),
    ],
)
def test_constraints(blocks: tuple[int, ...], v: int, field: str, fix: str) -> None:
    assert [(found.field, found.fix) for found in FTPipe(blocks=blocks).problems(2, 4, v)] == [(field, fix)]
