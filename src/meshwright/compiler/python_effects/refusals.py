"""The errors for what a step does to Python, each with its line and what JAX has for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from meshwright.compiler.python_effects.kept import TraceWatch, keeping_seen
from meshwright.compiler.python_effects.prints import prints_seen
from meshwright.compiler.source_line import start_of
from meshwright.errors import InputError, Problem


@contextmanager
def effects_refused(fun: Callable[..., Any]) -> Iterator[TraceWatch]:
    """While it is open a step is traced; behind it, what it has printed and kept is an error.

    Args:
        fun: the user's step.

    Raises:
        InputError: it prints, or keeps traced values.
    """
    with prints_seen() as printed, keeping_seen() as watch:
        yield watch
    if problems := [*_printing(fun, printed), *_keeping(fun, watch.kept)]:
        raise InputError(problems)


def _printing(fun: Callable[..., Any], printed: Mapping[str, str]) -> Iterator[Problem]:
    for line, text in printed.items():
        yield Problem(
            what=f"{start_of(fun)} prints ({text.splitlines()[0][:40]}): {line}",
            why="Python runs once, when the step is traced: it prints then, without numbers, and not in each step",
            fix='jax.debug.print("loss {}", loss) for values of each step; print shapes and settings before the step',
            field=getattr(fun, "__name__", "step"),
        )


def _keeping(fun: Callable[..., Any], kept: Mapping[str, str]) -> Iterator[Problem]:
    for place, made in kept.items():
        yield Problem(
            what=f"{start_of(fun)} keeps a traced value in {place}: {made or 'one of its arguments'}",
            why="values inside a traced function are placeholders without numbers: what is kept outside is of no use",
            fix="return it (has_aux=True from a loss) and keep what the step returns",
            field=getattr(fun, "__name__", "step"),
        )


def mutation_problem(fun: Callable[..., Any], changed: Sequence[str]) -> InputError:
    """The error of a step that changes Python's numbers and lists each time it is traced.

    Args:
        fun: the user's step.
        changed: words for each.
    """
    return _refused(
        fun,
        (f"changes Python's state: {one}" for one in changed),
        why="Python runs when the step is traced, not with each step, so it is changed then and never again",
        fix="make it part of the state that the step takes and returns, as state.replace(count=state.count + 1)",
    )


def writing_problem(fun: Callable[..., Any], written: Mapping[str, str]) -> InputError:
    """The error of a step that writes files each time it is traced.

    Args:
        fun: the user's step.
        written: words for each file, by the line that writes it.
    """
    return _refused(
        fun,
        (f"{one}: {line}" for line, one in written.items()),
        why="Python runs when the step is traced: files are written then, without numbers, and not in each step",
        fix="return what it is to hold (has_aux=True from a loss) and write it after the step;"
        " jax.debug.callback writes in each step",
    )


def reading_problem(fun: Callable[..., Any], changed: Sequence[str]) -> InputError:
    """The error of a step whose program holds numbers of Python that are others by now.

    Args:
        fun: the user's step.
        changed: words for each.
    """
    return _refused(
        fun,
        (f"depends on Python's state, which has changed since it was compiled: {one}" for one in changed),
        why="it was traced once, and its program holds the number of then",
        fix="pass it as an argument of the step; in static_argnames where shapes or branches depend on it",
    )


def _refused(fun: Callable[..., Any], does: Iterable[str], *, why: str, fix: str) -> InputError:
    """The error of a step that does all this."""
    field = getattr(fun, "__name__", "step")
    return InputError([Problem(what=f"{start_of(fun)} {one}", why=why, fix=fix, field=field) for one in does])


def check_begun(fun: Callable[..., Any], result: Any) -> None:
    """Refuse what a generator or an async function returns: an object of which nothing has run yet.

    Args:
        fun: the user's step.
        result: the result of a call of it.

    Raises:
        InputError: it is such an object.
    """
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        kind, fix = "a generator", "return in place of yield, as return state, loss; the loop over steps calls it"
    elif inspect.isawaitable(result):
        kind, fix = "a coroutine", "def in place of async def; what it awaits is an argument, such as the batch"
    else:
        return
    if inspect.iscoroutine(result):
        result.close()
    raise InputError(
        what=f"{start_of(fun)} returns {kind}",
        why="JAX traces what a function does until it returns, and nothing of this has run by then",
        fix=fix,
        field=getattr(fun, "__name__", "step"),
    )
