"""What data parallelism costs a step: gathers of weights, sums of gradients, the optimizer; hidden where it can be.

All arguments broadcast: plans by workers, or a block of the search's grid.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.estimate.away import update_away
from meshwright.estimate.data.network import DataNetwork, data_groups
from meshwright.estimate.hardware import Hardware
from meshwright.estimate.layers.item_costs import ItemCosts
from meshwright.kernels.overlap import exposed_s
from meshwright.shapes import Array, Int, spread
from meshwright.specs.workload import Workload
from meshwright.strategies.columns import StrategyColumns
from meshwright.strategies.data import Z0, Z1, Z2, Z3, ShardingColumns, optimizer_traffic_bytes

Ranks = Int[np.ndarray, "..."]
"""Numbers of ranks."""

# Gradients leave in buckets of this many parameters, more at large data degrees so that latency stays small.
# Source: Megatron-LM, distributed data parallel configuration: max(40 M, 1 M x data-parallel degree).
BUCKET_PARAMETERS = 40e6
BUCKET_PARAMETERS_PER_RANK = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSync:
    """Exposed seconds per micro-batch and item of gathering weights and scattering gradients layer by layer."""

    forward_s: Array
    backward_s: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSync:
    """Exposed seconds per step and worker."""

    gradients_s: Array
    """Seconds after the last backward, before the optimizer may start."""
    copies_s: Array
    """Gradients on their way to an optimizer on the host, beyond the backwards and their sum."""
    gather_s: Array
    """Weights gathered for the next step and not hidden by its first forward."""
    optimizer_s: Array
    offload_s: Array
    """Update on the host and new weights on their way back, beyond the next step where it is delayed."""
    aside_s: Array | float = 0.0
    """Work of the optimizer that is done where a worker waits in the step, as far as it waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCompute:
    """The compute of a worker beside which its gradients leave and its weights come."""

    forward_s: Array
    """Seconds of forward per micro-batch."""
    backward_s: Array
    micro_batches: Array
    """Micro-batches per update."""
    passes: Array | float = 1.0
    """Backwards of a micro-batch that follow the first complete gradients of a step, and forwards before the last
    weights are used: more than one where chunks take turns."""
    meeting_s: Array | float = 0.0
    """The part of `backward_s` in exchanges of tokens on the links that gradients take, which both use at half their
    rate."""
    ahead_s: Array | float = 0.0
    """The part of `backward_s` in exchanges of tokens on these links that gradients wait for."""
    hops_s: Array | float = 0.0
    """Transfers between stages beside `backward_s`, and again beside `forward_s`, on links that gradients and weights
    take."""


