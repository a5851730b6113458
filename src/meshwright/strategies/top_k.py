"""Top-k: the largest elements of every gradient, with their places; ranks gather each other's and add them up.

What is gathered grows with the ranks: d k (4 + 4) bytes, so that it pays where k d is small beside 1.
Source: Aji and Heafield 2017 (arXiv 1704.05021); Lin et al. 2018, Deep Gradient Compression (arXiv 1712.01887).
"""

from __future__ import annotations

import numpy as np

from meshwright.strategies.compression import Array, Compression

VALUE_BYTES = INDEX_BYTES = 4.0


def kept_elements(elements: Array, percent: int) -> Array:
    """Elements of a tensor that are sent, at least one.

    Args:
        elements: the elements of the tensor.
        percent: the percent of them.
    """
    return np.maximum(np.ceil(elements * (percent / 100.0)), np.minimum(elements, 1.0))


class TopK(Compression):
    """The largest elements alone."""

    name, setting, usual, most = "topk", "percent of the elements", 1, 99
    exchange, hides = "gather", True
    # Gradient and error read, their sum written, searched twice, error and gradient written, in fp32.
    touched_bytes = 28.0

    def payload_bytes(self, rows: Array, columns: Array, setting: int, element_bytes: float) -> Array:
        """A value and a place for each element that is sent."""
        return kept_elements(rows * columns, setting) * (VALUE_BYTES + INDEX_BYTES)
