"""One accelerator: peaks, memory, efficiency of its kernels, each number with its basis."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import ClassVar, Literal

import numpy as np

from meshwright.specs.check import Check, HashedOnce, hashed_once
from meshwright.specs.dtypes import PEAK_DTYPE, PRODUCT_CURVE
from meshwright.units import MIB

Basis = Literal["datasheet", "literature", "fitted", "measured", "assumed", "extrapolated"]
MOST = 1e30
"""Largest count of kernels or links: products of larger ones overflow."""
MOST_EXPONENT = 10.0
BEFORE_HOPPER = ("volta", "turing", "ampere", "ada")
"""Generations of NVIDIA's devices whose matrix libraries are given less scratch memory."""
BLAS_WORKSPACE_BYTES = 32 * MIB
EARLY_BLAS_WORKSPACE_BYTES = 8.125 * MIB
BLAS_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where a number comes from."""

    basis: Basis
    source: str
    date: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductCurve:
    """How the rate of matrix products in one format follows their shape."""

    dtype: str
    """Format that was measured; `PRODUCT_CURVE` says which others it stands for."""
    k_half: float
    """Contraction length at which a product reaches half of its large-K rate."""
    joint: float
    """Exponent p of (compute^p + memory^p)^(1/p): how little arithmetic and memory traffic wait for each other."""

    def __post_init__(self) -> None:
        check = Check(f"product curve {self.dtype}")
        check.positive("k_half", self.k_half, zero=True)
        check.that(self.joint >= 1, "joint", self.joint, "must be at least 1: more than the sum takes no product")
        check.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelEfficiency:
    """How near a device's kernels come to its peaks; one record per architecture generation, with its source."""

    gemm_fraction: float
    """Best large GEMM over the dense peak at 16-bit, power limit included; in training where bursts are apart."""
    gemm_fraction_fp8: float
    gemm_fraction_fp32: float
    tile_m: int
    tile_n: int
    k_half: float
    """Contraction length at which a GEMM reaches half of its large-K rate."""
    flash_forward_fraction: float
    """Best fused attention, forward, over the 16-bit dense peak, causal pairs counted once."""
    flash_backward_fraction: float
    flash_keys_half: float
    """Keys per query at which fused attention reaches half of its best rate."""
    flash_dim_half: float
    """Head dim at which fused attention reaches half of its best rate: exponentials cost the same for any head."""
    flash_tile: int
    """Queries in one block of fused attention."""
    memory_fraction: float
    """Achieved over nominal memory bandwidth in streaming kernels."""
    launch_s: float
    """Time a kernel needs beyond its work: launch latency and tail, back to back in one stream."""
    dispatch_s: float
    """Host time of the driver to launch one kernel; frameworks add their own (`Software.operator_s`)."""
    overlap_slowdown: float
    """How much slower compute runs while a collective shares the device."""
    context_bytes: float
    """Driver context, libraries' workspaces."""
    source: str
    basis: Basis = "literature"
    gemm_fraction_fp4: float = 0.7
    """Best large GEMM over the dense peak at 4 bits."""
    generation: str = ""
    """Name of the architecture generation."""
    flash_fa1_share: float = 1.0
    """Rate of the first generation of fused kernels (FlashAttention 1, Triton of its time) over the best."""
    flash_fa2_share: float = 1.0
    """Rate of the second generation over the best."""
    power_exponent: float = 0.0
    """Exponent of the rate of large products in the power per peak FLOP/s: 0 where the power limit does not bind."""
    power_w_per_tflop: float = 0.0
    """Power limit beyond `power_fixed_w` over dense 16-bit TFLOP/s of the device whose rates these are."""
    power_fixed_w: float = 0.0
    """Watts of the limit that memory, links and leakage take whatever the clock of products."""
    products: tuple[ProductCurve, ...] = ()
    """Rate curves by format, where kernels were timed over many shapes; others take `k_half` and a plain roofline."""
    flash_tail: float = 0.3
    """Share of the query block with the most keys that the device waits for at the end."""
    flash_dims: tuple[tuple[int, float], ...] = ()
    """Head dim, and the rate of fused attention over that of 128, where measured; others follow `flash_dim_half`."""
    flash_latent_share: float | None = None
    """The same where queries and keys are wider than values (192 and 128); None where it was not measured."""
    flash_trained_share: float = 1.0
    """Forward rate of fused attention that has a backward pass, over the best, where that is of inference alone."""
    burst_fraction: float = 0.0
    """`gemm_fraction` of products timed alone, on a cool device; 0 where it is not told from that in training."""

    def __post_init__(self) -> None:
        check = Check("kernel efficiency")
        for name in (
            "gemm_fraction",
            "gemm_fraction_fp8",
            "gemm_fraction_fp32",
            "flash_forward_fraction",
            "flash_backward_fraction",
            "memory_fraction",
            "flash_fa1_share",
            "flash_fa2_share",
            "gemm_fraction_fp4",
            "flash_trained_share",
        ):
            value = getattr(self, name)
            if check.positive(name, value):
                check.that(value <= 1, name, value, "is a fraction of the peak and cannot exceed 1")
        for name in (
            "launch_s",
            "dispatch_s",
            "k_half",
            "flash_keys_half",
            "flash_dim_half",
            "context_bytes",
            "power_exponent",
            "power_w_per_tflop",
            "power_fixed_w",
            "burst_fraction",
        ):
            value, most = getattr(self, name), MOST_EXPONENT if name == "power_exponent" else MOST
            if check.positive(name, value, zero=True):
                check.that(value <= most, name, value, f"must be at most {most:g}")
        check.positive("flash_tail", self.flash_tail, zero=True)
        dims = [dim for dim, _ in self.flash_dims]
        if all(check.whole("flash_dims", dim) for dim in dims):
            grow = all(one < other for one, other in pairwise(dims))
            check.that(grow, "flash_dims", dims, "head dims must grow from one to the next")
        for dim, rate in self.flash_dims:
            check.positive(f"flash_dims.{dim}", rate)
        check.whole("tile_m", self.tile_m)
        check.whole("tile_n", self.tile_n)
        check.that(self.overlap_slowdown >= 1, "overlap_slowdown", self.overlap_slowdown, "must be at least 1")
        check.done()

    @property
    def blas_workspace_bytes(self) -> float:
        """Scratch memory of cuBLAS for each thread that issues products, as PyTorch sets it up.

        Source: parseChosenWorkspaceSize in aten/src/ATen/cuda/CublasHandlePool.cpp: 8.125 MiB, since Hopper 32.
        """
        return EARLY_BLAS_WORKSPACE_BYTES if self.generation in BEFORE_HOPPER else BLAS_WORKSPACE_BYTES

    @property
    def workspace_bytes(self) -> float:
        """Scratch memory of matrix libraries in the framework's allocator, whatever the model: cuBLAS for two threads,
        the interpreter's and autograd's, and once for layers with a library of their own.

        Source: get_cublas_workspace_size_bytes of Transformer Engine (cpp_extensions/gemm.py): 4 MiB, since Hopper 32.
        """
        layers_bytes = 4 * MIB if self.generation in BEFORE_HOPPER else 32 * MIB
        return BLAS_THREADS * self.blas_workspace_bytes + layers_bytes

    @property
    def sustained_clock(self) -> float:
        """Clock in training over that in bursts: gemm_fraction / burst_fraction, at most 1.

        Attention and products of other formats, whose kernels are timed in bursts too, slow down by it as products of
        16 bits do: power and heat bind all of them. Kernels that stream wait for memory, whose clock stays.

        Source: flashinfer-ai/flashinfer, pull request 2899, 2026-03: attention on B200, kernel after kernel, brings the
        clock from 1,965 to about 1,580 MHz within 5 ms and costs 15% of its rate.
        """
        return min(1.0, self.gemm_fraction / self.burst_fraction) if self.burst_fraction else 1.0

    def product_fraction(self, element_bytes: float) -> float:
        """Share of the dense peak that the best large GEMM of a format reaches in training.

        Args:
            element_bytes: bytes of an element of its inputs; formats of other than 16 bits run at the clock of those.
        """
        if element_bytes == 2:
            return self.gemm_fraction
        alone = {8.0: self.gemm_fraction_fp32, 4.0: self.gemm_fraction_fp32, 0.5: self.gemm_fraction_fp4}
        return alone.get(element_bytes, self.gemm_fraction_fp8) * self.sustained_clock

    def product_curve(self, dtype: str) -> ProductCurve:
        """The curve of products in a format; without one, `k_half` and the larger of compute and memory.

        Args:
            dtype: the number format of the inputs.
        """
        known = PRODUCT_CURVE.get(dtype, dtype)
        for curve in self.products:
            if curve.dtype == known:
                return curve
        return ProductCurve(dtype=dtype, k_half=self.k_half, joint=math.inf)

    def flash_dim_cost(self, qk_dim: float, v_dim: float) -> float:
        """Seconds of a multiply-add of fused attention over those of endless heads: 1 + dim_half / d by the law.

        Where rates were measured, that of 128 over the rate of d = (qk_dim + v_dim) / 2 between them.

        Args:
            qk_dim: the head size of queries and keys of queries and keys.
            v_dim: the head size of values of values.
        """
        width = (qk_dim + v_dim) / 2
        at_128 = 1 + self.flash_dim_half / 128
        if qk_dim > v_dim and self.flash_latent_share is not None:
            return at_128 / self.flash_latent_share
        if not self.flash_dims:
            return 1 + self.flash_dim_half / width
        dims, rates = zip(*self.flash_dims, strict=True)
        return float(at_128 / np.interp(math.log(width), np.log(dims), rates))


