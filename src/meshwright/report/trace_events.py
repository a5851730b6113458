"""A step in the trace-event format of Chrome and Perfetto: a process a stage, a thread a lane, arrows, counters.

Format: "Trace Event Format" of the Chromium project; https://ui.perfetto.dev and chrome://tracing open it.
"""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.report.picture import Picture, lanes_of
from meshwright.schedules.kinds import LANE
from meshwright.shapes import Int
from meshwright.units import GIB

NS_PER_S = 1e9
COMPUTE = 0
SEND, RECEIVE = 100, 200
DATA_PARALLEL, OPTIMIZER = 300, 301
COLLECTIVE, TO_HOST, FROM_HOST = 400, 401, 402
"""Thread numbers; transfers that overlap take the numbers behind SEND and RECEIVE."""
THREADS = np.array([COMPUTE, SEND, RECEIVE, COLLECTIVE, TO_HOST, FROM_HOST])
"""Thread of each lane of the schedule language."""
LINES_PER_BLOCK = 20_000


@dataclass(frozen=True, slots=True)
class _Events:
    """Lines of one kind, with what they are ordered by."""

    pid: Int[np.ndarray, " events"]
    tid: Int[np.ndarray, " events"]
    at_ns: Int[np.ndarray, " events"]
    lines: list[str]


def trace_lines(picture: Picture) -> Iterator[str]:
    """The events of a step, one JSON object a line: metadata, then ordered by process, thread and time.

    Args:
        picture: the step.
    """
    groups = [_tasks(picture), _spans(picture), _counters(picture), *_transfers(picture)]
    yield from _names(picture, groups)
    pid, tid, at_ns = (
        np.concatenate([getattr(group, column) for group in groups]) for column in ("pid", "tid", "at_ns")
    )
    lines = [line for group in groups for line in group.lines]
    for number in np.lexsort((at_ns, tid, pid)).tolist():
        yield lines[number]


def trace_bytes(picture: Picture, *, compress: bool = True) -> bytes:
    """The trace file: one JSON object, gzipped with no date in it, so that equal steps give equal bytes.

    Args:
        picture: the step.
        compress: whether to compress it as gzip.
    """
    stream = io.BytesIO()
    if not compress:
        for block in _blocks(picture):
            stream.write(block)
        return stream.getvalue()
    with gzip.GzipFile(filename="", fileobj=stream, mode="wb", compresslevel=6, mtime=0) as packed:
        for block in _blocks(picture):
            packed.write(block)
    return stream.getvalue()


def _blocks(picture: Picture) -> Iterator[bytes]:
    about = {"step_s": picture.end_s, "bubble_makespan": picture.timeline.bubble_makespan, "title": picture.title}
    yield f'{{"displayTimeUnit":"ms","otherData":{json.dumps(about, sort_keys=True)},"traceEvents":[\n'.encode()
    held: list[str] = []
    first = True
    for line in trace_lines(picture):
        held.append(line)
        if len(held) == LINES_PER_BLOCK:
            yield (("" if first else ",\n") + ",\n".join(held)).encode()
            held, first = [], False
    yield (("" if first or not held else ",\n") + ",\n".join(held) + "\n]}\n").encode()


def _ns(seconds: np.ndarray | float) -> np.ndarray:
    return np.rint(np.asarray(seconds) * NS_PER_S).astype(np.int64)


def _us(at_ns: np.ndarray) -> list[float]:
    """Microseconds, the unit of the format."""
    return (at_ns / 1000.0).tolist()


