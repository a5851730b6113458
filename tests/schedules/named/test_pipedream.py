"""PipeDream and its descendants: versions of the weights."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from meshwright.schedules import SCHEDULES, Kind
from meshwright.schedules.named.pipedream import PipeDream
from meshwright.schedules.named.pipedream_2bw import PipeDream2BW


@given(p=st.integers(1, 8), m=st.integers(1, 20))
def test_versions_are_the_updates_made_before_each_forward(p: int, m: int) -> None:
    pipedream = PipeDream()
    table = pipedream.table(p, m)
    kept = pipedream.worker_weight_copies(p, m)
    for worker in range(p):
        updates, stashed, most = 0, {}, 0
        for task in range(table.first[worker], table.first[worker + 1]):
            unit = int(table.micro_batch[task])
            if table.kind[task] == Kind.F:
                stashed[unit] = updates
                assert updates == pipedream.weight_version(p, worker, unit)
                most = max(most, len(set(stashed.values()) | {updates}))
            else:
                del stashed[unit]
                updates += 1
        assert most <= kept[worker]


def test_staleness_of_the_first_and_the_last_of_four_workers() -> None:
    pipedream = PipeDream()
    assert pipedream.worker_weight_copies(4, 100) == (4, 3, 2, 1)
    assert [5 - pipedream.weight_version(4, worker, 5) for worker in (0, 3)] == [3, 0]
    assert pipedream.table(4, 6).entries()[0][:7] == ["F0.0", "F0.1", "F0.2", "F0.3", "B0.0", "F0.4", "B0.1"]
    assert not pipedream.exact_semantics


def test_two_versions_suffice_for_2bw() -> None:
    twice = PipeDream2BW()
    assert [twice.weight_version(4, unit) for unit in (0, 3, 4, 7, 8, 11, 12)] == [0, 0, 0, 0, 1, 1, 2]
    for p in range(1, 9):
        for m in range(p, 3 * p):
            # In flight with micro-batch i are at most the p - 1 before it.
            in_flight = [{twice.weight_version(m, j) for j in range(max(0, i - p + 1), i + 1)} for i in range(5 * m)]
            assert max(len(versions) for versions in in_flight) <= 2


def test_2bw_needs_as_many_micro_batches_as_workers() -> None:
    assert [found.fix for found in PipeDream2BW().problems(4, 3)] == ["m = 4"]


def test_flush_is_1f1b() -> None:
    flush = SCHEDULES["pipedream-flush"]
    assert flush.table(4, 8).entries() == SCHEDULES["1f1b"].table(4, 8).entries()
    assert flush.exact_semantics
    assert flush.worker_weight_copies(4, 8) == (1, 1, 1, 1)
