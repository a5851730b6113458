"""How far a predicted step may be off: a range whose width depends on what is known to matter, true for new machines.

Widths were fitted to the errors of measured runs whose source had been left out of the fit (`calibrate.coverage`), so
they hold what differs between one machine and the next, not only what is left over on machines that were seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from meshwright.estimate.result import RANGE_BY_BASIS
from meshwright.specs.calibration import Z90, Calibration
from meshwright.specs.device import Basis, KernelEfficiency

LEARNED = ("measured", "fitted")
GUESSED = ("assumed", "extrapolated")
"""Bases whose errors are not in those of the runs."""


def step_range(
    known: Calibration,
    *,
    host_share: float,
    experts: bool,
    kernels: Iterable[KernelEfficiency],
    framework: str,
    basis: Basis,
) -> tuple[float, float]:
    """What a step may take over its prediction, as shares below and above it: the central 90 %.

    exp(+-q) with q = Z90 sqrt(own^2 + pace^2) where a step of this device and framework was measured, else
    q = exp(base + sum of what applies); the widest of the devices. Kernels that nobody fitted, and numbers that were
    assumed, have the range of their basis if that is wider.

    Args:
        known: what the numbers were fitted to.
        host_share: of the step that waits for the host to issue kernels, 0-1.
        experts: whether the model has them.
        kernels: of the devices that the plan uses.
        framework: that drives them.
        basis: the weakest among all numbers.

    Returns:
        For example (0.13, 0.15).
    """
    ranges = []
    for efficiency in kernels:
        half = log_half_width(known, host_share, experts, efficiency.generation, framework)
        if half is None:
            return RANGE_BY_BASIS[basis]
        ranges.append((1.0 - math.exp(-half), math.exp(half) - 1.0))
        if efficiency.basis not in LEARNED:
            ranges.append(RANGE_BY_BASIS[efficiency.basis])
    if basis in GUESSED:
        ranges.append(RANGE_BY_BASIS[basis])
    return max(low for low, _ in ranges), max(high for _, high in ranges)


def log_half_width(
    known: Calibration, host_share: float, experts: bool, generation: str, framework: str
) -> float | None:
    """Half-width of the range of ln(step), None where no run ever said how wide it is; arguments as `step_range`."""
    widths = known.ranges
    if widths is None:
        return None
    pace = known.pace(generation, framework)
    if pace is not None:
        return Z90 * math.hypot(widths.own, pace.log_deviation)
    return widths.half_width(
        host_share=host_share,
        experts=experts,
        new_device=generation not in widths.generations,
        new_framework=framework not in widths.frameworks,
    )
