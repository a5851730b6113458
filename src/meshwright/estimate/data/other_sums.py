"""Gradients that replicas do not sum as they are: compressed ones, and weights that are averaged now and then.

    compressed    what the compression sends, once a step, beside the backward where it may start before its end;
                  making it small and large again is done by the device, and nothing hides it
    averaged      2 (n - 1) / n x 4 bytes of every parameter once in H steps, and the outer update, exposed: 1 / H of
                  both in every step

Source: Vogels et al. 2019 (arXiv 1905.13727); Stich 2019, Local SGD (arXiv 1805.09767); Douillard et al. 2023, DiLoCo
(arXiv 2311.08105), algorithm 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from meshwright.estimate.hardware import Hardware
from meshwright.shapes import Array, Bool
from meshwright.strategies.compression import Chosen, chosen
from meshwright.strategies.data import ShardingColumns

# Weights are averaged as the main copy holds them.
AVERAGED_BYTES = 4.0
# Of a parameter, read and written by the outer update: the last agreed weight, the mean and the momentum are read; the
# momentum, the agreed weight and the replica's own main copy are written.
OUTER_TOUCHED_BYTES = 24.0


@runtime_checkable
class ReplicaNetwork(Protocol):
    """Collectives between shard groups, as `sync.DataNetwork` has them."""

    hardware: Hardware
    replica: dict[bool, tuple[float | Array, ...]]

    def replica_sum_s(self, size_bytes: Array, *, expert: bool) -> Array:
        """All-reduce."""
        ...

    def replica_gather_s(self, size_bytes: Array, *, expert: bool) -> Array:
        """All-gather."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherSums:
    """What takes the place of sums of gradients, in seconds of a step."""

    instead: Bool[np.ndarray, "..."]
    """Rows whose gradients are not summed as they are."""
    bucket_s: Array
    """Seconds for each bucket, beside the backward."""
    alone_s: Array
    """Exposed."""


def sums_otherwise(
    sharding: ShardingColumns,
    network: ReplicaNetwork,
    held: Array,
    payload_bytes: Array,
    buckets: Array,
    *,
    expert: bool,
) -> OtherSums:
    """Sums of compressed gradients and averages of weights.

    Args:
        sharding: the data-parallel choice.
        network: its groups.
        held: parameters of which a rank holds the gradient or the main copy.
        payload_bytes: the payload bytes of compressed gradients.
        buckets: the buckets in which gradients leave.
        expert: whether experts' parameters.
    """
    rates = network.hardware.achieved_memory_bytes_per_s
    instead: Bool[np.ndarray, "..."] = np.zeros(np.shape(sharding.zero), dtype=bool)
    bucket_s: Array = np.zeros(1)
    alone_s: Array = np.zeros(1)
    for word in () if sharding.compression is None else np.unique(sharding.compression):
        found = chosen(str(word))
        if found is None:
            continue
        here = np.asarray(sharding.compression == word)
        instead = instead | here
        pieces = buckets if found.kind.hides else np.ones(1)
        exchanged_s = compressed_s(found, network, payload_bytes / pieces, expert=expert) * here
        bucket_s = bucket_s + exchanged_s * found.kind.hides
        alone_s = alone_s + exchanged_s * (not found.kind.hides) + found.kind.touched_bytes * held / rates * here
    if np.any(sharding.averaging_steps):
        every = np.asarray(sharding.averaging_steps, dtype=float)
        here = every > 0
        instead = instead | here
        once_s = network.replica_sum_s(held * AVERAGED_BYTES, expert=expert)
        if sharding.outer is not None:
            once_s = once_s + OUTER_TOUCHED_BYTES * held / rates * sharding.outer
        alone_s = alone_s + once_s / np.maximum(every, 1.0) * here
    return OtherSums(instead=instead, bucket_s=bucket_s, alone_s=alone_s)


def compressed_s(found: Chosen, network: ReplicaNetwork, payload_bytes: Array, *, expert: bool) -> Array:
    """One exchange of compressed gradients, its rounds one after the other.

    Args:
        found: the compression.
        network: its groups.
        payload_bytes: the payload bytes that each rank sends.
        expert: whether experts' parameters.
    """
    if found.kind.exchange == "gather":
        return network.replica_gather_s(payload_bytes * network.replica[expert][-1], expert=expert)
    rounds = found.kind.rounds
    return rounds * network.replica_sum_s(payload_bytes / rounds, expert=expert)
