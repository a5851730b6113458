"""RUNs that follow one another on a mesh, called as one executable: what passes between them need not be kept whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.compiler.instructions import Buffer, Instruction, Op
from meshwright.runtime.repeated_runs import RepeatedRuns, repeated_runs
from meshwright.schedules.table import Kind

LITTLE_BYTES = 1 << 14
"""Largest result of a RUN that costs its call alone: it joins what stands before it, whatever it reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRuns:
    """A part of a list without messages: RUNs each of which reads what one before it wrote, and FREEs."""

    parts: tuple[Instruction | RepeatedRuns, ...]
    """RUNs, and loops of RUNs."""
    end: int
    """Place behind the last of its instructions."""
    reads: tuple[int, ...]
    """Buffers from before."""
    writes: tuple[int, ...]
    """Buffers that are left behind the part."""
    donates: tuple[int, ...]
    """Buffers of `reads` whose memory results take."""
    freed: tuple[int, ...]
    """Buffers of `reads` that nothing reads behind the part."""

    @property
    def runs(self) -> tuple[Instruction, ...]:
        """All RUNs, those of loops one by one."""
        return tuple(run for part in self.parts for run in _runs(part))

    @property
    def name(self) -> str:
        """Names of the executables, in order."""
        return ", ".join(part.name if isinstance(part, RepeatedRuns) else part.executable or "" for part in self.parts)

    @property
    def form(self) -> tuple[object, ...]:
        """Equal for parts that one executable can do: buffers by where they come from instead of by number."""
        numbers = {buffer: place for place, buffer in enumerate(self.reads)}
        structure: list[object] = []
        for part in self.parts:
            for run in _runs(part):
                structure.append((run.executable, tuple(numbers[buffer] for buffer in run.reads)))
                for buffer in run.writes:
                    numbers[buffer] = len(numbers)
            if isinstance(part, RepeatedRuns):
                structure.append((part.count, tuple(numbers[own[-1]] for own in part.results)))
        return (*structure, tuple(numbers[buffer] for buffer in (*self.writes, *self.donates)), len(self.writes))

    def function(
        self,
        functions: Mapping[str, Callable[..., Any]],
        buffers: Sequence[Buffer],
        placed: Callable[[Any, int, bool], Any],
    ) -> Callable[..., list[Any]]:
        """What the part computes, of `reads` and for `writes`.

        Args:
            functions: what executables compute, flat in and out.
            buffers: the buffers of the whole program, by number.
            placed: a value with the sharding of a buffer; of a stack of such values, where it says so.
        """

        def ran(run: Instruction, values: dict[int, Any]) -> None:
            results = functions[run.executable or ""](*[values[buffer] for buffer in run.reads])
            for buffer, result in zip(run.writes, results, strict=True):
                values[buffer] = placed(result, buffer, False)

        def together(*given: Any) -> list[Any]:
            values = dict(zip(self.reads, given, strict=True))
            for part in self.parts:
                if isinstance(part, RepeatedRuns):
                    looped(part, values)
                else:
                    ran(part, values)
            return [values[buffer] for buffer in self.writes]

        def looped(loop: RepeatedRuns, values: dict[int, Any]) -> None:
            for run in loop.made:
                ran(run, values)
            stacks = [placed(jnp.stack([values[one] for one in own]), own[-1], True) for own in loop.each]
            zeros = [
                placed(jnp.zeros(buffers[total].shape, buffers[total].dtype), total, False) for _, total in loop.sums
            ]

            def body(sums: list[Any], own: list[Any]) -> tuple[list[Any], list[Any]]:
                # Bound to what changes: moved out of the loop, what is gathered or converted would be kept throughout.
                whole, own = jax.lax.optimization_barrier(([values[one] for one in loop.whole], own))
                inside = dict(zip(loop.whole, whole, strict=True))
                inside |= {one[-1]: value for one, value in zip(loop.each, own, strict=True)}
                inside |= {before: value for (before, _), value in zip(loop.sums, sums, strict=True)}
                for run in loop.body:
                    ran(run, inside)
                return [inside[total] for _, total in loop.sums], [inside[one[-1]] for one in loop.results]

            sums, results = jax.lax.scan(body, zeros, stacks, length=loop.count)
            values.update((total, value) for (_, total), value in zip(loop.sums, sums, strict=True))
            for own, stack in zip(loop.results, results, strict=True):
                values.update((one, placed(stack[number], one, False)) for number, one in enumerate(own))

        return together


