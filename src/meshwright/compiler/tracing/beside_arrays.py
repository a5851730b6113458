"""What is no array in the arguments of a step, such as names of files: where they change, every call compiles."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshwright.compiler.source_line import start_of
from meshwright.compiler.tracing.calls import Static
from meshwright.errors import InputError, Problem

_PROGRAMS = 8
"""Most programs in a row for the same arrays, each with another value in one place that is no array."""


class BesideArrays:
    """What programs were compiled for, in a row."""

    def __init__(self) -> None:
        """No program yet."""
        self._programs: list[tuple[Any, dict[str, Any]]] = []

    def compiling(self, fun: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Another program is asked for.

        Args:
            fun: the user's step.
            arguments: the arguments of its call.

        Raises:
            InputError: it is the eighth in a row for the same arguments but for a value that is no array.
        """
        held = jax.tree.leaves_with_path(tuple(arguments), is_leaf=lambda leaf: isinstance(leaf, Static))
        shapes = [(np.shape(leaf), str(getattr(leaf, "dtype", ""))) for _, leaf in held if not isinstance(leaf, Static)]
        values = {jax.tree_util.keystr(path): leaf for path, leaf in held if isinstance(leaf, Static)}
        if self._programs and (self._programs[0][0], self._programs[0][1].keys()) != (shapes, values.keys()):
            self._programs = []
        self._programs = [*self._programs, (shapes, values)][-_PROGRAMS:]
        for path in values if len(self._programs) == _PROGRAMS else ():
            ones = [beside[path] for _, beside in self._programs]
            if all(one != other for place, one in enumerate(ones) for other in ones[:place]):
                raise InputError(
                    Problem(
                        what=f"{start_of(fun)} is called with another value each time that is no array: arguments{path}"
                        f" = {ones[-1].value!r:.60}",
                        why="what is no array is part of the program, so every call compiles anew",
                        fix="leave it out of the arguments, or pass numbers in its place",
                        field=getattr(fun, "__name__", "step"),
                    )
                )
