"""What a layer's work costs under strategies, one row each, and how it sums up operator by operator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.groups import Groups
from meshwright.kernels import compute
from meshwright.kernels.overlap import exposed_s
from meshwright.shapes import Bool, Rows
from meshwright.strategies.base import Call
from meshwright.strategies.columns import Column, StrategyColumns

CELLS_TOGETHER = 4096
"""Products times rows that are priced as one array: more would leave the cache, fewer cost mostly calls."""
ALL = 1.0
"""The share of tokens where all take part."""


class Product(NamedTuple):
    """Matrix products of [m, k] and [k, n] that one launch computes."""

    m: Column
    n: Column
    k: Column
    groups: Column
    """Number of the products."""
    output_bytes: float
    """Bytes per element written."""
    quantised: bool
    """Whether they run in the compute format."""


class Device(NamedTuple):
    """What products in one format run against."""

    roof: compute.Roof
    tiles: compute.Tiles
    input_bytes: float
    """Bytes per element read."""


def products_s(products: Sequence[Product], rows: int, device: Callable[[bool], Device]) -> list[Rows]:
    """Seconds of each of these launches; those of few rows are priced together.

    Args:
        products: the products of one layer.
        rows: the number of rows that each has, or one number for all.
        device: the device for products in the compute format, and for others.
    """
    found: list[Rows] = [np.zeros(rows)] * len(products)
    each = max(1, CELLS_TOGETHER // max(rows, 1))
    for quantised in (True, False):
        own = [number for number, product in enumerate(products) if product.quantised is quantised]
        for low in range(0, len(own), each):
            part = own[low : low + each]
            seconds = _together([products[number] for number in part], rows, device(quantised))
            for number, one in zip(part, seconds, strict=True):
                found[number] = one
    return found


def _together(products: Sequence[Product], rows: int, device: Device) -> Iterable[Rows]:
    """Seconds of products in one format."""
    sizes: Sequence[Column] = products[0][:4]
    output_bytes: Column = products[0].output_bytes
    if len(products) > 1:
        table = np.empty((4, len(products), rows))
        for number, product in enumerate(products):
            for size, own in zip(table, product, strict=False):
                size[number] = own
        sizes = list(table)
        output_bytes = np.array([[product.output_bytes] for product in products])
    m, n, k, groups = (np.asarray(size, dtype=float) for size in sizes)
    seconds = compute.gemm_s(
        m,
        n,
        k,
        groups=groups,
        roof=device.roof,
        tiles=device.tiles,
        input_bytes=device.input_bytes,
        output_bytes=output_bytes,
    )
    return list(np.asarray(seconds)) if len(products) > 1 else [seconds + np.zeros(rows)]


@dataclass(slots=True)
class ModuleSeconds:
    """Forward seconds of one recomputable module, and the traffic it repeats."""

    compute_s: Rows
    tp_s: Rows
    cp_s: Rows
    ep_s: Rows
    flop: Rows
    """Multiply-adds twice."""
    operators: Rows | float = 0.0
    """Operators the host issues."""

    @classmethod
    def nothing(cls, rows: int) -> ModuleSeconds:
        """No work, as many rows of it."""
        zero = np.zeros(rows)
        return cls(zero, zero, zero, zero, zero)


@dataclass(slots=True)
class WorkSeconds:
    """Seconds per micro-batch of one layer, per row; communication is what stays exposed."""

    forward: ModuleSeconds
    backward: ModuleSeconds
    weight_gradient_s: Rows
    """Part of the backward compute that no other worker waits for."""
    by_module: dict[str, ModuleSeconds]
    """Forward work by module name, for selective recompute."""
    dense_parameters: Rows
    expert_parameters: Rows
    dense_tensors: Rows | float
    """Parameter tensors that are trained, of one rank."""
    expert_tensors: Rows | float
    replicated_parameters: Rows
    """Dense parameters whose gradients are summed over tensor ranks."""
    frozen_dense_bytes: Rows
    """Bytes of dense weights that are not trained, as they are stored."""
    frozen_expert_bytes: Rows
    transient_bytes: Rows
    """Working memory of the largest operator, forward or backward."""
    hidden_s: Rows
    """Exchanges that run beside another micro-batch: exposed, forward and backward together, where a forward or a
    backward has no partner."""
    stashed_bytes: Rows
    """Bytes that exchanges brought and that stay for backward, instead of exchanges that are repeated."""
    lockstep_s: tuple[Rows, Rows]
    """Waiting for the rank with most attended pairs, forward and backward, where ranks go layer by layer."""
    uneven_s: tuple[Rows, Rows]
    """The part of `lockstep_s` that differs between micro-batches: attention of a mean one, forward and backward."""
    core: CoreParts
    """Attention that other workers can share."""


@dataclass(slots=True)
class CoreParts:
    """Attention whose work grows along the sequence, of a micro-batch or its section on one rank."""

    query_bytes: Rows | float = 0.0
    """Bytes of the queries; the outputs have as many."""
    key_bytes: Rows | float = 0.0
    """Keys and values of as many tokens."""
    forward_s: Rows | float = 0.0
    backward_s: Rows | float = 0.0
    module: str = ""
    """Module of the attention, which recompute may repeat."""


@dataclass(slots=True)
class LayerCompute:
    """Seconds of a layer's compute by what may run beside an exchange, per row."""

    rows: int
    experts: dict[str, Rows] = field(default_factory=dict)
    """Seconds of routed experts, by phase."""
    shared: dict[str, Rows] = field(default_factory=dict)
    """Seconds of shared experts, by phase."""

    def add(self, what: dict[str, Rows], phase: str, seconds: Rows) -> None:
        """Count seconds of one of the two."""
        what[phase] = what.get(phase, np.zeros(self.rows)) + seconds

    def of(self, what: dict[str, Rows], phase: str) -> Rows:
        """What was counted, 0 where nothing was."""
        return what.get(phase, np.zeros(self.rows))


