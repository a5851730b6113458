"""`plan --parallelizer`: everything wrong is said at once, and a planner of one's own is named by its module."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

MINE = """
from tests.planning.compose.sources.parallelizers.slices import Plain


class Mine:
    name = "my own"

    def plan(self, *asked):
        return Plain().plan(*asked)
"""


def test_everything_wrong_is_said_at_once(run: Run) -> None:
    found = run("plan", "llama-3-9b", "--gpus", "8xH100", "--parallelizer", "calclon", "--pin", "tp=2", "--pareto")
    assert found.code == 2
    for said in ("did you mean calculon?", "--pareto with --parallelizer", "llama-3-9b"):
        assert said in found.err


def test_it_does_not_go_with_profiles(run: Run) -> None:
    found = run("plan", "OPT-350", "--gpus", "8xH100", "--profiles", ".", "--gbs", "8", "--parallelizer", "native")
    assert found.code == 2
    assert "--parallelizer with --profiles" in found.err


def test_a_planner_of_the_users_folder_plans(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planner_of_a_test.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    asked = (
        "plan",
        "gpt2",
        "--gpus",
        "2xH100",
        "--gbs",
        "16",
        "--parallelizer",
        "planner_of_a_test:Mine",
        "--top",
        "1",
    )
    found = run(*asked, "--json")
    assert found.code == 0, found.err
    document = json.loads(found.out)
    assert document["composition"]["parallelizers"] == ["my own"]
    assert document["composition"]["slices"][0]["parallelizer"] == "my own"
    text = run(*asked)
    assert "by my own" in text.out
    assert "meshwright's own search" in text.out
