"""The decision about a stage written into its program: shardings of operands, constraints between its equations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import jax
import numpy as np
from jax.extend import core
from jax.sharding import Mesh, PartitionSpec

from meshwright.compiler.cuts.cut import CutStage
from meshwright.compiler.cuts.stacks import recomputed_layers
from meshwright.compiler.pointwise import POINTWISE
from meshwright.compiler.sharding.cost import LogicalMesh
from meshwright.compiler.sharding.explain import explained_sharding
from meshwright.compiler.sharding.graph import DecisionGraph, graph_of
from meshwright.compiler.sharding.held import HeldProgram, partition
from meshwright.compiler.sharding.problem import Decision
from meshwright.compiler.sharding.solve import solve_choices
from meshwright.compiler.sharding.strategies import spread_axes
from meshwright.compiler.sharding.undivided import operator_parts, why_undivided
from meshwright.compiler.shardings import ValueRole
from meshwright.compiler.traced_step import TracedStep
from meshwright.errors import InputError

AXES = ("x", "y", "z")
"""Names of the axes of a logical mesh."""


CLEARLY = 1.05
"""How much less a decision about all axes has to take than one beside data ranks: where values move over two axes at
once, XLA may send more than was priced; sums over ranks are written here. Along one axis it is so much of what goes
beyond the work that every decision has."""
NEARLY_EQUAL = 1e-3
"""Part of a step that decides for nothing: programs too small to share take as long one way as the other."""


class StagesOfRanks(Protocol):
    """Stages as data ranks run them, which share nothing but sums."""

    @property
    def stages(self) -> tuple[CutStage, ...]:
        """The stages with programs for the samples of one rank."""
        ...

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """Axes of the mesh of the ranks, with their sizes."""
        ...


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class SolvedSharding:
    """Shardings of a step's values on one mesh, operator by operator."""

    graph: DecisionGraph
    solution: Decision
    mesh: Mesh
    specs: Mapping[core.Var, PartitionSpec]
    """Sharding of inputs, parameters, gradients and optimizer state."""
    ranks: StagesOfRanks | None = None
    """The stage for the data ranks along the first axis of the mesh, which share nothing but sums of gradients; None
    where every axis is left to the decision."""

    def spec(self, role: ValueRole, var: core.Var, devices: int) -> PartitionSpec:
        """How a value is sharded.

        Args:
            role: the role of the value; what is decided about a value holds for all of its roles, but that samples of
                the batch are shared out to data ranks first.
            var: the variable of the step or of its loss.
            devices: the number of devices of the mesh.
        """
        held = self.specs.get(var, PartitionSpec())
        if role is not ValueRole.SAMPLES or not self.rank_axes:
            return held
        first, *rest = [*held] or [None]
        names = () if first is None else (first,) if isinstance(first, str) else first
        return PartitionSpec((*self.rank_axes, *names), *rest)

    def explain(self) -> str:
        """Chosen sharding, cost and next best of each operator that chooses for itself, as a table."""
        names = AXES[len(self.rank_axes) :]
        return explained_sharding(self.graph, self.solution, names)

    @property
    def parts(self) -> tuple[int, ...]:
        """Parts into which devices share each operator that chooses for itself; 1: each does all of it."""
        return operator_parts(self.graph, self.solution.choice)

    def undivided(self) -> str | None:
        """What every device computes and what sharing it would take, where no product is split."""
        return why_undivided(self.graph, self.solution.choice)

    @property
    def rank_axes(self) -> tuple[str, ...]:
        """Axes of data ranks."""
        return () if self.ranks is None else tuple(name for name, _ in self.ranks.axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSetting:
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
    setting: StageSetting | None = None,
    layers: Sequence[CutStage] = (),
    on_ranks: Sequence[tuple[LogicalMesh, Mesh, StagesOfRanks]] = (),
) -> tuple[CutStage, SolvedSharding]:
    """Decide a stage on the mesh that serves best.

    Args:
        step: the step of whose loss it is a part.
        stage: the number of the stage.
        meshes: logical views of the same devices, priced, and as JAX has them.
        setting: what the stage stands in.
        layers: the layers of the stage, each to be run again in the backward where the setting says so.
        on_ranks: meshes on whose first axes data ranks run it, of which the rest is decided; they come first where
            costs are equal.

    Returns:
        The stage with constraints in its program, and the shardings of what it is given and makes.

    Raises:
        InfeasibleError: no choice fits into memory on any of the meshes.
        InputError: a choice that was made for another stage.
    """
    setting = setting or StageSetting()
    views: list[tuple[LogicalMesh, Mesh, StagesOfRanks | None]]
    views = [*on_ranks, *((view, mesh, None) for view, mesh in meshes)]
    graphs = [_graph(step, stage, view, own_ranks, setting) for view, _, own_ranks in views]
    solved = [_decided(graph, setting) for graph in graphs]
    best = int(np.argmin(_compared_s(graphs, solved, [ranks is not None for *_, ranks in views])))
    graph, found, (_, mesh, ranks) = graphs[best], solved[best], views[best]
    own = stage if ranks is None else ranks.stages[0]
    names = AXES[0 if ranks is None else len(ranks.axes) : mesh.devices.ndim]
    sharding = SolvedSharding(
        graph=graph,
        solution=found,
        mesh=mesh,
        ranks=ranks,
        specs=_of_step(step, _placements(step, stage, own, graph, found), graph.mesh, names, setting.split_state),
    )
    held = HeldProgram(choice=found.choice, mesh=mesh, names=names, ranks=() if ranks is None else ranks.axes)
    if not setting.recompute:
        return replace(own, program=held.program(own.program, graph.sites)), sharding
    parts = [replace(layer, program=held.program(layer.program, graph.sites)) for layer in layers]
    return with_recomputation(stage, parts), sharding


