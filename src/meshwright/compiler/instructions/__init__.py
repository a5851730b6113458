"""Static lists of instructions, one per mesh: all that a runtime knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from jax.extend import core
from jax.sharding import PartitionSpec


class Op(StrEnum):
    """What an instruction does."""

    RUN = "RUN"
    """Runs an executable on buffers of its mesh."""
    SEND = "SEND"
    """Sends buffers to another mesh, in order."""
    RECV = "RECV"
    """Receives what the other mesh sent, in the order of its sends."""
    BROADCAST = "BROADCAST"
    """Sends buffers of the first mesh of a group to all others of it."""
    ALLREDUCE = "ALLREDUCE"
    """Combines one buffer of every mesh of a group, in the order of the group, so that all have the same result."""
    RELOAD = "RELOAD"
    """Copies buffers from the memory of the host to that of the devices."""
    OFFLOAD = "OFFLOAD"
    """Copies buffers from the memory of the devices to that of the host."""
    FREE = "FREE"
    """Lets go of buffers."""


COMBINES = ("add", "and", "or", "max", "min")
"""Ways to combine values, named as the operators of a jaxpr."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    """One step of a mesh."""

    op: Op
    label: str
    """What users read: `F0.3` is the forward of stage 0 on micro-batch 3."""
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    executable: str | None = None
    """Name of the executable that a RUN calls."""
    donates: tuple[int, ...] = ()
    """What a RUN reads for the last time and whose memory its results take."""
    peer: int | None = None
    """Mesh on the other side of SEND and RECV."""
    group: tuple[int, ...] = ()
    """Meshes of BROADCAST, the one that sends first, and of ALLREDUCE."""
    combine: str | None = None
    """Operation of an ALLREDUCE, a name in `COMBINES`."""
    part: str = ""
    """Part of the task that a RUN does, where it does one of the layers: which of how many."""

    def targets(self, mesh: int) -> tuple[int, ...]:
        """Meshes that it sends to.

        Args:
            mesh: the mesh in whose list it stands.
        """
        if self.op is Op.SEND and self.peer is not None:
            return (self.peer,)
        if self.op is Op.ALLREDUCE or (self.op is Op.BROADCAST and self.group[0] == mesh):
            return tuple(other for other in self.group if other != mesh)
        return ()

    def sources(self, mesh: int) -> tuple[int, ...]:
        """Meshes whose messages it waits for.

        Args:
            mesh: the mesh in whose list it stands.
        """
        if self.op is Op.RECV and self.peer is not None:
            return (self.peer,)
        if self.op is Op.BROADCAST:
            return self.group[:1] if self.group[0] != mesh else ()
        return tuple(other for other in self.group if other != mesh)

    def __str__(self) -> str:
        """One line of a printed list."""
        names = [f"{self.op:<4} {self.label}{' part ' if self.part else ''}{self.part}"]
        if self.group:
            shown = " ".join(map(str, self.group))
            names.append(f"{self.combine} over meshes {shown}" if self.combine else f"over meshes {shown}")
        if self.peer is not None:
            names.append(f"{'to' if self.op is Op.SEND else 'from'} mesh {self.peer}")
        if self.reads:
            names.append("reads " + _spans(self.reads))
        if self.writes:
            names.append("writes " + _spans(self.writes))
        if self.donates:
            names.append("donates " + _spans(self.donates))
        return "  ".join(names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Buffer:
    """One value on one mesh."""

    mesh: int
    shape: tuple[int, ...]
    dtype: str
    bytes: int
    spec: PartitionSpec | None
    """How its mesh shards it; None leaves it to the compiler."""
    host: bool = False
    """Whether it is in the memory of the host."""

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for buffers that can take each other's memory."""
        return self.shape, self.dtype, self.spec, self.host


@dataclass(frozen=True, slots=True, kw_only=True)
class Feed:
    """An input of the step that a buffer holds when the lists start."""

    buffer: int
    input: int
    micro_batch: int | None = None
    """Part of a batch argument."""
    samples: tuple[int, int] | None = None
    """First sample and the number of them, where micro-batches are not equal parts of the batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Where an output of the step is when the lists end."""

    buffer: int | None = None
    input: int | None = None
    """The step returns this input as it came."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StepProgram:
    """What every mesh does in one step."""

    lists: tuple[tuple[Instruction, ...], ...]
    executables: Mapping[str, core.ClosedJaxpr]
    buffers: tuple[Buffer, ...]
    feeds: tuple[Feed, ...]
    outcomes: tuple[StepResult, ...]
    inexact: str = ""
    """How the step differs from one update with the gradient of its batch at its weights; empty if it does not."""

    @property
    def meshes(self) -> int:
        """Device meshes."""
        return len(self.lists)

    @property
    def taken(self) -> frozenset[int]:
        """Inputs whose memory the step takes."""
        donated = {buffer for own in self.lists for one in own for buffer in one.donates}
        return frozenset(feed.input for feed in self.feeds if feed.buffer in donated)

    def __str__(self) -> str:
        """The lists as text, mesh after mesh."""
        lines = [f"inexact: {self.inexact}"] if self.inexact else []
        for mesh, instructions in enumerate(self.lists):
            lines += [f"mesh {mesh}", *(f"  {instruction}" for instruction in instructions)]
        return "\n".join(lines)


def _spans(numbers: tuple[int, ...]) -> str:
    """`3-6 9` for 3, 4, 5, 6, 9."""
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return " ".join(f"{low}-{high}" if high > low else f"{low}" for low, high in spans)
