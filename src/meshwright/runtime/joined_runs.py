"""RUNs that follow one another on a mesh, called as one executable: what passes between them need not be kept whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from meshwright.compiler.instructions import Buffer, Instruction, Op
from meshwright.schedules.table import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedRuns:
    """A part of a list without messages: RUNs each of which reads what one before it wrote, and FREEs."""

    runs: tuple[Instruction, ...]
    end: int
    """Place behind the last of its instructions."""
    reads: tuple[int, ...]
    """Buffers from before."""
    writes: tuple[int, ...]
    """Buffers that are left behind the part."""
    donates: tuple[int, ...]
    """Of `reads`, those whose memory results take."""
    freed: tuple[int, ...]
    """Of `reads`, those that nothing reads behind the part."""

    @property
    def name(self) -> str:
        """Of its executables, in order."""
        return ", ".join(run.executable or "" for run in self.runs)

    @property
    def form(self) -> tuple[object, ...]:
        """Equal for parts that one executable can do: buffers by where they come from instead of by number."""
        numbers = {buffer: place for place, buffer in enumerate(self.reads)}
        told: list[object] = []
        for run in self.runs:
            told.append((run.executable, tuple(numbers[buffer] for buffer in run.reads)))
            for buffer in run.writes:
                numbers[buffer] = len(numbers)
        return (*told, tuple(numbers[buffer] for buffer in (*self.writes, *self.donates)), len(self.writes))


def joined_runs(instructions: Sequence[Instruction], buffers: Sequence[Buffer]) -> dict[int, JoinedRuns]:
    """Parts of a list that run as one executable, by the place where they begin.

    Of a step without micro-batches that is all between two messages; with them, a forward and the backward behind it.
    More would be compiled again and again with another end.

    Args:
        instructions: of one mesh.
        buffers: of the whole program, by number.
    """
    times = Counter(one.executable for one in instructions if one.op is Op.RUN)

    def follows(before: Sequence[Instruction], one: Instruction) -> bool:
        written = {buffer for run in before for buffer in run.writes}
        if written.isdisjoint(one.reads) or one.executable in [run.executable for run in before]:
            return False
        if one.label.startswith(Kind.R.name):
            # Beside the forward, XLA would see that it is computed already, and keep it.
            return False
        if all(times[run.executable] == 1 for run in (*before, one)):
            return True
        own = before[0]
        same = len(before) == 1 and (own.label[:1], one.label[:1]) == ("F", "B") and own.label[1:] == one.label[1:]
        return same and 2 * times[one.executable] >= times[own.executable]

    found: dict[int, JoinedRuns] = {}
    places: list[int] = []
    for place, one in enumerate(instructions):
        if one.op is Op.FREE:
            continue
        if one.op is Op.RUN and places and follows([instructions[each] for each in places], one):
            places.append(place)
            continue
        if len(places) > 1:
            found[places[0]] = _part(instructions, places, buffers)
        places = [place] if one.op is Op.RUN else []
    if len(places) > 1:
        found[places[0]] = _part(instructions, places, buffers)
    return found


def _part(instructions: Sequence[Instruction], places: Sequence[int], buffers: Sequence[Buffer]) -> JoinedRuns:
    end = places[-1] + 1
    while end < len(instructions) and instructions[end].op is Op.FREE:
        end += 1
    whole = instructions[places[0] : end]
    runs = tuple(one for one in whole if one.op is Op.RUN)
    written: dict[int, None] = {}
    reads: dict[int, None] = {}
    for run in runs:
        reads |= dict.fromkeys(buffer for buffer in run.reads if buffer not in written)
        written |= dict.fromkeys(run.writes)
    gone = {buffer for one in whole for buffer in (one.reads if one.op is Op.FREE else one.donates)}
    writes = tuple(buffer for buffer in written if buffer not in gone)
    given = {buffer for run in runs for buffer in run.donates}
    # Of what a RUN's own result took the memory, that result may be gone within the part.
    room = Counter(buffers[buffer].kind for buffer in writes if buffers[buffer].spec is not None)
    donates = []
    for buffer in reads:
        if buffer in given and room[buffers[buffer].kind]:
            room[buffers[buffer].kind] -= 1
            donates.append(buffer)
    return JoinedRuns(
        runs=runs,
        end=end,
        reads=tuple(reads),
        writes=writes,
        donates=tuple(donates),
        freed=tuple(buffer for buffer in {**reads, **dict.fromkeys(gone)} if buffer in gone - {*written, *donates}),
    )
