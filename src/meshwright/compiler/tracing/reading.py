"""Functions of the user traced; what they do that cannot be traced is an error with its line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import count
from types import MappingProxyType
from typing import Any

import jax
import numpy as np
from jax._src import checkify
from jax.extend import core

from meshwright.compiler.inline import HOLDS, inlined, is_dropped, programs_in, programs_of
from meshwright.compiler.python_effects.files import files_written
from meshwright.compiler.python_effects.kept import TraceWatch
from meshwright.compiler.python_effects.refusals import effects_refused, mutation_problem, writing_problem
from meshwright.compiler.python_effects.remedies import remedy
from meshwright.compiler.python_effects.state import PythonState
from meshwright.compiler.reports import Reports, reported
from meshwright.compiler.source_line import frame_of, line_of, start_of
from meshwright.compiler.tracing.found_gradients import gradients_found
from meshwright.compiler.tracing.named_axes import axis_without_members
from meshwright.compiler.tracing.unplaced import NotStaged, unplaced
from meshwright.compiler.tracing.users_mesh import users_mesh
from meshwright.errors import InputError, MeshwrightError, Problem


def traced_loss(
    fun: Callable[..., Any],
    flat: Callable[..., Any],
    shapes: Sequence[jax.ShapeDtypeStruct],
    *,
    gradients: bool = True,
    reports_behind: bool = False,
) -> tuple[core.ClosedJaxpr, Reports | None]:
    """The program of a function, its calls opened; traced twice, as the same must come of it each time.

    What it prints is returned with its results, and printed behind it.

    Args:
        fun: the function of the user, for what is said about it.
        flat: the function of flat arguments.
        shapes: the shapes of these.
        gradients: whether each gradient that it takes is one equation; else they are what JAX makes of them.
        reports_behind: whether what is printed of a loss is computed behind it.

    Raises:
        InputError: it computes something else the second time, or needs values while it is traced.
    """
    beside, meeting = PythonState(fun), gradients_found() if gradients else nullcontext()
    with (
        files_written() as tried,
        tracing_errors(fun, lambda: tried | beside.written()),
        users_mesh() as meshed,
        meeting,
    ):
        # A function of its own for each, or JAX would remember the first.
        errors = checkify.next_code()
        with effects_refused(fun) as watch:
            once, alone = _traced(flat, shapes, watch)
        before = PythonState(fun)
        # Errors that `checkify` finds are numbered in the order of tracing.
        checkify.next_code = count(errors + 1).__next__
        with effects_refused(fun) as watch, files_written() as written:
            again, _ = _traced(flat, shapes, watch, beside=(AGAIN,))
        read = partial(unplaced, differentiated=gradients, meshed=meshed, alone=alone)
        same = _same(once, again)
        once = inlined(read(once))
        again = once if same else inlined(read(again))
    # What the first trace alone changes is a cache.
    changes = [*before.changed(), *before.grown()]
    for program in (once, again):
        _check_stale(fun, program)
    changed = _difference(once.jaxpr, again.jaxpr) or _other_constants(once, again)
    if changed is not None:
        raise InputError(
            what=f"{start_of(fun)} computes something else each time it is traced{changed}",
            why="it is traced once and its program runs in every step, so what Python does beside it (counters,"
            " random numbers, files) happens once",
            fix="pass what changes as an argument, and draw random numbers with jax.random",
            field=getattr(fun, "__name__", "step"),
        )
    if changes:
        raise mutation_problem(fun, changes)
    if written := written | before.written():
        raise writing_problem(fun, written)
    once, reports = reported(once, behind=reports_behind)
    if not once.jaxpr.outvars and not once.jaxpr.effects and reports is None:
        raise InputError(
            what=f"{start_of(fun)} returns nothing",
            why="JAX computes what a function returns, and leaves arguments as they are",
            fix="return the new state and what is to be read, such as return params, opt_state, loss",
            field=getattr(fun, "__name__", "step"),
        )
    check_effects(fun, once.jaxpr, cut=gradients)
    return once, reports


def _traced(
    flat: Callable[..., Any], shapes: Sequence[jax.ShapeDtypeStruct], watch: TraceWatch, beside: Sequence[str] = ()
) -> tuple[core.ClosedJaxpr, list[str]]:
    """The program of a function, and the axes that it names and nothing binds, each with one member.

    Args:
        flat: the function.
        shapes: the shapes of its arguments.
        watch: told of the trace.
        beside: axes that it does not name: functions that JAX has traced without them are traced anew.
    """
    alone: list[str] = []
    while True:
        try:
            traced = jax.make_jaxpr(watch.watched(flat), axis_env=[(name, 1) for name in (*alone, *beside)])
            return traced(*shapes), alone
        except NameError as error:
            name = axis_without_members(error)
            if name is None or name in alone:
                raise
            alone.append(name)


@contextmanager
def tracing_errors(
    fun: Callable[..., Any], written: Callable[[], Mapping[str, str]] = lambda: MappingProxyType({})
) -> Iterator[None]:
    """Errors of tracing with the line of the user's code; of one that writes a file, that it does.

    Args:
        fun: the function of the user.
        written: words for files that were written until then, by line.
    """
    try:
        yield
    except jax.errors.UnexpectedTracerError as error:
        raise _stale(fun, _at(error)) from None
    except (
        jax.errors.ConcretizationTypeError,
        jax.errors.TracerArrayConversionError,
        jax.errors.TracerIntegerConversionError,
    ) as error:
        number = Problem(
            what=f"{start_of(fun)} needs the number behind a traced value{_at(error)}",
            why="Python's if, while, float, int and numpy see the program before it runs",
            fix=remedy(error, "use jax.numpy.where, jax.lax.cond or jax.lax.while_loop, and jax.numpy for numpy"),
            field=getattr(fun, "__name__", "step"),
        )
        raise _writing_first(fun, written(), number, error) from None
    except MeshwrightError:
        raise
    except Exception as error:
        said = str(error).split("\n", 1)[0]
        untraced = Problem(
            what=f"{start_of(fun)} cannot be traced{_at(error)}",
            why=f"{type(error).__name__}: {said}",
            fix=remedy(error, "make it run under jax.jit with the same arguments first"),
            field=getattr(fun, "__name__", "step"),
        )
        raise _writing_first(fun, written(), untraced, error) from error


def _writing_first(
    fun: Callable[..., Any], written: Mapping[str, str], problem: Problem, error: BaseException
) -> InputError:
    """The error of a trace that ended: what it wrote to files, and what ended it where that stands on another line."""
    if not written:
        return InputError(problem)
    writing = writing_problem(fun, written)
    return writing if frame_of(error) in written else InputError([*writing.problems, problem])


def _check_stale(fun: Callable[..., Any], program: core.ClosedJaxpr) -> None:
    """Refuse a program that holds values of another trace as constants."""
    for var, value in zip(program.jaxpr.constvars, program.consts, strict=True):
        if isinstance(value, jax.core.Tracer):
            line = next((line_of(eqn) for eqn in program.jaxpr.eqns if var in eqn.invars), "")
            raise _stale(fun, f": {line}" if line else "")


def check_effects(fun: Callable[..., Any], program: core.Jaxpr, *, cut: bool = False) -> None:
    """Refuse what happens beside the computation: calls of Python with results, references that are written to, and
    prints where nobody knows how often they happen.

    Args:
        fun: the function of the user, for what is said about it.
        program: its own.
        cut: whether it is one whose gradients are equations.

    Raises:
        InputError: it does such things.
        NotStaged: it checks for errors inside of a gradient, which `checkify` makes results of in a whole step.
    """
    acting = _first_effect(program)
    if acting is not None:
        line = line_of(acting)
        refusal = NotStaged if cut and acting.primitive.name == "check" else InputError
        answered = acting.primitive.name == "io_callback" and any(not is_dropped(var) for var in acting.outvars)
        raise refusal(
            what=f"{start_of(fun)} does more than compute ({acting.primitive.name})" + (f": {line}" if line else ""),
            why="parts of it run on several meshes, once for every micro-batch and again for recomputation; prints and"
            " jax.debug.callback are called behind the step, where it is known how often they happen",
            fix=_ASKING if answered else _TELLING,
            field=getattr(fun, "__name__", "step"),
        )


_ASKING = (
    "jax.pure_callback where Python only computes from its arguments; what else it gives, call it for between two"
    " steps, and pass it in the batch"
)
_TELLING = (
    "return what is to be seen, from the loss with has_aux=True, and print it after the step; in place of a while loop"
    " or a function with a derivative of its own, print in a scan or around it"
)
AGAIN = "meshwright again"
"""Axis around the second trace, or JAX would remember what functions under `jax.jit` did in the first."""
UNITS = ("shard_map", "pallas_call")
"""Equations with programs of another kind in them."""


def _first_effect(program: core.Jaxpr) -> core.JaxprEqn | None:
    for eqn in program.eqns:
        if eqn.primitive.name in UNITS and not eqn.effects:
            # Inside, ranks ask for their number, kernels read and write blocks: effects that stay there.
            continue
        for inner in programs_of(eqn):
            if (found := _first_effect(inner)) is not None:
                return found
        if eqn.effects:
            return eqn
    return None


def _stale(fun: Callable[..., Any], at: str) -> InputError:
    return InputError(
        what=f"{start_of(fun)} uses a value that an earlier trace left behind{at}",
        why="values inside a traced function are placeholders without numbers, so they cannot be kept outside of it",
        fix="return the value, or make it part of the state",
        field=getattr(fun, "__name__", "step"),
    )


def _at(error: BaseException) -> str:
    line = frame_of(error)
    return f": {line}" if line else ""


def _same(one: core.ClosedJaxpr, other: core.ClosedJaxpr) -> bool:
    """Whether two programs are the same before their calls are opened; where they are not, both are read further."""
    held: list[list[Any]] = [[], []]
    for program, consts in zip((one, other), held, strict=True):
        consts += program.consts
        consts += [value for inner in _closed_inside(program.jaxpr) for value in inner.consts]
    if any(isinstance(value, jax.core.Tracer) for value in [*held[0], *held[1]]) or len(held[0]) != len(held[1]):
        return False
    return _difference(one.jaxpr, other.jaxpr) is None and all(map(_equal, *held))


def _closed_inside(jaxpr: core.Jaxpr) -> Iterator[core.ClosedJaxpr]:
    """Programs with constants of their own at any depth."""
    for eqn in jaxpr.eqns:
        for value in eqn.params.values():
            if isinstance(value, HOLDS):
                own = value if isinstance(value, tuple | list) else (value,)
                yield from (one for one in own if isinstance(one, core.ClosedJaxpr))
        for inner in programs_of(eqn):
            yield from _closed_inside(inner)


def _difference(one: core.Jaxpr, other: core.Jaxpr) -> str | None:
    """Where two programs first differ; None where they are the same."""
    for first, second in zip(one.eqns, other.eqns, strict=False):
        if not _alike(first, second):
            line = line_of(first) or line_of(second)
            return f": {line}" if line else ""
        for name, value in first.params.items():
            if not isinstance(value, HOLDS):
                continue
            for a, b in zip(programs_in(value), programs_in(second.params[name]), strict=False):
                if a is not b and (found := _difference(a, b)) is not None:
                    return found
    if len(one.eqns) != len(other.eqns):
        return ""
    results = zip(one.outvars, other.outvars, strict=False)
    return ": a number of Python that it returns differs" if any(_other_number(a, b) for a, b in results) else None


def _other_number(one: Any, other: Any) -> bool:
    return (isinstance(one, core.Literal) or isinstance(other, core.Literal)) and not (
        isinstance(one, core.Literal) and isinstance(other, core.Literal) and _equal(one.val, other.val)
    )


def _alike(one: core.JaxprEqn, other: core.JaxprEqn) -> bool:
    """Whether two equations do the same, but for the programs inside them."""
    if one.primitive is not other.primitive or len(one.invars) != len(other.invars):
        return False
    for a, b in zip([*one.invars, *one.outvars], [*other.invars, *other.outvars], strict=True):
        if a.aval.shape != b.aval.shape or a.aval.dtype != b.aval.dtype:
            return False
        if _other_number(a, b):
            return False
    return True


def _other_constants(one: core.ClosedJaxpr, other: core.ClosedJaxpr) -> str | None:
    """What is said about constants that differ; None where all are the same."""
    held = zip(one.jaxpr.constvars, one.consts, other.consts, strict=False)
    different = next((var for var, value, again in held if not _equal(value, again)), None)
    if different is None:
        return None if len(one.consts) == len(other.consts) else ": an array made by numpy differs"
    line = next((line for eqn in one.jaxpr.eqns if different in eqn.invars and (line := line_of(eqn))), "")
    return ": an array made by numpy differs" + (f": {line}" if line else "")


def _equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    if any(
        isinstance(held, jax.Array) and jax.dtypes.issubdtype(held.dtype, jax.dtypes.prng_key) for held in (one, other)
    ):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    return bool(
        np.array_equal(np.asarray(one), np.asarray(other), equal_nan=np.issubdtype(np.asarray(one).dtype, np.inexact))
    )