def _compared_s(graphs: Sequence[DecisionGraph], solved: Sequence[Decision], on_ranks: Sequence[bool]) -> list[float]:
    """Seconds by which decisions are compared: those without data ranks with a margin."""
    least_s = min(graph.compute_s(found.choice) for graph, found in zip(graphs, solved, strict=True))
    found_s = []
    for graph, found, ranks in zip(graphs, solved, on_ranks, strict=True):
        common_s = least_s if len(graph.mesh.axes) == 1 else 0.0
        margin_s = (CLEARLY - 1.0) * (found.objective_s - common_s) + NEARLY_EQUAL * found.objective_s
        found_s.append(found.objective_s + (0.0 if ranks else margin_s))
    return found_s


def _graph(
    step: TracedStep, stage: CutStage, view: LogicalMesh, ranks: StagesOfRanks | None, setting: StageSetting
) -> DecisionGraph:
    program = (stage if ranks is None else ranks.stages[0]).program.jaxpr
    count = 0 if ranks is None else len(ranks.axes)
    # The runtime adds whole gradients, micro-batch after micro-batch, so each is reduced, but for those of data ranks.
    return graph_of(
        program,
        program.invars[: len(stage.parameters)],
        replace(view, axes=view.axes[count:]),
        parameter_copies=bytes_per_parameter_byte(step),
        split_state=setting.split_state,
        carried=stage.carried_in,
        ranks=view.axes[:count],
        rank_syncs=1.0 / step.micro_batches,
    )


def _placements(
    step: TracedStep, stage: CutStage, own: CutStage, graph: DecisionGraph, found: Decision
) -> dict[core.Var, tuple[int, ...]]:
    """Where operands and results of a stage are, by their variables in the loss."""
    whole, program = stage.program.jaxpr, own.program.jaxpr
    pairs = [*zip(whole.invars, program.invars, strict=False), *zip(whole.outvars, program.outvars, strict=True)]
    return {
        var: placement
        for var, held in pairs
        if isinstance(var, core.Var)
        and isinstance(held, core.Var)
        and (placement := graph.placement(held, found.choice)) is not None
    }


def _decided(graph: DecisionGraph, setting: StageSetting) -> Decision:
    problem = graph.problem(in_flight=setting.in_flight, recompute=setting.recompute)
    if setting.choice is None:
        return solve_choices(problem, setting.memory_bytes)
    choice = setting.choice
    if len(choice) != len(problem.costs) or any(s >= len(c) for s, c in zip(choice, problem.costs, strict=True)):
        raise InputError(
            what=f"a plan with {len(choice)} decisions for a stage with {len(problem.costs)}",
            why="a plan is for one step, on batches of one shape",
            fix="plan this step",
            field="plan",
        )
    return Decision(
        choice=choice, objective_s=problem.value(choice), memory_bytes=problem.memory_of(choice), method="plan"
    )


def bytes_per_parameter_byte(step: TracedStep) -> float:
    """Bytes of parameters, gradients and state for each byte of parameters.

    Args:
        step: the step that it belongs to.
    """
    parameters = sum(_bytes(step.loss.invars[operand]) for operand in step.wrt)
    held = sum(_bytes(var) for place, var in enumerate(step.jaxpr.invars) if place not in step.batch)
    return (max(held, parameters) + parameters) / max(parameters, 1)


def _bytes(var: core.Var) -> int:
    return int(np.prod(var.aval.shape, dtype=np.int64)) * int(var.aval.dtype.itemsize)


def _of_step(
    step: TracedStep,
    placements: Mapping[core.Var, tuple[int, ...]],
    mesh: LogicalMesh,
    names: Sequence[str],
    split_state: bool,
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
    return {var: partition(placement, names) for var, placement in found.items()}


def with_recomputation(stage: CutStage, layers: Sequence[CutStage]) -> CutStage:
    """A stage whose backward runs the forward of each layer again, from the inputs of the layer.

    Args:
        stage: the whole.
        layers: the layers of which it consists.
    """
    jaxpr = stage.program.jaxpr
    operands = [*stage.parameters, *(-1 for _ in stage.carried_in), *stage.others]

    def run(*given: Any) -> list[Any]:
        of_loss = dict(zip(operands, given, strict=True))
        start = len(stage.parameters)
        handed: dict[Any, Any] = dict(zip(stage.carried_in, given[start : start + len(stage.carried_in)], strict=True))
        results: dict[int, Any] = {}
        for layer in layers:
            outputs = recomputed_layers(layer.program)(
                *(of_loss[place] for place in layer.parameters),
                *(handed[var] for var in layer.carried_in),
                *(of_loss[place] for place in layer.others),
            )
            handed.update(zip(layer.carried_out, outputs, strict=False))
            results.update(zip(layer.results, outputs[len(layer.carried_out) :], strict=True))
        return [*(handed[var] for var in stage.carried_out), *(results[place] for place in stage.results)]

    shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in jaxpr.invars]
    return replace(stage, program=jax.make_jaxpr(run)(*shapes))
