"""Speed of schedule tables: built and checked, simulated with memory, and many sets of durations at once; one core."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.timing import Line

WORKERS, MICRO_BATCHES, CHUNKS = 64, 512, 2
SETS = 256
"""Sets of durations simulated at once."""


def simulator_lines(runs: int) -> list[Line]:
    """What the largest table of the documentation costs, in seconds of processor time.

    Args:
        runs: of each; the median counts.
    """
    from meshwright.schedules import SCHEDULES, Times, makespans, simulate
    from meshwright.schedules.memory import Footprint

    rng = np.random.default_rng(0)
    schedule = SCHEDULES["interleaved"]
    shape = (WORKERS, CHUNKS)
    one = Times(forward_s=1 + rng.random(shape), backward_s=2 * (1 + rng.random(shape)), transfer_s=0.05)
    several = (SETS, *shape)
    many = Times(forward_s=1 + rng.random(several), backward_s=2 * (1 + rng.random(several)), transfer_s=0.05)
    footprint = Footprint(activation_bytes=1e6 * (1 + rng.random(shape)))
    # `table` would answer from memory the second time; every run builds and checks its own, and simulates a fresh one.
    fresh = [schedule._table(WORKERS, MICRO_BATCHES, CHUNKS) for _ in range(runs + 1)]
    table = fresh[0]
    build_s = _median_s(lambda: schedule._table(WORKERS, MICRO_BATCHES, CHUNKS), runs)
    single_s = _median_s(lambda: simulate(fresh.pop(), one).memory(footprint).peak_bytes, runs)
    again_s = _median_s(lambda: simulate(table, one).memory(footprint).peak_bytes, runs)
    makespans(table, many)
    each_s = _median_s(lambda: makespans(table, many), runs) / SETS
    size = f"interleaved, {WORKERS} workers x {MICRO_BATCHES} micro-batches, v = {CHUNKS}: {table.tasks:,} tasks"
    return [
        Line("schedule table built and checked", 1e3 * build_s, 300, "ms", note=size),
        Line(
            "simulated with memory over time",
            1e3 * single_s,
            80,
            "ms",
            note=f"first time, unequal stages; {1e3 * again_s:.3g} ms with other times",
        ),
        Line(
            f"{SETS} sets of durations at once, per set",
            again_s / each_s,
            20,
            "times as quick as one",
            at_least=True,
            note=f"{1e3 * each_s:.3g} ms per set, against one that was simulated before",
        ),
    ]


def _median_s(work: Callable[[], object], runs: int) -> float:
    """Median seconds of processor time."""
    taken = []
    for _ in range(runs):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return sorted(taken)[len(taken) // 2]
