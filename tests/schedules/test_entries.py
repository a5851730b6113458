"""Hand-written tables: read back as they were written, or refused with the fewest tasks that show what is wrong."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.schedules import SCHEDULES, Placement, ScheduleTable
from meshwright.schedules.columns import ALONG, TaskColumns
from tests.schedules.cases import CASES
from tests.schedules.drawn import Drawn, tables


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_schedule_is_read_back_as_it_was_written(case) -> None:
    table = case.schedule.table(*case.shapes[-1])
    for again in (
        ScheduleTable.from_entries(table.entries(), placement=table.placement, segments=table.segments),
        ScheduleTable.from_dict(table.to_dict()),
    ):
        assert again.entries() == table.entries()
        assert again.micro_batches == table.micro_batches
        assert (again.node == table.node).all()
        assert again.to_dict() == table.to_dict()


def test_chunks_form_a_loop_unless_placed() -> None:
    lists = SCHEDULES["interleaved"].table(2, 4, 2).entries()
    assert ScheduleTable.from_entries(lists).placement.worker.tolist() == [0, 1, 0, 1]


def refused(lists: list[str], placement: Placement | None = None, segments: int = 1) -> InputError:
    """The error that a table of these lists raises."""
    with pytest.raises(InputError) as caught:
        ScheduleTable.from_entries([order.split() for order in lists], placement=placement, segments=segments)
    for problem in caught.value.problems:
        assert problem.what
        assert problem.why
        assert problem.fix
    return caught.value


@pytest.mark.parametrize(
    ("lists", "says", "remedy"),
    [
        (["F0.0 F0.1 B0.0", "F0.0 B0.0 F0.1 B0.1"], "stage 0, micro-batch 1 has no backward", "on worker 0"),
        (["F0.0 F0.0 B0.0"], "1 tasks are listed twice, the first of them F0.0 on worker 0", "remove"),
        (["F0.0 I0.0"], "a contradictory backward (1 such): I0.0", "list the task once"),
        (["B0.0 F0.0"], "worker 0 runs B0.0 before its input F0.0", "move B0.0 after F0.0"),
        (
            ["F0.0 B0.0 F0.1 B0.1", "F0.1 B0.1 F0.0 B0.0"],
            "2 workers wait for each other in a circle: worker 0 needs B0.0 of worker 1 for B0.0;"
            " worker 1 needs F0.1 of worker 0 for F0.1",
            "on worker 1, move B0.0 before F0.1",
        ),
        (
            ["F0.0 SEND_F0.0 RECV_B0.0 B0.0", "RECV_F0.0 F0.0 B0.0"],
            "SEND_B0.0 on worker 1 is missing (1 such), the other end of RECV_B0.0 on worker 0",
            "list both ends",
        ),
        (
            ["F0.0 SEND_F0.0 B0.0", "RECV_F0.0 F0.0 B0.0"],
            "SEND_B0.0 on worker 1 is missing (1 such), and so is RECV_B0.0 on worker 0",
            "list both ends",
        ),
        (["F0.0 SEND_F0.0 B0.0"], "SEND_F0.0 on worker 0 has no other end", "remove it"),
        (
            [
                "F0.0 SEND_F0.0 F0.1 SEND_F0.1 RECV_B0.1 B0.1 RECV_B0.0 B0.0",
                "RECV_F0.0 F0.0 B0.0 SEND_B0.0 RECV_F0.1 F0.1 B0.1 SEND_B0.1",
            ],
            "from worker 1 to worker 0, SEND_B0.0 is sent before SEND_B0.1, but RECV_B0.1 is received before RECV_B0.0",
            "on worker 0, move RECV_B0.0 before RECV_B0.1",
        ),
        (
            ["UNSHARD0.0 F0.0 RESHARD0.0 B0.0"],
            "B0.0 on worker 0 needs weights that are not gathered (1 such), freed by RESHARD0.0",
            "after a UNSHARD",
        ),
        (["F0.0 B0.0 UNSHARD0.0"], "F0.0 on worker 0 needs weights that are not gathered", "after a UNSHARD"),
        (["UNSHARD0.0 UNSHARD0.1 F0.0 B0.0"], "UNSHARD0.1 on worker 0 brings weights that are gathered", "RESHARD"),
        (["UNSHARD0.0 F0.0 B0.0 RESHARD0.0 RESHARD0.1"], "RESHARD0.1 on worker 0 frees weights", "UNSHARD"),
        (["RELOAD_W0.0 F0.0 OFFLOAD_W0.0 B0.0"], "not on the device (1 such), freed by OFFLOAD_W0.0", "RELOAD_W"),
        (["UNSHARD0.1 F0.0 B0.0"], "UNSHARD0.1 on worker 0 is number 0 of its chunk", "call it UNSHARD0.0"),
        (["F0.0 OFFLOAD_A0.0 B0.0"], "OFFLOAD_A0.0 on worker 0 has no RELOAD_A of the same micro-batch", "RELOAD_A0.0"),
        (["F0.0 OFFLOAD_A0.0 B0.0 RELOAD_A0.0"], "runs B0.0 before its input RELOAD_A0.0", "move B0.0 after"),
        (["F0.0 B0.0 OPT0.0 F0.1 B0.1"], "B0.1 on worker 0 makes a gradient after OPT0.0", "move OPT0.0 after"),
        (["F0.0@1 B0.0@1 OPT0.0"], "F0.0@1 on worker 0 uses version 1 of weights that have seen 0 steps", "OPT0.0"),
        (["F0.0@0 F0.1@0 B0.0@0 OPT0.0 B0.1@1 OPT0.1"], "B0.1@1 on worker 0 differs from F0.1@0", "the forward used"),
        (["F0.0 B3.0"], "worker 0 runs chunk", "own chunks"),
        (["F0.0 b0.0"], "workers[0].order[1]: 'b0.0' is of unknown kind b", "B"),
        (["F0.0 B0"], "workers[0].order[1]: 'B0' is not a task", "F0.3"),
        (["F0.0s1 B0.0"], "'F0.0s1' names a segment", "F0.0"),
    ],
)
def test_wrong_tables_are_told_by_the_fewest_tasks(lists: list[str], says: str, remedy: str) -> None:
    placement = Placement.loop(1, 1) if lists == ["F0.0 B3.0"] else None
    error = refused(lists, placement)
    assert any(says in problem.what for problem in error.problems), error
    assert any(remedy in problem.fix for problem in error.problems), error


def test_what_uses_no_weights_runs_while_they_are_away() -> None:
    orders = (
        "RELOAD_W0.0 F0.0 OFFLOAD_W0.0 SEND_F0.0 RECV_B0.0 RELOAD_W0.1 B0.0 OFFLOAD_W0.1 REDUCE0.0",
        "RECV_F0.0 F0.0 B0.0 SEND_B0.0",
    )
    lists = [order.split() for order in orders]
    assert ScheduleTable.from_entries(lists).entries() == lists


def test_workers_are_numbered_without_gaps() -> None:
    with pytest.raises(InputError, match="worker 1 holds no stage"):
        ScheduleTable.from_entries([["F0.0", "B0.0"], [], ["F0.0", "B0.0"]], placement=Placement.of_chains([[0, 2]]))


def test_segments_must_be_named() -> None:
    assert "names no such segment" in str(refused(["F0.0 B0.0"], segments=2))
    assert "names no such segment" in str(refused(["F0.0s2 B0.0s0"], segments=2))


def test_unreadable_entries_come_together_and_not_endlessly() -> None:
    with pytest.raises(InputError) as caught:
        ScheduleTable.from_entries([["?"] * 100])
    assert len(caught.value.problems) == 9
    assert "92 more" in caught.value.problems[-1].what


@pytest.mark.parametrize(
    ("data", "field"),
    [
        ({}, "orders"),
        ({"orders": "F0.0"}, "orders"),
        ({"orders": [["F0.0", 3]]}, "orders"),
        ({"orders": [["F0.0", "B0.0"]], "chains": [[1]]}, "chains"),
        ({"orders": [["F0.0", "B0.0"]], "chains": [[]]}, "chains"),
        ({"orders": [["F0.0", "B0.0"]], "chains": [[True]]}, "chains"),
        ({"orders": [["F0.0", "B0.0"]], "segments": 0}, "segments"),
    ],
)
def test_data_of_another_shape_is_refused(data: dict[str, object], field: str) -> None:
    with pytest.raises(InputError) as caught:
        ScheduleTable.from_dict(data)
    assert [problem.field for problem in caught.value.problems] == [field]


@settings(max_examples=60, deadline=None)
@given(drawn=tables(), seed=st.integers(0, 2**16))
def test_no_circle_is_smaller_than_the_one_told(drawn: Drawn, seed: int) -> None:
    table = drawn.table()
    rng = np.random.default_rng(seed)
    columns = {name: getattr(table, name).copy() for name in ("kind", "stage", "micro_batch")}
    for _ in range(3):
        # Move one task somewhere else on its worker.
        worker = int(rng.integers(table.p))
        low, high = int(table.first[worker]), int(table.first[worker + 1])
        origin, target = rng.integers(low, high, 2)
        order = np.insert(np.delete(np.arange(table.tasks), origin), target, origin)
        columns = {name: column[order] for name, column in columns.items()}
    given_tasks = {
        "placement": table.placement,
        "micro_batches": table.micro_batches,
        "worker": table.worker,
        **columns,
    }
    tasks = TaskColumns(**given_tasks)
    local = (tasks.needs >= 0) & (tasks.worker[tasks.needs] == tasks.worker[:, None])
    assume(not (local & (tasks.needs >= np.arange(tasks.tasks)[:, None])).any())
    smallest = fewest_waits(tasks)
    if smallest is None:
        assert ScheduleTable(**given_tasks).tasks == table.tasks
        return
    with pytest.raises(InputError, match=f"{smallest} workers wait for each other in a circle"):
        ScheduleTable(**given_tasks)


def fewest_waits(tasks: TaskColumns) -> int | None:
    """Waits of the smallest circle, found from every task by breadth-first search; None if there is none."""
    follows: dict[int, list[tuple[int, int]]] = {task: [] for task in range(tasks.tasks)}
    for task in range(tasks.tasks):
        if task + 1 < tasks.tasks and tasks.worker[task + 1] == tasks.worker[task]:
            follows[task].append((task + 1, 0))
        if tasks.crosses[task]:
            follows[int(tasks.needs[task, ALONG])].append((task, 1))
    best = None
    for start in np.nonzero(tasks.crosses)[0].tolist():
        cost, queue = {start: 1}, deque([start])
        goal = int(tasks.needs[start, ALONG])
        while queue:
            at = queue.popleft()
            for after, wait in follows[at]:
                if after not in cost or cost[at] + wait < cost[after]:
                    cost[after] = cost[at] + wait
                    queue.append(after) if wait else queue.appendleft(after)
        if goal in cost and (best is None or cost[goal] < best):
            best = cost[goal]
    return best
