"""The exact search: every member of a space is priced, or shown unable to be among the answers.

    columns   rows that each stand for several members of a space, with a lower bound of their time
    bound     rows are refined in the order of their bounds, few at first, into rows that stand for fewer members
    price     rows that stand for one member are priced, and what is found decides which bounds are beaten

A row is dropped only where its bound is beaten by what has been found, so nothing that could be an answer is lost.
A new space is a class of columns; nothing here knows what a member is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from meshwright.budget import spent
from meshwright.search.result import SpaceCounts
from meshwright.shapes import Bool, Float, Int

Own = TypeVar("Own", bound="Columns")


@runtime_checkable
class Columns(Protocol):
    """Rows of a space, each with a lower bound."""

    @property
    def bound_s(self) -> Float[np.ndarray, "rows"]:
        """No member that a row stands for takes fewer seconds."""

    @property
    def sizes(self) -> tuple[int, int, int]:
        """Rows refined together at first, how many times as many each time after, and the most."""

    def take(self: Own, index: Any) -> Own:
        """The rows of an index, a mask or a slice."""

    def refine(self) -> Iterable[Columns]:
        """Columns of rows that stand for fewer members, as they are wanted; none where the rows were priced."""

    def beaten(self) -> tuple[str, Int[np.ndarray, "rows"]] | None:
        """The rule under which members are counted that are dropped with a row, and how many each row stands for; None
        where the space counts them itself."""


AnyColumns = TypeVar("AnyColumns", bound=Columns, contravariant=True)


@runtime_checkable
class Incumbents(Protocol[AnyColumns]):
    """What has been found, and what it beats."""

    def hopeful(self, columns: AnyColumns) -> Bool[np.ndarray, "rows"]:
        """Rows with a member that may still be among the answers."""


def explore(columns: Columns, incumbents: Incumbents[Any], counts: SpaceCounts) -> None:
    """Refine rows in the order of their bounds, until what has been found beats the bounds of all that are left.

    Args:
        columns: rows, in any order.
        incumbents: learns what is found as rows are refined.
        counts: takes what is dropped.
    """
    left = _hopeful(columns, incumbents, counts)
    size, growth, most = columns.sizes
    while len(left.bound_s):
        first = _least(left.bound_s, size)
        for finer in left.take(first).refine():
            explore(finer, incumbents, counts)
        least_s = float(left.bound_s.min())
        others = np.ones(len(left.bound_s), dtype=bool)
        others[first] = False
        left = _hopeful(left.take(others), incumbents, counts)
        if counts.stopped:
            counts.stop(counts.stopped, least_s)
            return
        if len(left.bound_s) and (limit := spent()):
            # What has been found stands; nothing that is left is quicker than the least of its bounds.
            counts.stop(limit, float(left.bound_s.min()))
            return
        size = min(size * growth, most)


def _least(bound_s: Float[np.ndarray, "rows"], size: int) -> Int[np.ndarray, "first"]:
    """The rows of the least bounds in ascending order, of equal ones the first."""
    candidates = np.arange(len(bound_s))
    if len(bound_s) > size:
        # Most rows are dropped after the first few are refined: sorting them all would be in vain.
        candidates = np.flatnonzero(bound_s <= np.partition(bound_s, size - 1)[size - 1])
    return candidates[np.argsort(bound_s[candidates], kind="stable")][:size]


def _hopeful(columns: Columns, incumbents: Incumbents[Any], counts: SpaceCounts) -> Columns:
    hopeful = incumbents.hopeful(columns)
    dropped = columns.beaten()
    if dropped is not None:
        rule, members = dropped
        counts.pruned[rule] += int(members[~hopeful].sum())
    return columns.take(hopeful)
