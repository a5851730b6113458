"""Micro-batches that a mesh works through without a message between them: one loop, whose body is compiled once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import jax.numpy as jnp

from meshwright.compiler.instructions import Buffer, Instruction, Op
from meshwright.schedules.table import Kind


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedRuns:
    """The same RUNs for one micro-batch after the other; buffers of the body are those of the last micro-batch."""

    runs: tuple[Instruction, ...]
    """RUNs of all micro-batches in order that read nothing among them."""
    count: int
    """Micro-batches."""
    end: int
    """Place behind the last of its instructions."""
    body: tuple[Instruction, ...]
    """RUNs of the last micro-batch that read something."""
    whole: tuple[int, ...]
    """Buffers that every micro-batch reads."""
    each: tuple[tuple[int, ...], ...]
    """Buffers of which every micro-batch reads its own; by micro-batch."""
    sums: tuple[tuple[int, int], ...]
    """What the last micro-batch reads of the one before it, and what it makes of that; the first has nothing there."""
    results: tuple[tuple[int, ...], ...]
    """What is left of every micro-batch, by micro-batch."""

    @property
    def made(self) -> tuple[Instruction, ...]:
        """RUNs that read nothing: numbers of micro-batches and of ranks."""
        return tuple(run for run in self.runs if not run.reads)

    @property
    def name(self) -> str:
        """Names of the executables of its body, and how often it runs."""
        return f"{self.count} x ({' '.join(run.executable or '' for run in self.body)})"


def repeated_runs(instructions: Sequence[Instruction], buffers: Sequence[Buffer]) -> dict[int, RepeatedRuns]:
    """Loops of a list, by the place where they begin.

    Args:
        instructions: the instructions of one mesh.
        buffers: the buffers of the whole program, by number.
    """
    found: dict[int, RepeatedRuns] = {}
    for places in _without_messages(instructions):
        tasks = [place for place in places if instructions[place].reads]
        units = [list(unit) for _, unit in groupby(tasks, lambda place: instructions[place].label.partition(".")[2])]
        for first, last in _alike([[instructions[place].executable or "" for place in unit] for unit in units]):
            behind = units[first - 1][-1] if first else -1
            begin = next(place for place in places if place > behind)
            loop = _loop(
                instructions,
                begin,
                [[instructions[at] for at in unit] for unit in units[first:last]],
                units[last - 1][-1] + 1,
                buffers,
            )
            if loop is not None:
                found[begin] = loop
    return found


def _without_messages(instructions: Sequence[Instruction]) -> list[list[int]]:
    """Places of RUNs between two messages, and between those that are called layer by layer."""
    found: list[list[int]] = [[]]
    for place, one in enumerate(instructions):
        if one.op is Op.RUN and not one.part:
            found[-1].append(place)
        elif one.op is not Op.FREE:
            found.append([])
    return found


def _alike(units: Sequence[Sequence[str]]) -> list[tuple[int, int]]:
    """Ranges of units, two at least, that run the same; the first of a range adds to no sums."""
    found: list[tuple[int, int]] = []
    first = 0
    while first < len(units):
        last = first + 1
        while last < len(units) and _follows(units[first], units[first + 1], units[last]):
            last += 1
        if last - first > 1 and not any(name.startswith(Kind.R.name) for name in units[first]):
            found.append((first, last))
        first = last
    return found


def _follows(first: Sequence[str], second: Sequence[str], other: Sequence[str]) -> bool:
    added = [name if name == one else f"{one}+" for one, name in zip(first, second, strict=False)]
    return len(first) == len(second) and list(second) == added and list(other) == list(second)


def _loop(
    instructions: Sequence[Instruction],
    begin: int,
    units: Sequence[Sequence[Instruction]],
    end: int,
    buffers: Sequence[Buffer],
) -> RepeatedRuns | None:
    """Units as a loop; None where they read or leave what a loop cannot hand on."""
    while end < len(instructions) and instructions[end].op is Op.FREE:
        end += 1
    span = instructions[begin:end]
    gone = {buffer for one in span for buffer in (one.reads if one.op is Op.FREE else one.donates)}
    made = [{buffer: at for at, buffer in enumerate(buffer for run in unit for buffer in run.writes)} for unit in units]
    by_place = [list(unit) for unit in made]
    inside = {buffer for unit in made for buffer in unit}
    whole: dict[int, None] = {}
    each: dict[int, tuple[int, ...]] = {}
    sums: dict[int, int] = {}
    for at, run in enumerate(units[-1]):
        for read in range(len(run.reads)):
            own = [unit[at].reads[read] if read < len(unit[at].reads) else None for unit in units]
            places = {unit.get(buffer) for unit, buffer in zip(made, own, strict=True)}  # type: ignore[arg-type]
            before = {unit.get(buffer) for unit, buffer in zip(made, own[1:], strict=False)}  # type: ignore[arg-type]
            if len(places) == 1 and None not in places:
                continue
            (place,) = before if len(before) == 1 else (None,)
            if place is not None and own[0] is None:
                sums[run.reads[read]] = by_place[-1][place]
            elif None in own or inside.intersection(own):
                return None
            elif len(set(own)) == 1:
                whole[run.reads[read]] = None
            elif len({buffers[buffer].kind for buffer in own if buffer is not None}) == 1:
                each[run.reads[read]] = tuple(buffer for buffer in own if buffer is not None)
            else:
                return None
    handed = {by_place[-1].index(buffer) for buffer in sums.values()}
    results = [
        own for place, own in enumerate(zip(*by_place, strict=True)) if place not in handed and not gone.issuperset(own)
    ]
    earlier = {by_place[unit][place] for unit in range(len(units) - 1) for place in handed}
    exact = all(jnp.issubdtype(buffers[buffer].dtype, jnp.inexact) for buffer in sums)
    if not exact or not gone.issuperset(earlier) or len(set(sums.values())) < len(sums):
        return None
    return RepeatedRuns(
        runs=tuple(one for one in span if one.op is Op.RUN),
        count=len(units),
        end=end,
        body=tuple(units[-1]),
        whole=tuple(whole),
        each=tuple(each.values()),
        sums=tuple(sums.items()),
        results=tuple(results),
    )
