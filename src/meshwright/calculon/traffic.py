"""Seconds of reducing gradients over replicas.

Source: Isaev et al., SC'23, and the formulas of Calculon 0.1.0.
"""

from __future__ import annotations

import numpy as np

from meshwright.calculon.inputs import Network
from meshwright.calculon.rows import Column, ExecutionRows


def traffic_s(rows: ExecutionRows, size_bytes: Column) -> Column:
    """Seconds to reduce gradients of V bytes: reduce-scatter and all-gather where sharded, else all-reduce.

    Latencies + V (alpha + beta / d), the collectives' scalars and offsets folded into alpha and beta per network.
    """
    networks = rows.prepared.system.networks
    kind = rows.columns.data_par_net * 2 + rows.columns.optimizer_sharding
    terms = np.asarray([_terms(network, sharded=sharded) for network in networks for sharded in (False, True)])
    latency, alpha, beta = (terms[:, place][kind] for place in range(3))
    return latency + size_bytes * (alpha + beta / rows.replicas)


def _terms(network: Network, *, sharded: bool) -> tuple[float, float, float]:
    operations = [network.operations[name] for name in collectives(sharded)]
    speed = network.bandwidth_bytes_per_s * network.efficiency
    alpha = sum(scalar for scalar, _ in operations) / speed
    beta = sum(scalar * offset for scalar, offset in operations) / speed
    return network.latency_s * len(operations), alpha, beta


def collectives(sharded: bool) -> tuple[str, ...]:
    """The operations that reduce gradients."""
    return ("reduce_scatter", "all_gather") if sharded else ("all_reduce",)
