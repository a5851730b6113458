"""Seconds of what mixes tokens, on one rank: attention, scores that pick keys, recurrences."""

from __future__ import annotations

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.kernels import compute
from meshwright.kernels.compute import Amount
from meshwright.shapes import Int
from meshwright.specs.device import KernelEfficiency
from meshwright.specs.operators import CoreAttention, Scan, Scores
from meshwright.strategies.base import LocalAttention, LocalScan, LocalScores

# Elements of 16 bits in the 16 bytes on which tensor cores want rows to start. Source: NVIDIA, "Matrix Multiplication
# Background User's Guide", tensor core requirements.
ALIGNED = 8
# Fused attention kernels are compiled for head dims in steps of this. Source: Dao-AILab/flash-attention, README.
FLASH_PAD = 32
# A tanh of each score beside its exponential, of the same units. Source: Shah et al. 2024 (FlashAttention-3), section
# 3.2, on the rate of special functions.
CAPPED_EXPONENTIALS = 2.0
# What kernels of scans reach, of the rate of large products and of the rate of streams: the five kernels of Mamba-2 on
# H100 do 94-109 TFLOP/s (vllm-project/vllm#27299, 2025-10), FLA's delta rule and retention move 1.5-4 TB/s on H800 and
# B200 (pytorch/helion, examples/linear/BENCHMARKS.md, 2026-07). Newer kernels take half or a third (QwenLM/FlashQLA,
# 2026): plans of models with scans state a range this wide.
SCAN_SHARE, SCAN_STREAM_SHARE = 0.16, 0.75
# Rate of a product over that of the forward one of its shape, alone and as many experts' in one launch: the gradient
# of weights reads both operands along their rows and adds to what is there, and kernels of groups are tuned less.
# Geometric means over A100 and B200 at the shapes of layers, of groups without the starts of their kernels, which are
# priced by themselves. Source: MooreThreads/SimuMax v1.2, configs/system, timed with Transformer Engine, 2026-08: 311
# products and 36 of groups.
LAYOUT_SHARES = {"forward": (1.0, 0.96), "input_gradient": (1.0, 0.89), "weight_gradient": (0.96, 0.86)}
DROPOUT_PASSES = 2.5
"""Passes over the scores of dropout in one direction: read and written, and a byte of its mask."""
SCORE_BYTES = 4.0
"""Sums of scores over heads are written and read in 32 bits."""
STATE_BYTES = 4.0


def roof(hardware: Hardware, peak_flop_per_s: float, fraction: float, kernels: int = 1) -> compute.Roof:
    """Roofline of a device for so many kernels one after the other, at a fraction of a peak."""
    return compute.Roof(
        peak_flop_per_s=peak_flop_per_s,
        max_fraction=fraction,
        memory_bytes_per_s=hardware.achieved_memory_bytes_per_s,
        launch_s=kernels * hardware.efficiency.launch_s,
    )


def materialised_s(
    op: CoreAttention, local: LocalAttention, hardware: Hardware, element_bytes: float, *, backward: bool
) -> Amount:
    """Attention whose scores are written, in one direction.

    Args:
        op: the operator of the whole layer.
        local: its share on one rank.
        hardware: the hardware of the rank.
        element_bytes: the element bytes of queries, keys, values and scores.
        backward: the backward pass.
    """
    # Rows of heads that do not start on 16 bytes cannot be read by tensor cores.
    aligned = op.head_dim % ALIGNED == 0 and op.value_dim % ALIGNED == 0
    peak = hardware.attention_flop_per_s if aligned else hardware.scalar_flop_per_s
    return compute.materialised_attention_s(
        _shape(local, op.head_dim, op.value_dim),
        backward=backward,
        roof=roof(hardware, peak, hardware.head_fraction, kernels=4),
        softmax_passes=(3.0 if backward else 2.0) * hardware.software.score_passes + DROPOUT_PASSES * op.dropout,
        score_bytes=element_bytes,
    )


