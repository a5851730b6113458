"""The update behind all micro-batches as instructions, and where each output of the step is then."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jax.extend import core
from jax.sharding import PartitionSpec

from meshwright.compiler.cuts.stage_programs import StageJaxprs
from meshwright.compiler.inline import free_variables
from meshwright.compiler.instructions import StepResult
from meshwright.compiler.instructions.lists import ListBuilder
from meshwright.compiler.instructions.operands import Operands, ancestors
from meshwright.compiler.lowering.ahead import Ahead, ahead_of
from meshwright.compiler.lowering.reductions import phases_of
from meshwright.compiler.lowering.update import Update, spread_update
from meshwright.compiler.ranks.layout import Layout, PartitionedLayout, PlacedValue, shape_only
from meshwright.compiler.shardings import MeshSharding, ValueRole
from meshwright.compiler.traced_step import TracedStep
from meshwright.shapes import Int


class Updating:
    """Writes the one update of a step."""

    def __init__(
        self,
        step: TracedStep,
        programs: Sequence[StageJaxprs],
        lists: ListBuilder,
        operands: Operands,
        shardings: Sequence[MeshSharding],
        devices: Sequence[int],
        layouts: Sequence[Layout],
        homes: Mapping[core.Var, int] | None = None,
    ) -> None:
        """Nothing is written yet.

        Args:
            step: the step that is run.
            programs: the programs of its stages.
            lists: the instruction lists that are written.
            operands: the operands of the loss and the update.
            shardings: the shardings of values, by mesh.
            devices: the devices of each mesh.
            layouts: the layouts of values of the loss, by mesh.
            homes: mesh of other values, where that is decided.
        """
        self.step, self.programs, self.out, self.operands = step, programs, lists, operands
        self.written = 0
        """Pieces so far."""
        self.shardings, self.devices, self.layouts = shardings, devices, layouts
        self.decided = homes or {}
        self.ahead: Ahead | None = None
        pairs = zip(step.jaxpr.invars, step.jaxpr.outvars, strict=False)
        self.replaced = {
            new: old
            for place, (old, new) in reversed(list(enumerate(pairs)))
            if isinstance(new, core.Var) and old.aval.shape == new.aval.shape and place not in step.batch
        }
        """The input that each output replaces: same place, same shape."""
        self.operand_of = {step.mark.invars[operand]: operand for operand in step.wrt}

    def outcomes(self, owner: Mapping[int, int], copies: Int[np.ndarray, "chains stages"]) -> list[StepResult]:
        """Write the update; gradients and results of the loss are there.

        Args:
            owner: mesh of each differentiated operand of the loss.
            copies: mesh of each stage, chain after chain.

        Returns:
            The place of each output of the step.
        """
        made = self._update(owner, copies)
        return [self._outcome(atom, made) for atom in self.step.jaxpr.outvars]

    def find_ahead(self, owner: Mapping[int, int], copies: Int[np.ndarray, "chains stages"]) -> bool:
        """Find what of the update may run before the gradients are there; whether there is any.

        Args:
            owner: mesh of each differentiated operand of the loss.
            copies: mesh of each stage, chain after chain.
        """
        self.ahead = ahead_of(self.step, self._homes(owner, copies))
        return bool(self.ahead.update.pieces)

    def write_ahead(self, mesh: int) -> None:
        """Write what a mesh runs of it.

        Args:
            mesh: the mesh, whose list goes on behind it.
        """
        assert self.ahead is not None
        own = tuple(part for part in self.ahead.update.pieces if part.mesh == mesh)
        self._pieces(replace(self.ahead.update, pieces=own), self.ahead.eqns, self.ahead.update.home, "ahead")

    def _update(self, owner: Mapping[int, int], copies: Int[np.ndarray, "chains stages"]) -> Mapping[core.Var, int]:
        """All of the update; where the variables that it makes are."""
        step, made = self.step, {} if self.ahead is None else self.ahead.made
        homes = {**self._homes(owner, copies), **made}
        done = set() if self.ahead is None else {id(eqn) for eqn in self.ahead.eqns}
        after = [eqn for eqn in step.after if id(eqn) not in done]
        # Every mesh has these, and computes for itself what follows from them alone.
        combined: dict[core.Var, int] = {}
        for phase in phases_of(step.jaxpr, after, homes):
            update = spread_update(phase.jaxpr, phase.eqns, {**homes, **made})
            self._pieces(update, phase.eqns, {**update.home, **made, **combined})
            made |= {var: part.mesh for part in update.pieces for var in part.outputs}
            for one in phase.reductions:
                buffers = {mesh: self.out.at(mesh, ("value", part)) for mesh, part in one.parts.items()}
                label = f"{one.combine} of update"
                self.out.all_reduce(
                    buffers, one.combine, label, ("value", one.result), one.result.aval, PartitionSpec()
                )
                combined[one.result] = next(iter(buffers))
        return {**homes, **made, **combined}

    def _pieces(
        self, update: Update, eqns: Sequence[core.JaxprEqn], home: Mapping[core.Var, int], called: str = "update"
    ) -> None:
        step = self.step
        inside = {*step.mark.outvars, *(var for eqn in [*step.after, *eqns] for var in eqn.outvars)}
        readers: dict[core.Var, list[int]] = defaultdict(list)
        for part in update.pieces:
            for var in part.inputs:
                readers[var] += [part.mesh] if part.mesh not in readers[var] else []
        for part in update.pieces:
            number = self.written
            self.written += 1
            self._fetch(
                part.mesh, [var for var in part.inputs if var in inside], home, readers, f"value to {called}{number}"
            )
            reads = [
                self.out.at(part.mesh, ("value", var))
                if var in inside
                else self.operands.value(part.mesh, var, None, self._role(var))
                for var in part.inputs
            ]
            name = f"{called}{number}"
            split = {var: held for var in part.outputs if (held := self._updated_part(part.mesh, var)) is not None}
            writes = [
                self.out.new(part.mesh, ("part", var), var.aval, split[var].spec)
                if var in split
                else self.out.new(part.mesh, ("value", var), var.aval, self._state_spec(part.mesh, var))
                for var in part.outputs
            ]
            values = zip((*reads, *writes), (*part.inputs, *part.outputs), strict=True)
            placed = [self._placed(buffer, var) for buffer, var in values]
            layout = PartitionedLayout(step=step, sharding=self.shardings[part.mesh], devices=self.devices[part.mesh])
            self.out.parted.declare(layout, name, part.program, placed[: len(reads)], placed[len(reads) :])
            self.out.run(part.mesh, name, name, reads, writes)
            if split:
                self._gather(part.mesh, f"whole{number}", split)

    def _placed(self, buffer: int, var: core.Var) -> PlacedValue:
        return PlacedValue(aval=shape_only(var.aval), spec=self.out.buffers[buffer].spec)

    def _role(self, var: core.Var) -> ValueRole:
        return ValueRole.PARAMETER if var in self.operand_of else ValueRole.STATE

    def _fetch(
        self,
        mesh: int,
        wanted: Sequence[core.Var],
        home: Mapping[core.Var, int],
        readers: Mapping[core.Var, Sequence[int]],
        label: str,
    ) -> None:
        """Bring values to a mesh; to all that read them at once."""
        together: dict[tuple[int, tuple[int, ...]], list[core.Var]] = defaultdict(list)
        for var in wanted:
            if (mesh, ("value", var)) not in self.out.ids:
                lacking = [one for one in readers[var] if (one, ("value", var)) not in self.out.ids]
                together[home[var], tuple(one for one in lacking if one != home[var])].append(var)
        for (source, targets), variables in together.items():
            values = [
                (("value", var), var.aval, self.out.buffers[self.out.at(source, ("value", var))].spec)
                for var in variables
            ]
            if len(targets) > 1:
                self.out.broadcast(source, targets, label, values)
            else:
                self.out.send(source, targets[0], label, [key for key, _, _ in values])
                self.out.receive(targets[0], source, label, values)

    def _gather(self, mesh: int, name: str, split: Mapping[core.Var, PlacedValue]) -> None:
        """Parameters whose parts their ranks have updated."""
        self.out.executables[name] = self.layouts[mesh].whole_parameters(list(split.values()))
        reads = [self.out.at(mesh, ("part", var)) for var in split]
        writes = [self.out.new(mesh, ("value", var), var.aval, self._state_spec(mesh, var)) for var in split]
        self.out.run(mesh, name, name, reads, writes)

    def _updated_part(self, mesh: int, var: core.Var) -> PlacedValue | None:
        """How ranks update a parameter in parts, where they do."""
        old = self.replaced.get(var)
        return self.layouts[mesh].updated_part(self.operand_of[old]) if old in self.operand_of else None

    def _homes(self, owner: Mapping[int, int], copies: Int[np.ndarray, "chains stages"]) -> dict[core.Var, int]:
        """Mesh of each gradient, parameter and result of the loss."""
        step = self.step
        made, places = self.operands.made_before, self.operands.place_of
        homes = dict(self.decided)
        for number, operand in enumerate(step.wrt):
            homes[step.gradients[number]] = owner[operand]
            atom = step.mark.invars[operand]
            sources = [atom] if atom in places else []
            if atom in made:
                sources = free_variables(ancestors(atom, made, step.before))
            homes.update((var, owner[operand]) for var in sources if var.aval.shape == atom.aval.shape)
        for programs in self.programs:
            for place in programs.stage.results:
                homes[step.mark.outvars[place]] = int(copies[0, programs.stage.index])
        return homes

    def _state_spec(self, mesh: int, var: core.Var) -> Any:
        """An output takes the sharding of the input it replaces, where there is one."""
        old = self.replaced.get(var)
        return None if old is None else self.shardings[mesh].spec(self._role(old), old, self.devices[mesh])

    def _outcome(self, atom: Any, made: Mapping[core.Var, int]) -> StepResult:
        if isinstance(atom, core.Var) and atom in self.operands.place_of:
            return StepResult(input=self.operands.place_of[atom])
        if isinstance(atom, core.Var) and atom in made and (made[atom], ("value", atom)) in self.out.ids:
            return StepResult(buffer=self.out.at(made[atom], ("value", atom)))
        return StepResult(buffer=self.operands.value(0, atom, None, ValueRole.OTHER))


def is_parameter(step: TracedStep, var: Any) -> bool:
    """Whether a variable of the step is differentiated as it is.

    Args:
        step: any.
        var: the variable of it.
    """
    return any(var is step.mark.invars[operand] for operand in step.wrt)


def state_spec(step: TracedStep, var: core.Var, sharding: MeshSharding, devices: int) -> Any:
    """How a mesh shards an input of the step that lives from step to step.

    Args:
        step: any.
        var: the variable of its state.
        sharding: the sharding of the mesh.
        devices: the number of devices of the mesh.
    """
    role = ValueRole.PARAMETER if is_parameter(step, var) else ValueRole.STATE
    return sharding.spec(role, var, devices)
