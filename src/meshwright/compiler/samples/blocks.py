"""Batches behind each other along the dimension of samples: two views of each, chosen and rejected answers.

A part has the rows of its own samples from every batch, one batch after the other. What is done to every row by itself,
or adds all rows up, is then the same for every row, and a batch taken out again is in the order that it had. Anything
else that is done with the rows (the first few of them, their order) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.extend import core

from meshwright.compiler.inline import CALLS, CHECKPOINTS
from meshwright.compiler.samples.known import points
from meshwright.compiler.samples.placements import WHOLE, NotShared, for_rank, sample_placements
from meshwright.compiler.samples.values import RankValue, Reader

Followed = Callable[[core.Jaxpr, core.JaxprEqn, list[RankValue]], list[RankValue]]
FOLLOWS_INSIDE = (*CALLS, *CHECKPOINTS, "custom_jvp_call", "scan")
"""Equations whose programs are followed with the blocks of what they are given."""
NOT_INSIDE = ("while", "cond", "custom_vjp_call", "shard_map", "pallas_call", "sort")


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows of so many batches, one batch behind the other."""

    count: int


def in_blocks(
    walk: Reader, follow: Followed, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]
) -> list[RankValue]:
    """Results of an equation, where some of its operands are batches behind each other or it puts them so.

    Args:
        walk: over the program.
        follow: what is done with all other equations.
        program: in which the equation stands.
        eqn: any.
        given: its operands.

    Raises:
        NotShared: it reads more of the rows than each by itself.
    """
    name = eqn.primitive.name
    counts = {_count(value) for value in given if value.placement >= 0}
    if counts <= {1}:
        made = _put_together(walk, program, eqn, given) if counts else None
        return follow(program, eqn, given) if made is None else made
    if name in FOLLOWS_INSIDE or (name == "custom_vjp_call" and walk.plain):
        return follow(program, eqn, given)
    given = [walk.total(value) for value in given]
    if name not in NOT_INSIDE:
        made = _put_together(walk, program, eqn, given) or _taken_apart(walk, program, eqn, given)
        if made is not None:
            return made
    if len(counts) > 1 or name in NOT_INSIDE or name in ("reshape", "slice", "split"):
        raise NotShared(f"{name} mixes samples")
    (count,) = counts
    wanted, made_at = sample_placements(eqn, [value.placement for value in given], walk.ranks)
    sizes = {
        atom.aval.shape[at]
        for atom, at in zip([*eqn.invars, *eqn.outvars], [*wanted, *made_at], strict=True)
        if at >= 0
    }
    if len(sizes) != 1 or sizes.pop() % (count * walk.ranks):
        raise NotShared(f"{name} mixes samples")
    own = [_own(walk, value, at, count) for value, at in zip(given, wanted, strict=True)]
    return [replace(one, order=Blocks(count)) if one.placement >= 0 else one for one in follow(program, eqn, own)]


def blocks_of(value: RankValue) -> Blocks | None:
    """How many batches a value holds behind each other; None for one.

    Args:
        value: any.
    """
    return value.order if isinstance(value.order, Blocks) else None


def _count(value: RankValue) -> int:
    blocks = blocks_of(value)
    return blocks.count if blocks else 1


def _order(count: int) -> Blocks | None:
    return Blocks(count) if count > 1 else None


def _own(walk: Reader, value: RankValue, at: int, count: int) -> RankValue:
    """The rows of the part, of a value that all parts hold."""
    if at < 0 or value.placement >= 0:
        return value
    shape = np.shape(value.value)
    apart = (*shape[:at], count, shape[at] // count, *shape[at + 1 :])
    part = walk.own(RankValue(jnp.reshape(value.value, apart), WHOLE, uniform=value.uniform), at + 1).value
    return RankValue(jnp.reshape(part, (*shape[:at], -1, *shape[at + 1 :])), at, uniform=value.uniform)


def begun_in_blocks(walk: Reader, value: RankValue, at: int, order: Any) -> RankValue:
    """What a loop begins with, where its rounds make rows of several batches of it.

    Args:
        walk: over the program.
        value: that it begins with.
        at: dimension that counts rows in its rounds.
        order: of these rows.
    """
    return _own(walk, value, at, order.count) if isinstance(order, Blocks) else value


def _put_together(
    walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]
) -> list[RankValue] | None:
    """Batches put behind each other; None for all else."""
    name = eqn.primitive.name
    if any((value.order is not None and not blocks_of(value)) or points(value) for value in given):
        return None
    at = next(value.placement for value in given if value.placement >= 0)
    count = _count(given[0])
    if name == "concatenate" and eqn.params["dimension"] == at:
        return _concatenated(walk, program, eqn, given, at)
    if name == "tile" and (count > 1 or eqn.params["reps"][at] > 1):
        (made,) = walk.evaluated(program, eqn, given)
        return [RankValue(made, at, order=_order(count * eqn.params["reps"][at]))]
    shape = eqn.invars[0].aval.shape
    if name != "reshape" or count > 1 or at == 0 or shape[at - 1] == 1 or eqn.params["dimensions"] is not None:
        return None
    sizes = list(eqn.params["new_sizes"])
    place = _place(sizes, prod(shape[: at - 1]))
    rows = shape[at - 1] * shape[at]
    if place is None or sizes[place] % rows or shape[at] % walk.ranks:
        return None
    sizes[place] //= walk.ranks
    (made,) = walk.evaluated(program, eqn.replace(params={**eqn.params, "new_sizes": tuple(sizes)}), given)
    return [RankValue(made, place, order=Blocks(shape[at - 1]))]


