"""The answer to a question about several kinds of device, whatever the source of its stage costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from meshwright.app.plan_set import PlanSet, RankedPlan, runner_up
from meshwright.estimate.result import StepEstimate
from meshwright.formats.cluster import Assumption
from meshwright.planning.exporters import EXPORTERS
from meshwright.planning.mixed.mixing import Mixing, idle_devices, mixing_of
from meshwright.planning.mixed.search import MixedPlans
from meshwright.planning.mixed.slices import Composition
from meshwright.planning.mixed.source import PricedPlan, StageSource
from meshwright.planning.objectives import QUICKEST, Aim
from meshwright.planning.reason import Reason
from meshwright.planning.reasons import plan_reasons, price_reasons
from meshwright.planning.whole_run import whole_run
from meshwright.report.words.mixed import composition_lines, idle_lines, mixing_lines, search_lines, worth
from meshwright.report.words.reasons import reason_text
from meshwright.report.words.verdict import Verdict, sentence
from meshwright.specs.job import Job
from meshwright.specs.measured import MeasuredModel, MeasuredWorkload
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload
from meshwright.units import seconds, usd


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What an answer repeats of its question."""

    model: ModelSpec | MeasuredModel
    workload: Workload | MeasuredWorkload
    assumptions: tuple[Assumption, ...]
    top: int = 5
    """Plans of the answer."""
    aim: Aim = QUICKEST
    brief: bool = False
    """Whether comparisons, sensitivity and the runner-up are left out, where an answer has to be quick."""


def mixed_answer(
    asked: Asked, source: StageSource, found: MixedPlans, composition: Composition | None = None
) -> PlanSet:
    """The plan set of what was found, whatever the source of its costs.

    Args:
        asked: the question.
        source: that found the plans.
        found: they, the best first, and what they are compared with.
        composition: who planned which slice, where parallelizers were asked.
    """
    best, aim = found.candidates[0], asked.aim
    plans = tuple(
        RankedPlan(rank=rank, job=one.job, row=one.row, estimate=one.estimate)
        for rank, one in enumerate(found.candidates[: max(asked.top, 2)], start=1)
    )
    searched = source.searched()
    mixing: Mixing | None = None
    if not (source.cluster.homogeneous or asked.brief):
        mixing = mixing_of(
            found,
            best,
            doubts=tuple(source.doubts(best)),
            frameworks=tuple(_frameworks(best)),
            searched=searched,
            rented=aim.rents,
        )
    idle = () if asked.brief else idle_lines(idle_devices(source.cluster, best.estimate, rented=aim.rents))
    tight = ("no plan leaves 8% of the memory free; these leave less",) if best.estimate.fits != "yes" else ()
    reasons = [
        Reason.of("identity", text=plans[0].identities()[0]),
        *plan_reasons(best.job, best.estimate, None),
        *price_reasons(best.job, best.estimate, aim),
    ]
    why = [*map(reason_text, reasons), *_cheaper_than(found, aim)]
    why += composition_lines(composition) if composition else ()
    why += mixing_lines(mixing, held=composition is None) if mixing else search_lines(searched, best.step_time_s)
    return PlanSet(
        model=asked.model,
        cluster=source.cluster,
        workload=asked.workload,
        assumptions=asked.assumptions,
        verdict=Verdict(
            text=" ".join([sentence(best.job, best.estimate), *([worth(mixing)] if mixing else [])]),
            why=tuple(why),
            runner_up=None if asked.brief else runner_up(plans[0], plans[1] if len(plans) > 1 else None, aim),
            reasons=tuple(reasons),
        ),
        plans=plans[: asked.top],
        aim=aim,
        warnings=(*(tight if composition else ()), *idle),
        run=whole_run(best.job, best.estimate),
        mixing=mixing,
        searched=searched,
        composition=composition,
    )


def _cheaper_than(found: MixedPlans, aim: Aim) -> Iterator[str]:
    """What the quickest plan would cost, where a cheaper one was chosen."""
    price, dearest = found.candidates[0].estimate.price_per_step, found.quickest.estimate.price_per_step
    if aim.rents and price is not None and dearest is not None and price < dearest * (1 - 1e-9):
        yield f"the quickest plan takes {seconds(found.quickest.step_time_s)} for {usd(dearest)}"


def _frameworks(one: PricedPlan) -> Iterator[tuple[str, str]]:
    """Frameworks, and why each cannot run the plan; plans of measured layers are for none."""
    if not isinstance(one.job, Job) or not isinstance(one.estimate, StepEstimate):
        return
    for name, exporter in EXPORTERS.items():
        # That devices are numbered otherwise follows from any unlike stage, and says the least.
        reasons = [problem.why or problem.what for problem in exporter.refused(one.job)]
        plain = [reason for reason in reasons if "numbered" not in reason]
        yield name, (plain or reasons or [""])[0]
