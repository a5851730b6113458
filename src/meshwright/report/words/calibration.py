"""What one log says of the predictions, in words."""

from __future__ import annotations

from collections.abc import Iterator

from meshwright.calibrate.one_step import Learned
from meshwright.specs.calibration import Z90
from meshwright.units import gib, seconds


def learned_lines(
    learned: Learned, measured_s: float, steps: tuple[int, int], memory: tuple[float, float | None]
) -> Iterator[str]:
    """What was measured, what moved, and what one step cannot separate.

    Args:
        learned: what was learned from the step.
        measured_s: the measured seconds of the step.
        steps: used, and read from the log.
        memory: bytes predicted, and measured where the log prints them.
    """
    predicted, measured = memory
    off = learned.predicted_s / measured_s - 1
    yield f"measured {seconds(measured_s)} (median of {steps[0]} of {steps[1]} steps)"
    yield f"predicted {seconds(learned.predicted_s)} before ({off:+.1%}), {seconds(measured_s)} after"
    shared = learned.moved_s / learned.predicted_s - 1
    yield f"other plans of this machine and framework move by {shared:+.1%} where they depend on the same numbers"
    before, after = (Z90 * deviation for deviation in (learned.deviation_before, learned.deviation_after))
    yield f"their shared uncertainty narrows from ±{before:.0%} to ±{after:.0%}"
    if measured is None:
        yield "memory: the log does not print it"
    else:
        gap = predicted / measured - 1
        shown = f"{gib(measured)} allocated, predicted {gib(predicted)}"
        yield f"memory: {shown} ({gap:+.1%}); not calibrated"
    if learned.not_told_apart:
        yield f"one step does not separate: {', '.join(learned.not_told_apart)}"
