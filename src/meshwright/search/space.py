"""A space of homogeneous plans: every legal value of every axis, or those that an axis is held to; its pipelines."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from meshwright.schedules import DEFAULT_SCHEDULES, SCHEDULES, Schedule, schedule_named
from meshwright.specs.row import default_schedule
from meshwright.specs.strategy import TensorOverlap
from meshwright.strategies import TENSORS

MOST_PASSES = 4096
"""Largest p x m x v for which critical paths of schedules without a bound of their own are looked for, and for which
they are part of the space if their order does not repeat: their whole tables are built."""
MOST_REPEATED = 16 * MOST_PASSES
"""Largest p x m x v of the table from which longer steps are continued."""
MOST_CHUNKS = 4
"""Most chunks per worker of such schedules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Which values each axis may take; None stands for every legal value.

    The axes and what each goes through by default stand in `search.axes.AXES`.

    Schedules that are named have at most 4 chunks per worker and p x m x v of at most 4,096 (zb-auto: 128), for their
    tables are built one by one.
    """

    pins: tuple[tuple[str, tuple[object, ...]], ...] = ()
    """Axes held to these values, by the names of `AXES`."""
    opened: tuple[str, ...] = ()
    """Axes among these that are held to all their values: to more than by default, so that no plan is left out."""
    tight: bool = False
    """Admit plans that leave less than 8% of the memory free."""
    near: float = math.inf
    """Largest step of an answer's plan, as a multiple of the quickest one's."""

    def pinned(self, axis: str) -> tuple[object, ...] | None:
        """The values an axis is held to, None if it is free."""
        return dict(self.pins).get(axis)


def usual_overlaps(tensor: str) -> tuple[TensorOverlap, ...]:
    """What a search lets run beside the collectives of tensor groups unless it is named.

    Args:
        tensor: name of the tensor strategy.
    """
    kind = TENSORS[tensor]
    return tuple(word for word in kind.overlaps if word not in kind.seldom)


def tensor_overlaps(space: Space, tensor: str, *, experts: bool) -> tuple[TensorOverlap, ...]:
    """What may run beside the collectives of tensor groups in a space.

    Args:
        space: the space that may hold the axis.
        tensor: name of the tensor strategy.
        experts: whether the model has experts, which take the tokens of whole micro-batches.
    """
    pinned, usual = space.pinned("tp_overlap"), usual_overlaps(tensor)
    wanted = usual if pinned is None else tuple(word for word in TENSORS[tensor].overlaps if word in pinned)
    return tuple(word for word in wanted if word != "halves" or not experts)


def uncomposed(axis: str, values: Iterable[object]) -> tuple[object, ...]:
    """Values of an axis that plans composed of unlike stages do not have: these compute whole micro-batches with 1d
    strategies, keep their states on the devices and gather the weights of the next layer.

    Args:
        axis: any.
        values: some of its values.
    """
    known = {"tensor": ("1d",), "offload": ("none",), "tp_overlap": usual_overlaps("1d"), "prefetch": ("1",)}
    return tuple(value for value in values if value not in known.get(axis, (value,)))


def only_in_pipelines(space: Space) -> bool:
    """Whether a space is held to schedules none of which is exact: one worker runs every order alike, and exactly."""
    names = space.pinned("schedule") or ()
    return bool(names) and not any(schedule_named(str(name)).exact_semantics for name in names)


def schedules_in(space: Space) -> tuple[Schedule, ...]:
    """Schedules of a space, in the order of the catalogue, then those with settings.

    Args:
        space: the space whose schedules are the usual ones unless it names some.
    """
    wanted = space.pinned("schedule")
    names = list(DEFAULT_SCHEDULES) if wanted is None else [str(name) for name in wanted]
    place = {name: at for at, name in enumerate(SCHEDULES)}
    return tuple(schedule_named(name) for name in sorted(names, key=lambda name: place.get(name, len(place))))


def pipelines_of(
    space: Space, schedules: Sequence[Schedule], most_stages: int, p: int, m: int
) -> list[tuple[Schedule, int]]:
    """Schedules and chunk counts that p workers and m micro-batches allow.

    Args:
        space: the space that may hold the chunks per worker.
        schedules: the schedules of the space.
        most_stages: the most stages that the model can be cut into.
        p: workers.
        m: micro-batches.
    """
    chunk_counts = space.pinned("vpp")
    if p == 1:
        # One worker has no pipeline: every order of its work takes as long, 1f1b keeps the least alive.
        return [(schedule_named(default_schedule(1)), 1)] if chunk_counts is None or 1 in chunk_counts else []
    found = []
    for schedule in (one.settled(p, m) for one in schedules):
        for v in chunk_options(schedule, min(most_stages // p, most_chunks(schedule, p, m))):
            if chunk_counts is not None and v not in chunk_counts:
                continue
            if not schedule.problems(p, m, v):
                found.append((schedule, v))
    return found


def most_chunks(schedule: Schedule, p: int, m: int) -> int:
    """Most chunks per worker with which a schedule is part of the space, 0 for none.

    Args:
        schedule: any.
        p: workers.
        m: micro-batches.
    """
    if schedule.bound_by_formula:
        return sys.maxsize
    built = m if schedule.period_found else schedule.continued_from(p, m, MOST_CHUNKS)
    repeated = MOST_REPEATED // (p * built) if built < m else 0
    return min(MOST_CHUNKS, max(MOST_PASSES // (p * m * schedule.orders_tried), repeated))


@lru_cache(maxsize=256)
def chunk_options(schedule: Schedule, most: int) -> tuple[int, ...]:
    """Chunks per worker that a schedule may have, whatever the numbers of workers and micro-batches.

    Args:
        schedule: any.
        most: largest number that is looked at.
    """
    # 1F1B allows none but one; a pipeline of 4 workers and 64 micro-batches meets every other constraint.
    return tuple(
        v for v in range(1, most + 1) if not any(problem.field == "v" for problem in schedule.problems(4, 64, v))
    )
