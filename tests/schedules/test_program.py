"""Tables compiled for the simulator: all their tasks, in fewer nodes where most of a step repeats itself."""

from __future__ import annotations

import pytest

from meshwright.schedules import SCHEDULES
from meshwright.schedules.events import Events
from meshwright.schedules.program import Program, compile_events

NAMES = ["1f1b", "interleaved", "zb-h1", "zb-v", "gpipe", "dualpipev"]


def compiled(name: str, m: int) -> tuple[Program, int]:
    """The program of a table on four workers, and its nodes."""
    v = 2 if any(one.field == "v" for one in SCHEDULES[name].problems(4, 64, 1)) else 1
    events = Events(table=SCHEDULES[name].table(4, m, v), serial=False)
    return compile_events(events), events.count


@pytest.mark.parametrize("name", NAMES)
def test_segments_hold_every_node_of_a_table_once(name: str) -> None:
    for m in (8, 12, 64):
        program, nodes = compiled(name, m)
        assert sum(segment.nodes * segment.periods for segment in program.segments) == nodes
        starts = [segment.start for segment in program.segments]
        assert [0, *(segment.end for segment in program.segments)][: len(starts)] == starts
        assert program.segments[-1].end == nodes


@pytest.mark.parametrize("name", NAMES)
def test_a_step_of_many_micro_batches_is_hardly_more_work_than_one_of_few(name: str) -> None:
    few, many = (sum(segment.nodes for segment in compiled(name, m)[0].segments) for m in (128, 512))
    assert many <= 1.1 * few
    assert many < 0.5 * compiled(name, 512)[1]
