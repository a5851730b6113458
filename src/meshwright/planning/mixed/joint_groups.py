"""Plans of one ZeRO group over unlike devices: each kind takes its own share of every micro-batch, all hold one state.

    S_k     sequences of a micro-batch on kind k, near  S rate_k / sum of rates, in whole sequences of its data ranks
    step    micro-batches x the slowest kind's pass, beside gathers and sums over all ranks at the slowest link

Every kind is one pipeline of one stage, with context ranks where its share is smaller than its devices and as much
recompute as its own memory needs; or two pipelines, where the ranks of one of them do a sequence less. What is promised
by rates alone chooses which divisions are priced; a division whose step without recompute is no quicker than the best
plan known is dropped, for sharding more and recomputing only add.

Source: Zhang et al. 2024, Poplar (arXiv 2408.12596), shares of the batch by speed under every ZeRO stage; Guo et al.
2024, Cephalo (arXiv 2411.01075), work by speed and states apart from it. The search is our own.
"""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, combinations, product

from meshwright.budget import spent
from meshwright.estimate.price import estimate_of
from meshwright.estimate.pricer import PlanPricer
from meshwright.estimate.rules.legality import row_problems
from meshwright.planning.compose.execution_plan import PlanBuilder, StageLayers
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.mixed.source import PricedPlan
from meshwright.schedules.plan_rows import plan_of
from meshwright.search.axes import only_in_groups, recompute_words
from meshwright.search.space import Space
from meshwright.search.table import divisors
from meshwright.specs.cluster import NodeGroup
from meshwright.specs.collective_libraries import collective_library
from meshwright.specs.plan import ExecutionPlan, Pipeline
from meshwright.specs.row import PlanRow, recompute_fields

