"""Ranges: as wide as what is in doubt says, never narrower for knowing less."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshwright.estimate.ranges import log_half_width, outside_experience, step_range
from meshwright.estimate.result import RANGE_BY_BASIS
from meshwright.library.calibration import calibration
from meshwright.library.devices import device, kernel_efficiency
from meshwright.specs.calibration import NOTHING, Z90, Calibration, Fitted, KindOfRun, pace_name
from meshwright.specs.device import Basis
from meshwright.specs.workload import Workload


def kind(
    generation: str = "hopper", framework: str = "megatron-core", host_share: float = 0.0, *, experts: bool = False
) -> KindOfRun:
    return KindOfRun(
        host_share=host_share,
        experts=experts,
        seq_len=4096,
        generation=generation,
        bits=16,
        software=framework,
        device={"hopper": "H100"}.get(generation, "a device"),
    )


def range_of(*kinds: KindOfRun, basis: Basis = "datasheet", known: Calibration | None = None) -> tuple[float, float]:
    used = [(one, kernel_efficiency(one.generation, known)) for one in kinds or (kind(),)]
    return step_range(calibration(known), used, basis)


def ratio(found: tuple[float, float]) -> float:
    return (1 + found[1]) / (1 - found[0])


def test_every_doubt_widens() -> None:
    plain = range_of()

    assert 0 < plain[0] < plain[1] < 0.3
    assert ratio(plain) == pytest.approx((1 + plain[1]) ** 2)
    for doubt in (kind(experts=True), kind(framework="unheard-of"), kind(host_share=0.5)):
        assert ratio(range_of(doubt)) >= ratio(plain)
    assert ratio(range_of(kind(framework="unheard-of"))) > ratio(plain)
    assert ratio(range_of(kind(framework="unheard-of", host_share=1.0, experts=True))) <= 9.0 + 1e-9


def test_a_kind_of_model_that_did_not_run_there_widens() -> None:
    """Small dense models ran under Megatron-Core on no B200."""
    known = calibration(None).ranges
    wide, narrow = (replace(kind(), narrow=small) for small in (False, True))
    unseen = replace(narrow, device="B200", generation="blackwell")

    assert known is not None
    assert known.sources(wide.experience[-1]) > known.sources(unseen.experience[-1]) == 0
    assert ratio(range_of(unseen)) > ratio(range_of(wide))
    assert wide.experience[-1] != narrow.experience[-1] != replace(narrow, experts=True).experience[-1]


def test_kernels_nobody_fitted_and_assumed_links_have_the_range_of_their_basis() -> None:
    unfitted = kernel_efficiency("cdna3")

    assert unfitted.basis not in ("fitted", "measured")
    assert range_of(kind("cdna3"))[1] >= RANGE_BY_BASIS[unfitted.basis][1]
    unmeasured = replace(kind(), device="a device nobody measured")
    assert range_of(unmeasured, basis="extrapolated")[1] >= RANGE_BY_BASIS["extrapolated"][1] > range_of()[1]


def test_assumed_links_of_a_device_with_measured_runs_are_in_the_errors_of_those() -> None:
    assert range_of(basis="assumed") == range_of(basis="datasheet")


def test_mixed_devices_have_the_widest_range() -> None:
    assert range_of(kind(), kind("cdna3")) == range_of(kind("cdna3"))


def test_fewer_sources_widen() -> None:
    known = calibration().ranges
    assert known is not None
    weights = tuple((name, 0.5 if name == "format" else weight) for name, weight in known.weights)
    one, many = (replace(known, weights=weights, seen=(("hopper.16", count),)) for count in (1, 12))

    assert one.half_width(kind()) > many.half_width(kind())


def test_a_measured_step_narrows_to_what_is_left() -> None:
    known = calibration()
    assert known.ranges is not None
    pace = Fitted(value=1.1, low=1.1 * math.exp(-Z90 * 0.03), high=1.1 * math.exp(Z90 * 0.03), prior=1.0)
    measured = replace(known, numbers=(*known.numbers, (pace_name("hopper", "megatron-core"), pace)))
    half = log_half_width(measured, kind())
    before = log_half_width(known, kind())

    assert half == pytest.approx(Z90 * math.hypot(known.ranges.own, 0.03))
    assert before is not None
    assert half is not None
    assert half < before


def test_without_runs_the_range_is_that_of_the_basis() -> None:
    assert range_of(basis="datasheet", known=NOTHING) == RANGE_BY_BASIS["datasheet"]
    assert NOTHING.ranges is None
    assert NOTHING.tie == 0.02


def test_a_job_unlike_every_measured_run_is_told_so() -> None:
    known = calibration()
    job = Workload(seq_len=4096, global_batch=64)

    assert outside_experience(known, job, [(device("H100"), 64)]) == ""
    assert "no measured run on Gaudi3" in outside_experience(known, job, [(device("Gaudi3"), 8)])
    assert "on more than" in outside_experience(known, job, [(device("H100"), 10**6)])
    assert outside_experience(NOTHING, job, [(device("Gaudi3"), 8)]) == ""
