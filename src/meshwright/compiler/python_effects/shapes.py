"""A state that comes back with other shapes from every call, so that every call compiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend import core

from meshwright.compiler.source_line import line_of, start_of
from meshwright.errors import InputError, Problem

_CALLS = 3
"""Programs in a row for states of other shapes, each as the program before it has returned one."""


class StateShapes:
    """Shapes of the state for which programs were compiled, in a row."""

    def __init__(self) -> None:
        """No program yet."""
        self._rest: Any = None
        self._shapes: list[list[tuple[int, ...]]] = []

    def compiling(self, fun: Callable[..., Any], arguments: Sequence[Any], before: core.Jaxpr | None) -> None:
        """Another program is asked for.

        Args:
            fun: the user's step.
            arguments: the arguments of its call.
            before: the last program.

        Raises:
            InputError: it is the third in a row for the same arguments but for the shapes of the state.
        """
        state = arguments[0] if arguments else ()
        leaves, tree = jax.tree.flatten(state)
        rest = tree, jax.tree.structure(arguments[1:]), [np.shape(leaf) for leaf in jax.tree.leaves(arguments[1:])]
        if rest != self._rest:
            self._rest, self._shapes = rest, []
        self._shapes = [*self._shapes, [np.shape(leaf) for leaf in leaves]][-_CALLS:]
        if len(self._shapes) < _CALLS:
            return
        made = {atom.aval.shape: _maker(before, atom) for atom in before.outvars} if before is not None else {}
        for (path, _), shapes in zip(jax.tree.leaves_with_path(state), zip(*self._shapes, strict=True), strict=True):
            if len(set(shapes)) == _CALLS and shapes[-1] in made:
                raise InputError(_problem(fun, jax.tree_util.keystr(path), shapes, made[shapes[-1]]))


def _maker(jaxpr: core.Jaxpr, atom: Any) -> str:
    """The user's line that makes a result; empty if unknown."""
    return next((line_of(eqn) for eqn in jaxpr.eqns if atom in eqn.outvars), "")


def _problem(fun: Callable[..., Any], path: str, shapes: Sequence[tuple[int, ...]], line: str) -> Problem:
    return Problem(
        what=f"{start_of(fun)} returns a state of other shapes each call: state{path} of shape"
        f" {', then '.join(map(str, shapes))}" + (f": {line}" if line else ""),
        why="a program is compiled for its shapes, so every call compiles anew",
        fix="an array of the largest size with a count, written with jax.lax.dynamic_update_slice",
        field=getattr(fun, "__name__", "step"),
    )
