"""A question ends within its limits, with the best so far and its gap, or one error; else nothing changes."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

import meshwright as mw
from meshwright.budget import MEMORY_LIMIT, TIME_LIMIT, left_s, spent, within, within_share
from meshwright.cli import main
from meshwright.errors import InfeasibleError
from meshwright.library.clusters import resolve_gpus
from meshwright.library.models import spec
from meshwright.planning import count_bound
from meshwright.search import legal_rows, one_space
from meshwright.search.grid import Grid
from meshwright.search.tuners import plan_space
from meshwright.search.tuners.base import Outcome, Point
from meshwright.search.tuners.plan_space import PlanSpace
from meshwright.search.tuners.run import run_study
from meshwright.search.tuners.study import LEAST_TRIALS
from meshwright.specs import Workload
from tests.answers.schemas import faults
from tests.search.tuners.toy import Toy

QUESTION = {"model": "llama-3.1-8b", "gpus": "16xH100"}


def test_a_budget_is_spent_when_its_time_is_over_and_stays_so() -> None:
    assert not spent()
    with within(time_s=1e-9):
        assert spent() == TIME_LIMIT
        assert left_s() == 0.0
        with within(time_s=100.0):
            assert not spent()
        assert spent() == TIME_LIMIT
    assert not spent()
    assert left_s() is None


def test_a_first_part_ends_at_its_share_and_leaves_the_rest() -> None:
    with within_share(0.5):
        assert left_s() is None, "without a limit there is none of a share"
    with within(time_s=1000.0):
        with within_share(0.25):
            quarter_s = left_s()
            assert quarter_s is not None
            assert 240.0 < quarter_s <= 250.0
            with within_share(0.5):
                assert 115.0 < (left_s() or 0.0) <= 125.0
        assert 990.0 < (left_s() or 0.0) <= 1000.0
        with within_share(1e-12):
            assert spent() == TIME_LIMIT
        assert not spent(), "the part is over, not the question"
    with within(memory_bytes=1.0):
        with within_share(0.5):
            assert spent() == MEMORY_LIMIT
        assert spent() == MEMORY_LIMIT, "memory that is full stays so"


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that each study had left when it began."""
    seen: list[float] = []

    def noted(*args: Any, **options: Any) -> Any:
        seen.append(left_s() or 0.0)
        return run_study(*args, **options)

    monkeypatch.setattr("meshwright.app.tune.run_study", noted)
    return seen


def test_trials_have_what_the_optimum_leaves_of_a_time_limit(
    monkeypatch: pytest.MonkeyPatch, left: list[float]
) -> None:
    def endless(space: PlanSpace) -> None:
        while not spent():
            pass

    monkeypatch.setattr("meshwright.app.tune.exact_optimum", endless)
    answer = mw.tune("gpt2", gpus="4xH100", trials=4, time_limit=2.0)
    assert answer.optimum is None
    assert answer.studies[0].study.trials
    assert 0.0 < left[0] <= 1.0


def test_studies_that_are_compared_have_alike_shares_of_a_time_limit(left: list[float]) -> None:
    answer = mw.tune("gpt2", gpus="4xH100", trials=1, compare=True, repeats=4, tuners=["random"], time_limit=10_000.0)
    assert not answer.stopped
    # Each has a share of what is left: a quarter, a third, a half and all.
    for share, had_s in zip((1 / 4, 1 / 3, 1 / 2, 1.0), left, strict=True):
        assert 0.9 * share * 10_000.0 < had_s < share * 10_000.0


def test_what_a_process_held_before_is_not_counted() -> None:
    # In an interpreter of its own, which holds more than the limit of the question before it is asked.
    program = """
import meshwright as mw
held = b"x" * 1_000_000_000
answer = mw.plan("gpt2", gpus="2xH100", global_batch=8, memory_limit=500e6)
print(answer.certificate.stopped or "whole")
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "whole"


def test_memory_is_told_before_it_is_reached() -> None:
    # In an interpreter of its own: what other tests freed would be handed out again and not count as growth.
    program = """
from meshwright.budget import FRESH_BYTES, MEMORY_LIMIT, resident_bytes, spent, within

held, most_bytes = [], resident_bytes() + 400e6
with within(memory_bytes=most_bytes - max(0.0, resident_bytes() - FRESH_BYTES)):
    assert not spent()
    while not spent() and len(held) < 40:
        held.append(b"x" * 50_000_000)
    assert spent() == MEMORY_LIMIT
    assert resident_bytes() < most_bytes
print(len(held))
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert 3 <= int(run.stdout) <= 8


def test_a_search_out_of_time_answers_with_the_best_so_far_and_its_gap() -> None:
    whole, part = mw.plan(**QUESTION), mw.plan(**QUESTION, time_limit=1e-6)
    assert whole.certificate.optimal
    assert not whole.certificate.stopped
    assert part.certificate.stopped == TIME_LIMIT
    assert not part.certificate.optimal
    best_s, bound_s = part.plans[0].estimate.step_time_s, part.certificate.bound_step_time_s
    assert bound_s <= whole.plans[0].estimate.step_time_s <= best_s
    assert any("time limit" in warning for warning in part.warnings)


