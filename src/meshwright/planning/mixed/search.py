"""The best plans of one job on several kinds of device: together, each kind alone, all kinds but one, and parts rented.

The same search for every source of stage costs: it decides which parts of the cluster are planned and which plans are
compared; the source composes pipelines and prices plans.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import inf, isfinite

from meshwright.budget import spent
from meshwright.errors import UnsupportedError
from meshwright.fields.limits import nothing_in_time
from meshwright.planning.compose.island_part import IslandPart
from meshwright.planning.costing import Counts, rented
from meshwright.planning.fewer_nodes import SMALL
from meshwright.planning.mixed.devices_used import devices_used
from meshwright.planning.mixed.equal_ranks import evener
from meshwright.planning.mixed.joinable import joinable
from meshwright.planning.mixed.preemptions import preempted
from meshwright.planning.mixed.source import Launcher, PricedPlan, StageSource
from meshwright.planning.objectives import QUICKEST, Aim, Offer, admitted, require_prices
from meshwright.planning.one_kind import CLEARLY_FASTER
from meshwright.search.one_space import FRONT_SLACK
from meshwright.search.watching import each_a_part, watcher
from meshwright.search.watching import found as told_found
from meshwright.search.watching import part as part_of_search
from meshwright.specs.cluster import ClusterSpec, NodeGroup
from meshwright.specs.job import Job

TOGETHER_SHARE, ALONE_SHARE = 0.6, 0.1
"""About how much of a search plans over all groups take, and each comparison behind them (2 to 4 kinds, 2026-11)."""
HARDLY_QUICKER = 0.02
"""Share of a step that a plan which the usual framework cannot start must save to stand before one that it can."""
MOST_LAUNCHED = 3
"""Sets of groups on which a plan that the usual framework starts is looked for until there is one."""
ROUND_DEVICES = 8
"""Multiples of it are what nodes nearly always have."""
MOST_SETS = 12
"""Sets of groups that plans of one strategy are looked for on, those of most devices first."""
CLOSE = 0.05
"""Where mixing gains less than this over one kind alone, that kind is searched exhaustively before it is compared."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedPlans:
    """What was found, and what it is compared with."""

    candidates: tuple[PricedPlan, ...]
    """The best by the aim first; at least one."""
    quickest: PricedPlan
    """The quickest of all candidates, before limits of time and price."""
    alone: Mapping[int, PricedPlan | None]
    """The best plan of each group by itself; none of a cluster of one group."""
    without: Mapping[int, PricedPlan | None]
    """The best plan without each group; none where nobody compared them."""
    launched: tuple[str, PricedPlan] | None = None
    """A framework, and the quickest plan over several groups that it starts, where the search was for none."""
    passed_over: PricedPlan | None = None
    """The plan that is hardly quicker than the first and that this framework does not start; None where none is."""


