"""The fastest order of a step for given stage times and memory, as `schedule best` answers it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from meshwright.errors import InputError, Problem
from meshwright.formats.stage_times import StageTimes, read_stage_times
from meshwright.schedules import Caps, Scheduled, Times, best_schedule
from meshwright.schedules.equal_stages import MOST_TASKS


def run_best_schedule(
    p: int | None,
    m: int,
    v: int | None = None,
    *,
    forward_s: float = 1.0,
    input_s: float = 1.0,
    weight_s: float = 1.0,
    recompute_s: float = 0.0,
    transfer_s: float = 0.0,
    times_file: str | Path | None = None,
    room: float | None = None,
    released_by_input: float = 0.0,
    allow: Sequence[str] | None = None,
    split: bool = True,
    objective: str = "makespan",
) -> Scheduled:
    """Choose, build and simulate the fastest order.

    Args:
        p: workers; None: as many as the file of stage times has.
        m: micro-batches per step.
        v: chunks per worker; None: one, and two or as many as the file has.
        forward_s: forward of one micro-batch through every full worker share, without a file.
        input_s: its input gradient.
        weight_s: its weight gradient.
        recompute_s: its recomputation.
        transfer_s: latency of a transfer, which occupies nobody; where the file does not say it.
        times_file: CSV or JSON of stage times and memory, as `read_stage_times` takes it.
        room: micro-batches whose activations fit each worker, if the file says no bytes; None for any number.
        released_by_input: share of an activation that the input gradient of a split backward frees, with `room`.
        allow: names of schedules that may be used; None: those with exact semantics and one copy of the weights.
        split: whether list scheduling may part weight gradients from backwards.
        objective: what is to be short: the step from start to end, or the longest span of a worker.

    Raises:
        UnsupportedError: an unknown name.
        InputError: an unreadable file, or arguments that contradict each other.
        InfeasibleError: nothing fits.
    """
    if times_file is None:
        assert p is not None
        # More workers than tasks may be are refused below, with no array of them made.
        shape = min(p, MOST_TASKS), 1
        seconds = [np.full(shape, given) for given in (forward_s, input_s, weight_s, recompute_s)]
        stages = StageTimes(
            forward_s=seconds[0],
            input_s=seconds[1],
            weight_s=seconds[2],
            recompute_s=seconds[3] if recompute_s else None,
        )
    else:
        stages = read_stage_times(times_file)
    workers, given_chunks = stages.forward_s.shape
    if times_file is None and p is not None:
        workers = p
    problems = []
    if p is not None and p != workers:
        why = f"the file of stage times has {workers} workers"
        problems.append(Problem(what=f"p = {p}", why=why, fix=f"p = {workers}, or leave it out", field="p"))
    chunks = (v,) if v is not None else tuple(dict.fromkeys((1, max(given_chunks, 2))))
    if workers * m * max(chunks) * 3 > MOST_TASKS:
        tasks = f"p {workers} x m {m} x v {max(chunks)} x 3 = {workers * m * max(chunks) * 3:,} tasks"
        rule = f"at most {MOST_TASKS:,} are listed"
        problems.append(Problem(what=f"best: {tasks}", why=rule, fix="fewer micro-batches", field="m"))
    caps = _caps(stages, room, released_by_input, problems)
    if problems:
        raise InputError(problems, code="MW240")
    times = Times(
        forward_s=stages.forward_s,
        backward_s=stages.input_s + stages.weight_s,
        weight_s=stages.weight_s,
        recompute_s=stages.recompute_s,
        transfer_s=transfer_s if stages.transfer_s is None else stages.transfer_s,
    )
    return best_schedule(times, m, caps, allow=allow, chunks=chunks, split=split, objective=objective)


def _caps(stages: StageTimes, room: float | None, released_by_input: float, problems: list[Problem]) -> Caps | None:
    """Memory from the file, or from the number of micro-batches that fit."""
    in_file = (stages.capacity_bytes is not None, stages.activation_bytes is not None)
    if room is not None:
        if any(in_file):
            why = "the file of stage times says bytes"
            problems.append(Problem(what=f"room = {room:g}", why=why, fix="leave one of them out", field="room"))
        return Caps(capacity_bytes=room, activation_bytes=1.0, released_by_input=released_by_input)
    if not any(in_file):
        if stages.released_by_input is not None:
            why = "it counts where capacity_bytes and activation_bytes are known"
            what = "the file of stage times has released_by_input alone"
            problems.append(Problem(what=what, why=why, field="released_by_input"))
        return None
    if stages.capacity_bytes is None or stages.activation_bytes is None:
        lacks = "activation_bytes" if in_file[0] else "capacity_bytes"
        why = "memory is kept to only where both are known"
        problems.append(Problem(what=f"the file of stage times has no column {lacks}", why=why, field=lacks))
        return None
    whole_bytes = stages.activation_bytes.sum(axis=1)
    share = np.zeros_like(whole_bytes)
    if stages.released_by_input is not None:
        released_bytes = (stages.activation_bytes * stages.released_by_input).sum(axis=1)
        share = released_bytes / np.where(whole_bytes > 0, whole_bytes, 1.0)
    return Caps(
        capacity_bytes=stages.capacity_bytes.max(axis=1),
        activation_bytes=whole_bytes,
        released_by_input=np.minimum(share, 1.0),
        weight_bytes=0.0 if stages.weight_bytes is None else stages.weight_bytes.sum(axis=1),
    )
