"""A function cut by the meshes that hold the parameters it reads: it goes to them, they stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.sharding import Mesh, PartitionSpec

from meshwright.compiler.cuts.cut import Body, CutStage, body_of, cut
from meshwright.compiler.cuts.layers import crossing_bytes
from meshwright.compiler.instructions import Op, StepProgram
from meshwright.compiler.shardings import ValueRole
from meshwright.compiler.traced_step import TracedStep
from meshwright.compiler.tracing.batch import batch_places
from meshwright.errors import InputError, Problem


@dataclass(frozen=True, slots=True)
class StatePlacement:
    """Where a value of the state is between two steps."""

    mesh: int
    spec: PartitionSpec | None


def state_placement(program: StepProgram, place: int) -> StatePlacement:
    """Where a training step leaves an input of its state; what it returns as it came, where it reads it first.

    Args:
        program: the program of the step.
        place: the place of the input.
    """
    outcome = program.outcomes[place] if place < len(program.outcomes) else None
    buffers = [outcome.buffer] if outcome is not None and outcome.buffer is not None else []
    buffers += [feed.buffer for feed in program.feeds if feed.input == place and feed.micro_batch is None]
    return next(
        (StatePlacement(program.buffers[one].mesh, program.buffers[one].spec) for one in buffers),
        StatePlacement(0, None),
    )


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class FollowedSharding:
    """Shardings on one mesh: parameters as they are there, samples split as those of the training step."""

    specs: Mapping[core.Var, PartitionSpec]
    samples: tuple[str, ...]
    """Axes of the mesh that split samples."""
    ranks: int
    """Devices along them."""

    @classmethod
    def on(
        cls, program: StepProgram, number: int, mesh: Mesh, specs: Mapping[core.Var, PartitionSpec]
    ) -> FollowedSharding:
        """The sharding of a program's operands as a training step has it.

        Args:
            program: the program of the step.
            number: the number of the mesh.
            mesh: the mesh with its devices.
            specs: the specs of inputs that are there.
        """
        received = {buffer for one in program.lists[number] if one.op is Op.RECV for buffer in one.writes}
        fed = [feed.buffer for feed in program.feeds if feed.micro_batch is not None]
        own = [buffer for buffer in fed if program.buffers[buffer].mesh == number]
        firsts = (program.buffers[buffer].spec for buffer in [*own, *sorted(received), *fed])
        first = next((spec[0] for spec in firsts if spec and spec[0] is not None), ())
        names = (first,) if isinstance(first, str) else tuple(first)
        here = tuple(name for name in names if name in mesh.shape)
        return cls(specs=specs, samples=here, ranks=prod(mesh.shape[name] for name in here))

    def spec(self, role: ValueRole, var: core.Var, devices: int) -> PartitionSpec:
        """How a value is sharded.

        Args:
            role: the role of the value.
            var: the variable of the function.
            devices: the number of devices of the mesh.
        """
        if var in self.specs:
            return self.specs[var]
        shape = var.aval.shape
        if role is not ValueRole.SAMPLES or not self.samples or not shape or shape[0] % self.ranks:
            return PartitionSpec()
        return PartitionSpec(self.samples if len(self.samples) > 1 else self.samples[0])


def followed_places(
    arguments: Sequence[Any],
    batch_argnums: Sequence[int],
    source: TracedStep,
    reads: Callable[..., Any] | None,
    name: str,
) -> dict[int, int]:
    """Which inputs of a training step the arguments of another function are.

    Args:
        arguments: the arguments of the function, arrays or shapes.
        batch_argnums: the argument numbers of the batch of them, those that hold samples.
        source: the training step.
        reads: the function from arguments like those of the step to what is given beside batches; without it, each
            argument is the first part of the state of the same structure and shapes, of such parts one that is
            differentiated.
        name: the name of the function.

    Returns:
        Input of the step for each leaf of the arguments that is one.

    Raises:
        InputError: none of the arguments is a part of the state, or `reads` gives something else than they are.
    """
    held = jax.tree.unflatten(source.in_tree, range(len(source.jaxpr.invars)))
    numbers = jax.tree.unflatten(jax.tree.structure(tuple(arguments)), range(len(jax.tree.leaves(tuple(arguments)))))
    samples = set(batch_places(arguments, batch_argnums))
    shapes = [(np.shape(leaf), jax.dtypes.result_type(leaf)) for leaf in jax.tree.leaves(tuple(arguments))]
    beside = [one for number, one in enumerate(numbers) if number not in batch_argnums]

    def same(mine: Any, theirs: Any) -> bool:
        if jax.tree.structure(mine) != jax.tree.structure(theirs):
            return False
        pairs = zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True)
        return all(
            shapes[one] == (source.jaxpr.invars[other].aval.shape, source.jaxpr.invars[other].aval.dtype)
            for one, other in pairs
        )

    if reads is not None:
        chosen = reads(*held)
        chosen = (
            (chosen,)
            if len(beside) == 1 and not same(beside, list(chosen) if isinstance(chosen, tuple) else chosen)
            else tuple(chosen)
        )
        pairs = list(zip(beside, chosen, strict=False))
        if len(chosen) != len(beside) or not all(same(one, other) for one, other in pairs):
            raise InputError(
                Problem(
                    what=f"reads gives {str(jax.tree.structure(chosen))[:200]} for {name}",
                    why=f"it takes {str(jax.tree.structure(tuple(beside)))[:200]} of the same shapes, beside its batch",
                    fix="return from reads what the function is called with",
                    field="reads",
                )
            )
    else:
        differentiated = {
            source.jaxpr.invars.index(atom)
            for atom in (source.mark.invars[at] for at in source.wrt)
            if isinstance(atom, core.Var) and atom in source.jaxpr.invars
        }
        parts = [
            part
            for number, tree in enumerate(held)
            for part in _parts(tree)
            if not set(jax.tree.leaves(part)) & set(source.batch)
        ]
        pairs = []
        for one in beside:
            found = [part for part in parts if same(one, part)]
            # A single array may have the shape of another by chance.
            several = len(jax.tree.leaves(one)) > 1
            best = max(found, key=lambda part: len(differentiated & set(jax.tree.leaves(part))), default=None)
            if best is not None and (several or differentiated & set(jax.tree.leaves(best))):
                pairs.append((one, best))
    matched = {
        one: other
        for mine, theirs in pairs
        for one, other in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True)
    }
    matched = {one: other for one, other in matched.items() if one not in samples}
    if not matched:
        raise InputError(
            Problem(
                what=f"no argument of {name} is a part of the training step's state",
                why="it follows the parameters that it is given to their devices, and finds them by structure"
                " and shapes",
                fix="pass a part of the state as it is, or say which: reads=lambda state, batch: state.params",
                field="method",
            )
        )
    return matched


def _parts(tree: Any) -> Iterator[Any]:
    """A tree and all trees in it."""
    yield tree
    children = jax.tree.leaves(tree, is_leaf=lambda node: node is not tree)
    if not (len(children) == 1 and children[0] is tree):
        for child in children:
            yield from _parts(child)


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Followed:
    """Parts of a function and the meshes that run them."""

    stages: tuple[CutStage, ...]
    meshes: tuple[int, ...]


def follow(step: TracedStep, where: Mapping[int, int]) -> Followed:
    """Cut a function into runs of equations that read parameters of one mesh; between two runs, where few bytes cross.

    Args:
        step: the function.
        where: mesh of each of its inputs that stays there.

    Raises:
        InputError: an equation reads parameters of different meshes.
    """
    places = {var: place for place, var in enumerate(step.jaxpr.invars)}
    operands = {
        operand: where[places[atom]]
        for operand, atom in enumerate(step.mark.invars)
        if isinstance(atom, core.Var) and places.get(atom) in where
    }
    body = body_of(step.loss, tuple(operands))
    home = _Home(step, body, operands)
    crossing = crossing_bytes(body)
    meshes: list[int] = []
    ends: list[int] = []
    last = 0
    """Mesh of the last equation that read parameters."""
    for number, eqn in enumerate(body.spine):
        mesh = home.of(eqn.invars)
        if mesh is None:
            continue
        if meshes and meshes[-1] != mesh:
            ends.append(last + 1 + int(np.argmin(crossing[last:number])))
        if not meshes or meshes[-1] != mesh:
            meshes.append(mesh)
        last = number
    made = {var for eqn in body.spine for var in eqn.outvars}
    # What no equation of the spine makes, the last part returns.
    alone = home.of([atom for atom in step.loss.outvars if isinstance(atom, core.Var) and atom not in made])
    meshes = meshes or [alone or 0]
    if alone not in (None, meshes[-1]):
        raise home.problem("a result", alone or 0, meshes[-1])
    return Followed(stages=cut(body, tuple(operands), [*ends, len(body.spine)]), meshes=tuple(meshes))


class _Home:
    """Which mesh can run an equation."""

    def __init__(self, step: TracedStep, body: Body, operands: Mapping[int, int]) -> None:
        self.of_var = {step.loss.invars[operand]: mesh for operand, mesh in operands.items()}
        self.light = {var: eqn for eqn in body.light for var in eqn.outvars}

    def of(self, atoms: Sequence[Any]) -> int | None:
        """Mesh that holds all parameters that some values are made of; None where there are no parameters.

        Raises:
            InputError: no mesh holds them all.
        """
        wanted, seen = list(atoms), set()
        found: int | None = None
        while wanted:
            atom = wanted.pop()
            if not isinstance(atom, core.Var) or atom in seen:
                continue
            seen.add(atom)
            if atom in self.light:
                wanted += self.light[atom].invars
            elif atom in self.of_var:
                if found is not None and found != self.of_var[atom]:
                    raise self.problem("an operation", found, self.of_var[atom])
                found = self.of_var[atom]
        return found

    def problem(self, what: str, one: int, other: int) -> InputError:
        return InputError(
            Problem(
                what=f"{what} of the function reads parameters of mesh {min(one, other)} and of mesh {max(one, other)}",
                why="parameters stay where they are, and the function goes from mesh to mesh",
                fix="reduce the parameters of each stage by themselves, or gather them: numpy.asarray",
                field="method",
            )
        )
