"""A layer priced operator by operator: seconds, FLOP, bytes and messages of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.groups import Groups
from meshwright.estimate.layers.work import LayerPricing
from meshwright.estimate.layers.work_seconds import ModuleSeconds
from meshwright.kernels.algorithms import all_reduce_bus_factor, gather_bus_factor
from meshwright.shapes import Rows
from meshwright.specs.operators import CoreAttention, Linear, Scan, Scores, Vector
from meshwright.strategies.base import Call, LocalAttention, LocalGemm, LocalScan, LocalScores
from meshwright.strategies.columns import region_scale

PHASES = ("forward", "input gradient", "weight gradient", "recompute")


@dataclass(slots=True, kw_only=True)
class OperatorCost:
    """One operator in one phase, on one device."""

    name: str
    module: str
    phase: str
    kind: str
    """`product`, `attention`, `scores`, `scan` or `stream`."""
    seconds: float = 0.0
    flop: float = 0.0
    moved_bytes: float = 0.0
    """Each operand once."""
    peak_flop_per_s: float = 0.0
    """Peak of the device in the format of the operator; 0 where it multiplies nothing."""

    def light_s(self, hardware: Hardware) -> float:
        """Seconds at the peak of the device and the full bandwidth of its memory: max(flop / peak, bytes / bandwidth).

        Args:
            hardware: the device.
        """
        compute_s = self.flop / self.peak_flop_per_s if self.peak_flop_per_s else 0.0
        return max(compute_s, self.moved_bytes / hardware.memory_bytes_per_s)


@dataclass(slots=True, kw_only=True)
class Message:
    """One kind of exchange, on one device."""

    category: str
    """`tp`, `cp`, `ep`, or `dp` of the step."""
    collective: str
    phase: str
    ranks: int
    payload_bytes: float
    """Bytes of one exchange, as nccl-tests counts them."""
    bus_bytes_per_s: float
    """Bus bandwidth, as nccl-tests prints it."""
    domain: int
    """Level of links that holds the whole group, innermost 0."""
    calls: float = 0.0
    seconds: float = 0.0
    """Alone, hidden or not."""


def bus_factor(collective: str, ranks: int) -> float:
    """What nccl-tests multiplies S / seconds by."""
    if collective == "send":
        return 1.0
    return float(all_reduce_bus_factor(ranks) if collective == "all_reduce" else gather_bus_factor(ranks))


class WatchedPricing(LayerPricing):
    """Prices a layer and writes down what each operator adds; one row."""

    def __init__(self, *arguments: Any, quantised: bool) -> None:
        super().__init__(*arguments, quantised=quantised)
        self.costs: dict[tuple[str, str, str], OperatorCost] = {}
        self.messages: list[Message] = []
        self._op: Any = None
        self._kind = ""

    def gemm(self, op: Linear, local: LocalGemm, module: ModuleSeconds, seconds: Sequence[Rows]) -> None:
        """A product and its gradients."""
        self._op, self._kind, times = op, "product", float(np.ravel(self._tiles(op))[0])
        for phase, (*sizes, output_bytes, quantised) in zip(PHASES, self.products(op, local), strict=False):
            rows, width, depth, many = (float(np.ravel(np.asarray(size, dtype=float))[0]) for size in sizes)
            element = self.precision.bytes_of("compute") if quantised else self.activation_bytes
            cost = self._cost(phase)
            cost.peak_flop_per_s = self.hardware.gemm_flop_per_s if quantised else self.hardware.head_flop_per_s
            cost.flop += times * many * 2.0 * rows * width * depth
            moved = (rows * depth + depth * width) * element + rows * width * output_bytes
            cost.moved_bytes += times * many * moved
        super().gemm(op, local, module, seconds)

    def attention(self, op: CoreAttention, module: ModuleSeconds) -> None:
        """Attention between queries and keys."""
        self._op, self._kind = op, "attention"
        super().attention(op, module)

    def scores(self, op: Scores, module: ModuleSeconds) -> None:
        """Scores that pick keys."""
        self._op, self._kind = op, "scores"
        super().scores(op, module)

    def scan(self, op: Scan, module: ModuleSeconds) -> None:
        """A recurrence."""
        self._op, self._kind = op, "scan"
        super().scan(op, module)

    def vector(self, op: Vector, top_k: float, module: ModuleSeconds) -> None:
        """An operator that streams."""
        self._op, self._kind = op, "stream"
        size = 4.0 if op.fp32 else self.activation_bytes
        scale = float(np.ravel(region_scale(op.region, self.columns, top_k))[0]) * size
        self._cost("forward").moved_bytes += scale * op.forward_elements
        self._cost("input gradient").moved_bytes += scale * op.backward_elements
        super().vector(op, top_k, module)

    def watch(self, op: CoreAttention | Scores | Scan, local: LocalAttention | LocalScores | LocalScan) -> None:
        """FLOP and bytes of what mixes tokens, as its kernel counts them."""
        for back in (False, True):
            flop, moved, peak = self._mixed(op, local, back)
            cost = self._cost("input gradient" if back else "forward")
            cost.flop, cost.moved_bytes, cost.peak_flop_per_s = cost.flop + flop, cost.moved_bytes + moved, peak

    def _mixed(self, op: Any, local: Any, back: bool) -> tuple[float, float, float]:
        def one(value: Any) -> float:
            return float(np.ravel(np.asarray(value, dtype=float))[0])

        hardware = self.hardware
        if isinstance(op, CoreAttention):
            width = op.head_dim + op.value_dim
            multiply_adds = 3 * op.head_dim + 2 * op.value_dim if back else width
            flop = 2.0 * one(local.batch) * one(local.heads) * one(local.pairs) * multiply_adds
            rows = one(local.heads) * one(local.query_len) + one(local.kv_heads) * one(local.key_len)
            moved = one(local.batch) * width * rows * self.activation_bytes * (2.5 if back else 1.0)
            return flop, moved, hardware.attention_flop_per_s
        if isinstance(op, Scores):
            pairs = 2.0 * one(local.picked_pairs) if back else one(local.pairs)
            return 2.0 * op.heads * op.dim * pairs, 8.0 * pairs / op.block, hardware.gemm_flop_per_s
        amount = one(local.tokens) * one(local.heads)
        elements, flop = (op.backward_elements, op.backward_flop) if back else (op.forward_elements, op.forward_flop)
        return amount * flop, amount * elements * self.activation_bytes, hardware.head_flop_per_s

    def add(
        self,
        module: ModuleSeconds,
        forward: Rows,
        input_gradient: Rows,
        weight_gradient: Rows,
        issued: tuple[Rows | float, Rows | float] | None = None,
    ) -> None:
        """Count an operator's compute, by phase."""
        for phase, seconds in zip(PHASES, (forward, input_gradient, weight_gradient), strict=False):
            if seconds is not self.zero:
                self._cost(phase).seconds += float(np.ravel(seconds)[0])
        super().add(module, forward, input_gradient, weight_gradient, issued)

    def call_s(self, call: Call, phases: dict[str, Rows], groups: Groups | None = None) -> Rows | None:
        """Exposed seconds of a call; what it takes alone is written down."""
        groups = groups or self.groups
        alone = groups.seconds(call)
        if alone is not None and float(np.ravel(alone)[0]) > 0:
            self._write(call, float(np.ravel(alone)[0]), *groups.members(call))
        return super().call_s(call, phases, groups)

    def _write(self, call: Call, alone_s: float, ranks: int, domain: int) -> None:
        payload, repeats = (
            float(np.ravel(np.asarray(value, dtype=float))[0]) for value in (call.payload_bytes, call.repeats)
        )
        self.messages.append(
            Message(
                category=call.category,
                collective=call.kind,
                phase=call.phase,
                ranks=ranks,
                payload_bytes=payload,
                bus_bytes_per_s=bus_factor(call.kind, ranks) * payload * repeats / alone_s,
                domain=domain,
                calls=repeats,
                seconds=alone_s,
            )
        )

    def _cost(self, phase: str) -> OperatorCost:
        op = self._op
        key = (op.module, op.name, phase)
        if key not in self.costs:
            self.costs[key] = OperatorCost(name=op.name, module=op.module, phase=phase, kind=self._kind)
        return self.costs[key]
