"""The timeline's data: the schedule's tasks, its transfers, shares that are the whole step, in few bytes."""

from __future__ import annotations

import json
import zlib
from base64 import b64decode
from typing import Any

import numpy as np
import pytest

from meshwright.report.page.views.timeline import picture_data, view_data
from tests.report.page.sources import NAMES, source
from tests.report.pictures import plan_trace, unequal_picture

PICTURES = (
    ("1f1b", 4, 8, 1),
    ("interleaved", 4, 8, 2),
    ("zb-h1", 4, 8, 1),
    ("dualpipe", 4, 8, 1),
    ("chimera", 4, 8, 1),
)


def columns(packed: dict[str, Any]) -> dict[str, np.ndarray]:
    whole, found, at = zlib.decompress(b64decode(packed["deflated"])), {}, 0
    for name, kind, length in packed["columns"]:
        found[name] = np.frombuffer(whole, f"<{kind}", length, at)
        at += found[name].nbytes
    assert at == len(whole)
    return found


def times(data: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of every task, as the page adds them up."""
    tasks = data["tasks"]
    own = columns(tasks["order"]) | columns(tasks["times"])
    usual = {tuple(key): seconds for *key, seconds in tasks["usual"]}
    joined = own.get("joined", np.zeros(tasks["count"], bool))
    start, end = np.zeros(tasks["count"]), np.zeros(tasks["count"])
    for worker, (low, behind) in enumerate(zip(tasks["first"], tasks["first"][1:], strict=False)):
        at = 0.0
        for task in range(low, behind):
            if joined[task]:
                start[task], end[task] = start[task - 1], end[task - 1]
                continue
            start[task] = at + own["gap"][task] * tasks["tick_s"]
            lasting = usual[worker, int(own["chunk"][task]), int(own["kind"][task])]
            end[task] = at = start[task] + lasting + own["beyond"][task] * tasks["tick_s"]
    return start, end


@pytest.mark.parametrize("schedule", PICTURES, ids=lambda one: one[0])
def test_the_page_reads_the_tasks_of_the_schedule(schedule: tuple[str, int, int, int]) -> None:
    picture = unequal_picture(*schedule)
    data = json.loads(json.dumps(picture_data(picture)))
    start, end = times(data)
    assert start == pytest.approx(picture.timeline.start_s[picture.computed], abs=picture.end_s * 1e-9)
    assert end == pytest.approx(picture.timeline.end_s[picture.computed], abs=picture.end_s * 1e-9)
    table, own = picture.timeline.table, columns(data["tasks"]["order"])
    assert own["kind"].tolist() == table.kind[picture.computed].tolist()
    assert np.cumsum(own["micro_batch"]).tolist() == table.micro_batch[picture.computed].tolist()


@pytest.mark.parametrize("schedule", PICTURES, ids=lambda one: one[0])
def test_what_leaves_a_stage_is_under_way_as_long_as_the_schedule_has_it(schedule: tuple[str, int, int, int]) -> None:
    picture = unequal_picture(*schedule)
    hops, found = picture_data(picture)["hops_s"], picture.transfers
    stage = picture.timeline.table.stage[found.producer]
    told = np.where(found.gradient, np.array(hops["backward"])[stage], np.array(hops["forward"])[stage])
    assert told == pytest.approx(found.end_s - found.start_s)


def test_nothing_is_under_way_where_one_stage_holds_all() -> None:
    assert picture_data(unequal_picture("1f1b", 1, 8))["hops_s"] == {"forward": [0.0], "backward": [0.0]}


def test_the_critical_path_is_the_schedules() -> None:
    picture = unequal_picture("1f1b", 4, 8)
    path = np.cumsum(picture_data(picture)["critical"])
    assert picture.computed[path].tolist() == picture.timeline.critical_path().tasks.tolist()


@pytest.mark.parametrize("name", NAMES)
def test_shares_of_every_stage_are_the_whole_step_and_its_busy_time(name: str) -> None:
    answer = source(name)
    picture = answer.plans[0].picture()
    workers = view_data(answer.plans[0], answer)["workers"]
    assert [sum(worker["shares"].values()) for worker in workers] == pytest.approx([1.0] * len(workers))
    assert all(share >= 0 for worker in workers for share in worker["shares"].values())
    inside = ("compute", "tp", "cp", "ep")
    for worker, busy_s in zip(workers, picture.timeline.busy_s.tolist(), strict=True):
        assert sum(worker["shares"].get(part, 0.0) for part in inside) <= busy_s / picture.end_s * (1 + 1e-9)


def test_memory_over_time_peaks_where_the_estimate_does() -> None:
    found = plan_trace()
    memory = picture_data(found.picture)["memory"]
    lines = columns(memory["lines"])
    for stage, row, low, behind in zip(
        found.step.estimate.stages, memory["workers"], memory["first"], memory["first"][1:], strict=False
    ):
        assert row["peak_bytes"] == pytest.approx(stage.peak_memory_bytes)
        moments = np.cumsum(lines["after"][low:behind]) * memory["tick_s"]
        expected = found.picture.memory[memory["workers"].index(row)].at_s
        assert moments == pytest.approx(expected, abs=found.picture.end_s * 1e-6)
        highest = row["held_bytes"] + row["transient_bytes"] + lines["live_bytes"][low:behind].max()
        assert highest == pytest.approx(row["peak_bytes"], rel=1e-6)


def test_sixty_five_thousand_tasks_take_few_bytes() -> None:
    data = picture_data(unequal_picture("interleaved", 64, 256, 2))
    assert data["tasks"]["count"] == 2 * 2 * 64 * 256
    assert len(json.dumps(data)) < 150_000
