"""Tuners on the spaces of `plan` and of the Calculon model, judged against the exact optimum."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from meshwright.app.axes import space_of
from meshwright.app.calculon_space import (
    MOST_BATCH,
    MOST_PROCESSORS,
    Check,
    Source,
    choose_space,
    read_apps,
    read_systems,
)
from meshwright.app.finding import require_homogeneous
from meshwright.app.job_inputs import Count, job_inputs
from meshwright.calculon.inputs import Application, System
from meshwright.calculon.space import Space as Executions
from meshwright.errors import InfeasibleError, InputError, MeshwrightError, Problem
from meshwright.search.tuners.base import Optimum, Trial, TunableSpace
from meshwright.search.tuners.calculon_space import CalculonSpace
from meshwright.search.tuners.plan_space import PlanSpace
from meshwright.search.tuners.run import TUNERS, run_study, tuner_named
from meshwright.search.tuners.store import storage_path
from meshwright.search.tuners.study import Study
from meshwright.specs.cluster import ClusterSpec
from meshwright.specs.model import ModelSpec

if TYPE_CHECKING:
    from rich.console import RenderableType

MOST_TRIALS = 10**6
TRIALS = 100
OnTrial = Callable[[str, Trial], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """A tuner as the user says it: `optuna`, `optuna:gp`, `ray-tune:optuna+asha`."""

    label: str
    tuner: str
    algorithm: str | None
    scheduler: str | None

    @classmethod
    def of(cls, text: str) -> Chosen:
        """Read `NAME[:ALGORITHM][+SCHEDULER]`."""
        front, _, scheduler = text.strip().partition("+")
        name, _, algorithm = front.partition(":")
        return cls(label=text.strip(), tuner=name, algorithm=algorithm or None, scheduler=scheduler or None)


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
class TuneAnswer:
    """One study, or several on the same space with the same budget."""

    space: str
    objective: str
    size: int
    """Legal points."""
    trials: int
    optimum: Optimum | None
    studies: tuple[Judged, ...]
    compared: bool
    left_out: tuple[tuple[str, str], ...] = ()
    """Tuners that could not take part, and why."""

    def to_dict(self) -> dict[str, Any]:
        """As data: `meshwright.tune/1`, or `meshwright.tune-comparison/1`."""
        optimum = self.optimum
        found = {
            "space": self.space,
            "objective": self.objective,
            "size": self.size,
            "budget": self.trials,
            "optimum": None
            if optimum is None
            else {"value": optimum.value, "name": optimum.name, "space": optimum.space},
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
            InputError: the optimum is not known, so there is no regret.
        """
        if self.optimum is None:
            problem = Problem(
                what="there is no figure of regret without the optimum", fix="leave out --no-optimum", field="figure"
            )
            raise InputError(problem, code="MW253")
        from meshwright.report.regret import regret_svg

        document = self.to_dict()
        return regret_svg(document if self.compared else {**document, "studies": [document]})

    def __repr__(self) -> str:
        return f"TuneAnswer({self.space}: {', '.join(judged.label for judged in self.studies)})"

    def __rich__(self) -> RenderableType:
        from meshwright.report.tuning import render_comparison, render_tune

        return render_comparison(self.to_dict()) if self.compared else render_tune(self.to_dict())

    def _repr_html_(self) -> str:
        from meshwright.report.html import renderable_html

        return renderable_html(self.__rich__())


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneOptions:
    """How to tune, whatever the space."""

    tuners: tuple[Chosen, ...]
    trials: int
    seeds: tuple[int, ...]
    storage: str | None
    resume: bool
    workers: int
    compare: bool
    optimum: bool
    left_out: tuple[tuple[str, str], ...]


