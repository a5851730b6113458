"""The best members found so far and their front, what they beat, and what a part of a space comes to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from meshwright.search.points import NEARBY, Points, Shield
from meshwright.search.result import SpaceCounts
from meshwright.shapes import Bool, Float


@runtime_checkable
class Needs(Protocol):
    """Rows with lower bounds of all that members are compared in."""

    bound_s: Float[np.ndarray, "rows"]
    tier1_bytes: Float[np.ndarray, "rows"]
    tier2_bytes: Float[np.ndarray, "rows"]


class BestAndFront:
    """The quickest members, and the front of time and memory of two tiers."""

    def __init__(self, top: int, *, front: bool) -> None:
        self.top, self.want_front = top, front
        self.best, self.front = Points.none(), Points.none()
        self.known = Points.none()
        """Points drawn at first: they prune, and are found again like any other."""
        self.threshold_s = np.inf
        """A member that takes more seconds is none of the best."""
        self.shield = Shield.of(Points.none())

    def learn(self, points: Points) -> None:
        """Prune by these points, which the search will find again."""
        points = points.unique()
        self.known = points.front().with_(points.best(self.top)).unique()
        self._look()

    def keep(self, found: Points) -> None:
        """Take members in that are among the best or on the front."""
        quick = found.take(found.time_s * (1.0 - NEARBY) <= self.threshold_s)
        if quick.rows:
            self.best = self.best.with_(quick).best(self.top)
        if self.want_front:
            beaten = self.shield.beats(found.time_s, found.tier1_bytes, found.tier2_bytes)
            if not beaten.all():
                self.front = self.front.with_(found.take(~beaten)).front()
        self._look()

    def hopeful(self, columns: Needs) -> Bool[np.ndarray, "rows"]:
        """Rows with a member that may still be among the best or on the front."""
        hopeful = columns.bound_s * (1.0 - NEARBY) <= self.threshold_s
        if self.want_front:
            rest = np.flatnonzero(~hopeful)
            needs = columns.bound_s[rest], columns.tier1_bytes[rest], columns.tier2_bytes[rest]
            hopeful[rest] = ~self.shield.beats(*needs)
        return hopeful

    def _look(self) -> None:
        """What bounds are compared with from now on."""
        best = self.known.with_(self.best).unique().best(self.top)
        if best.rows >= self.top:
            self.threshold_s = float(best.time_s[-1])
        if self.want_front:
            self.shield = Shield.of(self.known.with_(self.front).front())


@dataclass(slots=True)
class SearchedPart:
    """What is known of a part of a space; parts merge exactly."""

    best: Points = field(default_factory=Points.none)
    front: Points = field(default_factory=Points.none)
    counts: SpaceCounts = field(default_factory=SpaceCounts)

    def merge(self, other: SearchedPart, top: int) -> None:
        """Take another part in.

        Args:
            other: the part.
            top: how many of the best are wanted.
        """
        self.best = self.best.with_(other.best).unique().best(top)
        self.front = self.front.with_(other.front).front()
        self.counts.add(other.counts)
