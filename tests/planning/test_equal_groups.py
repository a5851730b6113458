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
