"""Data parallelism: what a rank keeps of each parameter, and what crosses the network for it.

    z0          everything replicated; gradients all-reduced
    z1          optimizer sharded; gradients reduce-scattered, weights gathered once per step
    z2          + gradients sharded; reduce-scattered every micro-batch
    z3, fsdp    + weights sharded; gathered per layer and micro-batch, forward and backward
    fsdp-keep   weights gathered once per step and kept
    weipipe     weights sharded by whole layers, which travel round the ranks
    hsdp        fsdp inside groups, gradients all-reduced between them

`fsdp` kinds keep the fp32 shard itself as main copy (torch FSDP2); `z` kinds keep the weights beside it (Megatron,
ZeRO).
Source: Rajbhandari et al. 2020 (arXiv 1910.02054); Zhao et al. 2023 (arXiv 2304.11277); Zhang et al. 2022, MiCS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.shapes import Bool, Float, Int
from meshwright.specs.optimizers import optimizer_named
from meshwright.specs.precision import Precision
from meshwright.specs.strategy import COLLECTIVE
from meshwright.strategies.columns import Compressions

Z0, Z1, Z2, Z3 = 0, 1, 2, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardingColumns:
    """One data-parallel choice per row."""

    zero: Int[np.ndarray, "..."]
    fsdp: Bool[np.ndarray, "..."]
    """The fp32 shard is the main copy."""
    reshard: Bool[np.ndarray, "..."]
    shard: Int[np.ndarray, "..."]
    """Ranks over which dense states are sharded: data x context ranks of one shard group."""
    replicate: Int[np.ndarray, "..."]
    """Shard groups."""
    expert_shard: Int[np.ndarray, "..."]
    """The same for expert parameters, over expert-data ranks."""
    expert_replicate: Int[np.ndarray, "..."]
    overlap: Bool[np.ndarray, "..."]
    offload_optimizer: Float[np.ndarray, "..."]
    gather_bytes: Float[np.ndarray, "..."] | None = None
    """Bytes of a weight on the network, NaN for those of the precision; None where all rows have the precision's."""
    reduce_bytes: Float[np.ndarray, "..."] | None = None
    """Bytes of a gradient on the network, in the same way."""
    offload_gradients: Float[np.ndarray, "..."] | None = None
    """Share of the gradients that leave for the host as backward makes them; None for none in any row."""
    offload_weights: Float[np.ndarray, "..."] | None = None
    """Share of the weights that the host holds, in the same way."""
    offload_disk: Float[np.ndarray, "..."] | None = None
    """1 where weights and optimizer states that are away are on disks, in the same way."""
    delayed_update: Float[np.ndarray, "..."] | None = None
    """1 where the update on the host runs beside the next step, in the same way."""
    secondary: Int[np.ndarray, "..."] | None = None
    """Ranks of a second copy of the weights, 0 for none; None where no row has one."""
    compression: Compressions | None = None
    """How gradients are made small, as plans write it; None where no row's are."""
    averaging_steps: Float[np.ndarray, "..."] | None = None
    """Optimizer steps from one averaging of replicas to the next, 0 where every step sums gradients; None likewise."""
    outer: Bool[np.ndarray, "..."] | None = None
    """An outer optimizer with momentum moves what is averaged; None likewise."""
    whole: Int[np.ndarray, "..."] | None = None
    """What FSDP keeps whole between micro-batches, as `whole_between` says it; None where no row keeps anything."""

    passing: np.ndarray | None = None
    """How weights get to other ranks, as `DataParallel.passing` says it; None where all rows have collectives."""

    prefetch: Int[np.ndarray, "..."] | None = None
    """Layers gathered ahead of the one at work; None where all rows gather the next one."""

    tile: Float[np.ndarray, "..."] | None = None
    """Parameters that the optimizer updates at a time, 0 for all; None likewise."""

    @property
    def has_tiles(self) -> bool:
        """Whether the optimizer of any row updates a part at a time."""
        return self.tile is not None and bool(np.any(self.tile))

    @property
    def has_travelling(self) -> bool:
        """Whether weights of any row travel, a neighbour to the next."""
        return self.passing is not None and bool(np.any(self.passing != COLLECTIVE))

    def passings(self) -> Iterator[tuple[str, Bool[np.ndarray, "..."]]]:
        """Ways other than collectives by name, with the rows in which weights travel so."""
        if self.passing is None or not self.has_travelling:
            return
        for name in np.unique(self.passing).tolist():
            if name != COLLECTIVE:
                yield name, np.asarray(self.passing == name)

    @property
    def sums_otherwise(self) -> bool:
        """Whether gradients of any row are compressed, or replicas averaged in place of them."""
        return bool(np.any(self.averaging_steps) or (self.compression is not None and np.any(self.compression != "")))

    def away(self, what: str) -> Float[np.ndarray, "..."] | float:
        """Share of `gradients` or `weights` that is away, or whether states are on `disk`; 0 where no row says it."""
        found = getattr(self, f"offload_{what}")
        return 0.0 if found is None else found

    def gathered_bytes(self, precision: Precision) -> Float[np.ndarray, "..."] | float:
        """Bytes of a weight on its way to other ranks."""
        return _stated(self.gather_bytes, precision.gathered_bytes)

    def reduced_bytes(self, precision: Precision) -> Float[np.ndarray, "..."] | float:
        """Bytes of a gradient on its way to other ranks."""
        return _stated(self.reduce_bytes, precision.bytes_of("reduce"))

    @property
    def defers(self) -> Bool[np.ndarray, "..."] | bool:
        """Whether gradients are scattered in the last micro-batch alone."""
        return False if self.whole is None else self.whole > 0

    @property
    def layers_ahead(self) -> Int[np.ndarray, "..."] | int:
        """Layers gathered ahead of the one at work, where weights are gathered layer by layer."""
        return 1 if self.prefetch is None else self.prefetch

    @property
    def gathers_layers(self) -> Bool[np.ndarray, "..."]:
        """Whether weights are gathered again for every layer and micro-batch."""
        return (self.zero == Z3) & self.reshard


