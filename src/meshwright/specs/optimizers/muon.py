"""Muon: the momentum of a matrix, made orthogonal by Newton-Schulz steps; Adam for everything else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from meshwright.specs.optimizers.base import Column, Matrix, MatrixProduct, Optimizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Muon(Optimizer):
    """One momentum for matrices of layers; two moments for embedding, head, norms and biases, which Adam updates.

    A step X <- a X + (b A + c A A) X with A = X X^T takes 2 (2 n m^2 + m^3) FLOP for m x n, m the smaller side. Tensor
    ranks gather the whole matrix and all do this, Megatron-LM's usual way.
    """

    name: ClassVar[str] = "muon"
    summary: ClassVar[str] = "one momentum for matrices of layers, made orthogonal in 5 steps; Adam for the rest"
    source: ClassVar[str] = "Jordan 2024 (kellerjordan.github.io/posts/muon); Liu et al. 2025 (arXiv 2502.16982)"
    on_host: ClassVar[bool] = False
    matrices: ClassVar[bool] = True
    whole: ClassVar[bool] = True

    steps: int = 5

    def each_bytes(self, moment_bytes: float) -> float:
        """Adam's two moments."""
        return 2 * moment_bytes

    def least_bytes(self, moment_bytes: float) -> float:
        """One momentum."""
        return moment_bytes

    def matrix_bytes(self, matrix: Matrix, moment_bytes: float) -> Column:
        """One momentum."""
        return moment_bytes * matrix.elements

    def products(self, matrix: Matrix) -> tuple[MatrixProduct, ...]:
        """X X^T, A A and the sum's product with X in every step."""
        small = np.minimum(matrix.whole_rows, matrix.whole_columns)
        large = np.maximum(matrix.whole_rows, matrix.whole_columns)
        times = float(self.steps)
        return (
            MatrixProduct(m=small, n=small, k=large, times=times),
            MatrixProduct(m=small, n=small, k=small, times=times),
            MatrixProduct(m=small, n=large, k=small, times=times),
        )
