"""PowerSGD: a gradient as the product of two thin matrices, found by one step of power iteration.

P = M Q is summed and made orthogonal, Q = M^T P is summed: r (n + m) numbers of fp32 in two rounds instead of n m.
Vectors, and matrices that it would not make smaller, go as they are.
Source: Vogels et al. 2019 (arXiv 1905.13727), algorithms 1 and 2.
"""

from __future__ import annotations

import numpy as np

from meshwright.strategies.compression import Array, Compression

ELEMENT_BYTES = 4.0


class PowerSgd(Compression):
    """Gradients of low rank."""

    name, setting, usual, most = "powersgd", "the rank of a gradient", 4, 4096
    exchange, hides, rounds = "sum", True, 2
    # Gradient and error read, their sum written and read for P and for Q, gradient and error written, in fp32.
    touched_bytes = 28.0

    def payload_bytes(self, rows: Array, columns: Array, setting: int, element_bytes: float) -> Array:
        """r (n + m) elements of both factors."""
        small, whole = setting * (rows + columns) * ELEMENT_BYTES, rows * columns * element_bytes
        return np.where((np.minimum(rows, columns) > 1) & (small < whole), small, whole)
