"""Behind the last micro-batch: gradients summed where their parameters live, results of the loss put together."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from meshwright.compiler.cuts.stage_programs import StageJaxprs
from meshwright.compiler.instructions.lists import ListBuilder
from meshwright.compiler.ranks.layout import Layout
from meshwright.compiler.traced_step import TracedStep


class Finish:
    """What is summed, averaged or joined over micro-batches, stages and copies of stages."""

    def __init__(
        self,
        step: TracedStep,
        programs: Sequence[StageJaxprs],
        lists: ListBuilder,
        layouts: Sequence[Layout],
        owner: Mapping[int, int],
    ) -> None:
        """Nothing is written yet.

        Args:
            step: the step that is run.
            programs: the programs of its stages.
            lists: the instruction lists that are written.
            layouts: the layouts of values, by mesh.
            owner: mesh of each differentiated operand of the loss.
        """
        self.step, self.programs, self.out = step, programs, lists
        self.layouts, self.owner = layouts, owner
        self.parts = step.micro_batches if step.mean else 1

    def gradients(self, ran: Sequence[tuple[int, int]]) -> None:
        """Sum the gradients over stages and copies that share a parameter, on its owner; a mean where the loss is one.

        Args:
            ran: mesh and stage of every backward.
        """
        homes: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for mesh, k in sorted(ran):
            for operand in self.programs[k].stage.parameters:
                homes[operand].append((mesh, k))
        meshes = range(len(self.layouts))
        for mesh in meshes:
            for owner in meshes:
                shared = [
                    (at, k, operand)
                    for operand in self.step.wrt
                    for at, k in homes[operand]
                    if at == mesh != owner == self.owner[operand]
                ]
                self._give_gradients(mesh, owner, shared)
        for owner in meshes:
            own = [number for number, operand in enumerate(self.step.wrt) if self.owner[operand] == owner]
            if own:
                self._sum_gradients(owner, own, homes)

    def _give_gradients(self, mesh: int, owner: int, shared: Sequence[tuple[int, int, int]]) -> None:
        """Send gradients of shared parameters to their owner."""
        values = []
        for at, k, operand in shared:
            self.out.ids[mesh, ("far", at, k, operand)] = self.out.at(mesh, ("sum", k, operand))
            held = self.layouts[owner].sum(operand)
            values.append((("far", at, k, operand), held.aval, held.spec))
        self.out.send(mesh, owner, "shared gradients", [key for key, _, _ in values])
        self.out.receive(owner, mesh, "shared gradients", values)

    def _sum_gradients(self, owner: int, numbers: Sequence[int], homes: Mapping[int, list[tuple[int, int]]]) -> None:
        """One executable for all gradients of a mesh."""
        layout = self.layouts[owner]
        added: list[int] = []
        counts, reads, writes = [], [], []
        for number in numbers:
            operand, var = self.step.wrt[number], self.step.gradients[number]
            keys = [("sum", k, operand) if mesh == owner else ("far", mesh, k, operand) for mesh, k in homes[operand]]
            if self.parts == 1 and len(keys) == 1 and layout.sum_is_gradient:
                self.out.ids[owner, ("value", var)] = self.out.at(owner, keys[0])
                continue
            added.append(number)
            reads += [self.out.at(owner, key) for key in keys]
            counts.append(len(keys))
            writes.append(self.out.new(owner, ("value", var), var.aval, layout.gradient(operand).spec))
        if not added:
            return
        name = f"gradients{owner}"
        self.out.executables[name] = layout.totals(added, counts, self.parts)
        self.out.run(owner, name, name, reads, writes)

    def results(self, makers: Mapping[int, Sequence[tuple[int, Sequence[int]]]]) -> None:
        """Put together what the loss returned for each micro-batch, on the first mesh that makes it.

        Args:
            makers: the makers of each result: meshes that make it, and for which micro-batches, in order.
        """
        for place, meshes in makers.items():
            home, name = meshes[0][0], f"result{place}"
            for mesh, units in meshes:
                if mesh != home:
                    given = [("result", place, unit) for unit in units]
                    self.out.send(mesh, home, name, given)
                    held = self.layouts[home].result(place)
                    self.out.receive(home, mesh, name, [(key, held.aval, held.spec) for key in given])
            reads = [self.out.at(home, ("result", place, unit)) for _, units in meshes for unit in units]
            program = self.layouts[home].together(place, len(reads))
            self.out.executables[name] = program
            var = self.step.mark.outvars[place]
            self.out.run(home, name, name, reads, [self.out.new(home, ("value", var), program.out_avals[0])])
