"""Indices that are the number of the sample itself: `table[arange(samples), picked]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from jax.extend import core

Made = Mapping[Any, core.JaxprEqn]
"""Equation of each variable of a program."""


def own_rows(eqn: core.JaxprEqn, samples: int, made: Made) -> tuple[int, int] | None:
    """Column of the indices of a gather that is the number of the sample, and the dimension of the indices that counts
    samples; None where samples do not pick from their own rows.

    Args:
        eqn: a gather.
        samples: dimension of its table that counts samples.
        made: equations of the program.
    """
    numbers = eqn.params["dimension_numbers"]
    if samples < 0 or samples not in numbers.start_index_map or samples not in numbers.collapsed_slice_dims:
        return None
    column = numbers.start_index_map.index(samples)
    indices = eqn.invars[1]
    size = eqn.invars[0].aval.shape[samples]
    found = _column(indices, column, made)
    for walked, length in enumerate(indices.aval.shape[:-1]):
        if length == size and found is not None and counts_places(found, walked, made):
            return column, walked
    return None


def _column(indices: Any, column: int, made: Made) -> Any:
    """What stands in a column of indices; None if unknown."""
    if indices.aval.shape[-1] == 1:
        return indices
    eqn = made.get(indices) if isinstance(indices, core.Var) else None
    if eqn is None or eqn.primitive.name != "concatenate" or eqn.params["dimension"] != indices.aval.ndim - 1:
        return None
    at = 0
    for atom in eqn.invars:
        if column < at + atom.aval.shape[-1]:
            return atom if atom.aval.shape[-1] == 1 else None
        at += atom.aval.shape[-1]
    return None


def counts_places(atom: Any, dimension: int, made: Made) -> bool:
    """Whether every entry of a value is its own place along a dimension.

    Args:
        atom: a variable or literal of the program.
        dimension: the dimension of it.
        made: equations of the program.
    """
    eqn = made.get(atom) if isinstance(atom, core.Var) else None
    if eqn is None:
        return False
    match eqn.primitive.name:
        case "iota":
            return bool(eqn.params["dimension"] == dimension)
        case "broadcast_in_dim":
            places = eqn.params["broadcast_dimensions"]
            given = eqn.invars[0]
            if dimension not in places:
                return False
            own = places.index(dimension)
            return given.aval.shape[own] == atom.aval.shape[dimension] and counts_places(given, own, made)
        case "reshape":
            given = eqn.invars[0]
            longer = [at for at, size in enumerate(given.aval.shape) if size > 1]
            here = [at for at, size in enumerate(atom.aval.shape) if size > 1]
            if [given.aval.shape[at] for at in longer] != [atom.aval.shape[at] for at in here]:
                return False
            return dimension in here and counts_places(given, longer[here.index(dimension)], made)
        case "convert_element_type" | "copy":
            made_of = eqn.outvars[0].aval.dtype
            wide = np.issubdtype(made_of, np.integer) and made_of.itemsize >= 4
            return wide and counts_places(eqn.invars[0], dimension, made)
        case "select_n":
            # Negative indices count from the end; these are none.
            asked, otherwise = made.get(eqn.invars[0]), eqn.invars[1]
            negative = (
                asked is not None
                and asked.primitive.name == "lt"
                and asked.invars[0] is otherwise
                and isinstance(asked.invars[1], core.Literal)
                and np.all(asked.invars[1].val == 0)
            )
            return bool(negative) and counts_places(otherwise, dimension, made)
    return False
