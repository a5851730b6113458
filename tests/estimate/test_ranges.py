"""Ranges: as wide as what is in doubt says, never narrower for knowing less."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshwright.estimate.ranges import log_half_width, step_range
from meshwright.estimate.result import RANGE_BY_BASIS
from meshwright.library.calibration import calibration
from meshwright.library.devices import kernel_efficiency
from meshwright.specs.calibration import NOTHING, Z90, Calibration, Fitted, pace_name
from meshwright.specs.device import Basis


def range_of(
    generation: str = "hopper",
    framework: str = "megatron-core",
    host_share: float = 0.0,
    experts: bool = False,
    basis: Basis = "datasheet",
    known: Calibration | None = None,
) -> tuple[float, float]:
    kernels = [kernel_efficiency(generation, known)]
    doubts = calibration(known)
    return step_range(doubts, host_share=host_share, experts=experts, kernels=kernels, framework=framework, basis=basis)


def ratio(found: tuple[float, float]) -> float:
    return (1 + found[1]) / (1 - found[0])


def test_every_doubt_widens() -> None:
    plain = range_of()

    assert 0 < plain[0] < plain[1] < 0.3
    assert ratio(plain) == pytest.approx((1 + plain[1]) ** 2)
    for doubt in (range_of(experts=True), range_of(framework="unheard-of"), range_of(host_share=0.5)):
        assert ratio(doubt) > ratio(plain)
    assert ratio(range_of(experts=True, framework="unheard-of", host_share=1.0)) <= 9.0 + 1e-9


def test_kernels_nobody_fitted_and_assumed_links_have_the_range_of_their_basis() -> None:
    unfitted = kernel_efficiency("cdna3")

    assert unfitted.basis not in ("fitted", "measured")
    assert range_of("cdna3")[1] >= RANGE_BY_BASIS[unfitted.basis][1]
    assert range_of(basis="extrapolated")[1] >= RANGE_BY_BASIS["extrapolated"][1] > range_of()[1]


def test_mixed_devices_have_the_widest_range() -> None:
    kernels = [kernel_efficiency(name) for name in ("hopper", "cdna3")]
    mixed = step_range(
        calibration(), host_share=0, experts=False, kernels=kernels, framework="megatron-core", basis="datasheet"
    )

    assert mixed == range_of("cdna3")


def test_a_measured_step_narrows_to_what_is_left() -> None:
    known = calibration()
    assert known.ranges is not None
    pace = Fitted(value=1.1, low=1.1 * math.exp(-Z90 * 0.03), high=1.1 * math.exp(Z90 * 0.03), prior=1.0)
    measured = replace(known, numbers=(*known.numbers, (pace_name("hopper", "megatron-core"), pace)))
    half = log_half_width(measured, 0.0, False, "hopper", "megatron-core")
    before = log_half_width(known, 0.0, False, "hopper", "megatron-core")

    assert half == pytest.approx(Z90 * math.hypot(known.ranges.own, 0.03))
    assert before is not None
    assert half is not None
    assert half < before


def test_without_runs_the_range_is_that_of_the_basis() -> None:
    assert range_of(basis="datasheet", known=NOTHING) == RANGE_BY_BASIS["datasheet"]
    assert NOTHING.ranges is None
    assert NOTHING.tie == 0.02
