"""Products that read one copy of a value on each device, so that gradients of several are added before they are summed.

Queries, keys and values of a block read its input whole and make columns of their own on each device. XLA sums the
gradient of the input over devices three times, once for each product. Copies side by side along a dimension that the
devices split keep what each device adds to the gradient apart: the three are added there, and the sum over copies is
one sum over devices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from meshwright.compiler.sharding.cost import WHOLE
from meshwright.compiler.sharding.nodes import EquationSite, Operand


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """How a product reads an operand from copies, one on each device along some axes."""

    operand: int
    """Which of the two it is."""
    axes: tuple[int, ...]
    """Axes of the mesh, in order, with a copy along each."""
    split: Mapping[int, tuple[int, ...]]
    """Dimensions of the other operand that these axes split, with the devices along them, the outer first."""


def copies_of(site: EquationSite, choice: Sequence[int]) -> Copies | None:
    """The operand of an equation that others read, too, and whose gradient is summed with theirs.

    Args:
        site: the site of the equation.
        choice: the choice of each node.
    """
    for place, taken in enumerate(site.taken):
        if taken is None or taken.through is None:
            continue
        own, shared = choice[taken.node], choice[taken.through.node]
        found = _along(site, place, taken, own, taken.sums[own] & taken.through.sums[shared])
        if found is not None:
            return found
    return None


def _along(site: EquationSite, place: int, taken: Operand, own: int, sums: Any) -> Copies | None:
    axes = tuple(axis for axis, summed in enumerate(sums.tolist()) if summed)
    other = site.operands[1 - place]
    if not axes or other is None:
        return None
    dims = other.placements[own].tolist()
    if any(dims[axis] == WHOLE for axis in axes) or {
        axis for axis, dim in enumerate(dims) if dim in {dims[axis] for axis in axes}
    } != {*axes}:
        return None
    sizes = taken.sizes
    split = {dim: tuple(sizes[axis] for axis in axes if dims[axis] == dim) for dim in sorted({dims[a] for a in axes})}
    # Copies lie in the order of the dimensions that they belong to.
    return Copies(operand=place, axes=tuple(a for dim in split for a in axes if dims[a] == dim), split=split)


def product_of_copies(eqn: core.JaxprEqn, copies: Copies, given: Sequence[Any]) -> jax.Array:
    """A product whose operand lies in copies: each makes its own part of the result.

    Args:
        eqn: the product.
        copies: the operand that is copied, and the axes along which it is.
        given: operands; the copies of that one lie along its first dimensions.
    """
    (contracted, batch), place = eqn.params["dimension_numbers"], copies.operand
    other = 1 - place
    shape, lead = eqn.invars[other].aval.shape, len(copies.axes)
    starts: list[int] = []
    parts: list[int] = []
    for dim, size in enumerate(shape):
        starts.append(len(parts))
        own = copies.split.get(dim, ())
        parts += [*own, size // prod(own)]

    def shifted(dim: int) -> int:
        """Place of a dimension of the other operand that is not among those copied for, or of what is left of it."""
        return starts[dim] + len(copies.split.get(dim, ()))

    news = [starts[dim] + k for dim, own in copies.split.items() for k in range(len(own))]
    numbers: list[list[tuple[int, ...]]] = [[(), ()], [(), ()]]
    numbers[0][place] = tuple(dim + lead for dim in contracted[place])
    numbers[0][other] = tuple(map(shifted, contracted[other]))
    numbers[1][place] = (*range(lead), *(dim + lead for dim in batch[place]))
    numbers[1][other] = (*news, *map(shifted, batch[other]))
    operands = [given[0], given[1]]
    operands[other] = jnp.reshape(operands[other], parts)
    params = {**eqn.params, "dimension_numbers": (tuple(numbers[0]), tuple(numbers[1]))}
    made = eqn.primitive.bind(*operands, **params)
    # Results are laid out as batch, left, right: parts go back to the dimension that they are of.
    free = [dim for dim in range(len(shape)) if dim not in (*contracted[other], *batch[other])]
    before = len(batch[0]) + (0 if other == 0 else eqn.outvars[0].aval.ndim - len(batch[0]) - len(free))
    order: list[int] = []
    copy = iter(range(lead))
    leading = {before + free.index(dim): [next(copy) for _ in own] for dim, own in copies.split.items()}
    for dim in range(eqn.outvars[0].aval.ndim):
        order += [*leading.get(dim, ()), dim + lead]
    return jnp.reshape(jnp.transpose(made, order), eqn.outvars[0].aval.shape)
