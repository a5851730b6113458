"""Smaller clusters inside one: nodes, and devices of each, that degrees of parallelism and the batch divide well."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from meshwright.specs.cluster import ClusterSpec, NodeGroup

ROUND_PRIMES = (2, 3, 5, 7)
"""Counts of devices made of these primes are the ones degrees divide well."""
LARGEST_ODD = 9
"""Largest odd factor of the numbers of nodes that are tried between all of them and those that divide the batch."""
NEAR = 64
"""Nodes fewer than there are that are looked at one by one; of still fewer, round numbers are."""
MOST_LEFT = 0.25
"""Share of the nodes that may stay idle so that the others divide the batch."""
HALF = 0.5
"""Least share of a single node's devices that are used."""
SMALL = 32
"""Devices of a cluster of several groups that may leave any number of them idle."""
ROUND_NODES = (2, 4, 8, 16)
"""Divisors of the numbers of nodes that are planned in larger clusters."""
LEAST_NEAR = 0.8
"""Share of the nodes of a group that such a number is at least."""


def is_round(devices: int) -> bool:
    """Whether a count is made of small primes only."""
    for prime in ROUND_PRIMES:
        while devices % prime == 0:
            devices //= prime
    return devices == 1


def first_nodes(cluster: ClusterSpec, *, nodes: int, per_node: int) -> ClusterSpec:
    """The first nodes of a homogeneous cluster, with so many devices of each; or more nodes of the same kind.

    Domains inside a node shrink with it; the outermost one holds whatever there is.
    """
    group = cluster.groups[0]
    devices = nodes * per_node
    domains = []
    for number, domain in enumerate(group.domains):
        inside = domain.size <= group.devices_per_node
        size = min(domain.size, per_node) if inside else min(domain.size, devices)
        last = number == len(group.domains) - 1
        domains.append(replace(domain, size=devices if last else size))
    if len(domains) > 1 and domains[-2].size >= devices:
        domains = [domain for domain in domains[:-1] if domain.size <= devices]
        domains[-1] = replace(domains[-1], size=devices)
    unequal = group.first_unequal(devices) if per_node == group.devices_per_node else ()
    changed: NodeGroup = replace(
        group, nodes=nodes, devices_per_node=per_node, domains=tuple(domains), unequal_nodes=unequal
    )
    name = (
        f"{devices}x{group.device.name}"
        if per_node == group.devices_per_node
        else f"{nodes}x{per_node}x{group.device.name}"
    )
    return cluster.part(name, (changed,))


def parts(cluster: ClusterSpec) -> Iterator[ClusterSpec]:
    """Smaller clusters of equal nodes inside a cluster, largest first."""
    group = cluster.groups[0]
    near = max(1, group.nodes - NEAR)
    fewest = min(near, math.ceil(group.nodes * (1 - MOST_LEFT)))
    counts = (nodes for nodes in range(fewest, group.nodes) if nodes >= near or is_round(nodes))
    shapes = {(nodes, group.devices_per_node) for nodes in counts}
    shapes |= {(group.nodes, count) for count in range(1, group.devices_per_node)}
    for nodes, per_node in sorted(shapes, key=lambda shape: (-shape[0] * shape[1], shape)):
        yield first_nodes(cluster, nodes=nodes, per_node=per_node)