def mixed_plans(
    source: StageSource,
    aim: Aim = QUICKEST,
    target: Launcher | None = None,
    usual: Callable[[], Launcher | None] | None = None,
) -> MixedPlans:
    """The plans of a job on a cluster, the best by the aim first.

    Args:
        source: the source of stage costs.
        aim: time, memory or cost, and their limits.
        target: the target for which plans are asked; of several kinds of device those of one strategy are looked at
            then.
        usual: makes the framework whose plans are looked at beside all others, where none is asked for.

    Raises:
        InputError: a price that the aim needs is missing.
        InfeasibleError: no plan fits, or none keeps to the limits.
        UnsupportedError: plans fit, and the target refuses all of them.
    """
    groups = source.cluster.groups
    if aim.by.requires is not None:
        aim.by.requires(group.name for group in groups if aim.by.per_hour(group) is None)
    if isfinite(aim.max_price_per_step):
        require_prices(group.name for group in groups if group.price_per_hour is None)
    every = [IslandPart(number, group.devices) for number, group in enumerate(groups)]
    several = len(every) > 1
    with part_of_search(TOGETHER_SHARE if several else 1.0):
        mixed = _over_all(source, every, target)
    _tell(mixed)
    with part_of_search(ALONE_SHARE):
        alone = {part.group: source.alone(part) for part in each_a_part(every)} if several else {}
    with part_of_search(ALONE_SHARE):
        if several and not spent():
            alone |= _searched_where_close(source, every, alone, mixed)
    if target is not None and several:
        own = (one for some in alone.values() for one in some)
        mixed = [*mixed, *_of_equal_ranks(source, every, target, [*mixed, *own])]
    without: dict[int, PricedPlan | None] = {}
    if len(every) > 2 and target is None and source.compares_rest and not spent():
        with part_of_search(ALONE_SHARE):
            without = {part.group: _without(source, part, every, alone) for part in each_a_part(every)}
    found = [*mixed, *(one for own in alone.values() for one in own), *(one for one in without.values() if one)]
    with part_of_search(1.0):
        launcher = usual() if usual and mixed and target is None and several and not spent() else None
        launched = [] if launcher is None else _launched(source, min(mixed, key=_lasting_s), launcher)
        if launcher is not None:
            launched = sorted([*launched, *_of_equal_ranks(source, every, launcher, launched)], key=_lasting_s)
    found += launched
    if target is not None:
        found = _startable(found, target)
    candidates = _ordered(source, found, aim)
    if not candidates:
        if limit := spent():
            raise nothing_in_time(limit, "a plan over several kinds of devices")
        raise source.nothing_fits()
    quickest = min(candidates, key=lambda one: one.step_time_s)
    if aim.limited:
        offers = [offer_of(one) for one in candidates]
        admitted(aim, offers, f"{job_name(candidates[0])} on {source.cluster.name}")
        candidates = [offer.plan for offer in offers if aim.excess(offer) == 0]
    without = {number: _quickest_without(source.cluster, number, one, candidates) for number, one in without.items()}
    fastest = candidates[0]
    if launcher and aim.by is QUICKEST.by and launched:
        candidates = _started_first(candidates, launched, launcher)
    return MixedPlans(
        candidates=tuple(candidates),
        quickest=quickest,
        alone={number: own[0] if own else None for number, own in alone.items()},
        without=without,
        launched=(launcher.target, launched[0]) if launcher and launched else None,
        passed_over=fastest if fastest is not candidates[0] else None,
    )


def _over_all(source: StageSource, every: Sequence[IslandPart], target: Launcher | None) -> list[PricedPlan]:
    """Plans over all groups that can talk to each other; for a target, those of one strategy."""
    several = len(every) > 1
    if target is not None and several:
        return _of_one_strategy(source, every, target)
    mixed = _together(source, every, thorough=True)
    _tell(mixed)
    if not several or not mixed or spent():
        return mixed
    best = min(mixed, key=_step_s)  # composed by estimates, which exact prices put in another order
    return sorted([*mixed, *_on_those_used(source, every, best)], key=_step_s)


def _startable(found: Sequence[PricedPlan], target: Launcher) -> list[PricedPlan]:
    """The plans that a target starts.

    Raises:
        UnsupportedError: it refuses all of them.
    """
    answers = [(one, target.refuses(one.job)) for one in found if isinstance(one.job, Job)]
    able = [one for one, problems in answers if not problems]
    if answers and not able:
        raise UnsupportedError(list(dict.fromkeys(p for _, problems in answers for p in problems))[:8], code="MW420")
    return able


def _together(source: StageSource, parts: Sequence[IslandPart], *, thorough: bool) -> list[PricedPlan]:
    """Plans over parts that can talk to each other, the quickest first."""
    apart = joinable(source.cluster, parts)
    sets = [one for one in apart if len(one) > 1 or len(apart) == 1]
    found = [one for joined in sets for one in source.together(joined, thorough=thorough)]
    return sorted(found, key=lambda one: one.step_time_s) if len(sets) > 1 else found


def _on_those_used(source: StageSource, every: Sequence[IslandPart], best: PricedPlan) -> list[PricedPlan]:
    """Plans over the devices that the best plan uses, where it leaves some idle: they may be shared out better alone.

    Of few devices plans over one fewer of each group with idle ones are looked at, too.
    """
    used = devices_used(source.cluster, best.estimate)
    parts = [IslandPart(n, used[group.name]) for n, group in enumerate(source.cluster.groups) if used[group.name]]
    if len(parts) < 2 or parts == list(every):
        return []
    found = _together(source, parts, thorough=True)
    if sum(part.devices for part in every) <= SMALL:
        for place, part in enumerate(parts):
            if 1 < part.devices < every[part.group].devices and not spent():
                fewer = [*parts[:place], IslandPart(part.group, part.devices - 1), *parts[place + 1 :]]
                found += _together(source, fewer, thorough=True)
    return found


