"""Where workers stand: the group of nodes of each, the links around its ranks, and the link between two of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, combinations
from math import gcd

from meshwright.errors import InputError, UnsupportedError
from meshwright.estimate.hardware import BASE_LATENCY_S, Hardware, hardware_of
from meshwright.formats.cluster import default_links
from meshwright.kernels.lines import LevelRates
from meshwright.specs.cluster import ClusterSpec, LinkSpec, NodeGroup
from meshwright.specs.device import Basis
from meshwright.specs.plan import Worker
from meshwright.specs.workload import Workload

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Site:
    """The devices of a worker."""

    number: int
    """Number of the group in the cluster."""
    group: NodeGroup
    first: int
    """Device, counted in the group."""
    last: int
    devices: int
    contiguous: bool
    view: int
    """Index into `Sites.views`: the device, and the domains as ranks see them that start here."""
    hardware: Hardware

    def domain(self, size: int) -> int | None:
        """The domain of this size that holds all of the worker, by number; None where it reaches into others."""
        return self.first // size if self.first // size == self.last // size else None


class Sites:
    """All places of a cluster where workers may stand; each is looked up once."""

    def __init__(self, cluster: ClusterSpec, workload: Workload, hardware: Hardware | None = None) -> None:
        """Unpack the cluster.

        Args:
            cluster: groups and links.
            workload: its formats and framework say what a device does.
            hardware: instead of the library's, for a cluster of one group.
        """
        self.cluster = cluster
        self.views: list[Hardware] = []
        self._workload, self._given = workload, hardware
        self._starts = list(accumulate((group.devices for group in cluster.groups), initial=0))
        self._groups: dict[int, Hardware] = {}
        self._numbers: dict[tuple[int, tuple[int, ...]], int] = {}
        self._sites: dict[Ranges, Site] = {}
        self._links: dict[tuple[int, int], LinkSpec] = {}
        self._rates: dict[tuple[int, int], LevelRates] = {}

    def hardware(self, number: int) -> Hardware:
        """The devices of a group and the links around them.

        Raises:
            UnsupportedError: the device does not compute in the format asked for.
        """
        if number not in self._groups:
            group, workload = self.cluster.groups[number], self._workload
            self._groups[number] = self._given or hardware_of(group, workload)
        return self._groups[number]

    def of(self, worker: Worker) -> Site:
        """Where a worker stands.

        Raises:
            UnsupportedError: its devices belong to several groups.
        """
        if worker.devices not in self._sites:
            self._sites[worker.devices] = self._site(_merged(worker.devices), worker.num_devices)
        return self._sites[worker.devices]

    def _site(self, ranges: Ranges, devices: int) -> Site:
        numbers = {bisect_right(self._starts, device) - 1 for pair in ranges for device in pair}
        if len(numbers) > 1:
            joined = [self.cluster.groups[number] for number in sorted(numbers)]
            names = " and ".join(group.name for group in joined)
            kinds = {group.device.name for group in joined}
            flat = f"{sum(group.devices for group in joined)}x1x{joined[0].device.name}"
            alike = (
                f"; --gpus {flat} prices them by the fabric alone, no faster than they are" if len(kinds) == 1 else ""
            )
            raise UnsupportedError(
                what=f"a worker on devices {ranges[0][0]} to {ranges[-1][1]}, of the groups {names}",
                why="the ranks of a worker run in step and use one kind of link, those of one group",
                fix=f"give each group workers of its own, as `meshwright plan` does, or use one group{alike}",
                field="workers.devices",
                code="MW407",
            )
        (number,) = numbers
        group, start = self.cluster.groups[number], self._starts[number]
        first, last = ranges[0][0] - start, ranges[-1][1] - start
        sizes = tuple(domain.size for domain in group.domains)
        if len(ranges) > 1:
            step = gcd(*(value for low, high in ranges for value in (low - start, high - low + 1)))
            sizes = _cut(sizes, step)
        elif first % devices:
            sizes = _cut(sizes, first)
        view = self._view(number, sizes)
        return Site(
            number=number,
            group=group,
            first=first,
            last=last,
            devices=devices,
            contiguous=len(ranges) == 1,
            view=view,
            hardware=self.views[view],
        )

    def _view(self, number: int, sizes: tuple[int, ...]) -> int:
        key = (number, sizes)
        if key not in self._numbers:
            whole = self.hardware(number)
            self._numbers[key] = len(self.views)
            self.views.append(whole if sizes == whole.domain_sizes else replace(whole, domain_sizes=sizes))
        return self._numbers[key]

    def joined(self, stages: tuple[tuple[Site, ...], ...]) -> tuple[tuple[Site, ...], ...]:
        """Workers whose ranks form one group, each on its own devices: their collectives run at the slowest links.

        Inside, as many neighbours as every worker has in a domain, those of pipelines beside it counted; outside, the
        slowest of the links between their groups and of the fabrics that a worker's own ranks cross.

        Args:
            stages: the stages of each pipeline.
        """
        flat = [site for own in stages for site in own]
        key = (-1, *(number for site in flat for number in (site.view, site.first, site.devices)))
        blocks = _side_by_side(flat)
        near = min(_neighbours(site) for site in blocks)
        inner = min((site.hardware.rates[0] for site in flat), key=_reached)
        crossed = [site.hardware.rates[-1] for site in blocks if site.devices > _neighbours(site)]
        numbers = sorted({site.number for site in flat})
        between = [self.link(one, other) for one, other in combinations(numbers, 2)]
        outer = min([*between, *crossed] or [inner], key=_reached)
        sizes = (near, sum(site.devices for site in flat)) if near > 1 else (sum(site.devices for site in flat),)
        rates = (inner, outer)[-len(sizes) :]

        def seen(site: Site) -> Site:
            name = (site.view, key)
            if name not in self._numbers:
                self._numbers[name] = len(self.views)
                self.views.append(replace(site.hardware, joint=(sizes, rates)))
            view = self._numbers[name]
            return replace(site, view=view, hardware=self.views[view])

        return tuple(tuple(seen(site) for site in own) for own in stages)

    def between(self, one: Site, other: Site) -> LevelRates:
        """The link that joins two workers: the innermost domain that holds both, or what joins their groups."""
        if one.number != other.number:
            return self.link(one.number, other.number)
        hardware = self.hardware(one.number)
        for size, rates in zip(hardware.domain_sizes, hardware.rates, strict=True):
            if one.domain(size) is not None and one.domain(size) == other.domain(size):
                return rates
        return hardware.rates[-1]

    def link(self, one: int, other: int) -> LevelRates:
        """The link between two groups: the cluster's, or the slower of both fabrics where it names none.

        Raises:
            InputError: the link has no bandwidth.
        """
        key = (min(one, other), max(one, other))
        if key not in self._rates:
            spec = self._link(key)
            ends = [self.hardware(number) for number in key]
            pace, software = min(end.pace for end in ends), ends[0].software
            reached = spec.efficiency or min(_fabric_efficiency(self.cluster.groups[number]) for number in key)
            self._rates[key] = LevelRates(
                bandwidth_bytes_per_s=spec.bandwidth_bytes_per_s * pace,
                efficiency=(1.0 if spec.basis == "measured" else reached) * software.link_share,
                latency_s=spec.latency_s / pace,
                base_latency_s=BASE_LATENCY_S / pace,
            )
        return self._rates[key]

    def link_basis(self, one: int, other: int) -> Basis:
        """Where the numbers of a link between groups come from."""
        return self._link((min(one, other), max(one, other))).basis

    def _link(self, key: tuple[int, int]) -> LinkSpec:
        if key not in self._links:
            ends = [self.cluster.groups[number] for number in key]
            names = frozenset(group.name for group in ends)
            given = next((link for link in self.cluster.links if frozenset(link.between) == names), None)
            self._links[key] = given or default_links(ends)[0]
            if not self._links[key].bandwidth_bytes_per_s > 0:
                first, second = (group.name for group in ends)
                raise InputError(
                    what=f"the link between {first} and {second} has no bandwidth",
                    why="workers of both groups exchange activations or gradients",
                    fix="give its bandwidth, or plan the groups apart",
                    field="links",
                    code="MW230",
                )
        return self._links[key]


def _reached(rates: LevelRates) -> float:
    return float(rates.bandwidth_bytes_per_s) * rates.efficiency


def _merged(ranges: Ranges) -> Ranges:
    """Ranges in order, neighbours joined."""
    merged = sorted(ranges)[:1]
    for low, high in sorted(ranges)[1:]:
        if merged[-1][1] + 1 == low:
            merged[-1] = (merged[-1][0], high)
        else:
            merged.append((low, high))
    return tuple(merged)


def _cut(sizes: tuple[int, ...], start: int) -> tuple[int, ...]:
    """Domains as ranks see them that start so far from the first device: what surely lies in one, per level."""
    inner = accumulate((gcd(size, start) for size in sizes[:-1]), max)
    return (*inner, sizes[-1])


def _side_by_side(sites: Sequence[Site]) -> list[Site]:
    """The sites, those on consecutive devices of one group as one."""
    found: list[Site] = []
    for site in sorted(sites, key=lambda one: (one.number, one.first)):
        before = found[-1] if found else site
        beside = (before.number, before.last + 1) == (site.number, site.first)
        if beside and before.contiguous and site.contiguous:
            found[-1] = replace(before, last=site.last, devices=before.devices + site.devices)
        else:
            found.append(site)
    return found


def _neighbours(site: Site) -> int:
    """Ranks of a worker of which surely as many share an innermost domain; all of them where one holds the worker."""
    if site.domain(site.group.domains[0].size) is not None:
        return site.devices
    return gcd(site.hardware.domain_sizes[0], site.devices, site.first)


def _fabric_efficiency(group: NodeGroup) -> float:
    """Share of the nominal bandwidth that what leaves a group reaches."""
    node, outer = group.device.node, group.domains[-1]
    return outer.efficiency if node is None or outer.name == node.fabric_name else node.fabric_efficiency
