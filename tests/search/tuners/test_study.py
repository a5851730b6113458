"""Studies: rows whatever happens, kept in a file, gone on with after a kill."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from meshwright.errors import InputError, MeshwrightError, UnsupportedError
from meshwright.search.tuners import run as running
from meshwright.search.tuners.base import Outcome, Rules, Trial
from meshwright.search.tuners.run import TUNERS, run_study
from meshwright.search.tuners.study import judged
from tests.search.tuners.toy import BEST, Toy, check_rows

ROOT = Path(__file__).parents[3]


def test_a_study_is_rows_and_a_failing_trial_is_one_of_them() -> None:
    study = run_study(Toy(), "random", trials=150)
    check_rows(Toy(), study.trials, 150)
    assert set(study.counts) == {"ok", "infeasible", "error"}
    assert study.best is not None
    assert study.best.outcome.value == BEST
    values = [value for _, value in study.incumbents()]
    assert values == sorted(set(values), reverse=True)
    assert values[-1] == BEST


def test_the_same_seed_makes_the_same_trials() -> None:
    one, two, other = (run_study(Toy(), "random", trials=20, seed=seed) for seed in (1, 1, 2))
    assert [trial.point for trial in one.trials] == [trial.point for trial in two.trials]
    assert [trial.point for trial in one.trials] != [trial.point for trial in other.trials]


def test_an_illegal_point_and_a_value_that_is_no_number_are_rows_too() -> None:
    class Odd(Toy):
        def evaluate(self, point: dict) -> Outcome:
            return Outcome(status="ok", value=float("nan"))

    rules = Rules.of(Toy())
    point = {"width": 16, "depth": 5, "kind": "plain", "overlap": False}
    assert judged(Toy(), rules, point) == Outcome(status="illegal", reason="width x depth is at most 32")
    assert judged(Odd(), rules, point | {"width": 1}).status == "error"
    assert judged(Toy(), rules, {"width": 1}).status == "error"


def test_a_study_goes_on_where_it_ended(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'trials.db'}"
    first = run_study(Toy(), "random", trials=10, storage=storage)
    both = run_study(Toy(), "random", trials=25, storage=storage, resume=True)
    whole = run_study(Toy(), "random", trials=25)
    assert both.resumed == 10
    assert both.trials[:10] == first.trials
    assert [trial.point for trial in both.trials] == [trial.point for trial in whole.trials]
    check_rows(Toy(), both.trials, 25)
    done = run_study(Toy(), "random", trials=20, storage=storage, resume=True)
    assert len(done.trials) == 25


def test_a_study_is_not_gone_on_with_by_accident_or_in_another_space(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'trials.db'}"
    run_study(Toy(), "random", trials=3, storage=storage)
    with pytest.raises(InputError, match="holds 3 trials"):
        run_study(Toy(), "random", trials=5, storage=storage)

    class Freer(Toy):
        forbidden = ()

    with pytest.raises(InputError, match="another space"):
        run_study(Freer(), "random", trials=5, storage=storage, resume=True)
    other = run_study(Toy(), "random", trials=4, seed=1, storage=storage)
    assert len(other.trials) == 4


@pytest.mark.parametrize("content", [b"", b"no database at all, but quite a bit of text" * 40])
def test_a_file_that_holds_no_trials(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "trials.db"
    path.write_bytes(content)
    if not content:
        assert len(run_study(Toy(), "random", trials=2, storage=str(path), resume=True).trials) == 2
        return
    with pytest.raises(InputError, match="cannot be read"):
        run_study(Toy(), "random", trials=2, storage=str(path), resume=True)


def test_a_damaged_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "trials.db"
    run_study(Toy(), "random", trials=3, storage=str(path))
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE meshwright_trial SET point = '{\"width\": 1' WHERE number = 1")
    connection.close()
    with pytest.raises(InputError, match="damaged"):
        run_study(Toy(), "random", trials=5, storage=str(path), resume=True)


def test_everything_wrong_with_a_request_is_said_together(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        run_study(Toy(), "random", trials=0, resume=True, workers=3, algorithm="tpe", scheduler="asha")
    assert {problem.field for problem in caught.value.problems} == {
        "trials",
        "resume",
        "workers",
        "algorithm",
        "scheduler",
    }
    with pytest.raises(InputError, match="SQLite"):
        run_study(Toy(), "random", trials=1, storage="postgresql://there/trials")
    with pytest.raises(InputError, match="folder does not exist"):
        run_study(Toy(), "random", trials=1, storage=str(tmp_path / "none" / "trials.db"))


def test_an_unknown_tuner_and_one_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UnsupportedError, match="optuna"):
        run_study(Toy(), "optima", trials=1)
    monkeypatch.setitem(
        TUNERS, "gone", running.Tuner(name="gone", module="with_gone", needs=("no_such_library",), extra="gone")
    )
    with pytest.raises(UnsupportedError, match=r"pip install 'meshwright\[gone\]'"):
        run_study(Toy(), "gone", trials=1)


def test_a_tuner_that_breaks_says_how_to_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Toy):
        def sample(self, generator: object) -> dict:
            raise ZeroDivisionError("no sampler today")

    with pytest.raises(MeshwrightError, match="no sampler today") as caught:
        run_study(Broken(), "random", trials=5, storage=str(tmp_path / "t.db"))
    assert "--resume" in caught.value.problems[0].fix


SLOW = """
import sys, time
from meshwright.search.tuners.run import run_study
from tests.search.tuners.toy import Toy

