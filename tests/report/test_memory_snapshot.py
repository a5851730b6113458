"""Memory over a step as PyTorch reads it: every byte allocated once, the peak that of the estimate."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import meshwright as mw


@pytest.fixture(scope="module")
def trace() -> Any:
    plan = "pp4.dp2.z1.mbs1.rc-sel"
    return mw.trace(plan, model="llama-3.1-8b", gpus="8xH100", global_batch=32)


def test_levels_are_those_of_the_step(trace: Any) -> None:
    found = pickle.loads(trace.memory_snapshot())
    assert len(found["device_traces"]) == len(found["segments"]) == 4
    for events, segment, line in zip(found["device_traces"], found["segments"], trace.picture.memory, strict=True):
        level = peak = 0
        live: dict[int, int] = {}
        for event in events:
            if event["action"] == "alloc":
                assert event["addr"] not in live
                live[event["addr"]] = event["size"]
                level += event["size"]
            elif event["action"] == "free_completed":
                level -= live.pop(event["addr"])
            peak = max(peak, level)
        assert peak == pytest.approx(line.peak_bytes, rel=1e-6)
        assert {block["address"]: block["size"] for block in segment["blocks"]} == live
        assert [event["time_us"] for event in events] == sorted(event["time_us"] for event in events)


def test_the_viewer_of_pytorch_reads_it(trace: Any) -> None:
    viewer = pytest.importorskip("torch.cuda._memory_viz")
    found = pickle.loads(trace.memory_snapshot())
    assert "Summary of segments" in viewer.segsum(found)
    assert "free completed" in viewer.trace(found)
    assert "<html>" in viewer.trace_plot(found).lower()
