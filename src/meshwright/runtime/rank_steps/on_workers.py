"""One program of all ranks on workers in other processes, which share its mesh as one group of JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, PartitionSpec

from meshwright.compiler.instructions import Feed, StepProgram, StepResult
from meshwright.compiler.instructions.lists import ListBuilder, with_frees
from meshwright.runtime.local import LocalRuntime
from meshwright.runtime.rank_steps.rank_steps import RanksOnDevices, State
from meshwright.runtime.workers.remote import RemoteRuntime

Runtime = LocalRuntime | RemoteRuntime
STEP = "step"
"""Name of the one executable."""


class RanksOnWorkers:
    """Steps of `RanksOnDevices` whose devices stand for those of workers; states stay with these between steps."""

    def __init__(self, ranks: RanksOnDevices, runtime: Callable[[StepProgram, Mesh], Runtime]) -> None:
        """Nothing is compiled before the first call.

        Args:
            ranks: the step, on devices of this process.
            runtime: runs a program on a mesh.
        """
        self._ranks, self._of = ranks, runtime
        self.runtime: Runtime | None = None
        """Since the first step."""
        self._returns: Any = None

    def __call__(self, state: State, batch: Any) -> tuple[Any, ...]:
        """Run the step; as `RanksOnDevices`.

        Args:
            state: the state as `RankStep.initial` makes it, or as the step before returned it.
            batch: the batch of all ranks.
        """
        if self.runtime is None:
            program, self._returns = ranks_program(self._ranks, state, batch)
            self.runtime = self._of(program, self._ranks.mesh)
        made: tuple[Any, ...] = jax.tree.unflatten(
            self._returns, self.runtime.step([*jax.tree.leaves(state), *jax.tree.leaves(batch)], 1)
        )
        return made

    def close(self) -> None:
        """Let workers and the state they keep go."""
        if isinstance(self.runtime, RemoteRuntime):
            self.runtime.close()
            self.runtime = None


def ranks_program(ranks: RanksOnDevices, state: State, batch: Any) -> tuple[StepProgram, Any]:
    """The step of all ranks as a list of one mesh: it is fed state and batch, runs one executable, and keeps the state.

    Args:
        ranks: the step.
        state: the state as `RankStep.initial` makes it, or its shapes.
        batch: the batch of all ranks, or its shapes.

    Returns:
        The program; and the tree of its results.
    """
    given = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), leaf.dtype), (state, batch))
    closed, made = jax.make_jaxpr(ranks.together, return_shape=True)(*given)
    after, *more = made
    out = ListBuilder(1)
    out.executables[STEP] = closed
    of_batch = [ranks.samples_spec] * len(jax.tree.leaves(batch))
    reads = _buffers(out, closed.in_avals, [*ranks.specs(state), *of_batch])
    results = [PartitionSpec()] * len(jax.tree.leaves(more))
    writes = _buffers(out, closed.out_avals, [*ranks.specs(after), *results])
    out.run(0, STEP, STEP, reads, writes)
    program = StepProgram(
        lists=(tuple(with_frees(out.lists[0], set(writes))),),
        executables=out.executables,
        buffers=tuple(out.buffers),
        feeds=tuple(Feed(buffer=buffer, input=place) for place, buffer in enumerate(reads)),
        outcomes=tuple(StepResult(buffer=buffer) for buffer in writes),
    )
    return program, jax.tree.structure(made)


def _buffers(out: ListBuilder, avals: Any, specs: list[PartitionSpec]) -> list[int]:
    return [out.new(0, len(out.buffers), aval, spec) for aval, spec in zip(avals, specs, strict=True)]
