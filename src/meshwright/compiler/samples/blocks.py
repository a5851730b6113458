"""Batches behind each other along the dimension of samples: two views of each, chosen and rejected answers.

A part has the rows of its own samples from every batch, one batch after the other. What is done to every row by itself,
or adds all rows up, is then the same for every row, and a batch taken out again is in the order that it had. Anything
else that is done with the rows (the first few of them, their order) is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from math import gcd, prod
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
    """Rows of several batches, one batch behind the other."""

    parts: tuple[int, ...]
    """Rows of each part, without a common factor: (1, 2) where the second has twice as many."""


def in_blocks(
    walk: Reader, follow: Followed, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]
) -> list[RankValue]:
    """Results of an equation, where some of its operands are batches behind each other or it puts them so.

    Args:
        walk: the walk over the program.
        follow: what is done with all other equations.
        program: the program in which the equation stands.
        eqn: any.
        given: its operands.

    Raises:
        NotShared: it reads more of the rows than each by itself.
    """
    name = eqn.primitive.name
    found = {_parts(value) for value in given if value.placement >= 0}
    if found <= {_ALONE}:
        made = _put_together(walk, program, eqn, given) if found else None
        return follow(program, eqn, given) if made is None else made
    if name in FOLLOWS_INSIDE or (name == "custom_vjp_call" and walk.plain):
        return follow(program, eqn, given)
    given = [walk.total(value) for value in given]
    if name not in NOT_INSIDE:
        made = _put_together(walk, program, eqn, given) or _taken_apart(walk, program, eqn, given)
        if made is not None:
            return made
    if len(found) > 1 or name in NOT_INSIDE or name in ("reshape", "slice", "split"):
        raise NotShared(f"{name} mixes samples")
    (parts,) = found
    wanted, made_at = sample_placements(eqn, [value.placement for value in given], walk.ranks)
    sizes = {
        atom.aval.shape[at]
        for atom, at in zip([*eqn.invars, *eqn.outvars], [*wanted, *made_at], strict=True)
        if at >= 0
    }
    if len(sizes) != 1 or sizes.pop() % (sum(parts) * walk.ranks):
        raise NotShared(f"{name} mixes samples")
    own = [_own(walk, value, at, parts) for value, at in zip(given, wanted, strict=True)]
    return [replace(one, order=Blocks(parts)) if one.placement >= 0 else one for one in follow(program, eqn, own)]


def blocks_of(value: RankValue) -> Blocks | None:
    """How many batches a value holds behind each other; None for one.

    Args:
        value: any.
    """
    return value.order if isinstance(value.order, Blocks) else None


_ALONE = (1,)
"""Parts of one batch."""


def _parts(value: RankValue) -> tuple[int, ...]:
    blocks = blocks_of(value)
    return blocks.parts if blocks else _ALONE


def _order(parts: Sequence[int]) -> Blocks | None:
    """Batches of so many rows behind each other."""
    factor = gcd(*parts)
    return Blocks(tuple(part // factor for part in parts)) if len(parts) > 1 else None


def _own(walk: Reader, value: RankValue, at: int, parts: Sequence[int]) -> RankValue:
    """The rows of the part, of a value that all parts hold."""
    if at < 0 or value.placement >= 0:
        return value
    unit = np.shape(value.value)[at] // sum(parts)
    batches = jnp.split(value.value, [unit * end for end in accumulate(parts[:-1])], axis=at)
    own = [walk.own(RankValue(batch, WHOLE, uniform=value.uniform), at) for batch in batches]
    whole = jnp.concatenate([one.value for one in own], axis=at) if len(own) > 1 else own[0].value
    return RankValue(whole, at, uniform=value.uniform)


def begun_in_blocks(walk: Reader, value: RankValue, at: int, order: Any) -> RankValue:
    """What a loop begins with, where its rounds make rows of several batches of it.

    Args:
        walk: the walk over the program.
        value: the value that it begins with.
        at: dimension that counts rows in its rounds.
        order: the order of these rows.
    """
    return _own(walk, value, at, order.parts) if isinstance(order, Blocks) else value


def _put_together(
    walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]
) -> list[RankValue] | None:
    """Batches put behind each other; None for all else."""
    name = eqn.primitive.name
    if any((value.order is not None and not blocks_of(value)) or points(value) for value in given):
        return None
    at = next(value.placement for value in given if value.placement >= 0)
    parts = _parts(given[0])
    if name == "concatenate" and eqn.params["dimension"] == at:
        return _concatenated(walk, program, eqn, given, at)
    if name == "tile" and (parts != _ALONE or eqn.params["reps"][at] > 1):
        (made,) = walk.evaluated(program, eqn, given)
        return [RankValue(made, at, order=_order(parts * eqn.params["reps"][at]))]
    shape = eqn.invars[0].aval.shape
    if name != "reshape" or parts != _ALONE or at == 0 or shape[at - 1] == 1 or eqn.params["dimensions"] is not None:
        return None
    sizes = list(eqn.params["new_sizes"])
    place = _place(sizes, prod(shape[: at - 1]))
    rows = shape[at - 1] * shape[at]
    if place is None or sizes[place] % rows or shape[at] % walk.ranks:
        return None
    sizes[place] //= walk.ranks
    (made,) = walk.evaluated(program, eqn.replace(params={**eqn.params, "new_sizes": tuple(sizes)}), given)
    return [RankValue(made, place, order=_order(_ALONE * shape[at - 1]))]


def _concatenated(
    walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue], at: int
) -> list[RankValue] | None:
    operands = [walk.total(value) for value in given]
    rows = [atom.aval.shape[at] for atom in eqn.invars]
    units = {size // sum(_parts(value)) for value, size in zip(given, rows, strict=True) if value.placement == at}
    if not units or any(value.placement not in (at, WHOLE) for value in operands):
        return None
    least = gcd(*units)
    parts: list[tuple[int, ...]] = []
    for value, size in zip(operands, rows, strict=True):
        if value.placement == WHOLE and (len(units) > 1 or size % least):
            return None
        own = _parts(value) if value.placement == at else _ALONE * (size // least)
        parts.append(tuple(part * (size // sum(own) // least) for part in own))
    held = [_own(walk, value, at, own) for value, own in zip(operands, parts, strict=True)]
    (made,) = walk.evaluated(program, eqn, held)
    return [RankValue(made, at, order=_order([part for own in parts for part in own]))]


def _taken_apart(
    walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]
) -> list[RankValue] | None:
    """Some of the batches; None for all else."""
    value, name, params = given[0], eqn.primitive.name, eqn.params
    if name not in ("slice", "split", "reshape"):
        return None
    at, shape = value.placement, eqn.invars[0].aval.shape
    if name == "reshape":
        return _reshaped(walk, program, eqn, value)
    if name == "split":
        if params["axis"] != at:
            return _beside(walk, program, eqn, value)
        ends = list(accumulate(params["sizes"], initial=0))
        between = [_between(value, shape[at], low, high) for low, high in pairwise(ends)]
        if not all(between):
            return None
        sizes = tuple(size // walk.ranks for size in params["sizes"])
        made = walk.evaluated(program, eqn.replace(params={**params, "sizes": sizes}), given)
        return [RankValue(one, at, order=_order(parts)) for one, parts in zip(made, between, strict=True)]
    low, high = params["start_indices"][at], params["limit_indices"][at]
    if (low, high) == (0, shape[at]) and (params["strides"] is None or params["strides"][at] == 1):
        return _beside(walk, program, eqn, value)
    parts = _between(value, shape[at], low, high)
    if not parts or (params["strides"] is not None and params["strides"][at] != 1):
        return None
    start, limit = list(params["start_indices"]), list(params["limit_indices"])
    start[at], limit[at] = low // walk.ranks, high // walk.ranks
    part = eqn.replace(params={**params, "start_indices": tuple(start), "limit_indices": tuple(limit)})
    (made,) = walk.evaluated(program, part, given)
    return [RankValue(made, at, order=_order(parts))]


def _between(value: RankValue, rows: int, low: int, high: int) -> tuple[int, ...]:
    """Parts of the batches from one row to another; none where these are not the ends of batches."""
    parts = _parts(value)
    unit = rows // sum(parts)
    ends = [unit * end for end in accumulate(parts, initial=0)]
    return parts[ends.index(low) : ends.index(high)] if low in ends and high in ends else ()


def _beside(walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, value: RankValue) -> list[RankValue]:
    """Results of an equation that leaves the rows alone."""
    made_at = [value.placement] * len(eqn.outvars)
    made = walk.evaluated(program, for_rank(eqn, [value.placement], made_at, walk.ranks), [value])
    return [RankValue(one, value.placement, order=value.order) for one in made]


def _reshaped(walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, value: RankValue) -> list[RankValue] | None:
    """Batches with a dimension of their own, or rows with other dimensions behind them."""
    if eqn.params["dimensions"] is not None:
        return None
    at, parts = value.placement, _parts(value)
    sizes = list(eqn.params["new_sizes"])
    place = _place(sizes, prod(eqn.invars[0].aval.shape[:at]))
    if place is None:
        return None
    if sizes[place] % (sum(parts) * walk.ranks) == 0:
        order = _order(parts)
    elif sizes[place] == len(parts) == sum(parts) and place + 1 < len(sizes) and sizes[place + 1] % walk.ranks == 0:
        place, order = place + 1, None
    else:
        return None
    sizes[place] //= walk.ranks
    (made,) = walk.evaluated(program, eqn.replace(params={**eqn.params, "new_sizes": tuple(sizes)}), [value])
    return [RankValue(made, place, order=order)]


def _place(sizes: Sequence[int], before: int) -> int | None:
    """The first dimension longer than one in front of which so many entries stand; None where there is none."""
    return next((place for place, size in enumerate(sizes) if size > 1 and prod(sizes[:place]) == before), None)