def whole_between(
    keeps: str, micro_batches: Int[np.ndarray, "..."], stages: Int[np.ndarray, "..."]
) -> Int[np.ndarray, "..."] | None:
    """What ranks of FSDP keep whole from one micro-batch to the next: 0 nothing, 1 gradients, 2 weights too.

    `no_sync` and `set_requires_gradient_sync(False)` leave out the sums of all micro-batches but the last. Stages of
    PyTorch's pipelines free no weights after backward either.

    Args:
        keeps: `never`, in `pipelines` or `always`, as a framework does.
        micro_batches: the micro-batches of a step.
        stages: the stages of a pipeline.

    Returns:
        A number by row; None where the framework never does.

    Source: PyTorch 2.13, distributed/fsdp/_fully_shard and distributed/pipelining/stage.py
    (backward_maybe_with_nosync).
    """
    if keeps == "never":
        return None
    piped = np.asarray(stages) > 1
    return np.where((np.asarray(micro_batches) > 1) & (piped | (keeps == "always")), 1 + piped, 0)


def _stated(own: Float[np.ndarray, "..."] | None, usual: float) -> Float[np.ndarray, "..."] | float:
    """What rows state, and the usual number where they state none."""
    return usual if own is None else np.where(np.isnan(own), usual, own)


@dataclass(frozen=True, slots=True, kw_only=True)
class StateBytes:
    """Bytes per parameter that one rank keeps, by kind."""

    weights: Float[np.ndarray, "..."]
    gradients: Float[np.ndarray, "..."]
    optimizer: Float[np.ndarray, "..."]
    """Main copy and moments, less what lives on the host."""
    states: Float[np.ndarray, "..."] | float = 0.0
    """Share of the moments of a parameter that stays on the device."""
    wide: Float[np.ndarray, "..."] | float = 0.0
    """Share of its weight."""

    @property
    def total(self) -> Float[np.ndarray, "..."]:
        """All kinds."""
        return self.weights + self.gradients + self.optimizer


