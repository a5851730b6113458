"""Tables handed to PyTorch and taken back; what it cannot run is refused."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from meshwright.errors import InputError, UnsupportedError
from meshwright.formats.torch_csv import KINDS, Actions, parse_actions, write_actions
from meshwright.schedules import SCHEDULES, Kind, Placement, ScheduleTable, with_communication
from meshwright.schedules.torch_actions import TORCH_KIND, from_actions, to_actions
from tests.schedules.cases import ONE_BY_ONE, Case, name


@pytest.mark.parametrize(("case", "shape"), ONE_BY_ONE, ids=name)
def test_a_table_comes_back_as_it_went_or_is_refused(case: Case, shape: tuple[int, int, int]) -> None:
    table = case.schedule.table(*shape)
    if table.placement.chains > 1 or table.segments > 1 or set(np.unique(table.kind)) - {*TORCH_KIND, Kind.R}:
        with pytest.raises(UnsupportedError):
            to_actions(table)
        return
    back = from_actions(parse_actions(write_actions(to_actions(table))))
    assert back.entries() == [[task for task in order if task[0] != "R"] for order in table.entries()]
    assert back.placement.worker.tolist() == table.placement.worker.tolist()
    assert back.micro_batches == table.micro_batches


@pytest.mark.parametrize(
    ("schedule", "v"),
    [("gpipe", 1), ("1f1b", 1), ("zb-h2", 1), ("interleaved", 2), ("zb-v", 2), ("dualpipev", 2), ("hanayo", 4)],
)
def test_with_communication_all_ranks_list_their_messages_in_one_order(schedule: str, v: int) -> None:
    table = SCHEDULES[schedule].table(4, 8, v)
    actions = to_actions(with_communication(table))
    back = from_actions(parse_actions(write_actions(actions)))
    computed = back.kind <= Kind.W
    assert back.kind[computed].tolist() == table.kind.tolist()
    assert back.stage[computed].tolist() == table.stage.tolist()
    assert (back.kind == Kind.REDUCE).sum() == table.placement.stages
    assert write_actions(to_actions(back)) == write_actions(actions)
    assert blocking_messages_pass(actions)


def blocking_messages_pass(actions: Actions) -> bool:
    """Whether all ranks reach their end where a send waits for its receive, and a receive for its send."""
    sender = {"SEND_F": 0, "RECV_F": -1, "SEND_B": 0, "RECV_B": 1}
    left: list[list[tuple[str, int, int]]] = [[] for _ in range(actions.ranks)]
    columns = (actions.rank, actions.kind, actions.stage, actions.micro_batch)
    for rank, kind, stage, unit in zip(*(column.tolist() for column in columns), strict=True):
        if KINDS[kind] in sender:
            left[rank].append((KINDS[kind][-1], stage + sender[KINDS[kind]], unit))
    while any(left):
        heads = Counter(line[0] for line in left if line)
        passing = {message for message, ends in heads.items() if ends == 2}
        if not passing:
            return False
        left = [line[1:] if line and line[0] in passing else line for line in left]
    return True


def test_an_order_as_pytorch_writes_it() -> None:
    assert (
        write_actions(to_actions(SCHEDULES["1f1b"].table(2, 3))) == "0F0,0F1,0B0,0F2,0B1,0B2\n1F0,1B0,1F1,1B1,1F2,1B2\n"
    )
    text = write_actions(to_actions(SCHEDULES["dualpipev"].table(2, 4, 2)))
    assert "(0F3;3B1)OVERLAP_F_B" in text.splitlines()[0]


def test_recomputation_inside_a_backward_is_left_to_checkpointing() -> None:
    table = ScheduleTable(
        placement=Placement.loop(1, 1),
        micro_batches=(1,),
        worker=np.zeros(3, np.int32),
        kind=np.array([Kind.F, Kind.R, Kind.B]),
        stage=np.zeros(3, np.int32),
        micro_batch=np.zeros(3, np.int32),
    )
    assert write_actions(to_actions(table)) == "0F0,0B0\n"


@pytest.mark.parametrize(
    ("schedule", "what", "why"),
    [
        ("chimera", "2 chains of stages", "one chain"),
        ("seq1f1b", "2 segments", "whole sequences"),
    ],
)
def test_what_pytorch_cannot_run_is_refused(schedule: str, what: str, why: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        to_actions(SCHEDULES[schedule].table(4, 8))
    assert any(what in problem.what and why in problem.why for problem in caught.value.problems)


def test_recomputation_ahead_of_its_backward_is_refused() -> None:
    table = ScheduleTable(
        placement=Placement.loop(1, 1),
        micro_batches=(2,),
        worker=np.zeros(5, np.int32),
        kind=np.array([Kind.F, Kind.R, Kind.F, Kind.B, Kind.B]),
        stage=np.zeros(5, np.int32),
        micro_batch=np.array([0, 0, 1, 0, 1]),
    )
    with pytest.raises(UnsupportedError, match="1 tasks of kind R"):
        to_actions(table)


def test_losses_out_of_order_are_refused() -> None:
    with pytest.raises(UnsupportedError, match="forwards in the order 1, 0"):
        to_actions(from_actions(parse_actions("0F0,0F1,0B0,0B1\n1F1,1B1,1F0,1B0\n")))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("0F0,0B0\n0F1,0B1\n", "stage 0 is on ranks 0, 1"),
        ("0F0,0B0\n2F0,2B0\n", "stage 1 is missing, though stage 2 is there"),
        ("0F0,0B0,0F2,0B2\n", "micro-batch 1 is missing, though micro-batch 2 is there"),
        ("0F0,0B0\n999999F0\n", "stage 1 is missing"),
        ("".join(f"{n}F{n},{n}B{n}\n" for n in range(50)), "100 actions for 50 stages and 50 micro-batches"),
        ("0F0,0F1,0B0\n", "micro-batch 1 has no backward"),
        ("0B0,0F0\n", "runs B0.0 before its input"),
        ("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0\n", "wait for each other in a circle"),
        ("0F0,0F0,0B0\n", "listed twice"),
    ],
)
def test_what_is_no_schedule_is_refused(text: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        from_actions(parse_actions(text))
