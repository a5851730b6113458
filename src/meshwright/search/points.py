"""The points that no other point beats in everything: seconds and bytes of both memory tiers."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from meshwright.search.table import Table
from meshwright.shapes import Bool, Float, Int

SHIELD_POINTS = 1024
"""Points of a front that bounds are compared with; more would cost more than they prune."""
NEARBY = 1e-12
"""Relative difference that rounding can make; a bound must be beaten by more than this."""


Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Points(Table):
    """Members of a space with what they cost."""

    number: Int[np.ndarray, "points"]
    """Position in the space."""
    time_s: Float[np.ndarray, "points"]
    """Seconds, such as of a sample."""
    tier1_bytes: Float[np.ndarray, "points"]
    tier2_bytes: Float[np.ndarray, "points"]

    @classmethod
    def none(cls) -> Points:
        """No points."""
        empty = np.zeros(0)
        return cls(number=np.zeros(0, dtype=np.int64), time_s=empty, tier1_bytes=empty, tier2_bytes=empty)

    def with_(self, other: Points) -> Points:
        """The points of both."""
        return Points.joined([self, other])

    def unique(self) -> Points:
        """The points without repetition, by number."""
        return self.take(np.unique(self.number, return_index=True)[1])

    def best(self, count: int) -> Points:
        """The quickest, of equally quick ones those with the lowest numbers."""
        return self.take(np.lexsort((self.number, self.time_s))[:count])

    def front(self) -> Points:
        """The points that no other point beats, quickest first; of equal points the one with the lowest number."""
        order = np.lexsort((self.number, self.tier2_bytes, self.tier1_bytes, self.time_s))
        kept: list[int] = []
        # In the order of time a point is beaten if an earlier one needs no more of either memory. The earlier ones
        # form a staircase: first tier rising, second tier falling.
        tier1: list[float] = []
        tier2: list[float] = []
        for place, first, second in zip(
            order.tolist(), self.tier1_bytes[order].tolist(), self.tier2_bytes[order].tolist(), strict=True
        ):
            step = bisect_right(tier1, first)
            if step and tier2[step - 1] <= second:
                continue
            end = step
            while end < len(tier1) and tier2[end] >= second:
                end += 1
            if step and tier1[step - 1] == first:
                step -= 1
            tier1[step:end] = [first]
            tier2[step:end] = [second]
            kept.append(place)
        return self.take(np.array(kept, dtype=np.int64))


@dataclass(frozen=True, slots=True)
class Shield:
    """A front prepared to say of many bounds whether it beats them."""

    time_s: Float[np.ndarray, "front"]
    """Ascending."""
    tier1_bytes: Float[np.ndarray, "front"]
    """Ascending."""
    least_tier2: Float[np.ndarray, "prefix firsts"]
    """Least second tier among the quickest so many points, with at most so much of the first tier."""

    @classmethod
    def of(cls, front: Points) -> Shield:
        """A shield from a front; of a very large one, evenly spread points."""
        rows = front.rows
        if rows > SHIELD_POINTS:
            front = front.take(np.linspace(0, rows - 1, SHIELD_POINTS).astype(np.int64))
        rows = front.rows
        by_time, by_tier1 = np.argsort(front.time_s), np.argsort(front.tier1_bytes)
        rank_time, rank_tier1 = np.empty(rows, dtype=np.int64), np.empty(rows, dtype=np.int64)
        rank_time[by_time], rank_tier1[by_tier1] = np.arange(rows), np.arange(rows)
        least = np.full((rows + 1, rows + 1), np.inf)
        least[rank_time + 1, rank_tier1 + 1] = front.tier2_bytes
        least = np.minimum.accumulate(np.minimum.accumulate(least, axis=0), axis=1)
        return cls(front.time_s[by_time], front.tier1_bytes[by_tier1], least)

    def beats(
        self,
        time_s: Float[np.ndarray, "rows"],
        tier1_bytes: Float[np.ndarray, "rows"],
        tier2_bytes: Float[np.ndarray, "rows"],
    ) -> Bool[np.ndarray, "rows"]:
        """Whether some point is quicker than each bound and needs no more memory.

        Args:
            time_s: lower bounds of seconds.
            tier1_bytes: memory of the first tier.
            tier2_bytes: memory of the second tier.
        """
        quicker = np.searchsorted(self.time_s, time_s * (1.0 - NEARBY), side="left")
        smaller = np.searchsorted(self.tier1_bytes, tier1_bytes, side="right")
        return self.least_tier2[quicker, smaller] <= tier2_bytes


def thinned(items: Iterable[Item], wishes: Callable[[Item], tuple[float, ...]], step: float) -> list[Item]:
    """Items that no kept one equals or beats in every wish, but for a share.

    Args:
        items: the items in the order in which they are kept.
        wishes: the wishes of an item; less is better in each.
        step: share of a wish by which an item must be better than another one to stand beside it.

    Returns:
        The items that are kept, in their order.
    """
    front: list[tuple[Item, tuple[float, ...]]] = []
    for item in items:
        own = wishes(item)
        if not any(
            all(mine >= theirs * (1.0 - step) for mine, theirs in zip(own, other, strict=True)) for _, other in front
        ):
            front.append((item, own))
    return [item for item, _ in front]
