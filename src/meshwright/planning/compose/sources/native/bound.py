"""The least time that a step can take on a cluster, whatever the plan: compute shared out in any fractions.

    seconds of kind k for one sequence of part j   c_kj = sum over its operators of their work at the best rate
    products        2 P ((1 + h / K) + (1 + h / N) + 1) / (peak x fraction), h what a tile loses, weight gradients too
    attention       as `flash_attention_s` with every unit busy
    memory-bound    elements over the achieved bandwidth
    layers          at least what they take as they are priced, in each of the ways r of `layer_ways`
    its way         l_kjr seconds that the sequence itself is in the layer, forward and backward, with the others of
                    its micro-batch; gradients of weights only where a schedule may run them later
    step >= max over y, b of  sum_j n_j min_kr (a_k B c_kjr + b l_kjr) / (sum_k N_k a_k + b)  +  update,
                              a_k = max_j (y_j / c_kj)

The first term is a dual of sharing B sequences of n_j parts among N_k devices so that the slowest ends first, while no
sequence takes longer through its layers than the step: where there are few sequences for the devices, they run in
small micro-batches or on several devices at once, and lose what those lose. y = c_k of every kind and several b are
tried.

The update reads and writes every parameter's state once, on the device that holds it. Traffic between pipelines and
copies, pipelines that fill and drain, and memory limits come on top in any plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.item_costs import item_costs
from meshwright.estimate.layers.items import NONE, Item
from meshwright.estimate.layers.mixing import ALIGNED, FLASH_PAD
from meshwright.estimate.rules.degrees import model_rules
from meshwright.estimate.sequences import pairs_of_row
from meshwright.ops.counts import trained_parameters
from meshwright.ops.edges import edge_works
from meshwright.ops.layers import work_of
from meshwright.schedules import schedule_named
from meshwright.schedules.kinds import Kind
from meshwright.search.axes import PLAIN_WAY, ways
from meshwright.search.grid import Grid, grid_degrees
from meshwright.search.legal_rows import alone_legal, context_levels
from meshwright.search.space import Space
from meshwright.search.table import divisors
from meshwright.shapes import Float, Int
from meshwright.specs.model import ModelSpec
from meshwright.specs.operators import CoreAttention, LayerWork, Linear, StreamTokens, Vector
from meshwright.specs.workload import Workload
from meshwright.strategies.columns import OVERLAPS

LARGE = 256
"""Sequences of a micro-batch at which launches and unfilled tiles are lost in the rest."""
BEYOND = 0.005
"""Share that still larger ones may save."""
MOST_TENSOR = 256
"""Tensor degree up to which every legal one is looked at."""
MOST_CONTEXT = 128
"""Context degree up to which what its ranks send is counted, in each kind; of larger ones only what they compute."""
WITH_EXPERTS = 4
"""Context degree up to which exchanges of experts are counted beside those of context ranks."""
SIZES = (1, 2, 3, 4, 6, 8, 16, 32, 64, LARGE)
"""Sequences of a micro-batch on a tensor group; between two of them counts the better of either number."""
PARTS = (*np.geomspace(1 / 16, 32, 40).tolist(), 64.0, float(LARGE))
"""The same where tasks do parts of a micro-batch."""
WEIGHTS = (0.0, *np.geomspace(0.02, 8.0, 25).tolist())
"""Weights of the way of a sequence, over that of all devices."""
ENDS: tuple[Literal["embedding", "head"], ...] = ("embedding", "head")


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerWays:
    """Ways to run the layers of a model on one kind of device: none of any plan takes less of both numbers."""

    device_s: Float[np.ndarray, "ways kinds"]
    """Device seconds of one sequence."""
    passed_s: Float[np.ndarray, "ways kinds"]
    """Seconds from where a sequence enters to where it leaves, forward and backward."""
    ranks: Int[np.ndarray, "ways"]
    """Tensor and context ranks."""
    tensor: Int[np.ndarray, "ways"]
    """Ranks among these that hold different weights."""
    fewest: Float[np.ndarray, "ways"]
    """Sequences of the smallest micro-batch that a way stands for."""
    most: Float[np.ndarray, "ways"]
    """Sequences of the largest."""
    backward_s: Float[np.ndarray, "ways kinds"]
    """Backward of the largest micro-batch."""
    dense_parameters: Float[np.ndarray, "ways kinds"]
    """Weights of a layer that tensor ranks share, on one rank."""


def least_step_s(
    model: ModelSpec,
    workload: Workload,
    devices: list[tuple[Hardware, int]],
    *,
    schedules: Sequence[str] | None = None,
    ways: Sequence[LayerWays] | None = None,
) -> float:
    """Lower bound of the step of any plan, in seconds.

        dual of the fractional shares and of the way of a sequence, plus the update

    Args:
        model: the model.
        workload: the step.
        devices: kinds of device and how many of each.
        schedules: the schedules that pipelines may have; any that ends each sequence in the step it starts in by
            default.
        ways: `layer_ways` of each kind over all devices, where they are known.

    Returns:
        Seconds; plans whose experts drop tokens, or that keep their optimizer on the host, are not bounded.
    """
    counts, works = _parts(model, workload)
    cost_s = np.array(
        [[part_s(work, hardware, workload, quantised=own) for work, own in works] for hardware, _ in devices]
    )
    kinds = len(model.kinds())
    every = sum(count for _, count in devices)
    known = [schedule_named(name) for name in schedules or ()]
    whole = schedules is not None and not any(one.sections() > 1 or {Kind.W, Kind.I} & {*one.kinds} for one in known)
    ways = ways or [layer_ways(model, workload, hardware, every, whole=whole) for hardware, _ in devices]
    weights = WEIGHTS if all(one.flushes and not one.averages for one in known) else (0.0,)
    least_s = cost_s[:, :kinds].copy()
    cost_s[:, :kinds] = np.maximum(least_s, [way.device_s.min(axis=0) for way in ways])
    number = np.array([count for _, count in devices], dtype=float)
    batch = float(workload.global_batch)
    found = 0.0
    for shadow in (y / cost_s for y in cost_s):
        worth = shadow.max(axis=1)
        ends = counts[kinds:] @ (worth[:, None] * cost_s[:, kinds:]).min(axis=0) * batch
        # Each kind's ways, those of all kinds beside each other.
        work = np.concatenate(
            [batch * a * np.maximum(way.device_s, least) for a, way, least in zip(worth, ways, least_s, strict=True)]
        )
        passed = np.concatenate([way.passed_s for way in ways])
        full = float(number @ worth)
        for weight in weights:
            held = (work + weight * full * passed).min(axis=0)
            found = max(found, float(counts[:kinds] @ held + ends) / (full * (1.0 + weight)))
    return found + least_update_s(model, workload, devices)


def least_sequence_s(model: ModelSpec, workload: Workload, hardware: Hardware) -> float:
    """Device seconds of one sequence through the whole model at the best rates of a kind of device.

        sum over parts of n_j c_kj

    Args:
        model: the model.
        workload: formats, kernel and sequence length.
        hardware: the hardware of the device.
    """
    counts, works = _parts(model, workload)
    return float(counts @ [part_s(work, hardware, workload, quantised=own) for work, own in works])


def part_s(work: LayerWork, hardware: Hardware, workload: Workload, *, quantised: bool) -> float:
    """Device seconds of one sequence through a layer or edge at the best rates there are.

    Args:
        work: its operators.
        hardware: the hardware of the device.
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


