"""The least time that a step can take on a cluster, whatever the plan: compute shared out in any fractions.

    seconds of kind k for one sequence of part j   c_kj = sum over its operators of their work at the best rate
    products        2 P ((1 + h / K) + (1 + h / N) + 1) / (peak x fraction), h what a tile loses, weight gradients too
    attention       as `flash_attention_s` with every unit busy
    memory-bound    elements over the achieved bandwidth
    layers          at least what they take as they are priced, at micro-batches that lose nothing (`least_layers_s`)
    step >= max over y of  sum_j y_j B n_j / sum_k N_k max_j (y_j / c_kj)  +  update

The first term is the dual of sharing B sequences of n_j parts among N_k devices so that the slowest ends first; y = c_k
of every kind is tried. The update reads and writes every parameter's state once, on the device that holds it. Launches,
unfilled tiles, traffic between devices, pipelines that fill and drain, and memory limits come on top in any plan.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.items import NONE, Item, item_costs
from meshwright.estimate.mixing import ALIGNED, FLASH_PAD
from meshwright.estimate.sequences import attended_pairs, pairs_of_row
from meshwright.ops.counts import trained_parameters
from meshwright.ops.edges import edge_works
from meshwright.ops.layers import work_of
from meshwright.search.grid import Grid
from meshwright.shapes import Float
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import CoreAttention, LayerWork, Linear, StreamTokens, Vector
from meshwright.specs.workload import Workload
from meshwright.strategies import CONTEXTS

LARGE = 256
"""Sequences of a micro-batch at which launches and unfilled tiles are lost in the rest."""
BEYOND = 0.005
"""Share that still larger ones may save."""
TENSOR = (1, 2, 4, 8)
ENDS: tuple[Literal["embedding", "head"], ...] = ("embedding", "head")


def least_step_s(model: ModelSpec, workload: Workload, devices: list[tuple[Hardware, int]]) -> float:
    """Lower bound of the step of any plan, in seconds.

        dual of the fractional shares, plus the update

    Args:
        model: the model.
        workload: the step.
        devices: kinds of device and how many of each.

    Returns:
        Seconds; plans whose experts drop tokens, or that keep their optimizer on the host, are not bounded.
    """
    counts, works = _parts(model, workload)
    cost_s = np.array(
        [[part_s(work, hardware, workload, quantised=own) for work, own in works] for hardware, _ in devices]
    )
    layers_s = np.array([least_layers_s(model, workload, hardware) for hardware, _ in devices])
    cost_s[:, : layers_s.shape[1]] = np.maximum(cost_s[:, : layers_s.shape[1]], layers_s)
    number = np.array([count for _, count in devices], dtype=float)
    needed = workload.global_batch * counts
    compute_s = max(float(y @ needed / (number @ (y / cost_s).max(axis=1))) for y in cost_s)
    return compute_s + _update_s(model, workload, devices)


def part_s(work: LayerWork, hardware: Hardware, workload: Workload, *, quantised: bool) -> float:
    """Device seconds of one sequence through a layer or edge at the best rates there are.

    Args:
        work: its operators.
        hardware: of the device.
        workload: formats, kernel and sequence length.
        quantised: whether its products run in the compute format.
    """
    total = 0.0
    for op in work.ops:
        match op:
            case Linear():
                total += _product_s(op, work, hardware, workload, quantised=quantised)
            case CoreAttention():
                total += _attention_s(op, work, hardware, workload, training=workload.training and work.reached)
            case Vector():
                total += _vector_s(op, work, hardware, workload)
    return total


def least_layers_s(model: ModelSpec, workload: Workload, hardware: Hardware) -> Float[np.ndarray, "kinds"]:
    """Device seconds of one sequence through each kind of layer as they are priced, at micro-batches that lose nothing.

        min over tensor and expert degrees of  tp x seconds / micro-batch,  at LARGE sequences, less BEYOND

    Smaller micro-batches, context parallelism, recompute and sharded weights only add to it.

    Args:
        model: the model.
        workload: the step.
        hardware: of the device.
    """
    experts = sorted({1, *(layer.mlp.routed_experts for layer in model.kinds() if layer.mlp.routed_experts)})
    pairs = [(tp, ep) for tp in TENSOR for ep in experts]
    tp, ep = (np.array(column, dtype=np.int64) for column in zip(*pairs, strict=True))
    one = np.ones_like(tp)
    grid = Grid(
        tp=tp, overlap=0 * one, context=np.ones((len(tp), len(CONTEXTS)), dtype=np.int64), ep=ep, etp=one, pp=one,
        dp=ep, mbs=LARGE * one, m=one, way=0 * one,
    )  # fmt: skip
    items = tuple(Item("layer", kind, NONE) for kind in model.kinds())
    costs = item_costs(items, grid.strategies(workload), model, hardware, workload)
    once_s = costs.forward_s + (costs.backward_s if workload.training else 0.0)
    return (once_s * tp[:, None] / LARGE).min(axis=0) * (1.0 - BEYOND)


def _parts(model: ModelSpec, workload: Workload) -> tuple[Float[np.ndarray, "parts"], list[tuple[LayerWork, bool]]]:
    """How often a sequence meets each layer kind, embedding and head, and whether its products are quantised."""
    kinds = model.kind_counts()
    found = [(float(count), work_of(model, kind, workload.attention_kernel), True) for kind, count in kinds.items()]
    found += [(1.0, work, False) for part in ENDS for work in edge_works(model, part)]
    return np.array([count for count, _, _ in found]), [(work, own) for _, work, own in found]


def _product_s(op: Linear, work: LayerWork, hardware: Hardware, workload: Workload, *, quantised: bool) -> float:
    width_in, width_out = (sum(units * width for units, width in side) for side in (op.inputs, op.outputs))
    copies = float(work.top_k) if op.experts else 1.0
    peak = hardware.gemm_flop_per_s * hardware.gemm_fraction
    if not quantised or op.adapter:
        peak = hardware.head_flop_per_s * hardware.head_fraction
    dtype = workload.precision.compute if quantised and not op.adapter else workload.precision.activations
    lost = hardware.efficiency.product_curve(dtype).k_half
    passes = 1.0 + lost / width_in
    if workload.training and work.reached:
        passes += 1.0 + lost / width_out + (1.0 if op.trained else 0.0)
    return 2.0 * width_in * width_out * copies * _count(op.tokens or work.tokens, workload) * passes / peak


def _count(tokens: StreamTokens | None, workload: Workload) -> float:
    """Tokens of a sample."""
    return float(workload.seq_len) if tokens is None else tokens.count


def _attention_s(
    op: CoreAttention, work: LayerWork, hardware: Hardware, workload: Workload, *, training: bool
) -> float:
    own, efficiency = work.tokens, hardware.efficiency
    sequences, seq = (1.0, float(workload.seq_len)) if own is None else (own.sequences, float(own.length))
    if workload.attention_kernel == "materialised":
        aligned = op.head_dim % ALIGNED == 0 and op.value_dim % ALIGNED == 0
        peak = hardware.attention_flop_per_s if aligned else hardware.scalar_flop_per_s
        passes = 3.0 if training else 1.0
        keys = seq if op.keys is None else op.keys.count
        flop = 2.0 * op.heads * sequences * seq * keys * (op.head_dim + op.value_dim) * passes
        return flop / (peak * hardware.head_fraction)
    beside = own is not None or op.keys is not None
    pairs = attended_pairs(op, seq) if beside else pairs_of_row(op, workload)
    pairs = sequences * (pairs + efficiency.flash_keys_half * seq)
    qk, v = (-(-dim // FLASH_PAD) * FLASH_PAD for dim in (op.head_dim, op.value_dim))
    once = 2.0 * op.heads * pairs * efficiency.flash_dim_cost(qk, v)
    peak = hardware.attention_flop_per_s * hardware.flash_share
    seconds = once * (qk + v) / (peak * efficiency.flash_forward_fraction)
    if training:
        seconds += once * (3 * qk + 2 * v) / (peak * efficiency.flash_backward_fraction)
    return float(seconds)


def _vector_s(op: Vector, work: LayerWork, hardware: Hardware, workload: Workload) -> float:
    elements = op.forward_elements + (op.backward_elements if workload.training and work.reached else 0.0)
    copies = float(work.top_k) if op.region in ("expert", "expert-in") else 1.0
    size = 4.0 if op.fp32 else workload.precision.bytes_of("activations")
    passes = 1.0 if op.exact else hardware.software.vector_passes
    traffic_bytes = elements * copies * _count(work.tokens, workload) * size * passes
    return traffic_bytes / hardware.achieved_memory_bytes_per_s


def _update_s(model: ModelSpec, workload: Workload, devices: list[tuple[Hardware, int]]) -> float:
    """Read the gradient twice, read and write main copy and moments, write weights; and what a step takes anyway."""
    if not workload.training:
        return 0.0
    precision = workload.precision
    weight, master = precision.bytes_of("weights"), precision.bytes_of("master")
    kept = 2 * master + weight if master else 2 * weight
    moments = workload.update.least_bytes(precision.bytes_of("moments"))
    touched = 2 * precision.bytes_of("gradients") + 2 * moments + kept
    bandwidth = sum(count * hardware.achieved_memory_bytes_per_s for hardware, count in devices)
    return trained_parameters(model) * touched / bandwidth + min(hardware.software.step_s for hardware, _ in devices)
