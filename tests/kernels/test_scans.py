"""A scan takes as long as the slowest of its products, its other work and its memory."""

from __future__ import annotations

import pytest

from meshwright.kernels.compute import Roof
from meshwright.kernels.scans import scan_s

ROOF = Roof(peak_flop_per_s=100e12, max_fraction=0.5, memory_bytes_per_s=2e12, launch_s=4e-6)


@pytest.mark.parametrize(
    ("flop", "scalar_flop", "traffic_bytes", "expected_s"),
    [
        (5e12, 1e9, 1e9, 0.1),  # at half the peak
        (1e9, 2e12, 1e9, 0.2),
        (1e9, 1e9, 600e9, 0.3),
    ],
)
def test_the_slowest_of_three_and_a_launch(
    flop: float, scalar_flop: float, traffic_bytes: float, expected_s: float
) -> None:
    found_s = scan_s(flop, scalar_flop, traffic_bytes, roof=ROOF, scalar_flop_per_s=10e12)
    assert found_s == pytest.approx(expected_s + 4e-6)
