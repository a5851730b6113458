"""Stages whose states wait in host memory while others run: RELOAD before a stage's tasks, OFFLOAD behind its last.

    on the device    weights of the stage at work and of the next one, gradients of the one at work
    each step        weights are reloaded for the forward and for the backward of a stage, gradients offloaded once

A stage is reloaded before the first task of the stage before it, so that its weights come while that one computes. The
last stage of a mesh stays between its forward and its backward. What the update reads is in host memory, and there the
update is made.
Source: Feng et al., "Mobius: Fine Tuning Large-Scale Models on Commodity GPU Servers", ASPLOS 2023, section 3.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from meshwright.compiler.instructions import Buffer, Feed, Instruction, Op

SMALL = 16
"""Most elements of a value that stays on the device: counts, keys, norms."""


def paged_lists(
    lists: Sequence[Sequence[Instruction]], buffers: list[Buffer], feeds: Sequence[Feed], tasks: Collection[str]
) -> list[list[Instruction]]:
    """The lists with states in host memory, from which stages are reloaded.

    Args:
        lists: the instructions of each mesh, without FREE.
        buffers: the buffers of the program; those of host memory are replaced, and those on devices added.
        feeds: the inputs of the step.
        tasks: names of the executables of stages; all others are parts of the update.
    """
    for feed in feeds:
        if feed.micro_batch is None:
            _to_host(buffers, [feed.buffer])
    return [_Mesh(list(own), buffers, tasks).paged() for own in lists]


@dataclass(eq=False)
class _Turn:
    """Tasks of one stage that follow one another."""

    first: int
    """Place of the first of them."""
    stage: str
    """The stage, by its number."""
    weights: dict[int, int] = field(default_factory=dict)
    """Buffers in host memory that they read, each with its copy on the device."""


@dataclass(eq=False)
class _Mesh:
    """The list of one mesh."""

    instructions: list[Instruction]
    buffers: list[Buffer]
    tasks: Collection[str]

    def paged(self) -> list[Instruction]:
        gradients = self._gradients()
        self._update_on_host(gradients)
        turns = self._turns()
        starts = {turn.first: number for number, turn in enumerate(turns)}
        found = self._reload(turns[0]) if turns else []
        there: dict[int, int] = {}
        for place, one in enumerate(self.instructions):
            if (number := starts.get(place)) is not None:
                there = turns[number].weights
                found += self._reload(turns[number + 1]) if number + 1 < len(turns) else []
            if one.op is Op.RUN:
                moved = there if self._is_task(one) else gradients
                one = replace(one, reads=tuple(moved.get(buffer, buffer) for buffer in one.reads))
            found.append(one)
            if leaving := tuple(buffer for buffer in one.writes if buffer in gradients):
                kept = tuple(gradients[buffer] for buffer in leaving)
                label = f"OFFLOAD_{one.label}"
                found.append(Instruction(op=Op.OFFLOAD, label=label, reads=leaving, writes=kept))
        return found

    def _gradients(self) -> dict[int, int]:
        """Buffers in host memory for what stages make and the update reads, by the buffer on the device."""
        made = {buffer for one in self.instructions if self._is_task(one) for buffer in one.writes}
        read = [b for one in self.instructions if one.op is Op.RUN and not self._is_task(one) for b in one.reads]
        return {
            buffer: self._new(buffer, host=True)
            for buffer in dict.fromkeys(read)
            if buffer in made and self._big(buffer)
        }

    def _update_on_host(self, offloaded: dict[int, int]) -> None:
        """Results of what reads host memory are there, too; what is made of them is made there in turn."""
        for one in self.instructions:
            reads = [offloaded.get(buffer, buffer) for buffer in one.reads]
            if one.op is Op.RUN and not self._is_task(one) and any(self.buffers[buffer].host for buffer in reads):
                _to_host(self.buffers, one.writes)

    def _turns(self) -> list[_Turn]:
        """Tasks in turns: a turn ends where a task is of another stage."""
        turns: list[_Turn] = []
        for place, one in enumerate(self.instructions):
            own = [buffer for buffer in one.reads if self.buffers[buffer].host] if self._is_task(one) else []
            # Tasks are labelled by kind, stage and micro-batch: F2.0.
            stage = one.label.partition(".")[0][1:]
            if own and (not turns or turns[-1].stage != stage):
                turns.append(_Turn(first=place, stage=stage))
            for buffer in own:
                if buffer not in turns[-1].weights:
                    turns[-1].weights[buffer] = self._new(buffer, host=False)
        return turns

    def _reload(self, turn: _Turn) -> list[Instruction]:
        label = f"RELOAD_{self.instructions[turn.first].label}"
        return [Instruction(op=Op.RELOAD, label=label, reads=tuple(turn.weights), writes=tuple(turn.weights.values()))]

    def _is_task(self, one: Instruction) -> bool:
        return one.op is Op.RUN and one.executable in self.tasks

    def _big(self, buffer: int) -> bool:
        return prod(self.buffers[buffer].shape) > SMALL

    def _new(self, like: int, *, host: bool) -> int:
        self.buffers.append(replace(self.buffers[like], host=host))
        return len(self.buffers) - 1


def _to_host(buffers: list[Buffer], numbers: Sequence[int]) -> None:
    for number in numbers:
        if prod(buffers[number].shape) > SMALL:
            buffers[number] = replace(buffers[number], host=True)