def tune_options(
    *,
    tuners: str | Iterable[str] = (),
    trials: int = TRIALS,
    seed: int = 0,
    repeats: int = 1,
    storage: str | None = None,
    resume: bool = False,
    workers: int = 1,
    compare: bool = False,
    optimum: bool = True,
) -> TuneOptions:
    """Read and check how to tune.

    Args:
        tuners: `random`, `optuna`, `smac`, `ray-tune`, each with `:ALGORITHM` and `+SCHEDULER` as wanted; random alone
            or, to compare, all that are installed by default.
        trials: of each study in all.
        seed: of the first study of each tuner.
        repeats: studies of each tuner, with seeds one after another.
        storage: `sqlite:///trials.db`, where rows are kept.
        resume: go on with what the storage holds.
        workers: trials at a time, for tuners that can.
        compare: several tuners, with regret.
        optimum: find the exact optimum too.

    Raises:
        InputError: all problems together.
        UnsupportedError: only unknown tuners, or tuners that are not installed.
    """
    check = Check()
    texts = [tuners] if isinstance(tuners, str) else list(tuners)
    chosen = [Chosen.of(part) for text in texts for part in text.split(",") if part.strip()]
    left_out: list[tuple[str, str]] = []
    if not chosen and compare:
        chosen = [Chosen.of(name) for name, tuner in TUNERS.items() if tuner.installed]
        left_out = [
            (name, f"not installed: pip install 'meshwright[{tuner.extra}]'")
            for name, tuner in TUNERS.items()
            if not tuner.installed
        ]
    chosen = chosen or [Chosen.of("random")]
    for one in chosen:
        check.attempt(lambda one=one: tuner_named(one.tuner, one.algorithm, one.scheduler))  # type: ignore[misc]
    for field, value, low, most in (
        ("--trials", trials, 1, MOST_TRIALS),
        ("--repeats", repeats, 1, 1000),
        ("--workers", workers, 1, 1024),
        ("--seed", seed, 0, 2**31 - 1),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= most:
            check.problem(
                f"{field} is {str(value)[:40]!r}", f"a whole number from {low} to {most:,}", f"say {field} 10", field
            )
    if len(chosen) > 1 and not compare:
        check.problem(
            f"{len(chosen)} tuners", "one study has one tuner", "compare them with --compare, or keep one", "--with"
        )
    if repeats > 1 and not compare:
        check.problem(f"--repeats is {repeats}", "one study has one seed", "compare with --compare", "--repeats")
    if compare and not optimum:
        check.problem("--compare without the optimum", "regret is what it compares", "drop --no-optimum", "--compare")
    if resume and storage is None:
        fix = "name the file with --storage sqlite:///trials.db"
        check.problem("--resume without --storage", "there is nothing to go on with", fix, "--resume")
    if storage is not None:
        check.attempt(lambda: storage_path(storage))
    check.done()
    return TuneOptions(
        tuners=tuple(chosen),
        trials=trials,
        seeds=tuple(range(seed, seed + repeats)),
        storage=storage,
        resume=resume,
        workers=workers,
        compare=compare,
        optimum=optimum,
        left_out=tuple(left_out),
    )


def tune(
    model: ModelSpec | str | os.PathLike[str],
    *,
    cluster: ClusterSpec | str | os.PathLike[str] | None = None,
    gpus: str | None = None,
    seq_len: Count | None = None,
    global_batch: Count | None = None,
    tokens_per_step: Count | None = None,
    dtype: str = "bf16",
    optimizer: str = "adam",
    pin: str | Iterable[str] = (),
    forbid: str | Iterable[str] = (),
    schedule: str | Iterable[str] | None = None,
    on_trial: OnTrial | None = None,
    **how: Any,
) -> TuneAnswer:
    """Let tuners look for the quickest plan in the space of `plan`.

    Args:
        model: as `plan` takes it.
        cluster: likewise.
        gpus: likewise.
        seq_len: tokens of a sequence.
        global_batch: sequences per step.
        tokens_per_step: instead of `global_batch`.
        dtype: bf16, fp16, fp8 or fp32.
        optimizer: adam, sgd, ...
        pin: axes held to values.
        forbid: axes or values left out.
        schedule: pipeline schedules that may be used.
        on_trial: called with the tuner's label and every new row.
        how: see `tune_options`.

    Returns:
        Studies and the exact optimum.

    Raises:
        InputError: malformed or contradictory input.
        UnsupportedError: an unknown name, or a tuner that is not installed.
        InfeasibleError: no plan is legal, or none fits.
    """
    options = tune_options(**how)
    inputs = job_inputs(
        model,
        cluster=cluster,
        gpus=gpus,
        seq_len=seq_len,
        global_batch=global_batch,
        tokens_per_step=tokens_per_step,
        dtype=dtype,
        optimizer=optimizer,
    )
    require_homogeneous(inputs.cluster)
    axes = space_of(inputs.model, inputs.workload, inputs.cluster.devices, pin=pin, forbid=forbid, schedule=schedule)
    space = PlanSpace(model=inputs.model, cluster=inputs.cluster, workload=inputs.workload, space=axes)
    size = space.size
    best = space.optimum() if options.optimum else None
    if options.optimum and best is None:
        # Nothing leaves the usual reserve free: tune among tight plans, as `plan` does.
        space = replace(space, space=replace(axes, tight=True))
        best = space.optimum()
    if options.optimum and best is None:
        what = f"none of the {size:,} legal plans of {space.name} fits the memory"
        fix = "`meshwright plan` with the same options says what would mend it"
        raise InfeasibleError(Problem(what=what, fix=fix, field="gpus"), code="MW301")
    return _tuned(space, size, best, options, on_trial)


def calculon_tune(
    app: Source | Application,
    system: Source | System,
    *,
    procs: int,
    batch: int,
    dtype: str | None = None,
    space: str = "optimal-execution",
    tp_overlap: bool = True,
    dp_overlap: bool = True,
    pin: str | Iterable[str] = (),
    fixed: bool = False,
    on_trial: OnTrial | None = None,
    **how: Any,
) -> TuneAnswer:
    """Let tuners look for the quickest execution of a Calculon space.

    Args:
        app: as `calculon_search` takes it.
        system: likewise.
        procs: processors.
        batch: largest batch.
        dtype: float16 by default.
        space: `optimal-execution` or `full`.
        tp_overlap: tensor-parallel overlap is an axis.
        dp_overlap: data-parallel overlap is an axis.
        pin: keys held to values.
        fixed: with the model's known errors mended.
        on_trial: called with the tuner's label and every new row.
        how: see `tune_options`.

    Returns:
        Studies and the exact optimum.

    Raises:
        InputError: malformed input, all problems together.
        UnsupportedError: an unknown name, or a tuner that is not installed.
        InfeasibleError: the space is empty, or nothing in it fits.
    """
    check = Check()
    options = check.attempt(lambda: tune_options(**how))
    apps, systems = read_apps(check, [app]), read_systems(check, [system])
    check.whole("--procs", procs, MOST_PROCESSORS)
    check.whole("--batch", batch, MOST_BATCH)
    choice = choose_space(
        check, systems, space=space, dtype=dtype, tp_overlap=tp_overlap, dp_overlap=dp_overlap, pin=pin
    )
    check.done()
    asked = Executions(apps[0], systems[0], procs, batch, choice.axes(systems[0]))
    asked.require_executions()
    tuned = CalculonSpace(space=asked, fixed=fixed)
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
