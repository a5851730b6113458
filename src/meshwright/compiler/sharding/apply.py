"""The decision about a stage written into its program: shardings of operands, constraints between its equations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from meshwright.compiler.cut import CutStage
from meshwright.compiler.inline import piece
from meshwright.compiler.pointwise import POINTWISE
from meshwright.compiler.sharding.cost import LogicalMesh, Placements
from meshwright.compiler.sharding.explain import explained
from meshwright.compiler.sharding.graph import CHOOSE, DecisionGraph, graph_of
from meshwright.compiler.sharding.nodes import EquationSite
from meshwright.compiler.sharding.problem import Decision
from meshwright.compiler.sharding.solve import solve_choices
from meshwright.compiler.sharding.strategies import spread_axes
from meshwright.compiler.shardings import Role
from meshwright.compiler.stacks import run_again
from meshwright.compiler.traced_step import TracedStep
from meshwright.errors import InputError, Problem

AXES = ("x", "y", "z")
"""Names of the axes of a logical mesh."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class SolvedSharding:
    """Shardings of a step's values on one mesh, operator by operator."""

    graph: DecisionGraph
    solution: Decision
    mesh: Mesh
    specs: Mapping[core.Var, PartitionSpec]
    """Sharding of inputs, parameters, gradients and optimizer state."""

    def spec(self, role: Role, var: core.Var, devices: int) -> PartitionSpec:
        """How a value is sharded.

        Args:
            role: of the value; what is decided about a value holds for all of its roles.
            var: of the step or of its loss.
            devices: of the mesh.
        """
        return self.specs.get(var, PartitionSpec())

    def explain(self) -> str:
        """Chosen sharding, cost and next best of each operator that chooses for itself, as a table."""
        return explained(self.graph, self.solution, AXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a stage stands in."""

    memory_bytes: float | None = None
    """Memory of one device, bytes; None: unlimited."""
    in_flight: float = 1.0
    """Micro-batches whose activations it holds at once."""
    recompute: bool = False
    """Whether its layers run their forward again."""
    split_state: bool = False
    """Whether optimizer state is split over all of its devices."""
    choice: tuple[int, ...] | None = None
    """Choice of each node from an earlier decision; None: decide now."""


def shard_stage(
    step: TracedStep,
    stage: CutStage,
    meshes: Sequence[tuple[LogicalMesh, Mesh]],
    setting: Setting | None = None,
    layers: Sequence[CutStage] = (),
) -> tuple[CutStage, SolvedSharding]:
    """Decide a stage on the mesh that serves best.

    Args:
        step: of whose loss it is a part.
        stage: which.
        meshes: logical views of the same devices, priced, and as JAX has them.
        setting: what the stage stands in.
        layers: of the stage, each to be run again in the backward where the setting says so.

    Returns:
        The stage with constraints in its program, and the shardings of what it is given and makes.

    Raises:
        InfeasibleError: no choice fits into memory on any of the meshes.
        InputError: a choice that was made for another stage.
    """
    setting = setting or Setting()
    program = stage.program.jaxpr
    parameters = program.invars[: len(stage.parameters)]
    # The runtime adds whole gradients, micro-batch after micro-batch, so each is reduced.
    graphs = [
        graph_of(
            program, parameters, view, parameter_copies=copies_of(step), split_state=setting.split_state,
            carried=stage.carried_in,
        )
        for view, _ in meshes
    ]  # fmt: skip
    solved = [_decided(graph, setting) for graph in graphs]
    best = int(np.argmin([found.objective_s for found in solved]))
    graph, found, mesh = graphs[best], solved[best], meshes[best][1]
    known = [atom for atom in [*program.invars, *program.outvars] if isinstance(atom, core.Var)]
    placements = {var: placement for var in known if (placement := graph.placement(var, found.choice)) is not None}
    sharding = SolvedSharding(
        graph=graph, solution=found, mesh=mesh, specs=_of_step(step, placements, graph.mesh, setting.split_state)
    )
    if not setting.recompute:
        return replace(stage, program=_constrained(stage.program, graph, found, mesh)), sharding
    held = [replace(layer, program=_constrained(layer.program, graph, found, mesh)) for layer in layers]
    return recomputed(stage, held), sharding


def _decided(graph: DecisionGraph, setting: Setting) -> Decision:
    problem = graph.problem(in_flight=setting.in_flight, recompute=setting.recompute)
    if setting.choice is None:
        return solve_choices(problem, setting.memory_bytes)
    choice = setting.choice
    if len(choice) != len(problem.costs) or any(s >= len(c) for s, c in zip(choice, problem.costs, strict=True)):
        raise InputError(
            Problem(
                what=f"a plan with {len(choice)} decisions for a stage with {len(problem.costs)}",
                why="a plan is for one step, on batches of one shape",
                fix="plan this step",
                field="plan",
            )
        )
    return Decision(
        choice=choice, objective_s=problem.value(choice), memory_bytes=problem.memory_of(choice), method="plan"
    )


def partition(placement: Sequence[int]) -> PartitionSpec:
    """A placement as JAX spells it.

    Args:
        placement: dimension that each axis of the mesh splits, or -1.
    """
    parts = [tuple(AXES[axis] for axis, at in enumerate(placement) if at == dim) for dim in range(max(placement) + 1)]
    return PartitionSpec(*(names[0] if len(names) == 1 else names or None for names in parts))


def copies_of(step: TracedStep) -> float:
    """Bytes of parameters, gradients and state for each byte of parameters.

    Args:
        step: whose.
    """
    parameters = sum(_bytes(step.loss.invars[operand]) for operand in step.wrt)
    held = sum(_bytes(var) for place, var in enumerate(step.jaxpr.invars) if place not in step.batch)
    return (max(held, parameters) + parameters) / max(parameters, 1)


def _bytes(var: core.Var) -> int:
    return int(np.prod(var.aval.shape, dtype=np.int64)) * int(var.aval.dtype.itemsize)


def _of_step(
    step: TracedStep, placements: Mapping[core.Var, tuple[int, ...]], mesh: LogicalMesh, split_state: bool
) -> dict[core.Var, PartitionSpec]:
    """Placements in the loss carried to inputs and gradients of the step, and from there through the update."""
    found = dict(placements)
    parameters = {step.mark.invars[operand] for operand in step.wrt}
    for operand, var in enumerate(step.loss.invars):
        atom = step.mark.invars[operand]
        if var in placements and isinstance(atom, core.Var):
            found[atom] = placements[var]
    for operand, gradient in zip(step.wrt, step.gradients, strict=True):
        if step.loss.invars[operand] in placements:
            found[gradient] = placements[step.loss.invars[operand]]
    # Moments are sharded as the gradients they are made of: along equations that go entry by entry.
    count = -1
    while len(found) != count:
        count = len(found)
        for eqn in [*step.after, *reversed(step.after)]:
            if eqn.primitive.name in POINTWISE:
                like = [atom for atom in [*eqn.invars, *eqn.outvars] if isinstance(atom, core.Var) and atom.aval.shape]
                known = next((found[var] for var in like if var in found), None)
                if known is not None:
                    found.update((var, known) for var in like if var not in found)
    if split_state:
        for place, var in enumerate(step.jaxpr.invars):
            if var in found and var not in parameters and place not in step.batch:
                found[var] = tuple(spread_axes(var.aval.shape, np.array([found[var]]), mesh)[0].tolist())
    return {var: partition(placement) for var, placement in found.items()}


def recomputed(stage: CutStage, layers: Sequence[CutStage]) -> CutStage:
    """A stage whose backward runs the forward of each layer again, from the inputs of the layer.

    Args:
        stage: the whole.
        layers: of which it consists.
    """
    jaxpr = stage.program.jaxpr
    operands = [*stage.parameters, *(-1 for _ in stage.carried_in), *stage.others]

    def run(*given: Any) -> list[Any]:
        of_loss = dict(zip(operands, given, strict=True))
        start = len(stage.parameters)
        handed: dict[Any, Any] = dict(zip(stage.carried_in, given[start : start + len(stage.carried_in)], strict=True))
        results: dict[int, Any] = {}
        for layer in layers:
            outputs = run_again(layer.program)(
                *(of_loss[place] for place in layer.parameters),
                *(handed[var] for var in layer.carried_in),
                *(of_loss[place] for place in layer.others),
            )
            handed.update(zip(layer.carried_out, outputs, strict=False))
            results.update(zip(layer.results, outputs[len(layer.carried_out) :], strict=True))
        return [*(handed[var] for var in stage.carried_out), *(results[place] for place in stage.results)]

    shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in jaxpr.invars]
    return replace(stage, program=jax.make_jaxpr(run)(*shapes))


def _constrained(closed: core.ClosedJaxpr, graph: DecisionGraph, solution: Decision, mesh: Mesh) -> core.ClosedJaxpr:
    """The program with its values held where the decision wants them; derivatives are held likewise."""
    jaxpr = closed.jaxpr
    sites = {id(site.eqn): site for site in graph.sites}

    def held(value: Any, rows: Placements | None, site: EquationSite) -> Any:
        if rows is None or not np.ndim(value):
            return value
        spec = partition(rows[solution.choice[site.node]].tolist())
        return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, spec))

    def run(*operands: Any) -> list[Any]:
        values: dict[Any, Any] = dict(zip(jaxpr.constvars, closed.consts, strict=True))
        values.update(zip(jaxpr.invars, operands, strict=True))
        read: Callable[[Any], Any] = lambda atom: atom.val if isinstance(atom, core.Literal) else values[atom]  # noqa: E731
        for eqn in jaxpr.eqns:
            site = sites.get(id(eqn))
            if site is None or not _held(site):
                alone = piece(jaxpr, [eqn])
                results = core.jaxpr_as_fun(alone)(*(values[var] for var in alone.jaxpr.invars))
                values.update(zip(alone.jaxpr.outvars, results, strict=True))
                continue
            given = [held(read(atom), rows, site) for atom, rows in zip(eqn.invars, site.operands, strict=True)]
            made = eqn.primitive.bind(*given, **eqn.params)
            made = made if eqn.primitive.multiple_results else [made]
            values.update(
                (var, held(value, rows, site)) for var, value, rows in zip(eqn.outvars, made, site.results, strict=True)
            )
        return [read(atom) for atom in jaxpr.outvars]

    shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in jaxpr.invars]
    return jax.make_jaxpr(run)(*shapes)


def _held(site: EquationSite) -> bool:
    """Operators that choose for themselves, and places where values of several operators meet."""
    name = site.eqn.primitive.name
    return name in CHOOSE or (name in POINTWISE and sum(rows is not None for rows in site.operands) > 1)
