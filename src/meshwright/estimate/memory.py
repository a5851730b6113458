"""Bytes on the fullest device of a worker, by kind, at the moment that peaks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import reduce

import numpy as np

from meshwright.estimate.away import AWAY_KINDS, states_away
from meshwright.estimate.hardware import Hardware
from meshwright.shapes import Array, Bool, Float, Int, spread
from meshwright.specs.workload import Workload
from meshwright.strategies import PASSINGS
from meshwright.strategies.data import Z0, Z1, Z3, ShardingColumns, StateBytes, state_bytes, tile_bytes
from meshwright.units import GIB

# Buffers of one communicator inside a node. Source: NCCL issue 964 (544 MB for two ranks, 688 MB for more, A100).
COMMUNICATOR_BYTES = 0.5 * GIB
# A plan fits tightly when less than this share of the capacity is left.
TIGHT_SHARE = 0.08
# Per parameter, more than any device has for it.
MOST_BYTES = 1e30

MEMORY_KINDS = ("weights", "gradients", "optimizer", "activations", "transient", "comm_buffers", "overhead")
ALL_KINDS = (*MEMORY_KINDS, *AWAY_KINDS)
"""Kinds of bytes on the device, then those away from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerBytes:
    """Bytes by kind; `peak` is their sum."""

    weights: Array
    gradients: Array
    optimizer: Array
    activations: Array
    transient: Array
    comm_buffers: Array
    overhead: Array
    host: Array
    """Bytes in the host's memory for this device; not part of the peak."""
    disk: Array
    """Bytes on the host's disks for this device; not part of the peak."""

    @property
    def peak(self) -> Array:
        """All kinds."""
        return (
            self.weights
            + self.gradients
            + self.optimizer
            + self.activations
            + self.transient
            + self.comm_buffers
            + self.overhead
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLoad:
    """What a worker's device holds; all fields broadcast."""

    dense_parameters: Array
    """Dense parameters on one model-parallel rank of the worker."""
    expert_parameters: Array
    largest_dense: Array
    """Dense parameters of the largest layer, which FSDP gathers whole: the layer at work and the next."""
    largest_expert: Array
    activations: Array
    """Kept, summed over what is in flight at the peak."""
    transient: Array
    """Working memory of the largest operator at that moment."""
    communicators: Array
    """Process groups with more than one rank."""
    offload_weights: Array
    """Share of the weights on the host."""
    dense_state_bytes: Array | float = 0.0
    """Optimizer states beyond what follows from the number of parameters."""
    expert_state_bytes: Array | float = 0.0
    dense_weight_bytes: Array | float = 0.0
    """Weights beyond it."""
    expert_weight_bytes: Array | float = 0.0
    away: Array | float = 0.0
    """Activations in host memory at the peak."""
    weight_versions: Array | float = 1.0
    """Versions of the weights that are kept (asynchronous pipelines keep more than one)."""
    frozen_dense_bytes: Array | float = 0.0
    """Bytes of dense weights that are not trained, as they are stored; of these there is one version."""
    frozen_expert_bytes: Array | float = 0.0
    largest_frozen_bytes: Array | float = 0.0
    """Bytes of the largest layer's weights that are not trained."""

    def take(self, index: Int[np.ndarray, "picked"]) -> WorkerLoad:
        """The loads of one or more of the plans; what is equal for all stays as it is."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        several = {name: value[index] for name, value in values.items() if np.ndim(value) and len(value) > 1}
        return WorkerLoad(**(values | several))


def worker_bytes(load: WorkerLoad, sharding: ShardingColumns, hardware: Hardware, workload: Workload) -> WorkerBytes:
    """Memory of one worker's device.

    Args:
        load: what it holds.
        sharding: the data-parallel choice.
        hardware: the hardware for the driver's context.
        workload: formats and optimizer.

    Returns:
        Bytes by kind; all arguments broadcast.
    """
    precision = workload.precision
    dense, experts = _states(sharding, hardware, workload)
    weights = dense.weights * load.dense_parameters + experts.weights * load.expert_parameters
    sharded = np.asarray(sharding.zero == Z3, dtype=float)
    # Where gathered weights are kept, frozen ones are whole.
    split = sharding.gathers_layers
    frozen = load.frozen_dense_bytes / np.where(split, sharding.shard, 1)
    frozen = frozen + load.frozen_expert_bytes / np.where(split, sharding.expert_shard, 1)
    weights = weights + dense.wide * load.dense_weight_bytes + experts.wide * load.expert_weight_bytes
    weights = (weights * load.weight_versions + frozen) * (1.0 - load.offload_weights)
    gradients = dense.gradients * load.dense_parameters + experts.gradients * load.expert_parameters
    optimizer = dense.optimizer * load.dense_parameters + experts.optimizer * load.expert_parameters
    optimizer = optimizer + dense.states * load.dense_state_bytes + experts.states * load.expert_state_bytes
    # The gradients of one layer wait for their turn to leave; with zero 3 these are the unsharded ones below.
    gradients = gradients + (
        _leaving(sharding, workload)
        * (1.0 - sharded)
        * sharding.reduced_bytes(precision)
        * (load.largest_dense + load.largest_expert)
        * workload.training
    )
    # Gathered weights of two layers where they are freed again, and one unsharded gradient on its way out; of more or
    # fewer layers where more or none are gathered ahead, and never of more than there are.
    weight_copies = 2 * precision.bytes_of("weights") * sharding.gathers_layers
    gradient_copy = sharding.reduced_bytes(precision) * sharded * workload.training
    largest = load.largest_dense + load.largest_expert
    transient = load.transient + largest * (weight_copies + gradient_copy)
    beyond = np.asarray(sharding.layers_ahead) - 1
    if np.any(beyond):
        others = np.maximum(load.dense_parameters + load.expert_parameters - 2 * largest, 0.0)
        transient = transient + np.minimum(beyond * largest, others) * weight_copies / 2
    if sharding.has_tiles:
        here, experts_here = (
            np.where(sharding.zero >= Z1, 1.0 / shards, 1.0) for shards in (sharding.shard, sharding.expert_shard)
        )
        held = load.dense_parameters * here + load.expert_parameters * experts_here
        transient = transient + tile_bytes(sharding, held, precision)
    if sharding.has_travelling:
        each, ranks = _travelling_bytes(sharding, workload), np.maximum(sharding.shard, 1)
        group = (load.dense_parameters + load.expert_parameters) / ranks + load.largest_dense + load.largest_expert
        gathered = (load.largest_dense + load.largest_expert) * (weight_copies + gradient_copy)
        transient = transient + each * group - np.where(each > 0, gathered, 0.0)
    transient = transient + (1 + np.asarray(sharding.layers_ahead)) * load.largest_frozen_bytes * split
    comm_buffers = load.communicators * COMMUNICATOR_BYTES
    allocated = weights + gradients + optimizer + load.activations + transient
    shape = np.shape(allocated)
    host, disk = states_away(load.dense_parameters, sharding.shard, sharding, workload)
    frozen_away, on_disk = frozen * load.offload_weights, sharding.away("disk")
    expert_host, expert_disk = states_away(load.expert_parameters, sharding.expert_shard, sharding, workload)
    return WorkerBytes(
        weights=spread(weights, shape),
        gradients=spread(gradients, shape),
        optimizer=spread(optimizer, shape),
        activations=spread(load.activations, shape),
        transient=spread(transient, shape),
        comm_buffers=spread(comm_buffers, shape),
        overhead=hardware.software.fragmentation * allocated + always_bytes(hardware),
        host=spread(host + expert_host + load.away + frozen_away * (1.0 - on_disk), shape),
        disk=spread(disk + expert_disk + frozen_away * on_disk, shape),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PerParameter:
    """Bytes per parameter that a rank keeps under a data-parallel choice, all of one shape."""

    dense_weights: Array
    dense_others: Array
    """Gradients, main copy and moments."""
    expert_weights: Array
    expert_others: Array
    copies: Array
    """Bytes per parameter of the largest layer, beside what is kept."""

    @classmethod
    def of(cls, sharding: ShardingColumns, hardware: Hardware, workload: Workload) -> PerParameter:
        """Bytes per parameter of each choice.

        Args:
            sharding: the choices.
            hardware: the device.
            workload: formats and optimizer.
        """
        precision, training = workload.precision, workload.training
        dense, experts = _states(sharding, hardware, workload)
        # Of more layers than the next one there may be fewer than are gathered ahead: `worker_bytes` counts them.
        gathered = 1 + np.minimum(sharding.layers_ahead, 1)
        copies = gathered * precision.bytes_of("weights") * sharding.gathers_layers + (
            sharding.reduced_bytes(precision)
            * training
            * (np.asarray(sharding.zero == Z3, dtype=float) + _leaving(sharding, workload))
        )
        shared: Array | float = 0.0
        if sharding.has_travelling:
            each = _travelling_bytes(sharding, workload)
            copies, shared = np.where(each > 0, each, copies), each / np.maximum(sharding.shard, 1)
        return cls(
            dense_weights=dense.weights,
            dense_others=dense.gradients + dense.optimizer + shared,
            expert_weights=experts.weights,
            expert_others=experts.gradients + experts.optimizer + shared,
            copies=np.broadcast_to(copies, np.shape(sharding.shard)),
        )

    def least(self, legal: Bool[np.ndarray, "choices rows"]) -> PerParameter:
        """The fewest bytes of each kind under any legal choice of a row, `MOST_BYTES` where it has none; 1 x rows."""
        return self._each(lambda values: np.min(values, axis=0, where=legal, initial=MOST_BYTES, keepdims=True))

    def every(self, choices: slice, row: Int[np.ndarray, "picked"]) -> PerParameter:
        """Columns of shape choices x picked x 1.

        Args:
            choices: some of them.
            row: the row by number.
        """
        return self._each(lambda values: values[choices][:, row, None])

    def _each(self, change: Callable[[Array], Array]) -> PerParameter:
        return PerParameter(**{field.name: change(getattr(self, field.name)) for field in fields(self)})


def _states(sharding: ShardingColumns, hardware: Hardware, workload: Workload) -> tuple[StateBytes, StateBytes]:
    """Bytes per parameter of dense and of expert parameters.

    Source: gradient_as_bucket_view of torch.nn.parallel.DistributedDataParallel, which is off by default: gradients are
    copied into buckets of all parameters.
    """
    dense, experts = (
        state_bytes(
            sharding,
            shards,
            workload.precision,
            workload.optimizer,
            training=workload.training,
            any_order=hardware.any_operand_order,
        )
        for shards in (sharding.shard, sharding.expert_shard)
    )
    if (role := hardware.software.ddp_buckets) and workload.training:
        each = workload.precision.bytes_of(role) * (sharding.zero == Z0)
        dense = replace(dense, gradients=dense.gradients + each * (sharding.replicate > 1))
        experts = replace(experts, gradients=experts.gradients + each * (sharding.expert_replicate > 1))
    return dense, experts


def _leaving(sharding: ShardingColumns, workload: Workload) -> Array | float:
    """1 where gradients leave the device, or become an update, layer by layer as backward makes them."""
    return np.ones(np.shape(sharding.zero)) if workload.update.layerwise else sharding.away("gradients")


def _travelling_bytes(sharding: ShardingColumns, workload: Workload) -> Array:
    """Bytes per parameter in the groups of layers that are on a rank beside its own; 0 where weights do not travel."""
    precision, found = workload.precision, np.zeros(np.shape(sharding.zero))
    gradient_bytes = sharding.reduced_bytes(precision) * workload.training
    for name, rows in sharding.passings():
        found = found + PASSINGS[name].travelling_bytes(precision.bytes_of("weights"), gradient_bytes) * rows
    return found


def fullest_bytes(load: WorkerLoad, each: PerParameter, hardware: Hardware) -> Float[np.ndarray, "*plans"]:
    """`worker_bytes(...).peak` of the fullest worker, without its parts, of loads that are `usual`.

    Args:
        load: what workers hold, the last axis; all of a plan have as many communicators.
        each: the bytes of each kind under the data-parallel choice, one choice for all workers.
        hardware: the hardware for the driver's context.
    """
    # Almost all schedules have one version; then states are the same for all workers until they are multiplied.
    versions = load.weight_versions if np.any(np.not_equal(load.weight_versions, 1.0)) else 1.0
    allocated = (each.dense_weights * versions + each.dense_others) * load.dense_parameters
    if np.any(load.expert_parameters):
        allocated = allocated + (each.expert_weights * versions + each.expert_others) * load.expert_parameters
    allocated = allocated + (load.activations + load.transient)
    if np.any(each.copies):
        allocated = allocated + (load.largest_dense + load.largest_expert) * each.copies
    fullest = reduce(np.maximum, np.moveaxis(allocated, -1, 0))
    buffers_bytes = load.communicators[..., 0] * COMMUNICATOR_BYTES
    return fullest * (1.0 + hardware.software.fragmentation) + (buffers_bytes + always_bytes(hardware))


def usual(load: WorkerLoad) -> bool:
    """Whether all that workers hold follows from their parameters and activations, so that `fullest_bytes` holds."""
    return not any(np.any(getattr(load, name)) for name in _SELDOM)


_USUAL = ("dense_parameters", "expert_parameters", "largest_dense", "largest_expert", "activations", "transient",
          "communicators", "weight_versions", "away")  # fmt: skip
_SELDOM = tuple(field.name for field in fields(WorkerLoad) if field.name not in _USUAL)
"""What few loads have; the short sum leaves it to the long one."""


def fits(peak_bytes: float, capacity_bytes: float) -> str:
    """`yes`, `tight` (less than 8% of the capacity left) or `no`."""
    if peak_bytes > capacity_bytes:
        return "no"
    return "tight" if peak_bytes > (1.0 - TIGHT_SHARE) * capacity_bytes else "yes"


def always_bytes(hardware: Hardware) -> float:
    """Overhead of a device that holds nothing: the driver's context and what the framework takes."""
    return hardware.efficiency.context_bytes + hardware.software.engine_bytes
