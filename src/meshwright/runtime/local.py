"""Instruction lists run in this process: every mesh is a part of its devices, messages are copies between them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from jax.extend import core
from jax.sharding import Mesh, NamedSharding

from meshwright.compiler.instructions import Feed, Program
from meshwright.runtime.channels import local_channels
from meshwright.runtime.executor import MeshExecutor


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
        functions = {name: core.jaxpr_as_fun(closed) for name, closed in program.executables.items()}
        self._executors = [
            MeshExecutor(own, program.buffers, functions, mesh, channels)
            for own, mesh, channels in zip(program.lists, self.meshes, local_channels(program.meshes), strict=True)
        ]

    def sharding(self, buffer: int) -> NamedSharding:
        """Where a buffer lies.

        Args:
            buffer: its number.
        """
        return self._executors[self.program.buffers[buffer].mesh].sharding(buffer)

    def step(self, inputs: Sequence[Any], micro_batches: int) -> list[Any]:
        """Run every list once.

        Args:
            inputs: of the step, flat; batch arguments whole.
            micro_batches: into which those are split.

        Returns:
            The outputs of the step, flat.
        """
        fed: dict[int, dict[int, Any]] = defaultdict(dict)
        for feed in self.program.feeds:
            fed[self.program.buffers[feed.buffer].mesh][feed.buffer] = part_of(inputs, feed, micro_batches)
        for mesh, executor in enumerate(self._executors):
            executor.begin(fed[mesh])
        while any(executor.advance(wait=False) for executor in self._executors):
            pass
        assert all(executor.ended for executor in self._executors)
        outputs = [
            inputs[outcome.input]  # type: ignore[index]
            if outcome.buffer is None
            else self._executors[self.program.buffers[outcome.buffer].mesh].values[outcome.buffer]
            for outcome in self.program.outcomes
        ]
        for executor in self._executors:
            executor.values = {}
        return outputs


def part_of(inputs: Sequence[Any], feed: Feed, micro_batches: int) -> Any:
    """What a feed puts into its buffer: an input, or the samples of one micro-batch.

    Args:
        inputs: of the step, flat; batch arguments whole.
        feed: which.
        micro_batches: into which batch arguments are split.
    """
    value = inputs[feed.input]
    if feed.micro_batch is None:
        return value
    size = value.shape[0] // micro_batches
    return value[feed.micro_batch * size : (feed.micro_batch + 1) * size]
