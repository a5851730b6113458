"""Tuners on the spaces of `plan` and of the Calculon model, compared with the exact optimum."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from meshwright.app.answer import Answer
from meshwright.app.requests.tune import CalculonTuneRequest, TuneRequest
from meshwright.app.tune_space import exact_optimum, tuned_space
from meshwright.budget import spent, within_share
from meshwright.calculon.choice import read_space
from meshwright.calculon.tuning import TunedExecutions
from meshwright.errors import InfeasibleError, InputError, MeshwrightError, Problem
from meshwright.fields.check import InputCheck
from meshwright.fields.limits import nothing_in_time
from meshwright.search.tuners.base import Optimum, Trial, TunableSpace
from meshwright.search.tuners.options import ChosenOptions, TuneOptions, tune_options
from meshwright.search.tuners.run import TUNERS, run_study
from meshwright.search.tuners.study import Study

OnTrial = Callable[[str, Trial], None]
OPTIMUM_SHARE = 0.5
"""Share of a time limit for the space and its optimum; what is left of it is shared by the studies alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A study and what it was called."""

    label: str
    study: Study

    def regret(self, optimum: Optimum | None) -> float | None:
        """How much worse the best trial is than the optimum, relative to it; None if either is unknown."""
        best = self.study.best
        if best is None or optimum is None or best.outcome.value is None:
            return None
        return best.outcome.value / optimum.value - 1.0

    def to_dict(self, optimum: Optimum | None, *, trials: bool) -> dict[str, Any]:
        """As data; with every row, or only with the best after each."""
        study = self.study
        rows = {"trials": [trial.to_dict() for trial in study.trials]} if trials else {}
        return {
            "label": self.label,
            "tuner": study.tuner,
            "algorithm": study.algorithm,
            "scheduler": study.scheduler,
            "seed": study.seed,
            "count": len(study.trials),
            "counts": study.counts,
            "resumed": study.resumed,
            "best": study.best.to_dict() if study.best else None,
            "regret": self.regret(optimum),
            "incumbents": [{"trials": done, "value": value} for done, value in study.incumbents()],
            **rows,
        }

    def timing(self) -> dict[str, Any]:
        """Seconds, which no second run repeats."""
        trials = self.study.trials
        return {
            "wall_s": self.study.wall_s,
            "priced_s": sum(trial.took_s for trial in trials),
            "took_s": [trial.took_s for trial in trials],
            "at_s": [trial.at_s for trial in trials],
        }


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TuneAnswer(Answer):
    """One study, or several on the same space with the same budget."""

    space: str
    objective: str
    size: int
    """Legal points."""
    trials: int
    optimum: Optimum | None
    studies: tuple[Judged, ...]
    compared: bool
    stopped: str = ""
    """The limit for which fewer trials, or trials of a part of the space, were made; empty where all were."""
    partial: bool = False
    """Whether the trials are of a part of the space, whose legal points `size` counts."""
    left_out: tuple[tuple[str, str], ...] = ()
    """Tuners that could not take part, and why."""
    notes: tuple[str, ...] = ()
    """Notes on whose trainers the best plan is priced for, on few devices."""

    def data(self) -> dict[str, Any]:
        """As data: `meshwright.tune/1`, or `meshwright.tune-comparison/1`."""
        optimum = self.optimum
        found = {
            "space": self.space,
            "objective": self.objective,
            "size": self.size,
            **({"stopped": self.stopped, "partial": self.partial} if self.stopped else {}),
            **({"notes": list(self.notes)} if self.notes else {}),
            "budget": self.trials,
            "optimum": None
            if optimum is None
            else {"value": optimum.value, "name": optimum.name, "space": optimum.space}
            | ({"stopped": optimum.stopped} if optimum.stopped else {}),
            "timing": {
                "search_s": optimum.search_s if optimum else None,
                "studies": [judged.timing() for judged in self.studies],
            },
        }
        if self.compared:
            return {
                "schema": "meshwright.tune-comparison/1",
                **found,
                "studies": [judged.to_dict(optimum, trials=False) for judged in self.studies],
                "left_out": [{"tuner": tuner, "why": why} for tuner, why in self.left_out],
            }
        return {"schema": "meshwright.tune/1", **found, **self.studies[0].to_dict(optimum, trials=True)}

    def figure(self) -> str:
        """Regret per trial and per second, as SVG.

        Raises:
            InputError: the optimum is not asked for, so there is no regret.
            InfeasibleError: it was not found within the limits.
        """
        if self.optimum is None:
            what = "the figure of regret needs the optimum"
            if self.stopped:
                raise nothing_in_time(self.stopped, "the optimum", so_far=what)
            raise InputError(Problem(what=what, fix="leave out --no-optimum", field="figure"), code="MW253")
        from meshwright.report.regret import regret_svg

        document = self.to_dict()
        return regret_svg(document if self.compared else {**document, "studies": [document]})

    def __repr__(self) -> str:
        return f"TuneAnswer({self.space}: {', '.join(judged.label for judged in self.studies)})"


def tune(request: TuneRequest, *, on_trial: OnTrial | None = None) -> TuneAnswer:
    """Let tuners look for the quickest plan in the space of `plan`.

    Args:
        request: model, cluster, workload, axes, and how tuners look.
        on_trial: called with the tuner's label and every new row.

    Returns:
        Studies and the exact optimum, which has half of the time limit at most.

    Raises:
        InputError: malformed or contradictory input.
        UnsupportedError: an unknown name, or a tuner that is not installed.
        InfeasibleError: no plan is legal, or none fits.
    """
    options = tune_options(request.study)
    with within_share(OPTIMUM_SHARE):
        space = tuned_space(request)
        size = space.size
        best = exact_optimum(space) if options.optimum else None
        if options.optimum and best is None and not (space.stopped or spent()):
            # Nothing leaves the usual reserve free: tune among tight plans, as `plan` does.
            space = replace(space, space=replace(space.space, tight=True))
            best = exact_optimum(space)
        nothing_fits = options.optimum and best is None and not _not_in_time(options, space.stopped)
    if nothing_fits:
        what = f"none of the {size:,} legal plans of {space.name} fits the memory"
        fix = "`meshwright plan` with the same options says which change would make it fit"
        raise InfeasibleError(what=what, fix=fix, field="gpus", code="MW301")
    answer = _tuned(space, size, best, options, on_trial, stopped=space.stopped)
    return replace(answer, notes=_who_runs(answer, request))


def _who_runs(answer: TuneAnswer, request: TuneRequest) -> tuple[str, ...]:
    """Who runs the best plan of all studies as it is priced, and what another trainer takes for it."""
    found = [judged.study.best for judged in answer.studies]
    best = min((one.outcome for one in found if one is not None), key=lambda one: one.value or math.inf, default=None)
    if best is None or not best.name:
        return ()
    from meshwright.planning.plan_source import question_beside_trainers

    return tuple(f"{best.name}: {note}" for note in question_beside_trainers(best.name, request.job).of_trainers)


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
    asked, _ = read_space(request.space, InputCheck())
    asked.require_executions()
    tuned = TunedExecutions(space=asked, fixed=request.space.options.fixed)
    with within_share(OPTIMUM_SHARE):
        best = tuned.optimum() if options.optimum else None
        nothing_fits = options.optimum and best is None and not _not_in_time(options)
    if nothing_fits:
        what = f"none of the {asked.size:,} executions of {tuned.name} fits"
        fix = "`meshwright calculon search` with the same options says what excludes them"
        raise InfeasibleError(what=what, fix=fix, field="procs", code="MW310")
    return _tuned(tuned, asked.size, best, options, on_trial)


def _not_in_time(options: TuneOptions, stopped: str = "") -> str:
    """The limit for which the exact search found nothing; empty where it searched all.

    Raises:
        InfeasibleError: tuners are to be compared, for which the optimum is needed.
    """
    limit = stopped or spent()
    if limit and options.compare:
        why = "tuners are compared by how much worse than the optimum their plans are"
        raise nothing_in_time(limit, "the optimum", so_far=why)
    return limit


def _tuned(
    space: TunableSpace,
    size: int,
    optimum: Optimum | None,
    options: TuneOptions,
    on_trial: OnTrial | None,
    *,
    stopped: str = "",
) -> TuneAnswer:
    """Run the studies; when comparing, a tuner that breaks is left out and listed as such.

    Args:
        space: the space to be tuned.
        size: its legal points.
        optimum: the best of them, if it is known.
        options: how tuners look.
        on_trial: called with the tuner's label and every new row.
        stopped: the limit for which the space is a part of what was asked for; empty where it is all.
    """
    studies: list[Judged] = []
    left_out = list(options.left_out)
    limit = ""
    for behind, chosen in zip(reversed(range(len(options.tuners))), options.tuners, strict=True):
        try:
            with within_share(1 / (behind + 1)):
                made, reached = _studies(space, chosen, options, on_trial)
            studies, limit = studies + made, limit or reached
        except MeshwrightError as error:
            if not options.compare or isinstance(error, InputError):
                raise
            left_out.append((chosen.label, error.problems[0].what))
    if not studies:
        raise InputError([Problem(what=f"{label}: {why}", field="with") for label, why in left_out], code="MW253")
    short = any(len(judged.study.trials) < options.trials for judged in studies)
    return TuneAnswer(
        space=space.name,
        objective=space.objective,
        size=size,
        trials=options.trials,
        optimum=optimum,
        studies=tuple(studies),
        compared=options.compare,
        stopped=stopped or (limit if short else ""),
        partial=bool(stopped),
        left_out=tuple(left_out),
    )


def _studies(
    space: TunableSpace, chosen: ChosenOptions, options: TuneOptions, on_trial: OnTrial | None
) -> tuple[list[Judged], str]:
    """Studies of one tuner, one a seed, and a limit at which one of them ended; empty where none did."""

    def record(trial: Trial) -> None:
        if on_trial is not None:
            on_trial(chosen.label, trial)

    parallel = TUNERS[chosen.tuner].parallel or not options.compare
    studies: list[Judged] = []
    limit = ""
    for number, seed in enumerate(options.seeds):
        with within_share(1 / (len(options.seeds) - number)):
            study = run_study(
                space,
                chosen.tuner,
                trials=options.trials,
                algorithm=chosen.algorithm,
                scheduler=chosen.scheduler,
                seed=seed,
                storage=options.storage,
                resume=options.resume,
                workers=options.workers if parallel else 1,
                on_trial=record,
            )
            limit = limit or spent()
        studies.append(Judged(label=chosen.label, study=study))
    return studies, limit
