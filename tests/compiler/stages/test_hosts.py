"""Submeshes, logical meshes and the price of their links."""

from __future__ import annotations

import pytest

from meshwright.compiler.stages.hosts import Hosts
from meshwright.errors import InputError

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
