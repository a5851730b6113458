"""A function that follows a training step: compiled for its meshes, run by its workers on the state they keep."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from meshwright.compiler.cuts.stacks import parted_along
from meshwright.compiler.instructions import StepProgram
from meshwright.compiler.instructions.verify import VerifiedLists, verify_lists
from meshwright.compiler.leading_axis import Stacking
from meshwright.compiler.lowering.following import FollowedSharding, follow, followed_places, state_placement
from meshwright.compiler.lowering.forward import lower_forward
from meshwright.compiler.methods.decided import FollowParallel
from meshwright.compiler.traced_step import TracedStep
from meshwright.compiler.tracing.evaluation import trace_function
from meshwright.errors import InputError, Problem
from meshwright.runtime.compiled import CompiledStep
from meshwright.runtime.local import LocalRuntime
from meshwright.runtime.moments import Moments
from meshwright.runtime.stacked import stacked_parts
from meshwright.runtime.workers.remote import RemoteRuntime


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class CompiledFunction:
    """A function compiled for arguments of certain shapes."""

    step: TracedStep
    program: StepProgram
    verified: VerifiedLists
    meshes: tuple[int, ...]
    """Meshes that its parts run on, in order."""
    runtime: LocalRuntime | RemoteRuntime

    def __call__(self, *arguments: Any) -> Any:
        """Run it.

        Args:
            arguments: the arguments as the function takes them.
        """
        outputs = self.runtime.step(self._given(arguments), self.step.micro_batches)
        return self.step.after_reports(jax.tree.unflatten(self.step.out_tree, outputs))

    def recorded(self, *arguments: Any) -> tuple[Any, Moments]:
        """Run it and say when each instruction ran; each is waited for, so it takes longer.

        Args:
            arguments: the arguments as the function takes them.
        """
        outputs, moments = self.runtime.recorded(self._given(arguments), self.step.micro_batches)
        return self.step.after_reports(jax.tree.unflatten(self.step.out_tree, outputs)), moments

    def _given(self, arguments: Sequence[Any]) -> list[Any]:
        """Inputs; of what its user sees stacked, the parts."""
        leaves, stacking = jax.tree.leaves(tuple(arguments)), self.step.stacking
        return leaves if stacking is None else stacking.parted(leaves, stacked_parts)


def compile_following(
    fun: Callable[..., Any],
    arguments: Sequence[Any],
    method: FollowParallel,
    batch_argnums: Sequence[int],
    loss: str | None,
) -> CompiledFunction:
    """Trace a function, cut it by the meshes of its parameters, and lower it.

    Args:
        fun: the function of parts of a state, batches and anything else.
        arguments: arrays or shapes.
        method: the method, which names the step to follow.
        batch_argnums: arguments that are split on their first axis.
        loss: "mean", "sum" or None.

    Raises:
        InputError: the step is not compiled yet, or the function cannot follow it, with the reason.
    """
    source = _source(method)
    name = getattr(fun, "__name__", "the function")
    places = followed_places(arguments, batch_argnums, source.step.whole or source.step, method.reads, name)
    function = trace_function(
        fun,
        arguments,
        batch_argnums=batch_argnums,
        micro_batches=method.num_micro_batches,
        mean=None if loss is None else loss == "mean",
    )
    if source.step.stacking is not None:
        function, places = _in_parts(function, places, source.step.stacking)
    where = {own: state_placement(source.program, other) for own, other in places.items()}
    followed = follow(function, {own: found.mesh for own, found in where.items()})
    invars = function.jaxpr.invars
    shardings = [
        FollowedSharding.on(
            source.program,
            number,
            mesh,
            {invars[own]: one.spec for own, one in where.items() if one.mesh == number and one.spec is not None},
        )
        for number, mesh in enumerate(source.runtime.meshes)
    ]
    program = lower_forward(function, followed, shardings, [mesh.size for mesh in source.runtime.meshes])
    return CompiledFunction(
        step=function,
        program=program,
        verified=verify_lists(program),
        meshes=followed.meshes,
        runtime=source.runtime.sharing(program),
    )


def _source(method: FollowParallel) -> CompiledStep:
    """The step as it was compiled last."""
    compiled = getattr(method.step, "compiled", None)
    if compiled is None:
        raise InputError(
            Problem(
                what=f"{getattr(method.step, '__name__', method.step)} is no step of parallelize",
                why="its state is placed when it is compiled",
                fix="FollowParallel(train_step)",
                field="step",
            )
        )
    found = compiled()
    if not isinstance(found, CompiledStep):
        raise InputError(
            Problem(
                what=f"{getattr(method.step, '__name__', 'the step')} has not been compiled",
                why="its state is placed then",
                fix="call it once, or its lower(state, batch), before",
                field="step",
            )
        )
    return found


def _in_parts(function: TracedStep, places: Mapping[int, int], source: Stacking) -> tuple[TracedStep, dict[int, int]]:
    """The function with its loops over stacked layers in the parts of a step, and which of its inputs each input is."""
    bounds = {own: parts for own, other in places.items() if (parts := source.inputs[other]) is not None}
    step = parted_along(function, bounds)
    found = {}
    for own, other in places.items():
        first = own if step.stacking is None else step.stacking.first_of(own)
        for part in range(len(bounds[own]) - 1 if own in bounds else 1):
            found[first + part] = source.first_of(other) + part
    return step, found
