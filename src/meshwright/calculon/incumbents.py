"""The best executions found so far and their front, and what they beat."""

from __future__ import annotations

import numpy as np

from meshwright.calculon.front import NEARBY, Points, Shield
from meshwright.shapes import Bool, Float


class Incumbents:
    """What a search has found, and what it knows from a sample."""

    def __init__(self, top: int, *, front: bool) -> None:
        self.top, self.want_front = top, front
        self.best, self.front = Points.none(), Points.none()
        self.known = Points.none()
        """Points drawn at first: they prune, and are found again like any other."""
        self.threshold_s = np.inf
        """An execution that takes more seconds per sample is none of the best."""
        self.shield = Shield.of(Points.none())

    def learn(self, points: Points) -> None:
        """Prune by these points, which the search will find again."""
        points = points.unique()
        self.known = points.front().joined(points.best(self.top)).unique()
        self._look()

    def keep(self, found: Points) -> None:
        """Take executions in that are among the best or on the front."""
        quick = found.take(found.sample_s * (1.0 - NEARBY) <= self.threshold_s)
        if quick.rows:
            self.best = self.best.joined(quick).best(self.top)
        if self.want_front:
            beaten = self.shield.beats(found.sample_s, found.tier1_bytes, found.tier2_bytes)
            if not beaten.all():
                self.front = self.front.joined(found.take(~beaten)).front()
        self._look()

    def hopeful(
        self,
        bound_s: Float[np.ndarray, "rows"],
        tier1_bytes: Float[np.ndarray, "rows"],
        tier2_bytes: Float[np.ndarray, "rows"],
    ) -> Bool[np.ndarray, "rows"]:
        """Which may still be among the best or on the front.

        Args:
            bound_s: lower bounds of seconds per sample.
            tier1_bytes: memory of the first tier.
            tier2_bytes: memory of the second tier.
        """
        hopeful = bound_s * (1.0 - NEARBY) <= self.threshold_s
        if self.want_front:
            rest = np.flatnonzero(~hopeful)
            hopeful[rest] = ~self.shield.beats(bound_s[rest], tier1_bytes[rest], tier2_bytes[rest])
        return hopeful

    def _look(self) -> None:
        """What everything is held against from now on."""
        best = self.known.joined(self.best).unique().best(self.top)
        if best.rows >= self.top:
            self.threshold_s = float(best.sample_s[-1])
        if self.want_front:
            self.shield = Shield.of(self.known.joined(self.front).front())
