"""Mist: for each stage a front of steady time and what its first and last micro-batch take more, joined over stages.

    step = (G - 1) max t_i + sum t_i + max over i of (d_i - sum of t_j in front of it)

t is a micro-batch without the traffic of gradients and weights, d that traffic, G the micro-batches. Stages are equal
in devices and differ in layers, degrees, sharding and the number of layers that are recomputed. The paper solves the
outer problem as an integer program; here it is a dynamic program over fronts of (sum, max, delta), which is exact up
to a share of `NEAR` of each.

Source: Zhu et al., "Mist: Efficient Distributed Training of Large Language Models via Memory-Parallelism
Co-Optimization", EuroSys 2025, sections 4 and 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from benchmarks.planners.families import Family, families
from benchmarks.planners.profile import PlannedStage, Profile, Proposal
from meshwright.planning.compose.sources.native.stages import StageOptions
from meshwright.search.space import Space

NEAR = 1e-3
"""Share by which one number of a front must be better to be kept."""
SPREAD = 2
"""Layers of a stage from 1 / SPREAD to SPREAD times an even share."""


class _Choice(NamedTuple):
    """A stage of so many layers: steady time, delta, rows."""

    steady_s: float
    delta_s: float
    rows: tuple[int, ...]


class _Chain(NamedTuple):
    total_s: float
    most_s: float
    delta_s: float
    """max over its stages of (d_i - sum of t_j of the chain in front of it)."""
    choice: _Choice | None
    behind: _Chain | None


@dataclass(slots=True)
class Mist:
    """Stages of unlike layers, degrees, sharding and recompute under one pipeline."""

    name: str = "Mist"
    source: str = "EuroSys 2025"
    searches: str = "a front of (steady time, delta) for each stage, and an exact program over stages"
    leaves_out: str = "offloading by ratio; stages of unequal devices"
    space: Space = field(
        default_factory=lambda: Space(
            pins=(("recompute", ("none", "full")), ("sharding", ("z0", "z1", "z2", "z3")), ("cp", (1,)))
        )
    )

    def proposals(self, profile: Profile) -> Iterator[Proposal]:
        """The best of every number of stages and every micro-batch."""
        for stages, global_micro_batch, table in profile.equal_stages():
            found = _Stages(profile, table, stages, global_micro_batch).best()
            if found is not None:
                yield found


class _Stages:
    def __init__(self, profile: Profile, table: StageOptions, stages: int, global_micro_batch: int) -> None:
        self.profile, self.table, self.stages, self.global_micro_batch = profile, table, stages, global_micro_batch
        self.devices = profile.devices // stages
        self.micro_batches = profile.micro_batches(global_micro_batch)
        self.families = families(table)
        self._known: dict[tuple[bytes, int], list[_Choice]] = {}

    def best(self) -> Proposal | None:
        """The quickest chain of stages, joined from the last to the first."""
        layers, stages = self.profile.layers, self.stages
        even = layers / stages
        least, most = max(1, int(even / SPREAD)), min(layers, int(np.ceil(even * SPREAD)))
        hop_s = self.profile.hop_s(self.devices, self.global_micro_batch) if stages > 1 else 0.0
        fronts: dict[int, list[_Chain]] = {layers: [_Chain(0.0, 0.0, 0.0, None, None)]}
        for place in reversed(range(stages)):
            ahead: dict[int, list[_Chain]] = {}
            for end, front in fronts.items():
                for first in range(max(0, end - most), end - least + 1) if place else (0,):
                    if first < place * least or first > place * most or end - first > most:
                        continue
                    for choice in self._front(first, end, place):
                        for chain in front:
                            ahead.setdefault(first, []).append(_joined(choice, chain, hop_s if place else 0.0))
            fronts = {first: self._kept(chains) for first, chains in ahead.items()}
        whole = fronts.get(0, [])
        if not whole:
            return None
        chain = min(whole, key=self._step_s)
        planned, first, link = [], 0, chain
        while link is not None and link.choice is not None:
            planned.append(PlannedStage(first=first, devices=self.devices, rows=link.choice.rows))
            first, link = planned[-1].end, link.behind  # type: ignore[assignment]
        return Proposal(stages=tuple(planned), global_micro_batch=self.global_micro_batch, step_s=self._step_s(chain))

    def _step_s(self, chain: _Chain) -> float:
        return chain.total_s + (self.micro_batches - 1) * chain.most_s + chain.delta_s

    def _front(self, first: int, end: int, place: int) -> list[_Choice]:
        """Stages of these layers that no other beats in steady time and delta, with as much recompute as they need."""
        counts = self.profile.counts(first, end)
        in_flight = min(self.stages - place, self.micro_batches)
        key = (counts.tobytes(), in_flight)
        if key not in self._known:
            every = [one for family in self.families if (one := self._fitting(family, counts, in_flight)) is not None]
            self._known[key] = _undominated(every)
        return self._known[key]

    def _fitting(self, family: Family, counts: np.ndarray, in_flight: int) -> _Choice | None:
        """The least recompute with which a stage of one family fits."""
        again, (seconds, sync_s, used) = family.least(self.table, counts, in_flight, self.profile.room_bytes)
        if used > self.profile.room_bytes:
            return None
        return _Choice(seconds, sync_s, family.rows(int(counts[:-2].sum()), again))

    def _kept(self, chains: list[_Chain]) -> list[_Chain]:
        found: list[_Chain] = []
        for chain in sorted(chains, key=self._step_s):
            if not any(
                one.total_s <= chain.total_s * (1 + NEAR)
                and one.most_s <= chain.most_s * (1 + NEAR)
                and one.delta_s <= chain.delta_s + NEAR * chain.total_s
                for one in found
            ):
                found.append(chain)
        return found


def _joined(choice: _Choice, chain: _Chain, hop_s: float) -> _Chain:
    """A stage in front of others."""
    steady = choice.steady_s
    return _Chain(
        chain.total_s + steady + hop_s,
        max(chain.most_s, steady),
        max(choice.delta_s, chain.delta_s - steady),
        choice,
        chain,
    )


def _undominated(choices: list[_Choice]) -> list[_Choice]:
    """Choices that none beats in both times, the quickest first."""
    found: list[_Choice] = []
    for choice in sorted(choices):
        if not found or choice.delta_s < found[-1].delta_s:
            found.append(choice)
    return found
