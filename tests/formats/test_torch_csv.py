"""The CSV of PyTorch's pipeline schedules: written, read back, and refused cell by cell."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.formats.torch_csv import (
    COMPUTE,
    KINDS,
    MAX_PROBLEMS,
    NONE,
    OF_A_STAGE,
    Actions,
    parse_actions,
    read_actions,
    with_waits,
    write_actions,
)

COLUMNS = ("rank", "kind", "stage", "micro_batch", "joined")


def columns(actions: Actions) -> list[list[object]]:
    return [getattr(actions, name).tolist() for name in COLUMNS]


@st.composite
def some_actions(draw: st.DrawFn) -> Actions:
    rows = []
    for rank in range(draw(st.integers(1, 4))):
        for index in range(draw(st.integers(1, 6))):
            kind = draw(st.integers(0, len(KINDS) - 1))
            unit = NONE if KINDS[kind] in OF_A_STAGE else draw(st.integers(0, 999_999))
            rows.append((rank, kind, draw(st.integers(0, 999_999)), unit, index > 0 and draw(st.booleans())))
    table = np.array(rows, np.int32).T
    return Actions(rank=table[0], kind=table[1], stage=table[2], micro_batch=table[3], joined=table[4].astype(bool))


@given(some_actions())
def test_what_is_written_reads_back(actions: Actions) -> None:
    text = write_actions(actions)
    assert columns(parse_actions(text)) == columns(actions)
    assert actions.with_communication == any(KINDS[kind] not in COMPUTE for kind in actions.kind)
    assert len(text.splitlines()) == actions.ranks


def test_every_spelling_pytorch_writes_or_takes(tmp_path: Path) -> None:
    file = tmp_path / "schedule.csv"
    file.write_bytes(b"0UNSHARD,0F0,0SEND_F0,,0RECV_B0,0B0,0REDUCE_GRAD,0RESHARD\r\n\r\n"[:-2])
    actions = read_actions(file)
    assert [KINDS[kind] for kind in actions.kind] == [
        "UNSHARD",
        "F",
        "SEND_F",
        "RECV_B",
        "B",
        "REDUCE_GRAD",
        "RESHARD",
    ]
    joined = parse_actions(" 0F0 ,(3F1; 4B0)OVERLAP_F_B,(5F2;6I1;7W0)OVERLAP_F_B\n1F0\n\n")
    assert joined.joined.tolist() == [False, False, True, False, True, True, False]
    assert joined.stage.tolist() == [0, 3, 4, 5, 6, 7, 1]
    assert write_actions(joined) == "0F0,(3F1;4B0)OVERLAP_F_B,(5F2;6I1;7W0)OVERLAP_F_B\n1F0\n"


@pytest.mark.parametrize(
    ("cell", "rule"),
    [
        ("0X1", "one of F, B, I, W, SEND_F"),
        ("F0", "a virtual stage"),
        ("0F", "must name it"),
        ("0F1x", "a virtual stage"),
        ("0f1", "one of F"),
        ("٠F١", "a virtual stage"),
        ("0UNSHARD3", "names none"),
        ("0F1000000", "below 1,000,000"),
        ("0F12345678901", "a virtual stage"),
        ("(0F1)OVERLAP_F_B", "takes two"),
        ("(0F1;1B0)OVERLAP", "written (one;other)OVERLAP_F_B"),
        ("(0F1;1B0", "written (one;other)OVERLAP_F_B"),
        ("(0F1;)OVERLAP_F_B", "a virtual stage"),
        ("9" * 500, "a virtual stage"),
    ],
)
def test_a_wrong_cell_is_told_with_its_place_and_rule(cell: str, rule: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_actions(f"0F0,0B0\n1F0,{cell},1B0\n", "mine.csv")
    [problem] = caught.value.problems
    assert problem.what.startswith("mine.csv: line 2, column 2 is ")
    assert len(problem.what) < 120
    assert rule in problem.why
    assert "2F0" in problem.fix


def test_all_wrong_cells_at_once_up_to_a_limit() -> None:
    with pytest.raises(InputError) as caught:
        parse_actions("0F0,0Q0\n\n2F0\n3Z0,3B0\n")
    assert [problem.what.split(": ")[1] for problem in caught.value.problems] == [
        "line 1, column 2 is '0Q0'",
        "line 2 holds no action",
        "line 4, column 1 is '3Z0'",
    ]
    with pytest.raises(InputError) as caught:
        parse_actions(",".join(["x"] * 100))
    assert [len(caught.value.problems), caught.value.problems[-1].what] == [MAX_PROBLEMS + 1, "and 80 more"]


@pytest.mark.parametrize("content", [b"", b"\n\n", b"\xff\xfe0F0", b'0F0,"0B0\n'])
def test_what_is_no_csv_file_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "schedule.csv").write_bytes(content)
    with pytest.raises(InputError):
        read_actions(tmp_path / "schedule.csv")


def test_waits_of_newer_pytorch_are_written_and_dropped_again() -> None:
    """A send of activations ends behind its own backward, one of gradients at the end, a reduction at once."""
    text = "0F0,0SEND_F0,0RECV_B0,0B0,0REDUCE_GRAD\n1RECV_F0,(1F0;1B0)OVERLAP_F_B,1SEND_B0,1REDUCE_GRAD\n"
    actions = parse_actions(text)
    waiting = write_actions(with_waits(actions))
    assert waiting.splitlines() == [
        "0F0,0SEND_F0,0RECV_B0,0B0,0WAIT_SEND_F0,0REDUCE_GRAD,0WAIT_REDUCE_GRAD",
        "1RECV_F0,(1F0;1B0)OVERLAP_F_B,1SEND_B0,1REDUCE_GRAD,1WAIT_REDUCE_GRAD,1WAIT_SEND_B0",
    ]
    assert columns(parse_actions(waiting)) == columns(actions)
