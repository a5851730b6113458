"""What is lost of clusters whose groups are planned as one of equal ranks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.errors import InputError
from meshwright.library.clusters import resolve_gpus
from meshwright.planning.changed_cluster import changed_cluster
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.equal_groups import equal_groups_joined
from meshwright.planning.mixed.equal_ranks import counted_as_one
from meshwright.specs.cluster import ClusterSpec


def joined() -> ClusterSpec:
    cluster = resolve_gpus("32xH100")
    return replace(cluster, groups=(replace(cluster.groups[0], name="H100 + H200"),))


def test_devices_of_a_member_are_any_of_the_equal_ranks() -> None:
    changed = changed_cluster(joined(), lost="8xH200")
    assert (changed.lost, changed.cluster.devices) == (8, 24)


def test_a_whole_member_is_asked_for_by_its_count() -> None:
    with pytest.raises(InputError, match="not how many devices of it are H200") as error:
        changed_cluster(joined(), lost="H200")
    assert "8xH200" in error.value.problems[0].fix


def rented() -> ClusterSpec:
    """Four nodes, four spot nodes and two of another kind; the first two count as one."""
    cluster = resolve_gpus("32xH100,32xH100,16xA100-80")
    steady, spot, other = cluster.groups
    names = {steady.name: "steady", spot.name: "spot", other.name: "other"}
    groups = (
        replace(spot, name="spot", preemptions_per_node_hour=0.02, price_per_device_hour=1.0),
        replace(steady, name="steady", price_per_device_hour=4.0),
        replace(other, name="other"),
    )
    links = (
        replace(link, between=(names[link.between[0]], names[link.between[1]]), bandwidth_bytes_per_s=9e9)
        if other.name in link.between
        else replace(link, between=(names[link.between[0]], names[link.between[1]]))
        for link in cluster.links
    )
    return equal_groups_joined(replace(cluster, groups=groups, links=tuple(links)), whatever_they_cost=True)[0]


@pytest.mark.parametrize(
    ("lost", "left", "kept"), [("spot", "steady", slice(32, 64)), ("steady", "spot", slice(0, 32))]
)
def test_of_groups_that_count_as_one_the_other_is_left(lost: str, left: str, kept: slice) -> None:
    before = rented()
    changed = changed_cluster(before, lost=lost)
    first, other = changed.cluster.groups
    stated = next(one for one in before.groups[0].counted if one.name == left)
    assert first == stated
    assert sorted(changed.number_after[kept].tolist()) == list(range(32))
    assert (changed.number_after[:64] >= 0).sum() == changed.lost == 32
    assert other == before.groups[1]
    (link,) = changed.cluster.links
    assert (set(link.between), link.bandwidth_bytes_per_s) == ({left, "other"}, 9e9)


def test_what_is_lost_of_one_of_them_is_taken_from_its_own_nodes() -> None:
    before = rented()
    changed = changed_cluster(before, lost="8xspot")
    assert [i for i in range(64) if changed.number_after[i] < 0] == list(range(24, 32))
    assert [(one.name, one.devices) for one in changed.cluster.groups[0].counted] == [("spot", 24), ("steady", 32)]
    # Once more, from what is left.
    again = changed_cluster(changed.cluster, lost="spot")
    assert [(one.name, one.devices) for one in again.cluster.groups] == [("steady", 32), ("other", 16)]
    assert sorted(again.number_after[24:56].tolist()) == list(range(32))


def test_unlike_kinds_that_count_as_one_are_what_they_were_without_each_other() -> None:
    cluster = resolve_gpus("8xH100,5xA100-80")
    every = [IslandPart(number, group.devices) for number, group in enumerate(cluster.groups)]
    one = counted_as_one(cluster, every)
    assert one is not None
    assert changed_cluster(one, lost="A100-80").cluster.groups == cluster.groups[:1]
    assert changed_cluster(one, lost="8-12").cluster.groups == cluster.groups[:1]
    some = changed_cluster(one, lost="2xA100-80").cluster.groups[0]
    assert (some.name, some.devices) == (one.groups[0].name, 11)


def test_nodes_are_lost_by_their_number_and_size() -> None:
    cluster = resolve_gpus("4x8xH100,8xA100-80")
    assert changed_cluster(cluster, lost="2x8xH100").cluster == changed_cluster(cluster, lost="16xH100").cluster
    with pytest.raises(InputError, match="names no group or device"):
        changed_cluster(cluster, lost="2x4xH100")
    with pytest.raises(InputError, match="there are 32 of them"):
        changed_cluster(cluster, lost="9x8xH100")