@pytest.mark.parametrize("limits", [{"time_limit": 1e-6}, {"memory_limit": 1.0}])
def test_members_of_a_stopped_search_are_all_accounted_for(limits: dict[str, float]) -> None:
    certificate = mw.plan(**QUESTION, **limits).certificate
    assert certificate.stopped
    assert certificate.priced + sum(count for _, count in certificate.pruned) == certificate.space
    assert all(count >= 0 for _, count in certificate.pruned)


def test_a_limit_that_is_not_reached_changes_no_byte(capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for limits in ([], ["--time-limit", "10min", "--memory-limit", "64GiB"]):
        assert main(["plan", "llama-3.1-8b", "--gpus", "16xH100", "--json", *limits]) == 0
        answer = json.loads(capsys.readouterr().out)
        del answer["timing"], answer["made_by"]  # it says the options
        answers.append(answer)
    assert answers[0] == answers[1]


def test_a_space_is_not_looked_at_once_a_limit_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    built = 0
    build = one_space.build_grid

    def counted(*args: Any, **kwargs: Any) -> Grid:
        nonlocal built
        built += 1
        return build(*args, **kwargs)

    monkeypatch.setattr(one_space, "build_grid", counted)
    answer = mw.plan("mixtral-8x7b", gpus="64xH100", methods="all", time_limit=1e-6)
    assert built == 1
    certificate, best = answer.certificate, answer.plans[0].estimate
    assert certificate.stopped == TIME_LIMIT
    assert certificate.bound_step_time_s is not None
    assert 0.0 < certificate.bound_step_time_s <= best.step_time_s
    assert certificate.priced + sum(count for _, count in certificate.pruned) == certificate.space > 0


def test_rows_that_memory_has_no_room_for_leave_the_answer_unproven(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = mw.plan(**QUESTION)
    monkeypatch.setattr(legal_rows, "LEAST_ROWS_BYTES", 4e4)
    monkeypatch.setattr(legal_rows, "CHECKED_TOGETHER", 16)
    monkeypatch.setattr(legal_rows, "left_bytes", lambda: 0.0)
    part = mw.plan(**QUESTION)
    assert part.certificate.stopped == MEMORY_LIMIT
    assert not part.certificate.optimal
    assert 0 < part.certificate.space < whole.certificate.space
    assert part.certificate.bound_step_time_s is not None
    assert part.certificate.bound_step_time_s <= whole.plans[0].estimate.step_time_s
    assert part.plans[0].estimate.step_time_s >= whole.plans[0].estimate.step_time_s


def test_calculon_stops_with_what_it_has(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        "calculon",
        "search",
        "gpt3-13B",
        "a100_80g",
        "--procs",
        "256",
        "--batch",
        "256",
        "--space",
        "full",
        "--json",
    ]
    assert main([*words, "--time-limit", "1e-3"]) == 0
    search = json.loads(capsys.readouterr().out)["search"]
    assert search["stopped"] == TIME_LIMIT
    assert search["priced"] + sum(search["pruned"].values()) == search["space"]
    assert not search["optimal"]


@pytest.mark.parametrize("limit", ["time", "memory"])
def test_a_size_out_of_limits_answers_with_enough_and_says_what_is_not_proven(
    limit: str, capsys: pytest.CaptureFixture[str]
) -> None:
    question = {"model": "llama-3.1-8b", "device": "H100", "step_time": 2.0, "global_batch": 256}
    limits = {"time_limit": 1e-6} if limit == "time" else {"memory_limit": 1.0}
    whole, part = mw.size(**question), mw.size(**question, **limits)
    assert part.stopped == f"{limit} limit"
    assert part.at_least <= whole.devices <= part.devices
    chosen = next(point for point in part.curve if point.devices == part.devices)
    assert chosen.step_time_s is not None
    assert chosen.step_time_s <= 2.0
    assert part.plans[0].estimate.step_time_s == chosen.step_time_s
    assert "are enough" in part.text
    assert "not proven to be the fewest" in part.text
    assert not list(faults(part.to_dict()))
    words = ["size", "llama-3.1-8b", "--device", "H100", "--step-time", "2", "--gbs", "256"]
    assert main([*words, f"--{limit}-limit", "1us" if limit == "time" else "1MB"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert printed.count(f"! the search stopped at its {limit} limit: this is the best so far") == 1


def test_a_size_within_its_limits_does_not_speak_of_them() -> None:
    answer = mw.size("llama-3.1-8b", "H100", step_time=2.0, global_batch=256, time_limit=600)
    assert not answer.stopped
    assert "stopped" not in answer.to_dict()
    assert "are the fewest" in answer.text


def test_a_size_that_uses_a_part_of_the_devices_tried_is_that_part() -> None:
    for step_time in (1.0, 3.0, 8.3):
        answer = mw.size("llama-3.1-70b", "H100", step_time=step_time, time_limit=1e-6)
        used = answer.plans[0].plan.devices
        assert answer.devices == used or used not in {point.devices for point in answer.curve if point.meets}


def test_a_size_out_of_time_with_nothing_found_says_what_it_knows() -> None:
    with pytest.raises(InfeasibleError, match=r"reached its time limit[\s\S]*the cheapest is .* USD with .* so far"):
        mw.size("llama-3.1-8b", "H100", tokens="1T", max_price=1000, price=2.0, time_limit=1e-6)


def test_a_size_of_adapters_out_of_time_answers_with_a_trainer() -> None:
    answer = mw.size("llama-3.1-8b", "RTX4090", lora="r=16", step_time=8.0, global_batch=16, time_limit=1e-6)
    assert answer.stopped == TIME_LIMIT
    assert answer.at_least == 1
    assert answer.plans.to_dict()["trainers"]


def test_a_size_out_of_time_bounds_no_further_count(monkeypatch: pytest.MonkeyPatch) -> None:
    built = 0
    build = count_bound.grid_parts

    def counted(*args: Any, **kwargs: Any) -> Iterator[Grid]:
        nonlocal built
        built += 1
        return build(*args, **kwargs)

    monkeypatch.setattr(count_bound, "grid_parts", counted)
    assert mw.size("gpt2-xl", "H100", step_time=0.31, time_limit=1e-6).stopped == TIME_LIMIT
    assert built == 0


LARGE = {"model": "deepseek-v3", "gpus": "55440xH800", "global_batch": 720720, "seq_len": 131040}


@pytest.mark.parametrize("limits", [{"memory_limit": 300e6}, {"time_limit": 0.1}])
def test_a_study_beyond_the_limits_tries_a_part_of_its_space(limits: dict[str, float]) -> None:
    answer = mw.tune(**LARGE, trials=3, optimum=False, **limits)
    assert answer.stopped == f"{next(iter(limits)).replace('_', ' ')}"
    assert answer.partial
    assert not list(faults(answer.to_dict()))
    statuses = answer.studies[0].study.counts
    assert sum(statuses.values()) == 3
    assert not set(statuses) - {"ok", "infeasible"}, "a point of the part is legal in the whole"


def test_the_part_of_a_space_goes_with_it_to_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_space, "PART_ROWS", 50)
    inputs = {"model": spec("llama-3.1-8b"), "cluster": resolve_gpus("16xH100")}
    work = Workload(global_batch=256, seq_len=4096)
    whole = PlanSpace(**inputs, workload=work)
    assert not whole.stopped
    with within(time_s=1e-9):
        part = PlanSpace(**inputs, workload=work)
        assert part.stopped == TIME_LIMIT
        assert part.size < whole.size
    away = pickle.loads(pickle.dumps(part))
    generator = Random(0)
    for point in (part.sample(generator) for _ in range(20)):
        assert not away.rules.broken(point)
        assert away.row(point) == part.row(point)
        assert away.evaluate(point) == part.evaluate(point)
        assert whole.row(whole.rules.completed(part.whole(point))) == part.row(point)


def test_a_count_with_millions_of_rows_is_bounded_within_the_limits() -> None:
    program = """
import meshwright as mw
try:
    mw.size("deepseek-v3", "H800", global_batch=720720, step_time=10.0, memory_limit=500e6, time_limit=2.0)
except mw.errors.InfeasibleError as error:
    assert "reached its" in str(error), error
print(*(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
    if not Path("/proc/self/status").exists():
        pytest.skip("the most memory that a process ever had is read from Linux")
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert float(run.stdout) * 1024 < 500e6


def test_a_study_out_of_time_keeps_its_trials_and_says_how_many(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["tune", "llama-3.1-8b", "--gpus", "8xH100", "--trials", "100000", "--time-limit", "0.2"]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["stopped"], document["partial"], document["budget"]) == (TIME_LIMIT, False, 100_000)
    assert 1 <= document["count"] == len(document["trials"]) < 100_000
    assert not list(faults(document))
    assert main(words) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "trials of 100,000:" in printed
    assert "! the search stopped at its time limit: this is the best so far" in printed


def test_a_study_whose_time_is_over_tries_until_one_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Toy):
        tries = 0

        def evaluate(self, point: Point) -> Outcome:
            Late.tries += 1
            return Outcome(status="ok" if Late.tries == 4 else "infeasible", value=1.0, reason="memory: none left")

    with within(time_s=1e-9):
        assert spent() == TIME_LIMIT
        study = run_study(Late(), "random", trials=50)
        never = run_study(Late(), "random", trials=50)
    assert [trial.outcome.status for trial in study.trials] == ["infeasible"] * 3 + ["ok"]
    assert len(never.trials) == LEAST_TRIALS


def test_tuners_are_compared_at_a_limit_as_far_as_they_came() -> None:
    answer = mw.tune(
        "llama-3.1-8b", gpus="8xH100", trials=1000, compare=True, repeats=2, tuners=["random"], time_limit=0.1
    )
    assert answer.stopped == TIME_LIMIT
    assert not list(faults(answer.to_dict()))
    assert all(judged.study.trials for judged in answer.studies)


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", "3 fortnights"])
def test_a_limit_is_a_time_above_0(text: str) -> None:
    assert main(["plan", "llama-3.1-8b", "--gpus", "8xH100", "--time-limit", text]) == 2
