"""The trace is what the format says: every process and thread named, slices in order, arrows bound, counters exact."""

from __future__ import annotations

import gzip
import itertools
import json
from collections import defaultdict
from typing import Any

import numpy as np
import pytest

from meshwright.report.picture import Picture, lanes_of
from meshwright.report.trace_events import trace_bytes
from tests.report.pictures import plan_trace, unequal_picture

Event = dict[str, Any]
SHAPES = [
    ("1f1b", 4, 8, 1, 3e-3),
    ("1f1b", 3, 6, 1, 0.0),
    ("interleaved", 4, 8, 2, 0.05),
    ("zb-v", 4, 8, 2, 3e-3),
    ("dualpipe", 4, 8, 1, 3e-3),
    ("chimera", 4, 8, 1, 0.03),
    ("varuna", 4, 8, 1, 3e-3),
    ("seq1f1b", 4, 8, 1, 3e-3),
    ("gpipe", 1, 4, 1, 3e-3),
]


def events_of(content: bytes) -> list[Event]:
    document = json.loads(gzip.decompress(content))
    assert document["displayTimeUnit"] == "ms"
    events = document["traceEvents"]
    assert isinstance(events, list)
    return events


def check_format(events: list[Event]) -> None:
    """Raise where events break the trace-event format or do not belong together."""
    assert {event["ph"] for event in events} <= set("MXCstf")
    named = {(e["name"], e["pid"], e.get("tid")) for e in events if e["ph"] == "M"}
    slices: dict[tuple[int, int], list[Event]] = defaultdict(list)
    flows: dict[int, list[Event]] = defaultdict(list)
    last: dict[tuple[int, int | None], float] = {}
    for event in events:
        if event["ph"] == "M":
            continue
        assert event["ts"] >= 0
        assert ("process_name", event["pid"], None) in named
        thread = event["pid"], event.get("tid")
        assert event["ts"] >= last.get(thread, 0.0)
        last[thread] = event["ts"]
        if event["ph"] != "C":
            assert ("thread_name", *thread) in named
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append(event)
        elif event["ph"] in "stf":
            flows[event["id"]].append(event)
    for own in slices.values():
        for before, after in itertools.pairwise(own):
            assert before["ts"] + before["dur"] <= after["ts"] + 1e-6
        assert all(event["dur"] >= 0 for event in own)
    starts = {thread: np.array([event["ts"] for event in own]) for thread, own in slices.items()}
    for hops in flows.values():
        hops.sort(key=lambda event: ("stf".index(event["ph"]), event["ts"]))
        assert [hop["ph"] for hop in hops] in (["s", "f"], ["s", "t", "t", "f"])
        assert len({(hop["name"], hop["cat"]) for hop in hops}) == 1
        assert [hop["ts"] for hop in hops] == sorted(hop["ts"] for hop in hops)
        for hop in hops:
            thread = hop["pid"], hop["tid"]
            around = slices[thread][int(np.searchsorted(starts[thread], hop["ts"], side="right")) - 1]
            assert around["ts"] <= hop["ts"] <= around["ts"] + max(around["dur"], 1e-9)


@pytest.mark.parametrize(("name", "p", "m", "v", "transfer_s"), SHAPES)
def test_every_schedule_gives_a_trace_that_keeps_to_the_format(
    name: str, p: int, m: int, v: int, transfer_s: float
) -> None:
    picture = unequal_picture(name, p, m, v, transfer_s=transfer_s)
    events = events_of(trace_bytes(picture))
    check_format(events)
    counted = {word: sum(e["ph"] == "X" and e["name"].startswith(word) for e in events) for word in ("send", "receive")}
    crossing = len(picture.transfers.start_s)
    assert counted["send"] == counted["receive"] == (crossing if transfer_s else 0)
    assert sum(e["ph"] == "s" for e in events) == sum(e["ph"] == "f" for e in events) == crossing
    assert (crossing > 0) == (p > 1)


