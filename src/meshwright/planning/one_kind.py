"""Planning on one kind of node: which devices can be used, what a target can run, what an aim prefers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

from meshwright.errors import InputError, Problem, UnsupportedError
from meshwright.planning.fewer_nodes import fewer_of_each, first_nodes, halved_nodes, is_round, parts, rounder_parts
from meshwright.planning.objectives import Aim, Offer, admitted, require_prices
from meshwright.planning.reason import Reason, idle_reason
from meshwright.search.one_space import FRONT_SLACK
from meshwright.search.result import FoundPlan, SearchResult
from meshwright.search.search import search
from meshwright.search.space import Space
from meshwright.search.table import divisors
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload
from meshwright.units import HOUR_S

MOST_SUBSETS = 6
CLEARLY_FASTER = 0.02
MOST_ASKED = 40
"""Layouts asked of the search when a target refuses some."""
MORE_ASKED = 4
"""How many times as many each time: a search for many takes little longer than one for few, and starts anew."""

Refusals = Callable[[Job], tuple[Problem, ...]]
"""What a target refuses of a plan."""
Search = Callable[..., SearchResult]
"""`search`, or the same that keeps what it has found."""
SpaceFor = Callable[[ClusterSpec], Space]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPlans:
    """The best plans, and how many of the devices they use."""

    result: SearchResult
    cluster: ClusterSpec
    """The part of the cluster that is used."""
    idle: Reason | None = None
    """Why devices are left out, where some are."""

    def job(self, found: FoundPlan, model: ModelSpec, workload: Workload) -> Job:
        """One of the plans as a job."""
        name = found.row.format() if found.row else None
        return Job(model=model, cluster=self.cluster, workload=workload, plan=found.plan, name=name)


def find_plans(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    space_for: SpaceFor,
    *,
    top: int = 5,
    refuses: Refusals | None = None,
    pareto: bool = False,
    searched: Search = search,
) -> BestPlans:
    """The quickest plans on a cluster or, where not all devices can be used well, on the largest part that can.

    Args:
        model: the model.
        cluster: one group of equal nodes.
        workload: the step.
        space_for: the search space for a number of devices.
        top: how many layouts.
        refuses: what a target refuses of a job.
        pareto: whether to find the front of time and memory.
        searched: searches a space.

    Returns:
        Plans, none if nothing fits; the part of the cluster they use and why the rest idles.
    """

    @cache  # the same part may be the largest round one and the one that divides the batch
    def on(part: ClusterSpec, beat_s: float = math.inf) -> SearchResult:
        space = space_for(part)
        return accepted(model, part, workload, space, top, refuses, pareto=pareto, beat_s=beat_s, searched=searched)

    whole = found = BestPlans(result=on(cluster), cluster=cluster)
    if not whole.result.plans or not is_round(cluster.devices):
        found = _part(found, on, model, workload)
    group = cluster.groups[0]
    fewer = (
        first_nodes(cluster, nodes=nodes, per_node=each)
        for nodes, each in rounder_parts(group.nodes, group.devices_per_node, workload.global_batch)
    )
    for part in (*fewer_of_each(cluster, workload.global_batch), *fewer):
        found = _quicker_on(part, found, whole, on, model, workload)
    if found.result.pareto:
        # The search may have kept slower plans that nothing beats on the way to the quickest.
        slowest_s = found.result.plans[0].estimate.step_time_s * FRONT_SLACK
        front = tuple(plan for plan in found.result.pareto if plan.estimate.step_time_s <= slowest_s)
        found = replace(found, result=replace(found.result, pareto=front))
    return found


def _part(
    found: BestPlans, on: Callable[[ClusterSpec], SearchResult], model: ModelSpec, workload: Workload
) -> BestPlans:
    """The quicker of the whole cluster and its largest part of a round count.

    Where the whole is round and has legal plans, fewer devices do not help.
    """
    cluster, best = found.cluster, found
    if is_round(cluster.devices) and found.result.certificate.space:
        return found
    tried = 0
    for part in parts(cluster):
        if not is_round(part.devices):
            continue
        try:
            result = on(part)
        except (InputError, UnsupportedError):
            continue  # a pin or target that the whole cluster could follow and this part cannot
        tried += 1
        if result.plans:
            time_s = result.plans[0].estimate.step_time_s
            if not best.result.plans or time_s < best.result.plans[0].estimate.step_time_s * (1 - CLEARLY_FASTER):
                best = BestPlans(result=result, cluster=part, idle=_idle(found, part, model, workload, time_s))
            break
        if tried == MOST_SUBSETS:
            break
    return best


def _quicker_on(
    part: ClusterSpec,
    found: BestPlans,
    whole: BestPlans,
    on: Callable[..., SearchResult],
    model: ModelSpec,
    workload: Workload,
) -> BestPlans:
    """The quicker of what was found and the plans on a part of a cluster; those of the whole say why it is quicker."""
    if part == found.cluster:
        return found
    best_s = min((plan.estimate.step_time_s for plan in found.result.plans), default=math.inf)
    try:
        # Most parts are slower, which bounds show in a fraction of a search; one that is not is searched for all plans.
        if best_s < math.inf and not found.result.pareto and not on(part, best_s).plans:
            return found
        result = on(part)
    except (InputError, UnsupportedError):
        return found  # a pin or target that the whole cluster could follow and this part cannot
    time_s = min((plan.estimate.step_time_s for plan in result.plans), default=math.inf)
    if time_s >= best_s:
        return found
    return BestPlans(result=result, cluster=part, idle=_idle(whole, part, model, workload, time_s))


def _idle(whole: BestPlans, part: ClusterSpec, model: ModelSpec, workload: Workload, time_s: float) -> Reason:
    """Why a part of the devices is used."""
    devices, certificate = whole.cluster.devices, whole.result.certificate
    idle = partial(idle_reason, part.devices, devices, **_used_of_each(whole.cluster, part))
    if whole.result.plans:
        slower = whole.result.plans[0]
        name = slower.row.format() if slower.row else "another plan"
        ratio = slower.estimate.step_time_s / time_s - 1
        return idle(why="slower", plan=name, ratio=ratio)
    if certificate.space:
        return idle(why="too large", space=certificate.space)
    factor = max(d for d in divisors(devices) if all(d % other for other in divisors(d)[1:-1]))
    heads = next((number for kind in model.kinds() for _, number in kind.attention.divided), 0)
    refused = {
        "dp": ("batch", workload.global_batch) if workload.global_batch % factor else None,
        "tp": ("heads", heads) if heads % factor else None,
        "pp": ("layers", model.most_stages) if factor > model.most_stages else None,
        "cp": ("tokens", workload.seq_len) if workload.seq_len % factor else None,
    }
    axes = {axis: why for axis, why in refused.items() if why is not None}
    return idle(why="factor", factor=factor, axes=axes)


def _used_of_each(cluster: ClusterSpec, part: ClusterSpec) -> dict[str, Any]:
    """Devices of each scale-up domain of several nodes that a part takes; nothing where it takes whole ones."""
    (domain, *_), (used, *_) = cluster.groups[0].domains, part.groups[0].domains
    several = cluster.groups[0].devices_per_node < domain.size < cluster.devices
    if not several or not used.size < min(domain.size, part.devices):
        return {}
    return {"each": {"used": used.size, "devices": domain.size, "domain": domain.name}}


def accepted(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    space: Space,
    top: int,
    refuses: Refusals | None,
    *,
    pareto: bool = False,
    beat_s: float = math.inf,
    searched: Search = search,
) -> SearchResult:
    """Search, asking for more layouts while the target refuses some of those found.

    Args:
        model: the model.
        cluster: one group of equal nodes, all of which are used.
        workload: the step.
        space: what the target can run of it.
        top: how many layouts.
        refuses: what the target refuses of a job; None without one.
        pareto: whether to find the front of time and memory.
        beat_s: the seconds to beat, as in `search`.
        searched: searches a space.

    Raises:
        UnsupportedError: plans fit, and the target refuses all that were found.
    """
    asked = top
    while True:
        refine = refuses is None
        result = searched(model, cluster, workload, space, top=asked, pareto=pareto, refine=refine, beat_s=beat_s)
        if refuses is None or not result.plans:
            return result
        from meshwright.planning.target_space import plain_instead

        where = BestPlans(result=result, cluster=cluster)
        refusals = [refuses(where.job(plan, model, workload)) for plan in result.plans]
        good = tuple(plan for plan, problems in zip(result.plans, refusals, strict=True) if not problems)
        if refusals[0] and space.near < math.inf:
            # Near the quickest one that is not refused, which takes no longer than those found.
            beat_s = min([beat_s, *(plan.estimate.step_time_s * space.near for plan in good[:1])])
            space = replace(space, near=math.inf)
            continue
        front = tuple(plan for plan in result.pareto if not refuses(where.job(plan, model, workload)))
        plain = plain_instead(space, refusals)
        if plain is not None:
            again = accepted(
                model, cluster, workload, plain, top, refuses, pareto=pareto, beat_s=beat_s, searched=searched
            )
            both = {plan.row: plan for plan in (*again.plans, *good)}
            ordered = sorted(both.values(), key=lambda plan: plan.estimate.step_time_s)
            # Plans with the setting that are not refused are quicker than the bound of those without it.
            bounds_s = (one.certificate.bound_step_time_s for one in (again, result))
            bound_s = min((bound for bound in bounds_s if bound is not None), default=None)
            certificate = replace(again.certificate, optimal=False, bound_step_time_s=bound_s)
            return replace(again, plans=tuple(ordered[:top]), certificate=certificate)
        if len(good) >= top or len(result.plans) < asked or asked >= MOST_ASKED:
            if not good:
                raise UnsupportedError(
                    list(dict.fromkeys(p for problems in refusals for p in problems))[:8], code="MW420"
                )
            # The certificate speaks of the whole space; what is faster and refused was left out.
            optimal = result.certificate.optimal and not refusals[0]
            certificate = replace(result.certificate, optimal=optimal)
            return replace(result, plans=good[:top], pareto=front, certificate=certificate)
        asked = min(MORE_ASKED * asked, MOST_ASKED)


def find_best(
    model: ModelSpec,
    cluster: ClusterSpec,
    workload: Workload,
    space_for: SpaceFor,
    aim: Aim,
    *,
    top: int = 5,
    refuses: Refusals | None = None,
    pareto: bool = False,
    searched: Search = search,
) -> BestPlans:
    """The best plans by an aim, on as many nodes as it takes.

        price of a step = price per device and hour x devices x step / 3600

    On the devices that are rented the quickest plan is the cheapest one. Without a price, device-hours order the plans.

    Args:
        model: the model.
        cluster: one group of equal nodes.
        workload: the step.
        space_for: the search space for a number of devices.
        aim: time, on all devices that can be used well; cost, on the whole cluster, or on halves and three quarters of
            its nodes, as energy is, and time where the price of a step is limited; memory, the least peak among plans
            at most 10% slower than the quickest.
        top: how many layouts.
        refuses: what a target refuses of a job.
        pareto: whether to find the front of time and memory.
        searched: searches a space.

    Returns:
        Plans that keep to the limits, none if nothing fits; the part of the cluster they use and why the rest idles.

    Raises:
        InputError: a price is limited and not known.
        InfeasibleError: plans fit, and none keeps to the limits.
    """
    if aim.by.requires is not None and not aim.by.orders_alike:
        aim.by.requires(group.device.name for group in cluster.groups if aim.by.per_hour(group) is None)
    if math.isfinite(aim.max_price_per_step):
        require_prices(group.device.name for group in cluster.groups if group.price_per_hour is None)
    on = partial(
        find_plans,
        model,
        workload=workload,
        space_for=space_for,
        top=top,
        refuses=refuses,
        pareto=pareto or aim.by.from_front,
        searched=searched,
    )
    whole = on(cluster=cluster)
    if aim.by.from_front:
        front = whole.result.pareto or whole.result.plans
        whole = replace(whole, result=replace(whole.result, plans=front))
        ordered = tuple(offer.plan for offer in sorted(offers(whole), key=aim.by.key))
        whole = replace(whole, result=replace(whole.result, plans=ordered))
    found = [whole]
    if aim.rents and not aim.by.from_front:
        found += _on_fewer(cluster, on)
    best = whole
    for other in found[1:]:
        if not best.result.plans or _clearly_better(offers(other)[0], offers(best)[0], aim):
            best = other
    if best is not whole:
        best = replace(best, idle=_why_fewer(whole, best, aim))
    kept = tuple(offer.plan for offer in offers(best) if aim.excess(offer) == 0)
    if best.result.plans and not kept:
        raise_unmet(found, aim, model)
    return replace(best, result=replace(best.result, plans=kept[:top]))


def raise_unmet(found: Sequence[BestPlans], aim: Aim, model: ModelSpec) -> None:
    """Say which limits no plan keeps to.

    Args:
        found: the plans found on each part of a cluster, the whole one first; none keeps to the limits.
        aim: the limits.
        model: the model of the plans.

    Raises:
        InfeasibleError: always.
    """
    every = sorted((offer for one in found for offer in offers(one)), key=aim.rank)
    if found[0].cluster.groups[0].price_per_hour is None:
        every = [replace(offer, price_per_step=0.0) for offer in every]
    admitted(aim, every, f"{model.name} on {found[0].cluster.name}")


def _on_fewer(cluster: ClusterSpec, on: partial[BestPlans]) -> list[BestPlans]:
    """Plans on fewer and fewer nodes, as long as any fits."""
    group, found = cluster.groups[0], list[BestPlans]()
    for nodes in halved_nodes(group.nodes):
        part = first_nodes(cluster, nodes=nodes, per_node=group.devices_per_node)
        try:
            one = on(cluster=part)
        except (InputError, UnsupportedError):
            continue  # a pin or target that the whole cluster could follow and this part cannot
        if not one.result.plans:
            break
        found.append(one)
    return found


def _clearly_better(one: Offer[FoundPlan], other: Offer[FoundPlan], aim: Aim) -> bool:
    """Nearer to the limits, or, where both keep to them, better by half of what counts as clearly so."""
    excess, value = aim.rank(one)[:2]
    least_excess, least = aim.rank(other)[:2]
    return excess < least_excess or (excess == least_excess == 0 and value < least * (1 - CLEARLY_FASTER / 2))


def _why_fewer(whole: BestPlans, part: BestPlans, aim: Aim) -> Reason:
    """What the part has over the whole cluster."""
    counts = part.cluster.devices, whole.cluster.devices
    if not whole.result.plans:
        return idle_reason(*counts, "too large", rented=True, space=whole.result.certificate.space)
    before, after = offers(whole)[0], offers(part)[0]
    if aim.excess(before) > 0:
        return idle_reason(*counts, "limits", rented=True, limits=aim.limits_text())
    value, least = aim.by.key(before)[0], aim.by.key(after)[0]
    if not aim.by.rents:
        value, least = before.price_per_step, after.price_per_step
    return idle_reason(*counts, aim.by.saves, rented=True, saved=1 - least / value)


def offers(found: BestPlans) -> list[Offer[FoundPlan]]:
    """The plans with what they take and cost, in their order."""
    group, devices = found.cluster.groups[0], found.cluster.devices
    rate = 1.0 if group.price_per_hour is None else group.price_per_hour
    return [
        Offer(
            plan=plan,
            step_time_s=plan.estimate.step_time_s,
            price_per_step=rate * devices * plan.estimate.step_time_s / HOUR_S,
            energy_j=plan.estimate.energy_j or 0.0,
            peak_memory_bytes=plan.estimate.peak_memory_bytes,
            on=f"{devices} {group.device.name}",
        )
        for plan in found.result.plans
    ]
