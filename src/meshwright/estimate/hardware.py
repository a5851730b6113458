"""A node group unpacked into the plain numbers kernels take. The only place where specs become hardware columns."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from meshwright.errors import Problem, UnsupportedError
from meshwright.kernels.lines import LevelRates, group_span
from meshwright.library.calibration import calibration
from meshwright.library.devices import devices
from meshwright.library.software import software
from meshwright.shapes import Float, Int
from meshwright.specs.calibration import Calibration
from meshwright.specs.cluster import DomainSpec, NodeGroup
from meshwright.specs.device import DeviceSpec, KernelEfficiency
from meshwright.specs.dtypes import DTYPE_BYTES
from meshwright.specs.precision import Precision
from meshwright.specs.software import Software
from meshwright.specs.workload import Workload
from meshwright.units import TERA

# Base latency of one NCCL collective (ring: 8.4 us in the simple protocol, 6.6 us in the low-latency ones) and of the
# reduction hop in NVLink switches. Source: NCCL src/graph/tuning.cc.
BASE_LATENCY_S = 7e-6
IN_SWITCH_LATENCY_S = 25e-6

# PyTorch computes fp32 products in tf32 where the device has it only if asked; frameworks for training ask.
_FALLBACK_PEAK = {"fp32": "tf32"}
# Devices that a refused format names, the quickest of those that compute in it.
NAMED_DEVICES = 8


# Adam on the host, by the bytes of host memory that it moves. ZeRO-Offload's vectorised Adam takes 0.26 s for a billion
# parameters of 28 bytes on a DGX-2 (two sockets, 256 GB/s; Ren et al. 2021, table 4), 0.44 of the nominal bandwidth.
# Where a host's is not stated: 0.5 s, between that and 0.71 s (11.6e9 parameters in 8.2 s, DeepSpeed pull request 735,
# 2021); a node of four with 8 A100 takes about 0.55 s (72.7e9 in 10 s, DeepSpeed issue 6834, 2024).
HOST_MEMORY_FRACTION = 0.44
HOST_UPDATE_BYTES_PER_S = 56e9


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device of a homogeneous group and the links around it, SI numbers."""

    gemm_flop_per_s: float
    """Dense peak in the compute format."""
    gemm_fraction: float
    attention_flop_per_s: float
    """Dense peak in the format attention runs in."""
    scalar_flop_per_s: float
    """Outside of the tensor cores."""
    head_flop_per_s: float
    """Dense peak in the format of products that are not quantised (head, router)."""
    head_fraction: float
    memory_bytes: float
    memory_bytes_per_s: float
    """Nominal."""
    host_bytes_per_s: float
    """Bandwidth between the device and host memory, per direction, while all devices of the host copy."""
    units: int
    efficiency: KernelEfficiency
    software: Software
    domain_sizes: tuple[int, ...]
    rates: tuple[LevelRates, ...]
    exchange_rates: tuple[LevelRates, ...]
    """The same levels as kernels that exchange tokens use them: at what benchmarks reach, whatever the framework."""
    price_per_hour: float | None
    any_operand_order: bool = False
    """8-bit products read either operand as it is stored."""
    host_memory_bytes: float | None = None
    """The device's share of the host's memory; None where it is not stated."""
    host_update_bytes_per_s: float = HOST_UPDATE_BYTES_PER_S
    """The device's share of what the host's cores move in an optimizer."""
    disk_bytes: float | None = None
    """The device's share."""
    disk_rates: tuple[float, float] = (math.inf, math.inf)
    """The device's share of the speed of reading and writing; infinite where the host states no disks."""
    joint: tuple[tuple[int, ...], tuple[LevelRates, ...]] | None = None
    """Sizes and links of the domains of the ranks that hold states together, where they stand on several groups."""
    attention_clock: float = 1.0
    """Clock under fused attention in training, over that of the reference device in bursts."""
    pace: float = 1.0
    """Speed of this machine's runs over what the numbers of their parts give; the rates and times above include it."""
    pace_range: tuple[float, float] | None = None
    """Central 90 %, for a plan whose own step was measured."""

    @property
    def achieved_memory_bytes_per_s(self) -> float:
        """What streaming kernels reach."""
        return self.memory_bytes_per_s * self.efficiency.memory_fraction

    @property
    def operator_s(self) -> float:
        """Host time per operator: the framework's and the driver's."""
        return self.software.operator_s + self.efficiency.dispatch_s

    def pair_span(self, distance: Int[np.ndarray, "..."]) -> tuple[Float[np.ndarray, "..."] | float, ...]:
        """Groups of two devices that stand so far apart, as `group_span` describes them."""
        return group_span(distance, np.full_like(distance, 2), self.domain_sizes)

    @property
    def flash_share(self) -> float:
        """Rate of the framework's fused attention kernels over the best the device has, alone on it."""
        efficiency = self.efficiency
        return {"fa1": efficiency.flash_fa1_share, "fa2": efficiency.flash_fa2_share, "best": 1.0}[self.software.flash]

    def flash_fraction(self, *, backward: bool) -> float:
        """Share of the 16-bit peak that the framework's fused attention reaches in training, for long sequences.

        Args:
            backward: the backward pass instead of the forward.
        """
        efficiency = self.efficiency
        if backward:
            fraction = efficiency.flash_backward_fraction
        else:
            trained = efficiency.flash_trained_share if self.software.flash == "best" else 1.0
            fraction = efficiency.flash_forward_fraction * trained
        return min(1.0, fraction * self.attention_clock) * self.flash_share


