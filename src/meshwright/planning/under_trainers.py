"""The best plan under each trainer that is asked: what it can run, with its own kernels and memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from meshwright.budget import spent
from meshwright.errors import InfeasibleError, InputError, Problem, UnsupportedError
from meshwright.estimate.result import StepEstimate
from meshwright.fields.job import JobFields, SpaceFields
from meshwright.library.calibration import calibration
from meshwright.planning.for_target import TIE, priced_as, running
from meshwright.planning.objectives import QUICKEST, Aim
from meshwright.planning.one_kind import offers
from meshwright.planning.one_kind_plans import OneKindPlans, no_plan_of, one_kind_search
from meshwright.planning.question.job_inputs import JobInputs, job_inputs
from meshwright.planning.reason import Reason
from meshwright.records import Record
from meshwright.search.search import search
from meshwright.search.watching import each_a_part
from meshwright.targets import TARGETS

if TYPE_CHECKING:
    from meshwright.planning.repair.leanest import Leanest
    from meshwright.search.result import SearchResult
    from meshwright.search.space import Space
    from meshwright.specs.cluster import ClusterSpec
    from meshwright.specs.model import ModelSpec
    from meshwright.specs.row import PlanRow
    from meshwright.specs.workload import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerPlan(Record):
    """The best plan that one trainer runs, or the one of least memory where none fits."""

    trainer: str
    """Name of the target."""
    plan: str | None = None
    """The one-line form; None where the trainer runs none."""
    fits: bool = False
    step_time_s: float | None = None
    peak_memory_bytes: float | None = None
    capacity_bytes: float | None = None
    why: str = ""
    """Why the trainer runs none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """Plans that one trainer runs."""

    trainer: str
    inputs: JobInputs
    """The question, priced as the trainer runs it."""
    plans: OneKindPlans

    @property
    def title(self) -> str:
        """Title of the trainer, as its own people write it."""
        return TARGETS[self.trainer].title

    @property
    def table_row(self) -> TrainerPlan:
        """The best plan as a row of the table of trainers."""
        best = self.plans.found.result.plans[0]
        line = best.row.format() if best.row is not None else "recompute per layer"
        return trainer_plan(self.trainer, line, best.estimate, fits=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class UnderTrainer:
    """What a search for one trainer found."""

    plan: TrainerPlan
    searched: Searched | None = None
    """None where the trainer cannot be asked; without a plan where nothing fits."""
    beside: bool = False
    """Whether it stands beside the answer alone: it does not run on the framework that the question states."""


def under_trainers(
    job: JobFields,
    limits: SpaceFields,
    aim: Aim,
    trainers: Sequence[str],
    *,
    top: int,
    pareto: bool = False,
    usual_devices: int | None = None,
    best_alone: bool = False,
    enough: Callable[[Searched], bool] | None = None,
) -> tuple[UnderTrainer, ...]:
    """The best plans under each trainer that is asked, in the order given.

    Args:
        job: the question, on one kind of device.
        limits: pinned and forbidden axes, and schedules.
        aim: what the plans are ordered by, and limits of time and price.
        trainers: names of targets.
        top: how many layouts.
        pareto: whether to find the front.
        usual_devices: the number of usual devices for whose number a batch that nobody gave is chosen; None for those
            of the cluster.
        best_alone: whether of each only the best plan is wanted, none of the others.
        enough: whether the best trainer so far is good enough that nobody else has to be asked; where it is given,
            trainers behind the first are searched for quicker plans alone.
    """
    # The best is the simplest of those that tie; a measured run may stand anywhere.
    usual = best_alone and aim == QUICKEST and job.calibration is None
    near = 1.0 + min(TIE, calibration().tie) if usual else math.inf
    # Some trainers differ in nothing that a search, or the plan of least memory, depends on.
    searched = _Searches()
    searching = partial(one_kind_search, limits=limits, aim=aim, top=top, pareto=pareto, near=near, searched=searched)

    @cache
    def priced(row: PlanRow, model: ModelSpec, cluster: ClusterSpec, workload: Workload) -> Leanest | None:
        from meshwright.planning.repair.leanest import priced_row  # most questions have plans that fit

        return priced_row(row, model, cluster, workload)

    found: list[UnderTrainer] = []
    as_stated = running(trainers, job)
    for name in each_a_part(trainers):
        best = best_trainer(found, aim)
        if found and (spent() or (best is not None and enough is not None and enough(best))):
            break  # what was found until then is the answer
        if best is not None and enough is not None and near < math.inf:
            searched.beat_s = best.plans.found.result.plans[0].estimate.step_time_s
        beside = name not in as_stated
        asked = replace(job, software=None) if beside else job
        one = _under(name, asked, searching, usual_devices, priced if math.isinf(searched.beat_s) else None)
        found.append(replace(one, beside=beside))
    return tuple(found)


class _Searches:
    """`search`, each question once, whatever plan its answers have to beat."""

    def __init__(self) -> None:
        self.beat_s = math.inf
        """Seconds of a plan known elsewhere; no plan that takes longer is wanted."""
        self.found: dict[tuple[object, ...], tuple[float, SearchResult]] = {}

    def __call__(
        self,
        model: ModelSpec,
        cluster: ClusterSpec,
        workload: Workload,
        space: Space,
        *,
        beat_s: float = math.inf,
        **settings: Any,
    ) -> SearchResult:
        """See `search`; slower plans than those wanted may be among the answer."""
        question = (model, cluster, workload, space, *sorted(settings.items()))
        wanted_s = min(beat_s, self.beat_s)
        known_s, result = self.found.get(question, (-math.inf, None))
        if result is None or known_s < wanted_s:
            result = search(model, cluster, workload, space, beat_s=wanted_s, **settings)
            self.found[question] = wanted_s, result
        return result


def best_trainer(found: Sequence[UnderTrainer], aim: Aim) -> Searched | None:
    """The trainer of the best plan on the framework that is stated, the first of equals; None where none fits."""
    able = [one.searched for one in found if one.searched is not None and one.plan.fits and not one.beside]
    return min(able, key=lambda one: aim.rank(offers(one.plans.found)[0]), default=None)


def trainer_reason(best: str, found: Sequence[str], job: JobFields) -> Reason:
    """The reason that names the trainer of an answer's plan.

    Args:
        best: title of the trainer.
        found: names of the trainers that were asked.
        job: the question; trainers that do not run on the framework it states are priced under their own.
    """
    stated: dict[str, object] = {}
    if job.software is not None:
        as_stated = running(found, job)
        stated = {"software": job.software, "own": [name for name in found if name not in as_stated]}
    return Reason.of("trainer", title=best, trainers=len(found), **stated)


def no_trainer(found: tuple[UnderTrainer, ...], asked: JobInputs, limits: SpaceFields) -> InfeasibleError | None:
    """Why nothing fits, of the trainer that needs the least memory; None where no trainer can be asked.

    Args:
        found: the answers under each trainer, none with a plan that fits.
        asked: the question of no trainer.
        limits: the limits of the search.
    """
    asked_of = [one for one in found if not one.beside]
    tried = [(one.plan.peak_memory_bytes or 0.0, one.searched) for one in asked_of if one.searched is not None]
    if not tried:
        return None
    _, least = min(tried, key=lambda pair: pair[0])
    return no_plan_of(least.inputs, limits, least.plans.found, least.trainer, asked=asked)


def _under(
    trainer: str,
    job: JobFields,
    searching: Callable[..., OneKindPlans],
    usual_devices: int | None,
    priced: Callable[..., Leanest | None] | None,
) -> UnderTrainer:
    """A search for one trainer; `priced` prices what needs the least memory where nothing fits, if that is wanted."""
    try:
        inputs = job_inputs(priced_as(job, trainer), usual_devices=usual_devices)
        plans = searching(inputs, target=trainer)
    except (InfeasibleError, InputError, UnsupportedError) as error:
        return UnderTrainer(plan=TrainerPlan(trainer=trainer, why=why_not(error.problems[0])))
    searched = Searched(trainer=trainer, inputs=inputs, plans=plans)
    if plans.found.result.plans:
        return UnderTrainer(plan=searched.table_row, searched=searched)
    if priced is None:
        return UnderTrainer(
            plan=TrainerPlan(trainer=trainer, why="none of its plans is quicker than another trainer's")
        )
    from meshwright.planning.repair.leanest import leanest  # most questions have plans that fit

    assert plans.space is not None
    tried = leanest(inputs.model, inputs.cluster, inputs.workload, plans.space, priced)
    if not tried:
        return UnderTrainer(plan=TrainerPlan(trainer=trainer, why="it runs no plan of this job"))
    line, estimate = tried[0].row.format(), tried[0].estimate
    return UnderTrainer(plan=trainer_plan(trainer, line, estimate, fits=False), searched=searched)


def why_not(problem: Problem) -> str:
    """Why a trainer does not run a plan, in a line of the table of trainers."""
    return ": ".join(text for text in (problem.what.removeprefix("plan: "), problem.why) if text)


def trainer_plan(trainer: str, line: str, estimate: StepEstimate, *, fits: bool) -> TrainerPlan:
    """A plan that a trainer runs, as the table of trainers has it.

    Args:
        trainer: name of the target.
        line: the plan in one line.
        estimate: the estimate under the trainer.
        fits: whether it is an answer.
    """
    full = estimate.fullest
    return TrainerPlan(
        trainer=trainer,
        plan=line,
        fits=fits,
        step_time_s=estimate.step_time_s,
        peak_memory_bytes=full.peak_memory_bytes,
        capacity_bytes=full.capacity_bytes,
    )
