"""A step that ran beside the same step as predicted, in the trace-event format of Chrome and Perfetto."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

US_PER_S = 1e6
LANES = {"RUN": (0, "compute"), "SEND": (1, "send"), "RECV": (2, "receive")}
"""Thread of each kind of instruction; letting go of buffers takes no time and is not drawn."""


class TracedInstruction(Protocol):
    """What is drawn of an instruction."""

    @property
    def op(self) -> str:
        """RUN, SEND, RECV or FREE."""
        ...

    @property
    def label(self) -> str:
        """Name of the instruction."""
        ...


class TimedTask(Protocol):
    """When it ran."""

    @property
    def place(self) -> int:
        """Place in the list of its mesh."""
        ...

    @property
    def start_s(self) -> float:
        """Seconds from the start of the step to its start."""
        ...

    @property
    def end_s(self) -> float:
        """Seconds from the start of the step to its end."""
        ...


class Lists(Protocol):
    """Instruction lists."""

    @property
    def lists(self) -> Sequence[Sequence[TracedInstruction]]:
        """Instructions of each mesh."""
        ...


def run_trace(
    title: str, program: Lists, steps: Mapping[str, Sequence[Sequence[TimedTask]]], *, compress: bool
) -> bytes:
    """The trace file: a process for each mesh of each step, one under the other.

    Args:
        title: the title of the file.
        program: what ran.
        steps: moments of each mesh, by what the step is called: predicted, measured.
        compress: whether to compress it as gzip, with no date in it.
    """
    events = [
        event
        for number, (name, moments) in enumerate(steps.items())
        for event in _events(program, name, number * len(program.lists), moments)
    ]
    about = {"title": title, "step_s": {name: _end(moments) for name, moments in steps.items()}}
    body = json.dumps({"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}, separators=(",", ":"))
    return gzip.compress(body.encode(), mtime=0) if compress else body.encode()


def _end(moments: Sequence[Sequence[TimedTask]]) -> float:
    return max((one.end_s for own in moments for one in own), default=0.0)


def _events(
    program: Lists, name: str, first: int, moments: Sequence[Sequence[TimedTask]]
) -> Iterator[dict[str, object]]:
    for mesh, own in enumerate(moments):
        pid = first + mesh
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": f"{name}: mesh {mesh}"}}
        yield {"ph": "M", "pid": pid, "name": "process_sort_index", "args": {"sort_index": pid}}
        for tid, lane in LANES.values():
            yield {"ph": "M", "pid": pid, "tid": tid, "name": "thread_name", "args": {"name": lane}}
        for one in own:
            instruction = program.lists[mesh][one.place]
            if str(instruction.op) in LANES:
                yield {
                    "ph": "X",
                    "pid": pid,
                    "tid": LANES[str(instruction.op)][0],
                    "ts": round(one.start_s * US_PER_S, 3),
                    "dur": round((one.end_s - one.start_s) * US_PER_S, 3),
                    "name": instruction.label,
                    "cat": str(instruction.op),
                }
