"""The answer of a search on several kinds of device, whatever the source of its costs, and what mixing is worth."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from meshwright.app.plans.plan_set import PlanSet, RankedPlan, runner_up
from meshwright.budget import spent
from meshwright.estimate.result import StepEstimate
from meshwright.fields.limits import stopped_warning
from meshwright.formats.cluster import Assumption
from meshwright.planning.mixed.devices_used import devices_used
from meshwright.planning.mixed.mixing import Mixing, idle_devices, mixing_of
from meshwright.planning.mixed.preemptions import Preempted, preempted
from meshwright.planning.mixed.search import MixedPlans, offer_of
from meshwright.planning.mixed.slices import Composition
from meshwright.planning.mixed.source import PricedPlan, SearchRecord, StageSource
from meshwright.planning.objectives import QUICKEST, Aim
from meshwright.planning.reason import Reason
from meshwright.planning.reasons import plan_reasons, price_reasons
from meshwright.planning.used_nodes import on_used_nodes
from meshwright.planning.whole_run import WholeRun, whole_run
from meshwright.report.words.mixed import (
    composition_lines,
    idle_lines,
    mixing_lines,
    preemption_line,
    search_lines,
    worth,
)
from meshwright.report.words.reasons import reason_text
from meshwright.report.words.verdict import Verdict, plan_sentence, run_sentence
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.job import Job
from meshwright.specs.measured import MeasuredModel, MeasuredWorkload
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload
from meshwright.targets import TARGETS
from meshwright.units import percent, seconds, usd

CLEARLY_CHEAPER = 0.1
"""Share of the price of a step that a slower plan must save to be named beside the quickest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an answer repeats of its question."""

    model: ModelSpec | MeasuredModel
    workload: Workload | MeasuredWorkload
    assumptions: tuple[Assumption, ...]
    top: int = 5
    """Plans of the answer."""
    aim: Aim = QUICKEST
    target: str | None = None
    """The framework that has to run the plans; None for any."""
    brief: bool = False
    """Whether comparisons, sensitivity and the runner-up are left out, where an answer has to be quick."""


def mixed_answer(
    asked: Asked, source: StageSource, found: MixedPlans, composition: Composition | None = None
) -> PlanSet:
    """The plan set of what was found, whatever the source of its costs.

    Args:
        asked: the question.
        source: the source that found the plans.
        found: the plans, the best first, and what they are compared with.
        composition: who planned which slice, where parallelizers were asked.
    """
    best, aim = found.candidates[0], asked.aim
    plans = tuple(
        RankedPlan(rank=rank, job=one.job, row=one.row, estimate=one.estimate)
        for rank, one in enumerate(found.candidates[: max(asked.top, 2)], start=1)
    )
    searched, run = source.searched(), whole_run(best.job, best.estimate)
    mixing = None if source.cluster.homogeneous or asked.brief else _mixing(source, found, searched, asked)
    behind = _preempted_quickest(found, aim)
    reasons = [
        Reason.of("identity", text=plans[0].identities()[0]),
        *plan_reasons(best.job, best.estimate, None),
        *price_reasons(best.job, best.estimate, aim),
    ]
    why = [*map(reason_text, reasons), *_cheaper_than(found, aim), *_preemption_lines(preempted(best), behind)]
    why += _cheaper_though_slower(found, aim)
    why += composition_lines(composition) if composition else ()
    why += mixing_lines(mixing, held=composition is None) if mixing else search_lines(searched, best.step_time_s)
    return PlanSet(
        model=asked.model,
        cluster=source.cluster,
        workload=asked.workload,
        assumptions=tuple(_of_used_links(asked.assumptions, source.cluster, plans[: asked.top])),
        verdict=Verdict(
            text=" ".join(_sentences(best, run, mixing)),
            why=tuple(why),
            runner_up=None if asked.brief else runner_up(plans[0], _second(plans, found, behind), aim, mixing),
            reasons=tuple(reasons),
        ),
        plans=plans[: asked.top],
        aim=aim,
        warnings=tuple(_warnings(asked, source.cluster, best, behind, composed=composition is not None)),
        run=run,
        mixing=mixing,
        searched=searched,
        composition=composition,
    )


def _of_used_links(
    assumptions: Sequence[Assumption], cluster: ClusterSpec, plans: Sequence[RankedPlan]
) -> Iterator[Assumption]:
    """What was assumed, without links to groups that none of the plans uses."""
    used = [devices_used(cluster, one.estimate) for one in plans]
    idle = {group.name for group in cluster.groups if not any(each[group.name] for each in used)}
    links = {link.name: not idle.isdisjoint(link.between) for link in cluster.links}
    yield from (one for one in assumptions if not links.get(one.name, False))


def _sentences(best: PricedPlan, run: WholeRun | None, mixing: Mixing | None) -> Iterator[str]:
    """The verdict: the plan, the whole run where its tokens are known, and what mixing is worth."""
    yield plan_sentence(best.job, best.estimate)
    if run:
        yield f"{run_sentence(run)}."
    if mixing:
        yield worth(mixing)


def _warnings(
    asked: Asked, cluster: ClusterSpec, best: PricedPlan, behind: Preempted | None, *, composed: bool
) -> Iterator[str]:
    """What stopped the search, how little memory is free, and which devices are idle."""
    if limit := spent():
        yield stopped_warning(limit)
    if composed and best.estimate.fits != "yes":
        yield "no plan leaves 8% of the memory free; these leave less"
    if not asked.brief:
        unsafe = () if behind is None else behind.groups
        yield from idle_lines(idle_devices(cluster, best.estimate, rented=asked.aim.rents, preempted=unsafe))


def _mixing(source: StageSource, found: MixedPlans, searched: SearchRecord, asked: Asked) -> Mixing:
    """What mixing is worth in the best plan."""
    best = found.candidates[0]
    return mixing_of(
        found,
        best,
        cluster=source.cluster,
        doubts=tuple(source.doubts(best)),
        frameworks=tuple(_frameworks(best, asked.target)),
        searched=searched,
        aim=asked.aim,
    )


def _preemption_lines(lost: Preempted | None, behind: Preempted | None) -> Iterator[str]:
    """What preemptions cost the best plan, and what they would cost a quicker one."""
    if lost is not None:
        yield preemption_line(lost, chosen=True)
    if behind is not None:
        yield preemption_line(behind, chosen=behind is lost)


def _preempted_quickest(found: MixedPlans, aim: Aim) -> Preempted | None:
    """The quickest step, where it is not the best because its nodes are preempted; else None."""
    quickest = found.quickest
    if aim.by is not QUICKEST.by or quickest.step_time_s >= found.candidates[0].step_time_s:
        return None
    return preempted(quickest)


def _second(plans: Sequence[RankedPlan], found: MixedPlans, behind: Preempted | None) -> RankedPlan | None:
    """The plan after the best that is slower by its step: of quicker ones another line says why they are not."""
    least_s = found.candidates[0].step_time_s if behind is not None else 0.0
    return next((one for one in plans[1:] if one.estimate.step_time_s >= least_s), None)


def _cheaper_than(found: MixedPlans, aim: Aim) -> Iterator[str]:
    """What the quickest plan would cost, where a cheaper one was chosen."""
    price, dearest = found.candidates[0].estimate.price_per_step, found.quickest.estimate.price_per_step
    if aim.rents and aim.by.paid_links and price is not None and dearest is not None and price < dearest * (1 - 1e-9):
        yield f"the quickest plan takes {seconds(found.quickest.step_time_s)} for {usd(dearest)}"


def _cheaper_though_slower(found: MixedPlans, aim: Aim) -> Iterator[str]:
    """The cheapest plan known, preemptions counted, where groups have prices of their own and it saves clearly."""
    best = found.candidates[0]
    prices = {group.price_per_hour for group in best.job.cluster.groups}
    if aim.by is not QUICKEST.by or aim.rents or None in prices or len(prices) < 2:
        return
    mine, *others = map(offer_of, found.candidates)
    cheapest = min(others, key=lambda offer: offer.price_per_step / offer.kept, default=mine)
    paid, its = (offer.price_per_step / offer.kept for offer in (mine, cheapest))
    if 0.0 < its < paid * (1.0 - CLEARLY_CHEAPER):
        lasting = "" if cheapest.kept == 1.0 else ", preemptions counted"
        yield (
            f"cheaper: on {cheapest.on} a step takes {seconds(cheapest.step_time_s / cheapest.kept)}{lasting}, for "
            f"{usd(its)} instead of {usd(paid)}: {percent(1.0 - its / paid)} less; --objective cost looks for more"
        )


def _frameworks(one: PricedPlan, asked: str | None) -> Iterator[tuple[str, str]]:
    """Frameworks, that asked for first, and why each cannot run the plan; plans of measured layers are for none."""
    if not isinstance(one.job, Job) or not isinstance(one.estimate, StepEstimate):
        return
    job = on_used_nodes(one.job)
    own = None if asked is None else TARGETS.canonical(asked)
    for name in dict.fromkeys([*([own] if own is not None else []), *TARGETS]):
        target = TARGETS[name]
        if name != own and not target.suggested:
            continue
        # That devices are numbered otherwise follows from any unlike stage, and says the least.
        reasons = [problem.why or problem.what for problem in target.problems(job)]
        plain = [reason for reason in reasons if "numbered" not in reason]
        yield name, (plain or reasons or [""])[0]