@hashed_once
@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceSpec(HashedOnce):
    """One accelerator as frameworks see it (one rank)."""

    name: str
    vendor: str
    year: int
    peak_flop_per_s: tuple[tuple[str, float], ...]
    """Dense peaks by dtype, as pairs."""
    memory_bytes: float
    memory_bandwidth_bytes_per_s: float
    units: int
    """Streaming multiprocessors, compute units or cores: what a wave of tiles fills."""
    host_bandwidth_bytes_per_s: float
    """Device to host memory, per direction."""
    efficiency: KernelEfficiency
    aliases: tuple[str, ...] = ()
    power_w: float | None = None
    """Power limit."""
    idle_power_w: float | None = None
    """While it waits, as measured; None where nobody measured it, and its limit bounds it."""
    price_per_hour: float | None = None
    provenance: tuple[tuple[str, Provenance], ...] = ()
    """Source and basis by field name."""
    notes: str = ""
    unified_memory: bool = False
    """The processor of the host and the device share one memory, and no copies pass between them."""
    any_operand_order: bool = False
    """8-bit products read either operand as it is stored, so that weights with one scale need no transposed copy."""
    host_issue: float = 1.0
    """Time the processor it is built together with takes to issue an operator, over that of a Xeon's core."""
    node: NodeDefaults | None = None

    def __post_init__(self) -> None:
        check = Check(f"device {self.name}")
        for dtype, peak in self.peak_flop_per_s:
            check.positive(f"peak_flop_per_s.{dtype}", peak)
        for name in ("memory_bytes", "memory_bandwidth_bytes_per_s", "host_bandwidth_bytes_per_s"):
            check.positive(name, getattr(self, name))
        check.positive("host_issue", self.host_issue)
        check.whole("units", self.units)
        check.that(bool(self.peak_flop_per_s), "peak_flop_per_s", {}, "must hold at least one dtype")
        if self.power_w is not None and self.efficiency.power_exponent:
            fixed_w = self.efficiency.power_fixed_w
            rule = (
                f"leaves nothing beyond the {fixed_w:g} W (power_fixed_w) that memory, links and leakage take; "
                "state fewer, or power_exponent = 0 where the limit does not bind"
            )
            check.that(self.power_w > fixed_w, "power_w", self.power_w, rule)
        check.done()

    def peak(self, dtype: str) -> float | None:
        """Dense FLOP/s in a dtype, or None where the device cannot compute in it."""
        peaks = dict(self.peak_flop_per_s)
        return peaks.get(dtype) or peaks.get(PEAK_DTYPE.get(dtype, dtype))

    def basis_of(self, field_name: str) -> Provenance:
        """Where a field's number comes from."""
        known = dict(self.provenance)
        return known.get(field_name) or Provenance(basis="assumed", source="not stated")


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkProtocols:
    """What collectives over a scale-up link take beside its bandwidth, where they were timed over sizes and ranks."""

    base_s: float
    """One collective in the protocol of long messages, whatever its steps."""
    quick_base_s: float
    """The same in the protocols of short messages, which send flags with the data."""
    quick_step_s: float
    """One step of them."""
    quick_share: float
    """Bandwidth they reach, over that of long messages."""
    few_ranks: float
    """c of n ranks reaching 1 - c / n of the bandwidth of many, up to the `RANKS` that were timed."""
    in_switch_s: float
    """One reduction in the switch, on top of the base."""

    RANKS: ClassVar[int] = 8

    def __post_init__(self) -> None:
        check = Check("link protocols")
        for name in ("base_s", "quick_base_s", "quick_step_s", "few_ranks", "in_switch_s"):
            check.positive(name, getattr(self, name), zero=True)
        check.positive("quick_share", self.quick_share)
        check.that(self.few_ranks <= 1, "few_ranks", self.few_ranks, "leaves two ranks less than half of the bandwidth")
        check.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDefaults:
    """The node a device usually comes in, used where the cluster does not say."""

    devices_per_node: int
    scaleup_domain: int
    """Devices joined by the scale-up link; may exceed the node (NVL72) or be less (PCIe cards: 1)."""
    scaleup_name: str
    scaleup_bytes_per_s: float
    """Nominal, per device and direction."""
    scaleup_efficiency: float
    scaleup_latency_s: float
    scaleup_in_switch_efficiency: float
    """Share of the nominal bandwidth that a reduction in the switch reaches (NVLink SHARP); 0 where it does not add."""
    scaleup_topology: Literal["switch", "mesh", "torus"] = "switch"
    host_name: str
    host_bytes_per_s: float
    """Bandwidth between devices of one node outside the scale-up domain."""
    host_efficiency: float = 0.75
    """Large-message share of it that collectives reach; half where drivers allow no peer copies (GeForce)."""
    fabric_name: str
    fabric_bytes_per_s: float
    """Nominal, per device and direction."""
    fabric_shared: bool = False
    """Whether it is a share of one port, which a node has however many devices it holds."""
    fabric_efficiency: float
    fabric_latency_s: float
    scaleup_protocols: LinkProtocols | None = None
    """None where nobody timed them: one line of latency and bandwidth then stands for every size."""
    provenance: tuple[tuple[str, Provenance], ...] = field(default=())

    def fabric_share(self, devices: int) -> float:
        """Bytes per second and direction that each device of a node has of the fabric.

        Args:
            devices: devices of the node, which need not be as many as usual.
        """
        return self.fabric_bytes_per_s * (self.devices_per_node / devices if self.fabric_shared else 1.0)
