"""Submeshes, logical meshes and the price of their links."""

from __future__ import annotations

import pytest

from meshwright.compiler.stages.hosts import Hosts
from meshwright.compiler.stages.islands import Islands, Submesh
from meshwright.errors import InputError
from meshwright.library.clusters import resolve_gpus
from meshwright.specs.cluster import LinkSpec

FOUR = Hosts(hosts=4, devices_per_host=8, flop_per_s=1e12, inside_bytes_per_s=100e9, between_bytes_per_s=8e9)


def test_submeshes_are_parts_of_a_host_and_whole_hosts() -> None:
    assert FOUR.submeshes() == [1, 2, 4, 8, 16, 32]
    three = Hosts(hosts=3, devices_per_host=6, flop_per_s=1.0, inside_bytes_per_s=1.0, between_bytes_per_s=1.0)
    assert three.submeshes() == [1, 2, 6, 12, 18]
    assert FOUR.fits(4, 4)
    assert not FOUR.fits(6, 4)
    assert FOUR.fits(8, 16)
    assert not FOUR.fits(4, 16)


def test_every_submesh_has_a_row_and_grids() -> None:
    assert FOUR.views(8) == [(8,), (2, 4)]
    assert FOUR.views(16) == [(16,), (8, 2), (4, 4), (2, 8)]
    assert FOUR.views(1) == [(1,)]


def test_groups_that_cross_hosts_at_once_share_their_links() -> None:
    row = FOUR.mesh((16,)).axes[0]
    assert row.bytes_per_s == 8e9  # one ring, once in and once out of each host
    across, within = FOUR.mesh((2, 8)).axes
    assert across.bytes_per_s == 1e9  # eight rings
    assert within.bytes_per_s == 100e9
    mixed, inner = FOUR.mesh((4, 4)).axes
    assert mixed.bytes_per_s == 2e9
    assert inner.bytes_per_s == 100e9


def test_a_hop_takes_all_links_between_two_submeshes() -> None:
    assert FOUR.hop_s(8e9, 4, 2, 4) == pytest.approx(8e9 / 200e9, rel=1e-3)
    assert FOUR.hop_s(8e9, 8, 8, 8) == pytest.approx(1.0, rel=1e-3)
    assert FOUR.hop_s(8e9, 16, 16, 16) == pytest.approx(0.5, rel=1e-3)


def test_numbers_must_be_positive() -> None:
    with pytest.raises(InputError, match="hosts = 0") as raised:
        Hosts(hosts=0, devices_per_host=8, flop_per_s=-1.0, inside_bytes_per_s=1.0, between_bytes_per_s=1.0)
    assert len(raised.value.problems) == 2


OLD = Hosts(
    name="old",
    hosts=2,
    devices_per_host=4,
    flop_per_s=1e12,
    inside_bytes_per_s=50e9,
    between_bytes_per_s=4e9,
    memory_bytes=16e9,
)
NEW = Hosts(
    name="new",
    hosts=1,
    devices_per_host=8,
    flop_per_s=5e12,
    inside_bytes_per_s=4e11,
    between_bytes_per_s=5e10,
    memory_bytes=80e9,
)


def test_a_stage_lies_within_one_kind_of_hosts() -> None:
    islands = Islands(groups=(OLD, NEW))
    assert islands.devices == 16
    assert islands.memory_bytes == 8 * 16e9 + 8 * 80e9
    assert islands.submeshes() == [*(Submesh(0, n) for n in (1, 2, 4, 8)), *(Submesh(1, n) for n in (1, 2, 4, 8))]
    assert [islands.group_of(device) for device in (0, 7, 8, 15)] == [0, 0, 1, 1]
    given, turned = islands.rows()
    assert given.fits(0, Submesh(0, 8))
    assert not given.fits(4, Submesh(0, 8))
    assert not given.fits(4, Submesh(1, 4))
    assert turned.fits(0, Submesh(1, 8))
    assert [turned.device(place) for place in (0, 7, 8, 15)] == [8, 15, 0, 7]


def test_between_kinds_the_link_they_have_counts_or_their_slower_own() -> None:
    row = Islands(groups=(OLD, NEW)).rows()[0]
    assert row.hop_s(8e9, 8, Submesh(0, 8), Submesh(1, 8)) == pytest.approx(8e9 / 8e9, rel=1e-3)  # two hosts of 4e9
    assert row.hop_s(8e9, 8, Submesh(0, 2), Submesh(1, 8)) == pytest.approx(2.0, rel=1e-3)
    assert row.hop_s(8e9, 4, Submesh(0, 4), Submesh(0, 4)) == OLD.hop_s(8e9, 4, 4, 4)
    link = LinkSpec(between=("new", "old"), bandwidth_bytes_per_s=1e9, latency_s=0.5)
    joined = Islands(groups=(OLD, NEW), links=(link,)).rows()[0]
    assert joined.hop_s(8e9, 8, Submesh(0, 4), Submesh(1, 8)) == pytest.approx(0.5 + 2.0)


def test_islands_are_those_of_a_cluster_and_have_names() -> None:
    cluster = resolve_gpus("8xH100,8xV100-16")
    islands = Islands.of(cluster)
    assert [group.devices for group in islands.groups] == [8, 8]
    assert [group.memory_bytes for group in islands.groups] == [group.device.memory_bytes for group in cluster.groups]
    with pytest.raises(InputError, match="groups named old, old"):
        Islands(groups=(OLD, OLD))
    with pytest.raises(InputError, match="did you mean old"):
        Islands(groups=(OLD,), links=(LinkSpec(between=("old", "olt"), bandwidth_bytes_per_s=1.0, latency_s=0.0),))
