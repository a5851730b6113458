"""A traced step, its stages and a schedule -> instruction lists: what is scheduled is what runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core
from jax.sharding import PartitionSpec

from meshwright.compiler.finish import Finish, counts_samples, shape_of
from meshwright.compiler.halves import Halves, SplitBackward, split_backward
from meshwright.compiler.inline import free_variables
from meshwright.compiler.instructions import Outcome, Program
from meshwright.compiler.lists import Lists, with_frees
from meshwright.compiler.operands import Operands, ancestors
from meshwright.compiler.shardings import Role, Sharding
from meshwright.compiler.trace import TracedStep
from meshwright.compiler.update import Update, spread_update
from meshwright.errors import InputError, Problem
from meshwright.schedules.communication import with_communication
from meshwright.schedules.table import Kind, ScheduleTable


def lower(
    step: TracedStep,
    halves: Sequence[Halves],
    table: ScheduleTable,
    shardings: Sequence[Sharding],
    devices: Sequence[int],
) -> Program:
    """Write the lists.

    Args:
        step: what is run.
        halves: forward and backward programs of its stages, in order.
        table: who runs which of them when; computation only.
        shardings: of values, by mesh.
        devices: of each mesh.

    Raises:
        InputError: the table has another number of stages or micro-batches than the step.
    """
    return _Lowering(step, halves, table, shardings, devices).program()


class _Lowering:
    def __init__(
        self, step: TracedStep, halves: Sequence[Halves], table: ScheduleTable, shardings: Sequence[Sharding],
        devices: Sequence[int],
    ) -> None:  # fmt: skip
        _check(step, halves, table)
        self.step, self.halves, self.table, self.shardings, self.devices = step, halves, table, shardings, devices
        placement = table.placement
        self.depth = len(halves)
        # Bidirectional schedules hold every stage twice: `copies` are the meshes of each stage, chain after chain.
        self.copies = placement.worker.reshape(-1, self.depth)
        self.first_of_chain = np.append(0, np.cumsum(table.micro_batches))
        self.out = Lists(table.p)
        self.operands = Operands(step, self.out, shardings, devices)
        self.splits: dict[int, SplitBackward] = {}
        self.counted: dict[tuple[int, int], int] = defaultdict(int)
        self.owner = self._owners()

    # ---- whole step

    def program(self) -> Program:
        for halves in self.halves:
            self._declare(halves)
        communicating = with_communication(self.table)
        for task in _in_rounds(communicating):
            self._task(communicating, task)
        finish = Finish(self.step, self.halves, self.out, self.shardings, self.devices, self.owner)
        finish.gradients(list(self.counted))
        finish.results(self.copies, np.repeat(range(len(self.table.micro_batches)), self.table.micro_batches).tolist())
        update = self._update()
        outcomes = [self._outcome(atom, update) for atom in self.step.jaxpr.outvars]
        kept = {outcome.buffer for outcome in outcomes}
        lists = tuple(tuple(with_frees(instructions, kept)) for instructions in self.out.lists)
        return Program(
            lists=lists,
            executables=self.out.executables,
            buffers=tuple(self.out.buffers),
            feeds=tuple(self.operands.feeds),
            outcomes=tuple(outcomes),
        )

    def _owners(self) -> dict[int, int]:
        """Mesh of each differentiated operand: that of the first stage that uses it, in the first chain."""
        owner: dict[int, int] = {}
        for halves in self.halves:
            for operand in halves.stage.parameters:
                owner.setdefault(operand, int(self.copies[0, halves.stage.index]))
        for operand in self.step.wrt:
            owner.setdefault(operand, 0)
        return owner

    # ---- executables of stages

    def _declare(self, halves: Halves) -> None:
        k = halves.stage.index
        self.out.executables[f"F{k}"] = halves.forward
        if Kind.I in self.table.kinds:
            split = self.splits[k] = split_backward(halves)
            self.out.executables[f"I{k}"] = split.inputs
            self._accumulating(f"W{k}", split.weights, 0)
        if Kind.B in self.table.kinds:
            self._accumulating(f"B{k}", halves.backward, len(halves.carried_in))

    def _accumulating(self, name: str, program: core.ClosedJaxpr, passed: int) -> None:
        """A program, and the same that adds its gradients (outputs from `passed` on) to what it is given last."""
        self.out.executables[name] = program
        outputs = program.jaxpr.outvars[passed:]

        def added(*operands: Any) -> list[Any]:
            given = core.jaxpr_as_fun(program)(*operands[: len(program.jaxpr.invars)])
            sums = operands[len(program.jaxpr.invars) :]
            return [*given[:passed], *(a + b for a, b in zip(sums, given[passed:], strict=True))]

        shapes = [shape_of(var) for var in [*program.jaxpr.invars, *outputs]]
        self.out.executables[f"{name}+"] = jax.make_jaxpr(added)(*shapes)

    # ---- tasks

    def _task(self, table: ScheduleTable, task: int) -> None:
        kind = Kind(table.kind[task])
        stage = int(table.stage[task])
        chain, k = divmod(stage, self.depth)
        mesh = int(table.worker[task])
        unit = int(self.first_of_chain[chain]) + int(table.micro_batch[task])
        label = f"{kind.name}{k}.{unit}"
        halves = self.halves[k]
        match kind:
            case Kind.F:
                self._forward(mesh, halves, unit, label)
            case Kind.B:
                self._backward(mesh, halves, unit, label)
            case Kind.I:
                self._input_gradient(mesh, halves, unit, label)
            case Kind.W:
                self._weight_gradient(mesh, halves, unit, label)
            case Kind.SEND_F:
                keys = [("carried", k, i, unit) for i in range(len(halves.stage.carried_out))]
                self.out.send(mesh, int(self.copies[chain, k + 1]), label, keys)
            case Kind.RECV_F:
                values = [
                    (("carried", k - 1, i, unit), var.aval, self._carried(mesh, var))
                    for i, var in enumerate(halves.stage.carried_in)
                ]
                self.out.receive(mesh, int(self.copies[chain, k - 1]), label, values)
            case Kind.SEND_B:
                keys = [("gradient", k - 1, i, unit) for i in halves.carried_in]
                self.out.send(mesh, int(self.copies[chain, k - 1]), label, keys)
            case Kind.RECV_B:
                values = [
                    (("gradient", k, i, unit), var.aval, self._carried(mesh, var))
                    for i, var in enumerate(halves.stage.carried_out)
                    if i in halves.carried_out
                ]
                self.out.receive(mesh, int(self.copies[chain, k + 1]), label, values)

    def _operands(self, mesh: int, halves: Halves, unit: int) -> list[int]:
        stage = halves.stage
        return [
            *(self.operands.of_loss(mesh, operand, unit, Role.PARAMETER) for operand in stage.parameters),
            *(self.out.at(mesh, ("carried", stage.index - 1, i, unit)) for i in range(len(stage.carried_in))),
            *(self.operands.of_loss(mesh, operand, unit, Role.OTHER) for operand in stage.others),
        ]

    def _forward(self, mesh: int, halves: Halves, unit: int, label: str) -> None:
        stage, k = halves.stage, halves.stage.index
        reads = self._operands(mesh, halves, unit)
        outputs = halves.forward.jaxpr.outvars
        handed, results = len(stage.carried_out), len(stage.results)
        writes = [
            *(
                self.out.new(mesh, ("carried", k, i, unit), var.aval, self._carried(mesh, var))
                for i, var in enumerate(stage.carried_out)
            ),
            *(
                self.out.new(mesh, ("result", place, unit), outputs[handed + i].aval)
                for i, place in enumerate(stage.results)
            ),
            *(self.out.new(mesh, ("saved", k, i, unit), var.aval) for i, var in enumerate(outputs[handed + results :])),
        ]
        self.out.run(mesh, f"F{k}", label, reads, writes)

    def _backward_reads(self, mesh: int, halves: Halves, unit: int) -> list[int]:
        k = halves.stage.index
        operands = self._operands(mesh, halves, unit)
        return [
            *(operands[place] for place in halves.kept),
            *(self.out.at(mesh, ("saved", k, i, unit)) for i in range(halves.saved)),
            *(self.out.at(mesh, ("gradient", k, i, unit)) for i in halves.carried_out),
        ]

    def _input_writes(self, mesh: int, halves: Halves, unit: int) -> list[int]:
        stage = halves.stage
        return [
            self.out.new(
                mesh,
                ("gradient", stage.index - 1, i, unit),
                stage.carried_in[i].aval,
                self._carried(mesh, stage.carried_in[i]),
            )
            for i in halves.carried_in
        ]

    def _backward(self, mesh: int, halves: Halves, unit: int, label: str) -> None:
        reads = self._backward_reads(mesh, halves, unit)
        inputs = self._input_writes(mesh, halves, unit)
        self._accumulate(mesh, halves, f"B{halves.stage.index}", label, reads, inputs)

    def _input_gradient(self, mesh: int, halves: Halves, unit: int, label: str) -> None:
        k = halves.stage.index
        split = self.splits[k]
        reads = self._backward_reads(mesh, halves, unit)
        writes = self._input_writes(mesh, halves, unit)
        outputs = split.inputs.jaxpr.outvars[len(writes) :]
        passed = [self.out.new(mesh, ("passed", k, i, unit), var.aval) for i, var in enumerate(outputs)]
        self.out.run(mesh, f"I{k}", label, reads, [*writes, *passed])

    def _weight_gradient(self, mesh: int, halves: Halves, unit: int, label: str) -> None:
        k = halves.stage.index
        split = self.splits[k]
        whole = self._backward_reads(mesh, halves, unit)
        reads = [whole[place] for place in split.kept]
        reads += [self.out.at(mesh, ("passed", k, i, unit)) for i in range(split.passed)]
        self._accumulate(mesh, halves, f"W{k}", label, reads, [])

    def _accumulate(
        self, mesh: int, halves: Halves, name: str, label: str, reads: list[int], writes: list[int]
    ) -> None:
        k = halves.stage.index
        keys = [("sum", k, operand) for operand in halves.stage.parameters]
        again = self.counted[mesh, k] > 0
        self.counted[mesh, k] += 1
        sums = [self.out.at(mesh, key) for key in keys] if again else []
        made = [self.out.new(mesh, key, self.step.loss.invars[key[2]].aval, self._spec(mesh, key[2])) for key in keys]
        if made or writes:
            self.out.run(mesh, f"{name}+" if again else name, label, [*reads, *sums], [*writes, *made])

    # ---- update

    def _update(self) -> Update:
        step = self.step
        made, places = self.operands.made_before, self.operands.place_of
        homes: dict[core.Var, int] = {}
        for number, operand in enumerate(step.wrt):
            homes[step.gradients[number]] = self.owner[operand]
            atom = step.mark.invars[operand]
            sources = [atom] if atom in places else []
            if atom in made:
                sources = free_variables(ancestors(atom, made, step.before))
            homes.update((var, self.owner[operand]) for var in sources if var.aval.shape == atom.aval.shape)
        for halves in self.halves:
            for place in halves.stage.results:
                homes[step.mark.outvars[place]] = int(self.copies[0, halves.stage.index])
        update = spread_update(step.jaxpr, step.after, homes)
        inside = set(step.mark.outvars) | {var for eqn in step.after for var in eqn.outvars}
        for number, part in enumerate(update.pieces):
            reads = []
            for var in part.inputs:
                if var not in inside:
                    role = Role.PARAMETER if self._is_parameter(var) else Role.STATE
                    reads.append(self.operands.value(part.mesh, var, None, role))
                    continue
                key = ("value", var)
                if (part.mesh, key) not in self.out.ids:
                    home = update.home[var]
                    self.out.send(home, part.mesh, f"value to update{number}", [key])
                    spec = self.out.buffers[self.out.at(home, key)].spec
                    self.out.receive(part.mesh, home, f"value to update{number}", [(key, var.aval, spec)])
                reads.append(self.out.at(part.mesh, key))
            name = f"update{number}"
            self.out.executables[name] = part.program
            writes = [
                self.out.new(part.mesh, ("value", var), var.aval, self._state_spec(part.mesh, var))
                for var in part.outputs
            ]
            self.out.run(part.mesh, name, name, reads, writes)
        return update

    def _is_parameter(self, var: core.Var) -> bool:
        return any(var is self.step.mark.invars[operand] for operand in self.step.wrt)

    def _state_spec(self, mesh: int, var: core.Var) -> Any:
        """An output takes the sharding of the input it replaces, where there is one: same place, same shape."""
        places = [place for place, atom in enumerate(self.step.jaxpr.outvars) if atom is var]
        for place in places:
            if place < len(self.step.jaxpr.invars):
                old = self.step.jaxpr.invars[place]
                if old.aval.shape == var.aval.shape and place not in self.step.batch:
                    role = Role.PARAMETER if self._is_parameter(old) else Role.STATE
                    return self.shardings[mesh].spec(role, old, self.devices[mesh])
        return None

    def _outcome(self, atom: Any, update: Update) -> Outcome:
        if isinstance(atom, core.Var) and atom in self.operands.place_of:
            return Outcome(input=self.operands.place_of[atom])
        if isinstance(atom, core.Var) and atom in update.home:
            home = update.home[atom]
            if (home, ("value", atom)) in self.out.ids:
                return Outcome(buffer=self.out.at(home, ("value", atom)))
        return Outcome(buffer=self.operands.value(0, atom, None, Role.OTHER))

    # ---- shardings

    def _spec(self, mesh: int, operand: int) -> PartitionSpec:
        return self.shardings[mesh].spec(Role.GRADIENT, self.step.loss.invars[operand], self.devices[mesh])

    def _carried(self, mesh: int, var: core.Var) -> PartitionSpec:
        role = Role.SAMPLES if counts_samples(self.step, var) else Role.OTHER
        return self.shardings[mesh].spec(role, var, self.devices[mesh])


def _check(step: TracedStep, halves: Sequence[Halves], table: ScheduleTable) -> None:
    problems = []
    depth = table.placement.stages // table.placement.chains
    if depth != len(halves):
        problems.append(Problem(
            what=f"a schedule of {depth} stages for a loss cut into {len(halves)}",
            why="every stage of the schedule runs one part of the loss", field="schedule",
        ))  # fmt: skip
    if sum(table.micro_batches) != step.micro_batches:
        problems.append(Problem(
            what=f"a schedule of {sum(table.micro_batches)} micro-batches for {step.micro_batches}",
            why="every micro-batch enters the pipeline once", field="schedule",
        ))  # fmt: skip
    if table.segments > 1 or table.kinds - {Kind.F, Kind.B, Kind.I, Kind.W}:
        others = sorted(Kind(kind).name for kind in table.kinds - {Kind.F, Kind.B, Kind.I, Kind.W})
        problems.append(Problem(
            what="a schedule with " + ("sequence segments" if table.segments > 1 else f"{', '.join(others)} tasks"),
            why="forward, backward, and the backward in two parts can be compiled", fix="another schedule",
            field="schedule",
        ))  # fmt: skip
    if problems:
        raise InputError(problems)


def _in_rounds(table: ScheduleTable) -> list[int]:
    """All tasks, each worker's in the order of its list, and none before what it needs."""
    needs = [[task for task in row if task >= 0] for row in table.needs.tolist()]
    done = [False] * table.tasks
    next_of = table.first[:-1].tolist()
    ends = table.first[1:].tolist()
    order: list[int] = []
    while len(order) < table.tasks:
        for worker, end in enumerate(ends):
            while next_of[worker] < end and all(done[task] for task in needs[next_of[worker]]):
                done[next_of[worker]] = True
                order.append(next_of[worker])
                next_of[worker] += 1
    return order
