"""The best plan of one job over several kinds of device: compositions through all islands against each kind alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshwright.app.mixing_facts import mixing_of
from meshwright.app.plan_set import PlanSet, RankedPlan
from meshwright.errors import InfeasibleError, MeshwrightError, Problem, UnsupportedError
from meshwright.formats.cluster import Assumption
from meshwright.planning.axes import space_of, target_rule
from meshwright.planning.island_rent import offer_of, rent_islands
from meshwright.planning.island_search import Candidate, IslandSearch
from meshwright.planning.job_inputs import JobInputs
from meshwright.planning.mixing import Subset
from meshwright.planning.objectives import QUICKEST, Aim, admitted, require_prices
from meshwright.planning.one_kind import CLEARLY_FASTER, restricted
from meshwright.planning.whole_run import whole_run
from meshwright.report.words.prices import price_lines
from meshwright.report.words.verdict import RunnerUp, Verdict, against, reasons, sentence
from meshwright.search.search import FRONT_SLACK
from meshwright.search.space import Space
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.units import gib, percent, usd

COMPOSED = 12
"""Compositions that are priced in full for an answer."""
SUBSET_COMPOSED = 2
"""Likewise for each part of the cluster that the answer is compared with."""
CLOSE = 0.05
"""Where mixing gains less than this over one kind alone, that kind is searched exhaustively before anything is said."""


def check_islands(*, pareto: bool) -> None:
    """Refuse what only one kind of device can be asked for.

    Raises:
        UnsupportedError: the front of time and memory of a mixed cluster.
    """
    if pareto:
        raise UnsupportedError(
            Problem(
                what="--pareto on several groups of nodes",
                why="the front of time, memory, devices and cost is that of one kind of device",
                fix="leave it out, or plan one group",
                field="pareto",
            ),
            code="MW407",
        )


def plan_islands(
    inputs: JobInputs,
    *,
    top: int = 5,
    aim: Aim = QUICKEST,
    pin: str | Iterable[str] = (),
    forbid: str | Iterable[str] = (),
    schedule: str | Iterable[str] | None = None,
    target: str | None = None,
) -> PlanSet:
    """The best plans of a job on a cluster of several groups.

    Args:
        inputs: model, cluster and workload.
        top: how many plans.
        aim: time, memory or cost, and their limits, as `plan` has them; every used device counts at its own price.
        pin: axes held to values, wherever a stage stands.
        forbid: axes left at their plain value.
        schedule: pipeline schedules that may be used.
        target: only plans this framework can run.

    Returns:
        The plans, best first, with what mixing is worth.

    Raises:
        InputError: malformed or contradictory input, or a price that is missing.
        InfeasibleError: no plan fits, or none keeps to the limits.
    """
    refuses = target_rule(target)
    spec, workload = inputs.model, inputs.workload

    def space_for(part: ClusterSpec) -> Space:
        space = space_of(spec, workload, part.devices, pin=pin, forbid=forbid, schedule=schedule)
        return restricted(space, spec, part, workload, refuses) if refuses and part.homogeneous else space

    if aim.rents:
        require_prices(group.device.name for group in inputs.cluster.groups if group.price_per_hour is None)
    run = IslandSearch(inputs, space_for)
    every = range(len(inputs.cluster.groups))
    alone = {number: run.alone(number) for number in every}
    mixed = [*run.composed(every, COMPOSED), *run.leaving_out(every, SUBSET_COMPOSED)] if refuses is None else []
    alone = _searched_where_close(run, alone, mixed)
    without = {}
    if len(alone) > 2 and refuses is None:
        without = {number: _without(run, number, alone) for number in every}
    candidates = _ordered(run, [*mixed, *alone.values(), *without.values()], aim)
    if refuses is not None:
        candidates = [one for one in candidates if not refuses(_job(run, one))]
    if not candidates:
        raise _nothing_fits(inputs)
    if aim.limited:
        offers = [offer_of(run, one) for one in candidates]
        admitted(aim, offers, f"{spec.name} on {inputs.cluster.name}")
        candidates = [offer.plan for offer in offers if aim.excess(offer) == 0]
    return _answer(run, candidates, alone, without, top, aim, target)


def _searched_where_close(
    run: IslandSearch, alone: dict[int, Candidate | None], mixed: Sequence[Candidate]
) -> dict[int, Candidate | None]:
    """The kinds that come near the best composition, searched exhaustively: mixing must beat the best they can do."""
    best_s = min((one.step_time_s for one in mixed), default=float("inf"))
    quickest_s = min((one.step_time_s for one in alone.values() if one), default=float("inf"))
    found = dict(alone)
    for number, one in alone.items():
        near = one is not None and one.step_time_s <= min(quickest_s * (1 + CLEARLY_FASTER), best_s * (1 + CLOSE))
        if near or not mixed:
            better = run.alone(number, exhaustive=True)
            if better is not None and (one is None or better.step_time_s < one.step_time_s):
                found[number] = better
    return found


def _without(run: IslandSearch, number: int, alone: dict[int, Candidate | None]) -> Candidate | None:
    """The best plan that leaves a group out."""
    rest = [other for other in alone if other != number]
    able = [*run.composed(rest, SUBSET_COMPOSED), *(found for k in rest if (found := alone[k]) is not None)]
    return min(able, key=lambda one: one.step_time_s, default=None)


def _ordered(run: IslandSearch, found: Sequence[Candidate | None], aim: Aim) -> list[Candidate]:
    """Distinct candidates, the best by the aim first; with those on fewer devices where they may be better."""
    distinct = {one.plan: one for one in found if one is not None}
    quick = sorted(distinct.values(), key=lambda one: one.step_time_s)
    if aim.rents and aim.objective != "memory":
        distinct |= {offer.plan.plan: offer.plan for offer in rent_islands(run, aim, quick)}
    if aim.objective == "memory" and quick:
        distinct = {one.plan: one for one in quick if one.step_time_s <= FRONT_SLACK * quick[0].step_time_s}
    return sorted(distinct.values(), key=lambda one: aim.rank(offer_of(run, one)))


def _answer(
    run: IslandSearch,
    candidates: Sequence[Candidate],
    alone: dict[int, Candidate | None],
    without: dict[int, Candidate | None],
    top: int,
    aim: Aim,
    target: str | None,
) -> PlanSet:
    inputs, groups = run.inputs, run.cluster.groups
    plans = tuple(
        RankedPlan(rank=rank, job=_job(run, one), row=one.row, estimate=one.estimate)
        for rank, one in enumerate(candidates[: max(top, 2)], start=1)
    )
    best = plans[0]

    def subset(numbers: Iterable[int], one: Candidate | None) -> Subset:
        said = " + ".join(f"{groups[n].devices} {groups[n].name}" for n in numbers)
        return Subset(
            said=said,
            step_time_s=one.step_time_s if one else None,
            price_per_step=one.estimate.price_per_step if one else None,
        )

    mixing = mixing_of(
        best.job,
        best.estimate,
        alone=tuple(subset([n], one) for n, one in alone.items()),
        without=tuple((groups[n].name, subset([k for k in alone if k != n], one)) for n, one in without.items()),
        counts=dict(run.composer.counts) | {"priced in full": run.priced, "priced in full: too large": run.too_large},
        rented=aim.rents,
        bound_s=run.bound_s(),
    )
    spent = whole_run(best.job, best.estimate)
    notes = tuple(
        Assumption(name=f"only {axis}", value=", ".join(map(str, values)), basis="assumed")
        for axis, values in run.space.pins
        if len(values) <= 8
    )
    if target:
        notes += (Assumption(name="target", value=f"plans that {target} can run", basis="assumed"),)
    return PlanSet(
        model=run.model,
        cluster=run.cluster,
        workload=run.workload,
        assumptions=(*inputs.assumptions, *notes),
        verdict=Verdict(
            text=f"{sentence(best.job, best.estimate)} {mixing.worth()}",
            why=(
                *(f"it is: {line}" for line in best.identities()[:1]),
                *reasons(best.job, best.estimate, None, "time"),
                *price_lines(best.job, best.estimate, aim),
                *mixing.lines(),
            ),
            runner_up=_runner_up(plans, aim),
        ),
        plans=plans[:top],
        aim=aim,
        warnings=mixing.idle,
        run=spent,
        mixing=mixing,
    )


def _runner_up(plans: Sequence[RankedPlan], aim: Aim) -> RunnerUp | None:
    if len(plans) < 2:
        return None
    best, other = plans[0], plans[1]
    because = against(best.estimate, other.estimate)
    prices = best.estimate.price_per_step, other.estimate.price_per_step
    if aim.objective == "cost" and prices[0] and prices[1]:
        because = f"costs {percent(prices[1] / prices[0] - 1.0)} more a step: {usd(prices[1])}"
    return RunnerUp(
        name=other.name,
        title=other.title,
        step_time_s=other.estimate.step_time_s,
        loses_because=because,
    )


def _job(run: IslandSearch, one: Candidate) -> Job:
    """A plan on one group alone keeps its one-line form in its row only: it says nothing of where it stands."""
    return Job(model=run.model, cluster=run.cluster, workload=run.workload, plan=one.plan)


def _nothing_fits(inputs: JobInputs) -> MeshwrightError:
    sizes = ", ".join(
        f"{group.devices} x {group.device.name} of {gib(group.device.memory_bytes)}" for group in inputs.cluster.groups
    )
    return InfeasibleError(
        Problem(
            what=f"no plan of {inputs.model.name} fits {sizes}",
            why="neither one kind of device alone nor any composition found leaves 8% of the memory free",
            fix="add devices, shorten --seq, or lift what is pinned or forbidden",
            field="cluster",
        )
    )
