"""Tuners on the spaces of `plan` and of the Calculon model, judged against the exact optimum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from meshwright.app.requests.tune import CalculonTuneRequest, TuneRequest
from meshwright.app.tune_answer import Judged, TuneAnswer
from meshwright.app.tune_options import Chosen, TuneOptions, tune_options
from meshwright.calculon.choice import Check, read_space
from meshwright.calculon.tuning import TunedExecutions
from meshwright.errors import InfeasibleError, InputError, MeshwrightError, Problem
from meshwright.planning.axes import space_of
from meshwright.planning.job_inputs import job_inputs
from meshwright.planning.one_kind import require_homogeneous
from meshwright.schedules import DEFAULT_SCHEDULES
from meshwright.search.tuners.base import Optimum, Trial, TunableSpace
from meshwright.search.tuners.plan_space import PlanSpace
from meshwright.search.tuners.run import TUNERS, run_study

OnTrial = Callable[[str, Trial], None]


def tune(request: TuneRequest, *, on_trial: OnTrial | None = None) -> TuneAnswer:
    """Let tuners look for the quickest plan in the space of `plan`.

    Args:
        request: model, cluster, workload, axes, and how tuners look.
        on_trial: called with the tuner's label and every new row.

    Returns:
        Studies and the exact optimum.

    Raises:
        InputError: malformed or contradictory input.
        UnsupportedError: an unknown name, or a tuner that is not installed.
        InfeasibleError: no plan is legal, or none fits.
    """
    options, inputs = tune_options(request.study), job_inputs(request.job)
    require_homogeneous(inputs.cluster)
    axes = space_of(inputs.model, inputs.workload, inputs.cluster.devices, **request.space.keywords())
    others = [name for name in axes.pinned("schedule") or () if name not in DEFAULT_SCHEDULES]
    if others:
        why = "a tuner's axes are those of the default space"
        fix = f"use {', '.join(DEFAULT_SCHEDULES)}, or search the others with `plan`"
        what = f"schedules {', '.join(map(str, others))} in a tuned space"
        raise InputError(Problem(what=what, why=why, fix=fix, field="schedule"), code="MW205")
    space = PlanSpace(model=inputs.model, cluster=inputs.cluster, workload=inputs.workload, space=axes)
    size = space.size
    best = space.optimum() if options.optimum else None
    if options.optimum and best is None:
        # Nothing leaves the usual reserve free: tune among tight plans, as `plan` does.
        space = replace(space, space=replace(axes, tight=True))
        best = space.optimum()
    if options.optimum and best is None:
        what = f"none of the {size:,} legal plans of {space.name} fits the memory"
        fix = "`meshwright plan` with the same options says which change would make it fit"
        raise InfeasibleError(Problem(what=what, fix=fix, field="gpus"), code="MW301")
    return _tuned(space, size, best, options, on_trial)


def calculon_tune(request: CalculonTuneRequest, *, on_trial: OnTrial | None = None) -> TuneAnswer:
    """Let tuners look for the quickest execution of a Calculon space.

    Args:
        request: application, system, space, and how tuners look.
        on_trial: called with the tuner's label and every new row.

    Returns:
        Studies and the exact optimum.

    Raises:
        InputError: malformed input, all problems together.
        UnsupportedError: an unknown name, or a tuner that is not installed.
        InfeasibleError: the space is empty, or nothing in it fits.
    """
    options = tune_options(request.study)
    asked, _ = read_space(request.space, Check())
    asked.require_executions()
    tuned = TunedExecutions(space=asked, fixed=request.space.options.fixed)
    best = tuned.optimum() if options.optimum else None
    if options.optimum and best is None:
        what = f"none of the {asked.size:,} executions of {tuned.name} fits"
        fix = "`meshwright calculon search` with the same options says what excludes them"
        raise InfeasibleError(Problem(what=what, fix=fix, field="procs"), code="MW310")
    return _tuned(tuned, asked.size, best, options, on_trial)


def _tuned(
    space: TunableSpace, size: int, optimum: Optimum | None, options: TuneOptions, on_trial: OnTrial | None
) -> TuneAnswer:
    """Run the studies; when comparing, a tuner that breaks is left out and said to be."""
    studies: list[Judged] = []
    left_out = list(options.left_out)
    for chosen in options.tuners:
        try:
            studies += _studies(space, chosen, options, on_trial)
        except MeshwrightError as error:
            if not options.compare or isinstance(error, InputError):
                raise
            left_out.append((chosen.label, error.problems[0].what))
    if not studies:
        raise InputError([Problem(what=f"{label}: {why}", field="with") for label, why in left_out], code="MW253")
    return TuneAnswer(
        space=space.name,
        objective=space.objective,
        size=size,
        trials=options.trials,
        optimum=optimum,
        studies=tuple(studies),
        compared=options.compare,
        left_out=tuple(left_out),
    )


def _studies(space: TunableSpace, chosen: Chosen, options: TuneOptions, on_trial: OnTrial | None) -> Sequence[Judged]:
    def told(trial: Trial) -> None:
        if on_trial is not None:
            on_trial(chosen.label, trial)

    parallel = TUNERS[chosen.tuner].parallel or not options.compare
    return [
        Judged(
            label=chosen.label,
            study=run_study(
                space,
                chosen.tuner,
                trials=options.trials,
                algorithm=chosen.algorithm,
                scheduler=chosen.scheduler,
                seed=seed,
                storage=options.storage,
                resume=options.resume,
                workers=options.workers if parallel else 1,
                on_trial=told,
            ),
        )
        for seed in options.seeds
    ]
