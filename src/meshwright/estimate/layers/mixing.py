"""Seconds of what mixes tokens, on one rank: attention, scores that pick keys, recurrences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers import mixing
from meshwright.estimate.layers.groups import Groups
from meshwright.estimate.layers.work_seconds import CoreParts, LayerSums, ModuleSeconds
from meshwright.estimate.sequences import (
    dynamic_levels,
    fullest_pairs,
    lockstep_pairs,
    pairs_of_row,
    scored_pairs,
)
from meshwright.kernels import compute
from meshwright.kernels.compute import Amount
from meshwright.shapes import Int
from meshwright.specs.device import KernelEfficiency
from meshwright.specs.operators import CoreAttention, Scan, Scores
from meshwright.specs.precision import Precision
from meshwright.specs.workload import Workload
from meshwright.strategies import context
from meshwright.strategies.base import LocalAttention, LocalScan, LocalScores
from meshwright.strategies.columns import StrategyColumns

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


class MixingPricing(LayerSums):
    """Sums of a layer, with the prices of those operators that read other tokens than they write."""

    def __init__(
        self, columns: StrategyColumns, hardware: Hardware, workload: Workload, groups: Groups | None = None
    ) -> None:
        super().__init__(columns, hardware, groups)
        self.text, self.columns, self.workload = columns, columns, workload
        self.precision: Precision = workload.precision
        self.activation_bytes = self.precision.bytes_of("activations")

    def watch(self, op: CoreAttention | Scores | Scan, local: LocalAttention | LocalScores | LocalScan) -> None:
        """Called with what falls to one rank, for subclasses that record it; sums do not need it."""

    def attention(self, op: CoreAttention, module: ModuleSeconds) -> None:
        """Attention between queries and keys."""
        columns = self.columns
        materialised = self.workload.attention_kernel == "materialised"
        seq = float(columns.seq_len)
        if materialised:
            pairs = seq * (seq if op.keys is None else op.keys.count)
        else:
            pairs = pairs_of_row(op, self.workload, seq)
        repeated = self.hardware.software.repeats_keys
        local = context.shard_attention(
            op, columns, pairs, self.activation_bytes, materialised=materialised, repeated=repeated
        )
        flop = 2.0 * local.batch * local.heads * local.pairs * (op.head_dim + op.value_dim)
        uneven = columns.data_ranks is not None and not materialised
        loaded = fullest_pairs(op, columns, self.workload) if uneven else self.zero + 1.0
        if uneven:
            local = replace(local, pairs=local.pairs * loaded)
        self.watch(op, local)
        core_s = mixing.materialised_s if materialised else mixing.fused_s
        forward, backward = (
            self.zero + core_s(op, local, self.hardware, self.activation_bytes, backward=back) for back in (False, True)
        )
        # Scores, softmax, dropout, values; with their gradients two products each. Fused: one kernel, and a second
        # backward that sums rows first.
        issued = (4.0, 6.0) if materialised else (1.0, 2.0)
        self.add(module, forward, backward, self.zero, issued)
        phases = {"forward": forward, "input_gradient": backward}
        if op.causal and not materialised and op.keys is None and (op.window, op.chunk) == (None, None):
            # Later tokens have more to do here; elsewhere all have alike, or no task to share.
            own = local.batch * self.activation_bytes
            self.core = CoreParts(
                self.core.query_bytes + own * local.query_len * local.heads * op.head_dim,
                self.core.key_bytes + own * local.query_len * local.kv_heads * (op.head_dim + op.value_dim),
                self.core.forward_s + forward,
                self.core.backward_s + backward,
                op.module,
            )
        if uneven:
            later = np.maximum(lockstep_pairs(op, columns, self.workload) / loaded - 1.0, 0.0)
            self.lockstep = self.lockstep[0] + forward * later, self.lockstep[1] + backward * later
            self.uneven = self.uneven[0] + forward / loaded, self.uneven[1] + backward / loaded
        if uneven and self.workload.dynamic_cp:
            for part, share in dynamic_levels(columns, self.workload):
                few = context.shard_attention(
                    op, part, pairs, self.activation_bytes, materialised=materialised, repeated=repeated
                )
                self.calls(few.calls, phases, module, groups=Groups(part, self.hardware), share=share)
        else:
            self.calls(local.calls, phases, module)
        self.count(module, flop)
        if materialised:
            scores = local.batch * local.heads * local.query_len * local.key_len
            self.transient = np.maximum(self.transient, scores * self.activation_bytes)
        gathered_heads = local.heads if repeated else local.kv_heads
        gathered = columns.mbs * gathered_heads * local.key_len * (2 * (op.head_dim + op.value_dim))
        self.transient = np.maximum(self.transient, gathered * self.activation_bytes * context.gathered_keys(columns))
        asked = columns.mbs * local.heads * local.query_len * columns.cp * (2 * (op.head_dim + op.value_dim))
        self.transient = np.maximum(self.transient, asked * self.activation_bytes * context.gathered_queries(columns))

    def scores(self, op: Scores, module: ModuleSeconds) -> None:
        """Scores that pick keys."""
        local = context.shard_scores(op, self.columns, scored_pairs(op, self.workload), self.activation_bytes)
        self.watch(op, local)
        forward, backward = (self.zero + mixing.scores_s(op, local, self.hardware, back=back) for back in (False, True))
        self.add(module, forward, backward, self.zero, (3.0, 3.0))
        self.calls(local.calls, {"forward": forward, "input_gradient": backward}, module)
        self.count(module, 2.0 * op.heads * op.dim * local.pairs)

    def scan(self, op: Scan, module: ModuleSeconds) -> None:
        """A recurrence."""
        local = context.shard_scan(op, self.columns, self.activation_bytes)
        self.watch(op, local)
        forward, backward = (
            self.zero + mixing.recurrence_s(op, local, self.hardware, self.activation_bytes, backward=back)
            for back in (False, True)
        )
        self.add(module, forward, backward, self.zero, (op.kernels, 2 * op.kernels))
        self.calls(local.calls, {"forward": forward, "input_gradient": backward}, module)
        self.count(module, local.tokens * local.heads * (op.forward_flop + op.forward_scalar_flop))
