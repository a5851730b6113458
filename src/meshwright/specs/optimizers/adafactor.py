"""Adafactor: second moments of a matrix as one number per row and one per column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwright.specs.optimizers.base import FP32_BYTES, Column, Matrix, Optimizer

UPDATE_BYTES = 12.0
"""Bytes per element beside what every optimizer moves: the gradient read again for its means (4), the update written
and read again, because it is clipped by its root mean square (8)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adafactor(Optimizer):
    """No first moment; second moments factored for matrices, whole for vectors; in fp32."""

    name: ClassVar[str] = "adafactor"
    summary: ClassVar[str] = "one number per row and one per column of a matrix, one per element of a vector"
    source: ClassVar[str] = "Shazeer and Stern 2018 (arXiv 1804.04235), algorithm 4"
    own_formats: ClassVar[bool] = True
    on_host: ClassVar[bool] = False
    matrices: ClassVar[bool] = True
    edges: ClassVar[bool] = True

    def each_bytes(self, moment_bytes: float) -> float:
        """One number of a vector's element."""
        return FP32_BYTES

    def least_bytes(self, moment_bytes: float) -> float:
        """Next to nothing in a large matrix."""
        return 0.0

    def matrix_bytes(self, matrix: Matrix, moment_bytes: float) -> Column:
        """4 (rows + columns)."""
        return FP32_BYTES * (matrix.rows + matrix.columns)

    def moved_bytes(self, matrix: Matrix, moment_bytes: float) -> Column:
        """Both factors twice, and the passes of clipping."""
        return 2 * self.matrix_bytes(matrix, moment_bytes) + UPDATE_BYTES * matrix.elements
