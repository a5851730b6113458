"""A node group unpacked into the plain numbers kernels take. The only place where specs become hardware columns."""

from __future__ import annotations

from dataclasses import dataclass

from meshwright.errors import Problem, UnsupportedError
from meshwright.kernels.collectives import LevelRates
from meshwright.specs.cluster import DomainSpec, NodeGroup
from meshwright.specs.device import KernelEfficiency
from meshwright.specs.dtypes import DTYPE_BYTES
from meshwright.specs.workload import Precision

# Base latency of one NCCL collective (ring: 8.4 us in the simple protocol, 6.6 us in the low-latency ones) and of the
# reduction hop in NVLink switches. Source: NCCL src/graph/tuning.cc.
BASE_LATENCY_S = 7e-6
IN_SWITCH_LATENCY_S = 25e-6

# PyTorch computes fp32 products in tf32 where the device has it only if asked; frameworks for training ask.
_FALLBACK_PEAK = {"fp32": "tf32"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """One device of a homogeneous group and the links around it, SI numbers."""

    gemm_flop_per_s: float
    """Dense peak in the compute format."""
    gemm_fraction: float
    attention_flop_per_s: float
    """Dense peak in the format attention runs in."""
    head_flop_per_s: float
    """Dense peak in the format of products that are not quantised (head, router)."""
    head_fraction: float
    memory_bytes: float
    memory_bytes_per_s: float
    """Nominal."""
    host_bytes_per_s: float
    units: int
    efficiency: KernelEfficiency
    domain_sizes: tuple[int, ...]
    rates: tuple[LevelRates, ...]
    price_per_hour: float | None

    @property
    def achieved_memory_bytes_per_s(self) -> float:
        """What streaming kernels reach."""
        return self.memory_bytes_per_s * self.efficiency.memory_fraction


def level_rates(domain: DomainSpec) -> LevelRates:
    """The links of a domain as kernels take them."""
    return LevelRates(
        bandwidth_bytes_per_s=domain.bandwidth_bytes_per_s,
        efficiency=domain.efficiency,
        latency_s=domain.latency_s,
        base_latency_s=BASE_LATENCY_S,
        mesh_peers=domain.size - 1 if domain.topology == "mesh" else 0,
        in_switch=domain.in_switch_efficiency > 0,
        in_switch_efficiency=domain.in_switch_efficiency,
        in_switch_latency_s=IN_SWITCH_LATENCY_S,
    )


def hardware_of(group: NodeGroup, precision: Precision) -> Hardware:
    """Unpack a node group for a precision.

    Raises:
        UnsupportedError: if the device cannot compute in the format asked for.
    """
    device, efficiency = group.device, group.device.efficiency
    fraction = {
        8.0: efficiency.gemm_fraction_fp32,
        4.0: efficiency.gemm_fraction_fp32,
        2.0: efficiency.gemm_fraction,
    }

    def peak(dtype: str) -> float:
        found = device.peak(_FALLBACK_PEAK.get(dtype, dtype)) or device.peak(dtype)
        if found is None:
            able = ", ".join(name for name, _ in device.peak_flop_per_s)
            raise UnsupportedError(
                Problem(
                    what=f"{device.name} does not compute in {dtype}",
                    why=f"its data sheet lists dense peaks for {able}",
                    fix=f"use --dtype {'fp16' if 'fp16' in able else able.split(',')[0]}",
                    field="dtype",
                ),
                code="MW405",
            )
        return found

    compute_bytes, wide_bytes = DTYPE_BYTES[precision.compute], DTYPE_BYTES[precision.activations]
    return Hardware(
        gemm_flop_per_s=peak(precision.compute),
        gemm_fraction=fraction.get(compute_bytes, efficiency.gemm_fraction_fp8),
        attention_flop_per_s=peak(precision.activations),
        head_flop_per_s=peak(precision.activations),
        head_fraction=fraction.get(wide_bytes, efficiency.gemm_fraction),
        memory_bytes=device.memory_bytes,
        memory_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        host_bytes_per_s=device.host_bandwidth_bytes_per_s,
        units=device.units,
        efficiency=efficiency,
        domain_sizes=tuple(domain.size for domain in group.domains),
        rates=tuple(level_rates(domain) for domain in group.domains),
        price_per_hour=group.price_per_hour,
    )
