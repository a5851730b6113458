"""SOAP: Adam in the eigenbasis of Shampoo's preconditioners."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshwright.specs.optimizers.base import FP32_BYTES, Column, Matrix, MatrixProduct, Optimizer

QR_FLOP = 8.0 / 3.0
"""Times n^3, of the factors of an n x n matrix, Q written out. Source: Golub and Van Loan, Matrix Computations, 4th
edition, section 5.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Soap(Optimizer):
    """Two moments; for each side of a matrix of at most `largest`, statistics and their eigenvectors. All in fp32.

    Each step: statistics, the gradient and the first moment into the basis, the update out of it; every `every` steps
    one power iteration with a QR factorisation. A longer side is left as it is.
    """

    name: ClassVar[str] = "soap"
    summary: ClassVar[str] = "two moments, and statistics with eigenvectors for each side of a matrix"
    source: ClassVar[str] = "Vyas et al. 2024 (arXiv 2409.11321); github.com/nikhilvyas/SOAP"
    on_host: ClassVar[bool] = False
    own_formats: ClassVar[bool] = True
    matrices: ClassVar[bool] = True
    edges: ClassVar[bool] = True

    every: int = 10
    largest: int = 10000

    def each_bytes(self, moment_bytes: float) -> float:
        """Two moments."""
        return 2 * FP32_BYTES

    def _sides(self, matrix: Matrix) -> tuple[Column, Column]:
        """Rows and columns, 0 where a side is too long."""
        rows, columns = np.asarray(matrix.rows), np.asarray(matrix.columns)
        return np.where(rows > self.largest, 0, rows), np.where(columns > self.largest, 0, columns)

    def matrix_bytes(self, matrix: Matrix, moment_bytes: float) -> Column:
        """Two moments of each element, and 2 (r^2 + c^2) numbers."""
        rows, columns = self._sides(matrix)
        return FP32_BYTES * (2 * matrix.elements + 2 * (rows**2 + columns**2))

    def moved_bytes(self, matrix: Matrix, moment_bytes: float) -> Column:
        """The moments, read and written; products read and write the rest."""
        return 4 * FP32_BYTES * matrix.elements

    def products(self, matrix: Matrix) -> tuple[MatrixProduct, ...]:
        """Products of each side: statistics, two projections and one back; and now and then the power iteration."""
        rows, columns = self._sides(matrix)
        often = 1.0 / self.every
        return (
            MatrixProduct(m=rows, n=matrix.columns * (rows > 0), k=rows, fp32=True, times=4.0),
            MatrixProduct(m=matrix.rows * (columns > 0), n=columns, k=columns, fp32=True, times=4.0),
            MatrixProduct(m=rows, n=rows, k=rows, fp32=True, times=often),
            MatrixProduct(m=columns, n=columns, k=columns, fp32=True, times=often),
        )

    def decomposition_flop(self, matrix: Matrix) -> Column:
        """QR of both."""
        rows, columns = self._sides(matrix)
        return QR_FLOP * (rows**3 + columns**3) / self.every
