"""Ray Tune: its search algorithms and schedulers, its trials in Ray's own workers.

A worker prices the legal point nearest to what was proposed. Under a scheduler a trial first reports its lower bound,
and is stopped there if the scheduler thinks it hopeless. Ray Tune knows no constraints, so an infeasible point reports
what it would take, times a penalty that grows with the excess. Rows are kept by the study, not by Ray: what Ray writes
is thrown away.
"""

from __future__ import annotations

import logging
import os
import random
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from meshwright.budget import left_s
from meshwright.search.tuners.base import Outcome, Point, Rules, TunableSpace
from meshwright.search.tuners.nearest import on_axes
from meshwright.search.tuners.study import TrialLog, bounded, judged

FAILED = 1e18
"""What a trial without a value reports: worse than anything real."""
ROW, VALUE = "row", "value"
_QUIET = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S": "0",
}


LEAST_S = 1.0
"""Least time of a study, also if its time is over when it starts: Ray's workers are there by then."""


def tune(log: TrialLog, *, algorithm: str, scheduler: str, seed: int, study: str, workers: int) -> None:
    """Make the trials that are left.

    Args:
        log: the study so far; takes the new rows.
        algorithm: random, optuna or hyperopt, of Ray Tune.
        scheduler: none, asha or median, of Ray Tune.
        seed: the seed of the search algorithm.
        study: its name.
        workers: trials at a time.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        # Ray and the libraries it loads warn of their own future.
        warnings.simplefilter("ignore")
        from ray import tune as ray_tune

        searcher = _searcher(algorithm, log, seed)
        with _local_ray(workers), tempfile.TemporaryDirectory(prefix="meshwright-ray-") as folder:
            trainable = ray_tune.with_parameters(trainable_class(), space=log.space, bounds=scheduler != "none")
            tuner = ray_tune.Tuner(
                ray_tune.with_resources(trainable, {"cpu": 1}),
                param_space=_param_space(algorithm, log, seed),
                tune_config=ray_tune.TuneConfig(
                    metric=VALUE,
                    mode="min",
                    num_samples=log.left,
                    time_budget_s=None if (left := left_s()) is None else max(left, LEAST_S),
                    search_alg=searcher,
                    scheduler=_scheduler(scheduler),
                    max_concurrent_trials=workers,
                    reuse_actors=True,
                ),
                run_config=ray_tune.RunConfig(
                    name="study",
                    storage_path=folder,
                    verbose=0,
                    callbacks=[_row_keeper(log)],
                    failure_config=ray_tune.FailureConfig(max_failures=0, fail_fast=False),
                ),
            )
            tuner.fit()


@contextmanager
def _local_ray(workers: int) -> Iterator[None]:
    """A Ray that is there already, or one of this machine for as long as the study runs."""
    import ray

    from meshwright.ray_cluster import start_here

    if ray.is_initialized():
        yield
        return
    start_here(ray, num_cpus=workers, num_gpus=0, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        ray.shutdown()


def trainable_class() -> Any:
    """The class whose objects price points in Ray's workers; made of functions that a worker finds by their names."""
    from ray import tune as ray_tune

    methods = {
        "setup": _setup,
        "reset_config": _reset_config,
        "step": _step,
        "save_checkpoint": _save_checkpoint,
        "load_checkpoint": _load_checkpoint,
    }
    return type("PointTrial", (ray_tune.Trainable,), methods)


def _setup(self: Any, config: dict[str, Any], space: TunableSpace, bounds: bool) -> None:
    self.space, self.rules, self.bounds = space, Rules.of(space), bounds
    self.wish, self.bounded = config, False


def _reset_config(self: Any, new_config: dict[str, Any]) -> bool:
    self.wish, self.bounded = new_config, False
    return True


def _step(self: Any) -> dict[str, Any]:
    """First the bound, where a scheduler wants it and there is one; then the value."""
    point = legal_point(self.space, self.rules, self.wish)
    if self.bounds and not self.bounded:
        self.bounded = True
        bound = bounded(self.space, self.rules, point)
        if bound is not None:
            return {VALUE: bound, ROW: {"point": point, "outcome": None, "took_s": 0.0}, "done": False}
    started = time.perf_counter()
    outcome = judged(self.space, self.rules, point)
    row = {"point": point, "outcome": asdict(outcome), "took_s": time.perf_counter() - started}
    penalised = outcome.penalised
    return {VALUE: FAILED if penalised is None else penalised, ROW: row, "done": True}