def level_rates(domain: DomainSpec, link_share: float = 1.0) -> LevelRates:
    """The links of a domain as kernels take them, at a share of what a benchmark of collectives reaches."""
    timed = domain.protocols
    return LevelRates(
        bandwidth_bytes_per_s=domain.bandwidth_bytes_per_s,
        efficiency=domain.efficiency * link_share,
        latency_s=domain.latency_s,
        base_latency_s=BASE_LATENCY_S if timed is None else timed.base_s,
        mesh_peers=domain.size - 1 if domain.topology == "mesh" else 0,
        in_switch=domain.in_switch_efficiency > 0,
        in_switch_efficiency=domain.in_switch_efficiency * link_share,
        in_switch_latency_s=IN_SWITCH_LATENCY_S if timed is None else timed.in_switch_s,
        quick=None if timed is None else (timed.quick_base_s, timed.quick_step_s, timed.quick_share),
        few_ranks=None if timed is None else (timed.few_ranks, timed.RANKS),
    )


def _level_at_pace(level: LevelRates, pace: float) -> LevelRates:
    return replace(
        level,
        bandwidth_bytes_per_s=level.bandwidth_bytes_per_s * pace,
        latency_s=level.latency_s / pace,
        base_latency_s=level.base_latency_s / pace,
        in_switch_latency_s=level.in_switch_latency_s / pace,
        quick=level.quick and (level.quick[0] / pace, level.quick[1] / pace, level.quick[2]),
    )


def at_pace(hardware: Hardware, pace: float, pace_range: tuple[float, float] | None = None) -> Hardware:
    """The same with everything that takes time, compute, links and host alike, `pace` times as quick."""
    efficiency, driver = hardware.efficiency, hardware.software
    return replace(
        hardware,
        gemm_flop_per_s=hardware.gemm_flop_per_s * pace,
        attention_flop_per_s=hardware.attention_flop_per_s * pace,
        scalar_flop_per_s=hardware.scalar_flop_per_s * pace,
        head_flop_per_s=hardware.head_flop_per_s * pace,
        memory_bytes_per_s=hardware.memory_bytes_per_s * pace,
        host_bytes_per_s=hardware.host_bytes_per_s * pace,
        host_update_bytes_per_s=hardware.host_update_bytes_per_s * pace,
        efficiency=replace(efficiency, launch_s=efficiency.launch_s / pace, dispatch_s=efficiency.dispatch_s / pace),
        software=replace(
            driver,
            operator_s=driver.operator_s / pace,
            tensor_s=driver.tensor_s / pace,
            step_s=driver.step_s / pace,
        ),
        rates=tuple(_level_at_pace(level, pace) for level in hardware.rates),
        exchange_rates=tuple(_level_at_pace(level, pace) for level in hardware.exchange_rates),
        pace=hardware.pace * pace,
        pace_range=pace_range,
    )


def power_limited_clock(device: DeviceSpec) -> float:
    """Clock under large products over that of the generation's reference device: (w / w0) ^ exponent.

    w = (limit - fixed) / peak is the power per dense 16-bit peak that the limit leaves to products, w0 the reference's:
    memory, links and leakage take the same whatever the clock. Where the limit binds, clocks rise with it: GB300 and
    GB200 have one data sheet in 16 and 8 bits, 1400 and 1200 W, and 15-25 % between their measured steps.

    Args:
        device: the device with its power limit; one that states none is taken as the reference.
    """
    efficiency, peak = device.efficiency, device.peak("bf16")
    if not (efficiency.power_exponent and efficiency.power_w_per_tflop and device.power_w and peak):
        return 1.0
    left_w = device.power_w - efficiency.power_fixed_w
    return float((left_w / (peak / TERA) / efficiency.power_w_per_tflop) ** efficiency.power_exponent)


