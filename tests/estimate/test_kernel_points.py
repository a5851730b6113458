"""Latent attention and grouped products of experts against public timings of inference engines on one device.

Source: ai-dynamo/aiconfigurator, tables context_mla and moe of its systems, as of 2026-11; microseconds in 16 bits.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from functools import cache

import pytest

from meshwright.estimate.hardware import Hardware, hardware_of
from meshwright.estimate.layers import mixing
from meshwright.kernels import compute
from meshwright.library.clusters import resolve_gpus
from meshwright.specs.operators import CoreAttention
from meshwright.specs.workload import Workload
from meshwright.strategies.base import LocalAttention

LATENT = {
    # device: (heads, sequences, tokens, microseconds); queries and keys of 192, values of 128, causal, forward
    "H100": ((16, 4, 2048, 214.3), (16, 4, 8192, 2152.0), (128, 4, 2048, 1418.0), (128, 4, 8192, 17220.0)),
    "H200": ((16, 4, 2048, 210.4), (16, 4, 8192, 2069.0), (128, 4, 2048, 1389.0), (128, 4, 8192, 16940.0)),
    "B200": ((16, 4, 2048, 118.5), (16, 4, 8192, 969.4), (128, 4, 2048, 731.9), (128, 4, 8192, 7565.0)),
}
EXPERTS = {
    # device: (hidden, width, experts a token visits, experts, ranks, tokens, microseconds); routing balanced, forward
    "H100": (
        (7168, 2048, 8, 256, 1, 8192, 10910.0), (7168, 2048, 8, 256, 8, 8192, 1537.0),
        (4096, 1536, 8, 128, 1, 8192, 4109.0), (4096, 1536, 8, 128, 8, 8192, 582.6),
        (2048, 768, 8, 128, 1, 8192, 1305.0), (4096, 14336, 2, 8, 1, 8192, 7021.0),
    ),
    "B200": (
        (7168, 2048, 8, 256, 1, 8192, 4875.0), (7168, 2048, 8, 256, 8, 8192, 769.9),
        (4096, 1536, 8, 128, 1, 8192, 1810.0), (4096, 1536, 8, 128, 8, 8192, 299.8),
    ),
}  # fmt: skip


@cache
def hardware(device: str) -> Hardware:
    return hardware_of(resolve_gpus(f"8x{device}").groups[0], Workload(seq_len=4096, global_batch=8))


def latent_s(device: str, heads: int, sequences: int, tokens: int) -> float:
    op = CoreAttention(
        name="", module="", heads=heads, kv_heads=heads, head_dim=192, value_dim=128, window=None, causal=True
    )
    local = LocalAttention(
        batch=sequences, heads=heads, kv_heads=heads, query_len=tokens, key_len=tokens, pairs=tokens * (tokens + 1) / 2
    )
    here = hardware(device)
    # Engines time kernels of inference alone, on a device that does nothing else.
    best = replace(here, attention_clock=1.0, efficiency=replace(here.efficiency, flash_trained_share=1.0))
    return float(mixing.fused_s(op, local, best, 2.0, backward=False))


def experts_s(device: str, hidden: int, width: int, top_k: int, experts: int, ranks: int, tokens: int) -> float:
    """Two grouped products, and the rows that permutation and activation move between them."""
    here = hardware(device)
    groups, rows = experts / ranks, tokens * top_k / ranks

    def product_s(wide: int, deep: int) -> float:
        return float(
            compute.gemm_s(
                rows / groups,
                wide,
                deep,
                groups=groups,
                roof=mixing.roof(here, here.gemm_flop_per_s, here.gemm_fraction),
                tiles=compute.Tiles(
                    m=here.efficiency.tile_m,
                    n=here.efficiency.tile_n,
                    units=here.units,
                    k_half=here.efficiency.k_half,
                ),
                input_bytes=2,
                output_bytes=2,
            )
        )

    moved_bytes = 2.0 * rows * (4 * hidden + 3 * width)
    return product_s(2 * width, hidden) + product_s(hidden, width) + moved_bytes / here.achieved_memory_bytes_per_s


@pytest.mark.parametrize("device", LATENT)
def test_latent_attention_takes_about_as_long_as_measured(device: str) -> None:
    errors = [abs(math.log(latent_s(device, *shape) * 1e6 / taken)) for *shape, taken in LATENT[device]]
    assert statistics.median(errors) < 0.25
    assert max(errors) < 0.6


@pytest.mark.parametrize("device", EXPERTS)
def test_experts_take_about_as_long_as_measured(device: str) -> None:
    errors = [abs(math.log(experts_s(device, *shape) * 1e6 / taken)) for *shape, taken in EXPERTS[device]]
    assert statistics.median(errors) < 0.3
    assert max(errors) < 0.6


def test_gradients_of_weights_of_experts_are_the_slowest_products() -> None:
    alone, grouped = (
        [float(mixing.layout_share(phase, groups)) for phase in ("forward", "input_gradient", "weight_gradient")]
        for groups in (1, 8)
    )
    assert alone[:2] == [1.0, 1.0]
    assert sorted(grouped, reverse=True) == grouped
    assert all(many < one for many, one in zip(grouped, alone, strict=True))
