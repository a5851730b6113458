"""Steps in a terminal: every worker a line inside the width, numbers where they fit, one axis for all."""

from __future__ import annotations

from io import StringIO

import numpy as np
import pytest
from rich.console import Console

from meshwright.cli import main
from meshwright.report.picture import ticks, time_unit
from meshwright.report.timeline_text import TimelineText
from tests.report.pictures import plan_trace, unequal_picture


def printed(drawn: object, width: int = 100) -> list[str]:
    console = Console(file=StringIO(), width=width, no_color=True)
    console.print(drawn)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue().rstrip("\n").split("\n")


def test_a_short_step_names_every_micro_batch() -> None:
    lines = printed(TimelineText([unequal_picture("1f1b", 2, 4, transfer_s=0)], memory=False))
    first = lines[0].partition("|")[2]
    assert [letter for letter in first if letter.isdigit()] == list("01021323")
    assert lines[2].split() == ["0", "50", "100", "150", "200", "250", "300", "350", "ms"]
    assert lines[3] == "numbers are micro-batches; - forward, = backward"


def test_a_schedule_of_halves_says_what_its_numbers_count() -> None:
    lines = printed(TimelineText([unequal_picture("chimera-halving", 4, 2, transfer_s=0)], memory=False), 200)
    assert any(line.startswith("numbers are parts of micro-batches, 2 of each") for line in lines)


def test_fused_tasks_stand_side_by_side_in_their_time() -> None:
    picture = unequal_picture("dualpipe", 4, 8, transfer_s=0)
    drawn = TimelineText([picture], memory=False)
    lines = printed(drawn, 200)
    last = [len(line.rstrip()) - 3 for line in lines[:4]]
    ends = np.round(picture.timeline.worker_end_s * drawn.readable)
    assert last == pytest.approx(ends.tolist(), abs=1)


def test_a_long_step_is_drawn_whole_or_from_its_beginning() -> None:
    picture = unequal_picture("1f1b", 4, 256)
    assert not TimelineText([picture]).fits(100)
    whole, beginning = printed(TimelineText([picture], whole=True)), printed(TimelineText([picture], memory=False))
    assert any(line.startswith("each column shows") for line in whole)
    assert whole[0].rstrip().endswith("=")
    assert "are drawn" not in whole[-1]
    assert "are drawn" in beginning[-1]
    assert "0--" in beginning[0]
    assert max(map(len, whole + beginning)) <= 100


def test_steps_are_stacked_on_one_axis() -> None:
    short, long = unequal_picture("zb-h1", 4, 8, transfer_s=0), unequal_picture("gpipe", 4, 8, transfer_s=0)
    lines = printed(TimelineText([short, long], whole=True, memory=False), 80)
    assert lines[0] == "zb-h1, 4 x 8"
    assert lines[5] == "gpipe, 4 x 8"
    room = TimelineText([short, long]).room(80)
    assert len(lines[6].rstrip()) - 3 == room
    assert len(lines[1].rstrip()) - 3 == pytest.approx(short.end_s / long.end_s * room, abs=1)
    assert sum(line.endswith(" ms") for line in lines) == 1


def test_a_plan_shows_shares_phases_and_memory() -> None:
    page = "\n".join(printed(plan_trace(), 120))
    for word in ("% busy", "# data-parallel", "activations of stage", "Seconds of the step", "0: layers 0-", "GiB"):
        assert word in page
    assert max(map(len, page.split("\n"))) <= 120


@pytest.mark.parametrize("end", [1e-7, 0.013, 1.0, 33.0, 59.9, 1234.5])
def test_ticks_are_round_and_reach_the_end(end: float) -> None:
    found = ticks(end)
    step = found[1]
    assert found[0] == 0
    assert 2 <= len(found) <= 13
    assert end - step < found[-1] <= end * (1 + 1e-9)
    assert f"{step:.0e}"[0] in "125"
    assert time_unit(end)[0] <= max(end, 1e-6)


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ("chimera", "a and b are pipelines in opposite directions"),
        ("dualpipe", "a and b are pipelines in opposite directions"),
        ("interleaved", "a, b, ... are chunks"),
        ("1f1b", ""),
    ],
)
def test_the_legend_says_what_letters_are(schedule: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schedule", schedule, "--p", "4", "--m", "8"]) == 0
    drawn = " ".join(capsys.readouterr().out.split())
    assert (said in drawn) if said else ("a and b" not in drawn and "a, b" not in drawn)