class Slow(Toy):
    def evaluate(self, point):
        time.sleep(0.05)
        return super().evaluate(point)

run_study(Slow(), sys.argv[1], trials=100000, storage=sys.argv[2])
"""


@pytest.mark.parametrize("tuner", ["random", "optuna"])
def test_a_killed_study_goes_on_from_its_last_trial(tmp_path: Path, tuner: str) -> None:
    if not TUNERS[tuner].installed:
        pytest.skip(f"{tuner} is not installed")
    path = tmp_path / "trials.db"
    process = subprocess.Popen([sys.executable, "-c", SLOW, tuner, str(path)], cwd=ROOT, start_new_session=True)
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and rows_in(path) < 5:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(120)
    left = rows_in(path)
    assert left >= 5
    study = run_study(Toy(), tuner, trials=left + 7, storage=str(path), resume=True)
    assert study.resumed == left
    check_rows(Toy(), study.trials, left + 7)
    assert rows_in(path) == left + 7


def rows_in(path: Path) -> int:
    if not path.exists():
        return 0
    connection = sqlite3.connect(path, timeout=10)
    try:
        return int(connection.execute("SELECT count(*) FROM meshwright_trial").fetchone()[0])
    except sqlite3.OperationalError:
        return 0
    finally:
        connection.close()


def test_trials_take_no_longer_than_their_study_and_end_one_after_the_other(tmp_path: Path) -> None:
    storage = f"sqlite:///{tmp_path / 'trials.db'}"
    first = run_study(Toy(), "random", trials=6, storage=storage)
    both = run_study(Toy(), "random", trials=12, storage=storage, resume=True)
    ends = [trial.at_s for trial in both.trials]
    assert ends == sorted(ends)
    assert ends[:6] == [trial.at_s for trial in first.trials]
    assert sum(trial.took_s for trial in both.trials) <= ends[-1] <= first.wall_s + both.wall_s
    for trial, before_s in zip(both.trials, [0.0, *ends], strict=False):
        assert 0.0 <= trial.took_s <= trial.at_s - before_s


def test_a_row_says_nothing_where_there_is_nothing_to_say() -> None:
    bare = Trial(number=3, point={"width": 1}, outcome=Outcome(status="ok", value=2.0), took_s=0.5, at_s=1.0)
    row = {"trial": 3, "status": "ok", "value": 2.0, "reason": None, "name": None, "point": {"width": 1}}
    assert bare.to_dict() == row
    said = replace(bare, outcome=Outcome(status="error", reason="it broke", name="w1"))
    assert said.to_dict() == row | {"status": "error", "value": None, "reason": "it broke", "name": "w1"}
