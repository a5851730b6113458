"""Run a study with the tuner of a name, on any space."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

from meshwright.errors import InputError, MeshwrightError, Problem, UnsupportedError, unknown_name
from meshwright.search.tuners.base import Rules, Trial, TunableSpace, signature
from meshwright.search.tuners.store import TrialStore, storage_path
from meshwright.search.tuners.study import Study, TrialLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuner:
    """A tuner by name: where it is, what it needs, what it can be told."""

    name: str
    module: str
    needs: tuple[str, ...] = ()
    """Libraries it imports."""
    extra: str = ""
    """What to install: `pip install 'meshwright[EXTRA]'`."""
    algorithms: tuple[str, ...] = ("default",)
    """The first is the default."""
    algorithm_needs: tuple[tuple[str, str], ...] = ()
    """Algorithms that need one more library."""
    schedulers: tuple[str, ...] = ("none",)
    parallel: bool = False
    """Whether it can run several trials at a time."""

    @property
    def installed(self) -> bool:
        """Whether its libraries are there; none is imported."""
        return all(importlib.util.find_spec(name) is not None for name in self.needs)


TUNERS: dict[str, Tuner] = {
    tuner.name: tuner
    for tuner in (
        Tuner(name="random", module="with_random", algorithms=("uniform",)),
        Tuner(
            name="optuna",
            module="with_optuna",
            needs=("optuna",),
            extra="optuna",
            algorithms=("tpe", "gp", "nsga2", "random"),
            algorithm_needs=(("gp", "torch"),),
            schedulers=("none", "median"),
        ),
        Tuner(
            name="smac",
            module="with_smac",
            needs=("smac", "ConfigSpace"),
            extra="smac",
            algorithms=("forest", "gp", "random"),
        ),
        Tuner(
            name="ray-tune",
            module="with_ray_tune",
            needs=("ray", "pandas", "pyarrow"),
            extra="ray",
            algorithms=("random", "optuna", "hyperopt"),
            algorithm_needs=(("optuna", "optuna"), ("hyperopt", "hyperopt")),
            schedulers=("none", "asha", "median"),
            parallel=True,
        ),
    )
}
"""Every tuner; a new one is a `with_*.py` and an entry here."""


def tuner_named(name: str, algorithm: str | None = None, scheduler: str | None = None) -> Tuner:
    """The tuner of a name, ready to run.

    Args:
        name: the name as in `--with`.
        algorithm: the algorithm that it is asked for, if any.
        scheduler: the scheduler that it is asked for, if any.

    Raises:
        InputError: it has no such algorithm or scheduler.
        UnsupportedError: nobody knows it, or a library it needs is not installed.
    """
    if name not in TUNERS:
        raise UnsupportedError(unknown_name("tuner", str(name)[:60], TUNERS), code="MW411")
    tuner = TUNERS[name]
    if not tuner.installed:
        missing = ", ".join(need for need in tuner.needs if importlib.util.find_spec(need) is None)
        problem = Problem(
            what=f"the tuner {name} needs {missing}",
            why="it is not installed",
            fix=f"pip install 'meshwright[{tuner.extra}]'",
            field="with",
        )
        raise UnsupportedError(problem, code="MW409")
    problems = [
        Problem(what=f"{what} {value[:60]!r}", why=f"{name} has {', '.join(known)}", fix=f"use {known[0]}", field=what)
        for what, value, known in (
            ("algorithm", algorithm, tuner.algorithms),
            ("scheduler", scheduler, tuner.schedulers),
        )
        if value is not None and value not in known
    ]
    if problems:
        raise InputError(problems, code="MW253")
    library = dict(tuner.algorithm_needs).get(algorithm or "")
    if library is not None and importlib.util.find_spec(library) is None:
        what = f"the algorithm {algorithm} of {name} needs {library}"
        problem = Problem(what=what, why="it is not installed", fix=f"pip install {library}", field="algorithm")
        raise UnsupportedError(problem, code="MW409")
    return tuner


def run_study(
    space: TunableSpace,
    tuner: str,
    *,
    trials: int,
    algorithm: str | None = None,
    scheduler: str | None = None,
    seed: int = 0,
    storage: str | None = None,
    resume: bool = False,
    workers: int = 1,
    on_trial: Callable[[Trial], None] | None = None,
) -> Study:
    """Tune a space.

    Args:
        space: what to tune.
        tuner: random, optuna, smac or ray-tune.
        trials: rows of the study in all, those of earlier runs included.
        algorithm: the algorithm of the tuner; its first by default.
        scheduler: the scheduler of the tuner, which may stop a trial by its lower bound; none by default.
        seed: the same trials for the same seed, where the tuner can promise that.
        storage: `sqlite:///trials.db`; without it the rows are only in the result.
        resume: go on with the study in the storage.
        workers: trials at a time, for a tuner that can.
        on_trial: called after every new row.

    Returns:
        All rows, those of earlier runs first.

    Raises:
        InputError: numbers, names or storage cannot be used, all problems together.
        UnsupportedError: an unknown tuner, or one that is not installed.
    """
    chosen = tuner_named(tuner)
    problems: list[Problem] = []
    try:
        tuner_named(tuner, algorithm, scheduler)
    except InputError as error:
        problems += error.problems
    if trials < 1:
        problems.append(Problem(what=f"trials is {trials}", why="a study has at least one", field="trials"))
    if resume and storage is None:
        fix = "name the file with --storage sqlite:///trials.db"
        problems.append(
            Problem(what="resume without a storage", why="there is no study to continue", fix=fix, field="resume")
        )
    if workers < 1 or (workers > 1 and not chosen.parallel):
        able = ", ".join(entry.name for entry in TUNERS.values() if entry.parallel)
        why = f"{tuner} makes one trial after another" if workers > 1 else "a study has at least one"
        problems.append(Problem(what=f"workers is {workers}", why=why, fix=f"use {able}", field="workers"))
    if problems:
        raise InputError(problems, code="MW253")
    algorithm, scheduler = algorithm or chosen.algorithms[0], scheduler or chosen.schedulers[0]
    rules = Rules.of(space)
    words = [tuner, *([algorithm] if algorithm != chosen.algorithms[0] else [])]
    words += [scheduler] if scheduler != "none" else []
    key = f"{space.name}, {' '.join(words)}, seed {seed}"
    store: TrialStore | None = None
    kept: list[Trial] = []
    if storage is not None:
        store, kept = TrialStore.open(
            storage_path(storage),
            key=key,
            space=space.name,
            tuner=" ".join(words),
            signature=signature(space),
            resume=resume,
        )
    log = TrialLog(space=space, rules=rules, target=trials, trials=kept, store=store, on_trial=on_trial)
    try:
        if log.left:
            module = importlib.import_module(f"meshwright.search.tuners.{chosen.module}")
            module.tune(log, algorithm=algorithm, scheduler=scheduler, seed=seed, study=key, workers=workers)
    except MeshwrightError:
        raise
    except Exception as error:
        raise _stopped(tuner, error, log, storage) from error
    finally:
        if store is not None:
            store.close()
    return Study(
        space=space.name,
        objective=space.objective,
        tuner=tuner,
        algorithm=algorithm,
        scheduler=scheduler,
        seed=seed,
        trials=tuple(log.trials),
        resumed=log.resumed,
    )


def _stopped(tuner: str, error: Exception, log: TrialLog, storage: str | None) -> MeshwrightError:
    """The tuner itself, not a trial, went wrong."""
    text = str(error).strip().partition("\n")[0][:200]
    kept = f"{len(log.trials)} of {log.target} trials were made"
    fix = f"they are in {storage}: go on with --resume" if storage else "keep trials with --storage sqlite:///trials.db"
    problem = Problem(what=f"{tuner} stopped: {type(error).__name__}: {text}", why=kept, fix=fix, field="with")
    return MeshwrightError(problem, code="MW254")
