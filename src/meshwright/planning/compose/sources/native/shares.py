"""Which shares of an island a pipeline may take: all of it, round numbers of nodes, and what those leave.

Degrees divide a share well where it is 1, 3, 5 or 7 times a power of two of nodes; an island of one node is shared by
its devices. Finer shares are offered where there are few islands, since their combinations multiply.
"""

from __future__ import annotations

from functools import lru_cache

from meshwright.specs.cluster import NodeGroup

MOST_SHARES = {1: 32, 2: 12, 3: 6, 4: 6}
"""Most shares of an island, by the number of islands of the cluster; with more of them, all of each and its half."""
FEWEST_SHARES = 2
FEW = 8
"""Nodes up to which every number of them is offered."""
ODD_FACTORS = (1, 3, 5, 7)
FRACTIONS = ((1, 2), (1, 4), (3, 4), (1, 3), (2, 3))


def offered_shares(group: NodeGroup, islands: int, devices: int) -> tuple[int, ...]:
    """Devices of a group that one pipeline may take, all of them first.

    Args:
        group: an island.
        islands: the number of islands of the cluster.
        devices: the number of devices of the group that are planned with.
    """
    unit = group.devices_per_node if group.nodes > 1 else 1
    most = MOST_SHARES.get(islands, FEWEST_SHARES)
    return tuple(unit * count for count in _counts(devices // unit, most))


@lru_cache(maxsize=1024)
def _counts(whole: int, most: int) -> tuple[int, ...]:
    """Counts of nodes, the more useful first: what is round and near the whole with its rest, then fractions."""
    found = dict.fromkeys([whole])
    rounds = sorted({factor << shift for factor in ODD_FACTORS for shift in range(whole.bit_length())}, reverse=True)
    rounds = [count for count in rounds if count < whole]
    fractions = [whole * a // b for a, b in FRACTIONS if whole * a % b == 0]
    every = list(range(whole - 1, 0, -1)) if whole <= FEW else []
    if whole & (whole - 1) == 0:
        wanted = [*fractions, *rounds]
    else:
        wanted = [*rounds[:1], *fractions[:1], *rounds[1:3], *fractions[1:], *rounds[3:]]
    for count in (*wanted, *every):
        for one in (count, whole - count):
            if 0 < one < whole:
                found.setdefault(one)
    return tuple(list(found)[:most])
