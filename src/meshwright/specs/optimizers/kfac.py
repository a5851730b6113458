"""K-FAC: the Fisher information of a layer as two Kronecker factors, whose inverses precondition its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from meshwright.specs.optimizers.base import FP32_BYTES, Column, Matrix, MatrixProduct, Optimizer

INVERSE_PRODUCTS = 0.5
"""Products of an n x n matrix with another one that have the FLOP of its inverse by Cholesky, n^3 (a third of it the
factor). Source: Golub and Van Loan, Matrix Computations, 4th edition, section 4.2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kfac(Optimizer):
    """Factors A = mean of a a^T and B = mean of g g^T over tokens, their inverses in fp32, and Adam's two moments.

    Each step: B^-1 G A^-1, 2 r c (r + c) FLOP for r x c. Every `every` steps: A and B of all its micro-batches,
    2 T (r^2 + c^2) for T tokens in the format of activations, their sums over data ranks, 4 (r^2 + c^2) bytes, and both
    inverses, r^3 + c^3. Tensor ranks take the
    block of their part of a matrix; embedding and head are left to Adam.
    """

    name: ClassVar[str] = "kfac"
    summary: ClassVar[str] = "two factors of each matrix and their inverses, beside two moments"
    source: ClassVar[str] = "Martens and Grosse 2015 (arXiv 1503.05671); Osawa et al. 2023 (arXiv 2211.14133)"
    on_host: ClassVar[bool] = False
    own_formats: ClassVar[bool] = True
    matrices: ClassVar[bool] = True
    early: ClassVar[bool] = False

    every: int = 10

    def each_bytes(self, moment_bytes: float) -> float:
        """Two moments."""
        return 2 * FP32_BYTES

    def matrix_bytes(self, matrix: Matrix, moment_bytes: float) -> Column:
        """Two moments of each element; 2 (r^2 + c^2) numbers of factors and inverses."""
        return FP32_BYTES * (2 * matrix.elements + 2 * (matrix.rows**2 + matrix.columns**2))

    def moved_bytes(self, matrix: Matrix, moment_bytes: float) -> Column:
        """The moments, read and written; products read the rest."""
        return 4 * FP32_BYTES * matrix.elements

    def products(self, matrix: Matrix) -> tuple[MatrixProduct, ...]:
        """Both sides of the preconditioned gradient."""
        return tuple(
            MatrixProduct(m=side, n=matrix.elements / side, k=side, fp32=True) for side in (matrix.rows, matrix.columns)
        )

    def statistics(self, matrix: Matrix, tokens: Column) -> tuple[MatrixProduct, ...]:
        """Sums of a a^T and g g^T."""
        return tuple(
            MatrixProduct(m=side, n=side, k=tokens, times=1.0 / self.every) for side in (matrix.rows, matrix.columns)
        )

    def statistics_bytes(self, matrix: Matrix) -> Column:
        """Both factors."""
        return FP32_BYTES * (matrix.rows**2 + matrix.columns**2) / self.every

    def refresh(self, matrix: Matrix) -> tuple[MatrixProduct, ...]:
        """Both inverses."""
        return tuple(
            MatrixProduct(m=side, n=side, k=side, times=INVERSE_PRODUCTS / self.every, fp32=True)
            for side in (matrix.rows, matrix.columns)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PipeFisher(Kfac):
    """K-FAC whose factors and inverses are made in the bubbles of a pipeline, spread over `every` steps."""

    name: ClassVar[str] = "pipefisher"
    summary: ClassVar[str] = "K-FAC with factors and inverses made where the workers of a pipeline wait"
    source: ClassVar[str] = "Osawa et al. 2023 (arXiv 2211.14133), PipeFisher, MLSys 2023"
    fills: ClassVar[bool] = True
