"""PipeDream: stages and their replicas by a dynamic program inside a node, then one between nodes.

    T_k(i .. j, m) = max(A_{k-1}(i .. j), gradient sum of i .. j over m)          one replicated stage
    A_k(i .. j, m) = min over s, m' of  max(A_k(i .. s, m - m'), 2 a_s / B_k, T_k(s + 1 .. j, m'))

The slowest stage alone counts, as in a pipeline that never drains; here it drains once a step under 1F1B, so that
gradients are summed once a step and each micro-batch has its share. Bounds on the micro-batches in flight, and so on
the stages, are tried one after the other, because the memory of a stage depends on how many stand behind it. Layers are
data parallel with whole states.

Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019, section 3.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from benchmarks.planners.profile import NONE, Profile, Proposal
from benchmarks.planners.spans import Spans
from meshwright.search.space import Space
from meshwright.shapes import Float, Int

Ends = tuple[tuple[int, int], ...]
"""Layers and devices up to the end of each stage."""
GAIN = 0.01
"""Share of the slowest stage that one more stage must gain: each keeps more micro-batches in flight."""


@dataclass(slots=True)
class PipeDream:
    """Data-parallel stages for the least time of the slowest one."""

    name: str = "PipeDream"
    source: str = "SOSP 2019"
    searches: str = "a dynamic program inside a node, and one over nodes on top"
    leaves_out: str = "weight versions and steps without a flush, which change the result; recompute"
    space: Space = field(
        default_factory=lambda: Space(
            pins=(
                ("recompute", ("none",)),
                ("sharding", ("z0",)),
                ("tp", (1,)),
                ("cp", (1,)),
                ("ep", (1,)),
            )
        )
    )

    def proposals(self, profile: Profile) -> Iterator[Proposal]:
        """The best of every micro-batch."""
        spans = {
            global_micro_batch: found
            for global_micro_batch in profile.global_micro_batches
            if (found := Spans.of(profile, global_micro_batch, NONE)) is not None
        }
        node = min(profile.node, profile.devices)
        for in_flight in profile.sizes:
            inside = {
                global_micro_batch: _Level.of(_replicated(own, range(node + 1), in_flight), own)
                for global_micro_batch, own in spans.items()
            }
            found = [(own, _ends(own, spans, inside, node, in_flight)) for own in spans.values()]
            yield from (_proposal(own, ends) for own, ends in found if ends is not None)


def _proposal(own: Spans, ends: Ends) -> Proposal:
    starts = [(0, 0), *ends]
    each = [own.costs(start[0], end[0], end[1] - start[1]) for start, end in zip(starts, ends, strict=False)]
    times = [float(forward + backward) for forward, backward, _ in each]
    again = own.profile.micro_batches(own.global_micro_batch) - 1
    return own.proposal(ends, sum(times) + again * max(times) + max(float(sums) for _, _, sums in each))


def _ends(own: Spans, spans: dict[int, Spans], inside: dict[int, _Level], node: int, in_flight: int) -> Ends | None:
    """Where the stages end: (layers, devices); None where no pipeline fits."""
    profile, global_micro_batch = own.profile, own.global_micro_batch
    nodes = profile.devices // node
    if nodes == 1:
        found = inside[global_micro_batch].stages(0, profile.layers, node)
        sizes = [(end, size) for end, size in found]
    else:
        between = _Level.of(_of_nodes(own, spans, inside, node, nodes), own, node)
        sizes, first = [], 0
        for end, replicas in between.stages(0, profile.layers, nodes):
            within = inside[global_micro_batch // replicas].stages(first, end, node)
            sizes += [(cut, size * replicas) for cut, size in within]
            first = end
    if not sizes:
        return None
    devices = np.cumsum([size for _, size in sizes]).tolist()
    ends = tuple((end, used) for (end, _), used in zip(sizes, devices, strict=True))
    # A pipeline of fewer stages keeps fewer in flight, and was found with less room than it has.
    return ends if len(ends) <= in_flight or in_flight >= profile.micro_batches(global_micro_batch) else None


def _replicated(own: Spans, sizes: range, in_flight: int) -> Float[np.ndarray, "sizes firsts ends"]:
    """Seconds of a micro-batch of every span as one stage, by its replicas; infinite where it does not fit."""
    layers = own.profile.layers
    first, end = np.meshgrid(np.arange(layers + 1), np.arange(layers + 1), indexing="ij")
    found = np.full((len(sizes), layers + 1, layers + 1), np.inf)
    for size in set(sizes) & set(own.sizes):
        forward, backward, sums = own.costs(first, end, size)
        seconds = np.maximum(forward + backward, sums / own.profile.micro_batches(own.global_micro_batch))
        found[size] = np.where((first < end) & own.room(first, end, size, in_flight), seconds, np.inf)
    return found


def _of_nodes(
    own: Spans, spans: dict[int, Spans], inside: dict[int, _Level], node: int, nodes: int
) -> Float[np.ndarray, "nodes_plus_1 firsts ends"]:
    """The same of every span as a pipeline inside a node, repeated on several nodes that share the micro-batch."""
    layers = own.profile.layers
    first, end = np.meshgrid(np.arange(layers + 1), np.arange(layers + 1), indexing="ij")
    found = np.full((nodes + 1, layers + 1, layers + 1), np.inf)
    for count in range(1, nodes + 1):
        share = own.global_micro_batch // count
        # A sum of gradients takes as long whatever the micro-batch: that of one which so many devices divide.
        summed = next((one for one in spans.values() if node * count in one.sizes), None)
        if own.global_micro_batch % count or share not in inside or summed is None:
            continue
        sums = summed.costs(first, end, node * count)[2] / own.profile.micro_batches(own.global_micro_batch)
        found[count] = np.maximum(inside[share].best[node], sums)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class _Level:
    """The least time of the slowest stage of every span on every number of units, and how it is reached."""

    best: Float[np.ndarray, "units firsts ends"]
    cut: Int[np.ndarray, "units firsts ends"]
    """First layer of the last stage."""
    last: Int[np.ndarray, "units firsts ends"]
    """Units of the last stage."""

    @classmethod
    def of(cls, single: Float[np.ndarray, "units firsts ends"], own: Spans, devices: int = 1) -> _Level:
        """Solve a level.

        Args:
            single: seconds of every span as one stage, by its units.
            own: spans of the micro-batch.
            devices: of a unit.
        """
        units, size = single.shape[0] - 1, single.shape[1]
        best, cut = single.copy(), np.tile(np.arange(size)[:, None], (units + 1, 1, size))
        last = np.tile(np.arange(units + 1)[:, None, None], (1, size, size))
        for total in range(2, units + 1):
            for behind in range(1, total):
                if not np.isfinite(single[behind]).any():
                    continue
                hop_s = own.profile.hop_s(devices * min(behind, total - behind), own.global_micro_batch)
                front = np.maximum(best[total - behind], hop_s)
                both = np.maximum(front[:, :, None], single[behind][None])
                at = both.argmin(axis=1)
                least = np.take_along_axis(both, at[:, None], axis=1)[:, 0]
                better = least < best[total] * (1.0 - GAIN)
                best[total] = np.where(better, least, best[total])
                cut[total] = np.where(better, at, cut[total])
                last[total] = np.where(better, behind, last[total])
        return cls(best, cut, last)

    def stages(self, first: int, end: int, units: int) -> list[tuple[int, int]]:
        """(end, units) of each stage of a span; none where it does not fit.

        Args:
            first: layer.
            end: behind the last.
            units: that the span takes.
        """
        if not np.isfinite(self.best[units, first, end]):
            return []
        at, behind = int(self.cut[units, first, end]), int(self.last[units, first, end])
        ahead = self.stages(first, at, units - behind) if at > first else []
        return [*ahead, (end, behind)]