def _launched(source: StageSource, best: PricedPlan, launcher: Launcher) -> list[PricedPlan]:
    """Plans that a framework starts over the devices that the best plan uses, and over its groups or most of them.

    Args:
        source: the source of the plans.
        best: the best of all plans, which may leave devices idle.
        launcher: the framework.

    Returns:
        The quickest first.
    """
    used = devices_used(source.cluster, best.estimate)
    groups = [(n, group) for n, group in enumerate(source.cluster.groups) if group.name in used]
    whole = [IslandPart(n, group.devices) for n, group in groups]
    same = [IslandPart(n, used[group.name]) for n, group in groups]
    found = source.of_one_strategy(same, launcher) if same != whole and len(same) > 1 else []
    for some in _sets_of_several(source.cluster, whole)[:MOST_LAUNCHED]:
        if spent():
            break
        if more := source.of_one_strategy(some, launcher):
            found = [*found, *more]
            break
    rounder = [IslandPart(n, _roundest(group)) for n, group in groups]
    if len(rounder) == 2 and rounder not in (whole, same) and not spent():
        found = [*found, *source.of_one_strategy(rounder, launcher)]
    return sorted(found, key=_step_s)


def _roundest(group: NodeGroup) -> int:
    """Devices of the most nodes of a group that are a power of two: equal stages of eleven have one or eleven."""
    return group.devices_per_node << (group.nodes.bit_length() - 1)


def _started_first(
    candidates: Sequence[PricedPlan], launched: Sequence[PricedPlan], launcher: Launcher
) -> list[PricedPlan]:
    """The quickest plan that a framework starts before those that are hardly quicker, and that it does not start."""
    best, able = candidates[0], {one.plan for one in launched}
    first = next((one for one in candidates if one.plan in able), None)
    if first is None or first is best or _lasting_s(first) > _lasting_s(best) * (1 + HARDLY_QUICKER):
        return list(candidates)
    if isinstance(best.job, Job) and not launcher.refuses(best.job):
        return list(candidates)
    return [first, *(one for one in candidates if one is not first)]


def _of_one_strategy(source: StageSource, parts: Sequence[IslandPart], target: Launcher) -> list[PricedPlan]:
    """Plans that a target starts over two or more of the parts that can talk to each other, the quickest first."""
    found: list[PricedPlan] = []
    for some in _sets_of_several(source.cluster, parts)[:MOST_SETS]:
        if not (found and spent()):
            found += source.of_one_strategy(some, target)
    return sorted(found, key=lambda one: one.step_time_s)


def _of_equal_ranks(
    source: StageSource, parts: Sequence[IslandPart], launcher: Launcher, beaten: Iterable[PricedPlan]
) -> list[PricedPlan]:
    """Plans that give each rank of several groups the same work, each quicker than those before it and those known.

    Args:
        source: the source of the plans.
        parts: all groups, whole.
        launcher: the framework that starts them.
        beaten: plans that it starts, and that one of these has to beat.
    """
    best_s, above = min(map(_step_s, beaten), default=inf), 1.0
    found: list[PricedPlan] = []
    sets = [some for some in _sets_of_several(source.cluster, parts)[:MOST_SETS] if all(one in parts for one in some)]
    fewer = list(dict.fromkeys(some for one in sets for some in evener(source.cluster, one)))
    for some in (*sets, *fewer):
        least_s = source.least_of_equal_ranks_s(some)
        # Fewer groups come no nearer to their bound than all of them did; fewer devices of a node may.
        if least_s * (1.0 if some in fewer else above) >= best_s or (found and spent()):
            continue
        one = source.of_equal_ranks(some, launcher)
        if one is not None and one.step_time_s < best_s:
            found.append(one)
            best_s = one.step_time_s
            above = above if some in fewer else best_s / least_s
    return found


