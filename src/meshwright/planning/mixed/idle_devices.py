"""Plans that leave some devices of a cluster idle: fewer may divide layers and batch better."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from meshwright.planning.compose.composer import COMPOSED, FARTHEST, SUBSET_COMPOSED, Composer
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.fewer_nodes import SMALL, fewer_devices
from meshwright.planning.mixed.source import PricedPlan
from meshwright.specs.cluster import ClusterSpec

FEWER_COMPOSED = 4
"""Pipeline sets priced in full of each number of devices that leaves some idle."""
PROMISING = 1.04
"""Times the best step that sets over fewer devices may promise for as many of them to be priced as over all."""
LEFT_OUT = 12
"""Pairs of numbers of devices that pipeline sets are priced on."""
HALF = 0.5
"""Share of the devices of a small cluster that such a pair has at least."""
NEAREST = 1.1
"""Times the bound of the devices it uses that a plan takes at least; the best of 56 drawn clusters 1.15 to 3.3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeavingOut:
    """Pipeline sets over fewer devices than there are."""

    composer: Composer
    uneven: Callable[[], Composer]
    """Composer with micro-batches that do not divide the batch; made when it is asked for."""
    composed: Callable[[Sequence[IslandPart], int], list[PricedPlan]]
    """The quickest sets over some parts, so many of them priced in full."""
    first: Callable[[Composer, Sequence[IslandPart], int], list[PricedPlan]]
    """The quickest sets of one composer over some parts, so many of them."""
    side_by_side: Callable[[Sequence[IslandPart]], Iterable[PricedPlan]]
    """Sets of several pipelines of a small batch."""

    def leaving_out(self, parts: Sequence[IslandPart], best_s: float) -> list[PricedPlan]:
        """Pipeline sets without some devices of a group, where they promise about the step of all devices.

        Of a small cluster of two groups all numbers; else one group after the other, each beside the best numbers of
        those before it; one of two beside the other whole, too.

        Args:
            parts: the parts of the cluster, whole groups; of a small one where fewer devices of each are looked at.
            best_s: step of the best set over all of them.
        """
        if len(parts) < 2:
            return []
        if len(parts) == 2 and self.composer.cluster.devices <= SMALL:
            groups = self.composer.cluster.groups
            # What is left of them was among the numbers of all devices.
            whole = all(part.devices == groups[part.group].devices for part in parts)
            return self._of_any_numbers(parts, best_s) if whole else []
        if len(parts) == 2:
            found: list[PricedPlan] = []
            for pair in self._numbers(parts):
                before_s = min([best_s, *(one.step_time_s for one in found)])
                promised_s = self._promised_s(pair, before_s)
                if promised_s <= FARTHEST * before_s:
                    found += self.composed(pair, COMPOSED if promised_s <= PROMISING * before_s else FEWER_COMPOSED)
            return found
        seen: list[tuple[float, tuple[IslandPart, ...], PricedPlan]] = []
        for number, part in enumerate(parts):
            best = min(seen, key=lambda one: one[0], default=(0.0, tuple(parts), None))[1]
            for devices in fewer_devices(
                self.composer.cluster, part.group, part.devices, self.composer.workload.global_batch
            ):
                fewer = (*best[:number], IslandPart(part.group, devices), *best[number + 1 :])
                before_s = min([best_s, *(one[0] for one in seen)])
                if self._promised_s(fewer, before_s) <= FARTHEST * before_s:
                    seen += [(one.step_time_s, fewer, one) for one in self.composed(fewer, FEWER_COMPOSED)]
        return [plan for _, _, plan in seen]

    def _promised_s(self, parts: Sequence[IslandPart], best_s: float) -> float:
        """What the best pipeline set over these parts promises; infinite where a bound lies above the best step."""
        if self.composer.islands.least_s(parts) >= best_s:
            return math.inf
        return min((one.step_s for one in self.composer.made(parts, 1)), default=math.inf)

    def _of_any_numbers(self, parts: Sequence[IslandPart], best_s: float) -> list[PricedPlan]:
        """Pipeline sets over every pair of numbers of devices, those priced that promise the most by closed form."""
        least = HALF * sum(part.devices for part in parts)
        every = self._numbers(parts)
        able = [pair for pair in every if sum(part.devices for part in pair) >= least]
        offers: dict[tuple[float, tuple[IslandPart, ...]], Composer] = {}
        coarse = self.composer.islands.shared_coarsely
        uneven = [pair for pair in able if coarse(parts) or coarse(pair)]
        ways = [(self.composer, pair) for pair in able] + [(self.uneven(), pair) for pair in uneven]
        for composer, pair in ways:
            if NEAREST * composer.islands.least_s(pair) < best_s and (made := composer.made(pair, 1)):
                offers.setdefault((made[0].step_s, pair), composer)
        found: list[PricedPlan] = []
        for step_s, pair in sorted(offers)[:LEFT_OUT]:
            if step_s > FARTHEST * best_s:
                break
            several = FEWER_COMPOSED if step_s <= best_s else SUBSET_COMPOSED
            found += [*self.first(offers[step_s, pair], pair, several), *self.side_by_side(pair)]
            best_s = min([best_s, *(one.step_time_s for one in found)])
        return found

    def _numbers(self, parts: Sequence[IslandPart]) -> list[tuple[IslandPart, ...]]:
        return numbers_of_devices(self.composer.cluster, parts, self.composer.workload.global_batch)


def numbers_of_devices(cluster: ClusterSpec, parts: Sequence[IslandPart], batch: int) -> list[tuple[IslandPart, ...]]:
    """Every choice of a number of devices of each part but the whole of all, those of most devices first.

    Args:
        cluster: the cluster of several groups.
        parts: the parts of it.
        batch: sequences of a step.
    """
    numbers = (
        [IslandPart(part.group, n) for n in (*fewer_devices(cluster, part.group, part.devices, batch), part.devices)]
        for part in parts
    )
    return sorted(product(*numbers), key=lambda one: -sum(part.devices for part in one))[1:]