def _tasks(picture: Picture) -> _Events:
    """A slice for every task; fused tasks are one, messages are drawn as transfers."""
    timeline, table = picture.timeline, picture.timeline.table
    kept = np.flatnonzero(~picture.joined)
    entries = [entry for order in table.entries() for entry in order]
    tid = THREADS[LANE[table.kind[kept]]]
    drawn = (tid != SEND) & (tid != RECEIVE)
    kept, tid = kept[drawn], tid[drawn]
    names = [entries[number] for number in np.flatnonzero(drawn).tolist()]
    start_ns = _ns(timeline.start_s[kept])
    lasting_ns = _ns(timeline.end_s[kept]) - start_ns
    layers = picture.chunks or tuple(("",) * table.v for _ in range(table.p))
    columns = (
        names,
        table.worker[kept].tolist(),
        tid.tolist(),
        table.chunk[kept].tolist(),
        table.micro_batch[kept].tolist(),
        _us(start_ns),
        _us(lasting_ns),
    )
    where = [[f',"layers":{json.dumps(text)}' if text else "" for text in row] for row in layers]
    lines = [
        f'{{"ph":"X","pid":{worker},"tid":{thread},"ts":{at},"dur":{lasting},"name":"{name}","cat":"compute",'
        f'"args":{{"micro_batch":{unit},"chunk":{chunk}{where[worker][chunk]}}}}}'
        for name, worker, thread, chunk, unit, at, lasting in zip(*columns, strict=True)
    ]
    return _Events(table.worker[kept], tid, start_ns, lines)


def _transfers(picture: Picture) -> Iterator[_Events]:
    """Slices on the sender and the receiver, and arrows from the task that makes a tensor to the one that takes it."""
    transfers, table = picture.transfers, picture.timeline.table
    by_start = np.lexsort((transfers.producer, transfers.start_s))
    producer, consumer = transfers.producer[by_start], transfers.consumer[by_start]
    start_ns, end_ns = _ns(transfers.start_s[by_start]), _ns(transfers.end_s[by_start])
    takes_time = end_ns > start_ns
    chosen = np.flatnonzero(takes_time)
    what = np.where(transfers.gradient[by_start], "gradient", "activation")
    units = table.micro_batch[producer]
    lane = {}
    for word, base, worker in (
        ("send", SEND, table.worker[producer]),
        ("receive", RECEIVE, table.worker[consumer]),
    ):
        tid = np.full(len(producer), base)
        for one in range(table.p):
            own = chosen[worker[chosen] == one]
            tid[own] += lanes_of(start_ns[own], end_ns[own])
        lane[word] = (worker, tid)
        columns = (worker[chosen], tid[chosen], what[chosen], units[chosen])
        texts = (_us(start_ns[chosen]), _us((end_ns - start_ns)[chosen]))
        lines = [
            f'{{"ph":"X","pid":{pid},"tid":{thread},"ts":{at},"dur":{lasting},"name":"{word} {kind}","cat":"p2p",'
            f'"args":{{"micro_batch":{unit}}}}}'
            for pid, thread, kind, unit, at, lasting in zip(*(c.tolist() for c in columns), *texts, strict=True)
        ]
        yield _Events(worker[chosen], tid[chosen], start_ns[chosen], lines)

    begins_ns, ends_ns = _ns(picture.timeline.start_s), _ns(picture.timeline.end_s)
    compute = np.full(len(producer), COMPUTE)
    # An arrow binds to the slice around its moment; the last nanosecond of a task is still inside it.
    leaves_ns = np.maximum(ends_ns[producer] - 1, begins_ns[producer])
    hops = (
        ("s", table.worker[producer], compute, leaves_ns, np.arange(len(producer))),
        ("t", lane["send"][0], lane["send"][1], start_ns, chosen),
        ("t", lane["receive"][0], lane["receive"][1], start_ns, chosen),
        ("f", table.worker[consumer], compute, begins_ns[consumer], np.arange(len(producer))),
    )
    for phase, worker, tid, at_ns, which in hops:
        end = ',"bp":"e"' if phase != "s" else ""
        columns = (worker[which], tid[which], which, what[which])
        lines = [
            f'{{"ph":"{phase}","pid":{pid},"tid":{thread},"ts":{at},"id":{number},"name":"{kind}","cat":"flow"{end}}}'
            for pid, thread, number, kind, at in zip(*(c.tolist() for c in columns), _us(at_ns[which]), strict=True)
        ]
        yield _Events(worker[which], tid[which], at_ns[which], lines)


