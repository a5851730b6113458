"""Which part of a cluster to rent: the cheapest step, the quickest under a budget, the cheapest under a time.

    price of a step   sum over kinds of  price per device and hour x devices in use x step / 3600

Devices that a composition leaves idle are not rented. Parts are searched by halving, doubling, dropping and adding the
devices of one kind at a time, from the whole cluster and from each kind by itself, as long as the answer gets better.

Source: own design; local search, so that the answer is the best of the parts looked at.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from meshwright.hetero.compose import Composed, Composer

SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """A composition and what its devices cost."""

    composed: Composed
    price_per_hour: float

    @property
    def step_time_s(self) -> float:
        """The step."""
        return self.composed.time.step_time_s

    @property
    def price_per_step(self) -> float:
        """Of the devices in use."""
        return self.price_per_hour * self.step_time_s / SECONDS_PER_HOUR


Rank = Callable[[Priced], tuple[float, float]]
"""What makes a composition better: lower."""


def cheapest(most_step_time_s: float = math.inf) -> Rank:
    """The least price of a step that takes no longer than a time; else the least time."""
    return lambda one: (max(0.0, one.step_time_s - most_step_time_s), one.price_per_step)


def quickest(most_price_per_step: float = math.inf) -> Rank:
    """The least time of a step that costs no more than a budget; else the least price."""
    return lambda one: (max(0.0, one.price_per_step - most_price_per_step), one.step_time_s)


def rented(composer: Composer, price_per_device_hour: Mapping[str, float], rank: Rank) -> Priced | None:
    """The best part of a cluster and its composition; None where nothing fits.

    Args:
        composer: of the job.
        price_per_device_hour: of each kind.
        rank: `cheapest` or `quickest`.
    """
    most = {name: kind.count for name, kind in composer.costs.kinds.items()}
    known: dict[tuple[int, ...], Priced | None] = {}

    def best(counts: Mapping[str, int]) -> Priced | None:
        key = tuple(counts.values())
        if key not in known:
            composed = composer.best(counts)
            known[key] = None
            if composed is not None:
                used = {name: composed.composition.devices(name) for name in counts}
                per_hour = sum(price_per_device_hour[name] * number for name, number in used.items())
                known[key] = Priced(composed=composed, price_per_hour=per_hour)
        return known[key]

    starts = [most, *({other: most[other] * (other == name) for other in most} for name in most)]
    for start in starts:
        here, found = start, best(start)
        changed = True
        while changed:
            changed = False
            for there in _changed(here, composer):
                other = best(there)
                if other is not None and (found is None or rank(other) < rank(found)):
                    here, found, changed = there, other, True
                    break
    able = [one for one in known.values() if one is not None]
    return min(able, key=rank, default=None)


def _changed(counts: Mapping[str, int], composer: Composer) -> Iterator[dict[str, int]]:
    for name, kind in composer.costs.kinds.items():
        now, node = counts[name], min(kind.devices_per_node, kind.count)
        for other in {0, now // 2, now - node, now + node, min(2 * now, kind.count), kind.count} - {now}:
            if 0 <= other <= kind.count and (other or any(n for k, n in counts.items() if k != name)):
                yield {**counts, name: other}
