"""Tasks of a schedule whose micro-batches run slice by slice of their sequences."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp

from meshwright.compiler.cuts.stage_programs import StageJaxprs
from meshwright.compiler.instructions.lists import ListBuilder
from meshwright.compiler.instructions.operands import Operands
from meshwright.compiler.instructions.stage_tasks import StageTasks
from meshwright.compiler.joins import How
from meshwright.compiler.ranks.layout import Layout, PlacedValue
from meshwright.compiler.shardings import ValueRole
from meshwright.compiler.slices.stages import SlicedValue, SliceStage
from meshwright.compiler.traced_step import TracedStep
from meshwright.schedules.table import Kind, ScheduleTable


class SliceTasks(StageTasks):
    """Writes the tasks of a table whose units are slices of micro-batches.

    What a slice keeps stays on its mesh until the backward of the first slice of its sequence. Backwards run from the
    last slice to the first: each adds to the gradients of what earlier slices kept, and ends with those of its own.
    """

    def __init__(
        self,
        step: TracedStep,
        slices: Sequence[Sequence[SliceStage]],
        table: ScheduleTable,
        lists: ListBuilder,
        operands: Operands,
        layouts: Sequence[Layout],
    ) -> None:
        """Declare what the stages run.

        Args:
            step: what is run.
            slices: the slices of each stage, in order.
            table: the table with communication.
            lists: the instruction lists to which the tasks are added.
            operands: the operands of the loss.
            layouts: the layouts of values, by mesh.
        """
        self.slices = slices
        super().__init__(step, [own[0].programs for own in slices], table, lists, operands, layouts)

    @property
    def makers(self) -> dict[int, list[tuple[int, range]]]:
        """The mesh that makes each result of the loss, and for which slices (all, or the last of a sequence)."""
        parts, units = self.table.segments, self.table.micro_batches[0]
        return {
            place: [(int(self.copies[0, k]), range(parts - 1, units, parts) if self._together(place) else range(units))]
            for k, own in enumerate(self.slices)
            for place in own[0].programs.stage.results
        }

    def _together(self, place: int) -> bool:
        """Whether slices make a result of their micro-batch before those of micro-batches are put together."""
        return self.step.joins[place].how in (How.JOINED, How.AVERAGED)

    def add(self, task: int) -> None:
        """Add one task; what it needs has been added.

        Args:
            task: number in the table.
        """
        table = self.table
        kind, k = Kind(table.kind[task]), int(table.stage[task])
        mesh, unit = int(table.worker[task]), int(table.micro_batch[task])
        own = self.slices[k][unit % table.segments]
        label = f"{kind.name}{k}.{unit}"
        layout = self.layouts[mesh]
        differentiable = own.programs.carried_in
        match kind:
            case Kind.F:
                self._slice_forward(mesh, own, unit, label)
            case Kind.B:
                self._slice_backward(mesh, own, unit, label)
            case Kind.SEND_F:
                keys = [("carried", k, i, unit) for i in range(len(own.carried_out))]
                self.out.send(mesh, int(self.copies[0, k + 1]), label, keys)
            case Kind.RECV_F:
                held = [self._carried(layout, own, i) for i in range(len(own.carried_in))]
                values = [(("carried", k - 1, i, unit), one.aval, one.spec) for i, one in enumerate(held)]
                self.out.receive(mesh, int(self.copies[0, k - 1]), label, values)
            case Kind.SEND_B:
                keys = [("gradient", k - 1, i, unit) for i in differentiable if i < len(own.carried_in)]
                self.out.send(mesh, int(self.copies[0, k - 1]), label, keys)
            case Kind.RECV_B:
                places = [i for i in own.programs.carried_out if i < len(own.carried_out)]
                held = [self._passed(layout, own, i, back=True) for i in places]
                values = [(("gradient", k, i, unit), one.aval, one.spec) for i, one in zip(places, held, strict=True)]
                self.out.receive(mesh, int(self.copies[0, k + 1]), label, values)

    # ---- values

    def _carried(self, layout: Layout, own: SliceStage, place: int, *, back: bool = False) -> PlacedValue:
        """What the stage before passes on, or, behind it, what an earlier slice kept."""
        if place >= len(own.carried_in):
            return layout.kept(own.programs.stage.carried_in[place].aval)
        return self._of_slice(layout, own.carried_in[place], back=back)

    def _passed(self, layout: Layout, own: SliceStage, place: int, *, back: bool = False) -> PlacedValue:
        """What this stage passes on, or, behind it, what the slice keeps."""
        if place >= len(own.carried_out):
            return layout.kept(own.programs.stage.carried_out[place].aval)
        return self._of_slice(layout, own.carried_out[place], back=back)

    def _of_slice(self, layout: Layout, value: SlicedValue, *, back: bool) -> PlacedValue:
        """A value of a slice as the mesh holds that of whole sequences."""
        held = layout.cotangent(value.whole) if back else layout.carried(value.whole)
        return self._shortened(held, value.slices, value.whole.aval.ndim)

    def _shortened(self, held: PlacedValue, slices: Mapping[int, int], dimensions: int) -> PlacedValue:
        """A value with the tokens of so many slices along some of its dimensions: ranks may add one before them."""
        shape = list(held.aval.shape)
        for place, count in slices.items():
            shape[place - dimensions] = shape[place - dimensions] // self.table.segments * count
        return replace(held, aval=jax.ShapeDtypeStruct(tuple(shape), held.aval.dtype))

    def _result(self, layout: Layout, own: SliceStage, at: int) -> PlacedValue:
        """A result of the loss as a slice makes it."""
        place, tokens = own.programs.stage.results[at], own.results[at]
        held = layout.result(place)
        if tokens < 0:
            return held
        return self._shortened(held, {tokens: 1}, self.step.loss.outvars[place].aval.ndim)

    # ---- executables

    def _declare(self, programs: StageJaxprs) -> None:
        k = programs.stage.index
        for own in self.slices[k]:
            self._declare_slice(k, own)

    def _declare_slice(self, k: int, own: SliceStage) -> None:
        programs, stage = own.programs, own.programs.stage
        layout = self.layouts[int(self.copies[0, k])]
        operands = [
            *(layout.parameter(operand) for operand in stage.parameters),
            *(self._carried(layout, own, i) for i in range(len(stage.carried_in))),
            *(layout.other(operand) for operand in stage.others),
        ]
        results = [self._result(layout, own, at) for at in range(len(stage.results))]
        handed = [*(self._passed(layout, own, i) for i in range(len(stage.carried_out))), *results]
        declare = partial(self.out.parted.declare, layout)
        saved = [layout.kept(var.aval) for var in programs.forward.jaxpr.outvars[len(handed) :]]
        name = f"{k}s{own.number}"
        declare(f"F{name}", programs.forward, operands, [*handed, *saved])
        reads = [
            *(operands[place] for place in programs.kept),
            *saved,
            *(self._passed(layout, own, i, back=True) for i in programs.carried_out),
        ]
        back = [self._carried(layout, own, i, back=True) for i in programs.carried_in]
        for at, place in enumerate(stage.results):
            if own.last and self._together(place):
                self._declare_together(layout, results[at], own, at)
        sums = [layout.sum(operand) for operand in stage.parameters]
        added = len(sums) + (0 if own.last else len(_earlier(own)))
        if own.last:
            declare(f"B{name}", programs.backward, reads, [*back, *sums])
        # The first backward of all is that of a last slice.
        declare(f"B{name}+", programs.backward, reads, [*back, *sums], added)

    def _declare_together(self, layout: Layout, held: PlacedValue, own: SliceStage, at: int) -> None:
        """What makes a result of a micro-batch of those of its slices: side by side along tokens, or added."""
        programs, tokens = own.programs, own.results[at]
        place, var = programs.stage.results[at], programs.forward.jaxpr.outvars[len(programs.stage.carried_out) + at]

        def joined(*given: Any) -> list[Any]:
            return [jnp.concatenate(given, axis=tokens) if tokens >= 0 else reduce(jnp.add, given)]

        parts = self.table.segments
        closed = jax.make_jaxpr(joined)(*[jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype)] * parts)
        self.out.executables[f"tokens{place}"] = layout.program(closed, [held] * parts, [layout.result(place)])

    # ---- tasks

    def _slice_operands(self, mesh: int, own: SliceStage, unit: int) -> list[int]:
        stage, micro_batch = own.programs.stage, unit // self.table.segments
        k, first = stage.index, unit - own.number
        return [
            *(self.operands.of_loss(mesh, operand, micro_batch, ValueRole.PARAMETER) for operand in stage.parameters),
            *(self.out.at(mesh, ("carried", k - 1, i, unit)) for i in range(len(own.carried_in))),
            *(self.out.at(mesh, ("keys", k, value, first + number)) for value, number in own.earlier),
            *(self.operands.of_loss(mesh, operand, micro_batch, ValueRole.OTHER) for operand in stage.others),
        ]

    def _slice_forward(self, mesh: int, own: SliceStage, unit: int, label: str) -> None:
        stage, layout = own.programs.stage, self.layouts[mesh]
        k, passed = stage.index, len(own.carried_out)
        reads = self._slice_operands(mesh, own, unit)
        keys = [
            ("carried", k, i, unit) if i < passed else ("keys", k, i - passed, unit)
            for i in range(len(stage.carried_out))
        ]
        writes = [
            *(self._new(mesh, key, self._passed(layout, own, i)) for i, key in enumerate(keys)),
            *(
                self._new(mesh, ("result", place, unit), self._result(layout, own, at))
                for at, place in enumerate(stage.results)
            ),
            *self._saved(mesh, own.programs, unit),
        ]
        self.out.run(mesh, f"F{k}s{own.number}", label, reads, writes)
        for place in stage.results if own.last else ():
            if self._together(place):
                made = [self.out.at(mesh, ("result", place, unit - own.number + at)) for at in range(own.number + 1)]
                whole = self._new(mesh, ("result", place, unit), layout.result(place))
                self.out.run(mesh, f"tokens{place}", f"tokens{place}.{unit}", made, [whole])

    def _slice_backward(self, mesh: int, own: SliceStage, unit: int, label: str) -> None:
        programs, layout = own.programs, self.layouts[mesh]
        stage, k = programs.stage, programs.stage.index
        passed, taken, first = len(own.carried_out), len(own.carried_in), unit - own.number
        operands = self._slice_operands(mesh, own, unit)
        reads = [
            *(operands[place] for place in programs.kept),
            *(self.out.at(mesh, ("saved", k, i, unit)) for i in range(programs.saved)),
            *(
                self.out.at(mesh, ("gradient", k, i, unit) if i < passed else ("keys gradient", k, i - passed, unit))
                for i in programs.carried_out
            ),
        ]
        places = own.earlier
        back = [
            ("gradient", k - 1, i, unit)
            if i < taken
            else ("keys gradient", k, places[i - taken][0], first + places[i - taken][1])
            for i in programs.carried_in
        ]
        sums = [("sum", k, operand) for operand in stage.parameters]
        again = self.counted[mesh, k] > 0
        self.counted[mesh, k] += 1
        # The first backward of all is that of a last slice, so that gradients of what it read are there to be added to.
        added = [] if not again else [*(back[len(back) - len(_earlier(own)) :] if not own.last else ()), *sums]
        before = [self.out.at(mesh, key) for key in added]
        writes = [
            *(
                self._new(mesh, key, self._carried(layout, own, i, back=True))
                for key, i in zip(back, programs.carried_in, strict=True)
            ),
            *(self._new(mesh, key, layout.sum(key[2])) for key in sums),
        ]
        if writes:
            self.out.run(mesh, f"B{k}s{own.number}{'+' if again else ''}", label, [*reads, *before], writes)


def _earlier(own: SliceStage) -> list[int]:
    """Gradients of what earlier slices kept, among those that a backward returns."""
    return [i for i in own.programs.carried_in if i >= len(own.carried_in)]
