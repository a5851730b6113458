"""What the backward of a program reads, and what it runs once more where a checkpoint keeps nothing."""

from __future__ import annotations

from typing import Any

from jax.extend import core

NOT_KEPT = (
    "reshape", "transpose", "squeeze", "expand_dims", "convert_element_type", "copy", "copy_p", "slice", "split",
    "unstack", "neg", "add", "sub",
)  # fmt: skip
"""Results that the backward does not read, or reads as what they were made of."""
SUMMING = (*NOT_KEPT, "add_any", "reduce_sum", "broadcast_in_dim", "concatenate", "stack", "sharding_constraint")
"""Equations whose gradient needs none of their operands."""


def run_again(program: core.Jaxpr) -> set[int]:
    """Equations of a checkpoint, by their id, that the backward has to run: what gradients read, and what makes it.

    Args:
        program: the program of the checkpoint.
    """
    found: set[int] = set()
    read: set[Any] = set()
    for eqn in reversed(program.eqns):
        again = any(var in read for var in eqn.outvars)
        if again:
            found.add(id(eqn))
        if again or eqn.primitive.name not in SUMMING:
            read.update(atom for atom in eqn.invars if isinstance(atom, core.Var))
    return found