def state_bytes(
    sharding: ShardingColumns,
    shards: Int[np.ndarray, "..."],
    precision: Precision,
    optimizer: str,
    *,
    training: bool,
    any_order: bool = False,
) -> StateBytes:
    """Bytes per parameter on one rank.

    bf16 with Adam: 18 replicated, 6 + 12/d for z1, 2 + 16/d for z2, 18/d for z3, 16/d for fsdp.

    Args:
        sharding: the choice, per row.
        shards: ranks that share the states of these parameters, per row.
        precision: formats of the roles.
        optimizer: the optimizer as `optimizer_named` reads it.
        training: False keeps weights only.
        any_order: whether the device's products read 8-bit operands in any order.

    Returns:
        Bytes per parameter by kind, per row.

    Source: the formulas of memory accounting in Rajbhandari et al. 2020, section 3, and Megatron-LM's distributed
    optimizer.
    """
    weight = precision.bytes_of("weights")
    master = precision.bytes_of("master")
    one = np.ones(np.shape(shards))
    by_zero = [np.where(sharding.zero >= level, 1.0 / shards, one) for level in (Z1, Z2, Z3)]
    fsdp_weight = max(master, weight)
    weights = np.where(
        sharding.fsdp,
        fsdp_weight * by_zero[2] + np.where(sharding.reshard, 0.0, weight),
        (weight + precision.cached_bytes(any_order=any_order)) * by_zero[2],
    )
    if not training:
        zero = np.zeros(np.shape(shards))
        alone = np.where(sharding.fsdp, weight * by_zero[2], weights)
        return StateBytes(weights=alone, gradients=zero, optimizer=zero, wide=by_zero[2])
    copied: Any = COPY_BYTES if precision.master_gradient_copy else 0.0
    if sharding.has_tiles:
        # The copy is of one tile, which is working memory.
        copied = np.where(np.asarray(sharding.tile) > 0, 0.0, copied)
    # Micro-batches are added up in whole copies; one that the optimizer alone reads is of its own share.
    copies = copied * by_zero[1 if precision.sums_in_copy else 0]
    gradient = precision.bytes_of("gradients") * by_zero[1] + copies
    gradients = np.where(sharding.fsdp, fsdp_weight * by_zero[2], gradient)
    gradients = gradients * (1.0 - sharding.away("gradients"))
    if np.any(sharding.defers):
        gradients = np.where(sharding.defers, sharding.reduced_bytes(precision), gradients)
        weights = weights + np.where((np.asarray(sharding.whole) > 1) & sharding.reshard, weight, 0.0)
    kind = optimizer_named(optimizer)
    if kind.layerwise:
        gradients = np.zeros(np.shape(shards))
    moments = 0.0 if kind.paged else kind.each_bytes(precision.bytes_of("moments"))
    kept = by_zero[0] * (1.0 - sharding.offload_optimizer)
    held = (moments + np.where(sharding.fsdp, 0.0, master)) * kept
    if np.any(sharding.secondary):
        second = np.maximum(np.asarray(sharding.secondary), 1)
        weights = weights + weight / np.minimum(second, shards) * (np.asarray(sharding.secondary) > 0)
    if sharding.sums_otherwise:
        held = held + _beside_bytes(sharding, by_zero[2])
    return StateBytes(
        weights=weights,
        gradients=gradients,
        optimizer=held,
        states=0.0 if kind.paged else kept,
        wide=np.where(sharding.fsdp, np.where(sharding.reshard, 0.0, 1.0), by_zero[2]),
    )


COPY_BYTES = 4.0
"""Bytes of a 16-bit gradient once more in fp32, as the optimizer reads it."""


def tile_bytes(
    sharding: ShardingColumns, parameters: Float[np.ndarray, "..."], precision: Precision
) -> Float[np.ndarray, "..."]:
    """Working memory of an optimizer that updates a tile at a time: the fp32 copy of the tile's gradients.

    Args:
        sharding: the choice, per row.
        parameters: the parameters whose gradients a rank holds.
        precision: formats of the roles.

    Source: Singh et al., "A Hybrid Tensor-Expert-Data Parallelism Approach to Optimize Mixture-of-Experts Training",
    ICS 2023, section 4.
    """
    return np.asarray(COPY_BYTES * np.minimum(np.asarray(sharding.tile), parameters) * precision.master_gradient_copy)


OUTER_BYTES = 8.0
"""Bytes of a parameter: the weights that all replicas last agreed on and the momentum of the outer optimizer, in fp32.
Source: Douillard et al. 2023, DiLoCo (arXiv 2311.08105), algorithm 1."""


def _beside_bytes(sharding: ShardingColumns, share: Float[np.ndarray, "..."]) -> Float[np.ndarray, "..."]:
    """Bytes per parameter of errors that compressions keep, and of what outer optimizers keep."""
    from meshwright.strategies.compression import chosen  # few plans have one

    bytes_ = OUTER_BYTES * np.asarray(sharding.outer if sharding.outer is not None else 0.0, dtype=float) * share
    for word in () if sharding.compression is None else np.unique(sharding.compression):
        if found := chosen(str(word)):
            bytes_ = bytes_ + found.kind.error_bytes * (sharding.compression == word)
    return np.asarray(bytes_)


def optimizer_traffic_bytes(
    sharding: ShardingColumns, shards: Int[np.ndarray, "..."], precision: Precision, optimizer: str
) -> Float[np.ndarray, "..."]:
    """Device memory traffic of one update per parameter of the rank: read gradient twice (norm, update), read and write
    main copy and moments, write weights where they are not the main copy; over the share the rank updates.

    Where gradients of 16 bits get a copy in fp32, that is what is read twice, and scaled before: by the loss scale of
    fp16, by clipping. It is made from them once a step unless every micro-batch is added to it.

    Source: optimizer/optimizer.py of NVIDIA/Megatron-LM; runtime/fp16/fused_optimizer.py of microsoft/DeepSpeed.
    """
    master = precision.bytes_of("master")
    moments = optimizer_named(optimizer).each_bytes(precision.bytes_of("moments"))
    weight, gradient = precision.bytes_of("weights"), precision.bytes_of("gradients")
    kept = 2 * master + weight if master else 2 * weight
    read = 2 * gradient
    if precision.master_gradient_copy:
        read = 4 * 4.0 + (0.0 if precision.sums_in_copy else gradient + 4.0)
    touched = read + 2 * moments + kept
    updated = np.where(sharding.zero >= Z1, 1.0 / shards, 1.0)
    return touched * updated * (1.0 - sharding.offload_optimizer)
