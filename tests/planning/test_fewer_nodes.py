"""Smaller clusters inside one: what is tried with some devices left idle."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.library.clusters import resolve_gpus
from meshwright.planning.fewer_nodes import (
    LARGEST_ODD,
    dividing_part,
    fewer_devices,
    fewer_of_each,
    first_nodes,
    halved_nodes,
    is_round,
    parts,
    rounder_parts,
    roundest_devices,
)

NODES, EACH, BATCH = st.integers(2, 80), st.sampled_from((1, 4, 6, 7, 8)), st.integers(1, 600)


def divides(devices: int, batch: int) -> bool:
    """Whether some power of two times the batch is a multiple of the devices."""
    return (batch << 64) % devices == 0


def odd_factor(number: int) -> int:
    return next(odd for odd in range(number, 0, -1) if odd % 2 and number % odd == 0)


@given(st.integers(1, 5000))
def test_a_round_count_has_no_prime_above_seven(count: int) -> None:
    assert is_round(count) == (pow(2 * 3 * 5 * 7, 13) % count == 0)


@given(NODES, EACH, BATCH)
def test_the_most_nodes_are_kept_whose_odd_factor_the_batch_has(nodes: int, each: int, batch: int) -> None:
    """At most a quarter of them stay idle."""
    found = [count for count in range(1, nodes + 1) if 4 * count >= 3 * nodes and divides(count * each, batch)]
    most = max(found, default=nodes)
    assert dividing_part(nodes, each, batch) == (None if most == nodes else (most, each))


@given(st.integers(1, 16), BATCH)
def test_of_one_node_half_the_devices_may_stay_idle(devices: int, batch: int) -> None:
    found = [count for count in range(1, devices + 1) if 2 * count >= devices and divides(count, batch)]
    most = max(found, default=devices)
    assert dividing_part(1, devices, batch) == (None if most == devices else (1, most))


@given(NODES, EACH, BATCH)
def test_between_all_nodes_and_those_stand_the_ones_with_a_small_odd_factor(nodes: int, each: int, batch: int) -> None:
    tried = [count for count, of_each in rounder_parts(nodes, each, batch) if of_each == each]
    assert all(one > other for one, other in pairwise([nodes, *tried]))
    if divides(nodes * each, batch):
        assert tried == []
        return
    last = dividing_part(nodes, each, batch)
    least = last[0] if last else math.ceil(0.75 * nodes)
    small = {count for count in range(least, nodes) if odd_factor(count) <= LARGEST_ODD}
    assert set(tried) == small | ({last[0]} if last else set())


@pytest.mark.parametrize(
    ("nodes", "halved"), [(16, [12, 8, 6, 4, 3, 2, 1]), (12, [9, 6, 3, 1]), (7, [3, 1]), (2, [1]), (1, [])]
)
def test_nodes_are_halved_and_cut_to_three_quarters(nodes: int, halved: list[int]) -> None:
    assert halved_nodes(nodes) == halved


@given(st.integers(1, 6), st.integers(1, 8))
def test_domains_shrink_with_their_nodes(nodes: int, per_node: int) -> None:
    fewer = first_nodes(resolve_gpus("6x8xH100"), nodes=nodes, per_node=per_node)
    (group,) = fewer.groups
    sizes = [domain.size for domain in group.domains]
    assert (fewer.devices, group.devices_per_node, group.nodes) == (nodes * per_node, per_node, nodes)
    assert sizes == sorted({per_node, nodes * per_node})
    assert f"{nodes * per_node}xH100" == fewer.name if per_node == 8 else f"{nodes}x{per_node}xH100" == fewer.name


def test_parts_are_smaller_and_the_largest_come_first() -> None:
    shapes = [(one.groups[0].nodes, one.groups[0].devices_per_node) for one in parts(resolve_gpus("8x8xH100"))]
    sizes = [nodes * each for nodes, each in shapes]
    assert sizes == sorted(sizes, reverse=True)
    assert set(shapes) == {(nodes, 8) for nodes in range(1, 8)} | {(8, each) for each in range(1, 8)}


def test_far_below_many_nodes_only_round_numbers_are_parts() -> None:
    nodes = {one.groups[0].nodes for one in parts(resolve_gpus("400x8xH100"))} - {400}
    assert nodes == {count for count in range(300, 400) if count >= 400 - 64 or is_round(count)}


@pytest.mark.parametrize(("gpus", "each"), [("4x5xH100", [4]), ("4x8xH100", []), ("4x6xH100", [])])
def test_of_an_odd_number_of_devices_a_node_even_ones_are_tried(gpus: str, each: list[int]) -> None:
    found = fewer_of_each(resolve_gpus(gpus), 64)
    assert [one.groups[0].devices_per_node for one in found] == each
    assert all(one.groups[0].nodes == 4 for one in found)


@given(st.integers(5, 60), BATCH)
def test_of_two_groups_every_round_number_of_more_than_half_the_nodes_is_tried(nodes: int, batch: int) -> None:
    found = fewer_devices(resolve_gpus(f"{nodes}x8xH100,4x8xA100-80"), 0, 8 * nodes, batch)
    round_numbers = {count for count in range(1, nodes) if 2 * count > nodes and odd_factor(count) in (1, 3)}
    assert found == sorted(set(found))
    assert {8 * count for count in round_numbers} <= set(found)
    assert all(0 < count < 8 * nodes and count % 8 == 0 for count in found)


def test_small_clusters_may_leave_any_number_idle() -> None:
    assert fewer_devices(resolve_gpus("7xH100,8xA100-80"), 0, 7, 16) == [1, 2, 3, 4, 5, 6]
    assert fewer_devices(resolve_gpus("3x8xH100,8xA100-80"), 0, 24, 16) == [8, 16]


@given(st.integers(5, 60), BATCH)
def test_the_roundest_devices_are_divided_by_the_largest_power_of_two(nodes: int, batch: int) -> None:
    """Of two groups the most of those near all come behind them."""
    found = roundest_devices(resolve_gpus(f"{nodes}x8xH100,8x8xA100-80"), batch).get(0, ())
    assert len(set(found)) == len(found) <= 2
    if found:
        assert found[0] <= found[-1] < 8 * nodes
        assert found[-1] // odd_factor(found[-1]) <= found[0] // odd_factor(found[0])
        three = roundest_devices(resolve_gpus(f"{nodes}x8xH100,8x8xA100-80,8x8xL40S"), batch)
        assert three[0] == found[:1]


@given(st.integers(2, 12), BATCH)
def test_of_domains_of_several_nodes_the_largest_power_of_two_is_tried(racks: int, batch: int) -> None:
    """64 of 72 in every rack, and in as many racks as divide the batch."""
    whole, *rest = (one.groups[0] for one in fewer_of_each(resolve_gpus(f"{18 * racks}x4xGB200"), batch))
    assert [domain.size for domain in whole.domains] == [64, 64 * racks]
    assert (whole.nodes, whole.devices_per_node) == (16 * racks, 4)
    assert [one.nodes // 16 for one in rest] == [count for count, _ in rounder_parts(racks, 64, batch)]
    assert all(one.domains[0].size == 64 and one.domains[-1].size == one.devices for one in rest)


@pytest.mark.parametrize("gpus", ["18x4xGB200", "16x8xH100"])
def test_one_domain_and_domains_of_one_node_have_no_part_of_each(gpus: str) -> None:
    assert fewer_of_each(resolve_gpus(gpus), 64) == []


@pytest.mark.parametrize(("gpus", "tried"), [("1x7xH100", [4, 6]), ("1x5xH100", [4]), ("1x8xH100", [])])
def test_beside_many_devices_an_odd_node_leaves_one_idle_or_all_but_a_power_of_two(gpus: str, tried: list[int]) -> None:
    cluster = resolve_gpus(f"{gpus},8x8xA100-80")
    assert fewer_devices(cluster, 0, cluster.groups[0].devices, 64) == tried
