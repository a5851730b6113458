"""Instruction lists under construction."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from jax.extend import core

from meshwright.compiler.cost import aval_bytes
from meshwright.compiler.instructions import Buffer, Instruction, Op
from meshwright.compiler.instructions.parted_programs import PartedPrograms

Key = Hashable
"""Name of a value: what it is, of which stage and micro-batch."""


class ListBuilder:
    """One list per mesh; values are known by a key per mesh, executables by name."""

    def __init__(self, meshes: int) -> None:
        """Empty lists.

        Args:
            meshes: how many.
        """
        self.lists: list[list[Instruction]] = [[] for _ in range(meshes)]
        self.executables: dict[str, core.ClosedJaxpr] = {}
        self.parted = PartedPrograms(self.executables)
        """Executables that are called layer by layer."""
        self.buffers: list[Buffer] = []
        self.ids: dict[tuple[int, Key], int] = {}

    def new(self, mesh: int, key: Key, aval: Any, spec: Any = None) -> int:
        """A buffer for a value; a value made again under the same key takes its place.

        Args:
            mesh: the mesh that holds it.
            key: its name there.
            aval: shape and type.
            spec: how the mesh shards it; None leaves it to the compiler.
        """
        self.buffers.append(
            Buffer(mesh=mesh, shape=tuple(aval.shape), dtype=str(aval.dtype), bytes=aval_bytes(aval), spec=spec)
        )
        self.ids[mesh, key] = len(self.buffers) - 1
        return len(self.buffers) - 1

    def at(self, mesh: int, key: Key) -> int:
        """The buffer of a value.

        Args:
            mesh: the mesh that holds it.
            key: its name there.
        """
        return self.ids[mesh, key]

    def run(self, mesh: int, name: str, label: str, reads: Sequence[int], writes: Sequence[int]) -> None:
        """Add RUN; of an executable that is called layer by layer, one for each part.

        Args:
            mesh: the mesh that runs it.
            name: the name of the executable.
            label: what users read.
            reads: buffers of its operands.
            writes: buffers of its results.
        """
        if (calls := self.parted.calls.get(name)) is None:
            self.lists[mesh].append(
                Instruction(op=Op.RUN, label=label, executable=name, reads=tuple(reads), writes=tuple(writes))
            )
            return
        buffers = dict(enumerate([*reads, *writes]))
        for number, call in enumerate(calls, 1):
            for slot, held in call.between.items():
                buffers[slot] = self.new(mesh, ("between", len(self.buffers)), held.aval, held.spec)
            self.lists[mesh].append(
                Instruction(
                    op=Op.RUN,
                    label=label,
                    executable=call.executable,
                    part=f"{number}/{len(calls)}",
                    reads=tuple(buffers[slot] for slot in call.reads),
                    writes=tuple(buffers[slot] for slot in call.writes),
                )
            )

    def send(self, source: int, target: int, label: str, keys: Sequence[Key]) -> None:
        """Add SEND; nothing for no values.

        Args:
            source: mesh that sends.
            target: mesh that receives.
            label: what users read.
            keys: names of the values at the source.
        """
        if keys:
            reads = tuple(self.at(source, key) for key in keys)
            self.lists[source].append(Instruction(op=Op.SEND, label=label, reads=reads, peer=target))

    def receive(self, target: int, source: int, label: str, values: Sequence[tuple[Key, Any, Any]]) -> None:
        """Add RECV; nothing for no values.

        Args:
            target: mesh that receives.
            source: mesh that sends.
            label: what users read.
            values: name at the target, shape and type, and sharding of each.
        """
        if values:
            writes = tuple(self.new(target, key, aval, spec) for key, aval, spec in values)
            self.lists[target].append(Instruction(op=Op.RECV, label=label, writes=writes, peer=source))

    def broadcast(
        self, source: int, targets: Sequence[int], label: str, values: Sequence[tuple[Key, Any, Any]]
    ) -> None:
        """Add BROADCAST on all meshes that take part.

        Args:
            source: mesh that sends.
            targets: meshes that receive.
            label: what users read.
            values: name on all of them, shape and type, and sharding at the targets of each.
        """
        group = (source, *targets)
        reads = tuple(self.at(source, key) for key, _, _ in values)
        self.lists[source].append(Instruction(op=Op.BROADCAST, label=label, reads=reads, group=group))
        for target in targets:
            writes = tuple(self.new(target, key, aval, spec) for key, aval, spec in values)
            self.lists[target].append(Instruction(op=Op.BROADCAST, label=label, writes=writes, group=group))

    def all_reduce(self, parts: Mapping[int, int], combine: str, label: str, key: Key, aval: Any, spec: Any) -> None:
        """Add ALLREDUCE on all meshes that take part.

        Args:
            parts: buffer of each.
            combine: how, one of `COMBINES`.
            label: what users read.
            key: name of the result on all of them.
            aval: its shape and type.
            spec: its sharding.
        """
        for mesh, part in parts.items():
            self.lists[mesh].append(
                Instruction(
                    op=Op.ALLREDUCE,
                    label=label,
                    reads=(part,),
                    writes=(self.new(mesh, key, aval, spec),),
                    group=tuple(parts),
                    combine=combine,
                )
            )


def with_frees(instructions: Sequence[Instruction], kept: set[int | None]) -> list[Instruction]:
    """The list with a FREE behind the last use of each buffer, found from its end.

    Args:
        instructions: the instructions of one mesh.
        kept: buffers that the step returns.
    """
    seen: set[int | None] = set(kept)
    found: list[Instruction] = []
    for instruction in reversed(instructions):
        touched = dict.fromkeys([*instruction.reads, *instruction.writes])
        last = tuple(sorted(buffer for buffer in touched if buffer not in seen))
        if last:
            found.append(Instruction(op=Op.FREE, label=instruction.label, reads=last))
            seen.update(last)
        found.append(instruction)
    return found[::-1]