def layer_ways(
    model: ModelSpec, workload: Workload, hardware: Hardware, devices: int, *, whole: bool = False
) -> LayerWays:
    """Device seconds of one sequence through each kind of layer as they are priced, and how long it is in them.

    Micro-batches of x sequences on t tensor and context ranks take  t x seconds / x  of their devices, and keep a
    sequence for the seconds; less those of weight gradients where schedules may run them later. Between two sizes
    counts the better of either number. What tensor, context and expert ranks send is in them in the least of its ways;
    recompute and sharded weights only add.

    Args:
        model: the model.
        workload: the step.
        hardware: the hardware of the device.
        devices: the number of devices over which a micro-batch is spread at most.
        whole: whether each task does the whole forward or backward of a micro-batch.
    """
    items = tuple(Item("layer", kind, NONE) for kind in model.kinds())
    rows = _way_rows(model, workload, devices)
    last = SIZES if whole else PARTS

    def once(sizes: Sequence[float]) -> tuple[Float[np.ndarray, "rows sizes kinds"], ...]:
        index = np.repeat(np.arange(rows.rows), len(sizes))
        taken = rows.take(index)
        columns = replace(taken.strategies(workload), mbs=np.tile(np.array(sizes), rows.rows))
        costs = item_costs(items, columns, model, hardware, workload)
        seconds = costs.forward_s + (costs.backward_s if workload.training else 0.0)
        # Of experts beside tensor groups and wide context groups, and of very wide ones, only what is computed.
        seconds = seconds - np.where(((taken.tp > 1) | (taken.cp > WITH_EXPERTS))[:, None], costs.ep_s, 0.0)
        seconds = seconds - np.where((taken.cp > MOST_CONTEXT)[:, None], costs.cp_s, 0.0)
        later = (taken.paired if whole else np.ones_like(taken.paired))[:, None] & workload.training
        passed_s = seconds - np.where(later, costs.weight_gradient_s, 0.0)
        found = (seconds, passed_s, costs.backward_s, costs.dense_parameters)
        return tuple(values.reshape(rows.rows, len(sizes), -1) for values in found)

    seconds, passed_s, backward_s, parameters = once(last)
    if whole:
        passed_s = once((1, *(size + 1 for size in SIZES[:-1])))[1]
    else:
        passed_s = np.concatenate([np.zeros_like(passed_s[:, :1]), passed_s[:, :-1]], axis=1)
    device_s = seconds * ((rows.tp * rows.cp)[:, None] / np.array(last))[:, :, None] * (1.0 - BEYOND)
    # Without the exchanges of experts that are left out, more ranks may seem to save device time, which they never do.
    alone = rows.tp * rows.cp == 1
    device_s[~alone] = np.maximum(device_s[~alone], device_s[alone].min(axis=(0, 1)))
    # Of a size between two, no smaller one and not the next loses less, and no larger one and not the last is quicker.
    device_s = np.minimum.accumulate(device_s, axis=1)
    passed_s = np.minimum.accumulate(passed_s[:, ::-1], axis=1)[:, ::-1]
    # Larger ones than the last: as quick as those, at the least of all device seconds.
    passed_s = np.concatenate([passed_s, passed_s[:, -1:]], axis=1)
    device_s = np.concatenate([device_s, device_s[:, -1:]], axis=1)
    sizes = len(last) + 1
    backward_s = np.concatenate([backward_s, np.full_like(backward_s[:, -1:], np.inf)], axis=1)
    return LayerWays(
        device_s=device_s.reshape(-1, len(items)),
        passed_s=passed_s.reshape(-1, len(items)),
        ranks=np.repeat(rows.tp * rows.cp, sizes),
        tensor=np.repeat(rows.tp, sizes),
        fewest=np.tile([1.0, *(size + 1.0 for size in last)], rows.rows),
        most=np.tile([*map(float, last), np.inf], rows.rows),
        backward_s=backward_s.reshape(-1, len(items)),
        dense_parameters=np.maximum(np.concatenate([parameters, parameters[:, -1:]], axis=1), 0.0).reshape(
            -1, len(items)
        ),
    )


