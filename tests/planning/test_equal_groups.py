"""A cluster written in equal halves is the cluster."""

from __future__ import annotations

from dataclasses import replace

import pytest

from meshwright.library.clusters import resolve_gpus
from meshwright.planning.equal_groups import equal_groups_joined


@pytest.mark.parametrize(
    ("halves", "whole"),
    [
        ("8xH100,8xH100", "16xH100"),
        ("3x8xH800,5x8xH800", "8x8xH800"),
        ("8xL40S,8xL40S,8xA100-80", "16xL40S,8xA100-80"),
        ("8xH100,2x8xA100-80,8xH100", "16xH100,2x8xA100-80"),
        ("8xH100,8xL40S,8xH100,2x8xL40S", "16xH100,24xL40S"),
    ],
)
def test_equal_groups_become_one_where_the_first_stands(halves: str, whole: str) -> None:
    joined, names = equal_groups_joined(resolve_gpus(halves))
    expected = resolve_gpus(whole)
    assert [len(some) for some in names] == [2] * (len(resolve_gpus(halves).groups) - len(expected.groups))
    assert [replace(group, name="") for group in joined.groups] == [
        replace(group, name="") for group in expected.groups
    ]
    links = [(link.bandwidth_bytes_per_s, link.latency_s) for link in expected.links]
    assert [(link.bandwidth_bytes_per_s, link.latency_s) for link in joined.links] == links


def test_another_price_zone_or_link_keeps_them_apart() -> None:
    cluster = resolve_gpus("8xH100,8xH100")
    first, second = cluster.groups
    slow = replace(cluster.links[0], bandwidth_bytes_per_s=1e9)
    for other in (
        replace(cluster, groups=(first, replace(second, price_per_device_hour=1.0))),
        replace(cluster, groups=(first, replace(second, zone="west"))),
        replace(cluster, links=(slow,)),
        resolve_gpus("72xGB200,72xGB200"),  # one domain each, whose fabric the groups do not show
    ):
        assert equal_groups_joined(other) == (other, ())


def test_groups_that_only_cost_differently_are_one_at_their_means_where_asked() -> None:
    cluster = resolve_gpus("8xH100,3x8xH100,8xL40S")
    first, second, other = cluster.groups
    dear = replace(first, price_per_device_hour=3.0, power_w_per_device=600.0)
    spot = replace(second, price_per_device_hour=1.0, power_w_per_device=500.0, preemptions_per_node_hour=0.04)
    priced = replace(cluster, groups=(dear, spot, other))
    assert equal_groups_joined(priced) == (priced, ())
    joined, names = equal_groups_joined(priced, whatever_they_cost=True)
    assert names == ((first.name, second.name),)
    one = joined.groups[0]
    assert (one.devices, one.price_per_device_hour, one.power_w_per_device) == (32, 1.5, 525.0)
    assert one.preemptions_per_node_hour == pytest.approx(0.03)
    whole = resolve_gpus("4x8xH100,8xL40S").groups[0]
    unsaid = replace(one, price_per_device_hour=None, power_w_per_device=None, preemptions_per_node_hour=0.0)
    assert replace(unsaid, name="") == replace(whole, name="")


def test_what_is_not_known_of_one_group_is_not_known_of_both() -> None:
    cluster = resolve_gpus("8xH100,8xH100")
    first, second = cluster.groups
    rate = replace(second, preemptions_per_node_hour=0.5)
    (one,) = equal_groups_joined(replace(cluster, groups=(first, rate)), whatever_they_cost=True)[0].groups
    assert (one.price_per_hour, one.power_w_per_device) == (first.price_per_hour, None)
    assert one.preemptions_per_node_hour == pytest.approx(0.25)


def test_other_speeds_and_zones_keep_groups_apart_whatever_they_cost() -> None:
    cluster = resolve_gpus("8xH100,8xH100")
    first, second = cluster.groups
    slow = replace(cluster.links[0], bandwidth_bytes_per_s=1e9)
    paid = replace(cluster.links[0], price_per_gb=0.02)
    for other in (
        replace(cluster, groups=(first, replace(second, zone="west"))),
        replace(cluster, links=(slow,)),
        replace(cluster, links=(paid,)),
        resolve_gpus("8xH100,8xH800"),
    ):
        assert equal_groups_joined(other, whatever_they_cost=True) == (other, ())