def _concatenated(
    walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue], at: int
) -> list[RankValue] | None:
    placed = [
        (value, atom.aval.shape[at] // _count(value))
        for value, atom in zip(given, eqn.invars, strict=True)
        if value.placement == at
    ]
    units = {unit for _, unit in placed}
    if len(units) != 1:
        return None
    (unit,) = units
    operands = [walk.total(value) for value in given]
    counts = [atom.aval.shape[at] // unit for atom in eqn.invars]
    if any(atom.aval.shape[at] % unit for atom in eqn.invars) or any(
        value.placement not in (at, WHOLE) for value in operands
    ):
        return None
    own = [_own(walk, value, at, count) for value, count in zip(operands, counts, strict=True)]
    (made,) = walk.evaluated(program, eqn, own)
    return [RankValue(made, at, order=_order(sum(counts)))]


def _taken_apart(
    walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]
) -> list[RankValue] | None:
    """Some of the batches; None for all else."""
    value, name, params = given[0], eqn.primitive.name, eqn.params
    if name not in ("slice", "split", "reshape"):
        return None
    at, count = value.placement, _count(value)
    shape = eqn.invars[0].aval.shape
    unit = shape[at] // count
    if name == "reshape":
        return _reshaped(walk, program, eqn, value)
    if name == "split":
        if params["axis"] != at:
            return _beside(walk, program, eqn, value)
        if any(size % unit for size in params["sizes"]):
            return None
        sizes = tuple(size // walk.ranks for size in params["sizes"])
        made = walk.evaluated(program, eqn.replace(params={**params, "sizes": sizes}), given)
        return [RankValue(one, at, order=_order(size // unit)) for one, size in zip(made, params["sizes"], strict=True)]
    low, high = params["start_indices"][at], params["limit_indices"][at]
    if (low, high) == (0, shape[at]) and (params["strides"] is None or params["strides"][at] == 1):
        return _beside(walk, program, eqn, value)
    if low % unit or high % unit or (params["strides"] is not None and params["strides"][at] != 1):
        return None
    start, limit = list(params["start_indices"]), list(params["limit_indices"])
    start[at], limit[at] = low // walk.ranks, high // walk.ranks
    part = eqn.replace(params={**params, "start_indices": tuple(start), "limit_indices": tuple(limit)})
    (made,) = walk.evaluated(program, part, given)
    return [RankValue(made, at, order=_order((high - low) // unit))]


def _beside(walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, value: RankValue) -> list[RankValue]:
    """Results of an equation that leaves the rows alone."""
    made_at = [value.placement] * len(eqn.outvars)
    made = walk.evaluated(program, for_rank(eqn, [value.placement], made_at, walk.ranks), [value])
    return [RankValue(one, value.placement, order=value.order) for one in made]


def _reshaped(walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, value: RankValue) -> list[RankValue] | None:
    """Batches with a dimension of their own, or rows with other dimensions behind them."""
    if eqn.params["dimensions"] is not None:
        return None
    at, count = value.placement, _count(value)
    sizes = list(eqn.params["new_sizes"])
    place = _place(sizes, prod(eqn.invars[0].aval.shape[:at]))
    if place is None:
        return None
    if sizes[place] % (count * walk.ranks) == 0:
        order = Blocks(count)
    elif sizes[place] == count and place + 1 < len(sizes) and sizes[place + 1] % walk.ranks == 0:
        place, order = place + 1, None
    else:
        return None
    sizes[place] //= walk.ranks
    (made,) = walk.evaluated(program, eqn.replace(params={**eqn.params, "new_sizes": tuple(sizes)}), [value])
    return [RankValue(made, place, order=order)]


def _place(sizes: Sequence[int], before: int) -> int | None:
    """The first dimension longer than one in front of which so many entries stand; None where there is none."""
    return next((place for place, size in enumerate(sizes) if size > 1 and prod(sizes[:place]) == before), None)