def joined_runs(instructions: Sequence[Instruction], buffers: Sequence[Buffer]) -> dict[int, JoinedRuns]:
    """Parts of a list that run as one executable, by the place where they begin.

    That is all between two messages that is made of what stands before it, or little; of a step with micro-batches
    those that alternate with messages have a forward and the backward behind it. More would be compiled again and again
    with another end. What is called layer by layer stays so: joined, each layer would be compiled again.

    Args:
        instructions: the instructions of one mesh.
        buffers: the buffers of the whole program, by number.
    """
    times = Counter(one.executable for one in instructions if one.op is Op.RUN)
    loops = repeated_runs(instructions, buffers)

    def once(part: Instruction | RepeatedRuns) -> bool:
        return isinstance(part, RepeatedRuns) or times[part.executable] == 1

    def follows(before: Sequence[Instruction | RepeatedRuns], one: Instruction | RepeatedRuns) -> bool:
        written = {buffer for part in before for run in _runs(part) for buffer in run.writes}
        apart = written.isdisjoint(buffer for run in _runs(one) for buffer in run.reads)
        if all(map(once, (*before, one))):
            little = sum(buffers[buffer].bytes for run in _runs(one) for buffer in run.writes) <= LITTLE_BYTES
            # Beside the forward, XLA would see that what is computed again is computed already, and keep it.
            return (little or not apart) and not any(run.label.startswith(Kind.R.name) for run in _runs(one))
        if apart:
            return False
        own = before[0]
        if isinstance(own, RepeatedRuns) or isinstance(one, RepeatedRuns) or len(before) > 1:
            return False
        same = (own.label[:1], one.label[:1]) == ("F", "B") and own.label[1:] == one.label[1:]
        return same and 2 * times[one.executable] >= times[own.executable]

    found: dict[int, JoinedRuns] = {}
    begin, parts, end = 0, list[Instruction | RepeatedRuns](), 0

    def close() -> None:
        if len(parts) > 1 or any(isinstance(part, RepeatedRuns) for part in parts):
            found[begin] = _part(instructions, begin, parts, end, buffers)
        parts.clear()

    place = 0
    while place < len(instructions):
        one = loops.get(place, instructions[place])
        behind = one.end if isinstance(one, RepeatedRuns) else place + 1
        if isinstance(one, RepeatedRuns) or (one.op is Op.RUN and not one.part):
            if not parts or not follows(parts, one):
                close()
                begin = place
            parts.append(one)
            end = behind
        elif one.op is not Op.FREE:
            close()
        place = behind
    close()
    return found


def _runs(part: Instruction | RepeatedRuns) -> tuple[Instruction, ...]:
    return part.runs if isinstance(part, RepeatedRuns) else (part,)


def _part(
    instructions: Sequence[Instruction],
    begin: int,
    parts: Sequence[Instruction | RepeatedRuns],
    end: int,
    buffers: Sequence[Buffer],
) -> JoinedRuns:
    while end < len(instructions) and instructions[end].op is Op.FREE:
        end += 1
    whole = instructions[begin:end]
    runs = [run for part in parts for run in _runs(part)]
    written: dict[int, None] = {}
    reads: dict[int, None] = {}
    for run in runs:
        reads |= dict.fromkeys(buffer for buffer in run.reads if buffer not in written)
        written |= dict.fromkeys(run.writes)
    gone = {buffer for one in whole for buffer in (one.reads if one.op is Op.FREE else one.donates)}
    writes = tuple(buffer for buffer in written if buffer not in gone)
    # In the order of the RUN that gives them away, in which its results are, too.
    given = [buffer for run in runs for buffer in run.reads if buffer in run.donates and buffer in reads]
    reads = dict.fromkeys([*(buffer for buffer in reads if buffer not in given), *given])
    # Of what a RUN's own result took the memory, that result may be gone within the part.
    room = Counter(buffers[buffer].kind for buffer in writes if buffers[buffer].spec is not None)
    donates = []
    for buffer in given:
        if room[buffers[buffer].kind]:
            room[buffers[buffer].kind] -= 1
            donates.append(buffer)
    return JoinedRuns(
        parts=tuple(parts),
        end=end,
        reads=tuple(reads),
        writes=writes,
        donates=tuple(donates),
        freed=tuple(buffer for buffer in {**reads, **dict.fromkeys(gone)} if buffer in gone - {*written, *donates}),
    )
