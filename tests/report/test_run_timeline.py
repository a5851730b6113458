"""A step that ran beside its prediction, as text."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.report.run_timeline import run_timeline


@dataclass
class Line:
    op: str
    label: str


@dataclass
class Lists:
    lists: list[list[Line]]


@dataclass
class At:
    place: int
    start_s: float
    end_s: float


def test_both_steps_are_drawn_on_one_axis() -> None:
    program = Lists(
        [
            [Line("RUN", "F0.0"), Line("SEND", "SEND_F0.0"), Line("RUN", "update0")],
            [Line("RECV", "RECV_F0.0"), Line("RUN", "F1.0"), Line("RUN", "B1.0")],
        ]
    )
    quick = [
        [At(0, 0.0, 0.1), At(1, 0.1, 0.1), At(2, 0.2, 0.25)],
        [At(0, 0.0, 0.1), At(1, 0.1, 0.15), At(2, 0.15, 0.2)],
    ]
    slow = [[At(one.place, 2 * one.start_s, 2 * one.end_s) for one in own] for own in quick]
    drawn = run_timeline(program, {"predicted": (0.25, quick), "measured": (0.5, slow)}, width=24)
    assert drawn.splitlines() == [
        "predicted: 250 ms",
        "0 |----    oo",
        "1 |    --==",
        "measured: 500 ms",
        "0 |--------        oooo",
        "1 |        ----====",
        "   0   100 200 300 400 500 ms",
        "each column shows what runs in its middle; - forward, = backward, o update",
    ]