def _spans(picture: Picture) -> _Events:
    """Gradient sums, gathers and the optimizer."""
    spans = picture.spans
    lane = {"data-parallel": DATA_PARALLEL, "optimizer": OPTIMIZER}
    tid = np.array([lane[span.lane] for span in spans], np.int64)
    start_ns = _ns(np.array([span.start_s for span in spans]))
    lasting_ns = _ns(np.array([span.end_s for span in spans])) - start_ns
    lines = [
        f'{{"ph":"X","pid":{span.worker},"tid":{thread},"ts":{at},"dur":{lasting},"name":"{span.name}",'
        f'"cat":"{span.lane}"}}'
        for span, thread, at, lasting in zip(spans, tid.tolist(), _us(start_ns), _us(lasting_ns), strict=True)
    ]
    return _Events(np.array([span.worker for span in spans], np.int64), tid, start_ns, lines)


def _counters(picture: Picture) -> _Events:
    """Memory of every stage in GiB, stacked by kind, at each change; moments that coincide count once."""
    pid, at_ns, lines = [], [], []
    for worker, line in enumerate(picture.memory):
        moments_ns = _ns(line.at_s)
        # The last of several changes at one moment holds from then on.
        last = np.flatnonzero(np.append(np.diff(moments_ns) > 0, True)) if len(moments_ns) else np.zeros(0, np.int64)
        moments_ns, activations = moments_ns[last], line.activations_bytes[last]
        held, transient = round(line.held_bytes / GIB, 3), round(line.transient_bytes / GIB, 3)
        lines += [
            f'{{"ph":"C","pid":{worker},"ts":{at},"name":"memory GiB","args":'
            f'{{"states and buffers":{held},"working memory":{transient},"activations":{size}}}}}'
            for at, size in zip(_us(moments_ns), np.round(activations / GIB, 3).tolist(), strict=True)
        ]
        pid.append(np.full(len(moments_ns), worker))
        at_ns.append(moments_ns)
    none = np.zeros(0, np.int64)
    workers, moments = np.concatenate([none, *pid]), np.concatenate([none, *at_ns])
    return _Events(workers, np.full(len(workers), COMPUTE), moments, lines)


def _names(picture: Picture, groups: Sequence[_Events]) -> Iterator[str]:
    """Names of processes and threads, in the order in which they are to be shown."""
    used = sorted({pair for group in groups for pair in zip(group.pid.tolist(), group.tid.tolist(), strict=True)})
    for worker, name in enumerate(picture.workers):
        yield _metadata("process_name", worker, None, {"name": name})
        yield _metadata("process_sort_index", worker, None, {"sort_index": worker})
    for worker, thread in used:
        yield _metadata("thread_name", worker, thread, {"name": _lane_name(thread)})
        yield _metadata("thread_sort_index", worker, thread, {"sort_index": thread})


def _lane_name(thread: int) -> str:
    named = {
        COMPUTE: "compute",
        DATA_PARALLEL: "data-parallel",
        OPTIMIZER: "optimizer",
        COLLECTIVE: "collective",
        TO_HOST: "to host",
        FROM_HOST: "from host",
    }
    if thread in named:
        return named[thread]
    base, number = ("send", thread - SEND) if thread < RECEIVE else ("receive", thread - RECEIVE)
    return base if number == 0 else f"{base} {number + 1}"


def _metadata(name: str, worker: int, thread: int | None, args: dict[str, object]) -> str:
    event = {"ph": "M", "pid": worker, "name": name, "args": args}
    if thread is not None:
        event["tid"] = thread
    return json.dumps(event, separators=(",", ":"))
