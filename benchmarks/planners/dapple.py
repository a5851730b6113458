"""DAPPLE: replicated stages by a dynamic program over layers and devices, each prefix judged with one stage behind it.

    L  = max over stages Q of  Tw + Ts + Te
    Tw = sum over stages s <= Q of F_s
    Ts = (M - 1) (F_Q + B_Q)
    Te = max over s of  AR_s + sum B_s .. B_Q  (s <= Q),  AR_s - sum B_Q .. B_s  (s > Q)

Transfers are stages of their own, in between. Layers are data parallel with whole states; all of them are recomputed or
none. The paper picks one pivot Q by a rule that holds for many micro-batches; the maximum holds for few as well.

Source: Fan et al., "DAPPLE: A Pipelined Data Parallel Approach for Training Large Models", PPoPP 2021, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from benchmarks.planners.profile import FULL, NONE, Profile, Proposal
from benchmarks.planners.spans import Spans
from meshwright.search.space import Space
from meshwright.shapes import Float

Cut = tuple[int, int]
"""Layers and devices up to the end of a stage."""
MOST_UNITS = 32
"""Groups of layers that stages are cut between: of longer models several layers are one."""


@dataclass(slots=True)
class Dapple:
    """Data-parallel stages of any length."""

    name: str = "DAPPLE"
    source: str = "PPoPP 2021"
    searches: str = "a dynamic program over layers and devices that keeps one beginning of each"
    leaves_out: str = "its three placements: stages stand side by side; sizes of stages are powers of two"
    space: Space = field(
        default_factory=lambda: Space(
            pins=(
                ("recompute", ("none", "full")),
                ("sharding", ("z0",)),
                ("tp", (1,)),
                ("cp", (1,)),
                ("ep", (1,)),
            )
        )
    )

    def proposals(self, profile: Profile) -> Iterator[Proposal]:
        """The best of every micro-batch, with all layers recomputed and with none."""
        for global_micro_batch in profile.global_micro_batches:
            for recompute in (NONE, FULL):
                spans = Spans.of(profile, global_micro_batch, recompute)
                if spans is not None:
                    found = _Prefixes(profile, spans).best()
                    if found is not None:
                        yield found


class _Prefixes:
    """The best beginning for so many layers and devices."""

    def __init__(self, profile: Profile, spans: Spans) -> None:
        self.profile, self.spans = profile, spans
        self.again = profile.micro_batches(spans.global_micro_batch) - 1
        step = -(-profile.layers // MOST_UNITS)
        self.cuts = np.array([*range(0, profile.layers, step), profile.layers])

    def best(self) -> Proposal | None:
        """The quickest whole pipeline by the latency above."""
        layers, devices = self.profile.layers, self.profile.devices
        kept: dict[Cut, tuple[float, tuple[Cut, ...]]] = {(0, 0): (0.0, ())}
        whole: list[tuple[float, tuple[Cut, ...]]] = []
        for at in self.cuts[:-1].tolist():
            for used in range(devices):
                if (at, used) not in kept:
                    continue
                ends = kept[at, used][1]
                for size in self.spans.sizes:
                    if used + size > devices:
                        break
                    left = devices - used - size
                    nexts = self.cuts[(self.cuts > at) & (self.cuts < layers)] if left else np.array([layers])
                    # Micro-batches in flight if the stages behind it are of its size.
                    in_flight = min(1 + left // size, self.again + 1)
                    nexts = nexts[self.spans.room(np.array([at]), nexts, size, in_flight)]
                    if not len(nexts):
                        continue
                    if not left:
                        seconds = float(self._latency_s(ends, at, nexts, size, 0)[0])
                        whole.append((seconds, (*ends, (layers, devices))))
                        continue
                    latency = self._latency_s(ends, at, nexts, size, left)
                    for cut, seconds in zip(nexts.tolist(), latency.tolist(), strict=True):
                        key = (cut, used + size)
                        if key not in kept or seconds < kept[key][0]:
                            kept[key] = (seconds, (*ends, (cut, used + size)))
        for seconds, ends in sorted(whole):
            if self._fits_whole(ends):
                return self.spans.proposal(ends, seconds)
        return None

    def _fits_whole(self, ends: tuple[Cut, ...]) -> bool:
        micro_batches = self.again + 1
        starts = [(0, 0), *ends]
        return all(
            self.spans.fits(start[0], end[0], end[1] - start[1], min(len(ends) - place, micro_batches))
            for place, (start, end) in enumerate(zip(starts, ends, strict=False))
        )

    def _latency_s(
        self, ends: tuple[Cut, ...], at: int, nexts: np.ndarray, size: int, left: int
    ) -> Float[np.ndarray, " nexts"]:
        """Of the beginning, a stage at .. next on `size` devices, and all other layers as one stage on those left."""
        spans, layers = self.spans, self.profile.layers
        starts = [(0, 0), *ends]
        each = []
        for start, end in zip(starts, ends, strict=False):
            each.append(spans.costs(start[0], np.array([end[0]]), end[1] - start[1]))
            each.append(spans.hop(min(end[1] - start[1], size)))
        each.append(spans.costs(at, nexts, size))
        if left:
            each += [spans.hop(min(size, left)), spans.rest(nexts, layers, left)]
        shape = (len(nexts),)
        forward, backward, sums = (np.stack([np.broadcast_to(one[part], shape) for one in each]) for part in range(3))
        both = forward + backward
        back = np.cumsum(backward, axis=0)
        # Of stages up to Q their backwards until the first of them ends; of those behind, less what runs meanwhile.
        front = back + np.maximum.accumulate(sums - back + backward, axis=0)
        behind = np.maximum.accumulate((sums - back)[::-1], axis=0)[::-1] + back - backward
        ending = np.maximum(front, behind)
        return np.asarray((np.cumsum(forward, axis=0) + self.again * both + ending).max(axis=0))