def layer_sync(
    dense_parameters: Array,
    expert_parameters: Array,
    forward_s: Array,
    backward_s: Array,
    sharding: ShardingColumns,
    network: DataNetwork,
    workload: Workload,
    frozen_bytes: tuple[Array, Array] | None = None,
) -> LayerSync:
    """What zero 3 and FSDP add to a layer: gathers beside its compute, gradient scatters beside its backward.

    Weights that travel from rank to rank come as one message from a neighbour, and gradients go as one.

    Args:
        dense_parameters: the dense parameters of one layer on one model-parallel rank.
        expert_parameters: the parameters of the experts of one layer on one rank, summed over their own group.
        forward_s: the compute that may hide the gather of the next layer.
        backward_s: the compute that may hide the second gather and the scatter.
        sharding: the data-parallel choice.
        network: its groups.
        workload: formats.
        frozen_bytes: the frozen bytes of dense and expert weights that are not trained, as they are gathered.

    Returns:
        Exposed seconds; zero where weights are not sharded.
    """
    precision = workload.precision
    weight, reduce = sharding.gathered_bytes(precision), sharding.reduced_bytes(precision)
    gather = again_s = network.gather_s(dense_parameters * weight, expert=False)
    second = None if sharding.secondary is None or not np.any(sharding.secondary) else np.asarray(sharding.secondary)
    if second is not None:
        again_s = _from_second(network, second, dense_parameters * precision.gathered_bytes, gather, expert=False)
    scatter = network.scatter_s(dense_parameters * reduce, expert=False)
    if np.any(expert_parameters):
        experts_s = experts_again_s = network.gather_s(expert_parameters * weight, expert=True)
        if second is not None:
            size = expert_parameters * precision.gathered_bytes
            experts_again_s = _from_second(network, second, size, experts_s, expert=True)
        gather, again_s = gather + experts_s, again_s + experts_again_s
        scatter = scatter + network.scatter_s(expert_parameters * reduce, expert=True)
    for expert, stored in enumerate(frozen_bytes or ()):
        if np.any(stored):
            stored_s = network.gather_s(stored, expert=bool(expert))
            gather, again_s = gather + stored_s, again_s + stored_s
    for _, rows in sharding.passings():
        size = dense_parameters + expert_parameters
        passed_s, summed_s = (network.pass_s(size * each, expert=False) for each in (weight, reduce))
        gather, again_s = (np.where(rows, passed_s, seconds) for seconds in (gather, again_s))
        scatter = np.where(rows, summed_s, scatter)
    again = sharding.gathers_layers
    slowdown = network.hardware.efficiency.overlap_slowdown
    hidden = sharding.overlap.astype(float)
    sharded = (sharding.zero == Z3).astype(float)
    on_time = network.hardware.software.overlap
    # Weights for which nothing is sent ahead are waited for.
    ahead = np.asarray(sharding.layers_ahead) > 0
    forward = _late_s(gather, forward_s * hidden * ahead, slowdown, on_time) * again
    training = 1.0 if workload.training else 0.0
    each, again_s = 1.0 - np.asarray(sharding.defers), again_s * again
    backward = _late_s(again_s * ahead + scatter * each, backward_s * hidden, slowdown, on_time)
    backward = (backward + again_s * ~ahead) * sharded * training
    return LayerSync(forward_s=np.asarray(forward), backward_s=np.asarray(backward))


def _from_second(network: DataNetwork, ranks: Ranks, size_bytes: Array, first_s: Array, *, expert: bool) -> Array:
    """Gather for backward where a second copy is near; it is in the format of the weights.

    Source: Wang et al. 2023, ZeRO++ (arXiv 2306.10209), section 3.2 (hpZ).
    """
    return np.where(ranks > 0, network.second_gather_s(size_bytes, ranks, expert=expert), first_s)


