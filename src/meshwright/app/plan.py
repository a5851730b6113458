"""`plan`: the best plans of a model on a cluster, of measured profiles, or of an earlier job on what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshwright.app.plans.plan_set import PlanSet
    from meshwright.app.replan import Replanned
    from meshwright.app.requests.plan import PlanRequest


def plan(request: PlanRequest, *, trainers: bool = True) -> PlanSet | Replanned:
    """The best plans; with profiles those of measured layers, with an earlier plan what each plan moves.

    Args:
        request: the question.
        trainers: whether to say who runs the answer, as `plan_job` does.

    Raises:
        InputError: malformed or contradictory input, all problems together.
        UnsupportedError: an unknown model, device, dtype, optimizer or target.
        InfeasibleError: no plan fits, or none keeps to the limits; says which constraint binds and what would help.
    """
    if request.replan_from is not None:
        from meshwright.app.replan import replan

        space = request.space
        changed = {"lost": request.lost, "added": request.added}
        return replan(
            request.replan_from,
            top=request.top,
            pin=space.pin,
            forbid=space.forbid,
            horizon_s=request.horizon,
            **changed,
        )
    if request.profiles is not None:
        from meshwright.app.plans.measured import plan_measured

        return plan_measured(request)
    from meshwright.app.plans.job import plan_job

    return plan_job(request, trainers=trainers)
