"""Tasks of a schedule as instructions: what each stage runs, reads and makes for one micro-batch, and what it sends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np
from jax.extend import core

from meshwright.compiler.cuts.stage_programs import SplitBackward, StageJaxprs, split_backward
from meshwright.compiler.instructions.lists import Key, ListBuilder
from meshwright.compiler.instructions.operands import Operands
from meshwright.compiler.ranks.layout import Layout, PlacedValue
from meshwright.compiler.shardings import ValueRole
from meshwright.compiler.traced_step import TracedStep
from meshwright.schedules.table import Kind, ScheduleTable
from meshwright.shapes import Int


class StageTasks:
    """Writes the tasks of one table, one after the other."""

    def __init__(
        self,
        step: TracedStep,
        programs: Sequence[StageJaxprs],
        table: ScheduleTable,
        lists: ListBuilder,
        operands: Operands,
        layouts: Sequence[Layout],
        first_mesh: int = 0,
        first_unit: int = 0,
    ) -> None:
        """Declare what the stages run.

        Args:
            step: what is run.
            programs: forward and backward programs of its stages, in order.
            table: the table with communication.
            lists: the instruction lists to which the tasks are added.
            operands: the operands of the loss.
            layouts: the layouts of values, by mesh.
            first_mesh: number of the table's first worker among all meshes.
            first_unit: number of its first micro-batch among all.
        """
        self.first_mesh = first_mesh
        self.step, self.programs, self.table, self.out, self.operands = step, programs, table, lists, operands
        self.layouts = layouts
        self.depth = len(programs)
        # Bidirectional schedules hold every stage twice: `copies` are the meshes of each stage, chain after chain.
        self.copies: Int[np.ndarray, "chains stages"] = table.placement.worker.reshape(-1, self.depth) + first_mesh
        self.first_of_chain = np.append(0, np.cumsum(table.micro_batches)) + first_unit
        self.splits: dict[int, SplitBackward] = {}
        self.counted: dict[tuple[int, int], int] = defaultdict(int)
        """Backwards by mesh and stage that the sums of gradients hold."""
        for one in programs:
            self._declare(one)

    @property
    def makers(self) -> dict[int, list[tuple[int, range]]]:
        """Meshes that make each result of the loss, chain after chain, and for which micro-batches."""
        first = self.first_of_chain.tolist()
        units = [range(low, end) for low, end in pairwise(first)]
        return {
            place: list(zip(self.copies[:, local].tolist(), units, strict=True))
            for local, programs in enumerate(self.programs)
            for place in programs.stage.results
        }

    def add(self, task: int) -> None:
        """Add one task; what it needs has been added.

        Args:
            task: number in the table.
        """
        table = self.table
        kind = Kind(table.kind[task])
        chain, k = divmod(int(table.stage[task]), self.depth)
        mesh = int(table.worker[task]) + self.first_mesh
        unit = int(self.first_of_chain[chain]) + int(table.micro_batch[task])
        programs = self.programs[k]
        # What a stage makes is named by its number among the stages of all pipelines.
        named = programs.stage.index
        label = f"{kind.name}{named}.{unit}"
        self.operands.version, self.operands.stage = 0 if table.version is None else int(table.version[task]), k
        match kind:
            case Kind.F:
                again = Kind.R in table.kinds and table.at[Kind.R, table.stage[task], table.micro_batch[task]] >= 0
                self._forward(mesh, programs, unit, label, saves=not again)
            case Kind.R:
                self._recompute(mesh, programs, unit, label)
            case Kind.X:
                shadowed = self._shadowed(k)
                self._shadow(mesh, shadowed, unit, f"X{shadowed.stage.index}.{unit}")
            case Kind.B:
                self._backward(mesh, programs, unit, label)
            case Kind.I:
                self._input_gradient(mesh, programs, unit, label)
            case Kind.W:
                self._weight_gradient(mesh, programs, unit, label)
            case Kind.SEND_F:
                keys = [("carried", named, i, unit) for i in range(len(programs.stage.carried_out))]
                self.out.send(mesh, int(self.copies[chain, k + 1]), label, keys)
            case Kind.RECV_F:
                values = [
                    (("carried", named - 1, i, unit), *_buffer(self.layouts[mesh].carried(var)))
                    for i, var in enumerate(programs.stage.carried_in)
                ]
                self.out.receive(mesh, int(self.copies[chain, k - 1]), label, values)
            case Kind.SEND_B:
                keys = [("gradient", named - 1, i, unit) for i in programs.carried_in]
                self.out.send(mesh, int(self.copies[chain, k - 1]), label, keys)
            case Kind.RECV_B:
                values = [
                    (("gradient", named, i, unit), *_buffer(self.layouts[mesh].cotangent(var)))
                    for i, var in enumerate(programs.stage.carried_out)
                    if i in programs.carried_out
                ]
                self.out.receive(mesh, int(self.copies[chain, k + 1]), label, values)

    # ---- executables

    def _declare(self, programs: StageJaxprs) -> None:
        k, kinds, stage = programs.stage.index, self.table.kinds, programs.stage
        layout = self.layouts[int(self.copies[0, k - self.programs[0].stage.index])]
        operands = [
            *(layout.parameter(operand) for operand in stage.parameters),
            *(layout.carried(var) for var in stage.carried_in),
            *(layout.other(operand) for operand in stage.others),
        ]
        handed = [layout.carried(var) for var in stage.carried_out] + [layout.result(place) for place in stage.results]
        declare = partial(self.out.parted.declare, layout)
        outputs = programs.forward.jaxpr.outvars
        saved = [layout.kept(var.aval) for var in outputs[len(handed) :]]
        declare(f"F{k}", programs.forward, operands, [*handed, *saved])
        if Kind.R in kinds:
            declare(f"F{k}-", _returning(programs.forward, outputs[: len(handed)]), operands, handed)
            declare(f"R{k}", _returning(programs.forward, outputs[len(handed) :]), operands, saved)
        if Kind.X in kinds:
            self._declare_shadow(k)
        reads = [
            *(operands[place] for place in programs.kept),
            *saved,
            *(layout.cotangent(stage.carried_out[i]) for i in programs.carried_out),
        ]
        back = [layout.cotangent(stage.carried_in[i]) for i in programs.carried_in]
        sums = [layout.sum(operand) for operand in stage.parameters]
        if Kind.I in kinds:
            split = self.splits[k] = split_backward(programs)
            passed = [layout.kept(var.aval) for var in split.inputs.jaxpr.outvars[len(back) :]]
            declare(f"I{k}", split.inputs, reads, [*back, *passed])
            late = [*(reads[place] for place in split.kept), *passed]
            declare(f"W{k}", split.weights, late, sums)
            declare(f"W{k}+", split.weights, late, sums, len(sums))
        if Kind.B in kinds:
            declare(f"B{k}", programs.backward, reads, [*back, *sums])
            declare(f"B{k}+", programs.backward, reads, [*back, *sums], len(sums))

    def _shadowed(self, place: int) -> StageJaxprs:
        """Programs of the stage whose forward the worker of a stage runs too: the next one, the first behind the last.

        Args:
            place: the place of the stage in its chain.
        """
        return self.programs[(place + 1) % self.depth]

    def _declare_shadow(self, k: int) -> None:
        place = k - self.programs[0].stage.index
        programs, layout = self._shadowed(place), self.layouts[int(self.copies[0, place])]
        stage = programs.stage
        operands = [
            *(layout.parameter(operand) for operand in stage.parameters),
            *(layout.carried(var) for var in stage.carried_in),
            *(layout.other(operand) for operand in stage.others),
        ]
        made = [layout.kept(var.aval) for var in programs.forward.jaxpr.outvars]
        self.out.parted.declare(layout, f"X{stage.index}", programs.forward, operands, made)

    def _new(self, mesh: int, key: Key, held: PlacedValue) -> int:
        return self.out.new(mesh, key, held.aval, held.spec)

    # ---- tasks

    def _operands(self, mesh: int, programs: StageJaxprs, unit: int) -> list[int]:
        stage = programs.stage
        return [
            *(self.operands.of_loss(mesh, operand, unit, ValueRole.PARAMETER) for operand in stage.parameters),
            *(self.out.at(mesh, ("carried", stage.index - 1, i, unit)) for i in range(len(stage.carried_in))),
            *(self.operands.of_loss(mesh, operand, unit, ValueRole.OTHER) for operand in stage.others),
        ]

    def _forward(self, mesh: int, programs: StageJaxprs, unit: int, label: str, *, saves: bool) -> None:
        stage, k, layout = programs.stage, programs.stage.index, self.layouts[mesh]
        reads = self._operands(mesh, programs, unit)
        writes = [
            *(self._new(mesh, ("carried", k, i, unit), layout.carried(var)) for i, var in enumerate(stage.carried_out)),
            *(self._new(mesh, ("result", place, unit), layout.result(place)) for place in stage.results),
            *(self._saved(mesh, programs, unit) if saves else ()),
        ]
        self.out.run(mesh, f"F{k}" if saves else f"F{k}-", label, reads, writes)

    def _recompute(self, mesh: int, programs: StageJaxprs, unit: int, label: str) -> None:
        """The forward again, for what the backward reads of it."""
        reads = self._operands(mesh, programs, unit)
        writes = self._saved(mesh, programs, unit)
        if writes:
            self.out.run(mesh, f"R{programs.stage.index}", label, reads, writes)

    def _shadow(self, mesh: int, programs: StageJaxprs, unit: int, label: str) -> None:
        """The forward of a stage on a neighbour that has its weights and its inputs; nothing reads what it makes."""
        k, layout, made = programs.stage.index, self.layouts[mesh], programs.forward.jaxpr.outvars
        writes = [self._new(mesh, ("shadow", k, i, unit), layout.kept(var.aval)) for i, var in enumerate(made)]
        self.out.run(mesh, f"X{k}", label, self._operands(mesh, programs, unit), writes)

    def _saved(self, mesh: int, programs: StageJaxprs, unit: int) -> list[int]:
        outputs = programs.forward.jaxpr.outvars
        saved = outputs[len(outputs) - programs.saved :]
        k, layout = programs.stage.index, self.layouts[mesh]
        return [self._new(mesh, ("saved", k, i, unit), layout.kept(var.aval)) for i, var in enumerate(saved)]

    def _backward_reads(self, mesh: int, programs: StageJaxprs, unit: int) -> list[int]:
        k = programs.stage.index
        operands = self._operands(mesh, programs, unit)
        return [
            *(operands[place] for place in programs.kept),
            *(self.out.at(mesh, ("saved", k, i, unit)) for i in range(programs.saved)),
            *(self.out.at(mesh, ("gradient", k, i, unit)) for i in programs.carried_out),
        ]

    def _input_writes(self, mesh: int, programs: StageJaxprs, unit: int) -> list[int]:
        stage = programs.stage
        return [
            self._new(mesh, ("gradient", stage.index - 1, i, unit), self.layouts[mesh].cotangent(stage.carried_in[i]))
            for i in programs.carried_in
        ]

    def _backward(self, mesh: int, programs: StageJaxprs, unit: int, label: str) -> None:
        reads = self._backward_reads(mesh, programs, unit)
        inputs = self._input_writes(mesh, programs, unit)
        self._accumulate(mesh, programs, f"B{programs.stage.index}", label, reads, inputs)

    def _input_gradient(self, mesh: int, programs: StageJaxprs, unit: int, label: str) -> None:
        k = programs.stage.index
        split = self.splits[k]
        reads = self._backward_reads(mesh, programs, unit)
        writes = self._input_writes(mesh, programs, unit)
        outputs = split.inputs.jaxpr.outvars[len(writes) :]
        kept = self.layouts[mesh].kept
        passed = [self._new(mesh, ("passed", k, i, unit), kept(var.aval)) for i, var in enumerate(outputs)]
        self.out.run(mesh, f"I{k}", label, reads, [*writes, *passed])

    def _weight_gradient(self, mesh: int, programs: StageJaxprs, unit: int, label: str) -> None:
        k = programs.stage.index
        split = self.splits[k]
        whole = self._backward_reads(mesh, programs, unit)
        reads = [whole[place] for place in split.kept]
        reads += [self.out.at(mesh, ("passed", k, i, unit)) for i in range(split.passed)]
        self._accumulate(mesh, programs, f"W{k}", label, reads, [])

    def _accumulate(
        self, mesh: int, programs: StageJaxprs, name: str, label: str, reads: list[int], writes: list[int]
    ) -> None:
        k = programs.stage.index
        keys = [("sum", k, operand) for operand in programs.stage.parameters]
        again = self.counted[mesh, k] > 0
        self.counted[mesh, k] += 1
        sums = [self.out.at(mesh, key) for key in keys] if again else []
        made = [self._new(mesh, key, self.layouts[mesh].sum(key[2])) for key in keys]
        if made or writes:
            self.out.run(mesh, f"{name}+" if again else name, label, [*reads, *sums], [*writes, *made])


def in_rounds(table: ScheduleTable) -> list[int]:
    """All tasks, each worker's in the order of its list, and none before what it needs.

    Args:
        table: any.
    """
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


def _returning(closed: core.ClosedJaxpr, outputs: Sequence[Any]) -> core.ClosedJaxpr:
    """The same program with some of its results."""
    jaxpr = closed.jaxpr
    return core.ClosedJaxpr(
        jaxpr.replace(outvars=list(outputs), debug_info=jaxpr.debug_info.with_unknown_names()), closed.consts
    )


def _buffer(held: PlacedValue) -> tuple[Any, Any]:
    """Shape and sharding of what is received."""
    return held.aval, held.spec
