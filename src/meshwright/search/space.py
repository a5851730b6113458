"""A space of homogeneous plans: every legal value of every axis, or those that an axis is held to."""

from __future__ import annotations

import math
from dataclasses import dataclass


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
