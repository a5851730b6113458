"""Collectives: published numbers, group spans against brute force, and what must hold on any cluster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.kernels import algorithms as a
from meshwright.kernels import collectives as c
from meshwright.kernels.lines import LevelRates, Lines, group_span

GB = 1e9
NVLINK = LevelRates(
    bandwidth_bytes_per_s=450 * GB,
    efficiency=0.82,
    latency_s=3.4e-6,
    base_latency_s=8.4e-6,
    in_switch=True,
    in_switch_efficiency=0.7,
    in_switch_latency_s=25e-6,
)
FABRIC = LevelRates(bandwidth_bytes_per_s=50 * GB, efficiency=0.92, latency_s=14e-6, base_latency_s=8.4e-6)
SPINE = replace(FABRIC, bandwidth_bytes_per_s=25 * GB, latency_s=18e-6)
H100_NODES = (NVLINK, FABRIC)
THREE_LEVELS = (NVLINK, FABRIC, SPINE)

COLLECTIVES = [
    c.all_gather_s,
    c.reduce_scatter_s,
    c.all_reduce_s,
    c.all_to_all_s,
    c.point_to_point_s,
    c.broadcast_s,
]
each_collective = pytest.mark.parametrize("collective", COLLECTIVES, ids=lambda f: f.__name__)


def plain(bandwidth_gb_per_s: float) -> LevelRates:
    """Links without latency or losses."""
    return LevelRates(bandwidth_bytes_per_s=bandwidth_gb_per_s * GB, efficiency=1.0, latency_s=0.0, base_latency_s=0.0)


# Textbook forms ------------------------------------------------------------------------------------------------------


def test_ring_of_eight_at_100_gb_per_s() -> None:
    link = {"latency_s": 0.0, "bandwidth_bytes_per_s": 100 * GB}
    assert a.ring_all_reduce_s(GB, 8, **link) == pytest.approx(17.5e-3)
    assert a.ring_gather_s(GB, 8, **link) == pytest.approx(8.75e-3)
    assert c.all_reduce_s(GB, inside=[8], rates=[plain(100)]) == pytest.approx(17.5e-3)
    assert c.all_gather_s(GB, inside=[8], rates=[plain(100)]) == pytest.approx(8.75e-3)


def test_sixteen_nodes_of_eight_hierarchical_or_flat() -> None:
    lines = c.all_reduce_lines(inside=[8, 128], rates=[plain(300), plain(25)])
    assert lines.only("hierarchical").seconds(GB) == pytest.approx(15.208e-3, rel=1e-4)
    assert lines.only("ring").seconds(GB) == pytest.approx(9.92e-3, rel=1e-3)  # eight rails of 25 GB/s
    assert lines.seconds(GB) == lines.only("ring").seconds(GB)


@pytest.mark.parametrize(
    ("form", "expected_s"),
    [  # n = 8, S = 1 GB, a = 1 ms, B = 100 GB/s: S/B = 10 ms
        (a.ring_gather_s, 7e-3 + 7 / 8 * 10e-3),
        (a.log_step_gather_s, 3e-3 + 7 / 8 * 10e-3),
        (a.ring_all_reduce_s, 14e-3 + 7 / 4 * 10e-3),
        (a.in_switch_all_reduce_s, 1e-3 + 9 / 8 * 10e-3),
        (a.direct_all_to_all_s, 7e-3 + 7 / 8 * 10e-3),
        (a.tree_broadcast_s, 3 * 11e-3),
    ],
)
def test_textbook_forms(form: object, expected_s: float) -> None:
    assert callable(form)
    assert form(GB, 8, latency_s=1e-3, bandwidth_bytes_per_s=100 * GB) == pytest.approx(expected_s)
    assert form(GB, 1, latency_s=1e-3, bandwidth_bytes_per_s=100 * GB) == 0


def test_a_message() -> None:
    link = {"latency_s": 1e-3, "bandwidth_bytes_per_s": 100 * GB}
    assert a.send_s(GB, **link) == pytest.approx(11e-3)


def test_two_level_all_to_all() -> None:
    rates = [replace(plain(300), latency_s=1e-6), replace(plain(25), latency_s=5e-6)]
    lines = c.all_to_all_lines(inside=[8, 64], rates=rates)
    hierarchical_s = (7e-6 + 7 / 8 / 300) + (7 * 5e-6 + 7 / 8 / 25)
    direct_s = (7e-6 + 56 * 5e-6) + 56 / 64 / 25  # the peers outside outlast those inside
    assert lines.only("hierarchical").seconds(GB) == pytest.approx(hierarchical_s)
    assert lines.only("direct").seconds(GB) == pytest.approx(direct_s)
    assert lines.algorithms[lines.fastest(1e3)] == "hierarchical"
    assert lines.algorithms[lines.fastest(GB)] == "direct"


def test_bus_bandwidth_of_a_ring_is_that_of_its_links() -> None:
    for ranks in (2, 8, 72):
        reduced_s = c.all_reduce_s(GB, inside=[ranks], rates=[plain(300)])
        gathered_s = c.all_gather_s(GB, inside=[ranks], rates=[plain(300)])
        assert GB / reduced_s * a.all_reduce_bus_factor(ranks) == pytest.approx(300 * GB)
        assert GB / gathered_s * a.gather_bus_factor(ranks) == pytest.approx(300 * GB)


# What is taken, and when ---------------------------------------------------------------------------------------------


def test_the_switch_wins_for_large_messages_of_full_nodes() -> None:
    lines = c.all_reduce_lines(inside=[np.array([2.0, 8.0])], rates=[NVLINK])
    assert [lines.algorithms[i] for i in lines.fastest(8 * GB)] == ["ring", "in_switch"]
    # H200: ring bus bandwidth 365 GB/s, in the switch 473 GB/s (stas00/ml-engineering, 8 GiB messages).
    bus_gb_per_s = 8 * a.all_reduce_bus_factor(8) / c.all_reduce_s(8 * GB, inside=[8], rates=[NVLINK])
    assert bus_gb_per_s == pytest.approx(473, rel=0.05)


@pytest.mark.parametrize("collective", [c.all_gather_s, c.reduce_scatter_s, c.all_to_all_s, c.broadcast_s])
def test_a_switch_that_reduces_speeds_nothing_up_but_all_reduce(collective) -> None:
    for size in (64e3, 8 * GB):
        with_switch, without = (
            collective(size, inside=[8.0, 64.0], rates=[nvlink, FABRIC])
            for nvlink in (
                replace(NVLINK, in_switch_efficiency=1.0, in_switch_latency_s=0.0),
                replace(NVLINK, in_switch=False),
            )
        )
        assert with_switch == without


def test_small_messages_of_many_nodes_take_the_tree() -> None:
    lines = c.all_reduce_lines(inside=[8.0, 64.0], rates=[replace(NVLINK, in_switch=False), FABRIC])
    taken = [lines.algorithms[lines.fastest(size)] for size in (1e4, 10 * GB)]
    assert taken == ["tree", "ring"]


def test_all_gather_between_single_ranks_of_many_nodes_takes_log_steps() -> None:
    lines = c.all_gather_lines(inside=[1.0, 128.0], rates=H100_NODES)
    assert lines.algorithms[lines.fastest(1e4)] == "log_steps"
    assert lines.algorithms[lines.fastest(10 * GB)] == "ring"


def test_a_tree_starts_after_its_chain_and_one_step_per_doubling_of_each_level() -> None:
    """8 ranks of a node, 16 nodes of a pod, 3 pods: 2 (7 a0 + 4 a1 + 2 a2) behind the base latency of 8.4 us."""
    tree = c.all_reduce_lines(inside=[8, 128, 384], rates=THREE_LEVELS).only("tree")
    chain, doublings, pods = 7 * 3.4e-6, 4 * 14e-6, 2 * 18e-6
    assert tree.seconds(1e-9) == pytest.approx(8.4e-6 + 2 * (chain + doublings + pods))


@pytest.mark.parametrize(
    ("lines_of", "algorithm", "form", "fraction", "parted"),
    [
        (c.all_gather_lines, "hierarchical", a.ring_gather_s, 1.0, True),
        (c.all_gather_lines, "log_steps", a.log_step_gather_s, c.LOG_STEP_FRACTION, True),
        (c.reduce_scatter_lines, "log_steps", a.log_step_gather_s, c.LOG_STEP_FRACTION, True),
        (c.all_reduce_lines, "hierarchical", a.ring_all_reduce_s, 1.0, True),
        (c.broadcast_lines, "trees", a.tree_broadcast_s, 1.0, False),
    ],
)
def test_level_by_level_each_takes_the_textbook_form_on_its_part_at_the_fraction_it_reaches(
    lines_of: Callable[..., Lines], algorithm: str, form: Callable[..., float], fraction: float, parted: bool
) -> None:
    """8 ranks of a node, 16 nodes of a pod, 3 pods: whole messages inside, an eighth and a 128th of them outside."""
    levels = zip((8, 16, 3), (1, 8, 128), THREE_LEVELS, (7, 120, 256), strict=True)
    expected_s = 8.4e-6 + sum(
        form(
            GB / (ranks_inside if parted else 1),
            members,
            latency_s=level.latency_s,
            bandwidth_bytes_per_s=fraction * level.collective_bytes_per_s(peers),
        )
        for members, ranks_inside, level, peers in levels
    )
    only = lines_of(inside=[8, 128, 384], rates=THREE_LEVELS).only(algorithm)
    assert only.seconds(GB) == pytest.approx(expected_s)


def test_a_message_goes_over_the_outermost_level_spanned() -> None:
    inside = group_span(np.array([1, 8, 64]), 2, (8, 64, 1024))
    expected_s = [level.base_latency_s + level.latency_s + 1e8 / level.reached_bytes_per_s(1) for level in THREE_LEVELS]
    assert c.point_to_point_s(1e8, inside=inside, rates=THREE_LEVELS) == pytest.approx(expected_s)


def test_a_mesh_of_direct_links_gives_a_group_its_own_links_only() -> None:
    switched, mesh = plain(140), replace(plain(140), mesh_peers=7)
    sizes = np.array([2.0, 4.0, 8.0])
    slower = c.all_reduce_s(GB, inside=[sizes], rates=[mesh]) / c.all_reduce_s(GB, inside=[sizes], rates=[switched])
    assert slower == pytest.approx([7, 7 / 3, 1])
    assert c.point_to_point_s(GB, inside=[8], rates=[mesh]) == pytest.approx(7 / 140)
    # Each peer's share over its own link, whatever the group.
    assert c.all_to_all_s(GB, inside=[4], rates=[mesh]) == pytest.approx(GB / 4 / (20 * GB))


def test_an_in_switch_level_says_how_fast_it_is() -> None:
    with pytest.raises(ValueError, match="in_switch_efficiency"):
        replace(NVLINK, in_switch_efficiency=0.0)


# Spans ---------------------------------------------------------------------------------------------------------------


def smallest_part(stride: int, size: int, domain: int, blocks: int) -> int:
    """Fewest members of any group in any domain it touches, by enumeration."""
    fewest = size
    for block in range(blocks):
        for offset in range(stride):
            ranks = block * stride * size + offset + stride * np.arange(size)
            _, counts = np.unique(ranks // domain, return_counts=True)
            fewest = min(fewest, counts.min())
    return int(fewest)


degrees = st.integers(1, 12)


@given(degrees, degrees, st.integers(1, 24))
def test_span_is_the_smallest_part_of_any_group(stride: int, size: int, domain: int) -> None:
    extent = stride * size
    span, whole = group_span(stride, size, (domain, 10**6))
    # After `domain` blocks the pattern of starts repeats.
    enumerated = smallest_part(stride, size, domain, domain)
    assert whole == size
    assert span <= enumerated
    if extent % domain == 0 or domain % extent == 0 or stride == 1:
        assert span == enumerated


@pytest.mark.parametrize(
    ("stride", "size", "domain", "members"),
    [
        (1, 8, 8, 8),  # a node
        (1, 64, 8, 8),  # eight whole nodes
        (4, 16, 8, 2),  # two of eight in each node
        (8, 16, 8, 1),  # one rail
        (1, 2, 8, 2),
        (1, 6, 8, 2),  # 6 and 7 | 8 to 11: a third of the groups straddles
        (1, 64, 72, 8),  # the second group has 8 of its ranks in the first rack
        (2, 4, 72, 4),
    ],
)
def test_span_of_usual_groups(stride: int, size: int, domain: int, members: int) -> None:
    assert group_span(stride, size, (domain, 10**6))[0] == members


# What must hold ------------------------------------------------------------------------------------------------------

groups = st.tuples(st.sampled_from([1, 2, 3, 8, 24, 64]), st.integers(1, 96))
payloads = st.floats(1, 1e11)


def span_of(group: tuple[int, int]) -> tuple[np.ndarray, ...]:
    return group_span(*group, (8, 72, 10**6))


@each_collective
def test_one_rank_or_no_bytes_cost_nothing(collective) -> None:
    assert collective(GB, inside=(1, 1, 1), rates=THREE_LEVELS) == 0
    assert collective(0, inside=(8, 8, 64), rates=THREE_LEVELS) == 0


@each_collective
@given(group=groups, payload_bytes=payloads, factor=st.floats(1, 100), level=st.integers(0, 2))
def test_more_bytes_never_faster_better_links_never_slower(collective, group, payload_bytes, factor, level) -> None:
    inside = span_of(group)
    time_s = collective(payload_bytes, inside=inside, rates=THREE_LEVELS)
    assert np.isfinite(time_s)
    assert (time_s > 0) == (group[1] > 1)
    assert collective(payload_bytes * factor, inside=inside, rates=THREE_LEVELS) >= time_s
    bandwidth = THREE_LEVELS[level].bandwidth_bytes_per_s * factor
    wider = [replace(r, bandwidth_bytes_per_s=bandwidth) if i == level else r for i, r in enumerate(THREE_LEVELS)]
    quicker = [replace(r, latency_s=r.latency_s / factor) if i == level else r for i, r in enumerate(THREE_LEVELS)]
    assert collective(payload_bytes, inside=inside, rates=wider) <= time_s * (1 + 1e-12)
    assert collective(payload_bytes, inside=inside, rates=quicker) <= time_s * (1 + 1e-12)


@each_collective
@given(rows=st.lists(st.tuples(groups, payloads), min_size=1, max_size=8))
def test_many_rows_are_single_rows(collective, rows) -> None:
    strides, sizes = np.array([group for group, _ in rows]).T
    payload_bytes = np.array([payload for _, payload in rows])
    inside = group_span(strides, sizes, (8, 72, 10**6))
    together_s = collective(payload_bytes, inside=inside, rates=THREE_LEVELS)
    apart_s = [collective(payload, inside=span_of(group), rates=THREE_LEVELS) for group, payload in rows]
    assert together_s.tolist() == apart_s


def test_lines_once_per_group_price_any_rows() -> None:
    inside = group_span(np.array([1, 8]), np.array([8, 16]), (8, 1024))
    lines = c.all_reduce_lines(inside=inside, rates=H100_NODES)
    rows, payload_bytes = np.array([1, 0, 1]), np.array([1e6, 1e7, 1e8])
    per_row = [members[rows] for members in inside]
    expected_s = c.all_reduce_s(payload_bytes, inside=per_row, rates=H100_NODES)
    assert lines.take(rows).seconds(payload_bytes).tolist() == expected_s.tolist()
    # Groups along one axis, messages along another.
    table_s = c.all_reduce_lines(inside=[m[:, None] for m in inside], rates=H100_NODES).seconds(payload_bytes)
    assert table_s.shape == (2, 3)
    assert table_s[1, 0] == expected_s[0]


def test_a_group_inside_one_domain_does_not_see_the_fabric() -> None:
    inner = c.all_reduce_s(GB, inside=[4], rates=[NVLINK])
    assert c.all_reduce_s(GB, inside=[4, 4], rates=H100_NODES) == pytest.approx(inner)
    assert c.all_to_all_s(GB, inside=[4, 4], rates=H100_NODES) == c.all_to_all_s(GB, inside=[4], rates=[NVLINK])


def test_short_messages_take_the_protocols_that_start_sooner() -> None:
    level = LevelRates(
        bandwidth_bytes_per_s=450e9, efficiency=0.8, latency_s=0.5e-6, base_latency_s=18e-6, quick=(5e-6, 0.8e-6, 0.4)
    )
    short_s = c.all_gather_s(1024, inside=(8.0,), rates=(level,))
    assert short_s == pytest.approx(5e-6 + 7 * 0.8e-6 + 7 / 8 * 1024 / (0.4 * 360e9))
    long_s = c.all_gather_s(2**30, inside=(8.0,), rates=(level,))
    assert long_s == pytest.approx(18e-6 + 7 * 0.5e-6 + 7 / 8 * 2**30 / 360e9)
    # Between nodes nobody timed them.
    outside = replace(level, quick=None, base_latency_s=7e-6)
    assert c.all_gather_s(1024, inside=(8.0, 16.0), rates=(level, outside)) > 18e-6
    assert c.all_gather_s(1024, inside=(1.0,), rates=(level,)) == 0


def test_few_ranks_fill_fewer_channels() -> None:
    level = LevelRates(
        bandwidth_bytes_per_s=450e9, efficiency=0.8, latency_s=0.0, base_latency_s=0.0, few_ranks=(0.48, 8)
    )
    assert level.collective_bytes_per_s(7) == pytest.approx(360e9)
    assert level.collective_bytes_per_s(71) == pytest.approx(360e9)
    assert level.collective_bytes_per_s(1) == pytest.approx(360e9 * (1 - 0.24) / (1 - 0.06))
    assert level.reached_bytes_per_s(1) == 360e9


def test_fewer_tokens_that_leave_a_domain_take_less_time() -> None:
    """4 nodes of 8: three quarters leave without a rule; with FasterMoE's 14% do."""
    inside, rates = (8.0, 32.0), (plain(300.0), plain(25.0))
    seconds = [float(c.local_all_to_all_s(1e9, share, inside=inside, rates=rates)) for share in (1.0, 0.75, 0.14, 0.0)]
    assert seconds[0] == seconds[1] == pytest.approx(0.75 / 25.0)
    assert seconds[2] == pytest.approx(0.14 / 25.0)
    assert seconds[3] == pytest.approx(7 / 8 / 300.0)


def test_a_local_exchange_of_nothing_or_of_one_rank_takes_no_time() -> None:
    for payload_bytes, inside in ((0.0, (8.0, 32.0)), (1e9, (1.0, 1.0))):
        assert c.local_all_to_all_s(payload_bytes, 0.5, inside=inside, rates=H100_NODES) == 0.0


def test_a_local_all_to_all_starts_one_message_a_peer_however_little_leaves() -> None:
    """4 ranks in each of 2 domains of 2 nodes: 3 peers on NVLink, 4 on the fabric, 8 behind the spine."""
    inside = (4, 8, 16)
    quick = [replace(rates, bandwidth_bytes_per_s=1e30) for rates in THREE_LEVELS]
    started_s = 3 * NVLINK.latency_s + 4 * FABRIC.latency_s + 8 * SPINE.latency_s
    for leaving in (0.0, 0.3, 1.0):
        alone_s = float(c.local_all_to_all_s(1.0, leaving, inside=inside, rates=quick))
        idle = [replace(rates, latency_s=0.0) for rates in quick]
        without_s = float(c.local_all_to_all_s(1.0, leaving, inside=inside, rates=idle))
        assert alone_s - without_s == pytest.approx(started_s, rel=1e-6)
