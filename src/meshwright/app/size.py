"""How many devices are enough: the smallest cluster whose best plan meets a time, a deadline or a budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshwright.app.answer import Answer
from meshwright.app.plans.job import plan_set, with_trainers
from meshwright.app.plans.plan_set import PlanSet
from meshwright.errors import InfeasibleError, InputError, Problem
from meshwright.fields.job import JobFields
from meshwright.fields.limits import nothing_in_time
from meshwright.library.devices import device as library_device
from meshwright.planning.one_kind_plans import OneKindPlans
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.planning.size import BATCH_DEVICES, MOST_DEVICES, Sized, Sizing, nodes_of
from meshwright.planning.size_goal import CurvePoint, Goal
from meshwright.records import plain
from meshwright.report.words.sizing import (
    considered_text,
    goal_text,
    limiting_batch_text,
    of_things,
    unproven_text,
)
from meshwright.specs.calibration import Calibration
from meshwright.specs.device import DeviceSpec
from meshwright.units import percent, seconds, significant

if TYPE_CHECKING:
    from meshwright.app.requests.size import SizeRequest


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class SizeAnswer(Answer):
    """The fewest devices, their plan, and the curve of counts searched."""

    device: str
    devices: int
    goal: Goal
    text: str
    considered: str
    """Which counts were considered, and what became of them."""
    plans: PlanSet
    curve: tuple[CurvePoint, ...]
    """The counts that were searched, in the order of devices."""
    stopped: str = ""
    """The limit for which not every count below was looked at; empty where none of them is enough."""
    at_least: int = 1
    """Fewer devices are not enough, which is proven."""

    @property
    def priced_by(self) -> Calibration:
        """The calibration that its prices use."""
        return self.plans.priced_by

    def data(self) -> dict[str, Any]:
        """As data: `meshwright.size/1`."""
        return {
            "schema": "meshwright.size/1",
            "device": self.device,
            "devices": self.devices,
            "goal": self.goal.to_dict(),
            "text": self.text,
            "considered": self.considered,
            **({"stopped": self.stopped, "at_least": self.at_least} if self.stopped else {}),
            "curve": plain(self.curve),
            "plan_set": self.plans.to_dict(),
        }


def size(request: SizeRequest) -> SizeAnswer:
    """The fewest devices whose best plan meets the goal.

    Returns:
        The number of devices, its plans, and the curve of all counts searched.

    Raises:
        InputError: no goal, or malformed input, all problems together.
        UnsupportedError: an unknown name.
        InfeasibleError: no number of devices up to 65,536 meets the goal.
    """
    goal = Goal(days=request.days, step_time_s=request.step_time, max_price=request.max_price)
    device = request.device
    spec = device if isinstance(device, DeviceSpec) else library_device(device)
    job = replace(request.job, cluster=nodes_of(spec, 1))
    base = job_inputs(job, usual_devices=BATCH_DEVICES)
    if goal.max_price is not None and base.cluster.groups[0].price_per_hour is None:
        fix = "say what a device costs in an hour: --price 2.5, --prices FILE, or --prices public for published ones"
        raise InputError(what=f"no price of {spec.name} is known", why="--max-price needs one", fix=fix)
    if base.model.lora is not None:
        return _of_adapters(request, goal, spec, job)
    sizing = Sizing(base, goal, request.space.pin, request.space.forbid)
    sized = Sized.of(sizing)
    found = _found(spec, goal, sized)
    there = replace(job, cluster=sizing.on(found.devices))
    plans = with_trainers(
        _plans(sizing, found),
        sizing.found(found.devices)[0],
        there,
        request.space,
        goal.aim.of_run(base.workload, found.devices),
        top=1,
        usual_devices=BATCH_DEVICES,
        launched=False,  # a slower plan could miss the goal
    )
    return _answer(spec, goal, sized, plans, BATCH_DEVICES)


def _of_adapters(request: SizeRequest, goal: Goal, device: DeviceSpec, job: JobFields) -> SizeAnswer:
    """The fewest devices on which a trainer that has adapters meets the goal, and what each trainer does with them."""
    from meshwright.app.plans.job import fine_tuned
    from meshwright.planning.size_under_trainers import BATCH_DEVICES, sized_under_trainers

    sized = sized_under_trainers(job, goal, request.space)
    sizing = sized.sizing
    found = _found(device, goal, sized)
    if sized.trainer is None:
        plans = _plans(sizing, found)
        none = "no trainer known here runs a plan of this question"
        plans = replace(plans, warnings=(none, *plans.warnings))
        return _answer(device, goal, sized, plans, BATCH_DEVICES)
    there = replace(job, cluster=sizing.on(found.devices))
    aim = goal.aim.of_run(sizing.base.workload, found.devices)
    plans_of_trainers, _ = fine_tuned(there, request.space, aim, top=1, usual_devices=BATCH_DEVICES)
    # At a limit no trainer is searched again; the plan that met the goal is at hand.
    plans = _plans(sizing, found, sized.trainer) if plans_of_trainers is None else plans_of_trainers
    return _answer(device, goal, sized, plans, BATCH_DEVICES)


def _found(device: DeviceSpec, goal: Goal, sized: Sized) -> CurvePoint:
    """The count that meets the goal.

    Raises:
        InputError, UnsupportedError: the pins, or the framework, leave no count a plan.
        InfeasibleError: none meets it, or none was found to within the limits.
    """
    if sized.found is not None:
        return sized.found
    sizing = sized.sizing
    if sizing.unusable is not None and not any(point.name for point in sizing.tried.values()) and not sizing.bounds:
        raise sizing.unusable
    if sized.stopped:
        raise nothing_in_time(sized.stopped, f"the fewest {device.name}", so_far=_so_far(goal, sized))
    raise InfeasibleError(_impossible(device, goal, _curve(sizing), sizing), code="MW302")


def _so_far(goal: Goal, sized: Sized) -> str:
    """What the counts that were tried came to."""
    fitting = [point for point in _curve(sized.sizing) if point.step_time_s is not None]
    proven = f"fewer than {of_things(sized.at_least, 'device')} are not enough" if sized.at_least > 1 else ""
    reached = "" if not fitting else _quickest(fitting, "") if goal.max_price is None else _cheapest(fitting, "")
    return "; ".join(part for part in (proven, f"{reached} so far" if reached else "") if part)


def _plans(sizing: Sizing, found: CurvePoint, target: str | None = None) -> PlanSet:
    """The best plan of a count, under a framework or of none in particular."""
    inputs, best = sizing.found(found.devices)
    return plan_set(inputs, OneKindPlans(found=best), top=1, target=target)


def _curve(sizing: Sizing) -> tuple[CurvePoint, ...]:
    return tuple(sorted(sizing.tried.values(), key=lambda point: point.devices))


def _answer(device: DeviceSpec, goal: Goal, sized: Sized, plans: PlanSet, usual_devices: int) -> SizeAnswer:
    """The count in words, with its plans and the curve.

    Args:
        device: the device of which so many are enough.
        goal: what for.
        sized: the counts that were looked at, and the one that is the answer.
        plans: its plans.
        usual_devices: the number of usual devices for whose number a batch that nobody gave was chosen.
    """
    sizing, found = sized.sizing, sized.found
    assert found is not None, "a count meets the goal"
    proven = not sizing.skipped and (not sized.stopped or sized.at_least >= found.devices)
    enough = "is enough" if found.devices == 1 else "are the fewest" if proven else "are enough"
    work = sizing.base.workload
    limits = unproven_text(found.devices, sized.at_least) if sized.stopped else ""
    if not sizing.base.batch_given:
        limits += limiting_batch_text(found.devices, work.global_batch, work.seq_len, usual_devices)
    return SizeAnswer(
        device=device.name,
        devices=found.devices,
        goal=goal,
        text=f"{found.devices:,} x {device.name} {enough} for {goal_text(goal)}.{limits} {plans.verdict.text}",
        considered=considered_text(sizing),
        plans=plans,
        curve=_curve(sizing),
        stopped=sized.stopped,
        at_least=min(sized.at_least, found.devices),
    )


def _impossible(device: DeviceSpec, goal: Goal, curve: tuple[CurvePoint, ...], sizing: Sizing) -> Problem:
    what = f"no number of {device.name} meets {goal_text(goal)}"
    fitting = [point for point in curve if point.step_time_s is not None]
    points = fitting or list((sizing.bounds or sizing.floors).values())
    if sizing.fewest() > MOST_DEVICES:
        return Problem(
            what=what,
            why=f"at peak speed it takes {sizing.fewest():,} devices; up to {MOST_DEVICES:,} are tried",
            fix="allow more time, or use a faster device",
            field="days",
        )
    if not points or (curve and not fitting):
        why = f"no plan fits; {considered_text(sizing)}"
        return Problem(what=what, why=why, fix="use a device with more memory", field="devices")
    could = "" if fitting else "any plan could be "
    reached = _quickest(points, could) if goal.max_price is None else _cheapest(points, could)
    return Problem(
        what=what,
        why=f"{reached}; {considered_text(sizing)}",
        fix="allow more, raise the global batch so that more devices have work, or use a faster device",
        field="days",
    )


def _cheapest(points: Sequence[CurvePoint], could: str) -> str:
    best = min(points, key=lambda point: point.price if point.price is not None else math.inf)
    if best.price is None:
        return ""
    return f"the cheapest {could}is {best.price:,.0f} USD with {best.devices:,} devices"


def _quickest(points: Sequence[CurvePoint], could: str) -> str:
    best = min(points, key=lambda point: point.step_time_s or math.inf)
    took = f"{significant(best.days)} days" if best.days is not None else seconds(best.step_time_s or 0.0)
    mfu = "" if best.mfu is None else f" ({percent(best.mfu)} MFU)"
    return f"the fastest {could}is {took} with {best.devices:,} devices{mfu}"
