"""State of an optimizer that a step takes and does not return, so that every step begins with the same."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend import core

from meshwright.compiler.source_line import start_of
from meshwright.compiler.traced_step import TracedStep


class LostStateWarning(UserWarning):
    """What a step makes of the state of its optimizer is lost."""


def warn_of_lost_state(fun: Callable[..., Any], arguments: Any, step: TracedStep) -> None:
    """Warn if a step updates weights by moments that it does not return.

    Args:
        fun: the function of the user.
        arguments: the arguments of the call.
        step: the step as it was read.
    """
    leaves, tree = jax.tree.flatten(tuple(arguments))
    given = {name for name, places in _states(jax.tree.unflatten(tree, range(len(leaves)))) if _moments(step, places)}
    returned = jax.tree.unflatten(step.out_tree, range(step.out_tree.num_leaves))
    lost = given - {name for name, _ in _states(returned)}
    if step.wrt and step.stacking is None and lost:
        warnings.warn(
            f"{start_of(fun)} takes {sorted(lost)[0]} of an optimizer and does not return it: every call begins with"
            " the same; return opt_state beside the weights, and pass it on",
            LostStateWarning,
            stacklevel=4,
        )


def _states(tree: Any) -> Iterator[tuple[str, list[int]]]:
    """States of Optax in a tree of numbers: their names, and the numbers in them."""
    for node in jax.tree.leaves(tree, is_leaf=_is_state):
        if _is_state(node):
            yield type(node).__name__, jax.tree.leaves(node)


def _is_state(node: Any) -> bool:
    return type(node).__module__.startswith("optax") and isinstance(node, tuple) and len(jax.tree.leaves(node)) > 0


def _moments(step: TracedStep, places: list[int]) -> bool:
    """Whether the step reads arrays among some of its inputs."""
    held = {step.jaxpr.invars[place] for place in places if step.jaxpr.invars[place].aval.shape}
    return any(not held.isdisjoint(_variables(eqn.invars)) for eqn in step.after)


def _variables(atoms: Any) -> set[Any]:
    return {atom for atom in atoms if isinstance(atom, core.Var)}