def halved_nodes(nodes: int) -> list[int]:
    """Halves, and three quarters, of a number of nodes, and of those again.

    Args:
        nodes: the number of nodes that there are.
    """
    halved = [nodes >> power for power in range(nodes.bit_length())]
    return sorted({3 * half // 4 for half in halved if half % 4 == 0} | set(halved[1:]), reverse=True)


def fewer_of_each(cluster: ClusterSpec, batch: int) -> list[ClusterSpec]:
    """Clusters with fewer devices of every node or scale-up domain, where their number divides badly.

    Of seven devices a node six and four; of domains of several nodes the largest power of two, 64 of 72: no tensor
    degree of more than eight divides 72, and data ranks or stages would have to take its factor of nine, which batches
    and layers seldom have.

    Args:
        cluster: one group of equal nodes.
        batch: sequences of a step.
    """
    group = cluster.groups[0]
    each = group.devices_per_node
    even = {each - 1, 1 << (each.bit_length() - 1)} - {each} if each > 1 and each % 2 else set()
    nodes = [first_nodes(cluster, nodes=group.nodes, per_node=count) for count in sorted(even, reverse=True)]
    return [*nodes, *_of_round_domains(cluster, batch)]


def _of_round_domains(cluster: ClusterSpec, batch: int) -> Iterator[ClusterSpec]:
    """The largest power of two of every domain of several nodes, and of as many domains as divide the batch."""
    group = cluster.groups[0]
    each, (domain, *outer) = group.devices_per_node, group.domains
    used, count = 1 << (domain.size.bit_length() - 1), group.devices // domain.size
    several = each < domain.size < group.devices and used % each == 0
    if not several or used == domain.size or any(one.size % domain.size for one in outer[:-1]):
        return
    sizes = [*(one.size // domain.size * used for one in group.domains[:-1]), count * used]
    fewer = tuple(replace(one, size=size) for one, size in zip(group.domains, sizes, strict=True))
    changed: NodeGroup = replace(group, nodes=count * used // each, domains=fewer, unequal_nodes=())
    rounded = cluster.part(f"{count * used}x{group.device.name}", (changed,))
    yield rounded
    for domains, _ in rounder_parts(count, used, batch) if count > 1 else ():
        yield first_nodes(rounded, nodes=domains * used // each, per_node=each)


def dividing_part(nodes: int, each: int, batch: int) -> tuple[int, int] | None:
    """The most of these nodes whose devices have no odd factor that the batch lacks, or the most devices of one node.

    Eighteen nodes share 512 sequences worse than sixteen: nine data ranks, or nine stages, leave a remainder.

    Args:
        nodes: the number of nodes that there are.
        each: devices of a node.
        batch: sequences of a step.

    Returns:
        Nodes and devices of each; None where that is all of them, or fewer than are worth a look.
    """
    *_, (most, of_each) = [(nodes, each), *rounder_parts(nodes, each, batch)]
    divides = _odd_part(batch) % _odd_part(most * of_each) == 0
    return (most, of_each) if divides and most * of_each < nodes * each else None


def rounder_parts(nodes: int, each: int, batch: int) -> list[tuple[int, int]]:
    """Fewer nodes, or devices of one node, where all of them have an odd factor that the batch lacks: the most first.

    Numbers with a small odd factor, which stages may take, down to the first that divides the batch as `dividing_part`
    does, or to the fewest that are worth a look: of 21 nodes 20, 18 and 16.

    Args:
        nodes: the number of nodes that there are.
        each: devices of a node.
        batch: sequences of a step.

    Returns:
        Nodes and devices of each.
    """
    there, unit, least = (nodes, each, 1 - MOST_LEFT) if nodes > 1 else (each, 1, HALF)
    counts: list[int] = []
    for count in range(there, math.ceil(least * there) - 1, -1):
        divides = _odd_part(batch) % _odd_part(count * unit) == 0
        if count < there and (divides or _odd_part(count) <= LARGEST_ODD):
            counts.append(count)
        if divides:
            break
    return [(count, each) if nodes > 1 else (1, count) for count in counts]


def fewer_devices(cluster: ClusterSpec, number: int, devices: int, batch: int) -> list[int]:
    """Devices of a group to plan with, some left idle: numbers near all of them, and the roundest of more than half.

    Eleven nodes leave unlike pipelines an uneven rest of a batch where eight of them end together, and twelve of
    sixteen make three stages of four as twelve of fourteen do. What stages of round numbers of nodes take is priced for
    the group anyway.

    Args:
        cluster: the cluster of several groups.
        number: the number of the group.
        devices: the number of devices of it, at most.
        batch: sequences of a step.
    """
    near = _near(cluster, cluster.groups[number], devices, batch)
    if cluster.devices <= SMALL or cluster.groups[number].nodes == 1:
        return near
    each = cluster.groups[number].devices_per_node
    nodes = devices // each
    rounds = (times << shift for times in (1, 3) for shift in range(nodes.bit_length()))
    # Of three groups and more, to look below the largest power of two takes a third of the whole answer's time.
    least = nodes // 2 + 1 if len(cluster.groups) == 2 else 1 << (nodes.bit_length() - 1)
    rounder = {count for count in rounds if least <= count < nodes}
    return sorted({*near, *(each * count for count in rounder)})


def roundest_devices(cluster: ClusterSpec, batch: int) -> dict[int, tuple[int, ...]]:
    """The number of devices near all of each group that is divided by the largest power of two; none where all are.

    Of two groups the most below all of each, too: 27 nodes are to be no slower than 26, which are divided otherwise.

    Args:
        cluster: the cluster of several groups.
        batch: sequences of a step.
    """
    near = {number: _near(cluster, group, group.devices, batch) for number, group in enumerate(cluster.groups)}
    roundest = {number: max(own, key=lambda count: count & -count) for number, own in near.items() if own}
    if len(near) > 2:
        return {number: (count,) for number, count in roundest.items()}
    return {number: tuple(dict.fromkeys((count, max(near[number])))) for number, count in roundest.items()}


def _near(cluster: ClusterSpec, group: NodeGroup, devices: int, batch: int) -> list[int]:
    """Any number of devices of a small cluster, else round numbers of nodes near the whole.

    Sixty-two nodes are cut into stages of 1, 2, 31 or 62 nodes; sixty of them into nine sizes.
    """
    each = group.devices_per_node
    if group.nodes == 1 and cluster.devices > SMALL:
        return sorted({devices - 1, 1 << (devices.bit_length() - 1)} - {devices}) if each % 2 else []
    if cluster.devices <= SMALL:
        unit = each if group.nodes > 1 else 1
        return list(range(unit, devices, unit))
    nodes = devices // each
    rounded = {nodes // unit * unit for unit in ROUND_NODES if unit <= nodes}
    near = {fewer for fewer in rounded if nodes * LEAST_NEAR <= fewer < nodes}
    dividing = dividing_part(nodes, each, batch)
    return [each * fewer for fewer in sorted(near | ({dividing[0]} if dividing else set()))]


def _odd_part(number: int) -> int:
    return number // (number & -number)
