"""Memory over a step as PyTorch's memory viewer reads it: a pickle like that of `torch.cuda.memory._dump_snapshot`.

Format: the snapshot described in PyTorch's "Understanding CUDA Memory Usage"; https://pytorch.org/memory_viz and
`python -m torch.cuda._memory_viz` open it. Each worker is a device; bytes are those of the estimate.
"""

from __future__ import annotations

import pickle
from typing import Any

from meshwright.report.picture import MemoryLine, Picture
from meshwright.units import MICRO

PROTOCOL = 4
HELD, WORKING, ACTIVATIONS = "states, buffers and overhead", "working memory", "activations"


def snapshot_bytes(picture: Picture) -> bytes:
    """The snapshot file; equal steps give equal bytes.

    Args:
        picture: a step whose bytes are known.
    """
    devices = [_device(line, name) for line, name in zip(picture.memory, picture.workers, strict=True)]
    segments = [_segment(device, blocks) for device, (_, blocks) in enumerate(devices)]
    return pickle.dumps({"segments": segments, "device_traces": [events for events, _ in devices]}, PROTOCOL)


def _device(line: MemoryLine, worker: str) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Events of one worker in the order of time, and the blocks that are left."""
    events: list[dict[str, Any]] = []
    live: list[dict[str, Any]] = []
    free_address = 0

    def allocate(size: int, what: str, at_s: float) -> None:
        nonlocal free_address
        if size <= 0:
            return
        block = {"addr": free_address, "size": size, "frames": [{"name": what, "filename": worker, "line": 0}]}
        free_address += size
        live.append(block)
        events.append({"action": "alloc", "stream": 0, "time_us": round(at_s / MICRO), **block})

    def release(place: int, at_s: float) -> int:
        block = live.pop(place)
        for action in ("free_requested", "free_completed"):
            events.append({"action": action, "stream": 0, "time_us": round(at_s / MICRO), **block})
        return int(block["size"])

    allocate(round(line.held_bytes), HELD, 0.0)
    allocate(round(line.transient_bytes), WORKING, 0.0)
    lasting, level = len(live), 0
    for at_s, activations in zip(line.at_s.tolist(), line.activations_bytes.round().astype(int).tolist(), strict=True):
        rise = activations - level
        level = activations
        if rise >= 0:
            allocate(rise, ACTIVATIONS, at_s)
            continue
        same = [place for place in range(lasting, len(live)) if live[place]["size"] == -rise]
        freed = release(same[0], at_s) if same else 0
        while freed < -rise:
            freed += release(lasting, at_s)
        allocate(freed + rise, ACTIVATIONS, at_s)
    return events, live


def _segment(device: int, blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """What a device holds at the end of the step, in one piece."""
    total = sum(block["size"] for block in blocks)
    return {
        "device": device,
        "address": 0,
        "total_size": total,
        "allocated_size": total,
        "active_size": total,
        "requested_size": total,
        "stream": 0,
        "segment_type": "large",
        "frames": [],
        "blocks": [
            {
                "address": block["addr"],
                "size": block["size"],
                "requested_size": block["size"],
                "state": "active_allocated",
                "frames": block["frames"],
            }
            for block in blocks
        ],
    }
