"""Traces of the PyTorch profiler (Kineto): kernels of one device, by what they do, over the steps that are marked.

A JSON object with `traceEvents`, plain or gzipped, as `torch.profiler` and TensorBoard's handler write it. Events of
the device are those of category `kernel`, `gpu_memcpy` and `gpu_memset`; steps are the annotations `ProfilerStep#N` of
`profiler.step()`. A collective counts by what of it no other kernel covers; what nothing covers is the host's.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.errors import InputError
from meshwright.formats.files import content_of, read_text
from meshwright.formats.logs.record import LoggedStep, LoggedTerm, RunLog
from meshwright.shapes import Float
from meshwright.units import GIB, MICRO

NAME = "pytorch-profiler"
MAX_BYTES = 2 * GIB
"""Largest size of a trace, unpacked."""
DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_STEP = re.compile(r"ProfilerStep#(\d{1,18})")
_COLLECTIVE = re.compile(r"^(?:nccl|rccl|msccl|mscclpp|ncclx)|nvshmem|deep_?ep|internode|intranode", re.IGNORECASE)
_OPTIMIZER = re.compile(r"multi_tensor_apply|FusedAdam|adam|lamb|l2norm", re.IGNORECASE)
_GROUPS = (
    (re.compile(r"EXPERT|\bep\b|mesh_ep|deep_?ep|internode|intranode|all_?to_?all", re.IGNORECASE), ("ep",)),
    (re.compile(r"PIPELINE|EMBEDDING|\bpp\b|mesh_pp|\bsend\b|\brecv\b", re.IGNORECASE), ("pp", "bubble")),
    (re.compile(r"CONTEXT|\bcp\b|mesh_cp", re.IGNORECASE), ("cp",)),
    (re.compile(r"TENSOR|\btp\b|mesh_tp", re.IGNORECASE), ("tp",)),
    (re.compile(r"DATA|\bdp\b|mesh_dp|fsdp|shard|replicate", re.IGNORECASE), ("dp",)),
)
"""What the name of a process group, of a collective or of a kernel says it is for: the first that matches."""
_OTHERS = ("tp", "cp", "ep", "pp", "bubble", "dp")
Spans = Float[np.ndarray, "spans ends"]


def is_trace(path: str | Path) -> bool:
    """Whether a file is named as a trace is."""
    return str(path).lower().endswith((".json", ".json.gz", ".trace.gz"))


def read_trace(path: str | Path) -> RunLog:
    """The steps of a trace, and what their seconds go to on its device.

    Args:
        path: the path of a trace of one rank.

    Raises:
        InputError: no trace, no step is marked in it, or no kernel ran in its steps.
    """
    events = [event for event in _events(path) if isinstance(event, dict) and event.get("ph") == "X"]
    marked = {category: _steps(events, category) for category in ("gpu_user_annotation", "user_annotation")}
    steps = marked["gpu_user_annotation"] or marked["user_annotation"]
    kernels = [event for event in events if event.get("cat") in DEVICE and _span(event) is not None]
    if not steps or not kernels:
        missing = "step is marked" if not steps else "kernel of a device is recorded"
        fix = "call profiler.step() after every step" if not steps else "record ProfilerActivity.CUDA"
        raise InputError(
            what=f"no {missing} in {str(path)!r}",
            why="times are read from marked steps and device kernels",
            fix=fix,
            code="MW216",
        )
    ends = np.array([_span(event) for event in steps.values()])
    start, end = float(ends[:, 0].min()), float(ends[:, 1].max())
    step_s = (end - start) / len(steps) * MICRO
    terms = [
        LoggedTerm(name=name, parts=parts, seconds=seconds / len(steps) * MICRO)
        for name, parts, seconds in _apart(kernels, start, end)
    ]
    found = tuple(LoggedStep(line=1, iteration=number, step_time_s=step_s) for number in sorted(steps))
    return RunLog(framework=NAME, steps=found, terms=tuple(terms))


def _events(path: str | Path) -> list[Any]:
    def refuse(why: str) -> InputError:
        fix = "give the file that torch.profiler exported, .json or .json.gz"
        return InputError(what=f"{str(path)!r} is no trace of a profiler", why=why, fix=fix, code="MW216")

    try:
        if str(path).lower().endswith(".gz"):
            packed = content_of(path, max_bytes=int(MAX_BYTES))
            with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
                content = stream.read(int(MAX_BYTES) + 1)
            if len(content) > MAX_BYTES:
                raise refuse(f"it unpacks to more than {MAX_BYTES:,} bytes")
            text = content.decode("utf-8")
        else:
            text = read_text(path, "trace", max_bytes=int(MAX_BYTES))
        data = json.loads(text)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise refuse(getattr(error, "strerror", None) or str(error)[:100]) from None
    events = data.get("traceEvents") if isinstance(data, dict) else data
    if not isinstance(events, list):
        raise refuse("it holds no list of traceEvents")
    return events


def _span(event: dict[str, Any]) -> tuple[float, float] | None:
    """Start and end in microseconds; None where they are no finite numbers."""
    try:
        start, length = float(event["ts"]), float(event["dur"])
    except (KeyError, TypeError, ValueError):
        return None
    return (start, start + length) if math.isfinite(start) and 0 <= length < math.inf else None


def _steps(events: list[dict[str, Any]], category: str) -> dict[int, dict[str, Any]]:
    """Annotations of steps by their number, the longest of each."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        match = _STEP.match(str(event.get("name"))) if event.get("cat") == category else None
        if match and _span(event) is not None:
            known = found.get(int(match[1]))
            if known is None or event["dur"] > known["dur"]:
                found[int(match[1])] = event
    return found


