"""Collective communication: seconds of one collective on a group of ranks that may span several link levels.

A group is its members inside each nested domain. On a given group every algorithm (`kernels/algorithms.py`) is a line,
latency + s_per_byte * S, and the lowest line counts: `all_reduce_lines(...)` draws them once per group, `.seconds(...)`
prices any number of messages. S, n, a and B are those of the algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

import numpy as np

from meshwright.kernels.algorithms import (
    Seconds,
    all_reduce_bus_factor,
    direct_all_to_all_s,
    gather_bus_factor,
    in_switch_all_reduce_s,
    log_step_gather_s,
    ring_all_reduce_s,
    ring_gather_s,
    tree_broadcast_s,
)
from meshwright.kernels.lines import (
    LevelRates,
    Line,
    Lines,
    kept,
)
from meshwright.shapes import Column

# Fractions of the ring's bandwidth that the logarithmic algorithms reach. Source: NCCL src/graph/tuning.cc, where the
# tree's bus bandwidth is scaled by 0.92 and that of PAT (log-step all-gather and reduce-scatter) by 0.75.
TREE_FRACTION = 0.92
LOG_STEP_FRACTION = 0.75


# ---------------------------------------------------------------------------------------------------------------------
# The lines of the algorithms of collectives on groups. All `..._lines` functions take
#     inside: members of the group inside one domain, per level (innermost first) and group; the last level holds all n;
#     rates: the links, per level.
# In their formulas a level has h members inside its domain, g inside the domain below, m = h/g, and its own a and B.
# A level that adds no members (m = 1) costs nothing; one rank costs exactly 0.


@kept
def all_gather_lines(*, inside: Sequence[Column], rates: Sequence[LevelRates]) -> Lines:
    """Every rank has S/n and ends with S: flat ring, rings level by level, or log steps level by level.

    Flat: sum of (n/g - n/h) a + (n-1)/n S / min(g B), over all rails. Level by level: sum of (m-1) a + (m-1)/m S/g / B;
    every rank carries its own g-th part over the outer level, on its own rail, then shares inside.

    Source: NCCL src/graph/tuning.cc (ring; PAT for log steps); Chan et al. 2007 (level by level).
    """
    widths = _widths(inside, rates)
    steps_s, slowest_s_per_byte, base_s = _flat_ring(inside, rates, widths)
    ring = steps_s, gather_bus_factor(inside[-1]) * slowest_s_per_byte
    levels = _by_level(ring_gather_s, inside, rates, widths)
    log_steps = _by_level(log_step_gather_s, inside, rates, widths, fraction=LOG_STEP_FRACTION)
    algorithms = {"ring": ring, "hierarchical": levels, "log_steps": log_steps}
    return _lines(base_s, algorithms | _quick(ring_gather_s, base_s, inside, rates))


def reduce_scatter_lines(*, inside: Sequence[Column], rates: Sequence[LevelRates]) -> Lines:
    """Every rank has S and ends with its reduced S/n: the all-gather in reverse; the additions are hidden."""
    return all_gather_lines(inside=inside, rates=rates)


@kept
def all_reduce_lines(*, inside: Sequence[Column], rates: Sequence[LevelRates]) -> Lines:
    """Every rank has S and ends with the sum: flat ring, tree, rings level by level, or switches and rings.

    Rings: twice the all-gather. Tree: a chain inside the innermost domain and double trees between domains,
    2 ((h0-1) a0 + sum of ceil(log2 m) a) + 2 S / (0.92 min(g B)). Switches: level by level, (m+1)/m S/g at those levels
    that reduce in the switch.

    Source: NCCL src/graph/tuning.cc (ring, tree, NVLS, NVLS tree); Jia et al., "Highly Scalable Deep Learning Training
    System with Mixed-Precision", 2018 (hierarchical all-reduce).
    """
    widths = _widths(inside, rates)
    steps_s, slowest_s_per_byte, base_s = _flat_ring(inside, rates, widths)
    ring = 2 * steps_s, all_reduce_bus_factor(inside[-1]) * slowest_s_per_byte
    algorithms: dict[str, Line] = {"ring": ring}
    if len(inside) > 1:
        # Within one level the tree is a chain, as slow to start as the ring and with less bandwidth.
        depth_s = (inside[0] - 1) * rates[0].latency_s
        for below, here, level in zip(inside, inside[1:], rates[1:], strict=False):
            depth_s = depth_s + np.ceil(np.log2(here / below)) * level.latency_s
        algorithms["tree"] = 2 * depth_s, 2 / TREE_FRACTION * slowest_s_per_byte
        algorithms["hierarchical"] = _by_level(ring_all_reduce_s, inside, rates, widths)
    if any(level.in_switch for level in rates):
        algorithms["in_switch"] = _by_level(ring_all_reduce_s, inside, rates, widths, switches=True)
    return _lines(base_s, algorithms | _quick(ring_all_reduce_s, base_s, inside, rates))


@kept
def all_to_all_lines(*, inside: Sequence[Column], rates: Sequence[LevelRates]) -> Lines:
    """Every rank sends S/n to every rank: direct, or level by level.

    Direct: a message per peer; the traffic to the h - g peers of each level runs on that level's own links at the same
    time: sum of (h-g) a + max of (h-g)/n S / B. Level by level: what leaves a domain is gathered inside it first, so
    n - 1 messages become fewer, longer ones, and most bytes pass every level: sum of (m-1) a + (m-1)/m S / B.
    """
    widths = _widths(inside, rates)
    latency_s: Seconds = 0.0
    slowest_s_per_byte: Seconds = 0.0
    for below, here, level, bytes_per_s in zip((1, *inside), inside, rates, widths, strict=False):
        latency_s = latency_s + (here - below) * level.latency_s
        share = (here - below) / inside[-1]
        slowest_s_per_byte = np.maximum(slowest_s_per_byte, share / bytes_per_s)
    levels = _by_level(direct_all_to_all_s, inside, rates, widths, parted=False)
    *_, base_s = _flat_ring(inside, rates, widths)
    algorithms = {"direct": (latency_s, slowest_s_per_byte), "hierarchical": levels}
    return _lines(base_s, algorithms | _quick(direct_all_to_all_s, base_s, inside, rates))


@kept
def point_to_point_lines(*, inside: Sequence[Column], rates: Sequence[LevelRates]) -> Lines:
    """One rank sends S to its neighbour in the group, over the outermost level the group spans: a + S/B."""
    latency_s: Seconds = 0.0
    s_per_byte: Seconds = 0.0
    for below, here, level in zip((1, *inside), inside, rates, strict=False):
        crossed = np.greater(here, below)
        latency_s = np.where(crossed, level.base_latency_s + level.latency_s, latency_s)
        s_per_byte = np.where(crossed, 1 / level.reached_bytes_per_s(1), s_per_byte)
    return _lines(0.0, {"message": (latency_s, s_per_byte)})


@kept
def broadcast_lines(*, inside: Sequence[Column], rates: Sequence[LevelRates]) -> Lines:
    """One rank's S to all: binomial trees level by level, or a chain over all rails in many small pieces.

    Trees: sum of ceil(log2 m) (a + S/B). Chain: sum of (n/g - n/h) a + S / min(g B).
    """
    widths = _widths(inside, rates)
    steps_s, slowest_s_per_byte, base_s = _flat_ring(inside, rates, widths)
    trees = _by_level(tree_broadcast_s, inside, rates, widths, parted=False)
    return _lines(base_s, {"chain": (steps_s, slowest_s_per_byte), "trees": trees})


class GroupLines:
    """Lines of the collectives of some groups, each drawn once, whatever is sent.

    Args:
        inside: the members inside one domain, as above.
        rates: the rates as above.
    """

    def __init__(self, *, inside: Sequence[Column], rates: Sequence[LevelRates]) -> None:
        self.inside, self.rates = inside, rates

    @cached_property
    def gather(self) -> Lines:
        """Lines of all-gathers and reduce-scatters."""
        return all_gather_lines(inside=self.inside, rates=self.rates)

    @cached_property
    def sum(self) -> Lines:
        """Lines of all-reduces."""
        return all_reduce_lines(inside=self.inside, rates=self.rates)

    @cached_property
    def exchange(self) -> Lines:
        """Lines of all-to-alls."""
        return all_to_all_lines(inside=self.inside, rates=self.rates)


# ---------------------------------------------------------------------------------------------------------------------
# Lines and messages in one call, where every row has a group of its own. Args as above, with S in `payload_bytes`.


def all_gather_s(payload_bytes: Column, *, inside: Sequence[Column], rates: Sequence[LevelRates]) -> Seconds:
    """Seconds per row of the fastest all-gather of S; see `all_gather_lines`."""
    return all_gather_lines(inside=inside, rates=rates).seconds(payload_bytes)


def reduce_scatter_s(payload_bytes: Column, *, inside: Sequence[Column], rates: Sequence[LevelRates]) -> Seconds:
    """Seconds per row of the fastest reduce-scatter of S; see `reduce_scatter_lines`."""
    return reduce_scatter_lines(inside=inside, rates=rates).seconds(payload_bytes)


def all_reduce_s(payload_bytes: Column, *, inside: Sequence[Column], rates: Sequence[LevelRates]) -> Seconds:
    """Seconds per row of the fastest all-reduce of S; see `all_reduce_lines`."""
    return all_reduce_lines(inside=inside, rates=rates).seconds(payload_bytes)


def all_to_all_s(payload_bytes: Column, *, inside: Sequence[Column], rates: Sequence[LevelRates]) -> Seconds:
    """Seconds per row of the fastest all-to-all of S; see `all_to_all_lines`."""
    return all_to_all_lines(inside=inside, rates=rates).seconds(payload_bytes)


def local_all_to_all_s(
    payload_bytes: Column, leaving: Column, *, inside: Sequence[Column], rates: Sequence[LevelRates]
) -> Seconds:
    """Seconds per row of a direct all-to-all of which at most a share leaves the innermost domain.

    Of n ranks h are in it. What would leave, 1 - h/n, is cut to phi; the rest is spread over the domain. Levels work
    side by side: sum of (h-g) a + max of share S / B.

    Args:
        payload_bytes: S, per row.
        leaving: phi, 0-1, per row.
        inside: the members inside one domain, as above.
        rates: the rates as above.

    Source: He et al. 2022, FasterMoE (PPoPP), section 4.3 (topology-aware gate).
    """
    ranks = np.asarray(inside[-1], dtype=float)
    usual = 1.0 - inside[0] / ranks
    out = np.minimum(usual, leaving)
    widths = _widths(inside, rates)
    latency_s: Seconds = 0.0
    slowest: Seconds = 0.0
    for depth, (below, here, level) in enumerate(zip((1, *inside), inside, rates, strict=False)):
        of_level = (
            (1.0 - out) * (here - 1) / here if depth == 0 else out * (here - below) / np.maximum(ranks * usual, 1)
        )
        latency_s = latency_s + (here - below) * level.latency_s
        slowest = np.maximum(slowest, of_level / widths[depth])
    *_, base_s = _flat_ring(inside, rates, widths)
    moves = np.greater(payload_bytes, 0) * np.greater(ranks, 1)
    seconds: Seconds = moves * (base_s + latency_s + slowest * payload_bytes)
    return seconds


def point_to_point_s(payload_bytes: Column, *, inside: Sequence[Column], rates: Sequence[LevelRates]) -> Seconds:
    """Seconds per row of a message of S; see `point_to_point_lines`."""
    return point_to_point_lines(inside=inside, rates=rates).seconds(payload_bytes)


def broadcast_s(payload_bytes: Column, *, inside: Sequence[Column], rates: Sequence[LevelRates]) -> Seconds:
    """Seconds per row of the fastest broadcast of S; see `broadcast_lines`."""
    return broadcast_lines(inside=inside, rates=rates).seconds(payload_bytes)


def _widths(inside: Sequence[Column], rates: Sequence[LevelRates]) -> list[Seconds]:
    """Bytes/s of a collective at each level of its groups."""
    return [
        level.collective_bytes_per_s(here - below)
        for below, here, level in zip((1, *inside), inside, rates, strict=False)
    ]


def _flat_ring(
    inside: Sequence[Column], rates: Sequence[LevelRates], widths: Sequence[Seconds]
) -> tuple[Seconds, Seconds, Seconds]:
    """Once around the ring: latency of its n - 1 steps, s per byte of its slowest level, base latency.

    n/g - n/h of the steps cross a level. Rings use all rails: with g members in the domains below, g links leave each
    side by side, so the bandwidth per rank is the smallest g B. The base latency is that of the slowest level crossed.
    """
    steps_s: Seconds = 0.0
    s_per_byte: Seconds = 0.0
    base_s: Seconds = 0.0
    for below, here, level, bytes_per_s in zip((1, *inside), inside, rates, widths, strict=False):
        crossed = np.greater(here, below)
        steps_s = steps_s + (inside[-1] / below - inside[-1] / here) * level.latency_s
        s_per_byte = np.maximum(s_per_byte, crossed / (below * bytes_per_s))
        base_s = np.maximum(base_s, crossed * level.base_latency_s)
    return steps_s, s_per_byte, base_s


def _by_level(
    form: Callable[..., Seconds],
    inside: Sequence[Column],
    rates: Sequence[LevelRates],
    widths: Sequence[Seconds],
    *,
    fraction: float = 1.0,
    parted: bool = True,
    switches: bool = False,
) -> Line:
    """The textbook form, level after level, on each rank's g-th part of S or (not parted) on all of S."""
    latency_s: Seconds = 0.0
    s_per_byte: Seconds = 0.0
    for below, here, level, bytes_per_s in zip((1, *inside), inside, rates, widths, strict=False):
        members, part = here / below, 1 / below if parted else 1
        level_form, step_s = form, level.latency_s
        bandwidth = bytes_per_s * fraction
        if switches and level.in_switch:
            level_form, step_s = in_switch_all_reduce_s, level.in_switch_latency_s
            bandwidth = level.bandwidth_bytes_per_s * level.in_switch_efficiency
        latency_s = latency_s + level_form(0, members, latency_s=step_s, bandwidth_bytes_per_s=bandwidth)
        s_per_byte = s_per_byte + level_form(part, members, latency_s=0, bandwidth_bytes_per_s=bandwidth)
    return latency_s, s_per_byte


