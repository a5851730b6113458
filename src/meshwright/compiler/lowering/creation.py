"""State made where a step wants it: one executable per mesh, which makes only what belongs there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend import core
from jax.sharding import PartitionSpec

from meshwright.compiler.cost import aval_bytes
from meshwright.compiler.instructions import Buffer, Feed, Instruction, Op, StepProgram, StepResult
from meshwright.errors import InputError, Problem


def creation(
    program: StepProgram,
    init: Callable[..., Any],
    arguments: Sequence[Any],
    wanted: Any,
    parted: Callable[[Sequence[Any]], Sequence[Any]] | None = None,
) -> StepProgram:
    """The program that makes the state of a step, every value on the mesh that reads it first, sharded as it reads it.

    Args:
        program: the program of the step; its first inputs are the state.
        init: makes the state.
        arguments: the arguments of `init`, arrays or shapes.
        wanted: the state's shapes, as its user sees them.
        parted: the function from the leaves of the state to the inputs of the step; without it the inputs are the
            leaves.

    Raises:
        InputError: `init` makes something else than the step takes.
    """
    closed, made = jax.make_jaxpr(init, return_shape=True)(*arguments)
    _same(made, wanted)
    if parted is not None:
        closed = jax.make_jaxpr(lambda *given: parted(jax.tree.leaves(init(*given))))(*arguments)
    places: dict[int, tuple[int, PartitionSpec | None]] = {}
    for feed in program.feeds:
        read = program.buffers[feed.buffer]
        if feed.micro_batch is None:
            places.setdefault(feed.input, (read.mesh, read.spec))
    on_mesh: dict[int, list[int]] = defaultdict(list)
    for leaf in range(len(closed.jaxpr.outvars)):
        on_mesh[places.get(leaf, (0, None))[0]].append(leaf)
    buffers: list[Buffer] = []
    feeds: list[Feed] = []
    lists: list[tuple[Instruction, ...]] = []
    executables = {}
    where: dict[int, int] = {}

    def buffer(mesh: int, aval: Any, spec: PartitionSpec | None) -> int:
        buffers.append(
            Buffer(mesh=mesh, shape=tuple(aval.shape), dtype=str(aval.dtype), bytes=aval_bytes(aval), spec=spec)
        )
        return len(buffers) - 1

    for mesh in range(program.meshes):
        leaves = on_mesh[mesh]
        if not leaves:
            lists.append(())
            continue
        reads = [buffer(mesh, aval, PartitionSpec()) for aval in closed.in_avals]
        feeds += [Feed(buffer=number, input=place) for place, number in enumerate(reads)]
        writes = [
            buffer(mesh, closed.out_avals[leaf], places.get(leaf, (0, None))[1] or PartitionSpec()) for leaf in leaves
        ]
        where |= dict(zip(leaves, writes, strict=True))
        name = f"create{mesh}"
        executables[name] = _only(closed, leaves)
        run = Instruction(op=Op.RUN, label=name, reads=tuple(reads), writes=tuple(writes), executable=name)
        let_go = Instruction(op=Op.FREE, label=name, reads=tuple(reads))
        lists.append((run, let_go) if reads else (run,))
    return StepProgram(
        lists=tuple(lists),
        executables=executables,
        buffers=tuple(buffers),
        feeds=tuple(feeds),
        outcomes=tuple(StepResult(buffer=where[leaf]) for leaf in range(len(where))),
    )


def _only(closed: core.ClosedJaxpr, leaves: Sequence[int]) -> core.ClosedJaxpr:
    """The same with some of the results; what they do not need is not computed."""
    function = core.jaxpr_as_fun(closed)
    return jax.make_jaxpr(lambda *values: [function(*values)[leaf] for leaf in leaves])(*closed.in_avals)


def _same(made: Any, wanted: Any) -> None:
    """Whether the tree, the shapes and the formats are those of the step's state."""
    if jax.tree.structure(made) != jax.tree.structure(wanted):
        problem = Problem(
            what=f"the state that is made is {str(jax.tree.structure(made))[:200]}",
            why=f"the step takes {str(jax.tree.structure(wanted))[:200]}",
            fix="return from it what the step takes as its first argument",
            field="init",
        )
        raise InputError(problem)
    ours, theirs = jax.tree_util.tree_leaves_with_path(made), jax.tree.leaves(wanted)
    wrong = [
        Problem(
            what=f"the state that is made has {one.dtype}{list(one.shape)} at {jax.tree_util.keystr(path)}",
            why=f"the step was compiled for {other.dtype}{list(other.shape)}",
            fix="make what the step takes",
            field="init",
        )
        for (path, one), other in zip(ours, theirs, strict=True)
        if tuple(one.shape) != tuple(other.shape) or one.dtype != other.dtype
    ]
    if wrong:
        raise InputError(wrong[:10])
