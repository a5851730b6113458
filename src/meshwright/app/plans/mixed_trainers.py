"""Adapters on several kinds of device: the best plan that a trainer can start, beside those of the other trainers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshwright.app.plans.mixed import MixedSearch, mixed_search, plan_mixed
from meshwright.app.plans.plan_set import PlanSet
from meshwright.app.requests.plan import PlanRequest
from meshwright.budget import spent
from meshwright.errors import InfeasibleError, InputError, UnsupportedError
from meshwright.estimate.result import StepEstimate
from meshwright.planning.for_target import priced_as, running
from meshwright.planning.mixed.search import offer_of
from meshwright.planning.objectives import Aim
from meshwright.planning.question.job_inputs import JobInputs, job_inputs
from meshwright.planning.repair.job_repair import JobRepair
from meshwright.planning.repair.no_plan import NoPlanError, fix_of
from meshwright.planning.under_trainers import TrainerPlan, trainer_plan, trainer_reason, why_not
from meshwright.planning.usable_islands import usable_islands
from meshwright.report.words.reasons import reason_text
from meshwright.report.words.titles import title_of
from meshwright.search.watching import each_a_part
from meshwright.targets import FINE_TUNING, TARGETS


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    plan: TrainerPlan
    search: MixedSearch | None = None
    """None where the trainer runs no plan that fits."""
    infeasible: InfeasibleError | None = None
    beside: bool = False
    """Whether it stands beside the answer alone: it does not run on the framework that the question states."""


def plan_mixed_trainers(inputs: JobInputs, request: PlanRequest, aim: Aim) -> PlanSet:
    """The best plans of adapters that a trainer starts on several kinds of device, priced as it runs them.

    Args:
        inputs: the question, on the groups that can be used.
        request: names no target and no parallelizers.
        aim: what the plans are ordered by, and limits of time and price.

    Raises:
        InputError: malformed or contradictory input, or a price that is missing.
        UnsupportedError: the front of time and memory is asked for.
        InfeasibleError: no trainer runs a plan that fits.
    """
    tried = _tried(request, aim)
    trainers = tuple(one.plan for one in tried)
    found = _best(tried, aim)
    if found is None:
        none_fits = next((one.infeasible for one in tried if one.infeasible is not None and not one.beside), None)
        if none_fits is not None:
            raise none_fits
        answer = plan_mixed(inputs, request, aim)
        none = "no trainer known here runs a plan of this question; what each lacks is listed under Trainers"
        return replace(answer, trainers=trainers, warnings=(none, *answer.warnings))
    best, search = found
    answer = search.answer()
    named = trainer_reason(TARGETS[best.trainer].title, [one.trainer for one in trainers], request.job)
    verdict = answer.verdict
    verdict = replace(verdict, why=(*verdict.why, reason_text(named)), reasons=(*verdict.reasons, named))
    return replace(answer, trainers=trainers, verdict=verdict)


def trained_repairs(error: NoPlanError, request: PlanRequest, aim: Aim) -> NoPlanError:
    """What would fit, adapters as the best trainer runs them: with the numbers of the answer that they lead to.

    Args:
        error: nothing fits on several kinds of device, and repairs name no trainer.
        request: trains all weights, and names no target.
        aim: what plans are ordered by.
    """
    trained = (_trained(repair, request, aim) for repair in error.repairs)
    repairs = tuple(one for one in trained if one is not None)
    if not repairs:
        return error
    first, *others = error.problems
    repaired = replace(first, fix=fix_of(repairs, pinned=bool(request.space.pin)))
    return NoPlanError((repaired, *others), repairs, code=error.code)


def _trained(repair: JobRepair, request: PlanRequest, aim: Aim) -> JobRepair | None:
    """A repair as the best trainer runs it; None where none does."""
    option, _, lora = repair.option.partition(" ")
    if option != "--lora":
        return repair
    found = _best(_tried(replace(request, job=replace(request.job, lora=lora)), aim, repairs=False), aim)
    if found is None:
        return None
    best, search = found
    assert best.plan is not None
    assert best.step_time_s is not None
    assert best.peak_memory_bytes is not None
    assert best.capacity_bytes is not None
    return replace(
        repair,
        text=f"{repair.text}, with {TARGETS[best.trainer].title}",
        plan=best.plan,
        devices=search.best.plan.devices,
        step_time_s=best.step_time_s,
        peak_memory_bytes=best.peak_memory_bytes,
        capacity_bytes=best.capacity_bytes,
    )


def _tried(request: PlanRequest, aim: Aim, *, repairs: bool = True) -> list[_Tried]:
    """What each trainer runs, or those that there was time for; repairs of the first that runs none, where wanted."""
    tried: list[_Tried] = []
    as_stated = running(FINE_TUNING, request.job)
    own = replace(request, job=replace(request.job, software=None))
    for trainer in each_a_part(FINE_TUNING):
        if tried and spent():
            break  # what was found until then is the answer
        beside = trainer not in as_stated
        first = not beside and all(one.infeasible is None for one in tried if not one.beside)
        under = _under(trainer, own if beside else request, aim, repairs=repairs and first)
        tried.append(replace(under, beside=beside))
    return tried


def _best(tried: Sequence[_Tried], aim: Aim) -> tuple[TrainerPlan, MixedSearch] | None:
    """The best by the aim; None where no trainer runs a plan that fits."""
    found = [(one.plan, one.search) for one in tried if one.search is not None and not one.beside]
    return min(found, key=lambda pair: aim.rank(offer_of(pair[1].best)), default=None)


def _under(trainer: str, request: PlanRequest, aim: Aim, *, repairs: bool) -> _Tried:
    """A search for one trainer, on the groups that can be used."""
    try:
        own, _ = usable_islands(job_inputs(priced_as(request.job, trainer)), request.tolerance)
        search = mixed_search(own, replace(request, target=trainer), aim, repairs=repairs)
    except InfeasibleError as error:
        return _Tried(plan=TrainerPlan(trainer=trainer, why=why_not(error.problems[0])), infeasible=error)
    except (InputError, UnsupportedError) as error:
        return _Tried(plan=TrainerPlan(trainer=trainer, why=why_not(error.problems[0])))
    best = search.best
    estimate = best.estimate
    assert isinstance(estimate, StepEstimate), "layers of a model are priced on data sheets"
    line = title_of(best.job, best.row)
    return _Tried(plan=trainer_plan(trainer, line, estimate, fits=True), search=search)