def _quick(
    form: Callable[..., Seconds], base_s: Seconds, inside: Sequence[Column], rates: Sequence[LevelRates]
) -> dict[str, Line]:
    """The textbook form under protocols of short messages, for groups inside one innermost domain that has them.

    They start without waiting for the other side and pay with bandwidth: a flag for every word or line of data.

    Source: NCCL src/graph/tuning.cc (protocols LL, LL128 and Simple).
    """
    if rates[0].quick is None:
        return {}
    quick_base_s, step_s, share = rates[0].quick
    ranks = np.asarray(inside[-1], dtype=float)
    bandwidth = rates[0].collective_bytes_per_s(ranks - 1) * share
    several = np.minimum(ranks - 1, 1)
    latency_s = several * (quick_base_s - base_s) + form(0, ranks, latency_s=step_s, bandwidth_bytes_per_s=bandwidth)
    within = np.equal(inside[0], inside[-1])
    slope = form(1, ranks, latency_s=0, bandwidth_bytes_per_s=bandwidth)
    return {"quick": (np.where(within, latency_s, np.inf), np.where(within, slope, 0.0))}


def _lines(base_s: Seconds, algorithms: Mapping[str, Line]) -> Lines:
    """Stack the algorithms, each behind the base latency."""
    latencies = np.broadcast_arrays(*(base_s + latency_s for latency_s, _ in algorithms.values()))
    slopes = np.broadcast_arrays(*(s_per_byte for _, s_per_byte in algorithms.values()))
    return Lines(algorithms=tuple(algorithms), latency_s=np.stack(latencies), s_per_byte=np.stack(slopes))
