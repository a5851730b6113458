"""Samples in sorted order: experts whose tokens are sorted, multiplied group by group, and put back.

A part that sorts its own rows has the rows that the whole has, in another order. Whatever is computed row by row, added
up over all rows, or put back to where the rows came from is then the same for every row. Which value is in which order,
and what whole numbers in it are functions of, is followed through the program:

* a position that a sort returns is a function of the row it stands for; an index made of it (`order // k`) is evaluated
  for every row, and has to point to rows of the same part, at the same places in every part;
* an index made of the choices of a row (`top_k`, `argmax`) is evaluated for every choice; group sizes are such a
  histogram if every choice adds one to its own group and nothing to the others.

Anything else that is done with rows in sorted order (the first of them, their places, a mask over them) is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np
from jax.extend import core

from meshwright.compiler.inline import CALLS, programs_of
from meshwright.compiler.samples.blocks import Blocks
from meshwright.compiler.samples.known import (
    Choices,
    Counts,
    Known,
    Places,
    SortedRows,
    ascends,
    facts_of,
    is_all,
    is_identity,
    known_of,
    points,
)
from meshwright.compiler.samples.placements import SCATTERS, SUM, WHOLE, NotShared, sample_placements
from meshwright.compiler.samples.positions import counts_places
from meshwright.compiler.samples.values import RankValue, Reader

NESTED = ("scan", "while", "cond", "custom_vjp_call", "shard_map", "pallas_call")
"""Equations inside of which the order of rows is not followed."""


def sorts(program: core.Jaxpr) -> bool:
    """Whether a program sorts anything.

    Args:
        program: any.
    """
    return any(eqn.primitive.name == "sort" or any(sorts(inner) for inner in programs_of(eqn)) for eqn in program.eqns)


def in_batch_order(values: Sequence[RankValue]) -> Sequence[RankValue]:
    """Values that leave where order is followed.

    Args:
        values: any.

    Raises:
        NotShared: some are in sorted order, or point at rows.
    """
    if any(isinstance(value.order, Blocks) for value in values):
        raise NotShared("concatenate mixes samples: several batches behind each other are read as one")
    if any(value.order is not None or points(value) for value in values):
        raise NotShared("sort mixes samples: they are read in its order")
    return values


def group_sizes(eqn: core.JaxprEqn, given: Sequence[RankValue]) -> bool:
    """Whether an equation multiplies rows, sorted by what they chose, group by group, each group with its own matrix.

    Args:
        eqn: any.
        given: its operands.
    """
    if eqn.primitive.name != "ragged_dot_general" or len(given) != 3:
        return False
    rows, _, sizes = given
    numbers = eqn.params["ragged_dot_dimension_numbers"]
    (contracted, _), (batched, _) = numbers.dot_dimension_numbers
    return (
        isinstance(sizes.known, Counts)
        and sizes.placement == SUM
        and isinstance(rows.order, SortedRows)
        and rows.order.choices is sizes.known.choices
        and not batched
        and rows.placement not in contracted
        and tuple(numbers.lhs_ragged_dimensions) == (rows.placement,)
        and given[1].placement == WHOLE
    )


def by_order(walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, given: list[RankValue]) -> list[RankValue]:
    """Results of an equation, and in which order their rows are.

    Args:
        walk: the walk over the program, which sorts something.
        program: the program in which the equation stands.
        eqn: any.
        given: its operands.

    Raises:
        NotShared: it needs more of an order than that every row keeps its own.
    """
    name = eqn.primitive.name
    if name in CALLS or name in ("checkpoint", "remat2", "custom_jvp_call"):
        return walk.placed_equation(program, eqn, given)
    if name in NESTED:
        made = walk.placed_equation(program, eqn, list(in_batch_order(given)))
        return list(in_batch_order(made))
    made_here = _own_rule(walk, program, eqn, given)
    if made_here is not None:
        return made_here
    known = known_of(eqn, given)
    if any(points(value) for value in given) and known is None:
        raise NotShared(f"sort mixes samples: {name} reads the places of rows")
    orders = {_order(value) for value in given if value.placement >= 0}
    found = {order for order in orders if order is not None}
    if not found:
        made = walk.placed_equation(program, eqn, given)
        return [replace(one, known=of_one) for one, of_one in zip(made, facts_of(eqn, given, known), strict=True)]
    if len(orders) > 1:
        raise NotShared(f"sort mixes samples: {name} joins rows in its order with others")
    order = found.pop()
    _check_rows(walk, eqn, given, order)
    made = walk.placed_equation(program, eqn, given)
    return [replace(one, order=order if one.placement >= 0 else None, known=known) for one in made]


def _order(value: RankValue) -> SortedRows | None:
    """Order in which a sort has left the rows of a value; None where they stand as in the batch."""
    return value.order if isinstance(value.order, SortedRows) else None


def _check_rows(walk: Reader, eqn: core.JaxprEqn, given: Sequence[RankValue], order: SortedRows) -> None:
    """Refuse what is not done to every row by itself."""
    name = eqn.primitive.name
    try:
        wanted, made = sample_placements(
            eqn, [value.placement if value.placement >= 0 else WHOLE for value in given], walk.ranks
        )
    except NotShared as why:
        raise NotShared(f"sort mixes samples: {name} reads them in its order") from why
    for atom, value, want in zip(eqn.invars, given, wanted, strict=True):
        if want >= 0 and (atom.aval.shape[want] != order.rows or (value.placement < 0 and not value.uniform)):
            raise NotShared(f"sort mixes samples: {name} reads them in its order")
    for var, placement in zip(eqn.outvars, made, strict=True):
        if placement >= 0 and var.aval.shape[placement] != order.rows:
            raise NotShared(f"sort mixes samples: {name} joins neighbours in its order")


def _own_rule(
    walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]
) -> list[RankValue] | None:
    """Sorting, taking rows, putting them back, counting, and products by group; None for all else."""
    name = eqn.primitive.name
    if name == "sort":
        return _sorted(walk, program, eqn, given)
    if name == "gather" and len(given) == 2 and points(given[1]):
        if (looked_up := _looked_up(eqn, given)) is not None:
            (made,) = walk.evaluated(program, eqn, given)
            return [RankValue(made, 0, order=given[1].order, known=looked_up)]
        return _taken(walk, program, eqn, given)
    if name in SCATTERS and isinstance(given[1].known, Known):
        if points(given[1]):
            if (inverse := _inverse(walk, program, eqn, given)) is not None:
                return [inverse]
            return _put_back(walk, program, eqn, given)
        if name in ("scatter-add", "scatter_add") and (found := _counted(eqn, given)) is not None:
            operands = [given[0], given[1], walk.own(given[2], given[1].placement)]
            (made,) = walk.evaluated(program, eqn, operands)
            return [RankValue(made, SUM, known=found)]
    counts = isinstance(given[0].known, Counts) and given[0].placement == SUM if given else False
    if counts and name == "convert_element_type" and eqn.invars[0].aval.dtype.itemsize >= 4:  # narrower ones round
        (made,) = walk.evaluated(program, eqn, given)
        return [RankValue(made, SUM, known=given[0].known)]
    if group_sizes(eqn, given):
        (contracted, _), _ = eqn.params["ragged_dot_dimension_numbers"].dot_dimension_numbers
        (made,) = walk.evaluated(program, eqn, given)
        at = given[0].placement - sum(place < given[0].placement for place in contracted)
        return [RankValue(made, at, order=given[0].order)]
    return None


def _sorted(
    walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]
) -> list[RankValue] | None:
    """Every part sorts its own rows; those in an order are sorted back by the places that they come from."""
    key = given[0]
    if key.placement != eqn.params["dimension"] or eqn.params["num_keys"] != 1 or eqn.invars[0].aval.ndim != 1:
        return None
    rows = eqn.invars[0].aval.shape[0]
    made_by = {var: one for one in program.eqns for var in one.outvars}
    counting = [counts_places(atom, 0, made_by) for atom in eqn.invars]
    order: SortedRows | None
    if _order(key) is not None:
        if not (points(key) and key.known.source.into is None and is_identity(key.known, rows)):
            return None
        order, ends = key.order, None  # from this order back to that of the batch
    else:
        if points(key):
            return None
        order = None
        ends = SortedRows(rows, key.known.source if ascends(key) else None, walk.samples)
    operands: list[RankValue] = []
    known: list[Known | None] = []
    for value, counts in zip(given, counting, strict=True):
        if counts and value.placement == WHOLE:
            dtype = value.value.dtype
            operands.append(RankValue(jax.lax.iota(dtype, rows // walk.ranks), 0))
            known.append(Known(Places(order), (rows,), lambda: np.arange(rows)))
            continue
        own = value if value.placement >= 0 else None
        if own is None or _order(own) is not order or (own is not key and points(own)):
            raise NotShared("sort mixes samples: it sorts them with something else")
        operands.append(own)
        known.append(Known(Places(None), (rows,), lambda: np.arange(rows)) if points(own) else None)
    made = walk.evaluated(program, eqn, operands)
    return [RankValue(one, 0, order=ends, known=of_one) for one, of_one in zip(made, known, strict=True)]


def _taken(walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[RankValue]:
    """Rows of a table, by index; those of the part are taken from its own."""
    table, index = given
    numbers = eqn.params["dimension_numbers"]
    samples, walks = tuple(numbers.start_index_map), index.placement
    if samples != (table.placement,) or samples != tuple(numbers.collapsed_slice_dims) or points(table):
        raise NotShared("sort mixes samples: gather takes more than rows by their places")
    if numbers.operand_batching_dims or walks != 0:
        raise NotShared("sort mixes samples: gather takes more than rows by their places")
    _check_places(walk, index, _order(table), eqn.invars[0].aval.shape[table.placement])
    (made,) = walk.evaluated(program, eqn, given)
    at = next(place for place in range(eqn.outvars[0].aval.ndim) if place not in numbers.offset_dims)
    return [RankValue(made, at, order=index.order)]


def _looked_up(eqn: core.JaxprEqn, given: Sequence[RankValue]) -> Known | None:
    """Numbers of a constant list at the places of rows, such as which token each choice is of."""
    table, index = given
    numbers, constant, known = eqn.params["dimension_numbers"], table.known, index.known
    if not isinstance(constant, Known) or constant.source is not None or eqn.invars[0].aval.ndim != 1:
        return None
    plain = tuple(numbers.start_index_map) == (0,) and tuple(numbers.collapsed_slice_dims) == (0,)
    if not plain or index.placement != 0 or known.table.ndim != 2 or known.table.shape[1] != 1:
        return None
    places = known.table[:, 0]
    if places.min() < 0 or places.max() >= eqn.invars[0].aval.shape[0]:
        return None
    return Known(known.source, known.lead, lambda: np.asarray(constant.table)[places])


def _inverse(walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> RankValue | None:
    """Where each row stands in an order: places 0, 1, 2 and so on, put where the rows of the order come from."""
    table, index, updates = given
    rows, order, numbers = eqn.invars[0].aval.shape[0], _order(index), eqn.params["dimension_numbers"]
    counts = counts_places(eqn.invars[2], 0, {var: one for one in program.eqns for var in one.outvars})
    if eqn.primitive.name != "scatter" or not counts or updates.placement != WHOLE or table.placement != WHOLE:
        return None
    plain = eqn.invars[0].aval.ndim == 1 and tuple(numbers.inserted_window_dims) == (0,) and index.placement == 0
    if not plain or order is None or index.known.source.into is not None or not is_identity(index.known, rows):
        return None
    own = RankValue(jax.lax.iota(updates.value.dtype, rows // walk.ranks), 0)
    (made,) = walk.evaluated(program, eqn, [walk.own(table, 0), index, own])
    return RankValue(made, 0, known=Known(Places(order), (rows,), lambda: np.arange(rows)))


def _put_back(walk: Reader, program: core.Jaxpr, eqn: core.JaxprEqn, given: Sequence[RankValue]) -> list[RankValue]:
    """Rows added to, or put in place of, those they point at, which are of the same part."""
    table, index, updates = given
    numbers = eqn.params["dimension_numbers"]
    (samples,) = numbers.scatter_dims_to_operand_dims if len(numbers.scatter_dims_to_operand_dims) == 1 else (-1,)
    walks = [place for place in range(eqn.invars[2].aval.ndim) if place not in numbers.update_window_dims]
    plain = tuple(numbers.inserted_window_dims) == (samples,) and not numbers.operand_batching_dims
    if not plain or index.placement != 0 or walks != [updates.placement] or _order(updates) is not _order(index):
        raise NotShared("sort mixes samples: scatter puts back more than rows")
    if table.placement not in (WHOLE, samples) or _order(table) is not None or points(table) or points(updates):
        raise NotShared("sort mixes samples: scatter puts back more than rows")
    if index.known.source.into is not None:
        raise NotShared("sort mixes samples: scatter puts rows into its order")
    _check_places(walk, index, None, eqn.invars[0].aval.shape[samples])
    if eqn.primitive.name == "scatter" and len(np.unique(index.known.table)) != len(index.known.table):
        raise NotShared("sort mixes samples: scatter writes a row more than once")
    (made,) = walk.evaluated(program, eqn, [walk.own(table, samples), index, updates])
    return [RankValue(made, samples)]


def _check_places(walk: Reader, index: RankValue, order: SortedRows | None, rows: int) -> None:
    """Whether an index points at rows of its own part, at the same places in every part."""
    known, ranks = index.known, walk.ranks * walk.samples
    if known.source.into is not order:
        raise NotShared("sort mixes samples: an index points at rows in another order")
    table = known.table.reshape(len(known.table), -1)
    if table.shape[1] != 1 or len(table) % ranks or rows % ranks or (order is not None and rows != len(table)):
        raise NotShared("sort mixes samples: an index points at samples of others")
    # Of every sample a part has as many rows, which are counted alike wherever each piece points into its own.
    own = table.reshape(ranks, -1) - np.arange(ranks)[:, None] * (rows // ranks)
    same = np.array_equal(own, np.broadcast_to(own[:1], own.shape)) and own.min() >= 0 and own.max() < rows // ranks
    # Of rows in an order only those that are meant are known, not what stands beside them.
    if not same or (order is not None and not is_identity(known, rows)):
        raise NotShared("sort mixes samples: an index points at samples of others")


def _counted(eqn: core.JaxprEqn, given: Sequence[RankValue]) -> Counts | None:
    """A histogram of choices: ones added to zeros at the place of each choice."""
    table, index, ones = given
    known = index.known
    if not isinstance(known.source, Choices) or index.placement != 0 or len(known.lead) != 1 or known.table.ndim != 2:
        return None
    numbers, (size,) = eqn.params["dimension_numbers"], eqn.invars[0].aval.shape or (0,)
    plain = tuple(numbers.scatter_dims_to_operand_dims) == (0,) and not numbers.update_window_dims
    if not plain or eqn.invars[0].aval.ndim != 1 or size < known.source.bound or not is_all(table, 0):
        return None
    return Counts(known.source) if is_all(ones, 1) and is_identity(known, known.source.bound) else None
