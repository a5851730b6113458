"""FTPipe: workers with blocks that are not neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.schedules import SCHEDULES, Kind, Times, schedule_named, simulate
from meshwright.schedules.named.ftpipe import FTPipe
from meshwright.schedules.optimizer_step import live_versions


def test_one_stage_per_worker_is_1f1b() -> None:
    assert SCHEDULES["ftpipe"].table(4, 8).entries() == SCHEDULES["1f1b"].table(4, 8).entries()


@pytest.mark.parametrize(("p", "v"), [(4, 1), (4, 2), (3, 3), (6, 5)])
def test_workers_without_blocks_of_their_own_hold_v_stages_each(p: int, v: int) -> None:
    schedule = SCHEDULES["ftpipe"]
    assert schedule.stages(p, v) == p * v
    assert np.bincount(schedule.table(p, 8, v).stage, minlength=p * v).tolist() == [16] * (p * v)


def test_depth_limits_what_is_in_flight() -> None:
    table = FTPipe(blocks="0_1_0_1").table(2, 12, 2)
    change = np.where(table.kind == Kind.F, 1, -1)
    for stage in range(4):
        assert np.cumsum(change[table.stage == stage]).max() <= 4 - stage


@pytest.mark.parametrize(
    ("schedule", "p", "m", "v"),
    [(FTPipe(), 4, 16, 1), (FTPipe(), 4, 2, 1), (FTPipe(), 4, 24, 2), (FTPipe(blocks="0_1_2_2_0_1"), 3, 8, 2)],
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
        ("0_1_1_0", 1, "v", "v = 2"),
        ("0_1_0", 1, "v", "v = 2"),
        ("0_0_2", 2, "blocks", "name each of 0 to 1 and no other"),
        ("0_0", 2, "blocks", "name each of 0 to 1 and no other"),
    ],
)
def test_constraints(blocks: str, v: int, field: str, fix: str) -> None:
    assert [(found.field, found.fix) for found in FTPipe(blocks=blocks).problems(2, 4, v)] == [(field, fix)]


def test_a_map_is_written_behind_the_name() -> None:
    assert schedule_named("ftpipe-0_1_1_0") == FTPipe(blocks="0_1_1_0")
    assert FTPipe(blocks="0_1_1_0").token == "ftpipe-0_1_1_0"
    with pytest.raises(InputError, match="no setting of ftpipe"):
        schedule_named("ftpipe-0_1_")
    with pytest.raises(InputError, match="numbers of workers from 0 on, joined by _"):
        FTPipe(blocks="0,1").table(2, 4, 1)


def test_an_uneven_chain_takes_less_time_with_blocks_that_are_not_neighbours() -> None:
    """Stages of 4, 4, 1, 1, 1 and 1 s: cut between neighbours, one of two workers has 8 s; by blocks, each has 6."""
    alone_s = [4.0, 4.0, 1.0, 1.0, 1.0, 1.0]

    def busiest_s(blocks: str) -> float:
        found = [0.0, 0.0]
        for worker, seconds in zip(blocks.split("_"), alone_s, strict=True):
            found[int(worker)] += seconds
        return max(found)

    assert min(busiest_s("_".join("0" * k + "1" * (6 - k))) for k in range(1, 6)) == 8
    assert busiest_s("0_1_0_0_1_1") == 6
    ends = {}
    for name, schedule, v in (("blocks", FTPipe(blocks="0_1_0_0_1_1"), 3), ("cut", SCHEDULES["1f1b"], 1)):
        placement = schedule.placement(2, v)
        held = np.zeros((2, v))
        for stage, seconds in enumerate(alone_s if v == 3 else (4.0, 8.0)):
            held[placement.worker[stage], placement.chunk[stage]] = seconds
        none = np.zeros_like(held)
        times = Times(forward_s=held, backward_s=2 * held, transfer_s=none, weight_s=held, recompute_s=none)
        ends[name] = simulate(schedule.table(2, 64, v), times).makespan_s
    assert ends["blocks"] < ends["cut"]


def test_workers_may_hold_different_numbers_of_stages() -> None:
    schedule = FTPipe(blocks="0_1_0_0_1")
    assert not schedule.problems(2, 4, 3)
    assert schedule.stages(2, 3) == 5
    table = schedule.table(2, 4, 3)
    assert np.bincount(table.worker).tolist() == [2 * 4 * 3, 2 * 4 * 2]
    assert schedule.worker_weight_copies(2, 8, 3) == (5, 4)
    assert schedule.boundaries(2, 3) == 3
