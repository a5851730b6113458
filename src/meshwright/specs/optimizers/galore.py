"""GaLore: Adam's moments of gradients projected to a low rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshwright.specs.optimizers.base import Column, Matrix, MatrixProduct, Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class GaLore(Optimizer):
    """Moments of layers' m x n matrices, m the smaller side: two of rank x n numbers and a projection of m x rank;
    Adam for everything else.

    Each step projects the gradient and the update, 2 m n rank FLOP each; every `every` steps a singular-value
    decomposition of the gradient, 6 n m^2 + 20 m^3 FLOP (Golub and Van Loan, Matrix Computations, 4th edition,
    figure 8.6.1). Gradients are kept whole.
    """

    name: ClassVar[str] = "galore"
    summary: ClassVar[str] = "two moments of a projected gradient and the projection; Adam beside layers"
    source: ClassVar[str] = "Zhao et al. 2024 (arXiv 2403.03507); usual settings: transformers 5, Trainer, 2026"
    on_host: ClassVar[bool] = False
    matrices: ClassVar[bool] = True

    rank: int = 128
    every: int = 200

    def each_bytes(self, moment_bytes: float) -> float:
        """Two moments."""
        return 2 * moment_bytes

    def least_bytes(self, moment_bytes: float) -> float:
        """Little in a large matrix."""
        return 0.0

    def _sides(self, matrix: Matrix) -> tuple[Column, Column, Column]:
        """Smaller side, larger side, rank."""
        small, large = np.minimum(matrix.rows, matrix.columns), np.maximum(matrix.rows, matrix.columns)
        return small, large, np.minimum(small, self.rank)

    def matrix_bytes(self, matrix: Matrix, moment_bytes: float) -> Column:
        """2 rank n + m rank numbers."""
        small, large, rank = self._sides(matrix)
        return moment_bytes * rank * (2 * large + small)

    def moved_bytes(self, matrix: Matrix, moment_bytes: float) -> Column:
        """The moments, read and written."""
        _, large, rank = self._sides(matrix)
        return 4 * moment_bytes * rank * large

    def products(self, matrix: Matrix) -> tuple[MatrixProduct, ...]:
        """Products into the low rank and out of it."""
        small, large, rank = self._sides(matrix)
        return (
            MatrixProduct(m=rank, n=large, k=small, fp32=True),
            MatrixProduct(m=small, n=large, k=rank, fp32=True),
        )

    def decomposition_flop(self, matrix: Matrix) -> Column:
        """One singular-value decomposition every so many steps."""
        small, large, _ = self._sides(matrix)
        return (6 * large * small**2 + 20 * small**3) / self.every
