"""A schedule table is checked when it is built, and says what is wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.schedules import SCHEDULES, Kind, Placement, ScheduleTable, Times, simulate
from meshwright.schedules.table import _places_all


def written(orders: list[str], placement: Placement, micro_batches: tuple[int, ...] = (2,)) -> ScheduleTable:
    """A table from lists like `F0.1`: letter, virtual stage, micro-batch."""
    tasks = [(worker, entry) for worker, order in enumerate(orders) for entry in order.split()]
    return ScheduleTable(
        placement=placement,
        micro_batches=micro_batches,
        worker=np.array([worker for worker, _ in tasks]),
        kind=np.array([int(Kind[entry[0]]) for _, entry in tasks]),
        stage=np.array([int(entry[1:].split(".")[0]) for _, entry in tasks]),
        micro_batch=np.array([int(entry.split(".")[1]) for _, entry in tasks]),
    )


def test_placements() -> None:
    loop = Placement.loop(3, 2)
    assert loop.worker.tolist() == [0, 1, 2, 0, 1, 2]
    assert loop.chunk.tolist() == [0, 0, 0, 1, 1, 1]
    assert loop.following.tolist() == [1, 2, 3, 4, 5, -1]
    v_shape = Placement.of_chains([[0, 1, 1, 0]])
    assert (v_shape.p, v_shape.v, v_shape.chunk.tolist()) == (2, 2, [0, 0, 1, 1])
    both_ways = Placement.of_chains([[0, 1], [1, 0]])
    assert both_ways.following.tolist() == [1, -1, 3, -1]
    assert both_ways.preceding.tolist() == [-1, 0, -1, 2]
    assert both_ways.chunk.tolist() == [0, 0, 1, 1]


def test_tasks_of_any_worker_order_are_sorted_by_worker() -> None:
    table = SCHEDULES["1f1b"].table(2, 2)
    mixed = np.argsort(table.order, kind="stable")
    columns = {name: getattr(table, name)[mixed] for name in ("worker", "kind", "stage", "micro_batch")}
    again = ScheduleTable(placement=table.placement, micro_batches=(2,), **columns)
    assert again.entries() == table.entries()


def test_levels_are_topological() -> None:
    table = SCHEDULES["interleaved"].table(4, 8, 2)
    for column in table.needs.T:
        known = column >= 0
        assert (table.level[column[known]] < table.level[known]).all()
    same = table.worker[1:] == table.worker[:-1]
    assert (table.level[1:][same] > table.level[:-1][same]).all()


@pytest.mark.parametrize(
    ("orders", "says"),
    [
        (["F0.0 F0.1 B0.0", "F1.0 B1.0 F1.1 B1.1"], "stage 0, micro-batch 1 has no backward"),
        (["F0.0 B0.0 B0.1", "F1.0 B1.0 F1.1 B1.1"], "stage 0, micro-batch 1 has no forward"),
        (["F0.0 F0.1 B0.0 B0.1 I0.1", "F1.0 B1.0 F1.1 B1.1"], "a contradictory backward"),
        (["F0.0 F0.1 B0.0 I0.1", "F1.0 B1.0 F1.1 B1.1"], "a contradictory backward"),
        (["F0.0 F0.1 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1 B1.1"], "1 tasks are listed twice"),
        (["F0.0 B0.1 F0.1 B0.0", "F1.0 B1.0 F1.1 B1.1"], "runs B0.1 before its input F0.1"),
        (["F0.0 B0.0 F0.1 B0.1", "F1.1 B1.1 F1.0 B1.0"], "wait for each other in a circle"),
        (["F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1 B0.1"], "stage 0 on worker 1"),
        (["F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1 B1.2"], "micro_batch counts from 0 to 1"),
        (["F0.0 F0.1 B0.0 B0.1", "F1.0 B1.0 F1.1 B7.1"], "stage counts from 0 to 1"),
    ],
)
def test_wrong_tables_are_refused(orders: list[str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        written(orders, Placement.loop(2, 1))


def test_all_problems_come_together() -> None:
    with pytest.raises(InputError) as caught:
        written(["F0.0 B0.0", "F1.0 F1.0 B1.0 F1.1 B1.1"], Placement.loop(2, 1))
    assert len(caught.value.problems) == 3


def test_empty_columns_and_wrong_chains_are_refused() -> None:
    empty = np.zeros(0, int)
    with pytest.raises(InputError, match="at least one task"):
        ScheduleTable(
            placement=Placement.loop(1, 1), micro_batches=(1,), worker=empty, kind=empty, stage=empty, micro_batch=empty
        )
    with pytest.raises(InputError, match="for 1 chains"):
        written(["F0.0 B0.0"], Placement.loop(1, 1), micro_batches=(1, 1))


@pytest.mark.parametrize(
    ("times", "says"),
    [
        (Times(forward_s=np.ones((3, 1)), backward_s=np.ones((3, 1))), r"forward_s has shape \(3, 1\)"),
        (Times(forward_s=np.ones((2, 1)), backward_s=-np.ones((2, 1))), "backward_s has values that are negative"),
        (Times(forward_s=np.ones((2, 1)), backward_s=np.ones((2, 1)), transfer_s=np.nan), "transfer_s has values"),
        (Times(forward_s=np.ones((2, 1)), backward_s=np.ones((2, 1)), transfer_s=np.ones(5)), "transfer_s has shape"),
        (Times(forward_s=np.ones((4, 2, 1)), backward_s=np.ones((2, 1))), "4 sets of durations for one timeline"),
    ],
)
def test_wrong_times_are_refused(times: Times, says: str) -> None:
    with pytest.raises(InputError, match=says):
        simulate(SCHEDULES["1f1b"].table(2, 2), times)


def test_split_backward_and_recomputation_need_their_times() -> None:
    split = written(["F0.0 R0.0 I0.0 W0.0"], Placement.loop(1, 1), (1,))
    with pytest.raises(InputError) as caught:
        simulate(split, Times(forward_s=np.ones((1, 1)), backward_s=np.ones((1, 1))))
    assert [problem.field for problem in caught.value.problems] == ["weight_s", "recompute_s"]
    timeline = simulate(split, Times.equal(1, forward_s=1, backward_s=3, weight_s=1, recompute_s=1))
    assert timeline.end_s.tolist() == [1, 2, 4, 5]


def test_transfers_are_latency_between_workers_and_free_within_one() -> None:
    table = written(["F0.0 F3.0 B3.0 B0.0", "F1.0 F2.0 B2.0 B1.0"], Placement.of_chains([[0, 1, 1, 0]]), (1,))
    by_boundary = Times(
        forward_s=np.ones((2, 2)), backward_s=np.ones((2, 2)), transfer_s=np.array([10.0, 100.0, 1000.0])
    )
    assert simulate(table, by_boundary).makespan_s == 8 + 2 * (10 + 1000)


def test_one_f_one_b_pays_its_transfers_in_the_steady_phase() -> None:
    """Each micro-batch waits for nearly two transfers; interleaving hides them behind its longer warm-up."""
    slow = {
        name: simulate(SCHEDULES[name].table(8, 256, v), Times.equal(8, v, transfer_s=0.1)).makespan_s
        for name, v in (("1f1b", 1), ("interleaved", 2))
    }
    assert slow["1f1b"] > (256 + 7) * 3 + 1.6 * 0.1 * 256
    assert slow["interleaved"] < (256 + 3.5) * 3 + 5


def test_a_table_is_read_as_it_was_written_but_not_with_a_chain_of_nobody() -> None:
    table = SCHEDULES["gpipe"].table(2, 2)
    data = table.to_dict()
    assert ScheduleTable.from_dict(data).entries() == table.entries() == data["orders"]
    assert table.entries()[0][:2] == ["F0.0", "F0.1"]
    with pytest.raises(InputError, match="chains"):
        ScheduleTable.from_dict({**data, "chains": [[0, 1], []]})


@pytest.mark.parametrize("versions", [None, [0] * 4])
def test_versions_are_read_as_they_were_written(versions: list[int] | None) -> None:
    """A first version that is stated, too."""
    plain = written(["F0.0 F0.1 B0.0 B0.1"], Placement.of_chains([[0]]))
    table = replace(plain, version=None if versions is None else np.array(versions))
    back = ScheduleTable.from_dict(table.to_dict())
    assert (None if back.version is None else back.version.tolist()) == versions
    assert back.entries() == table.entries()


@pytest.mark.parametrize(
    ("chains", "whole"),
    [
        ([[0, 1, 2]], True),
        ([[0, 1], [1, 0]], True),
        (((0,), (1,)), True),
        ([[0, 2]], False),
        ([[1, 2]], False),
        ([[0, 1], []], False),
        ([], False),
        ([[]], False),
        ([[False, True]], False),
        ([[0, True]], False),
        ([[0, 1.0]], False),
        ([0, 1], False),
        ("01", False),
        (None, False),
    ],
)
def test_chains_are_lists_of_whole_numbers_that_visit_every_worker(chains: object, whole: bool) -> None:
    assert _places_all(chains) == whole