def test_slices_last_as_long_as_their_tasks() -> None:
    picture = unequal_picture("zb-h1", 4, 8)
    events = events_of(trace_bytes(picture))
    computed = [e for e in events if e["ph"] == "X" and e["cat"] == "compute"]
    assert len(computed) == picture.timeline.table.tasks
    for worker in range(4):
        lasting = sum(e["dur"] for e in computed if e["pid"] == worker) * 1e-6
        assert lasting == pytest.approx(float(picture.timeline.busy_s[worker]), rel=1e-6)
    assert max(e["ts"] + e["dur"] for e in computed) == pytest.approx(picture.end_s * 1e6, abs=1e-3)
    names = sorted(e["name"] for e in computed if e["pid"] == 2)
    assert names == sorted(picture.timeline.table.entries()[2])


def test_a_plan_has_its_layers_devices_phases_and_the_memory_of_its_estimate() -> None:
    found = plan_trace()
    events = events_of(found.chrome())
    check_format(events)
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert len(processes) == 4
    assert processes[0].startswith("stage 0: layers 0-")
    assert processes[0].endswith("4 x H100")
    threads = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert threads == {"compute", "send", "receive", "data-parallel", "optimizer"}
    ends = max(e["ts"] + e["dur"] for e in events if e["ph"] == "X")
    assert ends == pytest.approx(found.step.estimate.step_time_s * 1e6, abs=1e-2)
    for worker, stage in enumerate(found.step.estimate.stages):
        sums = [sum(e["args"].values()) for e in events if e["ph"] == "C" and e["pid"] == worker]
        assert max(sums) == pytest.approx(stage.peak_memory_bytes / 2**30, abs=2e-3)
    assert {e["args"]["layers"] for e in events if e.get("cat") == "compute" and e["pid"] == 3} == {
        processes[3].split(" layers ")[1].split(",")[0]
    }


def test_messages_that_a_table_lists_are_drawn_once_and_beside_the_computation() -> None:
    plain = unequal_picture("1f1b", 4, 8)
    listed = unequal_picture("1f1b", 4, 8, listed=True)
    assert listed.timeline.table.tasks > plain.timeline.table.tasks
    events = events_of(trace_bytes(listed))
    check_format(events)
    computed = [e for e in events if e["ph"] == "X" and e["cat"] == "compute"]
    assert {e["tid"] for e in computed} == {0}
    assert len(computed) == plain.timeline.table.tasks
    assert sum(e["ph"] == "X" and e["name"].startswith("send") for e in events) == 2 * 3 * 8


def test_equal_steps_give_equal_bytes_without_a_date() -> None:
    picture = unequal_picture("1f1b", 4, 8)
    content = trace_bytes(picture)
    assert content == trace_bytes(unequal_picture("1f1b", 4, 8))
    assert content[4:8] == bytes(4)
    assert gzip.decompress(content) == trace_bytes(picture, compress=False)


def test_64_stages_and_256_micro_batches_stay_under_5_megabytes() -> None:
    content = trace_bytes(unequal_picture("1f1b", 64, 256))
    assert len(content) < 5e6
    assert gzip.decompress(content).count(b'"cat":"compute"') == 2 * 64 * 256


def test_overlapping_spans_take_lanes_of_their_own() -> None:
    start, end = np.array([0, 1, 4, 5, 6]), np.array([4, 5, 6, 9, 7])
    lanes = lanes_of(start, end)
    assert lanes.tolist() == [0, 1, 0, 1, 0]
    assert not lanes_of(np.array([0, 4]), np.array([4, 6])).any()


def test_an_arrow_into_nothing_is_noticed() -> None:
    events = events_of(trace_bytes(unequal_picture("1f1b", 2, 2)))
    arrow = next(event for event in events if event["ph"] == "f")
    arrow["ts"] += 1e9
    with pytest.raises(AssertionError):
        check_format(events)


def test_no_task_is_lost_between_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    picture: Picture = unequal_picture("1f1b", 4, 8)
    whole = trace_bytes(picture, compress=False)
    monkeypatch.setattr("meshwright.report.trace_events.LINES_PER_BLOCK", 7)
    assert trace_bytes(picture, compress=False) == whole
