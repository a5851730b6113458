"""Two plans beside each other: by how much they differ, in which parts, and whether it is a tie."""

from __future__ import annotations

from meshwright.estimate.result import StepPrice
from meshwright.planning.reason import Reason

MOST_PARTS = 3


def tied(ratio: float, best: StepPrice) -> bool:
    """Whether a plan that differs from another by this share of its step ties with it.

    Their ranges are wide but move together, as both rest on the same kernels and links. So not their ranges are
    compared: the limit is the smallest difference between two measured runs of one job that was still predicted in the
    right order (`calibrate.pairs`).
    """
    return abs(ratio) < best.tie


def time_difference(best: StepPrice, other: StepPrice) -> Reason:
    """Share by which another plan is slower (quicker where negative), and the parts of the step behind it."""
    ratio = other.step_time_s / best.step_time_s - 1.0
    return Reason.of("time difference", ratio=ratio, tied=tied(ratio, best), parts=differing_parts(best, other))


def memory_difference(best: StepPrice, other: StepPrice) -> Reason:
    """How much more memory another plan needs on its fullest stage, and how their times compare."""
    ratio = other.step_time_s / best.step_time_s - 1.0
    change = other.peak_memory_bytes - best.peak_memory_bytes
    if abs(change) < 0.005 * best.peak_memory_bytes:
        change = 0.0
    return Reason.of("memory difference", change_bytes=change, peak_bytes=other.peak_memory_bytes, ratio=ratio)


def differing_parts(base: StepPrice, other: StepPrice, most: int = MOST_PARTS) -> dict[str, float]:
    """The largest differences between the parts of two steps, in seconds, the largest first."""
    mine = dict(base.breakdown_s)
    found = sorted(((s - mine[name], name) for name, s in other.breakdown_s), key=lambda pair: -abs(pair[0]))
    largest = abs(found[0][0]) if found else 0.0
    if largest <= 1e-6 * base.step_time_s:
        return {}
    return {name: change for change, name in found[:most] if abs(change) >= 0.08 * largest}
