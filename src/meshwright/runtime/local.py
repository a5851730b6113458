"""Instruction lists run in this process: every mesh is a part of its devices, messages are copies between them."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.compiler.instructions import Feed, Instruction, Op, Program


class LocalRuntime:
    """A program compiled for meshes of this process."""

    def __init__(self, program: Program, meshes: Sequence[Mesh]) -> None:
        """Compile nothing yet: an executable is compiled when it first runs.

        Args:
            program: what to run.
            meshes: of devices, one per list.
        """
        self.program = program
        self.meshes = tuple(meshes)
        self._compiled: dict[tuple[str, int], Any] = {}

    def sharding(self, buffer: int) -> NamedSharding:
        """Where a buffer lies.

        Args:
            buffer: its number.
        """
        known = self.program.buffers[buffer]
        return NamedSharding(self.meshes[known.mesh], known.spec or PartitionSpec())

    def step(self, inputs: Sequence[Any], micro_batches: int) -> list[Any]:
        """Run every list once.

        Args:
            inputs: of the step, flat; batch arguments whole.
            micro_batches: into which those are split.

        Returns:
            The outputs of the step, flat.
        """
        values: dict[int, Any] = {feed.buffer: self._fed(inputs, feed, micro_batches) for feed in self.program.feeds}
        messages: dict[tuple[int, int], deque[list[Any]]] = defaultdict(deque)
        places = [0] * self.program.meshes
        moved = True
        while moved:
            moved = False
            for mesh, instructions in enumerate(self.program.lists):
                while places[mesh] < len(instructions):
                    instruction = instructions[places[mesh]]
                    if instruction.op is Op.RECV and not messages[instruction.peer or 0, mesh]:
                        break
                    self._do(mesh, instruction, values, messages)
                    places[mesh] += 1
                    moved = True
        assert all(place == len(own) for place, own in zip(places, self.program.lists, strict=True))
        return [
            inputs[outcome.input] if outcome.buffer is None else values[outcome.buffer]  # type: ignore[index]
            for outcome in self.program.outcomes
        ]

    def _do(
        self,
        mesh: int,
        instruction: Instruction,
        values: dict[int, Any],
        messages: dict[tuple[int, int], deque[list[Any]]],
    ) -> None:
        match instruction.op:
            case Op.RUN:
                run = self._executable(mesh, instruction)
                results = run(*(values[buffer] for buffer in instruction.reads))
                values.update(zip(instruction.writes, results, strict=True))
            case Op.SEND:
                assert instruction.peer is not None
                messages[mesh, instruction.peer].append([values[buffer] for buffer in instruction.reads])
            case Op.RECV:
                assert instruction.peer is not None
                sent = messages[instruction.peer, mesh].popleft()
                for buffer, value in zip(instruction.writes, sent, strict=True):
                    values[buffer] = jax.device_put(value, self.sharding(buffer))
            case Op.FREE:
                for buffer in instruction.reads:
                    del values[buffer]

    def _executable(self, mesh: int, instruction: Instruction) -> Any:
        name = instruction.executable or ""
        if (name, mesh) not in self._compiled:
            program = self.program.executables[name]
            wanted = [
                None if self.program.buffers[buffer].spec is None else self.sharding(buffer)
                for buffer in instruction.writes
            ]
            run = jax.jit(core.jaxpr_as_fun(program), out_shardings=wanted)
            if not instruction.reads:
                run = jax.jit(
                    core.jaxpr_as_fun(program), out_shardings=NamedSharding(self.meshes[mesh], PartitionSpec())
                )
            self._compiled[name, mesh] = run
        return self._compiled[name, mesh]

    def _fed(self, inputs: Sequence[Any], feed: Feed, micro_batches: int) -> Any:
        value = inputs[feed.input]
        if feed.micro_batch is not None:
            size = value.shape[0] // micro_batches
            value = value[feed.micro_batch * size : (feed.micro_batch + 1) * size]
        return jax.device_put(value, self.sharding(feed.buffer))
