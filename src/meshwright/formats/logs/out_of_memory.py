"""What a run says when it runs out of device memory: which rank, what it asked for, and what was taken by then.

Source: the messages of c10/cuda/CUDACachingAllocator.cpp of PyTorch 1.10 to 2.9 and of XLA's allocators.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import InputError
from meshwright.formats.files import read_text
from meshwright.formats.logs.read import MAX_BYTES
from meshwright.formats.logs.record import NUMBER
from meshwright.units import GIB

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_SIZE = rf"(?<![0-9])(?<![0-9][.,])({NUMBER.removeprefix('[-+]?')})\s*([KMGT]i?B|bytes|B)"
_UNITS = {"b": 1.0, "k": GIB / 1024**2, "m": GIB / 1024, "g": GIB, "t": GIB * 1024}
_RANK = re.compile(r"^\W{0,3}(?:(?:rank|default|ip-[\w-]+|worker)[ -]?)?(\d{1,18})\]?:|\brank[ =:]+(\d{1,18})", re.I)
_HEAD = re.compile(rf"out of memory\.? *Tried to allocate {_SIZE}", re.IGNORECASE)
_FIELDS = {
    "capacity_bytes": re.compile(rf"(?:total capac\w+ of {_SIZE}|{_SIZE} total capacity)"),
    "free_bytes": re.compile(rf"(?:of which {_SIZE} is free|{_SIZE} free\b)"),
    "in_use_bytes": re.compile(rf"this process has {_SIZE} memory in use"),
    "allocated_bytes": re.compile(rf"(?:allocated memory {_SIZE} is allocated by PyTorch|{_SIZE} already allocated)"),
    "unused_bytes": re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated"),
    "reserved_bytes": re.compile(rf"{_SIZE} (?:reserved in total by PyTorch|cached)"),
}
_XLA = re.compile(
    rf"RESOURCE_EXHAUSTED.{{0,300}}?(?:allocat\w{{1,12}}|requested|Used) {{0,3}}(?:\w{{1,20}} )?{_SIZE}", re.IGNORECASE
)
_STEP = re.compile(r"\biteration\s+(\d{1,18})\s*/|\bstep[ :=]+(\d{1,18})\b", re.IGNORECASE)
_FRAME = re.compile(r'File "([^"]+)", line \d+, in ([\w<>]+)')


@dataclass(frozen=True, slots=True, kw_only=True)
class OutOfMemory:
    """One message of one rank."""

    line: int
    """Number of the line, from 1."""
    rank: int | None
    """Global rank, None if the line does not give it; the GPU number in the message counts within a node."""
    tried_bytes: float
    capacity_bytes: float | None = None
    free_bytes: float | None = None
    allocated_bytes: float | None = None
    """Bytes allocated by live tensors."""
    reserved_bytes: float | None = None
    """Bytes reserved by the allocator, live tensors included."""
    in_use_bytes: float | None = None
    """Bytes in use by the whole process."""
    steps_done: int | None = None
    """The last step that the log reports before it, if any."""
    where: str = ""
    """The last function of the traceback above it, and its file."""

    @property
    def unused_bytes(self) -> float | None:
        """Reserved and not allocated."""
        if self.reserved_bytes is None or self.allocated_bytes is None:
            return None
        return self.reserved_bytes - self.allocated_bytes

    @property
    def outside_bytes(self) -> float | None:
        """Taken outside of the allocator: the process's own, else everybody's."""
        if self.reserved_bytes is None:
            return None
        if self.in_use_bytes is not None:
            return self.in_use_bytes - self.reserved_bytes
        if self.capacity_bytes is None or self.free_bytes is None:
            return None
        return self.capacity_bytes - self.free_bytes - self.reserved_bytes


def read_out_of_memory(path: str | Path) -> tuple[OutOfMemory, ...]:
    """The first message of every rank.

    Args:
        path: a log of one or of all ranks.

    Raises:
        InputError: the file cannot be read, or nobody in it ran out of device memory.
    """
    text = _COLOURS.sub("", read_text(path, "log", max_bytes=MAX_BYTES))
    found: dict[int | None, OutOfMemory] = {}
    done: int | None = None
    where = ""
    for number, line in enumerate(text.split("\n"), start=1):
        if step := _STEP.search(line):
            done = int(step[1] or step[2])
        elif frame := _FRAME.search(line):
            where = f"{frame[2]} in {Path(frame[1]).name}"
        message = _message(line)
        if message is not None:
            rank = _rank(line)
            found.setdefault(rank, OutOfMemory(line=number, rank=rank, steps_done=done, where=where, **message))
            where = ""
    if not found:
        raise InputError(
            what=f"no out-of-memory error is found in {str(path)!r}",
            why="none of its lines is PyTorch's `CUDA out of memory. Tried to allocate ...` or XLA's "
            "`RESOURCE_EXHAUSTED`",
            fix="give the log of a rank that failed",
            field="oom_log",
            code="MW216",
        )
    return tuple(found.values())


def _message(line: str) -> dict[str, float] | None:
    """Sizes of a message; None where the line is none."""
    head = _HEAD.search(line) or _XLA.search(line)
    if head is None:
        return None
    sizes = {"tried_bytes": _bytes(head[1], head[2])}
    for name, pattern in _FIELDS.items():
        if match := pattern.search(line):
            amount, unit = (group for group in match.groups() if group)
            sizes[name] = _bytes(amount, unit)
    unused = sizes.pop("unused_bytes", None)
    if unused is not None and "allocated_bytes" in sizes:
        sizes["reserved_bytes"] = sizes["allocated_bytes"] + unused
    return sizes


def _rank(line: str) -> int | None:
    match = _RANK.search(line)
    return int(match[1] or match[2]) if match else None


def _bytes(amount: str, unit: str) -> float:
    return min(float(amount.replace(",", "")), 1e18) * _UNITS[unit[0].lower()]
