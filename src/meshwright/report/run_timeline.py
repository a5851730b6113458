"""A step that ran beside the same step as predicted, as text: a line for each mesh, both on one time axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from meshwright.report.picture import ticks, time_unit
from meshwright.report.run_trace import Lists, TimedTask, TracedInstruction
from meshwright.units import seconds

FILLS = {"F": "-", "B": "=", "I": "=", "W": "~", "R": "+", "update": "o"}
"""What a RUN is drawn as, by the letters its label begins with."""
OTHER = "*"
WORDS = {"-": "forward", "=": "backward", "~": "weight gradient", "+": "recompute", "o": "update", OTHER: "other"}
LABEL = 2


def run_timeline(
    program: Lists, steps: Mapping[str, tuple[float, Sequence[Sequence[TimedTask]]]], *, width: int = 100
) -> str:
    """The steps one under the other; each column shows what runs in its middle.

    Args:
        program: what ran.
        steps: seconds of the step, and when each instruction of each mesh runs, by what the step is called.
        width: columns.
    """
    room = width - LABEL - len(str(len(program.lists))) - 1
    end = max((one.end_s for _, moments in steps.values() for own in moments for one in own), default=0.0) or 1.0
    lines, seen = [], set()
    for name, (step_s, moments) in steps.items():
        lines.append(f"{name}: {seconds(step_s)}")
        for mesh, own in enumerate(moments):
            drawn = "".join(_cells(program.lists[mesh], own, end, room))
            seen |= set(drawn)
            lines.append(f"{mesh} |{drawn.rstrip()}")
    lines.append(" " * (LABEL + 1) + _axis(end, room))
    words = ", ".join(f"{mark} {word}" for mark, word in WORDS.items() if mark in seen)
    return "\n".join([*lines, f"each column shows what runs in its middle; {words}"])


def _cells(
    instructions: Sequence[TracedInstruction], moments: Sequence[TimedTask], end_s: float, room: int
) -> Iterator[str]:
    """The mark of each column of a mesh."""
    runs = [one for one in moments if str(instructions[one.place].op) == "RUN"]
    at = 0
    for column in range(room):
        middle_s = (column + 0.5) / room * end_s
        while at < len(runs) and runs[at].end_s <= middle_s:
            at += 1
        working = at < len(runs) and runs[at].start_s <= middle_s
        yield _fill(instructions[runs[at].place].label) if working else " "


def _fill(label: str) -> str:
    kind = label.rstrip("+0123456789.")
    return FILLS.get(kind, OTHER)


def _axis(end_s: float, room: int) -> str:
    unit_s, unit = time_unit(end_s)
    line = ""
    for tick in ticks(end_s / unit_s, most=6):
        line = line.ljust(int(tick * unit_s / end_s * room)) + f"{tick:g}"
    return f"{line} {unit}"
