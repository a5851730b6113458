"""Devices of several kinds: islands of equal hosts, their links, and the orders in which a pipeline visits them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, permutations

from meshwright.compiler.stages.hosts import Hosts
from meshwright.errors import InputError, Problem, unknown_name
from meshwright.specs.cluster import ClusterSpec, LinkSpec
from meshwright.specs.workload import Workload

MOST_ORDERED = 4
"""Groups of which every order is tried."""


@dataclass(frozen=True, slots=True)
class Submesh:
    """Devices that a stage may have."""

    group: int
    devices: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Islands:
    """Groups of equal hosts that differ from each other, and what joins them: a stage stays within one group."""

    groups: tuple[Hosts, ...]
    links: tuple[LinkSpec, ...] = ()
    """Links between groups, by name; the slower of their own links between hosts where there is none."""

    def __post_init__(self) -> None:
        names = [group.name for group in self.groups]
        wrong = []
        if not self.groups:
            wrong.append(
                Problem(
                    what="islands without a group",
                    why="stages run on devices",
                    field="groups",
                    fix="groups=(Hosts(...),)",
                )
            )
        if len(set(names)) < len(names):
            wrong.append(
                Problem(
                    what=f"groups named {', '.join(names)}",
                    why="links name the groups they join",
                    fix="a name of its own for each",
                    field="groups",
                )
            )
        wrong += [
            unknown_name("group", name, names) for link in self.links for name in link.between if name not in names
        ]
        if wrong:
            raise InputError(wrong)

    @classmethod
    def of(cls, cluster: ClusterSpec, workload: Workload | None = None) -> Islands:
        """The groups of a cluster.

        Args:
            cluster: the cluster of one or several groups.
            workload: the workload as `Hosts.of` takes it.
        """
        return cls(
            groups=tuple(Hosts.of(group, workload) for group in cluster.groups),
            links=tuple(link for link in cluster.links if set(link.between) <= {one.name for one in cluster.groups}),
        )

    @property
    def devices(self) -> int:
        """All devices, numbered group after group."""
        return sum(group.devices for group in self.groups)

    @property
    def memory_bytes(self) -> float:
        """Memory of all devices together; infinite if one is unlimited."""
        return sum(group.limit_bytes * group.devices for group in self.groups)

    @property
    def latency_s(self) -> float:
        """The least of any link."""
        found = [min(group.inside_latency_s, group.between_latency_s) for group in self.groups]
        return min([*found, *(link.latency_s for link in self.links)])

    def submeshes(self) -> list[Submesh]:
        """What a stage may have, group by group."""
        return [Submesh(number, count) for number, group in enumerate(self.groups) for count in group.submeshes()]

    def limits_bytes(self, submeshes: Sequence[Submesh]) -> list[float]:
        """Memory of a device of each submesh.

        Args:
            submeshes: the submeshes of these islands.
        """
        return [self.groups[submesh.group].limit_bytes for submesh in submeshes]

    def group_of(self, device: int) -> int:
        """Number of the group of a device.

        Args:
            device: its number.
        """
        return bisect_right(list(accumulate(group.devices for group in self.groups)), device)

    def rows(self) -> list[Row]:
        """Orders in which a pipeline may visit the groups: all of up to four, of more the given and its reverse."""
        numbers = range(len(self.groups))
        orders = permutations(numbers) if len(numbers) <= MOST_ORDERED else (tuple(numbers), tuple(reversed(numbers)))
        return [Row(self, tuple(order)) for order in orders]

    def link_s(self, size_bytes: float, left: Submesh, right: Submesh) -> float:
        """Seconds to hand a value from a submesh of one group to one of another.

        Args:
            size_bytes: the size in bytes of the whole value.
            left: the island that sends.
            right: the island that receives.
        """
        one, other = self.groups[left.group], self.groups[right.group]
        fewer = min(left.devices, right.devices)
        for link in self.links:
            if set(link.between) == {one.name, other.name}:
                return link.latency_s + size_bytes / (link.bandwidth_bytes_per_s * fewer)
        # Every host of a submesh has its own link; a part of a host has the link of that host.
        slower = min(
            group.between_bytes_per_s * max(1, own.devices // group.devices_per_host)
            for group, own in ((one, left), (other, right))
        )
        return max(one.between_latency_s, other.between_latency_s) + size_bytes / slower


@dataclass(frozen=True, slots=True)
class Row:
    """Groups one behind the other as a pipeline goes through them; places count along the row."""

    islands: Islands
    order: tuple[int, ...]

    @classmethod
    def of(cls, hosts: Hosts) -> Row:
        """Hosts of one kind.

        Args:
            hosts: the only group.
        """
        return cls(Islands(groups=(hosts,)), (0,))

    @property
    def devices(self) -> int:
        """All of them."""
        return self.islands.devices

    def fits(self, first: int, submesh: Submesh) -> bool:
        """Whether devices from a place on are a submesh of its group.

        Args:
            first: place.
            submesh: how many devices of which group.
        """
        start, group = self._start(submesh.group), self.islands.groups[submesh.group]
        inside = start <= first and first + submesh.devices <= start + group.devices
        return inside and group.fits(first - start, submesh.devices)

    def hop_s(self, size_bytes: float, first: int, left: Submesh, right: Submesh) -> float:
        """Seconds to hand a value to the next submesh.

        Args:
            size_bytes: the size in bytes of the whole value.
            first: place of the right submesh; the left one ends before it.
            left: the island that sends.
            right: the island that receives.
        """
        if left.group != right.group:
            return self.islands.link_s(size_bytes, left, right)
        group = self.islands.groups[right.group]
        return group.hop_s(size_bytes, first - self._start(right.group), left.devices, right.devices)

    def behind(self, first: int, submesh: Submesh) -> Submesh:
        """A submesh to stand for the one that begins where another ends: of as many devices, where its group has them.

        Args:
            first: place behind the other.
            submesh: the other.
        """
        number = self._group_at(first)
        return Submesh(number, min(submesh.devices, self.islands.groups[number].devices))

    def device(self, place: int) -> int:
        """Number of the device at a place.

        Args:
            place: along the row.
        """
        number = self._group_at(place)
        return place - self._start(number) + sum(group.devices for group in self.islands.groups[:number])

    def _group_at(self, place: int) -> int:
        return self.order[
            bisect_right(list(accumulate(self.islands.groups[number].devices for number in self.order)), place)
        ]

    def _start(self, group: int) -> int:
        """Place of the first device of a group."""
        before = self.order[: self.order.index(group)]
        return sum(self.islands.groups[number].devices for number in before)


def islands_of(hosts: Hosts | Islands) -> Islands:
    """Hosts of one kind or of several, as islands.

    Args:
        hosts: either.
    """
    return hosts if isinstance(hosts, Islands) else Islands(groups=(hosts,))
