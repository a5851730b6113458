"""Axes, conditions and rules of the plan space, read off the table of its legal rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain

import numpy as np

from meshwright.search.axes import ways
from meshwright.search.geometry import ShapeFactory
from meshwright.search.grid import Grid
from meshwright.search.shardings import shardings_for
from meshwright.search.space import Space
from meshwright.search.table import combinations, distinct_rows
from meshwright.search.tuners.base import Forbidden, TrialAxis, Value, When
from meshwright.search.tuners.tables import numbers_axis, rules_of
from meshwright.specs.dispatchers import DISPATCHERS
from meshwright.specs.shardings import SHARDINGS, grouped_shardings
from meshwright.strategies.columns import OVERLAPS

QUARTERS = (1, 2, 3)
"""Parts of the largest chunk that `block` recomputes."""
RECOMPUTES = ("none", "sel", "block", "full")

_WHY = {
    "cp": "tp x cp cuts heads and sequence, and divides the devices",
    "pp": "tp x cp x pp divides the devices, and what is left, dp, divides the batch; a stage holds a layer",
    "mbs": "the micro-batch divides the sequences of a data-parallel rank",
    "cp_kind": "an all-to-all level divides the heads that a rank holds; the zigzag cuts the sequence into 2 cp parts",
    "ep": "ep x etp divides the devices of a stage",
    "etp": "ep x etp divides the devices of a stage",
    "vpp": "the schedule needs whole rounds of micro-batches, and every chunk a layer",
    "schedule": "one worker has no pipeline, and a schedule needs enough micro-batches",
    "recompute": "a chunk has no quarter of its layers",
    "block_quarters": "other quarters come to the same number of layers",
    "sharding": "one data rank has no other to share states with",
    "hsdp_ranks": "a shard group is a proper part of the data ranks",
}
"""Sentence of the rules whose last axis this is."""


def quarter_layers(factory: ShapeFactory, pp: int, vpp: int) -> dict[int, int]:
    """Layers that each quarter of the largest chunk comes to; quarters that come to the same are named once."""
    largest = max(factory.layout.split(pp * vpp))
    found: dict[int, int] = {}
    for quarter in QUARTERS:
        layers = math.ceil(largest * quarter / 4)
        if layers not in (0, largest) and layers not in found.values():
            found[quarter] = layers
    return found


def kind_of(levels: tuple[tuple[str, int], ...]) -> str:
    """One word for the levels of a context degree."""
    if len(levels) > 1:
        (inner, degree), (outer, _) = levels
        return f"{inner}{degree}+{outer}"
    return levels[0][0] if levels else "p2p"


def levels_of(kind: str, cp: int) -> tuple[tuple[str, int], ...]:
    """The word as levels, innermost first."""
    inside, _, outer = kind.partition("+")
    if cp == 1:
        return ()
    if outer:
        inner = inside.rstrip("0123456789")
        degree = int(inside.removeprefix(inner))
        return ((inner, degree), (outer, cp // degree))
    return ((kind, cp),)


Table = set[tuple[Value, ...]]


def tables_of(grid: Grid, factory: ShapeFactory, space: Space) -> tuple[tuple[TrialAxis, ...], tuple[Forbidden, ...]]:
    """Axes and rules that leave exactly the plans of the rows.

    Args:
        grid: all legal rows that have a plan.
        factory: pipeline shapes of the model.
        space: pinned axes.

    Returns:
        Axes, parents first, and the rules between them.
    """
    legal = _legal_combinations(grid, factory, space)
    axes = [
        _numbers("tp", legal),
        _numbers("cp", legal),
        _numbers("pp", legal),
        _numbers("mbs", legal),
        _words("cp_kind", legal, _above_one("cp", legal)),
        _numbers("ep", legal),
        _numbers("etp", legal),
        _words("dispatcher", legal, _above_one("ep", legal), order=tuple(DISPATCHERS)),
        _words("tp_overlap", legal, _above_one("tp", legal), order=OVERLAPS),
        _numbers("vpp", legal),
        _words("schedule", legal, (When(axis="vpp", values=(1,)),)),
        _words("recompute", legal, order=RECOMPUTES),
        _numbers("block_quarters", legal, (When(axis="recompute", values=("block",)),)),
        _words("sharding", legal, order=tuple(SHARDINGS)),
        _numbers("hsdp_ranks", legal, (When(axis="sharding", values=grouped_shardings()),)),
    ]
    named = {axis.name: axis for axis in axes if axis.values}
    return tuple(_of_parents(axes)), tuple(rules_of(legal, named, _WHY))


def _of_parents(axes: Iterable[TrialAxis]) -> Iterator[TrialAxis]:
    """Axes whose conditions name values that their parents have, as SMAC wants them."""
    known: dict[str, tuple[Value, ...]] = {}
    for axis in axes:
        known[axis.name] = axis.values
        when = [replace(one, values=tuple(v for v in one.values if v in known[one.axis])) for one in axis.when]
        yield replace(axis, when=tuple(one for one in when if one.values))


_TOGETHER: tuple[tuple[str, ...], ...] = (
    *(("tp",), ("cp",), ("pp",), ("mbs",), ("ep",), ("etp",), ("dispatcher",), ("tp_overlap",)),
    *(("cp_kind",), ("vpp",), ("schedule",), ("recompute",), ("block_quarters",), ("sharding",), ("hsdp_ranks",)),
    *(("tp", "cp"), ("tp", "cp", "pp"), ("tp", "cp", "pp", "mbs"), ("tp", "cp", "cp_kind")),
    *(("pp", "ep"), ("tp", "cp", "pp", "ep"), ("pp", "ep", "etp"), ("tp", "cp", "pp", "ep", "etp")),
    *(("pp", "vpp"), ("tp", "cp", "pp", "mbs", "vpp"), ("pp", "schedule"), ("tp", "cp", "pp", "mbs", "schedule")),
    *(("pp", "vpp", "recompute"), ("pp", "vpp", "block_quarters")),
    *(("tp", "pp", "sharding"), ("tp", "cp", "pp", "sharding"), ("tp", "cp", "pp", "hsdp_ranks")),
)
"""The axes that decide together whether a plan is legal, each group's last one by those before it."""