def _sets_of_several(cluster: ClusterSpec, parts: Sequence[IslandPart]) -> list[tuple[IslandPart, ...]]:
    """Two or more parts that can talk to each other, whole or in round numbers of devices, those of most devices first.

    Stages of one strategy have equally many devices: a part of 7 would leave none for any other.
    """
    sets = {
        tuple(kept)
        for joined in joinable(cluster, parts)
        for count in range(2, len(joined) + 1)
        for some in combinations(joined, count)
        for unit in (1, ROUND_DEVICES)
        if len(kept := [IslandPart(p.group, n) for p in some if (n := p.devices // unit * unit)]) > 1
    }
    return sorted(sets, key=lambda one: (-sum(part.devices for part in one), [part.group for part in one]))


def _tell(plans: Iterable[PricedPlan]) -> None:
    """Tell whoever watches of the quickest of plans over several groups."""
    best = min(plans, key=_step_s, default=None)
    if best is not None and watcher() is not None:
        told_found(offer_of(best).on, best.step_time_s)


def _step_s(one: PricedPlan) -> float:
    return one.step_time_s


def job_name(one: PricedPlan) -> str:
    """The model of a plan, or the profile it was measured with."""
    return one.job.model.name if isinstance(one.job, Job) else one.job.profile.name


def offer_of(one: PricedPlan) -> Offer[PricedPlan]:
    """A plan with what it takes and costs; a price that is not known is 0."""
    used = Counter[str]()
    for stage in one.estimate.stages:
        used[stage.group] += stage.devices
    return Offer(
        plan=one,
        step_time_s=one.step_time_s,
        price_per_step=one.estimate.price_per_step or 0.0,
        energy_j=one.estimate.energy_j or 0.0,
        peak_memory_bytes=one.estimate.peak_memory_bytes,
        kept=_kept(one),
        on=" + ".join(f"{count} {name}" for name, count in used.items()),
    )


def _kept(one: PricedPlan) -> float:
    lost = preempted(one)
    return 1.0 if lost is None else lost.kept


def _lasting_s(one: PricedPlan) -> float:
    """Seconds of the run for each step, with what preemptions of spot nodes take."""
    return one.step_time_s / _kept(one)


def _searched_where_close(
    source: StageSource,
    every: Iterable[IslandPart],
    alone: Mapping[int, list[PricedPlan]],
    mixed: Sequence[PricedPlan],
) -> dict[int, list[PricedPlan]]:
    """The kinds that come near the best of all, searched exhaustively: mixing must beat the best they can do."""
    best_s = min((one.step_time_s for one in mixed), default=inf)
    quickest_s = min((own[0].step_time_s for own in alone.values() if own), default=inf)
    found: dict[int, list[PricedPlan]] = {}
    for part in each_a_part(list(every)):
        own = alone[part.group]
        near = bool(own) and own[0].step_time_s <= min(quickest_s * (1 + CLEARLY_FASTER), best_s * (1 + CLOSE))
        if near or not mixed:
            better = source.alone(part, exhaustive=True)
            if better and (not own or better[0].step_time_s < own[0].step_time_s):
                found[part.group] = better
    return found


def _without(
    source: StageSource, left_out: IslandPart, every: Iterable[IslandPart], alone: Mapping[int, list[PricedPlan]]
) -> PricedPlan | None:
    """The best plan that leaves a group out."""
    rest = [part for part in every if part != left_out]
    able = [*_together(source, rest, thorough=False), *(one for part in rest for one in alone[part.group][:1])]
    return min(able, key=_lasting_s, default=None)


def _quickest_without(
    cluster: ClusterSpec, left_out: int, found: PricedPlan | None, candidates: Sequence[PricedPlan]
) -> PricedPlan | None:
    """The best plan found without a group; those of the answer that leave it idle are among them."""
    name = cluster.groups[left_out].name
    idle = (one for one in candidates if not devices_used(cluster, one.estimate)[name])
    return min((*((found,) if found else ()), *idle), key=_lasting_s, default=None)


def _ordered(source: StageSource, found: Iterable[PricedPlan], aim: Aim) -> list[PricedPlan]:
    """Distinct plans, the best by the aim first; with those on fewer devices where they may be better."""
    distinct = {one.plan: one for one in found}
    quick = sorted(distinct.values(), key=lambda one: one.step_time_s)
    if aim.rents and not aim.by.from_front:
        distinct |= {offer.plan.plan: offer.plan for offer in _rented(source, aim, quick)}
    if aim.by.from_front and quick:
        distinct = {one.plan: one for one in quick if one.step_time_s <= FRONT_SLACK * quick[0].step_time_s}
    return sorted(distinct.values(), key=lambda one: aim.rank(offer_of(one)))


def _rented(source: StageSource, aim: Aim, found: Sequence[PricedPlan]) -> list[Offer[PricedPlan]]:
    """Plans on parts of the cluster, the best by the aim first."""
    groups = source.cluster.groups
    most = {group.name: group.devices for group in groups}

    def offers_on(counts: Counts) -> list[Offer[PricedPlan]]:
        parts = [IslandPart(n, counts[group.name]) for n, group in enumerate(groups) if counts[group.name]]
        if len(parts) > 1:
            every = source.rented(parts, aim) if len(joinable(source.cluster, parts)) == 1 else []
        else:
            every = source.alone(parts[0])
        return [offer_of(one) for one in (*every, *(found if counts == most else ()))]

    return rented(most, {group.name: group.devices_per_node for group in groups}, offers_on, aim.rank)
