"""Seconds of what mixes the tokens of a layer: attention, scores that pick its keys, recurrences.

One row or a million rows: the same functions.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers import mixing
from meshwright.estimate.layers.groups import Groups
from meshwright.estimate.layers.work_seconds import CoreParts, LayerSums, ModuleSeconds
from meshwright.estimate.sequences import (
    attended_pairs,
    dynamic_levels,
    fullest_pairs,
    lockstep_pairs,
    pairs_of_row,
    scored_pairs,
)
from meshwright.specs.operators import CoreAttention, Scan, Scores
from meshwright.specs.precision import Precision
from meshwright.specs.workload import Workload
from meshwright.strategies import context
from meshwright.strategies.base import LocalAttention, LocalScan, LocalScores
from meshwright.strategies.columns import StrategyColumns


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
        text = self.columns is self.text and op.keys is None
        if text:
            pairs = seq * seq if materialised else pairs_of_row(op, self.workload)
        else:
            pairs = seq * seq if materialised and op.keys is None else attended_pairs(op, seq)
        repeated = self.hardware.software.repeats_keys
        local = context.shard_attention(
            op, columns, pairs, self.activation_bytes, materialised=materialised, repeated=repeated
        )
        flop = 2.0 * local.batch * local.heads * local.pairs * (op.head_dim + op.value_dim)
        uneven = text and columns.data_ranks is not None and not materialised
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
