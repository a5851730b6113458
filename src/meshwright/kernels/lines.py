"""Links between ranks: rates by level, members of groups, and lines of the algorithms of one collective."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce, wraps

import numpy as np

from meshwright.kernels.algorithms import Seconds
from meshwright.shapes import Column, Float, Int

Line = tuple[Seconds, Seconds]
"""One algorithm on one group: latency in s, and s per byte of the full tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelRates:
    """The links of one domain level, e.g. all links inside an NVLink domain, or the fabric between nodes."""

    bandwidth_bytes_per_s: Column
    """Nominal, per device and direction; a column where every group has links of its own."""
    efficiency: float
    """Achieved fraction of the nominal bandwidth for large messages, 0-1."""
    latency_s: Column
    """One step: one message to a neighbour over this level."""
    base_latency_s: float
    """One collective, once, however many steps: kernel start and synchronisation."""
    mesh_peers: int = 0
    """Peers whom direct links split the bandwidth over (7 in a full mesh); 0 where a switch gives each all of it."""
    in_switch: bool = False
    """The switch reduces and multicasts (NVLink SHARP, InfiniBand SHARP)."""
    in_switch_efficiency: float = 0.0
    """Achieved fraction of the nominal bandwidth of an in-switch reduction, 0-1."""
    in_switch_latency_s: float = 0.0
    """One in-switch reduction, on top of the base latency."""
    quick: tuple[float, float, float] | None = None
    """Protocols of short messages (LL, LL128) inside one domain: base latency, latency of a step, and their share of
    the bandwidth; None where every size takes the same line."""
    few_ranks: tuple[float, int] | None = None
    """c and N of n ranks reaching (1 - c / n) / (1 - c / N) of the bandwidth of N or more; None for as much."""

    def __post_init__(self) -> None:
        """Refuse an in-switch level that does not say how fast it is."""
        if self.in_switch and not self.in_switch_efficiency > 0:
            raise ValueError(f"in_switch_efficiency = {self.in_switch_efficiency}: above 0 where in_switch")

    def reached_bytes_per_s(self, peers: Column) -> Seconds:
        """Bytes/s of large messages, per device and direction, towards this many peers of a group.

        In a mesh of direct links a group of m has only the links between its members: (m - 1) / mesh_peers of them.
        """
        achieved = self.bandwidth_bytes_per_s * self.efficiency
        return achieved * np.clip(peers, 1, self.mesh_peers) / self.mesh_peers if self.mesh_peers else achieved

    def collective_bytes_per_s(self, peers: Column) -> Seconds:
        """The same in a collective, of which few ranks fill fewer of the link's channels."""
        reached = self.reached_bytes_per_s(peers)
        if self.few_ranks is None:
            return reached
        lost, many = self.few_ranks
        return reached * ((1 - lost / np.clip(np.asarray(peers) + 1.0, 2, many)) / (1 - lost / many))


def group_span(stride: Column, size: Column, domain_sizes: Sequence[int]) -> tuple[Seconds, ...]:
    """Members of a group inside one domain of each level: max(1, floor(gcd(stride * size, D) / stride)).

    Ranks are numbered through consecutive domains of D ranks. Groups are the ranks o + i * stride, i < size, of
    consecutive blocks of stride * size ranks. A block that starts and ends on multiples of gcd(stride * size, D) can
    leave as little as one such piece in a domain. So the result is exact where blocks fill domains or domains
    fill blocks, and otherwise the smallest part of any group in any domain it touches: a bound on the safe side.

    Args:
        stride: distance between neighbouring ranks of the group, whole numbers, per group.
        size: ranks in the group, whole numbers, per group.
        domain_sizes: ranks in one domain of each level, innermost first; the last level is the whole cluster.

    Returns:
        Members inside one domain, per level and group; of the last level all `size`.
    """
    stride, size = np.broadcast_arrays(stride, size)
    inner = (np.maximum(np.gcd(stride * size, domain) // stride, 1) for domain in domain_sizes[:-1])
    return tuple(members.astype(float) for members in (*inner, size))


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """The algorithms of one collective on some groups; the fastest is taken, message by message."""

    algorithms: tuple[str, ...]
    latency_s: Float[np.ndarray, "algorithms *groups"]
    """Base latency included."""
    s_per_byte: Float[np.ndarray, "algorithms *groups"]
    """Seconds per byte of S."""

    def take(self, rows: Int[np.ndarray, "*rows"]) -> Lines:
        """The lines of the group that each row names, when groups are numbered along one axis."""
        return replace(self, latency_s=self.latency_s[:, rows], s_per_byte=self.s_per_byte[:, rows])

    def only(self, algorithm: str) -> Lines:
        """One of the algorithms alone."""
        i = self.algorithms.index(algorithm)
        return Lines(
            algorithms=(algorithm,), latency_s=self.latency_s[i : i + 1], s_per_byte=self.s_per_byte[i : i + 1]
        )

    def seconds(self, payload_bytes: Column) -> Seconds:
        """min over algorithms of latency_s + s_per_byte * S, and 0 for no bytes; S broadcasts against the groups."""
        fastest_s: Seconds = reduce(np.minimum, self._each_s(payload_bytes))
        return np.greater(payload_bytes, 0) * fastest_s

    def fastest(self, payload_bytes: Column) -> np.integer | Int[np.ndarray, "..."]:
        """Index in `algorithms` of the one that is taken."""
        index: Int[np.ndarray, "..."] = np.argmin(np.stack(np.broadcast_arrays(*self._each_s(payload_bytes))), axis=0)
        return index

    def _each_s(self, payload_bytes: Column) -> Iterator[Seconds]:
        for latency_s, s_per_byte in zip(self.latency_s, self.s_per_byte, strict=True):
            yield latency_s + s_per_byte * payload_bytes


Draw = Callable[..., Lines]
FEW_GROUPS = 64
"""Groups whose lines are kept: estimates ask for the same ones again and again, searches for many once."""
MOST_KEPT = 2048
_KEPT: dict[object, Lines] = {}


def kept(draw: Draw) -> Draw:
    """A drawing of lines that keeps what it drew for few groups, by their content."""

    @wraps(draw)
    def lines(*, inside: Sequence[Column], rates: Sequence[LevelRates]) -> Lines:
        if max(map(np.size, inside)) > FEW_GROUPS:
            return draw(inside=inside, rates=rates)
        key = draw, tuple(map(_content, inside)), tuple(rates)
        try:
            found = _KEPT.get(key)
        except TypeError:  # links of each group's own: columns, which have no hash
            return draw(inside=inside, rates=rates)
        if found is None:
            if len(_KEPT) >= MOST_KEPT:
                _KEPT.clear()
            found = _KEPT[key] = draw(inside=inside, rates=rates)
            found.latency_s.setflags(write=False)
            found.s_per_byte.setflags(write=False)
        return found

    return lines


def _content(members: Column) -> object:
    return (members.dtype, members.shape, members.tobytes()) if isinstance(members, np.ndarray) else members