SHARDED = ("z1", "z2", "z3")
"""What is tried, from what is sent least to what is held least."""
BLOCKS = (0.25, 0.5, 0.75)
"""Shares of the layers that are recomputed."""
MOST_MICRO_BATCH = 16
"""Sequences of a rank."""
PRICED, IDLE_PRICED = 8, 16
"""Divisions that are priced without recompute: of all devices, and of all choices of fewer together."""
REFINED = 3
"""Divisions for which sharding and recompute are looked for."""
EACH_TENSOR = 4
"""Divisions of a tensor degree."""
MOST_BY_RANK = 64
"""Choices of fewer devices up to which unlike numbers of sequences are looked at, too."""
MOST_SUBSETS = 3
"""Kinds up to which every two are tried without the others, too."""
ROUNDING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class _Division:
    """Who does how much of a micro-batch."""

    parts: tuple[IslandPart, ...]
    """Parts of the cluster; one group may have two, one behind the other."""
    tp: int
    micro_batches: int
    sequences: tuple[int, ...]
    promised: float
    """Micro-batches x the slowest part's sequences over its rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JointGroups:
    """Looks for plans of one group over the parts of a cluster."""

    pricer: PlanPricer
    space: Space
    rate: Callable[[IslandPart], float]
    """Layers x sequences per second that a part reaches at best."""
    candidate: Callable[[ExecutionPlan], PricedPlan | None]
    """A plan priced in full; None where it does not fit."""

    def quicker(
        self, parts: Sequence[IslandPart], best_s: float, fewer: Sequence[tuple[IslandPart, ...]] = ()
    ) -> list[PricedPlan]:
        """Plans that are quicker than the best known, the quickest first.

        Args:
            parts: the parts of the cluster, that can talk to each other.
            best_s: step of the best plan known; infinite where there is none.
            fewer: the same with some devices idle, of which the few best divisions of all are looked at.
        """
        found: list[PricedPlan] = []
        whole = ((chain(self._divisions(some), self._by_rank(some)), PRICED) for some in self._sets(parts))
        by_rank = len(fewer) <= MOST_BY_RANK
        idle = (one for some in fewer for one in chain(self._divisions(some), self._by_rank(some) if by_rank else ()))
        pools = [*whole, (idle, IDLE_PRICED)]
        for divisions, most in pools:
            for division in self._promising(divisions, best_s, most):
                one = self._refined(division, best_s)
                if one is not None and one.step_time_s < best_s:
                    best_s = one.step_time_s
                    found.append(one)
                if spent():
                    break
        return found[::-1]

    def _sets(self, parts: Sequence[IslandPart]) -> Iterator[tuple[IslandPart, ...]]:
        yield tuple(parts)
        if 2 < len(parts) <= MOST_SUBSETS:
            yield from combinations(parts, len(parts) - 1)

    def _promising(self, divisions: Iterable[_Division], best_s: float, most: int) -> list[_Division]:
        """Divisions that may be quicker, by their step without recompute."""
        layers = self.pricer.model.num_layers
        least = sorted(divisions, key=lambda one: one.promised)[:most]
        plans = [
            (plan, one)
            for one in least
            if one.promised * layers < best_s
            and (plan := self._plan(one, SHARDED[0], [PlanRow()] * len(one.parts), checked=False)) is not None
        ]
        self.pricer.price_rows([plan for plan, _ in plans])
        priced = [(self.pricer.step_time_s(plan), one) for plan, one in plans]
        chosen = sorted((pair for pair in priced if pair[0] < best_s), key=lambda pair: pair[0])
        return [one for _, one in chosen[:REFINED]]

    def _divisions(self, parts: tuple[IslandPart, ...]) -> Iterator[_Division]:
        """The best divisions per tensor degree, of those with the fewest, the most and other numbers of batches."""
        batch, rates = self.pricer.workload.global_batch, self._rates(parts)
        for tp in self._tensor_degrees(parts) if rates else ():
            own: list[_Division] = []
            for count in divisors(batch):
                best = self._divided(parts, rates, tp, batch // count)
                if best is not None:
                    slowest, sequences = best
                    promised = count * slowest
                    own.append(
                        _Division(parts=parts, tp=tp, micro_batches=count, sequences=sequences, promised=promised)
                    )
            own.sort(key=lambda one: (round(one.promised, 9), one.micro_batches))
            least = own[0].promised if own else 0.0
            ties = [one for one in own if one.promised <= 1.001 * least]
            ends = dict.fromkeys((ties[:1] + ties[-1:] + ties[len(ties) // 2 :][:1]) if ties else [])
            yield from dict.fromkeys([*ends, *own[:EACH_TENSOR]])

    def _by_rank(self, parts: tuple[IslandPart, ...]) -> Iterator[_Division]:
        """The best divisions per tensor and context degree where ranks of one kind do unlike numbers of sequences.

        Of those as quick, the ones of the fewest and of the most micro-batches.
        """
        batch, rates = self.pricer.workload.global_batch, self._rates(parts)
        for tp in self._tensor_degrees(parts) if rates else ():
            for cp in divisors(math.gcd(*(self._most_context(part, tp) for part in parts))):
                own = []
                for count in divisors(batch) if self._allows("cp", cp) else ():
                    best = by_rank(parts, rates, tp * cp, batch // count, MOST_MICRO_BATCH * cp)
                    if best is not None:
                        slowest, held, sequences = best
                        promised = count * slowest
                        own.append(
                            _Division(parts=held, tp=tp, micro_batches=count, sequences=sequences, promised=promised)
                        )
                least = min((one.promised for one in own), default=0.0)
                ties = sorted(one.micro_batches for one in own if one.promised <= 1.001 * least)
                yield from (one for one in own if ties and one.micro_batches in (ties[0], ties[-1]))

    def _rates(self, parts: Sequence[IslandPart]) -> list[float]:
        """What each part does in a second; nothing where no collective joins all of them, or a part does nothing."""
        rates = [self.rate(part) for part in parts]
        # A transport between two libraries carries messages, and no collective of all ranks.
        libraries = {collective_library(self.pricer.cluster.groups[part.group].device.vendor) for part in parts}
        return rates if all(rates) and len(libraries) == 1 else []

    def _tensor_degrees(self, parts: Sequence[IslandPart]) -> list[int]:
        near = math.gcd(*(_near(part, self.pricer.cluster.groups[part.group]) for part in parts))
        return [degree for degree in divisors(near) if self._allows("tp", degree)]

    def _divided(
        self, parts: Sequence[IslandPart], rates: Sequence[float], tp: int, total: int
    ) -> tuple[float, tuple[int, ...]] | None:
        """Sequences of a micro-batch on every part, the slowest of them as quick as can be; None where none divides."""
        units = [part.devices // tp // self._most_context(part, tp) for part in parts]
        exact = [total * rate / sum(rates) for rate in rates]
        best: tuple[float, tuple[int, ...]] | None = None
        for last in range(len(parts)):
            around = [
                sorted({max(math.floor(x / unit), 1) * unit, math.ceil(x / unit) * unit})
                for number, (x, unit) in enumerate(zip(exact, units, strict=True))
                if number != last
            ]
            for chosen in product(*around):
                left = total - sum(chosen)
                sequences = (*chosen[:last], left, *chosen[last:])
                if left <= 0 or left % units[last] or self._too_many(parts, tp, sequences):
                    continue
                slowest = max(number / rate for number, rate in zip(sequences, rates, strict=True))
                if best is None or slowest < best[0]:
                    best = slowest, sequences
        return best

    def _too_many(self, parts: Sequence[IslandPart], tp: int, sequences: Sequence[int]) -> bool:
        return any(own > MOST_MICRO_BATCH * (part.devices // tp) for part, own in zip(parts, sequences, strict=True))

    def _most_context(self, part: IslandPart, tp: int) -> int:
        """Context ranks that a part may have: a power of two of those in a node."""
        per_node = _near(part, self.pricer.cluster.groups[part.group]) // tp
        most = per_node & -per_node
        able = [degree for degree in divisors(most) if self._allows("cp", degree)]
        return max(able, default=1)

    def _refined(self, one: _Division, best_s: float) -> PricedPlan | None:
        """A division with the sharding that is quickest, and of each part the least recompute that fits."""
        best: PricedPlan | None = None
        for sharding in (word for word in SHARDED if self._allows("sharding", word)):
            limit_s = best_s if best is None else best.step_time_s
            plan = self._fitting(one, sharding, limit_s)
            found = None if plan is None else self.candidate(plan)
            if found is not None and found.step_time_s < limit_s:
                best = found
        return best

    def _fitting(self, one: _Division, sharding: str, limit_s: float) -> ExecutionPlan | None:
        """The least recompute of every part that its memory needs; None where a step is not below the limit."""
        ways = list(self._recomputes())
        able = ("yes", "tight") if self.space.tight else ("yes",)
        plain = self._plan(one, sharding, [ways[0]] * len(one.parts)) if ways else None
        if plain is None or self.pricer.step_time_s(plain) >= limit_s:
            return None
        least = self._plan(one, sharding, [ways[-1]] * len(one.parts))
        if least is None or any(stage.fits not in able for stage in estimate_of(least, self.pricer).stages):
            return None  # not even with all that can be made again
        at = [0] * len(one.parts)
        while True:
            plan = self._plan(one, sharding, [ways[place] for place in at])
            if plan is None:
                return None
            estimate = estimate_of(plan, self.pricer)
            if estimate.step_time_s >= limit_s:
                return None
            full = [place for place, stage in enumerate(estimate.stages) if stage.fits not in able]
            if not full or all(at[place] == len(ways) - 1 for place in full):
                return None if full else plan
            for place in full:
                at[place] = min(at[place] + 1, len(ways) - 1)

    def _recomputes(self) -> Iterator[PlanRow]:
        """Ways to recompute that the space allows, from none of the layers to all, as rows that say no more."""
        layers = self.pricer.model.num_layers
        for word in recompute_words(self.pricer.model, self.pricer.workload):
            if not self._allows("recompute", word):
                continue
            counts = [math.ceil(share * layers) for share in BLOCKS] if word == "block" else [0]
            for count in dict.fromkeys(counts):
                yield PlanRow(**recompute_fields(word), recompute_layers=count)

    def _plan(
        self, one: _Division, sharding: str, recomputes: Sequence[PlanRow], *, checked: bool = True
    ) -> ExecutionPlan | None:
        """The plan of a division; None where a rule of the model, or a pin, is against it."""
        free = list(accumulate((group.devices for group in self.pricer.cluster.groups), initial=0))
        layers = self.pricer.model.num_layers
        builder = PlanBuilder()
        pipelines = []
        ranks = sum(part.devices for part in one.parts) // one.tp
        for part, sequences, recompute in zip(one.parts, one.sequences, recomputes, strict=True):
            row = self._row(part, one, sharding, sequences, recompute)
            if row is None or (checked and not self._within(row)):
                return None
            own = plan_of(row, (layers,))
            strategies = [replace(own_one, data=replace(own_one.data, across=ranks)) for own_one in own.strategies]
            runs = own.pipelines[0].workers[0].chunks[0].runs
            held = StageLayers(virtual_stage=0, first=0, strategies=strategies, runs=runs)
            worker = builder.worker(free[part.group], part.devices, [held], 1)
            free[part.group] += part.devices
            pipelines.append(Pipeline(micro_batch=row.mbs, num_micro_batches=one.micro_batches, workers=(worker,)))
        return builder.plan(pipelines)

    def _row(
        self, part: IslandPart, one: _Division, sharding: str, sequences: int, recompute: PlanRow
    ) -> PlanRow | None:
        """A part as a plan of its own, with the fewest context ranks that its share allows."""
        ranks = part.devices // one.tp
        able = (cp for cp in divisors(self._most_context(part, one.tp)) if sequences % (ranks // cp) == 0)
        for cp in (degree for degree in able if self._allows("cp", degree)):
            dp = ranks // cp
            kinds = [kind for kind in self.space.pinned("cp_kind") or ("p2p",) if kind != "none"]
            held = only_in_groups(self.space, "cp" if cp == 1 else "tp")
            if (cp == 1 and held) or (cp > 1 and not kinds) or (one.tp == 1 and only_in_groups(self.space, "tp")):
                continue
            row = replace(
                recompute,
                tp=one.tp,
                tp_overlap="ring" if one.tp > 1 and self._allows("tp_overlap", "ring") else "bulk",
                cp=((str(kinds[0]), cp),) if cp > 1 else (),
                dp=dp,
                sharding=sharding,
                mbs=sequences // dp,
                gbs=sequences * one.micro_batches,
            )
            problems = row_problems(row, self.pricer.model, self.pricer.workload.seq_len, part.devices)
            if row.mbs <= MOST_MICRO_BATCH * cp and not problems:
                return row
        return None

    def _within(self, row: PlanRow) -> bool:
        """Whether what is pinned allows a stage, one of a pipeline of its own."""
        axes = ("pp", "vpp", "ep", "etp", "dp", "mbs", "schedule", "tensor", "sharding")
        return all(self._allows(axis, getattr(row, axis)) for axis in axes)

    def _allows(self, axis: str, value: object) -> bool:
        pinned = self.space.pinned(axis)
        return pinned is None or value in pinned


def by_rank(
    parts: Sequence[IslandPart], rates: Sequence[float], each_rank: int, total: int, most: int = MOST_MICRO_BATCH
) -> tuple[float, tuple[IslandPart, ...], tuple[int, ...]] | None:
    """Whole sequences of a micro-batch on every rank, the slowest of them as quick as can be.

    Within some time each rank does as many as it can; those too many are taken from ranks of the slowest kind, one from
    each, which are a part of their own, or idle where they have no other.

    Args:
        parts: the parts, one of each group.
        rates: the rate of each part, layers x sequences per second.
        each_rank: the number of devices of a rank.
        total: the sequences of a micro-batch.
        most: the most sequences of a rank.

    Returns:
        Seconds of the slowest, the parts and their sequences; None where all ranks of every kind do as many, or some
        kind none.
    """
    ranks = [part.devices // each_rank for part in parts]
    each = [rate / count for rate, count in zip(rates, ranks, strict=True)]
    times = sorted({count / rate for rate in each for count in range(1, most + 1)})

    def able_in(seconds: float) -> list[int]:
        return [min(math.floor(seconds * rate * (1 + ROUNDING)), most) for rate in each]

    place = bisect_left(times, total, key=lambda seconds: sum(map(operator.mul, able_in(seconds), ranks)))
    if place == len(times):
        return None
    slowest, able = times[place], able_in(times[place])
    spare = sum(map(operator.mul, able, ranks)) - total
    if not spare or not all(able):
        return None
    fewer = [0] * len(parts)
    for number in sorted(range(len(parts)), key=lambda number: -able[number] / each[number]):
        fewer[number] = min(spare, ranks[number])
        spare -= fewer[number]
    held: list[tuple[IslandPart, int]] = []
    for part, count, own, some in zip(parts, ranks, able, fewer, strict=True):
        shares = (count - some, own), (some, own - 1)
        held += [(IslandPart(part.group, few * each_rank), few * one) for few, one in shares if few * one]
    return slowest, tuple(part for part, _ in held), tuple(sequences for _, sequences in held)


def _near(part: IslandPart, group: NodeGroup) -> int:
    """Devices of which a part has whole sets inside nodes; some of a single node are all near each other."""
    each = group.devices_per_node
    return part.devices if part.devices <= each else math.gcd(part.devices, each)
