"""Instruction lists checked before they run: messages meet, buffers exist while they are used, nothing is left over."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from meshwright.compiler.instructions import COMBINES, Instruction, Op, StepProgram
from meshwright.errors import InputError, Problem


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifiedLists:
    """What the check found out on its way."""

    peak_bytes: tuple[int, ...]
    """Most bytes of live buffers at once, per mesh and over all of its devices; replicated values count once, and those
    in host memory not at all."""
    messages: int
    message_bytes: int
    exact: bool = True
    """Whether the step is one update with the gradient of its batch at its weights."""


def verify_lists(program: StepProgram) -> VerifiedLists:
    """Walk through the lists as a runtime would, without computing.

    Args:
        program: the lists.

    Raises:
        InputError: a receive that no send answers or that gets other shapes, a collective that meets another one or
            whose group lacks a mesh, meshes that wait for each other, a buffer used before it is written or after it
            is freed, or buffers alive at the end that the step does not return.
    """
    return _Walk(program).done()


class _Walk:
    def __init__(self, program: StepProgram) -> None:
        self.program = program
        self.live: list[set[int]] = [set() for _ in program.lists]
        for feed in program.feeds:
            self.live[program.buffers[feed.buffer].mesh].add(feed.buffer)
        self.bytes = [self._device_bytes(own) for own in self.live]
        self.peak = list(self.bytes)
        self.channels: dict[tuple[int, int], deque[Instruction]] = defaultdict(deque)
        self.posted: set[int] = set()
        """Meshes that have sent their part of the ALLREDUCE they stand at."""
        self.messages = self.message_bytes = 0
        self.problems: list[Problem] = []

    def done(self) -> VerifiedLists:
        places = [0] * self.program.meshes
        moved = True
        while moved and not self.problems:
            moved = False
            for mesh, own in enumerate(self.program.lists):
                while places[mesh] < len(own) and not self.problems and self._step(mesh, own[places[mesh]]):
                    places[mesh] += 1
                    moved = True
        if not self.problems:
            self._check_end(places)
        if self.problems:
            raise InputError(self.problems)
        return VerifiedLists(
            peak_bytes=tuple(self.peak),
            messages=self.messages,
            message_bytes=self.message_bytes,
            exact=not self.program.inexact,
        )

    def _step(self, mesh: int, instruction: Instruction) -> bool:
        """Do one instruction; False where it has to wait."""
        live = self.live[mesh]
        if not self._sane(mesh, instruction):
            return True
        if instruction.op is Op.ALLREDUCE and mesh not in self.posted:
            self._send(mesh, instruction)
            self.posted.add(mesh)
        sources = instruction.sources(mesh)
        if not all(self.channels[source, mesh] for source in sources):
            return False
        for source in sources:
            self._meets(mesh, instruction, source, self.channels[source, mesh].popleft())
        self.posted.discard(mesh)
        missing = [buffer for buffer in instruction.reads if buffer not in live]
        if missing:
            self._problem(mesh, instruction, f"reads buffer {missing[0]}, which is not there")
            return True
        if instruction.op is Op.FREE:
            live.difference_update(instruction.reads)
            self.bytes[mesh] -= self._device_bytes(instruction.reads)
            return True
        if instruction.op is not Op.ALLREDUCE:
            self._send(mesh, instruction)
        if not set(instruction.donates) <= set(instruction.reads):
            self._problem(mesh, instruction, f"donates {instruction.donates}, of which it does not read all")
        live.difference_update(instruction.donates)
        self.bytes[mesh] -= self._device_bytes(instruction.donates)
        for buffer in instruction.writes:
            if buffer in live:
                self._problem(mesh, instruction, f"writes buffer {buffer}, which holds a value")
            live.add(buffer)
        self.bytes[mesh] += self._device_bytes(instruction.writes)
        self.peak[mesh] = max(self.peak[mesh], self.bytes[mesh])
        return True

    def _device_bytes(self, numbers: Iterable[int]) -> int:
        buffers = self.program.buffers
        return sum(buffers[number].bytes for number in numbers if not buffers[number].host)

    def _send(self, mesh: int, instruction: Instruction) -> None:
        for target in instruction.targets(mesh):
            self.channels[mesh, target].append(instruction)
            self.messages += 1
            self.message_bytes += sum(self.program.buffers[buffer].bytes for buffer in instruction.reads)

    def _sane(self, mesh: int, instruction: Instruction) -> bool:
        """Whether the group of a collective can be one."""
        group = instruction.group
        if not group and instruction.op not in (Op.BROADCAST, Op.ALLREDUCE):
            return True
        if mesh not in group or len(set(group)) < len(group) or max(group) >= self.program.meshes:
            self._problem(mesh, instruction, f"stands on mesh {mesh} with the group {group}")
        elif instruction.op is Op.ALLREDUCE and (instruction.combine not in COMBINES or len(instruction.reads) != 1):
            self._problem(mesh, instruction, f"combines {len(instruction.reads)} buffers by {instruction.combine}")
        return not self.problems

    def _meets(self, mesh: int, instruction: Instruction, source: int, sent: Instruction) -> None:
        """A message with what waits for it: the same collective, or SEND with RECV; the same shapes."""
        buffers = self.program.buffers
        given = Op.SEND if instruction.op is Op.RECV else instruction.op
        if (sent.op, sent.group, sent.combine) != (given, instruction.group, instruction.combine):
            self._problem(mesh, instruction, f"meets {sent.op} {sent.label} of mesh {source}")
        wanted = [(buffers[b].shape, buffers[b].dtype) for b in instruction.writes]
        if [(buffers[b].shape, buffers[b].dtype) for b in sent.reads] != wanted:
            self._problem(mesh, instruction, f"receives {wanted}, what was sent is something else")

    def _check_end(self, places: list[int]) -> None:
        waiting = [mesh for mesh, own in enumerate(self.program.lists) if places[mesh] < len(own)]
        for mesh in waiting:
            self._problem(mesh, self.program.lists[mesh][places[mesh]], "waits for a message that nobody sends")
        unread = [channel for channel, messages in self.channels.items() if messages]
        self.problems += [
            Problem(
                what=f"mesh {source} sends mesh {target} what it never receives",
                why="every SEND has its RECV",
                field="program",
            )
            for source, target in unread
        ]
        returned = {outcome.buffer for outcome in self.program.outcomes}
        for mesh, live in enumerate(self.live):
            left = sorted(live - returned)
            if left and not waiting:
                what = f"mesh {mesh} keeps {len(left)} buffers that the step does not return, first {left[0]}"
                self.problems.append(Problem(what=what, why="every buffer is freed", field="program"))

    def _problem(self, mesh: int, instruction: Instruction, what: str) -> None:
        self.problems.append(
            Problem(
                what=f"mesh {mesh}, {instruction.op} {instruction.label}: {what}",
                why="lists are checked before they run",
                field="program",
            )
        )
