"""A schedule of one's own: this file alone, and every verb takes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from meshwright.cli import main
from meshwright.errors import InputError, Problem
from meshwright.schedules import (
    SCHEDULES,
    Kind,
    Placement,
    Schedule,
    ScheduleTable,
    parameters,
    register,
    schedule_named,
)
from meshwright.schedules.list_order import Key, list_table
from meshwright.schedules.named.zb_v import ZeroBubbleV
from meshwright.schedules.parameters import whole
from tests.virtual_devices import eight_devices

eight_devices()


@dataclass(frozen=True, kw_only=True)
class MyV(ZeroBubbleV):
    """ZB-V under another name."""

    name = "my-v"
    aliases = ("own-v",)


@dataclass(frozen=True, kw_only=True)
class MyWave(Schedule):
    """Chunks there and back; a worker keeps `most` micro-batches of its first chunk at most."""

    most: int | None = whole(None, "Micro-batches of a first chunk that are kept.")

    name = "my-wave"
    title = "a wave with a limit"
    source = "this test"

    def closed_form_s(self, p: int, m: int, v: int, forward_s: float, backward_s: float) -> float | None:
        """None: no formula is known."""
        return None

    def placement(self, p: int, v: int = 2) -> Placement:
        """There and back."""
        there = list(range(p))
        return Placement.of_chains([(there + there[::-1]) * (v // 2)])

    def _problems(self, p: int, m: int, v: int) -> list[Problem]:
        return [Problem(what=f"my-wave: v = {v}", why="a wave has two chunks", fix="v = 2", field="v")] if v % 2 else []

    def _table(self, p: int, m: int, v: int) -> ScheduleTable:
        def rank(kind: Kind, stage: int, unit: int) -> Key:
            return int(kind is not Kind.B), unit // p, -stage, unit

        return list_table(self.placement(p, v), (m,), (1, 2), rank, lambda stage: None if stage else self.most)


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    for schedule in (MyV(), MyWave()):
        register(schedule)
    yield
    for name in ("my-v", "my-wave"):
        del SCHEDULES[name]


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_it_is_listed_drawn_and_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"my-v", "my-wave"} <= {one["name"] for one in answer(capsys, "schedule", "list")["schedules"]}
    own, named = (answer(capsys, "schedule", name, "--p", "4", "--m", "8") for name in ("own-v", "zb-v"))
    assert own.pop("name") == "my-v"
    assert named.pop("name") == "zb-v"
    assert own.pop("made_by")["command"] == "meshwright schedule own-v --p 4 --m 8"
    del named["made_by"]
    assert own == named
    assert main(["schedule", "my-wave-most4", "--p", "4", "--m", "8"]) == 0
    assert "8 live per worker" in capsys.readouterr().out
    assert next(one for one in parameters() if one.name == "most").schedules == ("dynapipe", "my-wave")


PLAN = "tp2.pp4.vpp2.dp1.mbs1.gbs32"
GPUS = ("--gpus", "8xH100", "--seq", "2048")


def estimated(capsys: pytest.CaptureFixture[str], schedule: str) -> dict[str, Any]:
    """The only plan of an answer."""
    (entry,) = answer(capsys, "estimate", "llama-3.1-8b", "--plan", f"{PLAN}.{schedule}.rc-full", *GPUS)["plans"]
    assert entry["name"] == f"{PLAN}.{schedule}.rc-full"
    return dict(entry)


def test_estimates_equal_those_of_the_schedule_it_copies(capsys: pytest.CaptureFixture[str]) -> None:
    assert estimated(capsys, "my-v")["estimate"] == estimated(capsys, "zb-v")["estimate"]


def test_a_setting_in_the_name_of_a_plan_changes_its_estimate(capsys: pytest.CaptureFixture[str]) -> None:
    plain, held = (estimated(capsys, name) for name in ("my-wave", "my-wave-most2"))
    assert held["estimate"]["step_time_s"] > plain["estimate"]["step_time_s"]
    assert held["plan"]["pipelines"][0]["schedule"] == {"name": "my-wave", "parameters": [["most", 2]]}


def test_a_search_finds_it_traces_it_and_writes_it(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ("plan", "llama-3.1-8b", *GPUS, "--gbs", "32", "--pin", "pp=4", "--top", "1")
    (own,), (named,) = (answer(capsys, *words, "--schedule", name)["plans"] for name in ("my-v", "zb-v"))
    assert own["name"] == named["name"].replace("zb-v", "my-v")
    assert own["estimate"] == named["estimate"]
    (waves,) = answer(capsys, *words, "--schedule", "my-wave-most8,my-wave-most1")["plans"]
    assert ".my-wave-most8" in waves["name"]

    file = str(tmp_path / "plans.json")
    assert main([*words, "--schedule", "my-v", "-o", file]) == 0
    assert main(["trace", f"{file}#1", "-o", str(tmp_path / "step.json")]) == 0
    assert main(["export", f"{file}#1", "--to", "torch-csv", "-o", str(tmp_path / "torch")]) == 0
    assert "0F0" in (tmp_path / "torch" / "schedule.csv").read_text()
    capsys.readouterr()
    assert main(["export", f"{file}#1", "--to", "megatron", "-o", str(tmp_path / "megatron")]) != 0
    assert "my-v" in capsys.readouterr().err


def test_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    size = ("--layers", "4", "--hidden", "4", "--gbs", "8", "--steps", "2")
    losses = [
        answer(capsys, "run", "mlp-tiny", "--plan", f"pp2.vpp2.mbs2.{name}", *size)["losses"]
        for name in ("my-v", "zb-v")
    ]
    assert losses[0] == losses[1]


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(InputError, match="exists"):
        register(MyV())
    assert schedule_named("own-v") == MyV()
