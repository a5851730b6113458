"""Shampoo: a preconditioner for each side of a block of a matrix, and Adam's moments for its length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshwright.specs.optimizers.base import FP32_BYTES, Column, Matrix, MatrixProduct, Optimizer

EIGEN_FLOP = 9.0
"""Times n^3, of the eigenvalues and vectors of a symmetric n x n matrix. Source: Golub and Van Loan, Matrix
Computations, 4th edition, section 8.3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shampoo(Optimizer):
    """Matrices in blocks of at most `block` x `block`; of each block L = sum G G^T and R = sum G^T G with their inverse
    roots, the filtered gradient and Adam's second moment for grafting; Adam for vectors. All in fp32.

    Each step: L and R (2 r c (r + c) FLOP), and L^-1/4 G R^-1/4 as much; roots every `every` steps.
    """

    name: ClassVar[str] = "shampoo"
    summary: ClassVar[str] = "two preconditioners and their roots for each block of a matrix, beside two moments"
    source: ClassVar[str] = "Gupta et al. 2018 (arXiv 1802.09568); Shi et al. 2023 (arXiv 2309.06497)"
    on_host: ClassVar[bool] = False
    own_formats: ClassVar[bool] = True
    matrices: ClassVar[bool] = True
    edges: ClassVar[bool] = True

    block: int = 8192
    every: int = 100

    def each_bytes(self, moment_bytes: float) -> float:
        """Two moments."""
        return 2 * FP32_BYTES

    def _blocks(self, matrix: Matrix) -> tuple[Column, Column, Column]:
        """Rows and columns of a block, and how many there are, not necessarily whole."""
        rows, columns = np.minimum(matrix.rows, self.block), np.minimum(matrix.columns, self.block)
        return rows, columns, matrix.elements / (rows * columns)

    def matrix_bytes(self, matrix: Matrix, moment_bytes: float) -> Column:
        """Two moments of each element; of each block 2 (r^2 + c^2) numbers."""
        rows, columns, count = self._blocks(matrix)
        return FP32_BYTES * (2 * matrix.elements + 2 * count * (rows**2 + columns**2))

    def moved_bytes(self, matrix: Matrix, moment_bytes: float) -> Column:
        """The moments, read and written; products read and write the rest."""
        return 4 * FP32_BYTES * matrix.elements

    def products(self, matrix: Matrix) -> tuple[MatrixProduct, ...]:
        """Both statistics, both sides of the preconditioned gradient; of blocks side by side as one product."""
        rows, columns, _ = self._blocks(matrix)
        return (
            MatrixProduct(m=rows, n=matrix.elements / rows, k=rows, fp32=True, times=2.0),
            MatrixProduct(m=matrix.elements / columns, n=columns, k=columns, fp32=True, times=2.0),
        )

    def decomposition_flop(self, matrix: Matrix) -> Column:
        """Roots of L and R by their eigenvalues."""
        rows, columns, count = self._blocks(matrix)
        return EIGEN_FLOP * count * (rows**3 + columns**3) / self.every