def fused_s(
    op: CoreAttention, local: LocalAttention, hardware: Hardware, element_bytes: float, *, backward: bool
) -> Amount:
    """Fused attention in one direction; arguments as `materialised_s`."""
    efficiency = hardware.efficiency
    qk_dim, v_dim = (-(-dim // FLASH_PAD) * FLASH_PAD for dim in (op.head_dim, op.value_dim))
    exponentials = flash_dim_half(op, efficiency, qk_dim, v_dim)
    return compute.flash_attention_s(
        _shape(local, qk_dim, v_dim),
        backward=backward,
        roof=roof(hardware, hardware.attention_flop_per_s, hardware.flash_fraction(backward=backward)),
        blocks=compute.AttentionBlocks(
            queries=efficiency.flash_tile,
            units=hardware.units,
            dim_half=exponentials,
            keys_half=efficiency.flash_keys_half,
            tail=efficiency.flash_tail,
        ),
        element_bytes=element_bytes,
    )


def flash_dim_half(op: CoreAttention, efficiency: KernelEfficiency, qk_dim: int, v_dim: int) -> float:
    """Head dims that a pair costs beyond its multiply-adds, as `compute.AttentionBlocks` takes them.

    Args:
        op: the operator whose scores may be capped.
        efficiency: the efficiency of the device.
        qk_dim: the number of head size of queries and keys of queries and keys, as the kernel pads them.
        v_dim: the number of head size of values of values.
    """
    beside = (efficiency.flash_dim_cost(qk_dim, v_dim) - 1) * (qk_dim + v_dim) / 2
    return beside + efficiency.flash_dim_half * (CAPPED_EXPONENTIALS - 1 if op.capped else 0.0)


def layout_share(phase: str, groups: Amount | Int[np.ndarray, "rows"]) -> Amount:
    """Rate of a product in a phase over that of a plain forward one of its shape.

    Args:
        phase: `forward`, `input_gradient` or `weight_gradient`.
        groups: products in one launch, per row.
    """
    alone, grouped = LAYOUT_SHARES[phase]
    if isinstance(groups, float | int):
        return grouped if groups > 1 else alone
    share: Amount = np.where(np.greater(groups, 1), grouped, alone)
    return share


def tiles(hardware: Hardware, dtype: str) -> compute.Tiles:
    """How a device's libraries cut products whose inputs are in a format.

    Args:
        hardware: the hardware of the rank.
        dtype: the number format of the inputs.
    """
    efficiency = hardware.efficiency
    curve = efficiency.product_curve(dtype)
    return compute.Tiles(
        m=efficiency.tile_m,
        n=efficiency.tile_n,
        units=hardware.units,
        k_half=curve.k_half,
        wave_loss=hardware.software.wave_loss,
        joint=curve.joint,
    )


def _shape(local: LocalAttention, qk_dim: int, v_dim: int) -> compute.AttentionShape:
    return compute.AttentionShape(
        pairs=local.pairs,
        query_len=local.query_len,
        key_len=local.key_len,
        batch=local.batch,
        heads=local.heads,
        kv_heads=local.kv_heads,
        qk_dim=qk_dim,
        v_dim=v_dim,
    )


def scores_s(op: Scores, local: LocalScores, hardware: Hardware, *, back: bool) -> Amount:
    """Scores that pick keys, as products in the compute format, and the picking, which reads the sums over heads once.

    Backward, scores are compared with those of the attention on the picked keys alone, with two products each.

    Args:
        op: the operator of the whole layer.
        local: its share on one rank.
        hardware: the hardware of the rank.
        back: the backward pass.

    Source: DeepSeek-V3.2-Exp report, 2025-09, section 2.1.
    """
    from meshwright.kernels.scans import scan_s  # most models attend to keys alone

    pairs = 2.0 * local.picked_pairs if back else local.pairs
    return scan_s(
        2.0 * op.heads * op.dim * pairs,
        2.0 * op.heads * pairs,
        2.0 * SCORE_BYTES * pairs / op.block,
        roof=roof(hardware, hardware.gemm_flop_per_s, hardware.gemm_fraction, kernels=3),
        scalar_flop_per_s=hardware.scalar_flop_per_s,
    )


def recurrence_s(op: Scan, local: LocalScan, hardware: Hardware, element_bytes: float, *, backward: bool) -> Amount:
    """A recurrence in one direction: products of chunks at a share of what large products reach.

    Args:
        op: the operator of the whole layer.
        local: its share on one rank.
        hardware: the hardware of the rank.
        element_bytes: the element bytes of what is read and written.
        backward: the backward pass, which also makes the states again.
    """
    from meshwright.kernels.scans import scan_s  # most models attend to keys alone

    amount = local.tokens * local.heads
    passes = 2 if backward else 1
    elements = op.backward_elements if backward else op.forward_elements
    states_bytes = passes * 2.0 * op.state * STATE_BYTES / op.chunk
    return scan_s(
        amount * (op.backward_flop if backward else op.forward_flop),
        amount * (op.backward_scalar_flop if backward else op.forward_scalar_flop),
        amount * (elements * element_bytes + states_bytes) / SCAN_STREAM_SHARE,
        roof=roof(hardware, hardware.head_flop_per_s, SCAN_SHARE * hardware.head_fraction, passes * int(op.kernels)),
        scalar_flop_per_s=SCAN_SHARE * hardware.scalar_flop_per_s,
    )
