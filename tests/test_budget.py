"""A question ends within its limits, with the best so far and its gap, or one error; else nothing changes."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.budget import MEMORY_LIMIT, TIME_LIMIT, left_s, spent, within
from meshwright.cli import main
from meshwright.errors import InfeasibleError
from meshwright.planning import size
from meshwright.search import grid, one_space
from meshwright.search.grid import Grid

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
    monkeypatch.setattr(grid, "LEAST_ROWS_BYTES", 4e4)
    monkeypatch.setattr(grid, "CHECKED_TOGETHER", 16)
    monkeypatch.setattr(grid, "left_bytes", lambda: 0.0)
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


def test_a_size_out_of_time_says_so() -> None:
    with pytest.raises(InfeasibleError, match="reached its time limit"):
        mw.size("llama-3.1-8b", "H100", step_time=0.5, time_limit=1e-6)


def test_a_size_out_of_time_bounds_no_further_count(monkeypatch: pytest.MonkeyPatch) -> None:
    built = 0
    build = size.grid_parts

    def counted(*args: Any, **kwargs: Any) -> Iterator[Grid]:
        nonlocal built
        built += 1
        return build(*args, **kwargs)

    monkeypatch.setattr(size, "grid_parts", counted)
    with pytest.raises(InfeasibleError, match="reached its time limit"):
        mw.size("gpt2-xl", "H100", step_time=0.31, time_limit=1e-6)
    assert built == 0


LARGE = {"model": "deepseek-v3", "gpus": "55440xH800", "global_batch": 720720, "seq_len": 131040}


@pytest.mark.parametrize("limits", [{"memory_limit": 300e6}, {"time_limit": 0.1}])
def test_the_space_of_a_study_is_not_built_beyond_the_limits(limits: dict[str, float]) -> None:
    with pytest.raises(InfeasibleError, match=f"reached its {next(iter(limits)).replace('_', ' ')}"):
        mw.tune(**LARGE, trials=2, optimum=False, **limits)


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


def test_a_study_out_of_time_keeps_its_trials() -> None:
    studies = mw.tune("llama-3.1-8b", gpus="8xH100", trials=100_000, time_limit=0.2, optimum=False)
    assert studies.to_dict()


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "soon", "3 fortnights"])
def test_a_limit_is_a_time_above_0(text: str) -> None:
    assert main(["plan", "llama-3.1-8b", "--gpus", "8xH100", "--time-limit", text]) == 2
