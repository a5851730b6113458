"""Messages that hold up channels or workers, simulated one task at a time in plain Python."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from meshwright.schedules import Kind, ScheduleTable, Times

Event = list[tuple[str, int, int]]


@dataclass
class Found:
    """What the naive simulator saw."""

    start: dict[tuple[str, int, int], float] = field(default_factory=dict)
    end: dict[tuple[str, int, int], float] = field(default_factory=dict)
    messages: dict[tuple[str, int, int], tuple[float, float]] = field(default_factory=dict)
    """Start and arrival of what each consumer receives."""


def naive_run(table: ScheduleTable, times: Times, *, overlap: bool) -> Found:
    """Start and end of every task by (letter, virtual stage, micro-batch), and of every message by its consumer."""
    place = table.placement
    events: list[list[Event]] = [[] for _ in range(place.p)]
    for task in range(table.tasks):
        entry = (Kind(table.kind[task]).name, int(table.stage[task]), int(table.micro_batch[task]))
        own = events[table.worker[task]]
        own[-1].append(entry) if table.fused is not None and table.fused[task] else own.append([entry])
    everything = {entry for own in events for event in own for entry in event}

    def at(seconds: object, stage: int, unit: int | None = None) -> float:
        worker, chunk = place.worker[stage], place.chunk[stage]
        if np.ndim(seconds) == 0:
            return float(seconds)
        return float(seconds[worker, chunk, unit] if np.ndim(seconds) == 3 else seconds[worker, chunk])

    def lasting(letter: str, stage: int, unit: int) -> float:
        whole = {"F": times.forward_s, "B": times.backward_s, "W": times.weight_s, "R": times.recompute_s}
        whole["X"] = times.recompute_s
        if letter == "I":
            return at(times.backward_s, stage, unit) - at(times.weight_s, stage, unit)
        return at(whole[letter], stage, unit)

    def message(letter: str, stage: int) -> tuple[float, float]:
        """Latency and sending seconds of the message that a task of this letter and stage receives."""
        if letter == "F":
            upstream = int(place.preceding[stage])
            return at(times.transfer_s, upstream), at(times.sending_s, upstream)
        latency = times.transfer_s if times.gradient_transfer_s is None else times.gradient_transfer_s
        sending = times.sending_s if times.gradient_sending_s is None else times.gradient_sending_s
        return at(latency, stage), at(sending, stage)

    def source(letter: str, stage: int, unit: int) -> tuple[str, int, int] | None:
        before, follows = int(place.preceding[stage]), int(place.following[stage])
        if letter == "F" and before >= 0:
            return "F", before, unit
        if letter in "BI" and follows >= 0:
            return ("B" if ("B", follows, unit) in everything else "I"), follows, unit
        return None

    crossing = {
        task: needed
        for task in everything
        if (needed := source(*task)) is not None and place.worker[needed[1]] != place.worker[task[1]]
    }
    receiver = {needed: task for task, needed in crossing.items()}

    # What every worker does in order: run an event, send, receive.
    lists: list[list[tuple[str, object]]] = []
    where = {task: (worker, at) for worker, own in enumerate(events) for at, event in enumerate(own) for task in event}
    sent: dict[tuple[int, int], list[tuple[str, int, int]]] = {}
    for worker, own in enumerate(events):
        for event in own:
            for task in event:
                if task in receiver:
                    sent.setdefault((worker, int(place.worker[receiver[task][1]])), []).append(receiver[task])
    received: dict[tuple[int, int], list[tuple[int, tuple[str, int, int]]]] = {}
    for (origin, worker), channel in sent.items():
        for k, task in enumerate(channel):
            position = min(where[later][1] for later in channel[k:])
            received.setdefault((worker, position), []).append((origin, task))
    for worker, own in enumerate(events):
        items: list[tuple[str, object]] = []
        for position, event in enumerate(own):
            # Of several channels the one whose message was sent by the earlier task of its worker comes first.
            incoming = received.get((worker, position), [])
            by_channel = {origin: [task for o, task in incoming if o == origin] for origin, _ in incoming}
            items += [("receive", task) for origin in sorted(by_channel) for task in by_channel[origin]]
            items.append(("run", event))
            items += [("send", receiver[task]) for task in event if task in receiver]
        lists.append(items)

    found = Found()
    free, done = [0.0] * place.p, [0] * place.p
    channel_free: dict[tuple[int, int], float] = {}
    moved = True
    while moved:
        moved = False
        for worker, items in enumerate(lists):
            while done[worker] < len(items):
                what, thing = items[done[worker]]
                if what == "run":
                    event: Event = thing
                    ready = [free[worker]]
                    waits = []
                    for task in event:
                        if task in crossing:
                            waits.append(found.messages.get(task))
                        elif (needed := source(*task)) is not None:
                            assert needed in found.end
                    if None in waits:
                        break
                    ready += [arrival for _, arrival in waits]
                    start = max(ready)
                    free[worker] = start + sum(lasting(*task) for task in event)
                    for task in event:
                        found.start[task], found.end[task] = start, free[worker]
                elif what == "send":
                    task = thing
                    latency, sending = message(task[0], task[1])
                    origin = worker
                    channel = origin, int(place.worker[task[1]])
                    if overlap:
                        leaves = max(found.end[crossing[task]], channel_free.get(channel, 0.0))
                        channel_free[channel] = leaves + sending
                        found.messages[task] = leaves, leaves + sending + latency
                    else:
                        found.start["SEND", *task] = free[worker]
                        free[worker] += latency + sending
                elif not overlap:
                    task = thing
                    leaves = found.start.get(("SEND", *task))
                    if leaves is None:
                        break
                    begins = max(free[worker], leaves)
                    free[worker] = begins + sum(message(task[0], task[1]))
                    found.messages[task] = leaves, free[worker]
                done[worker] += 1
                moved = True
    assert all(position == len(items) for position, items in zip(done, lists, strict=True)), "stuck"
    return found


def naive_peak(table: ScheduleTable, activation: np.ndarray, share: float) -> list[float]:
    """Most bytes of activations on each worker, task after task; fused tasks allocate before they free."""
    peaks = []
    for worker in range(table.p):
        live = most = 0.0
        gone: list[float] = []
        for task in range(table.first[worker], table.first[worker + 1]):
            joined = table.fused is not None and bool(table.fused[task])
            if not joined:
                live -= sum(gone)
                gone = []
            size = float(activation[worker, table.chunk[task]])
            letter = Kind(table.kind[task]).name
            live += size if letter == "F" else 0.0
            gone.append({"B": size, "I": share * size, "W": (1 - share) * size}.get(letter, 0.0))
            most = max(most, live)
        peaks.append(most)
    return peaks