def step_sync(
    dense_parameters: Array,
    expert_parameters: Array,
    compute: StepCompute,
    sharding: ShardingColumns,
    network: DataNetwork,
    workload: Workload,
    payloads: tuple[Array, Array] | None = None,
) -> StepSync:
    """What the end and the beginning of a step wait for.

    Gradients leave in buckets while the last backward runs; what it cannot hide and the last bucket stay exposed. A
    worker with several chunks runs the last backwards of all micro-batches in flight on one chunk after the other: the
    gradients of a chunk leave beside those of the chunks that follow. Gradients that FSDP keeps whole leave so too.
    Between pipelines they are summed once per step: the pipeline that ends last finds the gradients of its partners
    there and hides its buckets as if it were alone, those that ended before wait for it. Weights of the updated shards
    come back beside the next step's first forward.
    Exchanges of tokens in that backward may take the same links. As flows of equal right both have half of the rate, so
    that exchanges of X seconds and gradients of G take min(X, G) longer; exchanges that go first take no longer, and
    leave gradients the compute of the backward to hide behind. Transfers between the stages of a pipeline meet
    gradients, and weights on their way back, in the same way, and a micro-batch waits for both.
    Source: Li et al., "Accelerating Distributed MoE Training and Inference with Lina", USENIX ATC 2023, section 4.

    Args:
        dense_parameters: the dense parameters of one worker on one model-parallel rank.
        expert_parameters: the expert parameters of one worker on one model-parallel rank.
        compute: the compute of the worker.
        sharding: the data-parallel choice.
        network: its groups.
        workload: formats and optimizer.
        payloads: bytes of compressed gradients, of dense and of expert parameters; None where none are compressed.

    Returns:
        Exposed seconds.
    """
    precision, hardware = workload.precision, network.hardware
    forward_s, backward_s, micro_batches = compute.forward_s, compute.backward_s, compute.micro_batches
    weight, reduce = sharding.gathered_bytes(precision), sharding.reduced_bytes(precision)
    zero = sharding.zero
    slowdown, on_time = hardware.efficiency.overlap_slowdown, hardware.software.overlap
    hidden = sharding.overlap.astype(float)
    training = float(workload.training)
    none: Array = np.zeros(1)
    # Dense and expert parameters share the compute that hides them, so they are summed before they are hidden.
    last = beside = each = first = behind = none
    optimizer_s = copied_s = streamed_s = host_s = none
    for expert, parameters in ((False, dense_parameters), (True, expert_parameters)):
        if expert and not np.any(parameters):
            continue
        shards = sharding.expert_shard if expert else sharding.shard
        replicas = sharding.expert_replicate if expert else sharding.replicate
        buckets = buckets_of(parameters, shards * replicas)
        piece = parameters / buckets
        if workload.training:
            scattered, summed, among_pipelines = _bucket_s(piece * reduce, shards, replicas, sharding, network, expert)
            if payloads is not None and sharding.sums_otherwise:
                from meshwright.estimate.data.other_sums import sums_otherwise  # few plans have any

                held = parameters / np.where(zero == Z3, shards, 1)
                other = sums_otherwise(sharding, network, held, payloads[expert], buckets, expert=expert)
                summed = summed * ~other.instead + other.bucket_s
                last = last + other.alone_s
            summed = summed + among_pipelines
            last = last + scattered + summed
            beside = beside + (scattered + summed) * (buckets - 1)
            each = each + scattered * buckets
            for seconds in _update_s(parameters, shards, sharding, network, workload, expert):
                optimizer_s = optimizer_s + seconds
            away = update_away(parameters, shards, sharding, hardware, workload)
            copied_s, streamed_s = copied_s + away.copied_s, streamed_s + away.streamed_s
            host_s = host_s + away.update_s
        kept = ((zero == Z1) | (zero == Z2)) * training + ((zero == Z3) & ~sharding.reshard)
        if kept.any():
            gathered = network.gather_s(piece * weight, expert=expert) * kept
            first = first + gathered
            behind = behind + gathered * (buckets - 1)
    # What meets exchanges makes them longer; the rest hides behind what is left of the backward, its compute.
    window_s = np.maximum(backward_s - compute.ahead_s - compute.meeting_s, 0.0) * hidden
    met_s = np.minimum(beside * on_time, compute.meeting_s * hidden * compute.passes)
    # Stages of PyTorch's pipelines sum a chunk once its last backward is over.
    following = compute.passes
    if np.any(sharding.defers):
        following = compute.passes - (np.asarray(sharding.whole) > 1)
    met_s = met_s + np.minimum((beside - met_s) * on_time, compute.hops_s * following * hidden)
    gradients_s = _late_s(beside - met_s, window_s * following, slowdown, on_time) + met_s + last
    met_s = np.minimum(each * on_time, compute.meeting_s * hidden)
    late_s = _late_s(each - met_s, window_s, slowdown, on_time) + met_s
    gradients_s = gradients_s + late_s * (micro_batches - 1) * (zero == Z2)
    hops_s = np.minimum(behind * on_time, compute.hops_s * compute.passes * hidden)
    gather_s = _late_s(behind - hops_s, forward_s * hidden * compute.passes, slowdown, on_time) + hops_s + first
    optimizer_s = optimizer_s + hardware.software.step_s * training
    copies_s = np.maximum(copied_s - backward_s - gradients_s, 0.0)
    # Gradients that leave as they come do so in every micro-batch; earlier ones are fetched and added meanwhile.
    copies_s = copies_s + np.maximum(streamed_s - backward_s, 0.0) * micro_batches
    # A delayed update has the whole of the next step.
    if sharding.delayed_update is not None:
        beside_s = (forward_s + backward_s) * micro_batches * sharding.delayed_update
        host_s = np.maximum(host_s - beside_s, 0.0)
    every = gradients_s, gather_s, forward_s, optimizer_s, dense_parameters
    shape = np.broadcast_shapes(*(np.shape(values) for values in every))
    return StepSync(
        gradients_s=spread(gradients_s, shape),
        copies_s=spread(copies_s, shape),
        gather_s=spread(gather_s, shape),
        optimizer_s=spread(optimizer_s, shape),
        offload_s=spread(host_s, shape),
    )


