"""Numbers of Python in a step: what is made of one and of an array has the type of the array, as JAX has it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax._src.lax import lax as operations
from jax.extend import core


def is_weak(leaf: Any) -> bool:
    """Whether a value takes the type of what it meets: a number of Python, or what is made of such alone.

    Args:
        leaf: a number, an array or the shape of one.
    """
    return type(leaf) in (int, float, complex) or bool(getattr(leaf, "weak_type", False))


@lru_cache(maxsize=64)
def weak_places(program: core.Jaxpr) -> frozenset[int]:
    """Results that take the type of what they meet.

    Args:
        program: a traced step.
    """
    return frozenset(place for place, atom in enumerate(program.outvars) if is_weak(atom.aval))


def as_weak(value: Any) -> jax.Array:
    """A result as one that takes the type of what it meets; of other processes it is gathered.

    Args:
        value: an array.
    """
    value = value if isinstance(value, jax.Array) else np.asarray(value)
    made: jax.Array = operations._convert_element_type(value, value.dtype, weak_type=True)
    return made
