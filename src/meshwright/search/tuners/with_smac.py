"""SMAC3: a random forest over a ConfigSpace with the space's own conditions and forbidden clauses.

SMAC proposes legal points only. It knows no constraints between values and results, so an infeasible point costs it
what the point would take, times a penalty that grows with the excess.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from meshwright.search.tuners.base import Outcome, Point, TunableSpace
from meshwright.search.tuners.nearest import on_axes
from meshwright.search.tuners.study import TrialLog

if TYPE_CHECKING:
    import ConfigSpace

FIRST_SHARE = 0.25
"""Largest share of the trials that is spent before the forest is asked."""
FIRST_PER_AXIS = 2
"""Trials per axis before the forest is asked."""
CHALLENGERS = 300
"""Random points among which the surrogate picks; ConfigSpace draws a legal one from many clauses in milliseconds."""
UNKNOWN_FACTOR = 2.0
"""A trial without a value costs so many times the worst one known."""


def tune(log: TrialLog, *, algorithm: str, scheduler: str, seed: int, study: str, workers: int) -> None:
    """Make the trials that are left.

    Args:
        log: the study so far; takes the new rows.
        algorithm: forest, gp or random: the facades of SMAC3.
        scheduler: none.
        seed: the seed of SMAC.
        study: its name.
        workers: one.
    """
    logging.getLogger("smac").setLevel(logging.ERROR)
    import joblib

    with (
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory(prefix="meshwright-smac-") as folder,
        # A forest of ten small trees is grown sooner than threads are started.
        joblib.parallel_config(backend="sequential"),
    ):
        # numpy and scikit-learn warn of what SMAC does with them.
        warnings.simplefilter("ignore")
        configspace = config_space(log.space, seed)
        smac = _facade(log, configspace, algorithm, seed, Path(folder))
        worst = 1.0
        for trial in log.trials:
            worst = _tell(smac, configspace, log, trial.point, trial.outcome, worst, seed)
        while log.left:
            info = smac.ask()
            point = log.rules.completed(on_axes(log.space, dict(info.config)))
            kept = log.run(point)
            worst = _tell(smac, configspace, log, point, kept.outcome, worst, seed, info)


def config_space(space: TunableSpace, seed: int = 0) -> ConfigSpace.ConfigurationSpace:
    """The space in the words of ConfigSpace.

    Args:
        space: axes become ordinals where they are ordered and categoricals where not, `when` a condition (several are
            joined by and), a forbidden box a conjunction of in-clauses.
        seed: the seed of its sampler.
    """
    import ConfigSpace

    found = ConfigSpace.ConfigurationSpace(name=space.name, seed=seed)
    legal = space_default(space)
    made: dict[str, Any] = {}
    for axis in space.axes:
        default = legal[axis.name]
        if axis.ordered:
            made[axis.name] = ConfigSpace.OrdinalHyperparameter(axis.name, list(axis.values), default_value=default)
        else:
            made[axis.name] = ConfigSpace.CategoricalHyperparameter(axis.name, list(axis.values), default_value=default)
    found.add(list(made.values()))
    for axis in space.axes:
        conditions = [
            ConfigSpace.InCondition(made[axis.name], made[when.axis], list(when.values)) for when in axis.when
        ]
        if conditions:
            found.add(conditions[0] if len(conditions) == 1 else ConfigSpace.AndConjunction(*conditions))
    clauses = []
    for rule in space.forbidden:
        parts = [
            ConfigSpace.ForbiddenInClause(made[name], list(values))
            if len(values) > 1
            else ConfigSpace.ForbiddenEqualsClause(made[name], values[0])
            for name, values in rule.where
        ]
        clauses.append(parts[0] if len(parts) == 1 else ConfigSpace.ForbiddenAndConjunction(*parts))
    found.add(clauses)
    return found


def space_default(space: TunableSpace) -> Point:
    """A legal point near the defaults, which ConfigSpace wants as its own."""
    from meshwright.search.tuners.base import Rules

    rules = Rules.of(space)
    return rules.nearest_legal({}) or rules.completed({})


def _facade(log: TrialLog, configspace: ConfigSpace.ConfigurationSpace, algorithm: str, seed: int, folder: Path) -> Any:
    """A facade that is asked and told; a study that goes on has had its first trials."""
    from smac import BlackBoxFacade, HyperparameterOptimizationFacade, RandomFacade, Scenario

    facade = {"gp": BlackBoxFacade, "random": RandomFacade}.get(algorithm, HyperparameterOptimizationFacade)
    scenario = Scenario(
        configspace,
        output_directory=folder,
        deterministic=True,
        # Rows told again count as trials of SMAC.
        n_trials=log.target + len(log.trials) + 1,
        seed=seed + len(log.trials),
    )
    first = 0 if log.trials else max(1, min(int(log.target * FIRST_SHARE), FIRST_PER_AXIS * len(log.space.axes)))
    options: dict[str, Any] = {}
    if algorithm != "random":
        options["acquisition_maximizer"] = facade.get_acquisition_maximizer(scenario, challengers=CHALLENGERS)
        options["initial_design"] = facade.get_initial_design(scenario, n_configs=first, max_ratio=1.0)
    return facade(
        scenario,
        lambda config, seed: 0.0,
        intensifier=facade.get_intensifier(scenario, max_config_calls=1) if algorithm != "random" else None,
        overwrite=True,
        logging_level=False,
        **options,
    )


def _tell(
    smac: Any,
    configspace: ConfigSpace.ConfigurationSpace,
    log: TrialLog,
    point: Point,
    outcome: Outcome,
    worst: float,
    seed: int,
    info: Any = None,
) -> float:
    """Tell SMAC of a row; returns the worst cost so far."""
    import ConfigSpace
    from smac.runhistory.dataclasses import TrialInfo, TrialValue
    from smac.runhistory.enumerations import StatusType

    if info is None:
        active = log.rules.active_axes(point)
        info = TrialInfo(
            ConfigSpace.Configuration(configspace, values={name: point[name] for name in active}), seed=seed
        )
    cost = outcome.penalised
    worst = worst if cost is None else max(worst, cost)
    value = TrialValue(
        cost=worst * UNKNOWN_FACTOR if cost is None else cost,
        status=StatusType.SUCCESS if cost is not None else StatusType.CRASHED,
    )
    smac.tell(info, value, save=False)
    return worst
