"""Operands of the loss and of the update on the meshes that read them: inputs, constants, what is made of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from meshwright.compiler.inline import depended_on, free_variables, is_dropped, piece
from meshwright.compiler.instructions import Feed
from meshwright.compiler.instructions.lists import ListBuilder
from meshwright.compiler.joins import Join, joint_p, phase_p, total_p
from meshwright.compiler.shardings import MeshSharding, ValueRole
from meshwright.compiler.traced_step import TracedStep
from meshwright.compiler.tracing.unplaced import NotStaged
from meshwright.errors import Problem

_UPDATE_READS_BATCH = Problem(
    what="the update reads the batch itself",
    why="it runs once, after all micro-batches; it sees the batch only through results of the loss",
    fix="return what it needs from the loss (has_aux=True)",
    field="batch",
)


class Operands:
    """Buffers of what a step is given, put on a mesh when something there first reads them."""

    def __init__(
        self,
        step: TracedStep,
        lists: ListBuilder,
        shardings: Sequence[MeshSharding],
        devices: Sequence[int],
        samples: Mapping[int, tuple[int, int]] | None = None,
        prefix: str = "",
    ) -> None:
        """No operand is anywhere yet.

        Args:
            step: the step with these operands.
            lists: the instruction lists to which the making of operands is added.
            shardings: the shardings of values, by mesh.
            devices: the devices of each mesh.
            samples: first sample and number of samples of each micro-batch, where they are not equal parts.
            prefix: the prefix of the names of what makes operands, where several traces of a step write the same lists.
        """
        self.samples, self.prefix = samples, prefix
        self.step, self.out, self.shardings, self.devices = step, lists, shardings, devices
        self.feeds: list[Feed] = []
        self.place_of = {var: place for place, var in enumerate(step.jaxpr.invars)}
        self.totals = {eqn.outvars[0]: eqn for eqn in step.before if eqn.primitive is total_p}
        """Values of the whole batch that are known before any loss is."""
        self.joint = {var: eqn for eqn in step.before for var in eqn.outvars if eqn.primitive is joint_p}
        """Values that are made of all samples together before any loss is."""
        self.phases = {var: eqn for eqn in step.before for var in eqn.outvars if eqn.primitive is phase_p}
        """Values that a micro-batch makes between values of the whole batch, and keeps."""
        self.made_before = {
            var: eqn for eqn in step.before for var in eqn.outvars if eqn.primitive not in (total_p, joint_p, phase_p)
        }
        self.version = 0
        """Updates that the state has seen which is read next."""
        self.stage = 0
        """Stage that reads it."""
        self.renewed: set[tuple[int, int]] = set()
        """Stage and place of inputs that updates in the step renew; newer ones are ("state", stage, place, version)."""

    def of_loss(self, mesh: int, operand: int, unit: int, role: ValueRole) -> int:
        """Buffer of an operand of the loss.

        Args:
            mesh: the mesh that reads it.
            operand: its position.
            unit: micro-batch.
            role: what it is for.
        """
        atom = self.step.mark.invars[operand]
        held = self.value(mesh, atom, unit, role)
        return self._gathered(mesh, atom, held) if role is ValueRole.PARAMETER else held

    def _gathered(self, mesh: int, atom: Any, held: int) -> int:
        """A parameter as stages read it: in place, or gathered once."""
        if isinstance(atom, core.Literal) or atom not in self.place_of:
            return held
        spec = self.shardings[mesh].spec(ValueRole.READ, atom, self.devices[mesh])
        if spec == self.out.buffers[held].spec:
            return held
        key = ("gathered", held)
        if (mesh, key) not in self.out.ids:
            name = f"gather{self.place_of[atom]}"
            self.out.executables[name] = jax.make_jaxpr(lambda value: [value])(atom.aval)
            self.out.run(mesh, name, name, [held], [self.out.new(mesh, key, atom.aval, spec)])
        return self.out.at(mesh, key)

    def value(self, mesh: int, atom: Any, unit: int | None, role: ValueRole) -> int:
        """Buffer of a value of the step that exists before the loss: fed, constant, or made from such.

        Args:
            mesh: the mesh that reads it.
            atom: variable or literal of the step.
            unit: micro-batch; None in the update, which is done once.
            role: what it is for.

        Raises:
            InputError: the update reads the batch.
        """
        if atom is self.step.number and unit is not None:
            return self._number(mesh, unit)
        if isinstance(atom, core.Literal) or atom in self.step.jaxpr.constvars:
            return self._constant(mesh, atom)
        if atom in self.totals:
            return self._total(mesh, self.totals[atom], unit, role)
        if atom in self.joint:
            return self._joint(mesh, atom, unit, role)
        if atom in self.phases:
            return self._phase(mesh, atom, unit, role)
        if atom in self.step.wholes:
            return self._whole(mesh, atom)
        if atom in self.place_of:
            place = self.place_of[atom]
            if self.version and (self.stage, place) in self.renewed:
                return self.out.at(mesh, ("state", self.stage, place, self.version))
            split = place in self.step.batch
            if split and unit is None:
                if self.step.micro_batches > 1:
                    raise NotStaged(_UPDATE_READS_BATCH)
                unit = 0
            key = ("input", place, unit if split else None)
            if (mesh, key) not in self.out.ids:
                role = ValueRole.SAMPLES if split else role
                spec = self.shardings[mesh].spec(role, atom, self.devices[mesh])
                buffer = self.out.new(mesh, key, atom.aval, spec)
                own = None if self.samples is None or not split or unit is None else self.samples[unit]
                self.feeds.append(Feed(buffer=buffer, input=place, micro_batch=unit if split else None, samples=own))
            return self.out.at(mesh, key)
        return self._prepared(mesh, atom, unit, role)

    def _whole(self, mesh: int, var: core.Var) -> int:
        """The samples of all micro-batches."""
        key = ("whole", var)
        if (mesh, key) not in self.out.ids:
            spec = self.shardings[mesh].spec(ValueRole.SAMPLES, var, self.devices[mesh])
            buffer = self.out.new(mesh, key, var.aval, spec)
            self.feeds.append(Feed(buffer=buffer, input=self.step.wholes[var]))
        return self.out.at(mesh, key)

    def _number(self, mesh: int, unit: int) -> int:
        """The number of a micro-batch among those of an update."""
        number = unit % (self.step.micro_batches // self.step.updates)
        key = ("number", number)
        if (mesh, key) not in self.out.ids:
            name = f"number{number}"
            self.out.executables[name] = jax.make_jaxpr(lambda: [jnp.asarray(number, jnp.int32)])()
            self.out.run(mesh, name, name, [], [self.out.new(mesh, key, jax.ShapeDtypeStruct((), jnp.int32))])
        return self.out.at(mesh, key)

    def _total(self, mesh: int, eqn: core.JaxprEqn, unit: int | None, role: ValueRole) -> int:
        """A value of the whole batch, or of the part of it that an update is made with."""
        each, first = self.step.micro_batches // self.step.updates, self._first(unit)
        key = ("total", eqn.outvars[0], first)
        if (mesh, key) not in self.out.ids:
            reads = [self.value(mesh, eqn.invars[0], one, role) for one in range(first, first + each)]
            name = f"total{list(self.totals).index(eqn.outvars[0])}"
            join = Join(eqn.params["how"], eqn.params.get("dimension", 0))
            part, shape = (
                jax.ShapeDtypeStruct(one.aval.shape, one.aval.dtype) for one in (eqn.invars[0], eqn.outvars[0])
            )
            self.out.executables.setdefault(name, jax.make_jaxpr(lambda *given: [join(given)])(*[part] * each))
            self.out.run(mesh, name, name, reads, [self.out.new(mesh, key, shape)])
        return self.out.at(mesh, key)

    def _first(self, unit: int | None) -> int:
        """The first micro-batch of the update that one belongs to."""
        return 0 if unit is None else unit - unit % (self.step.micro_batches // self.step.updates)

    def _joint(self, mesh: int, var: core.Var, unit: int | None, role: ValueRole) -> int:
        """A value made of all samples together, with all others that are made with it."""
        if (mesh, ("joint", var)) not in self.out.ids:
            eqn = self.joint[var]
            inputs, made = free_variables([eqn]), [one for one in eqn.outvars if not is_dropped(one)]
            name = f"{self.prefix}joint{list(self.joint).index(eqn.outvars[0])}"
            self.out.executables.setdefault(name, piece(self.step.jaxpr, [eqn], inputs, made))
            reads = [self.value(mesh, one, unit, role) for one in inputs]
            self.out.run(mesh, name, name, reads, [self.out.new(mesh, ("joint", one), one.aval) for one in made])
        return self.out.at(mesh, ("joint", var))

    def _phase(self, mesh: int, var: core.Var, unit: int | None, role: ValueRole) -> int:
        """A value that a micro-batch makes in a phase, with all others that it makes there."""
        if (mesh, ("phase", var, unit)) not in self.out.ids:
            eqn = self.phases[var]
            name = f"{self.prefix}phase{list(self.phases).index(eqn.outvars[0])}"
            self.out.executables.setdefault(name, eqn.params["program"])
            reads = [self.value(mesh, one, unit, role) for one in eqn.invars]
            made = [self.out.new(mesh, ("phase", one, unit), one.aval) for one in eqn.outvars]
            self.out.run(mesh, name, f"{name}.{unit}", reads, made)
        return self.out.at(mesh, ("phase", var, unit))

    def _constant(self, mesh: int, atom: Any) -> int:
        key = ("constant", id(atom) if isinstance(atom, core.Literal) else atom)
        if (mesh, key) not in self.out.ids:
            value = (
                atom.val if isinstance(atom, core.Literal) else self.step.consts[self.step.jaxpr.constvars.index(atom)]
            )
            name = f"constant{len(self.out.executables)}"
            self.out.executables[name] = jax.make_jaxpr(lambda: [jnp.asarray(value, atom.aval.dtype)])()
            self.out.run(mesh, name, name, [], [self.out.new(mesh, key, atom.aval)])
        return self.out.at(mesh, key)

    def _prepared(self, mesh: int, var: core.Var, unit: int | None, role: ValueRole) -> int:
        """A value that equations before the mark make, once or for each micro-batch."""
        eqns = ancestors(var, self.made_before, self.step.before)
        inputs = free_variables(eqns)
        of_batch = any(
            self.place_of.get(one) in self.step.batch or one is self.step.number or one in self.phases for one in inputs
        )
        if not of_batch:
            unit = self._first(unit) if any(one in self.totals for one in inputs) else None
        newer = any((self.stage, self.place_of.get(one)) in self.renewed for one in inputs)
        version = (self.stage, self.version) if newer else 0
        key = ("before", var, unit, version)
        if (mesh, key) not in self.out.ids:
            number = list(self.made_before).index(var)
            name = f"{self.prefix}before{number}"
            self.out.executables.setdefault(name, piece(self.step.jaxpr, eqns, inputs, [var]))
            reads = [self.value(mesh, one, unit, role) for one in inputs]
            label = f"{name}.{unit}" if of_batch else name
            self.out.run(mesh, name, label, reads, [self.out.new(mesh, key, var.aval)])
        return self.out.at(mesh, key)


def ancestors(
    var: core.Var, made: Mapping[core.Var, core.JaxprEqn], order: Sequence[core.JaxprEqn]
) -> list[core.JaxprEqn]:
    """Equations that a variable needs, in order.

    Args:
        var: what is needed.
        made: equation of each variable.
        order: all equations, in order.
    """
    found = depended_on([var], made)
    return [eqn for eqn in order if id(eqn) in found]
