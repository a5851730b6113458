"""When each instruction of a step ran, or would run: the same columns for a real step and for a predicted one."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meshwright.compiler.instructions import Instruction, Op, StepProgram


@dataclass(frozen=True, slots=True)
class TimedInstruction:
    """One instruction at work."""

    place: int
    """Place in the list of its mesh."""
    start_s: float
    end_s: float


Moments = tuple[tuple[TimedInstruction, ...], ...]
"""Timed instructions of each mesh, in the order of its list."""


def from_start(moments: Sequence[Sequence[TimedInstruction]]) -> Moments:
    """The same moments counted from the first of them.

    Args:
        moments: the moments of each mesh, on one clock.
    """
    begin = min((one.start_s for own in moments for one in own), default=0.0)
    return tuple(
        tuple(TimedInstruction(one.place, one.start_s - begin, one.end_s - begin) for one in own) for own in moments
    )


def end_s(moments: Moments) -> float:
    """When the last instruction ends.

    Args:
        moments: the moments of each mesh.
    """
    return max((one.end_s for own in moments for one in own), default=0.0)


def replay_paced(program: StepProgram, paces: Sequence[Sequence[float]]) -> Moments:
    """When every instruction runs if it takes these seconds, and messages arrive so many after their SEND.

    Args:
        program: instruction lists.
        paces: seconds of each instruction, by mesh.
    """
    numbered = [{str(place): one_s for place, one_s in enumerate(own)} for own in paces]
    lists = tuple(
        tuple(replace(one, executable=str(place)) if one.op is Op.RUN else one for place, one in enumerate(own))
        for own in program.lists
    )
    return _replayed(replace(program, lists=lists), numbered, _PacedMail(program, paces))


def replay(program: StepProgram, run_s: Sequence[Mapping[str, float]], hop_s: float, bytes_per_s: float) -> Moments:
    """When every instruction runs if executables take these seconds: each as soon as its mesh is free and, of RECV, the
    message has arrived, hop + bytes / speed after its SEND began.

    Args:
        program: instruction lists.
        run_s: seconds of each executable, by mesh.
        hop_s: the hop seconds that a message takes whatever its size.
        bytes_per_s: the bytes per second of messages.
    """
    return _replayed(program, run_s, _Mail(program, hop_s, bytes_per_s))


def _replayed(program: StepProgram, run_s: Sequence[Mapping[str, float]], mail: _Mail) -> Moments:
    clock = [0.0] * program.meshes
    place = [0] * program.meshes
    found: list[list[TimedInstruction]] = [[] for _ in range(program.meshes)]
    moved = True
    while moved:
        moved = False
        for mesh, instructions in enumerate(program.lists):
            while place[mesh] < len(instructions):
                one, now = instructions[place[mesh]], clock[mesh]
                end = (
                    now + run_s[mesh][one.executable or ""]
                    if one.op is Op.RUN
                    else mail.end_s(mesh, place[mesh], one, now)
                )
                if end is None:
                    break
                found[mesh].append(TimedInstruction(place[mesh], now, end))
                clock[mesh] = end
                place[mesh] += 1
                moved = True
    return tuple(tuple(own) for own in found)


class _Mail:
    """Messages between meshes: a constant time each, and their bytes over a speed."""

    def __init__(self, program: StepProgram, hop_s: float, bytes_per_s: float) -> None:
        self.program, self.hop_s, self.bytes_per_s = program, hop_s, bytes_per_s
        self.arriving: dict[tuple[int, int], deque[float]] = {}
        self.posted: set[int] = set()
        """Meshes that have sent their part of the ALLREDUCE that they wait in."""

    def seconds(self, mesh: int, place: int, one: Instruction) -> float:
        """Seconds of a message from its sending to its arrival."""
        size = sum(self.program.buffers[buffer].bytes for buffer in one.reads)
        return self.hop_s + size / self.bytes_per_s

    def end_s(self, mesh: int, place: int, one: Instruction, now_s: float) -> float | None:
        """When a mesh has done an instruction that computes nothing; None while a message is missing."""
        if one.op is not Op.ALLREDUCE or mesh not in self.posted:
            for target in one.targets(mesh):
                arrival = now_s + self.seconds(mesh, place, one)
                self.arriving.setdefault((mesh, target), deque()).append(arrival)
        self.posted.add(mesh)
        channels = [self.arriving.get((source, mesh)) for source in one.sources(mesh)]
        if not all(channels):
            return None
        self.posted.discard(mesh)
        return max([now_s, *(channel.popleft() for channel in channels if channel)])


class _PacedMail(_Mail):
    """Messages whose seconds are given one by one."""

    def __init__(self, program: StepProgram, paces: Sequence[Sequence[float]]) -> None:
        super().__init__(program, 0.0, float("inf"))
        self.paces = paces

    def seconds(self, mesh: int, place: int, one: Instruction) -> float:
        """Seconds of a message, as given."""
        return self.paces[mesh][place]
