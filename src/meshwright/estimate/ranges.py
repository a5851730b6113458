"""How far a predicted step may be off: a range whose width depends on what is known to matter, true for new machines.

Widths were fitted to the errors of measured runs whose source had been left out of the fit (`calibrate.coverage`), so
they hold what differs between one machine and the next, not only what is left over on machines that were seen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from meshwright.estimate.result import RANGE_BY_BASIS
from meshwright.library.software import measured_as
from meshwright.specs.calibration import NARROW, Z90, Calibration, KindOfRun
from meshwright.specs.device import Basis, DeviceSpec, KernelEfficiency
from meshwright.specs.model import ModelSpec
from meshwright.specs.workload import Workload

PricedStep = tuple[float, float]
"""Seconds of a step that wait for the host, and all of them."""

LEARNED = ("measured", "fitted")
GUESSED = ("assumed", "extrapolated")
"""Bases whose errors are not in those of the runs."""


def step_range(
    known: Calibration, kinds: Iterable[tuple[KindOfRun, KernelEfficiency]], basis: Basis
) -> tuple[float, float]:
    """What a step may take over its prediction, as shares below and above it: the central 90 %.

    exp(+-q) with q = Z90 sqrt(own^2 + pace^2) where a step of this device and framework was measured, else
    q = exp(sum of doubts), see `specs.calibration.Ranges`; the widest of the devices. Kernels that nobody fitted, and
    numbers that were assumed on a device without measured runs, have the range of their basis if that is wider.

    Args:
        known: what the numbers were fitted to.
        kinds: what is known of the step on each device the plan uses, with the device's kernels.
        basis: the weakest among all numbers.

    Returns:
        The share below and the share above, for example (0.13, 0.15).
    """
    ranges = []
    for kind, efficiency in kinds:
        half = log_half_width(known, kind)
        if half is None:
            return RANGE_BY_BASIS[basis]
        ranges.append((1.0 - math.exp(-half), math.exp(half) - 1.0))
        if efficiency.basis not in LEARNED:
            ranges.append(RANGE_BY_BASIS[efficiency.basis])
        if basis in GUESSED and not (known.ranges and known.ranges.sources(f"device {kind.device}")):
            ranges.append(RANGE_BY_BASIS[basis])
    return max(low for low, _ in ranges), max(high for _, high in ranges)


def log_half_width(known: Calibration, kind: KindOfRun) -> float | None:
    """Half-width of the range of ln(step), None where no run ever said how wide it is; arguments as `step_range`."""
    if known.ranges is None:
        return None
    pace = known.pace(kind.generation, kind.framework)
    if pace is not None:
        return Z90 * math.hypot(known.ranges.own, pace.log_deviation)
    return known.ranges.half_width(kind)


def kind_of_run(estimate: PricedStep, model: ModelSpec | None, workload: Workload, device: DeviceSpec) -> KindOfRun:
    """What is known of a step on one of its devices.

    Args:
        estimate: its time and what of it waits for the host.
        model: the model that runs; None where only the machine and the framework are asked about.
        workload: its format, length and framework.
        device: the device that it runs on.
    """
    host_s, step_time_s = estimate
    return KindOfRun(
        host_share=host_s / step_time_s,
        experts=model is not None and model.is_moe,
        narrow=model is not None and model.hidden < NARROW,
        seq_len=workload.seq_len,
        generation=device.efficiency.generation,
        bits=8 * workload.precision.bytes_of("compute"),
        software=measured_as(workload.software),
        device=device.name,
    )


def outside_experience(known: Calibration, workload: Workload, devices: Iterable[tuple[DeviceSpec, int]]) -> str:
    """How a job is unlike every run that the numbers were fitted to, in a sentence; empty where it is not.

    Args:
        known: what the numbers were fitted to.
        workload: its format and framework.
        devices: the devices that it may use, each with its number.
    """
    if known.ranges is None:
        return ""
    unlike, total = [], 0
    for device, count in devices:
        total += count
        kind = kind_of_run((0.0, 1.0), None, workload, device)
        architecture, width, *_ = kind.experience
        if not known.ranges.sources(architecture):
            unlike.append(f"no measured run on {device.name} or any device of its generation")
        elif not known.ranges.sources(width):
            unlike.append(f"no measured run in {workload.precision.compute} on the generation of {device.name}")
        elif not known.ranges.sources(f"device {device.name}"):
            unlike.append(f"no measured run on {device.name}, some on others of its generation")
    line = measured_as(workload.software).partition("@")[0]
    if not known.ranges.sources(line):
        unlike.append(f"no measured run under {line}")
    if known.ranges.most_devices and total > known.ranges.most_devices:
        unlike.append(f"no measured run on more than {known.ranges.most_devices:,} devices")
    return "; ".join(dict.fromkeys(unlike))