def _apart(kernels: list[dict[str, Any]], start: float, end: float) -> list[tuple[str, tuple[str, ...], float]]:
    """Microseconds by what they go to, each counted once: compute first, then copies, then what collectives add."""
    classes: dict[tuple[str, tuple[str, ...]], list[tuple[float, float]]] = {
        ("kernels", ("compute", "recompute")): [],
        ("optimizer kernels", ("optimizer",)): [],
        ("exposed copies", ("offload",)): [],
    }
    for event in kernels:
        span = _span(event)
        if span is not None and span[1] > start and span[0] < end:
            classes.setdefault(_kind(event), []).append((max(span[0], start), min(span[1], end)))
    covered, found = np.zeros((0, 2)), []
    for (name, parts), spans in classes.items():
        after = _union(np.concatenate([covered, np.array(spans).reshape(-1, 2)]))
        found.append((name, parts, _length(after) - _length(covered)))
        covered = after
    found.append(("device idle", ("host",), end - start - _length(covered)))
    return [one for one in found if one[2] > 0]


def _kind(event: dict[str, Any]) -> tuple[str, tuple[str, ...]]:
    """What a kernel is called in the answer, and the parts of a step it counts to."""
    name = str(event.get("name"))
    if event.get("cat") != "kernel":
        return "exposed copies", ("offload",)
    if not _COLLECTIVE.search(name):
        return (
            ("optimizer kernels", ("optimizer",)) if _OPTIMIZER.search(name) else ("kernels", ("compute", "recompute"))
        )
    args = event.get("args")
    said = args if isinstance(args, dict) else {}
    group = " ".join(str(said.get(key, "")) for key in ("Process Group Description", "Collective name"))
    for pattern, parts in _GROUPS:
        if pattern.search(f"{group} {name}"):
            return f"exposed {parts[0]} collectives", parts
    return "other exposed collectives", _OTHERS


def _union(spans: Spans) -> Spans:
    """The same moments as spans that do not touch."""
    if not len(spans):
        return spans
    ordered = spans[np.argsort(spans[:, 0], kind="stable")]
    reach = np.maximum.accumulate(ordered[:, 1])
    first = np.concatenate([[True], ordered[1:, 0] > reach[:-1]])
    last = np.concatenate([first[1:], [True]])
    return np.stack([ordered[first, 0], reach[last]], axis=1)


def _length(spans: Spans) -> float:
    return float((spans[:, 1] - spans[:, 0]).sum())
