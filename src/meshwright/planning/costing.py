"""Which part of a cluster to rent: what each part can do, looked for where it gets better.

    price of a step   sum over kinds of  price per device and hour x devices in use x step / 3600
                      + sum over links of  price per GB x GB that a step sends over it

Devices that a plan leaves idle are not rented. Parts are searched by halving, doubling, dropping and adding the devices
of one kind at a time, from the whole cluster and from each kind by itself, as long as the answer gets better.

Source: own design; local search, so that the answer is the best of the parts looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from meshwright.planning.objectives.base import Offer, Planned

MOST_PARTS = 48
"""Most parts of a cluster that are planned."""

Rank = Callable[[Offer[Planned]], tuple[float, ...]]
"""What makes an offer better: lower."""
Counts = Mapping[str, int]
"""Devices of each kind."""


def rented(
    most: Counts, node: Counts, offers_on: Callable[[Counts], Sequence[Offer[Planned]]], rank: Rank[Planned]
) -> list[Offer[Planned]]:
    """The offers of all parts of a cluster that were looked at, the best first.

    Args:
        most: devices there are of each kind.
        node: devices of a node of each kind.
        offers_on: plans on a part, any number of them.
        rank: what makes one better.
    """
    known: dict[tuple[int, ...], list[Offer[Planned]]] = {}

    def best(counts: Counts) -> Offer[Planned] | None:
        key = tuple(counts.values())
        if key not in known:
            known[key] = sorted(offers_on(counts), key=rank) if len(known) < MOST_PARTS else []
        return known[key][0] if known[key] else None

    starts = [dict(most), *({other: most[other] * (other == name) for other in most} for name in most)]
    for start in starts:
        here, found = start, best(start)
        changed = True
        while changed:
            changed = False
            for there in _changed(here, most, node):
                other = best(there)
                if other is not None and (found is None or rank(other) < rank(found)):
                    here, found, changed = there, other, True
                    break
    return sorted((offer for offers in known.values() for offer in offers), key=rank)


def _changed(counts: Counts, most: Counts, node: Counts) -> Iterator[dict[str, int]]:
    for name, there in most.items():
        now, one = counts[name], min(node[name], there)
        whole = now // one * one
        smaller = now // 2 // one * one if now > one else now // 2
        for other in dict.fromkeys((0, smaller, now - one, whole + one, min(2 * now, there), there)):
            changed = {**counts, name: other}
            if other != now and 0 <= other <= there and any(changed.values()):
                yield changed