def _save_checkpoint(self: Any, checkpoint_dir: str) -> dict[str, Any]:
    return {"wish": self.wish, "bounded": self.bounded}


def _load_checkpoint(self: Any, checkpoint: dict[str, Any] | None) -> None:
    if checkpoint:
        self.wish, self.bounded = checkpoint["wish"], checkpoint["bounded"]


def legal_point(space: TunableSpace, rules: Rules, config: dict[str, Any]) -> Point:
    """What a search algorithm proposed, moved to the nearest legal point."""
    wish = on_axes(space, config.get("point", config))
    return rules.nearest_legal(wish) or rules.completed(wish)


def _param_space(algorithm: str, log: TrialLog, seed: int) -> dict[str, Any]:
    """What is drawn: whole legal points, or axes for a search algorithm that models them."""
    from ray import tune as ray_tune

    if algorithm == "optuna":
        return {}
    if algorithm == "random":
        space, generator = log.space, random.Random(seed)
        for _ in log.trials:
            space.sample(generator)
        return {"point": ray_tune.sample_from(lambda _: space.sample(generator))}
    return {axis.name: ray_tune.choice(list(axis.values)) for axis in log.space.axes}


def _searcher(algorithm: str, log: TrialLog, seed: int) -> Any:
    """A search algorithm of Ray Tune that knows the rows there are."""
    if algorithm == "random":
        return None
    known = [trial for trial in log.trials if trial.outcome.penalised is not None]
    points = [dict(trial.point) for trial in known]
    again = seed + len(log.trials)
    if algorithm == "optuna":
        from ray.tune.search.optuna import OptunaSearch

        from meshwright.search.tuners.with_optuna import distributions_of, inner_sampler, legal_sampler, only_errors

        class Unsaved(OptunaSearch):  # type: ignore[misc]
            # A study goes on from its rows, not from what Ray Tune writes down.
            def save(self, checkpoint_path: str) -> None:
                pass

            def __deepcopy__(self, memo: dict[int, Any]) -> Any:
                return self

            def __reduce__(self) -> tuple[Any, ...]:
                return OptunaSearch, ()

        only_errors()
        return Unsaved(
            space=distributions_of(log.space),
            metric=VALUE,
            mode="min",
            sampler=legal_sampler(inner_sampler("tpe", again), log.space, log.rules, seed),
            points_to_evaluate=points or None,
            evaluated_rewards=[trial.outcome.penalised for trial in known] or None,
        )
    from ray.tune.search.hyperopt import HyperOptSearch

    return HyperOptSearch(metric=VALUE, mode="min", random_state_seed=again)


def _scheduler(name: str) -> Any:
    """A scheduler of Ray Tune that looks at the lower bound, after one step, before the value, after two."""
    from ray.tune import schedulers

    if name == "asha":
        return schedulers.ASHAScheduler(max_t=2, grace_period=1, reduction_factor=2)
    if name == "median":
        return schedulers.MedianStoppingRule(grace_period=0, min_samples_required=5)
    return None


def _row_keeper(log: TrialLog) -> Any:
    """What turns every ended trial of Ray Tune into a row."""
    from ray import tune as ray_tune

    class RowKeeper(ray_tune.Callback):  # type: ignore[misc]
        def __deepcopy__(self, memo: dict[int, Any]) -> Any:
            return self

        def __reduce__(self) -> tuple[Any, ...]:
            # Ray Tune writes its callbacks down to restore a study; ours goes on from its rows instead.
            return ray_tune.Callback, ()

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            row = trial.last_result.get(ROW) or {}
            if row.get("outcome"):
                log.keep(row["point"], Outcome(**row["outcome"]), row["took_s"])
            else:
                bound = trial.last_result.get(VALUE)
                reason = "stopped by the scheduler" + (f" at lower bound {bound:.6g}" if bound is not None else "")
                log.keep(row.get("point", {}), Outcome(status="stopped", reason=reason), 0.0)

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
            text = str(getattr(trial, "error", None) or "its worker died").strip().splitlines()[-1][:200]
            point = legal_point(log.space, log.rules, trial.config)
            log.keep(point, Outcome(status="error", reason=text), 0.0)

    return RowKeeper()
