"""Parts of a function and the meshes that run them -> instruction lists that only run forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core

from meshwright.compiler.inline import free_variables, is_dropped, piece
from meshwright.compiler.instructions import StepProgram, StepResult
from meshwright.compiler.instructions.lists import ListBuilder, with_frees
from meshwright.compiler.instructions.operands import Operands
from meshwright.compiler.joins import How
from meshwright.compiler.lowering.following import Followed
from meshwright.compiler.shardings import MeshSharding, ValueRole, counts_samples, shape_of
from meshwright.compiler.traced_step import TracedStep


def lower_forward(
    step: TracedStep, followed: Followed, shardings: Sequence[MeshSharding], devices: Sequence[int]
) -> StepProgram:
    """Write the lists: micro-batches go through the parts one behind the other.

    Where a mesh runs several parts, as many micro-batches as there are meshes go through one of them in a row.

    Args:
        step: what is run, as `trace_function` reads it.
        followed: its parts, and their meshes.
        shardings: the shardings of values, by mesh.
        devices: the devices of each mesh.
    """
    return _Forward(step, followed, shardings, devices).program()


class _Forward:
    def __init__(
        self, step: TracedStep, followed: Followed, shardings: Sequence[MeshSharding], devices: Sequence[int]
    ) -> None:
        self.step = step
        self.stages, self.meshes = followed.stages, followed.meshes
        self.shardings, self.devices = shardings, devices
        self.out = ListBuilder(len(devices))
        self.operands = Operands(self.step, self.out, shardings, devices)

    def program(self) -> StepProgram:
        for stage in self.stages:
            self.out.executables[f"F{stage.index}"] = stage.program
        units, row = self.step.micro_batches, len(set(self.meshes))
        for first in range(0, units, row):
            for k in range(len(self.stages)):
                for unit in range(first, min(first + row, units)):
                    self._forward(k, unit)
        for k, stage in enumerate(self.stages):
            for place in stage.results:
                self._result(self.meshes[k], place)
        self._behind()
        outcomes = [self._outcome(atom) for atom in self.step.jaxpr.outvars]
        kept = {outcome.buffer for outcome in outcomes}
        return StepProgram(
            lists=tuple(tuple(with_frees(instructions, kept)) for instructions in self.out.lists),
            executables=self.out.executables,
            buffers=tuple(self.out.buffers),
            feeds=tuple(self.operands.feeds),
            outcomes=tuple(outcomes),
        )

    def _forward(self, k: int, unit: int) -> None:
        stage, mesh = self.stages[k], self.meshes[k]
        if k:
            values = [
                (("carried", k - 1, i, unit), var.aval, self._carried(mesh, var))
                for i, var in enumerate(stage.carried_in)
            ]
            self.out.receive(mesh, self.meshes[k - 1], f"RECV_F{k}.{unit}", values)
        reads = [
            *(self.operands.of_loss(mesh, operand, unit, ValueRole.PARAMETER) for operand in stage.parameters),
            *(self.out.at(mesh, ("carried", k - 1, i, unit)) for i in range(len(stage.carried_in))),
            *(self.operands.of_loss(mesh, operand, unit, ValueRole.OTHER) for operand in stage.others),
        ]
        outputs = stage.program.jaxpr.outvars[len(stage.carried_out) :]
        writes = [
            *(
                self.out.new(mesh, ("carried", k, i, unit), var.aval, self._carried(mesh, var))
                for i, var in enumerate(stage.carried_out)
            ),
            *(self.out.new(mesh, ("result", place, unit), outputs[i].aval) for i, place in enumerate(stage.results)),
        ]
        self.out.run(mesh, f"F{k}", f"F{k}.{unit}", reads, writes)
        if k + 1 < len(self.stages):
            keys = [("carried", k, i, unit) for i in range(len(stage.carried_out))]
            self.out.send(mesh, self.meshes[k + 1], f"SEND_F{k}.{unit}", keys)

    def _result(self, mesh: int, place: int) -> None:
        """What became of a result in all micro-batches, as one."""
        join, var = self.step.joins[place], self.step.mark.outvars[place]
        units = range(self.step.micro_batches) if join.how is not How.SAME else range(1)
        reads = [self.out.at(mesh, ("result", place, unit)) for unit in units]
        if len(reads) == 1:
            self.out.ids[mesh, ("value", var)] = reads[0]
            return
        shape = shape_of(self.step.loss.outvars[place])
        program = jax.make_jaxpr(lambda *given: [join(given)])(*[shape] * len(reads))
        name = f"result{place}"
        self.out.executables[name] = program
        self.out.run(mesh, name, name, reads, [self.out.new(mesh, ("value", var), program.out_avals[0])])

    def _behind(self) -> None:
        """What is computed from results of all micro-batches, on the mesh of the last part."""
        eqns, mesh = self.step.after, self.meshes[-1]
        if not eqns:
            return
        inputs = free_variables(eqns)
        made = [var for eqn in eqns for var in eqn.outvars if not is_dropped(var)]
        reads = []
        for var in inputs:
            homes = [one for one in range(len(self.devices)) if (one, ("value", var)) in self.out.ids]
            if homes and mesh not in homes:
                spec = self.out.buffers[self.out.at(homes[0], ("value", var))].spec
                self.out.send(homes[0], mesh, "results", [("value", var)])
                self.out.receive(mesh, homes[0], "results", [(("value", var), var.aval, spec)])
            reads.append(
                self.out.at(mesh, ("value", var)) if homes else self.operands.value(mesh, var, None, ValueRole.OTHER)
            )
        self.out.executables["results"] = piece(self.step.jaxpr, eqns, inputs, made)
        writes = [self.out.new(mesh, ("value", var), var.aval) for var in made]
        self.out.run(mesh, "results", "results", reads, writes)

    def _outcome(self, atom: Any) -> StepResult:
        for mesh in range(len(self.devices)):
            if isinstance(atom, core.Var) and (mesh, ("value", atom)) in self.out.ids:
                return StepResult(buffer=self.out.at(mesh, ("value", atom)))
        return StepResult(buffer=self.operands.value(0, atom, None, ValueRole.OTHER))

    def _carried(self, mesh: int, var: core.Var) -> Any:
        role = ValueRole.SAMPLES if counts_samples(self.step, var) else ValueRole.OTHER
        return self.shardings[mesh].spec(role, var, self.devices[mesh])