class LayerSums:
    """Sums over the operators of one layer while they are priced, one by one."""

    def __init__(self, columns: StrategyColumns, hardware: Hardware, groups: Groups | None) -> None:
        """Nothing yet.

        Args:
            columns: strategies, one per row.
            hardware: the device and its links.
            groups: those of the strategies, where other layers have asked for them.
        """
        self.hardware = hardware
        self.groups = groups or Groups(columns, hardware)
        self.rows = columns.rows
        self.zero = np.zeros(columns.rows)
        self.forward, self.backward = self.nothing(), self.nothing()
        self.weight_gradient_s = self.zero
        self.modules: dict[str, ModuleSeconds] = {}
        self.dense, self.experts, self.replicated = self.zero, self.zero, self.zero
        self.dense_tensors: Rows | float = 0.0
        self.expert_tensors: Rows | float = 0.0
        self.frozen_dense, self.frozen_experts = self.zero, self.zero
        self.transient = self.zero
        self.lockstep: tuple[Rows, Rows] = (self.zero, self.zero)
        self.uneven: tuple[Rows, Rows] = (self.zero, self.zero)
        self.hidden = self.zero
        self.stashed = self.zero
        self.core = CoreParts()
        self.halved: Bool[np.ndarray, "rows"] | None = None
        """Rows that compute the layer in halves of a micro-batch; None where none do."""
        self.beside_halves: list[tuple[Call, Rows, ModuleSeconds]] = []
        """Collectives of such rows with their seconds, which the other half may hide."""
        self.launched = True
        """Whether the host issues what is added operator by operator, instead of a graph that holds it."""

    def nothing(self) -> ModuleSeconds:
        """A module without work."""
        return ModuleSeconds.nothing(self.rows)

    def seconds(self, *, reached: bool) -> WorkSeconds:
        """What was summed.

        Args:
            reached: whether the gradient comes back to the layer.
        """
        return WorkSeconds(
            forward=self.forward,
            backward=self.backward if reached else self.nothing(),
            weight_gradient_s=self.weight_gradient_s,
            by_module=self.modules,
            dense_parameters=self.dense,
            expert_parameters=self.experts,
            dense_tensors=self.dense_tensors,
            expert_tensors=self.expert_tensors,
            replicated_parameters=self.replicated,
            frozen_dense_bytes=self.frozen_dense,
            frozen_expert_bytes=self.frozen_experts,
            transient_bytes=self.transient,
            hidden_s=self.hidden,
            stashed_bytes=self.stashed,
            lockstep_s=self.lockstep,
            uneven_s=self.uneven,
            core=self.core,
        )

    def add(
        self,
        module: ModuleSeconds,
        forward: Rows,
        input_gradient: Rows,
        weight_gradient: Rows,
        issued: tuple[Rows | float, Rows | float] | None = None,
    ) -> None:
        """Count an operator's compute, by phase."""
        self.forward.compute_s = self.forward.compute_s + forward
        self.backward.compute_s = self.backward.compute_s + input_gradient + weight_gradient
        self.weight_gradient_s = self.weight_gradient_s + weight_gradient
        module.compute_s = module.compute_s + forward
        if not self.launched:
            return
        ahead, back = issued or (1.0, 2.0 if weight_gradient is not self.zero else 1.0)
        if self.halved is not None:
            ahead, back = (count * np.where(self.halved, 2.0, 1.0) for count in (ahead, back))
        self.forward.operators = self.forward.operators + ahead
        self.backward.operators = self.backward.operators + back
        module.operators = module.operators + ahead

    def count(self, module: ModuleSeconds, flop: Rows | float) -> None:
        """Count an operator's multiply-adds, each twice."""
        self.forward.flop = self.forward.flop + flop
        module.flop = module.flop + flop

    def calls(
        self,
        calls: tuple[Call, ...],
        phases: dict[str, Rows],
        module: ModuleSeconds,
        groups: Groups | None = None,
        share: Rows | float = ALL,
    ) -> None:
        """Add what stays exposed: the head of the communication, and what its compute cannot hide of the rest.

        Args:
            calls: the calls of an operator.
            phases: its compute, which may hide them.
            module: the module that recompute may repeat.
            groups: other ones than those of the strategies.
            share: part of the tokens that takes part.
        """
        for call in calls:
            exposed = self.call_s(call, phases, groups)
            if exposed is not None and self.halved is not None and call.category == "tp":
                exposed = self._put_off(call, exposed, module)
            if exposed is not None:
                self.expose(call.phase, f"{call.category}_s", exposed if share is ALL else exposed * share, module)
                self.issue(call, module, share)

    def _put_off(self, call: Call, exposed: Rows, module: ModuleSeconds) -> Rows:
        """Leave a tensor collective to the other half of a micro-batch, on rows that have halves; others expose it."""
        assert self.halved is not None
        half = replace(call, payload_bytes=np.asarray(call.payload_bytes) / 2, repeats=np.asarray(call.repeats) * 2)
        seconds = self.groups.seconds(half)
        if seconds is not None:
            self.beside_halves.append((half, seconds * self.halved, module))
        self.issue(replace(call, payload_bytes=call.payload_bytes * self.halved), module)
        return np.asarray(exposed * ~self.halved)

    def expose_halves(self) -> None:
        """Expose what of the collectives of halves the layer's work does not hide: max(0, T - C), each way.

        Both halves' collectives, T / 2 each, stand beside the work C / 2 on the other half.

        Source: Wang et al. 2024 (Domino, arXiv 2409.15241), section 3.
        """
        late, slowdown = 1.0 - self.hardware.software.overlap, self.hardware.efficiency.overlap_slowdown
        for phase, work in (("forward", self.forward.compute_s), ("backward", self.backward.compute_s)):
            own = [(seconds, module) for call, seconds, module in self.beside_halves if call.phase == phase]
            if not own:
                continue
            total = np.sum([seconds for seconds, _ in own], axis=0)
            rest = total * late + exposed_s(total * (1.0 - late), work, slowdown)
            share = np.divide(rest, total, out=np.zeros(self.rows), where=total > 0)
            for seconds, module in own:
                self.expose(phase, "tp_s", seconds * share, module)

    def call_s(self, call: Call, phases: dict[str, Rows], groups: Groups | None = None) -> Rows | None:
        """Exposed seconds of a call beside compute of its operator; None where no row communicates."""
        seconds = (groups or self.groups).seconds(call)
        if seconds is None or call.beside is None:
            return seconds
        beside = phases.get(call.beside, self.zero) * call.beside_share
        hidden = seconds * (1.0 - call.head_share)
        slowdown = self.hardware.efficiency.overlap_slowdown
        late = 1.0 - self.hardware.software.overlap
        rest = exposed_s(hidden * (1.0 - late), beside, slowdown)
        return np.asarray(seconds * call.head_share + hidden * late + rest)

    def expose(self, phase: str, name: str, seconds: Rows, module: ModuleSeconds) -> None:
        """Add exposed seconds to a phase, and to the module that recompute may repeat."""
        target = self.forward if phase == "forward" else self.backward
        setattr(target, name, getattr(target, name) + seconds)
        if phase == "forward":
            setattr(module, name, getattr(module, name) + seconds)

    def replay(self, graphs: int) -> None:
        """Count the launches of graphs, each way.

        Args:
            graphs: the number of graphs of the layer.
        """
        self.forward.operators = self.forward.operators + graphs
        self.backward.operators = self.backward.operators + graphs

    def issue(self, call: Call, module: ModuleSeconds, share: Rows | float = ALL) -> None:
        """Count the operators that the host issues for a call."""
        if not self.launched:
            return
        issued = np.greater(call.payload_bytes, 0) * np.minimum(call.repeats, 8.0)
        if share is not ALL:
            issued = issued * np.greater(share, 0)
        target = self.forward if call.phase == "forward" else self.backward
        target.operators = target.operators + issued
        if call.phase == "forward":
            module.operators = module.operators + issued
