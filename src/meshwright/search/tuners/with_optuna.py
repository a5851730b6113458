"""Optuna: its samplers propose, the nearest legal point is what it hears about; its storage is the file of trials.

An infeasible point is told with its excess as a constraint, so that samplers that know constraints learn where the
limit is; one without a value as failed. `optuna-dashboard sqlite:///trials.db` opens the file.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from meshwright.search.tuners.base import Outcome, Rules, TunableSpace, Value
from meshwright.search.tuners.nearest import on_axes
from meshwright.search.tuners.study import TrialLog

if TYPE_CHECKING:
    import optuna

STARTUP = 10
"""Random legal points before a sampler has something to learn from."""
PROPOSALS = 8
"""A sampler whose proposals were tried before is asked so often, then a random legal point is taken."""
LOG_FROM = 8
"""An axis whose largest value is so many times its smallest is searched by its logarithm."""
_LIMIT = "over the limit"
"""Name of the constraint; positive where a trial misses it."""


def tune(log: TrialLog, *, algorithm: str, scheduler: str, seed: int, study: str, workers: int) -> None:
    """Make the trials that are left.

    Args:
        log: the study so far; takes the new rows.
        algorithm: tpe, gp, nsga2 or random, of Optuna.
        scheduler: none, or median, a pruner that sees the lower bound of a point before its value.
        seed: the seed of the sampler.
        study: its name in the storage.
        workers: one.
    """
    import optuna

    only_errors()
    storage = f"sqlite:///{log.store.path}" if log.store is not None else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = legal_sampler(inner_sampler(algorithm, seed + len(log.trials)), log.space, log.rules, seed)
        found = optuna.create_study(
            study_name=study,
            storage=storage,
            sampler=sampler,
            pruner=_pruner(scheduler),
            direction="minimize",
            load_if_exists=True,
        )
        found.set_metric_names([log.space.objective])
        _catch_up(found, log)
        distributions = distributions_of(log.space)
        while log.left:
            trial = found.ask(distributions)
            _run(found, trial, log, prunes=scheduler != "none")


def only_errors() -> None:
    """Let Optuna say only what went wrong."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)


def inner_sampler(algorithm: str, seed: int) -> optuna.samplers.BaseSampler:
    """A sampler of Optuna that is told what is infeasible, if it can know it."""
    from optuna import samplers

    if algorithm == "gp":
        return samplers.GPSampler(seed=seed, n_startup_trials=STARTUP)
    if algorithm == "nsga2":
        return samplers.NSGAIISampler(seed=seed)
    if algorithm == "random":
        return samplers.RandomSampler(seed=seed)
    return samplers.TPESampler(
        seed=seed,
        multivariate=True,
        n_startup_trials=STARTUP,
    )


def legal_sampler(
    inner: optuna.samplers.BaseSampler, space: TunableSpace, rules: Rules, seed: int
) -> optuna.samplers.BaseSampler:
    """A sampler that proposes what an inner one does, moved to the nearest legal point, and no point twice.

    The first points are legal ones at random.

    Args:
        inner: any sampler of Optuna.
        space: draws the first points.
        rules: what is legal.
        seed: the seed of the first points.
    """
    from optuna import samplers

    class LegalSampler(samplers.BaseSampler):  # type: ignore[misc]
        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return distributions_of(space)

        def sample_relative(self, study: Any, trial: Any, search_space: dict[str, Any]) -> dict[str, Any]:
            known = inner.infer_relative_search_space(study, trial)
            if known and trial.number >= STARTUP:
                tried = {tuple(other.params.items()) for other in study.get_trials(deepcopy=False)}
                for _ in range(PROPOSALS):
                    wish: Mapping[str, Value] = inner.sample_relative(study, trial, known)
                    point = rules.nearest_legal(on_axes(space, wish)) if wish else None
                    if point is not None and tuple(point.items()) not in tried:
                        return point
            # One generator a trial: a study that goes on draws what it would have drawn.
            return space.sample(random.Random(f"{seed}/{trial.number}"))

        def sample_independent(self, study: Any, trial: Any, name: str, distribution: Any) -> Any:
            return inner.sample_independent(study, trial, name, distribution)

        def before_trial(self, study: Any, trial: Any) -> None:
            inner.before_trial(study, trial)

        def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
            inner.after_trial(study, trial, state, values)

        def reseed_rng(self) -> None:
            inner.reseed_rng()

    return LegalSampler()


def distributions_of(space: TunableSpace) -> dict[str, Any]:
    """Every axis as a distribution: numbers from the least to the largest, by logarithm where they span decades."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    found: dict[str, Any] = {}
    for axis in space.axes:
        if axis.ordered and all(isinstance(value, int) for value in axis.values):
            low, high = int(axis.values[0]), int(axis.values[-1])
            found[axis.name] = IntDistribution(low, high, log=low > 0 and high >= LOG_FROM * low)
        else:
            found[axis.name] = CategoricalDistribution(axis.values)
    return found


def _pruner(scheduler: str) -> Any:
    from optuna import pruners

    if scheduler == "median":
        return pruners.MedianPruner(n_startup_trials=STARTUP)
    return pruners.NopPruner()


def _run(study: Any, trial: Any, log: TrialLog, *, prunes: bool) -> None:
    """One trial of Optuna: the row is kept first, then Optuna hears of it."""
    point = log.rules.completed(trial.params)
    trial.set_user_attr("row", len(log.trials))
    if prunes and (bound := log.bound(point)) is not None:
        trial.report(bound, step=0)
        if trial.should_prune():
            log.keep(point, Outcome(status="stopped", reason=f"lower bound {bound:.6g} stopped by the pruner"), 0.0)
            _tell(study, trial, log.trials[-1].outcome)
            return
    kept = log.run(point)
    _tell(study, trial, kept.outcome)


def _tell(study: Any, trial: Any, outcome: Outcome) -> None:
    from optuna.trial import TrialState

    for name, value in (("status", outcome.status), ("reason", outcome.reason), ("plan", outcome.name)):
        trial.set_user_attr(name, value)
    if outcome.status == "stopped":
        study.tell(trial, state=TrialState.PRUNED)
    elif outcome.value is None or outcome.status in ("illegal", "error"):
        study.tell(trial, state=TrialState.FAIL)
    else:
        if _LIMIT not in trial.constraints:  # else the study was killed between here and the next line
            trial.set_constraint(_LIMIT, outcome.excess)
        study.tell(trial, outcome.value)


def _catch_up(study: Any, log: TrialLog) -> None:
    """Tell Optuna of rows it has not heard the end of, and close the trials a killed study left running."""
    import optuna

    heard = set()
    for frozen in study.get_trials(deepcopy=False):
        row = frozen.user_attrs.get("row")
        if not frozen.state.is_finished():
            if row is not None and row < len(log.trials):
                _tell(study, optuna.trial.Trial(study, frozen._trial_id), log.trials[row].outcome)
            else:
                study.tell(frozen.number, state=optuna.trial.TrialState.FAIL)
        heard.add(row)
    distributions = distributions_of(log.space)
    for kept in log.trials:
        if kept.number in heard or kept.outcome.value is None:
            continue
        trial = optuna.trial.create_trial(
            params=dict(kept.point),
            distributions=distributions,
            value=kept.outcome.value,
            user_attrs={"row": kept.number, "status": kept.outcome.status, "reason": kept.outcome.reason},
        )
        trial.set_constraint(_LIMIT, kept.outcome.excess)
        study.add_trial(trial)
