"""Islands of clusters: the same whatever the order of groups, fewer as the tolerance grows, weakest numbers count."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.formats.cluster import GroupLinks, default_links, node_group
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import device
from meshwright.planning.compose.islands import AlikeDevices, as_cluster, granularities, islands, weakest_of
from meshwright.specs.cluster import ClusterSpec, NodeGroup

DEVICES = ("H100", "H100-96", "H200", "A100-40", "A100-80", "V100-16")


@st.composite
def clusters(draw: st.DrawFn) -> ClusterSpec:
    """A few groups of near and far devices with near and far links."""
    groups = [
        node_group(
            name=f"g{i}",
            device=device(draw(st.sampled_from(DEVICES))),
            nodes=draw(st.integers(1, 4)),
            devices_per_node=draw(st.sampled_from([4, 8])),
            links=GroupLinks(inter_bytes_per_s=draw(st.sampled_from([None, 20e9, 21e9, 50e9]))),
        )
        for i in range(draw(st.integers(1, 6)))
    ]
    return ClusterSpec(name="any", groups=tuple(groups), links=tuple(default_links(groups)))


def names(found: tuple[AlikeDevices, ...]) -> set[frozenset[str]]:
    return {frozenset(island.groups) for island in found}


def equal(a: NodeGroup, b: NodeGroup) -> bool:
    def seen(group: NodeGroup) -> tuple[object, ...]:
        outer = group.domains[-1].bandwidth_bytes_per_s if group.nodes > 1 else None
        return group.device, group.devices_per_node, outer

    return seen(a) == seen(b)


@given(clusters(), st.randoms(), st.sampled_from([0.0, 0.05, 0.3, 2.0]))
@settings(max_examples=40, deadline=None)
def test_the_order_of_groups_does_not_count(cluster: ClusterSpec, random: object, tolerance: float) -> None:
    groups = list(cluster.groups)
    random.shuffle(groups)
    shuffled = replace(cluster, groups=tuple(groups))
    assert names(islands(shuffled, tolerance)) == names(islands(cluster, tolerance))


@given(clusters())
@settings(max_examples=40, deadline=None)
def test_a_larger_tolerance_never_gives_more_islands(cluster: ClusterSpec) -> None:
    ways = [way for way in granularities(cluster) if way.tolerance is not None]
    counts = [way.num_islands for way in ways]
    assert counts == sorted(counts, reverse=True)
    assert len(set(counts[1:])) == len(counts[1:])
    for way in ways:
        assert way.tolerance is not None
        assert names(islands(cluster, way.tolerance)) == names(way.islands)
        assert sum(island.num_devices for island in way.islands) == cluster.devices


@given(clusters())
@settings(max_examples=40, deadline=None)
def test_at_tolerance_0_islands_are_equal_groups(cluster: ClusterSpec) -> None:
    # All links between groups are the slower of both fabrics, so that equal groups are joined as they are inside.
    for island in islands(cluster, 0.0):
        members = [group for group in cluster.groups if group.name in island.groups]
        for a, b in combinations(members, 2):
            assert a.device == b.device
            assert a.devices_per_node == b.devices_per_node
    together = names(islands(cluster, 0.0))
    multi = [group for group in cluster.groups if group.nodes > 1]
    for a, b in combinations(multi, 2):
        if equal(a, b):
            assert any({a.name, b.name} <= one for one in together)


def test_an_island_of_several_groups_counts_as_its_weakest() -> None:
    cluster = resolve_gpus("16xH100,16xH100-96")
    (island,) = islands(cluster, 0.5)
    seen = island.counts_as
    assert seen.devices == 32
    assert seen.device.memory_bytes == device("H100").memory_bytes
    assert seen.device.memory_bandwidth_bytes_per_s == device("H100-96").memory_bandwidth_bytes_per_s
    assert [domain.size for domain in seen.domains] == [8, 32]
    assert island.apart == pytest.approx(3350 / 2400 - 1)
    assert as_cluster(cluster, (island,)).devices == 32


def test_only_links_between_its_own_groups_slow_an_island_down() -> None:
    cluster = resolve_gpus("16xH100,16xH200,16xA100-80")
    assert weakest_of(cluster.groups[:2], cluster.links).domains[-1].bandwidth_bytes_per_s == 50e9
    assert weakest_of(cluster.groups, cluster.links).domains[-1].bandwidth_bytes_per_s == 25e9


def test_unlike_devices_of_one_host_meet_in_it_and_not_on_a_network() -> None:
    cluster = resolve_gpus("1xRTX4090+1xRTX3090")
    (domain,) = weakest_of(cluster.groups, cluster.links).domains
    (link,) = cluster.links
    assert (domain.bandwidth_bytes_per_s, domain.efficiency) == (link.bandwidth_bytes_per_s, link.efficiency)
    assert "PCIe" in domain.name


def test_an_island_is_as_well_known_as_the_links_between_its_groups() -> None:
    cluster = resolve_gpus("16xH100,16xH200")
    known = tuple(replace(link, basis="measured") for link in cluster.links)
    fabric = replace(cluster.groups[0].domains[-1], basis="measured")
    rail = replace(cluster.groups[0].domains[0], name="rail", size=16, basis="literature")
    first = replace(cluster.groups[0], nodes=4, domains=(cluster.groups[0].domains[0], rail, replace(fabric, size=32)))
    groups = (first, cluster.groups[1])
    assert weakest_of(groups, cluster.links).domains[-1].basis == "assumed"
    assert weakest_of(groups, known).domains[-1].basis == "measured"


def test_an_island_costs_the_mean_of_its_devices() -> None:
    """16 devices at 2 and 48 at 4 an hour: 3.5 each; unknown where one price is."""
    groups = resolve_gpus("16xH100,48xH200").groups
    priced = [replace(group, price_per_device_hour=price) for group, price in zip(groups, (2.0, 4.0), strict=True)]
    assert weakest_of(priced, ()).price_per_device_hour == pytest.approx(3.5)
    unknown = replace(priced[0], price_per_device_hour=None, device=replace(priced[0].device, price_per_hour=None))
    assert weakest_of([unknown, priced[1]], ()).price_per_device_hour is None


def test_levels_inside_nodes_stay_as_far_as_the_nodes_of_the_island_reach() -> None:
    """Pairs in nodes of 8: a level of 4 and one of 8 are inside nodes of the island, the fabric is outside."""
    pair, fabric = resolve_gpus("16xH100").groups[0].domains
    inner = tuple(replace(pair, name=f"of {size}", size=size) for size in (2, 4, 8))
    group = replace(resolve_gpus("16xH100").groups[0], domains=(*inner, fabric))
    seen = weakest_of([group, replace(group, name="other")], ())
    assert [domain.size for domain in seen.domains] == [2, 4, 8, 32]


def test_the_largest_level_that_nodes_divide_is_an_island() -> None:
    """48 devices in nodes of 4, levels of 12 and 24 between them and the fabric: two islands of 24."""
    node, fabric = resolve_gpus("16xH100").groups[0].domains
    inner = tuple(replace(node, name=f"of {size}", size=size) for size in (4, 10, 24))
    group = replace(
        resolve_gpus("16xH100").groups[0],
        nodes=12,
        devices_per_node=4,
        domains=(*inner, replace(fabric, size=48)),
    )
    finer = granularities(ClusterSpec(name="racks", groups=(group,), links=()))[0]
    assert [(island.copies, island.counts_as.devices) for island in finer.islands] == [(2, 24)]
    # No whole nodes of 4 fill levels of 10.
    cut = replace(group, nodes=10, domains=(*inner[:2], replace(fabric, size=40)))
    assert [way.tolerance for way in granularities(ClusterSpec(name="racks", groups=(cut,), links=()))] == [0.0]


def test_the_finer_granularity_is_the_largest_inner_domain() -> None:
    finer = granularities(resolve_gpus("144xGB200,16xH100"))[0]
    assert finer.tolerance is None
    assert [(island.copies, island.counts_as.devices) for island in finer.islands] == [(2, 72), (2, 8)]


def test_islands_as_a_cluster_are_joined_by_the_slowest_link() -> None:
    cluster = resolve_gpus("8xH100,8xH100-96,8xV100-16")
    seen = as_cluster(cluster, islands(cluster, 0.5))
    assert [group.name for group in seen.groups] == ["H100 + H100-96", "V100-16"]
    assert [link.between for link in seen.links] == [("H100 + H100-96", "V100-16")]
    assert seen.links[0].bandwidth_bytes_per_s == min(link.bandwidth_bytes_per_s for link in cluster.links)


def test_other_zones_and_other_nodes_are_other_islands() -> None:
    cluster = resolve_gpus("2x8xH100,4x4xH100")
    assert len(islands(cluster, 100.0)) == 2
    apart = replace(
        cluster,
        groups=tuple(
            replace(group, zone=zone) for group, zone in zip(resolve_gpus("8xH100,16xH100").groups, "ab", strict=True)
        ),
        links=(),
    )
    assert len(islands(apart, 100.0)) == 2


@pytest.mark.parametrize("tolerance", [-0.1, float("nan"), 1e9])
def test_what_is_no_tolerance_is_refused(tolerance: float) -> None:
    with pytest.raises(InputError, match="tolerance"):
        islands(resolve_gpus("8xH100"), tolerance)
