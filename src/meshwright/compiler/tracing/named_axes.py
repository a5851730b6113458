"""Steps written for `jax.pmap`: an axis that they name has one member here, which holds the whole batch."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import jax.numpy as jnp
from jax.extend import core

from meshwright.compiler.source_line import line_of
from meshwright.errors import InputError

UNBOUND = re.compile(r"unbound axis name: ([\w.-]+)")


def _scattered(values: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
    return [value if params["tiled"] else jnp.squeeze(value, params["scatter_dimension"]) for value in values]


def _gathered(values: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
    return [value if params["tiled"] else jnp.expand_dims(value, params["all_gather_dimension"]) for value in values]


def _same(values: Sequence[Any], params: Mapping[str, Any]) -> list[Any]:
    return list(values)


ALONE: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any]], list[Any]]] = {
    "psum": _same,
    "pmax": _same,
    "pmin": _same,
    "psum_invariant": _same,
    "pvary": _same,
    "all_gather": _gathered,
    "all_gather_invariant": _gathered,
    "reduce_scatter": _scattered,
    "axis_index": lambda values, params: [jnp.zeros((), jnp.int32)],
}
"""What collectives make of the value of the only member."""


def axis_without_members(error: NameError) -> str | None:
    """The axis that a step names and nothing binds; None for another error.

    Args:
        error: the error of tracing it.
    """
    found = UNBOUND.search(str(error))
    return found[1].rstrip(".") if found else None


def is_alone(eqn: core.JaxprEqn, axes: Collection[str]) -> bool:
    """Whether an equation is a collective over such axes.

    Args:
        eqn: any.
        axes: the axes with one member.

    Raises:
        InputError: it has no meaning without other members.
    """
    held = eqn.params.get("axes", eqn.params.get("axis_name"))
    names = held if isinstance(held, tuple | list) else (held,)
    if not axes or not any(isinstance(name, str) and name in axes for name in names):
        return False
    if eqn.primitive.name in ALONE and all(name in axes for name in names):
        return True
    line = line_of(eqn)
    raise InputError(
        what=f"{eqn.primitive.name} over an axis of jax.pmap" + (f": {line}" if line else ""),
        why="a step is one program for the whole batch, so that such an axis has one member; sums, means, largest,"
        " smallest and gathered values over it are those of the whole batch, this is not",
        fix="the same without the axis, or inside of jax.shard_map",
        field=eqn.primitive.name,
    )
