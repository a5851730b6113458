"""Instruction lists run in this process: every mesh is a part of its devices, messages are copies between them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.compiler.inline import holds
from meshwright.compiler.instructions import StepProgram
from meshwright.compiler.instructions.transposed_products import without_transposed_products
from meshwright.errors import InputError, Problem
from meshwright.runtime.channels import local_channels
from meshwright.runtime.executor import MeshExecutor
from meshwright.runtime.micro_batch_parts import fed_parts
from meshwright.runtime.moments import Moments, from_start

GIVEN = Problem(
    what="a part of the state was given to an earlier step, which took its memory (donate=True)",
    why="arrays that a step takes are invalid after it",
    fix="go on from what that step returned, or leave donate out",
    field="state",
)


class LocalRuntime:
    """A program compiled for meshes of this process."""

    def __init__(self, program: StepProgram, meshes: Sequence[Mesh]) -> None:
        """Compile nothing yet: an executable is compiled when it first runs.

        Args:
            program: what to run.
            meshes: the meshes of devices, one per list.
        """
        self.program = program
        self.meshes = tuple(meshes)
        self._taken = tuple(sorted(program.taken))
        self._read = tuple(dict.fromkeys(feed.input for feed in program.feeds))
        whole = [feed for feed in program.feeds if feed.micro_batch is None]
        self._cut = [feed for feed in program.feeds if feed.micro_batch is not None]
        self._whole: list[list[tuple[int, int]]] = [
            [(feed.input, feed.buffer) for feed in whole if program.buffers[feed.buffer].mesh == mesh]
            for mesh in range(program.meshes)
        ]
        """Input and buffer of what a mesh takes as it is: of a large model hundreds, gone through in each step."""
        self._paced = False
        self._alone = len(self.meshes) == self.meshes[0].size == 1
        functions = {
            name: core.jaxpr_as_fun(without_transposed_products(closed)) for name, closed in program.executables.items()
        }
        self.executors = [
            MeshExecutor(number, own, program.buffers, functions, mesh, channels)
            for number, (own, mesh, channels) in enumerate(
                zip(program.lists, self.meshes, local_channels(program.meshes), strict=True)
            )
        ]
        calling = {
            name
            for name, closed in program.executables.items()
            if any(holds(eqn, "pure_callback") for eqn in closed.jaxpr.eqns)
        }
        for executor in self.executors:
            executor.calling = calling

    def slow_down(self, paces: Sequence[Sequence[float]]) -> None:
        """Let every instruction take as long as on another device.

        Args:
            paces: least seconds of each RUN and of the way of each message, by mesh.
        """
        self._paced = True
        for executor, own in zip(self.executors, paces, strict=True):
            executor.slow_down(own)

    def sharing(self, program: StepProgram) -> LocalRuntime:
        """Another program on the same meshes.

        Args:
            program: the program for them.
        """
        return LocalRuntime(program, self.meshes)

    def sharding(self, buffer: int) -> NamedSharding:
        """Sharding of a buffer.

        Args:
            buffer: its number.
        """
        return self.executors[self.program.buffers[buffer].mesh].sharding(buffer)

    def step(self, inputs: Sequence[Any], micro_batches: int) -> list[Any]:
        """Run every list once.

        Args:
            inputs: the inputs of the step, flat; batch arguments whole.
            micro_batches: the number of micro-batches into which those are split.

        Returns:
            The outputs of the step, flat.
        """
        if self._paced:
            # A mesh that waits for the end of its task holds up no other one.
            return self.recorded(inputs, micro_batches)[0]
        self._begin(inputs, micro_batches)
        while any(executor.advance(wait=False) for executor in self.executors):
            pass
        return self._outputs(inputs)

    def recorded(self, inputs: Sequence[Any], micro_batches: int) -> tuple[list[Any], Moments]:
        """The same, and when each instruction ran: every mesh has a thread and waits for what it computes.

        Args:
            inputs: the inputs of the step, flat; batch arguments whole.
            micro_batches: the number of micro-batches into which those are split.
        """
        self._begin(inputs, micro_batches)
        for executor in self.executors:
            executor.begin_timing()
        ended: SimpleQueue[BaseException | None] = SimpleQueue()

        def work(executor: MeshExecutor) -> None:
            try:
                executor.advance(wait=True)
                ended.put(None)
            except BaseException as error:
                ended.put(error)

        for executor in self.executors:
            threading.Thread(target=work, args=(executor,), daemon=True).start()
        for _ in self.executors:
            if (error := ended.get()) is not None:
                raise error
        moments = from_start([executor.moments or () for executor in self.executors])
        for executor in self.executors:
            executor.moments = None
        return self._outputs(inputs), moments

    def _begin(self, inputs: Sequence[Any], micro_batches: int) -> None:
        if any(isinstance(inputs[number], jax.Array) and inputs[number].is_deleted() for number in self._read):
            raise InputError(GIVEN)
        inputs = self._own(inputs)
        fed: list[dict[int, Any]] = [{buffer: inputs[number] for number, buffer in own} for own in self._whole]
        for feed, part in fed_parts(inputs, self._cut, micro_batches, self.sharding if self._alone else None):
            fed[self.program.buffers[feed.buffer].mesh][feed.buffer] = part
        for mesh, executor in enumerate(self.executors):
            executor.begin(fed[mesh])

    def _own(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The inputs, with a copy of each array whose memory the step would take twice."""
        first: dict[int, int] = {}
        twice = [place for place in self._taken if first.setdefault(id(inputs[place]), place) != place]
        if not twice:
            return inputs
        return [jnp.copy(value) if place in twice else value for place, value in enumerate(inputs)]

    def _outputs(self, inputs: Sequence[Any]) -> list[Any]:
        assert all(executor.ended for executor in self.executors)
        outputs = [
            inputs[outcome.input] if outcome.buffer is None else self._output(outcome.buffer)  # type: ignore[index]
            for outcome in self.program.outcomes
        ]
        for executor in self.executors:
            executor.values = {}
        return outputs

    def _output(self, buffer: int) -> Any:
        """What a buffer holds; numbers lie on the first mesh, so that the caller can compute with them together."""
        mesh = self.program.buffers[buffer].mesh
        value = self.executors[mesh].values[buffer]
        if mesh and not self.program.buffers[buffer].shape and isinstance(value, jax.Array):
            return jax.device_put(value, NamedSharding(self.meshes[0], PartitionSpec()))
        return value