def _way_rows(model: ModelSpec, workload: Workload, devices: int) -> Grid:
    """Every legal degree of tensor, context and expert ranks, with the ways to reach experts."""
    most = max((layer.mlp.routed_experts for layer in model.kinds() if layer.mlp.routed_experts), default=1)
    # In which order exchanges and gradients take the links is no matter of a layer.
    kept = [(n, way) for n, way in enumerate(ways()) if way[3] == PLAIN_WAY[3]]
    spread = [n for n, way in kept if most > 1 and (workload.expert_load or way[2] == PLAIN_WAY[2])] or [0]
    alone = [(ep, way) for ep in divisors(most) for way in (spread if ep > 1 else spread[:1])]
    plain = [(ep, 0) for ep in sorted({1, most})]
    overlaps = [OVERLAPS.index(word) for word in ("bulk", "ring")]
    rules = model_rules(model, workload.seq_len)
    rows = [
        (tp, overlap, *levels, ep, way)
        for tp in range(1, min(devices, MOST_TENSOR) + 1)
        if alone_legal(rules, tp=tp)
        for cp in divisors(workload.seq_len)
        if tp * cp <= devices
        for levels in context_levels(cp, Space(), hierarchical=cp <= MOST_CONTEXT)
        for overlap in (overlaps if tp > 1 else overlaps[:1])
        for ep, way in (alone if tp == 1 and cp <= WITH_EXPERTS else plain)
    ]
    tp, overlap, *context, ep, way = np.array(rows, dtype=np.int64).T
    one = np.ones_like(tp)
    grid = Grid(
        tp=tp,
        overlap=overlap,
        context=np.stack(context, axis=1),
        ep=ep,
        etp=one,
        pp=one,
        dp=ep,
        mbs=one,
        m=one,
        way=way,
    )
    degrees = {**grid_degrees(grid), "mbs": tp}
    return grid.take(np.all([rule.holds(degrees) for rule in rules], axis=0))


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
    pairs = sequences * (pairs_of_row(op, workload, seq) + efficiency.flash_keys_half * seq)
    qk, v = (-(-dim // FLASH_PAD) * FLASH_PAD for dim in (op.head_dim, op.value_dim))
    once = 2.0 * op.heads * pairs * efficiency.flash_dim_cost(qk, v)
    peak = hardware.attention_flop_per_s
    seconds = once * (qk + v) / (peak * hardware.flash_fraction(backward=False))
    if training:
        seconds += once * (3 * qk + 2 * v) / (peak * hardware.flash_fraction(backward=True))
    return float(seconds)


def _vector_s(op: Vector, work: LayerWork, hardware: Hardware, workload: Workload) -> float:
    elements = op.forward_elements + (op.backward_elements if workload.training and work.reached else 0.0)
    copies = float(work.top_k) if op.region in ("expert", "expert-in") else 1.0
    size = 4.0 if op.fp32 else workload.precision.bytes_of("activations")
    passes = 1.0 if op.exact else hardware.software.vector_passes
    traffic_bytes = elements * copies * _count(work.tokens, workload) * size * passes
    return traffic_bytes / hardware.achieved_memory_bytes_per_s


def least_update_s(model: ModelSpec, workload: Workload, devices: list[tuple[Hardware, int]]) -> float:
    """Read the gradient twice, read and write main copy and moments, write weights; and what a step takes anyway.

    Args:
        model: the model.
        workload: the step.
        devices: kinds of device and how many of each, which share every state.

    Returns:
        Seconds of the bound that stand behind its compute.
    """
    if not workload.training:
        return 0.0
    bandwidth = sum(count * hardware.achieved_memory_bytes_per_s for hardware, count in devices)
    update_s = trained_parameters(model) * touched_bytes(workload) / bandwidth
    return update_s + min(hardware.software.step_s for hardware, _ in devices)


def touched_bytes(workload: Workload) -> float:
    """Read and written of a parameter that is updated: the gradient twice, main copy, moments and weight.

    Args:
        workload: formats and optimizer.
    """
    precision = workload.precision
    weight, master = precision.bytes_of("weights"), precision.bytes_of("master")
    kept = 2 * master + weight if master else 2 * weight
    moments = workload.update.least_bytes(precision.bytes_of("moments"))
    return float(2 * precision.bytes_of("gradients") + 2 * moments + kept)
