"""When each instruction of a step ran, or would run: the same columns for a real step and for a predicted one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwright.compiler.instructions import Instruction, Op, StepProgram


@dataclass(frozen=True, slots=True)
class TimedInstruction:
    """One instruction at work."""

    place: int
    """In the list of its mesh."""
    start_s: float
    end_s: float


Moments = tuple[tuple[TimedInstruction, ...], ...]
"""Of each mesh, in the order of its list."""


def from_start(moments: Sequence[Sequence[TimedInstruction]]) -> Moments:
    """The same moments counted from the first of them.

    Args:
        moments: of each mesh, on one clock.
    """
    begin = min((one.start_s for own in moments for one in own), default=0.0)
    return tuple(
        tuple(TimedInstruction(one.place, one.start_s - begin, one.end_s - begin) for one in own) for own in moments
    )


def end_s(moments: Moments) -> float:
    """When the last instruction ends.

    Args:
        moments: of each mesh.
    """
    return max((one.end_s for own in moments for one in own), default=0.0)


def replay(program: StepProgram, run_s: Sequence[Mapping[str, float]], hop_s: float, bytes_per_s: float) -> Moments:
    """When every instruction runs if executables take these seconds: each as soon as its mesh is free and, of RECV, the
    message has arrived, hop + bytes / speed after its SEND began.

    Args:
        program: instruction lists.
        run_s: seconds of each executable, by mesh.
        hop_s: that a message takes whatever its size.
        bytes_per_s: of messages.
    """
    clock = [0.0] * program.meshes
    place = [0] * program.meshes
    found: list[list[TimedInstruction]] = [[] for _ in range(program.meshes)]
    arriving: dict[tuple[int, int], deque[float]] = {}
    posted: set[int] = set()
    """Meshes that have sent their part of the ALLREDUCE they stand at."""
    moved = True
    while moved:
        moved = False
        for mesh, instructions in enumerate(program.lists):
            while place[mesh] < len(instructions):
                one = instructions[place[mesh]]
                end = _end(program, mesh, one, clock[mesh], run_s, arriving, posted, hop_s, bytes_per_s)
                if end is None:
                    break
                found[mesh].append(TimedInstruction(place[mesh], clock[mesh], end))
                clock[mesh] = end
                place[mesh] += 1
                moved = True
    return tuple(tuple(own) for own in found)


def _end(
    program: StepProgram, mesh: int, one: Instruction, now_s: float, run_s: Sequence[Mapping[str, float]],
    arriving: dict[tuple[int, int], deque[float]], posted: set[int], hop_s: float, bytes_per_s: float,
) -> float | None:  # fmt: skip
    if one.op is Op.RUN:
        return now_s + run_s[mesh][one.executable or ""]
    size = sum(program.buffers[buffer].bytes for buffer in one.reads)
    if one.op is not Op.ALLREDUCE or mesh not in posted:
        for target in one.targets(mesh):
            arriving.setdefault((mesh, target), deque()).append(now_s + hop_s + size / bytes_per_s)
    posted.add(mesh)
    channels = [arriving.get((source, mesh)) for source in one.sources(mesh)]
    if not all(channels):
        return None
    posted.discard(mesh)
    return max([now_s, *(channel.popleft() for channel in channels if channel)])
