"""Seconds of recurrences over a sequence, computed a chunk of tokens at a time."""

from __future__ import annotations

import numpy as np

from meshwright.kernels.compute import Amount, Roof
from meshwright.shapes import Column


def scan_s(
    flop: Column, scalar_flop: Column, traffic_bytes: Column, *, roof: Roof, scalar_flop_per_s: Column
) -> Amount:
    """Seconds of a scan in one direction: max(products, scalar work, memory) + launch.

    flop / (peak * max_fraction), scalar_flop / scalar_flop_per_s and traffic_bytes / memory_bytes_per_s: kernels of a
    scan overlap the three within a chunk and across chunks of other heads.

    Args:
        flop: the FLOP of products of chunks, per row.
        scalar_flop: outside of products, per row.
        traffic_bytes: read and written, states included, per row.
        roof: the roof of the device for products of chunks.
        scalar_flop_per_s: reached outside of products.

    Returns:
        Seconds, per row.

    Source: Dao and Gu 2024 (Mamba-2, arXiv 2405.21060), section 6: products of chunks, a scan over their states.
    """
    products_s = flop / roof.flop_per_s
    work_s = np.maximum(products_s, scalar_flop / scalar_flop_per_s)
    return np.maximum(work_s, traffic_bytes / roof.memory_bytes_per_s) + roof.launch_s
