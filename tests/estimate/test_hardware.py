"""Specs unpacked into what kernels take: clocks under a power limit, gradients that are added apart."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from meshwright.errors import UnsupportedError
from meshwright.estimate.hardware import (
    HOST_MEMORY_FRACTION,
    HOST_UPDATE_BYTES_PER_S,
    Hardware,
    at_pace,
    hardware_of,
    host_columns,
    level_rates,
    power_limited_clock,
)
from meshwright.estimate.layers.work import price_work
from meshwright.estimate.price import strategy_columns
from meshwright.formats.cluster import node_group
from meshwright.library.clusters import resolve_gpus
from meshwright.library.devices import device as named
from meshwright.library.models import resolve
from meshwright.library.software import software
from meshwright.ops.layers import layer_work
from meshwright.specs.cluster import HostSpec
from meshwright.specs.precision import PRECISIONS
from meshwright.specs.strategy import LayerStrategy, Tensor1D
from meshwright.specs.workload import Workload


def test_clocks_follow_the_power_limit_where_it_binds() -> None:
    quick, slow = named("GB300"), named("GB200")
    exponent = slow.efficiency.power_exponent

    assert power_limited_clock(quick) / power_limited_clock(slow) == pytest.approx((1100 / 900) ** exponent)
    assert power_limited_clock(named("B200")) == pytest.approx(1.0, abs=0.01)
    assert power_limited_clock(replace(slow, power_w=None)) == 1.0
    assert power_limited_clock(named("H100")) == power_limited_clock(named("H100-PCIe")) == 1.0


@pytest.mark.parametrize(("dtype", "bytes_each"), [("fp16", 6.0), ("bf16", 12.0)])
def test_gradients_added_apart_cost_their_traffic(dtype: str, bytes_each: float) -> None:
    group = node_group(name="A100", device=named("A100-80"), nodes=1, devices_per_node=8)
    model, precision = resolve("llama-2-7b"), PRECISIONS[dtype]
    workload = Workload(seq_len=2048, global_batch=8, precision=precision)
    columns = strategy_columns([LayerStrategy(tensor=Tensor1D(degree=2))], 1, workload)
    layer = layer_work(model.kinds()[0], model.hidden, "flash")

    def weight_gradient_s(apart: bool) -> tuple[np.ndarray, Hardware]:
        hardware = hardware_of(group, workload, replace(software("megatron-lm"), adds_gradients=apart))
        return price_work(layer, columns, hardware, workload).weight_gradient_s, hardware

    (beside, hardware), (inside, _) = weight_gradient_s(True), weight_gradient_s(False)
    products = sum(op.parameters for op in layer.ops if hasattr(op, "experts")) / 2
    added_s = products * bytes_each / hardware.achieved_memory_bytes_per_s

    assert beside - inside == pytest.approx(added_s, rel=1e-9)
    assert precision.adding_bytes == bytes_each
    assert replace(precision, gradients="bf16", sums_in_copy=True).adding_bytes == 20.0


@pytest.mark.parametrize(
    ("device", "dtype", "able"),
    [
        ("V100-32", "bf16", "A100-40"),
        ("V100-32", "tf32", "A100-40"),
        ("V100-32", "int8", "A100-40"),
        ("A100-80", "fp8", "H100"),
        ("A100-80", "fp8-block", "H100"),
        ("H100", "mxfp8", "B200"),
        ("H100", "nvfp4", "GB200"),
        ("MI355X", "nvfp4", "B200"),
        ("GB300", "int8", "B200"),
    ],
)
def test_a_format_that_a_device_lacks_names_those_like_it_that_have_it(device: str, dtype: str, able: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{device} does not compute in {dtype}") as caught:
        hardware_of(
            resolve_gpus(f"1x{device}").groups[0], Workload(seq_len=1, global_batch=1, precision=PRECISIONS[dtype])
        )
    assert able in caught.value.problems[0].fix


@pytest.mark.parametrize(
    ("device", "dtype"),
    [
        ("L40S", "fp8"),
        ("RTX-4090", "fp8"),
        ("A100-80", "int8"),
        ("B200", "mxfp8"),
        ("RTX-5090", "nvfp4"),
        ("H100", "tf32"),
    ],
)
def test_products_run_at_the_peak_of_their_format(device: str, dtype: str) -> None:
    group = resolve_gpus(f"1x{device}").groups[0]
    found = hardware_of(group, Workload(seq_len=1, global_batch=1, precision=PRECISIONS[dtype]))
    assert found.gemm_flop_per_s == group.device.peak(dtype)


def test_only_in_a_mesh_are_the_peers_of_a_device_counted() -> None:
    domain = resolve_gpus("8xMI300X").groups[0].domains[0]
    mesh, switch = replace(domain, topology="mesh"), replace(domain, topology="switch")
    assert (level_rates(mesh).mesh_peers, level_rates(switch).mesh_peers) == (domain.size - 1, 0)


def test_what_devices_share_of_a_host_is_shared_out() -> None:
    host = HostSpec(memory_bytes=1e12, memory_bytes_per_s=4e11, disk_bytes=8e12, disk_read_bytes_per_s=4e10)
    group = replace(resolve_gpus("8xH100").groups[0], host=host)
    one = host_columns(group)
    assert one["host_update_bytes_per_s"] == pytest.approx(HOST_MEMORY_FRACTION * 4e11 / 8)
    assert (one["host_memory_bytes"], one["disk_bytes"]) == (1e12 / 8, 1e12)
    assert one["disk_rates"] == (5e9, 5e9)
    plain = host_columns(replace(group, host=HostSpec()))
    assert plain["host_update_bytes_per_s"] == HOST_UPDATE_BYTES_PER_S / 8


def test_operators_wait_for_the_processor_a_device_is_built_with() -> None:
    """A Grace issues operators slower than a Xeon; the device itself runs as quickly."""
    workload = Workload(seq_len=2048, global_batch=8)
    grace = node_group(name="GB200", device=named("GB200"), nodes=1, devices_per_node=4)
    xeon = replace(grace, device=replace(grace.device, host_issue=1.0))
    slow, usual = hardware_of(grace, workload), hardware_of(xeon, workload)

    assert grace.device.host_issue == named("GB300").host_issue > named("GH200-96").host_issue > 1.0
    assert slow.operator_s == pytest.approx(grace.device.host_issue * usual.operator_s)
    assert named("B200").host_issue == named("H200").host_issue == 1.0
    assert replace(slow, efficiency=usual.efficiency, software=usual.software) == usual


def test_at_half_the_pace_every_rate_is_half_and_every_latency_double() -> None:
    group = resolve_gpus("16xH100").groups[0]
    usual = hardware_of(group, Workload(seq_len=2048, global_batch=8))
    slow = at_pace(usual, 0.5, (0.4, 0.6))
    rates = ("gemm_flop_per_s", "attention_flop_per_s", "scalar_flop_per_s", "head_flop_per_s", "memory_bytes_per_s")
    for name in (*rates, "host_bytes_per_s", "host_update_bytes_per_s", "pace"):
        assert getattr(slow, name) == getattr(usual, name) / 2, name
    for name in ("launch_s", "dispatch_s"):
        assert getattr(slow.efficiency, name) == 2 * getattr(usual.efficiency, name), name
    for name in ("operator_s", "step_s"):
        assert getattr(slow.software, name) == 2 * getattr(usual.software, name) > 0, name
    links = list(zip((*slow.rates, *slow.exchange_rates), (*usual.rates, *usual.exchange_rates), strict=True))
    for late, level in links:
        assert late.bandwidth_bytes_per_s == level.bandwidth_bytes_per_s / 2
        for name in ("latency_s", "base_latency_s", "in_switch_latency_s"):
            assert getattr(late, name) == 2 * getattr(level, name), name
        if level.quick:
            assert late.quick == (2 * level.quick[0], 2 * level.quick[1], level.quick[2])
    assert slow.pace_range == (0.4, 0.6)
    assert at_pace(slow, 2.0) == usual


def test_attention_in_training_runs_at_the_clock_of_products() -> None:
    """Products reach 0.6 of the peak in training and 0.8 alone: attention at 0.9 alone reaches 0.9 x 0.6 / 0.8."""
    group = resolve_gpus("8xB200").groups[0]
    alone = replace(
        group.device.efficiency,
        gemm_fraction=0.6,
        burst_fraction=0.8,
        power_exponent=0.0,
        flash_forward_fraction=0.9,
        flash_trained_share=0.5,
        flash_backward_fraction=0.7,
    )
    hot = hardware_of(
        replace(group, device=replace(group.device, efficiency=alone)), Workload(seq_len=2048, global_batch=8)
    )
    assert hot.flash_fraction(backward=False) == pytest.approx(0.9 * 0.5 * 0.75)
    assert hot.flash_fraction(backward=True) == pytest.approx(0.7 * 0.75)
    assert replace(alone, burst_fraction=0.0).sustained_clock == 1.0
    assert replace(alone, burst_fraction=0.5).sustained_clock == 1.0


def test_products_of_every_format_run_at_the_clock_of_training() -> None:
    """16-bit products reach 0.6 in training and 0.8 alone: those of 8 bits at 0.7 alone reach 0.7 x 0.6 / 0.8."""
    group = resolve_gpus("8xB200").groups[0]
    own = {"gemm_fraction": 0.6, "gemm_fraction_fp8": 0.7, "gemm_fraction_fp4": 0.5, "power_exponent": 0.0}

    def reached(dtype: str, burst: float) -> float:
        efficiency = replace(group.device.efficiency, burst_fraction=burst, **own)
        hot = replace(group, device=replace(group.device, efficiency=efficiency))
        return hardware_of(hot, Workload(seq_len=2048, global_batch=8, precision=PRECISIONS[dtype])).gemm_fraction

    for dtype, share in (("bf16", 1.0), ("fp8", 0.75), ("nvfp4", 0.75)):
        assert reached(dtype, burst=0.8) == pytest.approx(share * reached(dtype, burst=0.0)), dtype
        assert reached(dtype, burst=0.5) == reached(dtype, burst=0.0), dtype


def test_attention_of_blackwell_ultra_waits_less_for_exponentials() -> None:
    usual, ultra = named("GB200").efficiency, named("GB300").efficiency
    gain = {dim: usual.flash_dim_cost(dim, dim) / ultra.flash_dim_cost(dim, dim) for dim in (64, 128, 256)}
    assert 1.25 < gain[64] < 1.35
    assert 1.15 < gain[128] < 1.25
    assert 1.0 < gain[256] < 1.1


def test_a_clock_is_the_power_per_flop_to_the_exponent_of_the_generation() -> None:
    """Of 1000 W 200 for memory, 2.25 PFLOP/s, 0.4 W per TFLOP/s of the reference: (800 / 2250 / 0.4) ^ exponent."""
    efficiency = replace(named("GB200").efficiency, power_exponent=0.5, power_w_per_tflop=0.4, power_fixed_w=200.0)
    peaks = tuple((dtype, 2.2505e15 if dtype == "bf16" else peak) for dtype, peak in named("GB200").peak_flop_per_s)
    device = replace(named("GB200"), power_w=1000.0, peak_flop_per_s=peaks, efficiency=efficiency)
    assert power_limited_clock(device) == pytest.approx((800 / 2250.5 / 0.4) ** 0.5)
