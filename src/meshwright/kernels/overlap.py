"""Overlap: what of a communication stays visible when compute runs beside it.

Communication kernels take multiprocessors and memory bandwidth, so the compute beside them is slower by a factor.
Apart from collectives: this holds for any two streams, offload copies too.
"""

from __future__ import annotations

import numpy as np

from meshwright.shapes import Column, Float


def exposed_s(comm_s: Column, compute_s: Column, slowdown: Column) -> float | Float[np.ndarray, "..."]:
    """Seconds that communication adds to the compute it runs beside: max(comm - compute, comm (1 - 1/slowdown)).

    While both run, compute advances at 1/slowdown of its speed. If the communication ends first (comm <= slowdown *
    compute), it has cost the compute comm (1 - 1/slowdown); if the compute ends first, comm - compute is left over.
    The two are equal at comm = slowdown * compute and the larger one is the true one on either side. So
    compute + exposed = max(comm, compute + comm (1 - 1/slowdown)), never less than either alone. Communication itself
    is taken as not slowed. With nothing to hide behind (compute = 0) all of it is exposed.

    Args:
        comm_s: communication that may overlap, per row.
        compute_s: compute it may overlap with, alone on the device, per row.
        slowdown: factor on compute while both run, 1 or more: 1.0 for copy engines and in-switch collectives, about
            1.05-1.3 for collectives that run on multiprocessors.

    Returns:
        Exposed seconds, per row; 0 or more.

    Source: Miao et al., "Galvatron: Efficient Transformer Training over Multiple GPUs Using Automatic Parallelism",
    VLDB 2023 (overlap slowdown 1.1-1.3); Isaev et al., "Calculon", SC 2023 (15 % of the processor for NVLink, 2 % for
    InfiniBand).
    """
    return np.maximum(comm_s - compute_s, comm_s * (1 - 1 / slowdown))
