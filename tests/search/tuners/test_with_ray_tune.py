"""Ray Tune, the real one, on a Ray of this machine: search algorithms, schedulers, failing trials, going on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from meshwright.search.tuners.base import Outcome
from meshwright.search.tuners.run import run_study
from tests.search.tuners.toy import BEST, Toy, check_rows

pytestmark = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
ray = pytest.importorskip("ray")
pytest.importorskip("ray.tune", exc_type=ImportError)


@pytest.fixture(scope="module", autouse=True)
def one_ray() -> Iterator[None]:
    """One Ray for all tests: starting it takes longer than the studies."""
    ray.init(num_cpus=2, num_gpus=0, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.mark.parametrize("algorithm", ["random", "optuna", "hyperopt"])
def test_every_search_algorithm_makes_legal_trials(algorithm: str) -> None:
    if algorithm != "random":
        pytest.importorskip(algorithm)
    study = run_study(Toy(), "ray-tune", algorithm=algorithm, trials=25)
    check_rows(Toy(), study.trials, 25)
    assert study.best is not None
    assert study.best.outcome.value is not None
    assert study.best.outcome.value <= BEST + 4


@pytest.mark.parametrize("scheduler", ["asha", "median"])
def test_a_scheduler_stops_trials_by_their_bound(scheduler: str) -> None:
    study = run_study(Toy(), "ray-tune", scheduler=scheduler, trials=25)
    check_rows(Toy(), study.trials, 25)
    stopped = [trial for trial in study.trials if trial.outcome.status == "stopped"]
    assert stopped
    assert all("lower bound" in trial.outcome.reason for trial in stopped)


class Deadly(Toy):
    """A point whose worker does not survive it."""

    def evaluate(self, point: dict) -> Outcome:
        if point["width"] == 8:
            import os

            os._exit(1)
        return super().evaluate(point)


def test_a_trial_whose_worker_dies_is_a_row_and_the_study_goes_on(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'trials.db'}"
    first = run_study(Deadly(), "ray-tune", trials=8, storage=storage, workers=2)
    dead = [trial for trial in first.trials if trial.point.get("width") == 8]
    assert dead
    assert all(trial.outcome.status == "error" and trial.outcome.reason for trial in dead)
    both = run_study(Deadly(), "ray-tune", trials=12, storage=storage, resume=True, workers=2)
    assert both.trials[:8] == first.trials
    assert len(both.trials) == 12
