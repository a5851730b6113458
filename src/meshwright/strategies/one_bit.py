"""1-bit Adam: after a warm-up the variance stays as it is, and ranks sum signs of their momenta with one scale.

A bit of every element is scattered to the rank that adds it up, and a bit of the sum gathered, which costs what summing
one eighth of a byte costs. The momentum is there when the whole gradient is, so that nothing hides it.
Source: Tang et al. 2021 (arXiv 2102.02888), algorithm 1 and section 5.
"""

from __future__ import annotations

from meshwright.strategies.compression import Array, Compression

SCALE_BYTES = 4.0


class OneBit(Compression):
    """Signs of momenta."""

    name, setting, usual, most = "onebit", "steps of warm-up", 100, 999_999_999
    exchange, hides, optimizer = "sum", False, "adam"
    # The error of what a rank sends; that of what it adds up is shared among the ranks.
    # Momentum and error read, signs written, signs read, momentum and error written.
    touched_bytes = 16.25

    def payload_bytes(self, rows: Array, columns: Array, setting: int, element_bytes: float) -> Array:
        """A bit of each element, and a scale."""
        return rows * columns / 8.0 + SCALE_BYTES
