"""A function without gradients, read as a step whose loss is the whole function and which differentiates nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from meshwright.compiler.inline import flat_jaxpr
from meshwright.compiler.joins import How, Join
from meshwright.compiler.marking import gradient_p, marked_forward
from meshwright.compiler.micro_batches.said import step_of_micro_batch
from meshwright.compiler.micro_batches.share import shared_out
from meshwright.compiler.reports import reported
from meshwright.compiler.samples.placements import NotShared
from meshwright.compiler.traced_step import TracedStep
from meshwright.compiler.tracing.reading import check_effects
from meshwright.compiler.tracing.trace import Flattened, flat_loss, flattened
from meshwright.errors import InputError, Problem


def trace_function(
    fun: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    batch_argnums: Sequence[int],
    micro_batches: int,
    mean: bool | None = None,
) -> TracedStep:
    """Read a function that evaluates.

    Args:
        fun: the function of anything and a batch.
        arguments: arrays, or shapes of arrays.
        batch_argnums: arguments whose arrays hold one sample per entry of their first axis.
        micro_batches: parts into which a batch is split.
        mean: whether numbers of micro-batches are averaged (else added), where that they make those of the whole batch
            cannot be shown.

    Raises:
        InputError: it differentiates, the batch cannot be divided, or results of micro-batches cannot be put together.
    """
    given = flattened(fun, arguments, batch_argnums, micro_batches)
    whole = _traced(fun, given, 1)
    if micro_batches == 1:
        return replace(whole, joins=(Join(How.SAME),) * len(whole.loss.outvars))
    try:
        return shared_out(whole, micro_batches)
    except NotShared as why:
        if mean is None:
            raise InputError(_problem(why)) from None
    return replace(step_of_micro_batch(whole, _traced(fun, given, micro_batches), mean), micro_batches=micro_batches)


def _traced(fun: Callable[..., Any], given: Flattened, parts: int) -> TracedStep:
    """The function on one of so many parts of its batch."""
    closed, reports = reported(flat_jaxpr(marked_forward(given.flat), given.cut(parts)))
    check_effects(fun, closed.jaxpr)
    mark = next(eqn for eqn in closed.jaxpr.eqns if eqn.primitive is gradient_p)
    body = flat_loss(mark)
    if any(eqn.primitive is gradient_p for eqn in body.jaxpr.eqns):
        raise InputError(
            Problem(
                what=f"{getattr(fun, '__name__', 'the function')} calls grad or value_and_grad",
                why="what follows a training step only runs forward",
                fix="give it a method of its own",
                field="method",
            )
        )
    return TracedStep(
        jaxpr=closed.jaxpr,
        consts=tuple(closed.consts),
        loss=body.jaxpr,
        wrt=(),
        mark=mark,
        before=(),
        after=(),
        batch=given.batch,
        micro_batches=1,
        in_tree=given.in_tree,
        out_tree=given.out_tree[0] if reports is None else reports.beside(given.out_tree[0]),
        reports=reports,
    )


def _problem(why: NotShared) -> Problem:
    return Problem(
        what=f"micro-batches would not compute what the whole batch does: {why.placed}",
        why="results of micro-batches are joined along their samples, added, compared, or computed from such",
        fix='return it per sample, say loss="mean" or loss="sum", or take num_micro_batches=1',
        field="num_micro_batches",
    )
