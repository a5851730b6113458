"""Steps that the tests of the drawings share: schedules with unequal stages, and priced plans."""

from __future__ import annotations

from functools import cache

import numpy as np

from meshwright import estimate
from meshwright.app.trace import Trace, trace_of
from meshwright.estimate.timeline import activation_line
from meshwright.report.picture import MemoryLine, Picture
from meshwright.schedules import Times, schedule_named, simulate
from meshwright.schedules.communication import with_communication
from meshwright.units import GIB


def unequal_picture(
    name: str, p: int, m: int, v: int = 1, *, transfer_s: float = 3e-3, listed: bool = False
) -> Picture:
    """A schedule whose stages, chunks and links all differ; `listed`: with its messages as tasks of their own."""
    table = schedule_named(name).table(p, m, v)
    if listed:
        table = with_communication(table)
    rng = np.random.default_rng(0)
    shape = (p, table.v)
    forward_s, weight_s = rng.uniform(0.02, 0.03, shape), rng.uniform(0.02, 0.03, shape)
    latency_s = transfer_s * rng.uniform(1.0, 2.0, shape)
    times = Times(
        forward_s=forward_s,
        backward_s=weight_s + rng.uniform(0.02, 0.03, shape),
        weight_s=weight_s,
        recompute_s=forward_s,
        transfer_s=latency_s,
    )
    timeline = simulate(table, times)
    memory = []
    for worker in range(p):
        line = activation_line(timeline, worker, rng.uniform(0.5, 1.0, table.v) * GIB)
        memory.append(
            MemoryLine(
                at_s=line.at_s,
                activations_bytes=line.live_bytes,
                held_bytes=20 * GIB,
                transient_bytes=GIB,
                capacity_bytes=80 * GIB,
            )
        )
    return Picture(
        title=f"{name}, {p} x {m}",
        timeline=timeline,
        workers=tuple(f"worker {number}" for number in range(p)),
        memory=tuple(memory),
    )


@cache
def plan_trace(row: str = "tp2.pp4.z1.mbs1.rc-sel.gbs32", gpus: str = "16xH100") -> Trace:
    """One step of an 8B model."""
    return trace_of(estimate("llama-3-8b", row, gpus=gpus)[0])
