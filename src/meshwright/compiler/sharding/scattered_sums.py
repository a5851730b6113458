"""All-reduces of which each device keeps its part only: compilers for GPUs and TPUs make reduce-scatters of them.

XLA's partitioner writes such a sum as an all-reduce and a slice behind it; the compiler for CPUs leaves it so.

Source: XLA, `ReduceScatterCreator` (hlo/transforms/collectives/reduce_scatter_creator.h).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_OPERAND = re.compile(r"%([\w.\-]+)")
_CALLS = re.compile(r"calls=%?([\w.\-]+)")
_INDEX = re.compile(r"index=(\d+)")
_SIZES = re.compile(r"\[([\d,]*)\]")
PASSING = ("bitcast", "copy", "transpose", "reshape", "convert")
"""Instructions that hand on what they are given, in another order or format."""
MOST_STEPS = 12
"""Followed from a sum to a slice."""


@dataclass(frozen=True, slots=True)
class _Instruction:
    name: str
    shape: str
    op: str
    operands: tuple[str, ...]
    line: str
    root: bool


class ScatteredSums:
    """Uses of sums in the computations of a program."""

    def __init__(self, bodies: Mapping[str, Sequence[str]]) -> None:
        self.bodies = {name: [one for line in lines if (one := _read(line))] for name, lines in bodies.items()}

    def parts(self, body: str, line: str, group: int) -> list[bool]:
        """Whether each array of an all-reduce is only read by slices of one device's part.

        Args:
            body: computation that it stands in.
            line: the line of the all-reduce.
            group: devices that it goes over.
        """
        found = _read(line)
        if found is None:
            return []
        if not found.shape.startswith("("):
            return [self._sliced(body, found, group, MOST_STEPS)]
        read = {
            int(index[1]): one
            for one in self.bodies[body]
            if one.op == "get-tuple-element" and one.operands == (found.name,) and (index := _INDEX.search(one.line))
        }
        count = len(_SIZES.findall(found.shape))
        return [place in read and self._sliced(body, read[place], group, MOST_STEPS) for place in range(count)]

    def _sliced(self, body: str, made: _Instruction, group: int, steps: int) -> bool:
        users = [one for one in self.bodies[body] if made.name in one.operands]
        if made.root or not users or not steps:
            return False
        return all(self._use(body, made, user, group, steps - 1) for user in users)

    def _use(self, body: str, made: _Instruction, user: _Instruction, group: int, steps: int) -> bool:
        if user.op == "dynamic-slice":
            return user.operands[0] == made.name and _entries(user.shape) * group == _entries(made.shape)
        if user.op in PASSING:
            return self._sliced(body, user, group, steps)
        called = _CALLS.search(user.line)
        if user.op not in ("fusion", "call") or called is None or called[1] not in self.bodies:
            return False
        inside = self.bodies[called[1]]
        given = {place for place, name in enumerate(user.operands) if name == made.name}
        read = [
            one
            for one in inside
            if one.op == "parameter" and int(one.line.split("parameter(")[1].split(")")[0]) in given
        ]
        return bool(read) and all(self._sliced(called[1], one, group, steps) for one in read)


def _read(line: str) -> _Instruction | None:
    found = _INSTRUCTION.match(line)
    if not found:
        return None
    operands = tuple(_OPERAND.findall(found[5].split("), ")[0]))
    return _Instruction(found[2], found[3], found[4], operands, line, bool(found[1]))


def _entries(shape: str) -> int:
    sizes = _SIZES.search(shape)
    count = 1
    for size in (sizes[1] if sizes else "").split(","):
        count *= int(size or 1)
    return count
