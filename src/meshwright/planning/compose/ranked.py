"""Pipeline sets in the order of what they promise, worked out as far as somebody asks.

A step only gets longer by the gradients between pipelines, and again by whole micro-batches in place of exact shares:
the first of an order is known once it is no longer than what the next promises without.
"""

from __future__ import annotations

import heapq
import math
from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic

from meshwright.budget import spent
from meshwright.planning.compose.pipeline_sets import AnyPaced, PipelineSet, with_whole_micro_batches

ROUNDED = 80
"""Pipeline sets that are given whole micro-batches at least, where so many may be among the best."""


@dataclass(slots=True)
class Ranked(Generic[AnyPaced]):
    """Pipeline sets by their step with the gradients between pipelines, the quickest first."""

    without: list[PipelineSet[AnyPaced]]
    """The same sets by their step without these gradients."""
    synchronised: Callable[[PipelineSet[AnyPaced]], PipelineSet[AnyPaced]]
    """Adds them."""
    _known: list[PipelineSet[AnyPaced]] = field(default_factory=list)
    _waiting: list[tuple[float, int, PipelineSet[AnyPaced]]] = field(default_factory=list)
    _next: int = 0

    @classmethod
    def of(
        cls,
        found: Iterable[PipelineSet[AnyPaced]],
        synchronised: Callable[[PipelineSet[AnyPaced]], PipelineSet[AnyPaced]],
        most: int,
    ) -> Ranked[AnyPaced]:
        """The quickest that can start.

        Args:
            found: the pipelines found, without gradients between them.
            synchronised: adds them to the step.
            most: how many, by their step without.
        """
        able = [one_set for one_set in found if math.isfinite(one_set.step_s)]
        return cls(sorted(able, key=lambda one_set: one_set.step_s)[:most], synchronised)

    def first(self, most: int) -> list[PipelineSet[AnyPaced]]:
        """The quickest sets, as many as asked for, or all."""
        while len(self._known) < most and (self._waiting or self._next < len(self.without)):
            least_s = self._waiting[0][0] if self._waiting else math.inf
            if self._next < len(self.without) and self.without[self._next].step_s <= least_s:
                one_set = self.synchronised(self.without[self._next])
                heapq.heappush(self._waiting, (one_set.step_s, self._next, one_set))
                self._next += 1
            else:
                self._known.append(heapq.heappop(self._waiting)[2])
        return self._known[:most]

    def __iter__(self) -> Iterator[PipelineSet[AnyPaced]]:
        number = 0
        while len(self.first(number + 1)) > number:
            yield self._known[number]
            number += 1

    def whole(self, most: int, global_batch: int) -> list[PipelineSet[AnyPaced]]:
        """The quickest with whole micro-batches; where those are few, some lose much that promise to be quick.

        Args:
            most: how many.
            global_batch: sequences per step.
        """
        found: list[tuple[float, int, PipelineSet[AnyPaced]]] = []
        for number, one_set in enumerate(self):
            if len(found) >= most and (number >= ROUNDED or found[most - 1][0] <= one_set.step_s):
                break
            if found and spent():
                break
            one = with_whole_micro_batches(one_set, global_batch)
            if one is not None:
                insort(found, (one.step_s, number, one))
        return [one for *_, one in found[:most]]
