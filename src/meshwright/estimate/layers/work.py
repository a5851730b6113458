"""Seconds of one layer's work: every operator cut by its strategy, priced by the kernels, summed by what it is.

One row or a million rows: the same functions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers import mixing
from meshwright.estimate.layers.groups import Groups
from meshwright.estimate.layers.mixing import MixingPricing
from meshwright.estimate.layers.work_seconds import (
    Device,
    LayerCompute,
    ModuleSeconds,
    Product,
    WorkSeconds,
    products_s,
)
from meshwright.shapes import Rows
from meshwright.specs.operators import CoreAttention, Exchange, LayerWork, Linear, Scan, Scores, Vector
from meshwright.specs.tuning import MADE_AGAIN_BYTES, STORED_BYTES
from meshwright.specs.workload import Workload
from meshwright.strategies import TENSORS
from meshwright.strategies.base import LocalGemm, WeightBytes
from meshwright.strategies.columns import StrategyColumns, local_units, region_scale

# A tensor in 16 bits is read and its 8-bit copy written; the transposed copy, for gradients of weights, is not made.
FROZEN_CAST = 3.0 / 4.0


def price_work(
    work: LayerWork,
    columns: StrategyColumns,
    hardware: Hardware,
    workload: Workload,
    *,
    quantised: bool = True,
    groups: Groups | None = None,
) -> WorkSeconds:
    """Price one layer.

    Args:
        work: its operators.
        columns: strategies, one per row.
        hardware: the device and its links.
        workload: precision, attention kernel, sequence length.
        quantised: whether its products run in the compute format (the head does not).
        groups: those of the strategies, where other layers have asked for them.

    Returns:
        Seconds and bytes per row.
    """
    quantised = quantised and not work.wide
    return LayerPricing(columns, hardware, workload, quantised=quantised, groups=groups).layer(work)


class LayerPricing(MixingPricing):
    """Prices one layer, operator by operator."""

    def __init__(
        self,
        columns: StrategyColumns,
        hardware: Hardware,
        workload: Workload,
        *,
        quantised: bool,
        groups: Groups | None = None,
    ) -> None:
        super().__init__(columns, hardware, workload, groups)
        self.quantised = quantised
        self.tensor = TENSORS[columns.tensor]
        # Of a frozen weight that is not stored in a format of its own.
        self.rest_bytes = 4.0 if hardware.software.wide_rest else self.precision.bytes_of("weights")
        self.formats = WeightBytes(self.precision.bytes_of("weights"), self.precision.bytes_of("gradients"))
        self.tiles = {"loss": workload.loss_tiles, "mlp": workload.mlp_tiles}
        self.beside = LayerCompute(columns.rows)
        self._devices: dict[bool, Device] = {}

    def layer(self, work: LayerWork) -> WorkSeconds:
        """All operators of a layer."""
        exchanges = []
        if any(isinstance(op, (CoreAttention, Scan)) for op in work.ops):
            self.halved = self.text.halved  # embedding and head compute whole micro-batches
        own = self.text.of_experts(work.experts).at(work.tokens)
        parts = self._captured(work)
        places = [self.text.at(op.tokens) if isinstance(op, Linear) and op.tokens else own for op in work.ops]
        cut = {
            number: (op, self._cut(op, columns, work.top_k))
            for number, (op, columns) in enumerate(zip(work.ops, places, strict=True))
            if isinstance(op, Linear)
        }
        self.groups.look_ahead([call for _, local in cut.values() for call in local.calls])
        products = {number: self.products(op, local) for number, (op, local) in cut.items()}
        every = [product for each in products.values() for product in each]
        seconds = iter(products_s(every, self.rows, self._device))
        for number, op in enumerate(work.ops):
            self.launched, self.columns = not (parts and parts[number]), places[number]
            module = self.modules.get(op.module)
            if module is None:
                module = self.modules[op.module] = self.nothing()
            match op:
                case Linear():
                    self.gemm(op, cut[number][1], module, [next(seconds) for _ in products[number]])
                case CoreAttention():
                    self.attention(op, module)
                case Scores():
                    self.scores(op, module)
                case Scan():
                    self.scan(op, module)
                case Vector():
                    self.vector(op, work.top_k, module)
                case Exchange():
                    exchanges.append((op, module))
        self.columns, self.launched = own, True
        self.expose_halves()
        if exchanges:
            self.exchanges(exchanges, work)
        self.replay(len({part for part in parts if part}))
        return self.seconds(reached=work.reached)

    def _captured(self, work: LayerWork) -> list[str]:
        """The captured part of each operator, nothing where the framework captures none."""
        captured = self.hardware.software.captured
        if not captured:
            return []
        from meshwright.estimate.layers.captured import captured_parts  # few frameworks capture parts of layers

        return captured_parts(work, captured, shared_beside=self.text.overlaps("shared") is not None)

    def _cut(self, op: Linear, columns: StrategyColumns, top_k: float) -> LocalGemm:
        """A linear operator on one rank."""
        if not op.experts:
            return self.tensor.linear(op, columns, self.activation_bytes)
        from meshwright.strategies import expert  # dense layers have none

        return expert.shard_experts(op, columns, top_k, self.formats)

    def products(self, op: Linear, local: LocalGemm) -> list[Product]:
        """What a linear operator computes tile by tile: forward, the gradient of its input, that of a trained weight.

        Args:
            op: the operator of the whole layer.
            local: the operator on one rank.
        """
        quantised, m, written = self.quantised and not op.adapter, local.m / self._tiles(op), self.activation_bytes
        found = [
            Product(m, local.n, local.k, local.groups, written, quantised),
            Product(m, local.k, local.n, local.groups, written, quantised),
        ]
        if op.trained or op.merged:
            # Gradients of weights are added to what is there: read and written; those of a sum with an adapter are new.
            accumulated = 2 * self.precision.bytes_of("gradients") if op.trained else written
            found.append(Product(local.k, local.n, m, local.groups, accumulated, quantised))
        return found

    def _tiles(self, op: Linear) -> Rows | int:
        """Pieces that tokens of a dense product are computed in."""
        tiles = 1 if op.experts else self.tiles.get(op.module, 1)
        return tiles if self.halved is None else tiles * np.where(self.halved, 2.0, 1.0)

    def gemm(self, op: Linear, local: LocalGemm, module: ModuleSeconds, seconds: Sequence[Rows]) -> None:
        """A product and its gradients.

        Args:
            op: the operator of the whole layer.
            local: the operator on one rank.
            module: the module that recompute may repeat.
            seconds: the seconds of each of its `products`.
        """
        quantised, tiles = self.quantised and not op.adapter, self._tiles(op)
        forward, input_gradient = (tiles * each for each in seconds[:2])
        forward = forward / mixing.layout_share("forward", local.groups)
        input_gradient = input_gradient / mixing.layout_share("input_gradient", local.groups)
        if op.forward_weight_bytes:
            bandwidth, (ahead, back, copy) = self.hardware.achieved_memory_bytes_per_s, self._made_again(op)
            forward = forward + local.parameters * ahead / bandwidth
            input_gradient = input_gradient + local.parameters * back / bandwidth
            self.transient = np.maximum(self.transient, self.zero + local.parameters * copy)
        weight_gradient = self.zero
        if op.trained:
            weight_gradient = self._weight_gradient(local, tiles * seconds[2])
        elif op.merged:
            weight_gradient = tiles * seconds[2] / mixing.layout_share("weight_gradient", local.groups)
        if local.expert and self.hardware.software.launches_experts:
            # Kernels of experts one after the other: each starts by itself, as timed alone in microbenchmarks of B200.
            starts = (self.zero + local.groups - 1.0) * self.hardware.efficiency.launch_s
            forward, input_gradient = forward + starts, input_gradient + starts
            weight_gradient = weight_gradient + starts if op.trained or op.merged else self.zero
        self.add(module, forward, input_gradient, weight_gradient, self._issued(op, local, quantised=quantised))
        phases = {"forward": forward, "input_gradient": input_gradient, "weight_gradient": weight_gradient}
        self.calls(local.calls, phases, module)
        if local.expert:
            here = local.fetched * (self.formats.weights + self.formats.gradients)
            self.transient = np.maximum(self.transient, self.zero + here)
        if local.expert or op.module == "shared_experts":
            for phase, phase_s in phases.items():
                self.beside.add(self.beside.experts if local.expert else self.beside.shared, phase, phase_s)
        self._hold(op, local)
        if quantised:
            self._cast(local, module, 1.0 if op.trained else FROZEN_CAST)
        self.count(module, 2.0 * local.m * local.n * local.k * local.groups)
        moved = local.m / tiles * local.groups * (local.n + local.k) * self.activation_bytes
        self.transient = np.maximum(self.transient, moved)

    def _made_again(self, op: Linear) -> tuple[float, float, float]:
        """Bytes moved per stored weight before its product, before its input gradient, and of the copy that this makes.

        Products in fp8 read weights that are stored in fp8 as they are; where they read operands in one order only, the
        input gradient has them transposed first.

        Source: NVIDIA/TransformerEngine, pytorch/csrc/extensions/util.cpp, non_tn_fp8_gemm_supported, 2025.
        """
        ahead, back = op.forward_weight_bytes, op.backward_weight_bytes
        if not (self.quantised and op.stored == "fp8" == self.precision.compute):
            return ahead, back, MADE_AGAIN_BYTES
        stored = STORED_BYTES["fp8"]
        transposed = 0.0 if self.hardware.any_operand_order else stored
        norm = ahead - back  # of DoRA, which still adds both in 16 bits
        return (ahead if norm else 0.0), 2 * transposed, (MADE_AGAIN_BYTES if norm else transposed)

    def _issued(self, op: Linear, local: LocalGemm, *, quantised: bool) -> tuple[Rows | float, Rows | float]:
        """Operators of a product, forward and backward: where no kernel takes the products of all experts of a rank, a
        launch more for each further expert, and in 8 bits one to scale and convert its input."""
        back = 2.0 if op.trained else 1.0
        if not (local.expert and self.hardware.software.launches_experts):
            return 1.0, back
        launch = self.hardware.efficiency.dispatch_s / self.hardware.operator_s
        narrow = quantised and self.precision.bytes_of("compute") < self.activation_bytes
        issued = 1.0 + (self.zero + local.groups - 1.0) * ((2.0 if narrow else 1.0) * launch)
        return issued, back * issued

    def exchanges(self, exchanges: list[tuple[Exchange, ModuleSeconds]], work: LayerWork) -> None:
        """Dispatch and combine: chunks of them beside the experts, or whole ones beside what the strategy says."""
        from meshwright.estimate.layers.exchanges import exposed_exchanges  # dense layers exchange nothing
        from meshwright.kernels.exchange import Routing
        from meshwright.strategies import expert

        groups, chosen = work.router_groups
        routing = Routing(copies=work.top_k, groups=groups, chosen=chosen)
        own = self.columns
        experts = {phase: self.beside.of(self.beside.experts, phase) for phase in ("forward", "input_gradient")}
        experts["input_gradient"] = experts["input_gradient"] + self.beside.of(self.beside.experts, "weight_gradient")
        alone: dict[tuple[str, str], Rows] = {}
        modules: dict[tuple[str, str], ModuleSeconds] = {}
        for op, module in exchanges:
            sent = self.precision.dispatched_bytes
            calls = expert.exchange_calls(op, own, routing, self.activation_bytes, sent)
            for call in calls:
                found = self.call_s(call, experts)
                if found is not None:
                    place = (op.direction, call.phase)
                    alone[place] = alone.get(place, self.zero) + found
                    modules[place] = module
                    self.issue(call, module)
            if own.dispatches("by_level") is not None:
                # Between the levels tokens are laid out anew: read and written.
                laid_s = own.exchanged(work.top_k) / own.etp * (2 * op.width * self.activation_bytes)
                laid_s = laid_s * own.dispatches("by_level") / self.hardware.achieved_memory_bytes_per_s
                for phase in ("forward", "backward"):
                    if (op.direction, phase) in alone:
                        alone[op.direction, phase] = alone[op.direction, phase] + laid_s
            if own.stashed is not None:
                brought = own.received(work.top_k) if op.direction == "dispatch" else own.routed_tokens * work.top_k
                self.stashed = self.stashed + brought * (op.width * self.activation_bytes) * own.stashed
            staged = own.received(work.top_k) * (2 * op.width * self.activation_bytes)
            self.transient = np.maximum(self.transient, staged * (own.ep > 1))
        whole = self.forward.compute_s, self.backward.compute_s
        exposed = exposed_exchanges(alone, self.beside, whole, own, self.hardware)
        paired = own.overlaps("paired", "paired-wgrad")
        for (direction, phase), seconds in exposed.items():
            self.expose(phase, "ep_s", seconds, modules[direction, phase])
            if paired is not None:
                self.hidden = self.hidden + (alone[direction, phase] - seconds) * paired

    def _weight_gradient(self, local: LocalGemm, seconds: Rows) -> Rows:
        """Seconds of the gradient of a weight by those of its product, with adding it up where that is apart."""
        seconds = seconds / mixing.layout_share("weight_gradient", local.groups)
        if self.hardware.software.adds_gradients:
            added = local.parameters * self.precision.adding_bytes
            seconds = seconds + added / self.hardware.achieved_memory_bytes_per_s
        return seconds

    def _hold(self, op: Linear, local: LocalGemm) -> None:
        """Add the weights of an operator: as parameters where they are trained, as bytes where they are not."""
        if local.expert and self.columns.shadowed is not None:
            copies = local.fetched * (self.columns.shadowed > 0)
            self.frozen_experts = self.frozen_experts + copies * self.formats.weights
        if op.trained:
            tensors = 2.0 if op.bias else 1.0
            if local.expert:
                self.experts = self.experts + local.parameters
                each = self.columns.local_experts(op.experts) if self.hardware.software.tensors_per_expert else 1.0
                self.expert_tensors = self.expert_tensors + each * tensors
            else:
                self.dense = self.dense + local.parameters
                self.dense_tensors = self.dense_tensors + tensors
                self.replicated = self.replicated + local.replicated
            return
        any_order = self.hardware.any_operand_order
        cached = self.precision.cached_bytes(any_order=any_order) if self.quantised else 0.0
        # What is cast to fp32 beside weights in few bits are embeddings, norms and heads, not experts.
        rest = min(self.rest_bytes, self.activation_bytes) if op.experts else self.rest_bytes
        each = rest + cached if op.stored is None else STORED_BYTES[op.stored]
        if local.expert:
            self.frozen_experts = self.frozen_experts + local.parameters * each
        else:
            self.frozen_dense = self.frozen_dense + local.parameters * each

    def _device(self, quantised: bool) -> Device:
        """What products run against, the same for all products of a layer in one format."""
        if quantised not in self._devices:
            hardware, precision = self.hardware, self.precision
            peak = hardware.gemm_flop_per_s if quantised else hardware.head_flop_per_s
            fraction = hardware.gemm_fraction if quantised else hardware.head_fraction
            dtype = precision.compute if quantised else precision.activations
            input_bytes = precision.bytes_of("compute") if quantised else self.activation_bytes
            roof, tiles = mixing.roof(hardware, peak, fraction), mixing.tiles(hardware, dtype)
            self._devices[quantised] = Device(roof, tiles, input_bytes)
        return self._devices[quantised]

    def _cast(self, local: LocalGemm, module: ModuleSeconds, share: float) -> None:
        """Inputs of 8-bit products are scaled, converted and transposed: `cast_passes` over each, in 16 bits and 8."""
        if self.precision.bytes_of("compute") >= self.activation_bytes:
            return
        if self.precision.quantised_when_run:
            self._quantise(local, module, trained=share == 1.0)
            return
        passes = share * self.hardware.software.cast_passes / self.hardware.achieved_memory_bytes_per_s
        inputs = self.zero + local.m * local.k * local.groups * passes
        gradients = self.zero + local.m * local.n * local.groups * passes
        self.add(module, inputs, gradients, self.zero)

    def _quantise(self, local: LocalGemm, module: ModuleSeconds, *, trained: bool) -> None:
        """Both sides of each of the three products along the dimension it sums over: read for the largest, read and
        written in 8 bits."""
        each = (2 * self.activation_bytes + 1.0) * local.groups / self.hardware.achieved_memory_bytes_per_s
        inputs, weights, gradients = local.m * local.k, local.n * local.k, local.m * local.n
        forward, back = self.zero + (inputs + weights) * each, self.zero + (gradients + weights) * each
        self.add(module, forward, back, self.zero + (inputs + gradients) * each * trained)

    def vector(self, op: Vector, top_k: float, module: ModuleSeconds) -> None:
        """An operator that streams."""
        columns, hardware = self.columns, self.hardware
        size = 4.0 if op.fp32 else self.activation_bytes
        scale = region_scale(op.region, columns, top_k) * size
        launch = hardware.efficiency.launch_s
        bandwidth = hardware.achieved_memory_bytes_per_s
        passes = 1.0 if op.exact else hardware.software.vector_passes
        forward = scale * (op.forward_elements * passes / bandwidth) + launch
        backward = scale * (op.backward_elements * passes / bandwidth) + launch
        self.add(module, forward, backward, self.zero, (op.kernels, op.kernels))
        self.calls(self.tensor.vector_calls(op, columns, self.activation_bytes), {}, module)
        sharing = self.tensor.weight_ranks(columns.tp)
        held = self.zero + (op.parameters + op.cut_parameters / sharing)
        if op.table:
            rows, width = op.table
            held = held + local_units(rows, sharing) * width
        if op.trained:
            self.dense = self.dense + held
            held_there = bool(op.parameters or op.cut_parameters or op.table)
            self.dense_tensors = self.dense_tensors + float(held_there)
        else:
            self.frozen_dense = self.frozen_dense + held * self.rest_bytes
