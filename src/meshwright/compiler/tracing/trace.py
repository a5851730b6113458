"""A training step read once: what happens before the mark, the loss, and the update behind it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core

from meshwright.compiler.cost import aval_bytes
from meshwright.compiler.inline import flat_jaxpr, programs_of
from meshwright.compiler.joins import How, Join
from meshwright.compiler.marking import gradient_p
from meshwright.compiler.micro_batches.said import step_of_micro_batch
from meshwright.compiler.micro_batches.share import shared_out
from meshwright.compiler.samples.placements import NotShared
from meshwright.compiler.source_line import start_of
from meshwright.compiler.traced_step import TracedStep, around_mark
from meshwright.compiler.tracing.batch import batch_part, batch_places, check_shared_out
from meshwright.compiler.tracing.constants_inside import with_constants_inside
from meshwright.compiler.tracing.reading import traced_loss
from meshwright.compiler.tracing.unplaced import NotSplit, NotStaged
from meshwright.compiler.tracing.weak_types import is_weak
from meshwright.errors import InputError, Problem


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Flattened:
    """A function of lists, with the shapes of its inputs."""

    flat: Callable[..., list[Any]]
    shapes: tuple[jax.ShapeDtypeStruct, ...]
    batch: tuple[int, ...]
    """Inputs that are split into micro-batches."""
    in_tree: Any
    out_tree: list[Any]
    """Tree of the results, filled by the call of `flat`."""

    def cut(self, parts: int) -> list[jax.ShapeDtypeStruct]:
        """Shapes of the inputs of one of so many micro-batches."""
        return [batch_part(shape, parts) if place in self.batch else shape for place, shape in enumerate(self.shapes)]


def flattened(
    fun: Callable[..., Any], arguments: Sequence[Any], batch_argnums: Sequence[int], micro_batches: int
) -> Flattened:
    """A function as one of lists.

    Args:
        fun: the function of trees of arrays.
        arguments: arrays, or shapes of arrays.
        batch_argnums: arguments whose arrays hold one sample per entry of their first axis.
        micro_batches: parts into which a batch is split.

    Raises:
        InputError: the batch cannot be divided.
    """
    leaves, in_tree = jax.tree.flatten(tuple(arguments))
    batch = batch_places(arguments, batch_argnums)
    shapes = tuple(
        jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.result_type(leaf), weak_type=is_weak(leaf)) for leaf in leaves
    )
    check_shared_out([shapes[place] for place in batch], micro_batches)
    out_tree: list[Any] = []

    def flat(*given: Any) -> list[Any]:
        outputs, structure = jax.tree.flatten(fun(*jax.tree.unflatten(in_tree, given)))
        out_tree[:] = [structure]
        return outputs

    return Flattened(flat=flat, shapes=shapes, batch=batch, in_tree=in_tree, out_tree=out_tree)


def trace_step(
    fun: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    batch_argnums: Sequence[int] = (1,),
    micro_batches: int = 1,
    mean: bool | None = None,
    updates: int = 1,
) -> TracedStep:
    """Read a training step.

    Args:
        fun: the function of a state and a batch, returns anything; it takes one gradient.
        arguments: arrays, or shapes of arrays (`jax.ShapeDtypeStruct`).
        batch_argnums: arguments whose arrays hold one sample per entry of their first axis.
        micro_batches: parts into which a batch is split.
        mean: whether the loss is that of micro-batches averaged (else added), where it cannot be shared out so that
            micro-batches compute what the whole batch does.
        updates: the number of updates of the state in one call, each with its part of the batch.

    Raises:
        NotStaged: it takes no gradient, several, or some in loops.
        NotSplit: micro-batches would compute something else than the whole batch.
        InputError: the batch cannot be divided.
    """
    given = flattened(fun, arguments, batch_argnums, micro_batches)
    step = _traced(fun, given, updates)
    if micro_batches == 1:
        return replace(step, joins=(Join(How.SAME),) * len(step.loss.outvars))
    try:
        try:
            return _shared(fun, given, step, micro_batches, updates, behind=False, meeting=mean is None)
        except NotShared:
            if step.reports is None:
                raise
            # What is printed may be no sum over micro-batches, such as a first sample: then it is made of whole values.
            step = _traced(fun, given, updates, reports_behind=True)
            return _shared(fun, given, step, micro_batches, updates, behind=True, meeting=mean is None)
    except NotShared as why:
        if mean is None:
            raise NotSplit(_not_shared_problem(why)) from None
    said = step_of_micro_batch(step, _traced(fun, given, micro_batches), mean)
    return replace(said, micro_batches=micro_batches, updates=updates)


def results_apart(step: TracedStep) -> TracedStep:
    """A step that returns results of the loss for each of its updates, along a new first axis, not one for all.

    Args:
        step: the step of several updates.
    """
    return replace(step, joins=tuple(replace(join, apart=step.updates) for join in step.joins))


def _shared(
    fun: Callable[..., Any],
    given: Flattened,
    step: TracedStep,
    micro_batches: int,
    updates: int,
    *,
    behind: bool,
    meeting: bool,
) -> TracedStep:
    """A step on one micro-batch, that computes with all of them what it does with the whole batch."""
    if 1 < updates == micro_batches:
        # What a single sample mixes cannot be seen: how its numbers join is read from the whole batch.
        whole = _traced(fun, given, 1, reports_behind=behind)
        joins = shared_out(whole, micro_batches, meeting=False).joins
        if len(joins) != len(step.loss.outvars):
            raise NotShared("a result of the loss is made of several sums, and weights change between their parts")
        shared = replace(step, joins=joins)
    else:
        shared = shared_out(step, micro_batches // updates, meeting=meeting and updates == 1)
    return _of_updates(shared, micro_batches, updates)


def step_of_samples(
    fun: Callable[..., Any], arguments: Sequence[Any], *, batch_argnums: Sequence[int], samples: int, mean: bool
) -> tuple[TracedStep, int]:
    """Read a training step on so many samples of its batch, whether or not they divide it.

    Args:
        fun: the function of a state and a batch; it takes one gradient.
        arguments: arrays, or shapes of arrays, of the whole batch.
        batch_argnums: arguments whose arrays hold one sample per entry of their first axis.
        samples: the number of samples of a micro-batch.
        mean: whether losses of micro-batches are averaged, else added.

    Returns:
        The step on one micro-batch, and the samples of the whole batch.

    Raises:
        NotStaged: it takes no gradient, several, or some in loops.
        InputError: no argument holds samples, or a result of the loss is neither per sample nor a number.
    """
    given = flattened(fun, arguments, batch_argnums, 1)
    whole = _traced(fun, given, 1)
    batch, *others = sorted({given.shapes[place].shape[0] for place in given.batch})
    if others:
        raise InputError(
            Problem(
                what=f"batch arguments of {' and '.join(map(str, (batch, *others)))} samples",
                why="pipelines take micro-batches of several sizes, which count the samples of one batch",
                fix="batch arguments with one first axis",
                field="batch",
            )
        )
    part = tuple(
        jax.ShapeDtypeStruct((samples, *shape.shape[1:]), shape.dtype) if place in given.batch else shape
        for place, shape in enumerate(given.shapes)
    )
    return step_of_micro_batch(whole, _traced(fun, replace(given, shapes=part), 1), mean), batch


def _of_updates(step: TracedStep, micro_batches: int, updates: int) -> TracedStep:
    """A step that is done several times in one call; the numbers it returns are averaged, counts are added."""
    if updates > 1 and step.wholes:
        raise InputError(
            Problem(
                what="the update reads the batch itself, and there are several updates in a step",
                why="every update is made with its own part of the batch",
                fix="another schedule, or return what the update needs from the loss (has_aux=True)",
                field="schedule",
            )
        )
    numbers = [jnp.issubdtype(atom.aval.dtype, jnp.inexact) for atom in step.loss.outvars]
    joins = tuple(
        replace(join, updates=updates) if join.how is How.ADDED and number else join
        for join, number in zip(step.joins, numbers, strict=True)
    )
    return replace(step, micro_batches=micro_batches, updates=updates, joins=joins)


def _traced(fun: Callable[..., Any], given: Flattened, parts: int, *, reports_behind: bool = False) -> TracedStep:
    """The step on one of so many parts of its batch."""
    read, reports = traced_loss(fun, given.flat, given.cut(parts), reports_behind=reports_behind)
    closed = _with_gradients_used(read)
    mark = _mark_of(closed, fun)
    _check_weights(closed.jaxpr, mark, given.batch, fun)
    before, after = around_mark(closed.jaxpr, mark)
    found, mark = mark, with_constants_inside(mark, before)
    jaxpr = closed.jaxpr.replace(eqns=[mark if eqn is found else eqn for eqn in closed.jaxpr.eqns])
    return TracedStep(
        jaxpr=jaxpr,
        consts=tuple(closed.consts),
        loss=flat_loss(mark).jaxpr,
        wrt=tuple(mark.params["wrt"]),
        mark=mark,
        before=before,
        after=after,
        batch=given.batch,
        micro_batches=1,
        in_tree=given.in_tree,
        out_tree=given.out_tree[0] if reports is None else reports.beside(given.out_tree[0]),
        reports=reports,
    )


def _not_shared_problem(why: NotShared) -> Problem:
    return Problem(
        what=f"micro-batches would not compute what the whole batch does: {why.placed}",
        why="gradients of micro-batches are added, and what they add up to has to be the gradient of the batch",
        fix="num_micro_batches=1; or, where the loss of each micro-batch by itself is meant, say what is done with"
        ' them: loss="mean" or loss="sum"',
        field="num_micro_batches",
    )


class LossReader:
    """Reads the loss of a step on micro-batches of any size, from shapes."""

    def __init__(self, fun: Callable[..., Any], arguments: Sequence[Any], batch_argnums: Sequence[int] = (1,)) -> None:
        """Nothing is traced yet.

        Args:
            fun: the function of a state and a batch; it marks its loss.
            arguments: arrays, or shapes of arrays.
            batch_argnums: arguments that are split on their first axis.
        """
        self._given = flattened(fun, arguments, batch_argnums, 1)
        self._fun = fun
        self._whole: TracedStep | None = None
        self.batch = min((self._given.shapes[place].shape[0] for place in self._given.batch), default=1)
        """Samples."""
        self.parameter_copies = 2.0
        """Bytes kept for each byte of a parameter: itself, its gradient, and state; known once a loss was read."""

    def read(self, micro_batches: int) -> tuple[core.Jaxpr, tuple[int, ...]]:
        """The loss on one of so many micro-batches, and the positions of its differentiated operands.

        Args:
            micro_batches: the number of micro-batches into which a batch is split.

        Raises:
            InputError: the batch cannot be divided, or no loss is marked.
        """
        shapes, batch = self._given.shapes, self._given.batch
        check_shared_out([shapes[place] for place in batch], micro_batches)
        if self._whole is None:
            self._whole = _traced(self._fun, self._given, 1)
        step = self._whole
        if micro_batches > 1:
            try:
                step = shared_out(step, micro_batches)
            except NotShared:
                # Whether the user has said what is done with losses of micro-batches is asked when the step is traced.
                step = _traced(self._fun, self._given, micro_batches)
        parameters = sum(aval_bytes(step.loss.invars[place].aval) for place in step.wrt)
        held = sum(aval_bytes(shape) for place, shape in enumerate(shapes) if place not in batch)
        self.parameter_copies = (max(held, parameters) + parameters) / max(parameters, 1)
        return step.loss, step.wrt


def _with_gradients_used(closed: core.ClosedJaxpr) -> core.ClosedJaxpr:
    """The program without gradients that nobody reads, such as those with respect to the batch in `jax.vjp`."""
    jaxpr = closed.jaxpr
    read = {atom for eqn in jaxpr.eqns for atom in eqn.invars if isinstance(atom, core.Var)}
    read |= {atom for atom in jaxpr.outvars if isinstance(atom, core.Var)}
    return core.ClosedJaxpr(
        jaxpr.replace(
            eqns=[_used_part(eqn, read) if eqn.primitive is gradient_p else eqn for eqn in jaxpr.eqns],
            debug_info=jaxpr.debug_info.with_unknown_names(),
        ),
        closed.consts,
    )


def _used_part(mark: core.JaxprEqn, read: Collection[core.Var]) -> core.JaxprEqn:
    """A mark without gradients that are not among what is read; as it is where none of them is."""
    results = len(mark.params["loss"].outvars)
    pairs = list(zip(mark.params["wrt"], mark.outvars[results:], strict=True))
    kept = [(place, var) for place, var in pairs if var in read]
    if len(kept) == len(pairs) or not kept:
        return mark
    return mark.replace(
        outvars=[*mark.outvars[:results], *(var for _, var in kept)],
        params={**mark.params, "wrt": tuple(place for place, _ in kept)},
    )


def _check_weights(jaxpr: core.Jaxpr, mark: core.JaxprEqn, batch: Sequence[int], fun: Callable[..., Any]) -> None:
    """Refuse to cut a step at a gradient with respect to samples, which is none of the whole batch."""
    of_batch = {jaxpr.invars[place] for place in batch}
    for eqn in jaxpr.eqns:
        if of_batch & {atom for atom in eqn.invars if isinstance(atom, core.Var)}:
            of_batch.update(eqn.outvars)
    if any(mark.invars[place] in of_batch for place in mark.params["wrt"] if isinstance(mark.invars[place], core.Var)):
        raise NotStaged(
            Problem(
                what=f"{start_of(fun)} takes a gradient with respect to samples",
                why="gradients of micro-batches are added, which is right for weights that all of them share",
                fix="take the gradient with respect to weights",
                field=getattr(fun, "__name__", "the step"),
            )
        )


def _mark_of(closed: core.ClosedJaxpr, fun: Callable[..., Any]) -> core.JaxprEqn:
    marks = [eqn for eqn in closed.jaxpr.eqns if eqn.primitive is gradient_p]
    inside = sum(_marks_inside(eqn) for eqn in closed.jaxpr.eqns)
    if len(marks) == 1 and not inside:
        return marks[0]
    raise _marks_problem(fun, len(marks), inside)


def _marks_inside(eqn: core.JaxprEqn) -> int:
    """Gradients that the loops and branches of an equation take."""
    if eqn.primitive is gradient_p:
        return 0
    return sum((one.primitive is gradient_p) + _marks_inside(one) for inner in programs_of(eqn) for one in inner.eqns)


def _marks_problem(fun: Callable[..., Any], marks: int, inside: int = 0) -> NotStaged:
    name = getattr(fun, "__name__", "the step")
    taken = [f"{marks} gradients"] if marks else []
    taken += [f"{inside} in loops or branches"] if inside else []
    return NotStaged(
        Problem(
            what=f"{start_of(fun)} takes {' and '.join(taken) or 'no gradient of a scalar'}",
            why="micro-batches and stages belong to the one loss whose gradient a step takes",
            fix="take the gradient of one loss, outside of loops",
            field=name,
        )
    )


def flat_loss(mark: core.JaxprEqn) -> core.ClosedJaxpr:
    """What a mark differentiates, its calls opened.

    Args:
        mark: the mark of a step.
    """
    closed = core.ClosedJaxpr(mark.params["loss"], ())
    shapes = [jax.ShapeDtypeStruct(var.aval.shape, var.aval.dtype) for var in closed.jaxpr.invars]
    flat = flat_jaxpr(core.jaxpr_as_fun(closed), shapes)
    if flat.consts:
        constants = flat.consts
        flat = flat_jaxpr(lambda *given: core.jaxpr_as_fun(core.ClosedJaxpr(flat.jaxpr, constants))(*given), shapes)
    return flat
