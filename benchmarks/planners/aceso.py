"""Aceso: from an even plan on, changes that relieve the bottleneck stage, several in a row where one does not pay.

    bottleneck   the stage that is the most over its memory; where all fit, the slowest one
    changes      layers to the stage with the most to spare, devices from it, tensor for data degree and back,
                 a larger or a smaller micro-batch; each with as much recompute as its stages then need
    step         sum t_i + (micro-batches - 1) max t_i + max sync_i

A change that is no better by itself is followed by others of its own bottleneck, up to `HOPS` in a row; no plan is
looked at twice. Every number of stages starts by itself.

Source: Liu et al., "Aceso: Efficient Parallel DNN Training through Iterative Bottleneck Alleviation", EuroSys 2024,
sections 3 and 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from benchmarks.planners.families import Family, families
from benchmarks.planners.profile import PlannedStage, Profile, Proposal
from meshwright.search.space import Space

HOPS = 7
"""Changes in a row, of which only the last has to pay."""
MOST_LOOKED_AT = 2000
"""Plans of each number of stages."""
TRIED = 5
"""Changes of one plan that are followed further."""


class _Stage(NamedTuple):
    layers: int
    devices: int
    tp: int


class _Plan(NamedTuple):
    stages: tuple[_Stage, ...]
    global_micro_batch: int


class _Cost(NamedTuple):
    """What plans are compared by: bytes over the memory first, then the step."""

    over_bytes: float
    step_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looked:
    cost: _Cost
    times_s: tuple[float, ...]
    over_bytes: tuple[float, ...]
    rows: tuple[tuple[int, ...], ...]


@dataclass(slots=True)
class Aceso:
    """Stages of unlike layers, devices and degrees, found step by step."""

    name: str = "Aceso"
    source: str = "EuroSys 2024"
    searches: str = f"changes that relieve the bottleneck stage, up to {HOPS} in a row"
    leaves_out: str = "degrees of single operators; its fine-tuning inside a stage"
    space: Space = field(
        default_factory=lambda: Space(
            pins=(
                ("recompute", ("none", "full")),
                ("sharding", ("z0",)),
                ("tp_overlap", ("bulk",)),
                ("cp", (1,)),
                ("ep", (1,)),
            )
        )
    )

    def proposals(self, profile: Profile) -> Iterator[Proposal]:
        """The best of every number of stages."""
        for stages in profile.sizes:
            if stages <= min(profile.layers, profile.devices) and profile.devices % stages == 0:
                found = _Search(profile).improved(stages)
                if found is not None:
                    yield found


class _Search:
    """The plans of one number of stages."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.looked_at: dict[_Plan, _Looked | None] = {}
        self._families: dict[tuple[int, int], dict[int, Family]] = {}

    def improved(self, stages: int) -> Proposal | None:
        """From even stages on, until no row of changes helps."""
        profile = self.profile
        devices, layers = profile.devices // stages, profile.layers
        plan = None
        for tp in reversed([size for size in profile.sizes if size <= min(devices, profile.node)]):
            even = [_Stage(layers // stages + (at < layers % stages), devices, tp) for at in range(stages)]
            plan = _Plan(tuple(even), devices // tp)
            if self._look(plan) is not None:
                break
        if plan is None or self._look(plan) is None:
            return None
        while len(self.looked_at) < MOST_LOOKED_AT:
            better = self._better(plan, self._cost(plan), HOPS)
            if better is None:
                break
            plan = better
        looked = self._look(plan)
        assert looked is not None
        first, planned = 0, []
        for stage, rows in zip(plan.stages, looked.rows, strict=True):
            planned.append(PlannedStage(first=first, devices=stage.devices, rows=rows))
            first += stage.layers
        if looked.cost.over_bytes > 0:
            return None
        return Proposal(stages=tuple(planned), global_micro_batch=plan.global_micro_batch, step_s=looked.cost.step_s)

    def _better(self, plan: _Plan, least: _Cost, hops: int) -> _Plan | None:
        """A plan below a cost that changes of this one lead to."""
        fresh = [one for one in self._changed(plan) if one not in self.looked_at and self._look(one) is not None]
        fresh.sort(key=self._cost)
        for one in fresh[:1]:
            if self._cost(one) < least:
                return one
        if hops > 1:
            for one in fresh[:TRIED]:
                if len(self.looked_at) >= MOST_LOOKED_AT:
                    return None
                found = self._better(one, least, hops - 1)
                if found is not None:
                    return found
        return None

    def _changed(self, plan: _Plan) -> Iterator[_Plan]:
        """What may relieve the bottleneck."""
        looked = self._look(plan)
        assert looked is not None
        stages = list(plan.stages)
        places = range(len(stages))
        full = looked.cost.over_bytes > 0
        worst = max(places, key=lambda at: (looked.over_bytes[at], looked.times_s[at]) if full else looked.times_s[at])
        idlest = min(places, key=lambda at: (looked.over_bytes[at], looked.times_s[at]))
        own = stages[worst]
        for other in {worst - 1, worst + 1, idlest} - {worst}:
            for moved in (1, 2, own.layers // 4):
                if 0 <= other < len(stages) and 0 < moved < own.layers:
                    yield _with(
                        plan,
                        {
                            worst: own._replace(layers=own.layers - moved),
                            other: stages[other]._replace(layers=stages[other].layers + moved),
                        },
                    )
        for tp in (own.tp * 2, own.tp // 2):
            if 0 < tp <= min(own.devices, self.profile.node):
                yield _with(plan, {worst: own._replace(tp=tp)})
                yield _with(plan, {at: stage._replace(tp=tp) for at, stage in enumerate(stages) if tp <= stage.devices})
        for other in places:
            if other != worst and stages[other].devices == 2 * own.devices:
                # Two stages change places in devices: sizes stay powers of two.
                yield _with(plan, {worst: _grown(own, 2), other: _grown(stages[other], 0.5)})
        halves = [at for at in places if at != worst and stages[at].devices == own.devices > 1]
        for one, two in pairwise(halves):
            yield _with(plan, {worst: _grown(own, 2), one: _grown(stages[one], 0.5), two: _grown(stages[two], 0.5)})
        for global_micro_batch in (plan.global_micro_batch * 2, plan.global_micro_batch // 2):
            if global_micro_batch in self.profile.global_micro_batches:
                yield plan._replace(global_micro_batch=global_micro_batch)

    def _cost(self, plan: _Plan) -> _Cost:
        looked = self._look(plan)
        assert looked is not None, "only legal plans are compared"
        return looked.cost

    def _look(self, plan: _Plan) -> _Looked | None:
        """Times and memory; None where a stage is not legal."""
        if plan not in self.looked_at:
            self.looked_at[plan] = self._priced(plan)
        return self.looked_at[plan]

    def _priced(self, plan: _Plan) -> _Looked | None:
        profile, first = self.profile, 0
        micro_batches = profile.micro_batches(plan.global_micro_batch)
        times, overs, rows, sync_s, hops = [], [], [], 0.0, 0.0
        for place, stage in enumerate(plan.stages):
            family = self._family(stage, plan.global_micro_batch)
            table = profile.table(stage.devices, plan.global_micro_batch)
            if family is None or table is None:
                return None
            counts = profile.counts(first, first + stage.layers)
            in_flight = min(len(plan.stages) - place, micro_batches)
            again, (seconds, sums, used) = family.least(table, counts, in_flight, profile.room_bytes)
            times.append(seconds)
            overs.append(max(0.0, used - profile.room_bytes))
            rows.append(family.rows(stage.layers, again))
            sync_s = max(sync_s, sums)
            first += stage.layers
        for one, two in pairwise(plan.stages):
            hops += profile.hop_s(min(one.devices, two.devices), plan.global_micro_batch)
        step_s = sum(times) + hops + (micro_batches - 1) * max(times) + sync_s
        return _Looked(cost=_Cost(sum(overs), step_s), times_s=tuple(times), over_bytes=tuple(overs), rows=tuple(rows))

    def _family(self, stage: _Stage, global_micro_batch: int) -> Family | None:
        key = stage.devices, global_micro_batch
        if key not in self._families:
            table = self.profile.table(*key)
            self._families[key] = {one.tp: one for one in families(table)} if table is not None else {}
        return self._families[key].get(stage.tp)


def _grown(stage: _Stage, times: float) -> _Stage:
    devices = int(stage.devices * times)
    return stage._replace(devices=devices, tp=min(stage.tp, devices))


def _with(plan: _Plan, changed: dict[int, _Stage]) -> _Plan:
    return plan._replace(stages=tuple(changed.get(at, stage) for at, stage in enumerate(plan.stages)))