def host_columns(group: NodeGroup) -> dict[str, Any]:
    """What a device has of its host, all devices of the node taking their share at once.

    Args:
        group: the devices and their host.
    """
    device, host, sharing = group.device, group.host, group.devices_per_node
    shared_link = min(host.link_devices, sharing)
    reached = HOST_UPDATE_BYTES_PER_S
    if host.memory_bytes_per_s is not None:
        reached = host.memory_bytes_per_s * HOST_MEMORY_FRACTION
    read = math.inf if host.disk_read_bytes_per_s is None else host.disk_read_bytes_per_s
    write = read if host.disk_write_bytes_per_s is None else host.disk_write_bytes_per_s
    return {
        "host_bytes_per_s": (host.link_bytes_per_s or device.host_bandwidth_bytes_per_s) / shared_link,
        "host_memory_bytes": None if host.memory_bytes is None else host.memory_bytes / sharing,
        "host_update_bytes_per_s": reached / sharing,
        "disk_bytes": None if host.disk_bytes is None else host.disk_bytes / sharing,
        "disk_rates": (read / sharing, write / sharing),
    }


def _cannot(device: DeviceSpec, dtype: str) -> Problem:
    """The problem that a device has no peak in a format, with those that have one: first those of its vendor that
    are linked in a node as it is, the most alike first."""
    able = ", ".join(name for name, _ in device.peak_flop_per_s)

    def sizes(one: DeviceSpec) -> tuple[float, float, float]:
        peak = one.peak("bf16") or max(peak for _, peak in one.peak_flop_per_s)
        return peak, one.memory_bytes, one.memory_bandwidth_bytes_per_s

    def linked(one: DeviceSpec) -> bool:
        return one.node is not None and one.node.scaleup_domain >= one.node.devices_per_node

    def unlike(other: DeviceSpec) -> tuple[bool, bool, float]:
        ratios = (theirs / own for theirs, own in zip(sizes(other), sizes(device), strict=True))
        apart = sum(abs(math.log(ratio)) for ratio in ratios)
        return other.vendor != device.vendor, linked(other) != linked(device), apart

    narrow = ("fp8",) if dtype.startswith(("fp8", "mxfp", "nvfp")) else ()
    instead = next(one for one in (*narrow, "bf16", "fp16", device.peak_flop_per_s[0][0]) if device.peak(one))
    others = sorted((one for one in devices() if one.peak(dtype)), key=unlike)
    named = f", or a device that does: {', '.join(one.name for one in others[:NAMED_DEVICES])}" if others else ""
    return Problem(
        what=f"{device.name} does not compute in {dtype}",
        why=f"its data sheet lists dense peaks for {able}",
        fix=f"use --dtype {instead}{named}",
        field="dtype",
    )


def hardware_of(group: NodeGroup, workload: Workload, driver: Software | None = None) -> Hardware:
    """Unpack a node group for the precision, the framework and the calibration of a workload.

    Args:
        group: the devices.
        workload: what runs on them.
        driver: other numbers than the library's of its framework.

    Raises:
        UnsupportedError: if the device cannot compute in the format asked for, or nobody knows the framework.
    """
    known = calibration(workload.calibration)
    return _hardware(group, workload.precision, known, driver or software(workload.software, workload.calibration))


@lru_cache(maxsize=256)
def _hardware(group: NodeGroup, precision: Precision, known: Calibration, driver: Software) -> Hardware:
    """The same for all workloads of one precision, framework and calibration."""
    device, efficiency = group.device, group.device.efficiency
    if device.host_issue != 1.0:
        efficiency = replace(efficiency, dispatch_s=efficiency.dispatch_s * device.host_issue)
        issue = device.host_issue
        driver = replace(driver, operator_s=driver.operator_s * issue, tensor_s=driver.tensor_s * issue)

    def peak(dtype: str) -> float:
        found = device.peak(_FALLBACK_PEAK.get(dtype, dtype)) or device.peak(dtype)
        if found is None:
            raise UnsupportedError(_cannot(device, dtype), code="MW405")
        return found

    compute_bytes, wide_bytes = DTYPE_BYTES[precision.compute], DTYPE_BYTES[precision.activations]
    clock = power_limited_clock(device)
    share = driver.product_share * driver.products_on(efficiency.generation)
    hardware = Hardware(
        gemm_flop_per_s=peak(precision.compute),
        gemm_fraction=min(1.0, efficiency.product_fraction(compute_bytes) * clock) * share,
        attention_flop_per_s=peak(precision.activations),
        attention_clock=clock * efficiency.sustained_clock,
        scalar_flop_per_s=device.peak("fp32") or peak(precision.activations),
        head_flop_per_s=peak(precision.activations),
        head_fraction=min(1.0, efficiency.product_fraction(wide_bytes) * clock) * share,
        memory_bytes=device.memory_bytes,
        memory_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        **host_columns(group),
        units=device.units,
        any_operand_order=device.any_operand_order,
        efficiency=efficiency,
        software=driver,
        domain_sizes=tuple(domain.size for domain in group.domains),
        rates=tuple(level_rates(domain, driver.link_share) for domain in group.domains),
        exchange_rates=tuple(level_rates(domain) for domain in group.domains),
        price_per_hour=group.price_per_hour,
    )
    measured = known.pace(efficiency.generation, driver.name)
    return hardware if measured is None else at_pace(hardware, measured.value)
