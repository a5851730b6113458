"""Parallelizers in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest

from meshwright.planning.compose.sources.parallelizers.guard import Guarded
from meshwright.planning.compose.sources.parallelizers.own_process import OwnProcess
from tests.planning.compose.sources.parallelizers.slices import island_of, job, slice_of

INPUTS = job()
HONEST = """
import json, sys
asked = json.load(sys.stdin)
part, island = asked["slice"], asked["island"]
parameters = sum(run["count"] * run["active_parameters"] for run in part["runs"])
tokens = asked["micro_batch"] * asked["workload"]["seq_len"]
devices = island["devices"]
forward_s = 4 * parameters * tokens / (devices * max(island["peak_flop_per_s"].values()))
plan = {"strategy": f"tp{devices}.z1", "forward_s": forward_s, "backward_s": 2 * forward_s,
        "state_bytes": 1e9, "activation_bytes": 1e9}
print(json.dumps({"plans": [plan]}))
"""


def guarded(folder: Path, text: str, time_limit_s: float = 20.0) -> Guarded:
    script = folder / "planner.py"
    script.write_text(text)
    command = (sys.executable, "-S", str(script))
    return Guarded(inner=OwnProcess(name="own", command=command, time_limit_s=time_limit_s))


def ask(one: Guarded) -> list[object]:
    return list(one.plan(slice_of(INPUTS, 4, head=True), island_of(INPUTS), INPUTS.workload, 8))


def test_a_script_answers_in_the_one_line_form(tmp_path: Path) -> None:
    one = guarded(tmp_path, HONEST)
    (plan,) = one.plan(slice_of(INPUTS, 4), island_of(INPUTS), INPUTS.workload, 8)
    assert not one.skips
    assert (plan.devices, plan.strategies[0].tp, plan.micro_batch) == (8, 8, 8)
    assert plan.backward_s == pytest.approx(2 * plan.forward_s)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("raise RuntimeError('out of ideas')", "exit code 1 (RuntimeError: out of ideas)"),
        ("import os; os.abort()", "signal 6"),
        ("print('hello')", "printed no JSON: 'hello"),
        ("print('[]')", "printed a list"),
        ("print('{}')", "plans is missing"),
        ('print(\'{"plans": [{"strategy": "tp8", "forward_s": "1"}]}\')', "forward_s is '1'"),
        (HONEST.replace("tp{devices}.z1", "tq8"), "unknown token 'tq8'"),
        (HONEST.replace("tp{devices}.z1", "tp64"), "uses 64 devices of the 8"),
        (HONEST.replace("4 * parameters", "1 * parameters"), "less than the"),
        (HONEST.replace('{"plans"', '{"plan"'), "unknown key 'plan'"),
    ],
)
def test_crashes_and_nonsense_stay_in_the_process(text: str, said: str, tmp_path: Path) -> None:
    one = guarded(tmp_path, text)
    assert ask(one) == []
    assert said in " ".join(one.report())


def test_a_process_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    number = tmp_path / "child"
    text = f"""
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
pathlib.Path({str(number)!r}).write_text(str(child.pid))
time.sleep(600)
"""
    one = guarded(tmp_path, text, time_limit_s=2.0)
    assert ask(one) == []
    assert "gave no answer within 2 s" in one.skips[0].reason
    assert not one.hung
    until_gone(number.read_text())


def until_gone(number: str) -> None:
    """Wait until a process has ended."""
    process, deadline = Path(f"/proc/{number}/stat"), time.monotonic() + 60
    while process.exists() and process.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < deadline, "the process goes on"
        time.sleep(0.05)


def test_a_process_ends_with_its_children_when_the_asker_is_killed(tmp_path: Path) -> None:
    numbers = tmp_path / "numbers"
    text = f"""
import os, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
part = pathlib.Path({str(numbers)!r} + ".part")
part.write_text(f"{{os.getpid()}} {{child.pid}}")
part.rename({str(numbers)!r})
time.sleep(600)
"""
    one = guarded(tmp_path, text, time_limit_s=600.0)
    asker = os.fork()
    if not asker:
        ask(one)
        os._exit(0)
    deadline = time.monotonic() + 60
    while not numbers.exists():
        assert time.monotonic() < deadline, "it was not started"
        time.sleep(0.02)
    time.sleep(0.1)  # the watching shell is started behind it
    os.kill(asker, signal.SIGKILL)
    os.waitpid(asker, 0)
    for number in numbers.read_text().split():
        until_gone(number)


def test_a_command_that_is_not_there_is_a_skip() -> None:
    one = Guarded(inner=OwnProcess(name="own", command=("/nowhere/planner",)))
    assert ask(one) == []
    assert "could not be started" in one.skips[0].reason


def test_the_question_holds_what_a_planner_needs() -> None:
    from meshwright.formats.partial_plans_json import request

    asked = request(slice_of(INPUTS, 4, head=True), island_of(INPUTS), INPUTS.workload, 8)
    again = json.loads(json.dumps(asked, allow_nan=False))
    assert again["slice"]["runs"][0]["count"] == 4
    assert again["slice"]["head_parameters"] == INPUTS.model.head_parameters
    assert again["island"]["domains"][0]["size"] == 8
    assert again["workload"]["seq_len"] == 2048
