"""A training step compiled for arguments of certain shapes, ready to run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax

from meshwright.compiler.instructions import StepProgram
from meshwright.compiler.instructions.listing import saved
from meshwright.compiler.instructions.verify import VerifiedLists
from meshwright.compiler.lowering.creation import creation
from meshwright.compiler.method_plan import MethodPlan
from meshwright.compiler.placed_lines import placed_lines
from meshwright.compiler.sharding.apply import SolvedSharding
from meshwright.compiler.sharding.hlo_collectives import Collectives
from meshwright.compiler.shardings import MeshSharding
from meshwright.compiler.stages.plan import StagesPlan
from meshwright.compiler.traced_step import TracedStep
from meshwright.compiler.tracing.weak_types import as_weak, weak_places
from meshwright.formats.writing import write_file
from meshwright.runtime.local import LocalRuntime
from meshwright.runtime.moments import Moments
from meshwright.runtime.stacked import StackedArray, stacked, stacked_parts
from meshwright.runtime.workers.remote import RemoteRuntime
from meshwright.schedules.table import ScheduleTable


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class CompiledStep:
    """A step compiled for arguments of certain shapes."""

    step: TracedStep
    table: ScheduleTable
    program: StepProgram
    verified: VerifiedLists
    shardings: tuple[MeshSharding, ...]
    """Shardings of values, by mesh; those that were decided operator by operator say why: `explain()`."""
    runtime: LocalRuntime | RemoteRuntime
    reductions: str = ""
    """When gradients are reduced, and why; empty on single devices."""
    idle: tuple[str, ...] = ()
    """What was said about devices that do no work of their own."""
    plan: StagesPlan | MethodPlan | None = None
    """What was decided: `plan.save(path)`, then `FromPlan.load(path)`; None of a plan of the planner, which is a file
    of its own."""

    @property
    def sharding(self) -> MeshSharding:
        """Shardings of values on the first mesh."""
        return self.shardings[0]

    def explain(self) -> str:
        """What is inexact; when gradients are reduced and why; why each operator is split so where a method decides it;
        of stages on single devices, where nothing is split, which lines run on which."""
        decided = [sharding for sharding in self.shardings if isinstance(sharding, SolvedSharding)]
        lines = [f"mesh {number}\n{sharding.explain()}" for number, sharding in enumerate(decided)]
        if self.program.inexact:
            lines.insert(0, f"inexact: {self.program.inexact}")
        if self.step.meeting:
            lines.insert(0, self.step.meeting)
        if not decided and not self.reductions:
            lines += [f"nothing is split: {self._stages_alone()}", self.lines()]
        return "\n".join([*self.idle, *([self.reductions] if self.reductions else []), *lines])

    def _stages_alone(self) -> str:
        """Words for stages that have one device each."""
        meshes, parts = len(self.program.lists), self.step.micro_batches
        each = "one device runs the whole step" if meshes == 1 else f"{meshes} stages run on one device each"
        return each if parts == 1 else f"{each}, which adds up the gradients of {parts} micro-batches"

    def lines(self) -> str:
        """Which lines of the user's code run on which mesh, with their share of the work: stages are cut so that each
        has an equal share and few bytes cross."""
        return placed_lines(self.program)

    def collectives(self) -> dict[str, Collectives]:
        """What every executable communicates over all of its runs in a step, as XLA compiled it for this process.

        Messages between meshes are not counted; executables without collectives are left out.
        """
        from meshwright.runtime.step_collectives import step_collectives

        return step_collectives(self._here())

    def hlo(self) -> dict[str, str]:
        """Text of every executable as XLA compiled it for this process, by the names that the lists call them by."""
        from meshwright.runtime.step_collectives import step_texts

        return step_texts(self._here())

    def _here(self) -> LocalRuntime:
        """What runs the step in this process, wherever it itself runs."""
        runtime = self.runtime
        return runtime if isinstance(runtime, LocalRuntime) else LocalRuntime(self.program, runtime.meshes)

    def save(self, path: str | Path) -> None:
        """Write the instruction lists to a file, with the plan where there is one; `Listing.load` and `FromPlan.load`
        read it.

        Args:
            path: the path of the file.
        """
        write_file(path, saved(self.program, None if self.plan is None else self.plan.to_json()) + "\n")

    def __call__(self, *arguments: Any) -> Any:
        """Run the step.

        Args:
            arguments: the arguments as the step takes them.
        """
        return self._returned(self.runtime.step(self._given(arguments), self.step.micro_batches))

    def create(self, init: Callable[..., Any], *arguments: Any) -> Any:
        """The state of the step, made where the step reads it: no device holds more than its own part.

        Args:
            init: makes what the step takes as its first argument.
            arguments: the arguments of `init`.

        Raises:
            InputError: `init` makes something else.
        """
        step, stacking = self.step, self.step.stacking
        state = jax.tree.unflatten(step.in_tree, step.jaxpr.invars)[0]
        wanted = jax.tree.map(lambda var: jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype), state)
        parted = None
        if stacking is not None:
            whole = stacking.joined_inputs(
                jax.tree.leaves(wanted),
                lambda parts, bounds: jax.ShapeDtypeStruct((bounds[-1], *parts[0].shape[1:]), parts[0].dtype),
            )
            wanted = jax.tree.unflatten(stacking.in_tree, [*whole, *range(len(stacking.inputs) - len(whole))])[0]
            parted = partial(stacking.parted, part=stacked_parts)
        program = creation(self.program, init, arguments, wanted, parted)
        made = self.runtime.sharing(program).step(jax.tree.leaves(tuple(arguments)), 1)
        if stacking is not None:
            made = stacking.joined_inputs(made, stacked)
        return jax.tree.unflatten(jax.tree.structure(wanted), made)

    def state_shapes(self) -> Any:
        """What the step takes as its first argument, as shapes, each with the sharding that the step reads it with.

        A checkpoint of another plan is restored like it. Values of workers in other processes have no sharding here.
        """
        step, program, runtime = self.step, self.program, self.runtime
        buffers = {feed.input: feed.buffer for feed in reversed(program.feeds)}

        def shape(place: int) -> jax.ShapeDtypeStruct:
            aval = step.jaxpr.invars[place].aval
            here = isinstance(runtime, LocalRuntime) and place in buffers
            sharding = runtime.sharding(buffers[place]) if here else None  # type: ignore[union-attr]
            return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=sharding)

        leaves: Sequence[Any] = [shape(place) for place in range(len(step.jaxpr.invars))]
        if step.stacking is None:
            return jax.tree.unflatten(step.in_tree, leaves)[0]
        whole = step.stacking.joined_inputs(leaves, StackedArray)
        return jax.tree.unflatten(step.stacking.in_tree, whole)[0]

    def recorded(self, *arguments: Any) -> tuple[Any, Moments]:
        """Run the step and say when each instruction ran; each is waited for, so the step takes longer.

        Args:
            arguments: the arguments as the step takes them.
        """
        outputs, moments = self.runtime.recorded(self._given(arguments), self.step.micro_batches)
        return self._returned(outputs), moments

    def _given(self, arguments: Sequence[Any]) -> list[Any]:
        """Inputs of the step; of what its user sees stacked, the parts."""
        leaves, stacking = jax.tree.leaves(tuple(arguments)), self.step.stacking
        return leaves if stacking is None else stacking.parted(leaves, stacked_parts)

    def _returned(self, outputs: Sequence[Any]) -> Any:
        stacking = self.step.stacking
        if places := weak_places(self.step.jaxpr):
            outputs = [as_weak(value) if place in places else value for place, value in enumerate(outputs)]
        if stacking is None:
            return self.step.after_reports(jax.tree.unflatten(self.step.out_tree, outputs))
        return self.step.after_reports(jax.tree.unflatten(stacking.out_tree, stacking.joined(outputs, stacked)))