def _bucket_s(
    size_bytes: Array, shards: Ranks, replicas: Ranks, sharding: ShardingColumns, network: DataNetwork, expert: bool
) -> tuple[Array, Array, Array]:
    """Seconds of one bucket of gradients: scattered, summed over replicas, and summed between pipelines alone."""
    zero = sharding.zero
    scattering = (zero == Z1) | (zero == Z2) | sharding.defers
    summing = (zero == Z0) | (zero == Z3) | (scattering & (replicas > 1))
    scattered = summed = np.zeros(1)
    if scattering.any():
        scattered = network.scatter_s(size_bytes, expert=expert) * scattering
    if summing.any():
        summed = network.replica_sum_s(size_bytes / np.where(zero == Z0, 1, shards), expert=expert) * summing
    # Groups of replicas reach into other pipelines; without them, shards are summed between these alone.
    return scattered, summed, network.partner_sum_s(size_bytes / shards) * (scattering & ~summing)


def _update_s(
    parameters: Array, shards: Ranks, sharding: ShardingColumns, network: DataNetwork, workload: Workload, expert: bool
) -> Iterator[Array]:
    """Seconds of what an update does, one after the other."""
    precision, hardware, kind, zero = workload.precision, network.hardware, workload.update, sharding.zero
    share = np.where(zero >= Z1, 1.0 / shards, 1.0)
    traffic = optimizer_traffic_bytes(sharding, shards, precision, workload.optimizer) * parameters
    yield traffic / hardware.achieved_memory_bytes_per_s
    touched = hardware.software.gradient_touches * precision.bytes_of("gradients") * parameters
    yield touched * (zero != Z3) / hardware.achieved_memory_bytes_per_s
    if sharding.has_tiles:
        # Each further tile is two launches: its gradients made wider, and the update.
        own, tile = parameters * share, np.asarray(sharding.tile)
        more = np.where(tile > 0, np.ceil(own / np.maximum(tile, 1.0)) - 1.0, 0.0)
        yield np.maximum(more, 0.0) * 2 * hardware.efficiency.launch_s
    if kind.paged:
        # Pages of states come for the update and leave again.
        yield 2 * kind.each_bytes(precision.bytes_of("moments")) * parameters * share / hardware.host_bytes_per_s
    if kind.whole:
        # Shards of a matrix go to the rank that updates it, in 16 bits, and the update's come back.
        yield network.gather_s(parameters * 2.0, expert=expert) * 2 * (zero == Z3)


def buckets_of(parameters: Array, ranks: Array | Int[np.ndarray, "..."]) -> Array:
    """Buckets in which gradients leave.

    Args:
        parameters: the parameters of one worker on one model-parallel rank.
        ranks: the ranks that share their gradients.
    """
    bucket = np.maximum(BUCKET_PARAMETERS, BUCKET_PARAMETERS_PER_RANK * ranks)
    return np.maximum(np.ceil(parameters / bucket), 1.0)


def _late_s(comm_s: Array, compute_s: Array, slowdown: float, on_time: float) -> Array:
    """Exposed seconds where only a share of the communication is issued early enough to run beside the compute."""
    return np.asarray(comm_s * (1.0 - on_time) + exposed_s(comm_s * on_time, compute_s, slowdown))


def sync_layers(
    costs: ItemCosts,
    columns: StrategyColumns,
    sharding: ShardingColumns,
    hardware: Hardware,
    workload: Workload,
    *,
    anything: bool,
) -> LayerSync:
    """What gathering sharded weights adds to every item, plans x items; zero at once where nobody shards weights."""
    if not anything:
        zero = np.zeros_like(costs.forward_s)
        return LayerSync(forward_s=zero, backward_s=zero)
    network = DataNetwork(sharding, data_groups(columns), hardware)
    found = layer_sync(
        np.maximum(costs.dense_parameters, 0.0),
        costs.expert_parameters,
        costs.forward_s,
        costs.backward_s,
        sharding,
        network,
        workload,
        frozen_bytes=(
            np.maximum(costs.frozen_dense_bytes, 0.0) * costs.frozen_gathered,
            costs.frozen_expert_bytes * costs.frozen_gathered,
        ),
    )
    if not workload.sequence_lengths:
        return found
    waits = sharding.gathers_layers
    return LayerSync(
        forward_s=found.forward_s + costs.lockstep_forward_s * waits,
        backward_s=found.backward_s + costs.lockstep_backward_s * waits,
    )