Legal = tuple[str, Value, dict[str, Value]]
"""A value that an axis may have, beside the values of the axes that it is decided with."""


def _legal_combinations(grid: Grid, factory: ShapeFactory, space: Space) -> dict[tuple[str, ...], Table]:
    """Combinations of values that legal plans have, by the axes that decide together; smaller tables first."""
    found: dict[tuple[str, ...], Table] = {key: set() for key in _TOGETHER}
    by_axis: dict[str, list[tuple[str, ...]]] = {}
    for key in _TOGETHER:
        by_axis.setdefault(key[-1], []).append(key)
    for axis, value, beside in chain(_stages(grid, factory, space), _experts(grid), _exchanges(grid)):
        for key in by_axis[axis]:
            found[key].add((*(beside[name] for name in key[:-1]), value))
    return found


def _stages(grid: Grid, factory: ShapeFactory, space: Space) -> Iterator[Legal]:
    """Degrees, and the pipelines and shardings that each combination of them may have."""
    for tp, cp, pp, dp, mbs, m in combinations(grid.tp, grid.cp, grid.pp, grid.dp, grid.mbs, grid.m):
        row: dict[str, Value] = {"tp": tp, "cp": cp, "pp": pp, "mbs": mbs}
        yield from ((axis, value, row) for axis, value in row.items())
        yield from _pipelines(factory, pp, m, row)
        for choice in shardings_for(dp, cp, space):
            yield "sharding", choice.name, row
            if choice.kind.grouped:
                yield "hsdp_ranks", choice.shard, row


def _pipelines(factory: ShapeFactory, pp: int, micro_batches: int, row: dict[str, Value]) -> Iterator[Legal]:
    """Chunks, schedules and recomputation of the pipelines that some recomputation makes possible."""
    for schedule, vpp in factory.pipelines(pp, micro_batches):
        recomputes = [word for word, _ in factory.recomputes(pp, vpp)]
        if not recomputes:
            continue
        yield "vpp", vpp, row
        if vpp == 1:
            yield "schedule", schedule.token, row
        chunked = {**row, "vpp": vpp}
        yield from (("recompute", word, chunked) for word in recomputes)
        if "block" in recomputes:
            yield from (("block_quarters", quarter, chunked) for quarter in quarter_layers(factory, pp, vpp))


def _experts(grid: Grid) -> Iterator[Legal]:
    """Degrees of experts beside those of the dense layers."""
    for tp, cp, pp, ep, etp in combinations(grid.tp, grid.cp, grid.pp, grid.ep, grid.etp):
        row: dict[str, Value] = {"tp": tp, "cp": cp, "pp": pp, "ep": ep}
        yield "ep", ep, row
        yield "etp", etp, row
    for name in dispatchers_of(grid):
        yield "dispatcher", name, {}


def dispatchers_of(grid: Grid) -> list[str]:
    """Ways for tokens to reach experts that rows differ in; none where all have the same.

    Args:
        grid: all legal rows.
    """
    every = ways()
    found = {every[way][0] for way in np.unique(grid.way[grid.ep > 1]).tolist()}
    return sorted(found) if len(found) > 1 else []


def _exchanges(grid: Grid) -> Iterator[Legal]:
    """How tensor ranks hide their exchanges, and what context ranks exchange."""
    context = grid.cp
    first, _ = distinct_rows(grid.tp, grid.overlap, *grid.context.T)
    for place in first.tolist():
        tp, overlap, levels = int(grid.tp[place]), int(grid.overlap[place]), grid.levels(place)
        if tp > 1:
            yield "tp_overlap", OVERLAPS[overlap], {}
        if levels:
            yield "cp_kind", kind_of(levels), {"tp": tp, "cp": int(context[place])}


def _numbers(name: str, legal: dict[tuple[str, ...], Table], when: tuple[When, ...] = ()) -> TrialAxis:
    return numbers_axis(name, (value for (value,) in legal[name,]), when)


def _words(
    name: str, legal: dict[tuple[str, ...], Table], when: tuple[When, ...] = (), order: tuple[str, ...] = ()
) -> TrialAxis:
    rank: Callable[[str], tuple[int, int, str]] = lambda word: (  # noqa: E731
        order.index(word) if word in order else len(order),
        len(word),
        word,
    )
    values = tuple(sorted((str(value) for (value,) in legal[name,]), key=rank))
    return TrialAxis(name=name, values=values, default=values[0] if values else "", when=when)


def _above_one(axis: str, legal: dict[tuple[str, ...], Table]) -> tuple[When, ...]:
    return (When(axis=axis, values=tuple(sorted(int(value) for (value,) in legal[axis,] if int(value) > 1))),)
