"""Schedules that update behind some micro-batches of a step while others are under way on older weights.

Every stage updates what it holds by itself, as soon as its own gradients are there, and the newer state gets buffers of
its own: a backward still finds the weights that its forward read. Stages of one mesh keep apart. So an update that
needs numbers of several stages (a norm over all gradients, a weight that two stages share) would make every update wait
for the whole pipeline; it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from meshwright.compiler.cuts.stage_programs import StageJaxprs
from meshwright.compiler.inline import free_variables, piece
from meshwright.compiler.instructions import StepResult
from meshwright.compiler.instructions.lists import ListBuilder
from meshwright.compiler.instructions.operands import Operands, ancestors
from meshwright.compiler.lowering.updating import is_parameter, state_spec
from meshwright.compiler.ranks.layout import Layout
from meshwright.compiler.shardings import MeshSharding, ValueRole, shape_of
from meshwright.compiler.traced_step import TracedStep
from meshwright.errors import InputError, Problem

_FIX = "1f1b or another schedule with one version of the weights"


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class StageUpdate:
    """What one stage does in each update."""

    places: tuple[int, ...]
    """Inputs of the step whose newer values it makes."""
    inputs: tuple[core.Var, ...]
    """Inputs of the step that it reads, and gradients of its own stage."""
    program: core.ClosedJaxpr


class VersionedUpdates:
    """Writes updates stage by stage, any number of them in a step."""

    def __init__(
        self,
        step: TracedStep,
        programs: Sequence[StageJaxprs],
        meshes: Sequence[int],
        lists: ListBuilder,
        operands: Operands,
        shardings: Sequence[MeshSharding],
        devices: Sequence[int],
        layouts: Sequence[Layout],
        micro_batches: int,
    ) -> None:
        """Find out what every stage updates.

        Args:
            step: the step that is run.
            programs: the programs of its stages.
            meshes: the meshes of the stages.
            lists: the instruction lists that are written.
            operands: the operands of the loss; learn which inputs get newer versions.
            shardings: the shardings of values, by mesh.
            devices: the devices of each mesh.
            layouts: the layouts of values, by mesh.
            micro_batches: the number of micro-batches whose gradients are added up for an update.

        Raises:
            InputError: stages cannot update by themselves, or the step does not return its state first.
        """
        self.step, self.programs, self.out, self.operands = step, programs, lists, operands
        self.shardings, self.devices, self.layouts = shardings, devices, layouts
        self.parts = micro_batches if step.mean else 1
        self.meshes = meshes
        self.made = [0] * len(meshes)
        """Updates that each stage has done."""
        self._eqns = [*step.before, *step.after]
        self._made_by = {var: eqn for eqn in self._eqns for var in eqn.outvars}
        self._stage_of_gradient = self._owners()
        self.places_of, self.home = self._split()
        self.updates = [self._program(k) for k in range(len(meshes))]
        operands.renewed = {(k, place) for k, places in enumerate(self.places_of) for place in places}

    def add(self, k: int) -> None:
        """Add the next update of a stage.

        Args:
            k: the stage, which has added up its gradients.
        """
        mesh, number = self.meshes[k], self.made[k]
        update, step = self.updates[k], self.step
        self.operands.version, self.operands.stage = number, k
        keys = self._gradient_keys(k, update.inputs)
        reads = [
            self.out.at(mesh, keys[var])
            if var in keys
            else self.operands.value(
                mesh, var, None, ValueRole.PARAMETER if is_parameter(step, var) else ValueRole.STATE
            )
            for var in update.inputs
        ]
        self.made[k] = number + 1
        writes = []
        for place in update.places:
            old = step.jaxpr.invars[place]
            spec = state_spec(step, old, self.shardings[mesh], self.devices[mesh])
            writes.append(self.out.new(mesh, ("state", k, place, number + 1), old.aval, spec))
        self.out.executables[f"update{k}"] = update.program
        self.out.run(mesh, f"update{k}", f"update{k}.{number}", reads, writes)

    def _gradient_keys(self, k: int, inputs: Sequence[core.Var]) -> Mapping[core.Var, tuple[object, ...]]:
        """Where the gradients are that the next update of a stage reads, reduced over its data ranks."""
        mesh, number, step = self.meshes[k], self.made[k], self.step
        layout = self.layouts[mesh]
        sums: dict[core.Var, tuple[object, ...]] = {
            var: ("sum", k, operand) for var, operand in zip(step.gradients, step.wrt, strict=True) if var in inputs
        }
        if layout.sum_is_gradient or not sums:
            return sums
        places = [place for place, var in enumerate(step.gradients) if var in sums]
        reduced = {step.gradients[place]: ("gradient", k, step.wrt[place], number) for place in places}
        name = f"gradients{k}"
        self.out.executables[name] = layout.totals(places, [1] * len(places), self.parts)
        writes = [
            self.out.new(mesh, reduced[var], var.aval, layout.gradient(operand).spec)
            for var, operand in ((step.gradients[place], step.wrt[place]) for place in places)
        ]
        self.out.run(mesh, name, f"{name}.{number}", [self.out.at(mesh, sums[var]) for var in reduced], writes)
        return reduced

    def outcomes(self) -> list[StepResult]:
        """Where each output of the step is, when all updates and all results of the loss are written."""
        found = []
        for place, atom in enumerate(self.step.jaxpr.outvars):
            if place in self.home:
                k = self.home[place]
                found.append(StepResult(buffer=self.out.at(self.meshes[k], ("state", k, place, self.made[k]))))
            elif isinstance(atom, core.Var) and atom in self.operands.place_of:
                found.append(StepResult(input=self.operands.place_of[atom]))
            elif isinstance(atom, core.Var) and atom in set(self.step.mark.outvars):
                mesh = next(mesh for mesh in self.meshes if (mesh, ("value", atom)) in self.out.ids)
                found.append(StepResult(buffer=self.out.at(mesh, ("value", atom))))
            else:
                found.append(StepResult(buffer=self.operands.value(0, atom, None, ValueRole.OTHER)))
        return found

    # ---- who updates what

    def _owners(self) -> dict[core.Var, int]:
        """Stage of each gradient."""
        step = self.step
        readers: dict[int, list[int]] = {}
        for one in self.programs:
            for operand in one.stage.parameters:
                readers.setdefault(operand, []).append(one.stage.index)
        shared = {operand: stages for operand, stages in readers.items() if len(stages) > 1}
        if shared:
            operand, stages = min(shared.items())
            raise InputError(
                Problem(
                    what=f"{self._name(operand)} is used by stages {' and '.join(map(str, stages))}",
                    why="gradients of both stages would be summed before each update, but stages update on their own"
                    " here",
                    fix=_FIX,
                    field="schedule",
                )
            )
        return {
            var: readers[operand][0] if operand in readers else 0
            for operand, var in zip(step.wrt, step.gradients, strict=True)
        }

    def _name(self, operand: int) -> str:
        atom = self.step.mark.invars[operand]
        place = self.operands.place_of.get(atom)
        if place is None:
            return "a differentiated value"
        paths = jax.tree_util.tree_leaves_with_path(
            jax.tree.unflatten(self.step.in_tree, range(len(self.step.jaxpr.invars)))
        )
        return f"argument {jax.tree_util.keystr(paths[place][0])}"

    def _split(self) -> tuple[list[set[int]], dict[int, int]]:
        """Inputs that each stage renews, and the stage whose newest value of each the step returns."""
        step = self.step
        self._check_outputs()
        states = self._state_places()
        home: dict[int, int] = {}
        everywhere: set[int] = set()
        for place in states:
            stages = {self._stage_of_gradient[var] for var in self._gradients(place)}
            if len(stages) > 1:
                raise InputError(
                    Problem(
                        what=f"the update adds up numbers of stages {', '.join(map(str, sorted(stages)))}",
                        why="with several versions of the weights every stage updates by itself, as soon as its own"
                        " gradients are there",
                        fix=f"leave out the norm over all gradients, or take {_FIX}",
                        field="schedule",
                    )
                )
            if stages:
                home[place] = stages.pop()
            else:
                everywhere.add(place)
                home[place] = 0
        renewed = [{place for place in states if home[place] == k} for k in range(len(self.meshes))]
        for k, own in enumerate(renewed):
            stage = self.programs[k].stage
            atoms = [step.mark.invars[operand] for operand in (*stage.parameters, *stage.others)]
            atoms += [step.jaxpr.outvars[place] for place in own]
            wanted = self._inputs(atoms) & set(states) - own
            while wanted:
                foreign = {place for place in wanted if place not in everywhere and home[place] != k}
                if foreign:
                    raise InputError(
                        Problem(
                            what=f"stage {k} reads state that stage {home[min(foreign)]} updates",
                            why="with several versions of the weights every stage keeps and updates its own state",
                            fix=_FIX,
                            field="schedule",
                        )
                    )
                own |= wanted
                wanted = self._inputs([step.jaxpr.outvars[place] for place in own]) & set(states) - own
        return renewed, home

    def _state_places(self) -> list[int]:
        """Inputs that the step returns renewed, at the same place."""
        step = self.step
        return [
            place
            for place, (old, new) in enumerate(zip(step.jaxpr.invars, step.jaxpr.outvars, strict=False))
            if place not in step.batch and new is not old and place < self._state_leaves()
        ]

    def _state_leaves(self) -> int:
        return jax.tree.structure(jax.tree.unflatten(self.step.in_tree, self.step.jaxpr.invars)[0]).num_leaves

    def _check_outputs(self) -> None:
        """The state comes first and back as it came; everything else is a result of the loss."""
        step = self.step
        given = jax.tree.unflatten(step.in_tree, step.jaxpr.invars)[0]
        returned = step.without_reports(jax.tree.unflatten(step.out_tree, step.jaxpr.outvars))
        first = returned[0] if isinstance(returned, tuple) and returned else returned
        same = jax.tree.structure(first) == jax.tree.structure(given) and all(
            new.aval.shape == old.aval.shape and new.aval.dtype == old.aval.dtype
            for new, old in zip(jax.tree.leaves(first), jax.tree.leaves(given), strict=True)
        )
        if not same:
            raise InputError(
                Problem(
                    what="the step does not return the newer state first, as it took it",
                    fix=_FIX,
                    field="schedule",
                    why="one call does several updates, each on the state that the one before returned",
                )
            )
        results = set(step.mark.outvars[: len(step.loss.outvars)])
        rest = step.jaxpr.outvars[self._state_leaves() :]
        if any(isinstance(atom, core.Var) and atom in self._made_by for atom in rest):
            raise InputError(
                Problem(
                    what="the step returns what the update computes, beside the state",
                    why="one call does several updates",
                    fix="return results of the loss only",
                    field="schedule",
                )
            )
        places = self._state_leaves()
        reads = {var for place in range(places) for var in self._sources([step.jaxpr.outvars[place]])}
        if reads & results:
            raise InputError(
                Problem(
                    what="the update reads results of the loss",
                    why="with several versions of the weights every stage updates by itself, and the loss is known"
                    " to the last",
                    fix=_FIX,
                    field="schedule",
                )
            )

    def _sources(self, atoms: Sequence[Any]) -> set[core.Var]:
        """Variables that some values are made of, none of which an equation around the loss makes."""
        found: set[core.Var] = set()
        for atom in atoms:
            if isinstance(atom, core.Var):
                eqns = ancestors(atom, self._made_by, self._eqns)
                found.update(free_variables(eqns) if eqns else [atom])
        return found

    def _gradients(self, place: int) -> set[core.Var]:
        return self._sources([self.step.jaxpr.outvars[place]]) & set(self.step.gradients)

    def _inputs(self, atoms: Sequence[Any]) -> set[int]:
        return {self.operands.place_of[var] for var in self._sources(atoms) if var in self.operands.place_of}

    def _program(self, k: int) -> StageUpdate:
        """One executable: the mean of the added gradients, and the equations of the update that this stage needs."""
        step, places = self.step, tuple(sorted(self.places_of[k]))
        outputs = [step.jaxpr.outvars[place] for place in places]
        needed = {
            id(eqn)
            for atom in outputs
            if isinstance(atom, core.Var)
            for eqn in ancestors(atom, self._made_by, self._eqns)
        }
        eqns = [eqn for eqn in self._eqns if id(eqn) in needed]
        free = dict.fromkeys(free_variables(eqns))
        free.update((atom, None) for atom in outputs if isinstance(atom, core.Var) and atom not in self._made_by)
        alone = core.jaxpr_as_fun(piece(step.jaxpr, eqns, list(free), outputs))
        summed = {
            var
            for var, operand in zip(step.gradients, step.wrt, strict=True)
            if any(operand in one.stage.parameters for one in self.programs)
        }
        inputs = [var for var in free if var in summed or var not in step.gradients]

        parts = self.parts if self.layouts[self.meshes[k]].sum_is_gradient else 1

        def update(*given: Any) -> list[Any]:
            values = dict(zip(inputs, given, strict=True))
            # What no stage reads has no gradient.
            whole = [values[var] if var in values else jnp.zeros(var.aval.shape, var.aval.dtype) for var in free]
            return alone(
                *(one / parts if var in summed and parts > 1 else one for var, one in zip(free, whole, strict=True))
            )

        program = jax.make_jaxpr(update)(*(shape_of(var) for var in inputs))
        return StageUpdate(places=places, inputs=tuple(inputs), program=program)
