"""One measured step: numbers move by their part of the doubt, less where the step says less."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from meshwright.calibrate.observed import StepOn
from meshwright.calibrate.one_step import Learned, learn
from meshwright.library.calibration import calibration
from meshwright.library.clusters import resolve_gpus
from meshwright.specs.workload import Workload

STEP = StepOn(
    group=resolve_gpus("8xH100").groups[0],
    workload=Workload(seq_len=4096, global_batch=8),
    time_s=lambda hardware: 1e15 / (hardware.gemm_flop_per_s * hardware.gemm_fraction),
)


def learned(doubt: float, over: float = 1.2) -> Learned:
    step = replace(STEP, doubt=doubt)
    return learn(step, step.under({}) * over, calibration())


def test_numbers_and_the_plans_own_factor_share_what_was_measured() -> None:
    found = learned(1.0)

    assert found.moved_s * found.own == pytest.approx(found.predicted_s * 1.2)
    assert 1.0 < found.own < 1.2
    assert {name for name, _ in found.numbers} >= {"device.hopper.gemm_fraction", "run.hopper.megatron-core.pace"}


def test_a_step_of_a_kind_that_is_often_off_says_less() -> None:
    plain, doubtful = learned(1.0), learned(3.0)

    assert math.log(doubtful.moved_s / doubtful.predicted_s) < 0.5 * math.log(plain.moved_s / plain.predicted_s)
    assert doubtful.deviation_after > plain.deviation_after
    assert doubtful.deviation_before == pytest.approx(plain.deviation_before)
