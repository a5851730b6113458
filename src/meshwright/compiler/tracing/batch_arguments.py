"""Which argument of a step is its batch, where the user does not say so."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from meshwright.compiler.python_effects.refusals import effects_refused
from meshwright.errors import MeshwrightError


def batch_argument(fun: Callable[..., Any], arguments: Sequence[Any]) -> tuple[int, ...]:
    """Position of the argument that holds samples: the second, unless it can be none and one behind it can.

    A batch has arrays, of one first axis where some argument has, and does not come back among the results, as moments
    in `step(params, moments, batch)` do.

    Args:
        fun: the step; it is traced only where shapes leave several arguments.
        arguments: arrays or their shapes, by position.

    Returns:
        No position where there is a state alone.

    Raises:
        InputError: the step prints, or keeps traced values.
    """
    if len(arguments) < 2:
        return ()
    held = [place for place in range(1, len(arguments)) if any(map(np.shape, jax.tree.leaves(arguments[place])))]
    able = [place for place in held if _one_first_axis(arguments[place])] or held
    if not able:
        return (1,)
    if able[0] == 1 and len(able) > 1:
        try:
            with effects_refused(fun) as watch:
                results = jax.eval_shape(watch.watched(fun), *arguments)
        except MeshwrightError:
            raise
        except Exception:
            # A step that cannot be traced is said so, with its line, by the trace that compiles it.
            return (1,)
        able = [place for place in able if not _comes_back(arguments[place], results)] or [1]
    return (able[0],)


def _one_first_axis(argument: Any) -> bool:
    return len({np.shape(leaf)[0] for leaf in jax.tree.leaves(argument) if np.shape(leaf)}) == 1


def _comes_back(argument: Any, results: Any) -> bool:
    """Whether a part of the results has the structure, the shapes and the types of an argument."""
    tree, forms = jax.tree.structure(argument), _forms(argument)
    found = False

    def is_it(part: Any) -> bool:
        nonlocal found
        found = found or (jax.tree.structure(part) == tree and _forms(part) == forms)
        return found

    jax.tree.leaves(results, is_leaf=is_it)
    return found


def _forms(tree: Any) -> list[Any]:
    return [(np.shape(leaf), jax.dtypes.result_type(leaf)) for leaf in jax.tree.leaves(tree)]
