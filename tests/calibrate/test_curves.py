"""Curves of a device: numbers that made the timings come back, and too few timings are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.calibrate.curves import (
    TimedAttention,
    TimedProduct,
    TimedReduction,
    TimedStream,
    Timings,
    fit_curves,
)
from meshwright.errors import InputError
from meshwright.kernels import compute
from meshwright.library.devices import kernel_efficiency

BASE = kernel_efficiency("hopper")
UNITS = 132
PEAK = 989e12
LAUNCH_S = 3e-6


def timings(
    *, fraction: float, k_half: float, bandwidth: float, flash: float, keys_half: float, noise: float = 0.0
) -> Timings:
    """What a device with these numbers takes, with errors of each timing."""
    draw = np.random.default_rng(7)

    def slower() -> float:
        return float(np.exp(noise * draw.standard_normal()))

    def roof(reached: float) -> compute.Roof:
        return compute.Roof(peak_flop_per_s=PEAK, max_fraction=reached, memory_bytes_per_s=bandwidth, launch_s=LAUNCH_S)

    def product(size: int, k: int) -> TimedProduct:
        seconds = compute.gemm_s(
            size,
            size,
            k,
            roof=roof(fraction),
            tiles=compute.Tiles(m=BASE.tile_m, n=BASE.tile_n, units=UNITS, k_half=k_half),
            input_bytes=2,
            output_bytes=2,
        )
        return TimedProduct(dtype="bf16", m=size, n=size, k=k, seconds=float(seconds) * slower())

    def attention(seq_len: int, *, backward: bool) -> TimedAttention:
        seconds = compute.flash_attention_s(
            compute.AttentionShape(
                pairs=compute.score_pairs(seq_len, seq_len),
                query_len=seq_len,
                key_len=seq_len,
                batch=1,
                heads=32,
                kv_heads=32,
                qk_dim=128,
                v_dim=128,
            ),
            backward=backward,
            roof=roof(flash * (0.8 if backward else 1.0)),
            blocks=compute.AttentionBlocks(
                queries=BASE.flash_tile,
                units=UNITS,
                dim_half=(BASE.flash_dim_cost(128, 128) - 1) * 128,
                keys_half=keys_half,
                tail=BASE.flash_tail,
            ),
            element_bytes=2,
        )
        return TimedAttention(
            dtype="bf16",
            batch=1,
            heads=32,
            head_dim=128,
            seq_len=seq_len,
            backward=backward,
            seconds=float(seconds) * slower(),
        )

    return Timings(
        products=tuple(product(size, k) for size in (2048, 4096, 8192) for k in (128, 512, 2048, 8192)),
        attention=tuple(attention(s, backward=b) for s in (512, 1024, 2048, 4096, 8192) for b in (False, True)),
        streams=tuple(
            TimedStream(traffic_bytes=size, seconds=(size / bandwidth + LAUNCH_S) * slower())
            for size in (1e7, 1e8, 1e9, 4e9)
        ),
        reductions=(),
        launch_s=LAUNCH_S,
    )


@settings(deadline=None)
@given(
    fraction=st.floats(0.3, 0.95),
    k_half=st.floats(20, 600),
    bandwidth=st.floats(1e12, 5e12),
    flash=st.floats(0.3, 0.9),
    keys_half=st.floats(50, 600),
)
def test_numbers_that_made_the_timings_come_back(
    fraction: float, k_half: float, bandwidth: float, flash: float, keys_half: float
) -> None:
    timed = timings(fraction=fraction, k_half=k_half, bandwidth=bandwidth, flash=flash, keys_half=keys_half)
    found = fit_curves(timed, BASE, UNITS, {"bf16": PEAK})
    assert dict(found.gemm_fraction)["bf16"] == pytest.approx(fraction, rel=0.01)
    assert found.k_half == pytest.approx(k_half, rel=0.05, abs=2)
    assert found.memory_bytes_per_s == pytest.approx(bandwidth, rel=0.001)
    assert found.flash_forward_fraction == pytest.approx(flash, rel=0.01)
    assert found.flash_backward_fraction == pytest.approx(0.8 * flash, rel=0.01)
    assert found.flash_keys_half == pytest.approx(keys_half, rel=0.05)
    assert all(curve.median_error < 0.005 for curve in found.curves)


def test_noise_moves_the_numbers_less_than_it_moves_the_timings() -> None:
    timed = timings(fraction=0.7, k_half=100, bandwidth=3e12, flash=0.6, keys_half=200, noise=0.1)
    found = fit_curves(timed, BASE, UNITS, {"bf16": PEAK})
    assert dict(found.gemm_fraction)["bf16"] == pytest.approx(0.7, rel=0.1)
    assert found.memory_bytes_per_s == pytest.approx(3e12, rel=0.1)
    assert any(curve.median_error > 0.01 for curve in found.curves)


def test_a_device_without_a_data_sheet_has_the_peak_it_showed() -> None:
    timed = timings(fraction=0.7, k_half=100, bandwidth=3e12, flash=0.5, keys_half=200)
    found = fit_curves(timed, BASE, UNITS, {})
    assert dict(found.peak_flop_per_s)["bf16"] == pytest.approx(0.7 * PEAK, rel=0.01)
    assert dict(found.gemm_fraction)["bf16"] == 1.0


def test_links_between_devices_are_a_rings() -> None:
    timed = timings(fraction=0.7, k_half=100, bandwidth=3e12, flash=0.5, keys_half=200)
    sizes = (1e4, 1e5, 1e6, 1e7, 1e8)
    rings = tuple(
        TimedReduction(devices=8, message_bytes=size, seconds=14 * (4e-6 + size / (8 * 300e9))) for size in sizes
    )
    found = fit_curves(replace(timed, reductions=rings), BASE, UNITS, {"bf16": PEAK})
    assert found.link_bytes_per_s == pytest.approx(300e9, rel=0.01)
    assert found.link_latency_s == pytest.approx(4e-6, rel=0.01)


def test_too_few_timings_are_refused_with_their_numbers() -> None:
    timed = timings(fraction=0.7, k_half=100, bandwidth=3e12, flash=0.5, keys_half=200)
    with pytest.raises(InputError, match="2 of streams"):
        fit_curves(replace(timed, streams=timed.streams[:2]), BASE, UNITS, {})
