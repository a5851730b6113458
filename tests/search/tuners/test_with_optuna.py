"""Optuna, the real one: legal proposals, constraints, pruning, a storage its dashboard opens."""

from __future__ import annotations

from pathlib import Path

import pytest

from meshwright.search.tuners.run import run_study
from tests.search.tuners.toy import BEST, Toy, check_rows

optuna = pytest.importorskip("optuna")


@pytest.mark.parametrize("algorithm", ["tpe", "gp", "nsga2", "random"])
def test_every_sampler_makes_legal_trials_and_finds_something_good(algorithm: str) -> None:
    if algorithm == "gp":
        pytest.importorskip("torch")
    trials = 13 if algorithm == "gp" else 40  # its model, from the eleventh on, takes a second or two a trial
    study = run_study(Toy(), "optuna", algorithm=algorithm, trials=trials)
    check_rows(Toy(), study.trials, trials)
    assert study.best is not None
    assert study.best.outcome.value is not None
    assert study.best.outcome.value <= BEST + 3


def test_the_pruner_stops_trials_by_their_bound() -> None:
    study = run_study(Toy(), "optuna", scheduler="median", trials=40)
    check_rows(Toy(), study.trials, 40)
    stopped = [trial for trial in study.trials if trial.outcome.status == "stopped"]
    assert stopped
    assert all("lower bound" in trial.outcome.reason for trial in stopped)


def test_the_storage_is_a_study_of_optuna(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'trials.db'}"
    ours = run_study(Toy(), "optuna", trials=12, storage=storage)
    name = optuna.get_all_study_names(storage=storage)[0]
    theirs = optuna.load_study(study_name=name, storage=storage)
    assert len(theirs.trials) == 12
    for trial, row in zip(theirs.trials, ours.trials, strict=True):
        assert trial.params == row.point
        assert trial.user_attrs["status"] == row.outcome.status
        if row.outcome.status == "error":
            assert trial.state.name == "FAIL"
        else:
            assert trial.value == row.outcome.value
            assert trial.constraints == {"over the limit": row.outcome.excess}
    assert ours.best is not None
    assert theirs.best_value == ours.best.outcome.value


def test_a_trial_left_running_is_closed_and_the_study_goes_on(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'trials.db'}"
    run_study(Toy(), "optuna", trials=6, storage=storage)
    name = optuna.get_all_study_names(storage=storage)[0]
    optuna.load_study(study_name=name, storage=storage).ask()
    study = run_study(Toy(), "optuna", trials=10, storage=storage, resume=True)
    check_rows(Toy(), study.trials, 10)
    states = [trial.state for trial in optuna.load_study(study_name=name, storage=storage).trials]
    assert len(states) == 11
    assert all(state.is_finished() for state in states)


def test_a_study_that_ended_between_a_constraint_and_its_value_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = f"sqlite:///{tmp_path / 'trials.db'}"
    told = optuna.study.Study.tell

    def dies(study: object, trial: object, *values: object, **options: object) -> object:
        if getattr(trial, "number", trial) == 3 and values:
            raise KeyboardInterrupt
        return told(study, trial, *values, **options)

    monkeypatch.setattr(optuna.study.Study, "tell", dies)
    with pytest.raises(KeyboardInterrupt):
        run_study(Toy(raises=False), "optuna", trials=8, storage=storage)
    monkeypatch.undo()
    study = run_study(Toy(raises=False), "optuna", trials=8, storage=storage, resume=True)
    assert study.resumed == 4
    check_rows(Toy(raises=False), study.trials, 8)


def test_rows_that_optuna_has_not_heard_of_are_told_to_it(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'trials.db'}"
    ours = run_study(Toy(), "optuna", trials=6, storage=storage)
    (name,) = optuna.get_all_study_names(storage=storage)
    optuna.delete_study(study_name=name, storage=storage)
    study = run_study(Toy(), "optuna", trials=8, storage=storage, resume=True)
    assert study.resumed == 6
    told = {one.user_attrs["row"]: one for one in optuna.load_study(study_name=name, storage=storage).trials}
    values = {row.number: row.outcome.value for row in study.trials if row.outcome.value is not None}
    assert {row: one.value for row, one in told.items() if row in values} == values
    assert any(row.number in values for row in ours.trials)
    assert all(one.params == study.trials[row].point for row, one in told.items())
