"""Loops over layers, over time or over samples, evaluated with what one part of the samples holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import core

from meshwright.compiler.samples.blocks import begun_in_blocks, blocks_of
from meshwright.compiler.samples.placements import WHOLE, NotShared, Placement
from meshwright.compiler.samples.sorting import in_batch_order
from meshwright.compiler.samples.values import RankValue, Reader

Carried = tuple[tuple[Placement, Any], ...]
"""Placement of each value that a loop carries, and how its samples are ordered."""


def mapped(
    walk: Reader, eqn: core.JaxprEqn, held: Sequence[RankValue], start: Sequence[RankValue], rows: Sequence[RankValue]
) -> list[RankValue]:
    """Results of a loop whose rounds take samples of their own and hand nothing on (`lax.map`): a rank runs its rounds.

    Args:
        walk: the walk over the program.
        eqn: a `scan`.
        held: what every round reads.
        start: what is carried.
        rows: what each round reads a part of.

    Raises:
        NotShared: its rounds hand something on, or ranks do not divide them.
    """
    if start or walk.sorts or any(value.placement != WHOLE for value in held):
        raise NotShared("a loop over samples")
    if any(value.placement > 0 or blocks_of(value) for value in rows) or eqn.params["length"] % walk.ranks:
        raise NotShared(f"a loop over samples in {eqn.params['length']} rounds")
    own = [walk.own(value, 0).value for value in rows]
    params = {**eqn.params, "length": eqn.params["length"] // walk.ranks}
    made = eqn.primitive.bind(*(value.value for value in held), *own, **params)
    return [RankValue(value, 0) for value in made]


def scanned(
    walk: Reader, eqn: core.JaxprEqn, held: Sequence[RankValue], start: Sequence[RankValue], rows: Sequence[RankValue]
) -> list[RankValue]:
    """Results of a loop; what it carries is a sum, or counts samples, as soon as one of its rounds makes it so.

    Args:
        walk: the walk over the program.
        eqn: a `scan`.
        held: what every round reads.
        start: what is carried.
        rows: what each round reads a part of.

    Raises:
        NotShared: samples are carried along several dimensions.
    """
    carried: Carried = tuple((value.placement, blocks_of(value)) for value in start)
    while True:
        try:
            return _scanned(walk, eqn, held, start, rows, carried)
        except _Again as again:
            carried = again.carried


class _Again(Exception):
    def __init__(self, carried: Sequence[tuple[Placement, Any]]) -> None:
        self.carried: Carried = tuple(carried)


def _scanned(
    walk: Reader,
    eqn: core.JaxprEqn,
    held: Sequence[RankValue],
    start: Sequence[RankValue],
    rows: Sequence[RankValue],
    carried: Carried,
) -> list[RankValue]:
    stacked_as: list[tuple[Placement, Any]] = []

    def body(carry: Any, row: Any) -> tuple[list[Any], list[Any]]:
        operands = [
            *held,
            *(RankValue(value, at, order=order) for value, (at, order) in zip(carry, carried, strict=True)),
            *(
                RankValue(value, one.placement - 1 if one.placement > 0 else WHOLE, order=blocks_of(one))
                for one, value in zip(rows, row, strict=True)
            ),
        ]
        with walk.nested():
            made = [one if blocks_of(one) else in_batch_order([one])[0] for one in walk.inside(eqn, operands)]
        ends, stacked = made[: len(carried)], made[len(carried) :]
        _check_ends(ends, carried)
        stacked_as[:] = [(value.placement, value.order) for value in stacked]
        begun = [walk.given_as(end, at).value for end, (at, _) in zip(ends, carried, strict=True)]
        return begun, [value.value for value in stacked]

    begun = [
        walk.given_as(begun_in_blocks(walk, value, at, order), at).value
        for value, (at, order) in zip(start, carried, strict=True)
    ]
    params = {name: eqn.params[name] for name in ("length", "reverse", "unroll")}
    ends, stacked = jax.lax.scan(body, begun, [row.value for row in rows], **params)
    return [
        *(RankValue(value, at, order=order) for value, (at, order) in zip(ends, carried, strict=True)),
        *(
            RankValue(value, at + 1 if at >= 0 else at, order=order)
            for value, (at, order) in zip(stacked, stacked_as, strict=True)
        ),
    ]


def _check_ends(ends: Sequence[RankValue], carried: Carried) -> None:
    """Whether a round hands on what it was given; `_Again` where it makes samples, or a sum, of what is whole."""
    after = [
        (end.placement, end.order) if end.placement != WHOLE else before
        for end, before in zip(ends, carried, strict=True)
    ]
    if tuple(after) != carried:
        if any(before[0] != WHOLE and before != end for before, end in zip(carried, after, strict=True)):
            raise NotShared("a loop carries samples along several dimensions")
        raise _Again(after)
    if any(order is not None and end.placement == WHOLE for end, (_, order) in zip(ends, carried, strict=True)):
        raise NotShared("a loop carries samples in another order than it begins with")
