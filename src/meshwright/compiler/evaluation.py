"""A function without gradients read once: which results of micro-batches are joined, averaged, added or taken as is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from meshwright.compiler.inline import flat_jaxpr
from meshwright.compiler.loss_reduction import is_mean
from meshwright.compiler.marking import gradient_p, marked_forward
from meshwright.compiler.trace import flat_loss, flattened
from meshwright.compiler.traced_step import TracedStep
from meshwright.errors import InputError, Problem


class GatheredResult(Enum):
    """How results of micro-batches become one."""

    JOIN = "join"
    """Arrays of samples, one behind the other."""
    MEAN = "mean"
    SUM = "sum"
    ANY = "any"
    """The same whatever the samples."""


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class TracedFunction:
    """A function of micro-batches."""

    step: TracedStep
    """As a step whose loss is the whole function and which differentiates nothing."""
    gathers: tuple[GatheredResult, ...]
    """How each result of the micro-batches becomes one value."""


def trace_function(
    fun: Callable[..., Any],
    arguments: Sequence[Any],
    *,
    batch_argnums: Sequence[int],
    micro_batches: int,
    mean: bool | None = None,
) -> TracedFunction:
    """Read a function that evaluates.

    Args:
        fun: of anything and a batch.
        arguments: arrays, or shapes of arrays.
        batch_argnums: arguments whose arrays hold one sample per entry of their first axis.
        micro_batches: parts into which a batch is split.
        mean: whether numbers are means over the batch; without it, found out for each from how it depends on its size.

    Raises:
        InputError: it differentiates, the batch cannot be divided, or results of micro-batches cannot be put together.
    """
    given = flattened(fun, arguments, batch_argnums, micro_batches)

    def traced_with(parts: int) -> core.ClosedJaxpr:
        return flat_jaxpr(marked_forward(given.flat), given.cut(parts))

    closed = traced_with(micro_batches)
    mark = next(eqn for eqn in closed.jaxpr.eqns if eqn.primitive is gradient_p)
    body = flat_loss(mark)
    if any(eqn.primitive is gradient_p for eqn in body.jaxpr.eqns):
        raise InputError(Problem(
            what=f"{getattr(fun, '__name__', 'the function')} calls grad or value_and_grad",
            why="what follows a training step only runs forward", fix="give it a method of its own", field="method",
        ))  # fmt: skip
    whole = body
    if micro_batches > 1:
        whole = flat_loss(next(eqn for eqn in traced_with(1).jaxpr.eqns if eqn.primitive is gradient_p))
    step = TracedStep(
        jaxpr=closed.jaxpr, consts=tuple(closed.consts), loss=body.jaxpr, wrt=(), mark=mark, before=(), after=(),
        batch=given.batch, micro_batches=micro_batches, in_tree=given.in_tree, out_tree=given.out_tree[0],
        mean=bool(mean),
    )  # fmt: skip
    return TracedFunction(step=step, gathers=_gathers(step, body, whole, mean))


def _gathers(
    step: TracedStep, part: core.ClosedJaxpr, whole: core.ClosedJaxpr, mean: bool | None
) -> tuple[GatheredResult, ...]:
    paths = [
        jax.tree_util.keystr(path) or "the result"
        for path, _ in jax.tree_util.tree_leaves_with_path(
            jax.tree.unflatten(step.out_tree, range(step.out_tree.num_leaves))
        )
    ]
    of_samples = _of_samples(step, part.jaxpr)
    found, problems = [], []
    for number, path in enumerate(paths):
        small, large = part.jaxpr.outvars[number], whole.jaxpr.outvars[number]
        try:
            found.append(_gather(step, part, whole, number, small in of_samples if isinstance(small, core.Var) else
                                 False, mean))  # fmt: skip
        except InputError:
            problems.append(Problem(
                what=f"{path} is {_spell(small)} for a micro-batch and {_spell(large)} for the batch",
                why="results of micro-batches are joined along their first axis, or are means or sums over samples as"
                " far as their equations show", fix='return it per sample, say loss="mean" or loss="sum", or take'
                " num_micro_batches=1", field="num_micro_batches",
            ))  # fmt: skip
    if problems:
        raise InputError(problems)
    return tuple(found)


def _gather(
    step: TracedStep, part: core.ClosedJaxpr, whole: core.ClosedJaxpr, number: int, depends: bool, mean: bool | None
) -> GatheredResult:
    parts = step.micro_batches
    small, large = part.jaxpr.outvars[number].aval, whole.jaxpr.outvars[number].aval
    if parts == 1 or not depends:
        return GatheredResult.ANY
    if small.shape != large.shape:
        if small.shape and large.shape == (small.shape[0] * parts, *small.shape[1:]):
            return GatheredResult.JOIN
        raise InputError(Problem(what="shapes", why="first axis", field="batch"))
    if jnp.issubdtype(small.dtype, jnp.integer):
        return GatheredResult.SUM
    if not jnp.issubdtype(small.dtype, jnp.inexact):
        raise InputError(Problem(what="type", why="neither a mean nor a sum", field="batch"))
    if mean is None:
        mean = is_mean(_only(part, number), _only(whole, number), parts)
    return GatheredResult.MEAN if mean else GatheredResult.SUM


def _only(closed: core.ClosedJaxpr, number: int) -> core.ClosedJaxpr:
    """The program of one of the results."""
    jaxpr = closed.jaxpr
    return core.ClosedJaxpr(
        jaxpr.replace(outvars=[jaxpr.outvars[number]], debug_info=jaxpr.debug_info.with_unknown_names()), closed.consts
    )


def _of_samples(step: TracedStep, jaxpr: core.Jaxpr) -> set[core.Var]:
    """Values that depend on the batch."""
    places = {step.jaxpr.invars[place] for place in step.batch}
    found = {var for var, atom in zip(jaxpr.invars, step.mark.invars, strict=True)
             if isinstance(atom, core.Var) and atom in places}  # fmt: skip
    for eqn in jaxpr.eqns:
        if any(isinstance(atom, core.Var) and atom in found for atom in eqn.invars):
            found.update(eqn.outvars)
    return found


def _spell(atom: Any) -> str:
    return f"{atom.aval.dtype}[{','.join(map(str, atom.aval.shape))}]"
