"""The textbook alpha-beta forms of collective algorithms on one level of links, one function per algorithm.

Letters: S bytes of the full tensor (all-gather output, reduce-scatter input, all-reduce tensor; all-to-all: bytes one
rank sends, its own share included), n ranks, a latency of a step, B bytes/s of a rank, one way.

Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH", IJHPCA 2005; Chan
et al., "Collective communication: theory, practice, and experience", CCPE 2007.

Bus bandwidth, as nccl-tests prints it, is S / seconds times `all_reduce_bus_factor` or `gather_bus_factor`: it can be
compared with the bandwidth of the link whatever n is. https://github.com/NVIDIA/nccl-tests/blob/master/doc/PERFORMANCE.md
"""

from __future__ import annotations

import numpy as np

from meshwright.shapes import Column, Float

Seconds = float | Float[np.ndarray, "..."]
"""Seconds, or seconds per byte, in the broadcast shape of the arguments."""


def send_s(payload_bytes: Column, *, latency_s: Column, bandwidth_bytes_per_s: Column) -> Seconds:
    """One message: a + S/B."""
    return latency_s + payload_bytes / bandwidth_bytes_per_s


def ring_gather_s(payload_bytes: Column, ranks: Column, *, latency_s: Column, bandwidth_bytes_per_s: Column) -> Seconds:
    """All-gather or reduce-scatter on a ring: (n-1) a + (n-1)/n S/B."""
    steps = ranks - 1
    return steps * latency_s + steps / ranks * payload_bytes / bandwidth_bytes_per_s


def log_step_gather_s(
    payload_bytes: Column, ranks: Column, *, latency_s: Column, bandwidth_bytes_per_s: Column
) -> Seconds:
    """All-gather or reduce-scatter by recursive doubling or halving: ceil(log2 n) a + (n-1)/n S/B."""
    return np.ceil(np.log2(ranks)) * latency_s + (1 - 1 / ranks) * payload_bytes / bandwidth_bytes_per_s


def ring_all_reduce_s(
    payload_bytes: Column, ranks: Column, *, latency_s: Column, bandwidth_bytes_per_s: Column
) -> Seconds:
    """Reduce-scatter, then all-gather, on a ring: 2(n-1) a + 2(n-1)/n S/B."""
    return 2 * ring_gather_s(payload_bytes, ranks, latency_s=latency_s, bandwidth_bytes_per_s=bandwidth_bytes_per_s)


def in_switch_all_reduce_s(
    payload_bytes: Column, ranks: Column, *, latency_s: Column, bandwidth_bytes_per_s: Column
) -> Seconds:
    """All-reduce in the switch: a + (n+1)/n S/B, nothing for one rank.

    Each rank reads its n-th part reduced by the switch and writes it back as a multicast. So it sends all of S for the
    reductions of all ranks plus its own result S/n, and receives as much: S(1 + 1/n) per direction, where a ring
    sends almost 2S.

    Source: Klenk et al., "An In-Network Architecture for Accelerating Shared-Memory Multiprocessor Collectives",
    ISCA 2020 (the multicast and reduce of NVSwitch).
    """
    several = np.minimum(ranks - 1, 1)
    return several * (latency_s + (1 + 1 / ranks) * payload_bytes / bandwidth_bytes_per_s)


def direct_all_to_all_s(
    payload_bytes: Column, ranks: Column, *, latency_s: Column, bandwidth_bytes_per_s: Column
) -> Seconds:
    """All-to-all, one message per peer: (n-1) a + (n-1)/n S/B."""
    return ring_gather_s(payload_bytes, ranks, latency_s=latency_s, bandwidth_bytes_per_s=bandwidth_bytes_per_s)


def tree_broadcast_s(
    payload_bytes: Column, ranks: Column, *, latency_s: Column, bandwidth_bytes_per_s: Column
) -> Seconds:
    """Broadcast on a binomial tree: ceil(log2 n) (a + S/B)."""
    return np.ceil(np.log2(ranks)) * (latency_s + payload_bytes / bandwidth_bytes_per_s)


def all_reduce_bus_factor(ranks: Column) -> Seconds:
    """Bus bandwidth of an all-reduce over S / seconds: 2 (n-1)/n."""
    return 2 * gather_bus_factor(ranks)


def gather_bus_factor(ranks: Column) -> Seconds:
    """Bus bandwidth of all-gather, reduce-scatter and all-to-all over S / seconds: (n-1)/n; of broadcast and send 1."""
    return 1 - 1 / ranks
