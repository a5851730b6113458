"""How many devices are enough to train adapters: counts searched under each trainer that has them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from meshwright.budget import spent
from meshwright.errors import InputError, UnsupportedError
from meshwright.fields.job import JobFields, SpaceFields
from meshwright.planning.for_target import priced_as, running
from meshwright.planning.question.job_inputs import job_inputs
from meshwright.planning.size import MOST_DEVICES, Sized, Sizing
from meshwright.planning.size_goal import Goal
from meshwright.targets import FINE_TUNING

BATCH_DEVICES = 8
"""Devices for which a batch that nobody gave is chosen: adapters are trained on few, in batches of few sequences."""


def sized_under_trainers(job: JobFields, goal: Goal, limits: SpaceFields) -> Sized:
    """The fewest devices on which one of the trainers meets the goal; of equal counts the quickest plan.

    Args:
        job: the question, on one node, with adapters.
        goal: what the devices must be enough for.
        limits: pinned and forbidden axes.

    Returns:
        The trainer that needs the fewest; where none meets the goal, the one whose plans come nearest.

    Raises:
        InputError, UnsupportedError: the question is wrong whoever runs it.
    """
    best: Sized | None = None
    nearest: list[Sized] = []
    stopped, at_least = "", MOST_DEVICES
    for trainer in running(FINE_TUNING, job):
        if best is not None and (limit := spent()):
            stopped, at_least = limit, 1
            break
        known = None if best is None else best.found
        try:
            base = job_inputs(priced_as(job, trainer), usual_devices=BATCH_DEVICES)
            asked = partial(Sizing, base, goal, limits.pin, limits.forbid, target=trainer)
            sizing = asked() if known is None else asked(most=known.devices, known=known)
            if not sizing.runs:
                continue
            one = Sized.of(sizing, trainer)
            if best is not None and one.found is not None and _order(one) < _order(best):
                # The answer shows what its other counts take, too.
                one = Sized.of(asked(most=one.found.devices), trainer)
        except (InputError, UnsupportedError):
            continue  # it does not train this
        stopped, at_least = stopped or one.stopped, min(at_least, one.at_least)
        if one.found is not None and (best is None or _order(one) < _order(best)):
            best = one
        if sizing.bounds:
            nearest.append(one)
    if best is None and nearest:
        best = min(nearest, key=_least_s)
    if best is not None:
        return replace(best, stopped=stopped, at_least=at_least)
    return Sized.of(Sizing(job_inputs(job, usual_devices=BATCH_DEVICES), goal, limits.pin, limits.forbid))


def _order(one: Sized) -> tuple[int, float]:
    assert one.found is not None
    return one.found.devices, one.found.step_time_s or 0.0


def _least_s(one: Sized) -> tuple[bool, float]:
    """Sort key: those with plans that fit first, then by their quickest step."""
    sizing = one.sizing
    tried = [point.step_time_s for point in sizing.tried.values() if point.step_time_s is not None]
    least = min(tried or [point.step_time_s or 0.0 for point in sizing.bounds.values()])
    return not tried, least
